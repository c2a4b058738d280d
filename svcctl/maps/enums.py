"""Mirrors of the enums in bpf/include/svc_types.h, value by value; checked against BTF."""

from __future__ import annotations

FAMILY = {"SVC_IPV4": 4, "SVC_IPV6": 6}

DROP_NO_SOCKET, DROP_BAD_DESTINATION, DROP_UNSTABLE = range(3)
DROP_REASONS = ("no_socket", "bad_destination", "unstable")
DROP_REASON = {
    "SVC_DROP_NO_SOCKET": 0,
    "SVC_DROP_BAD_DESTINATION": 1,
    "SVC_DROP_UNSTABLE": 2,
    "SVC_DROP_REASONS": 3,
}

USAGE_BINDINGS, USAGE_EXACT, USAGE_DESTINATIONS = range(3)
USAGE_INDEX = {
    "SVC_USAGE_BINDINGS": 0,
    "SVC_USAGE_EXACT": 1,
    "SVC_USAGE_DESTINATIONS": 2,
    "SVC_USAGE_MAPS": 16,
}

PROGRAM_DISPATCH = 0
PROGRAM_INDEX = {"SVC_PROGRAM_DISPATCH": 0}

ATTACH_NETNS = 1
ATTACHMENT_KIND = {"SVC_ATTACH_NETNS": 1}

SWAP_NONE, SWAP_FORWARD = 0, 1
SWAP_PHASE = {"SVC_SWAP_NONE": 0, "SVC_SWAP_FORWARD": 1}

ALL = {
    "svc_family": FAMILY,
    "svc_drop_reason": DROP_REASON,
    "svc_usage_index": USAGE_INDEX,
    "svc_program_index": PROGRAM_INDEX,
    "svc_attachment_kind": ATTACHMENT_KIND,
    "svc_swap_phase": SWAP_PHASE,
}
