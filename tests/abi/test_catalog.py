"""The catalogue of maps and programs against what the built objects declare."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import svcctl
from svcctl.bpf.btf import Btf
from svcctl.bpf.object import MapSpec, Object
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.catalog import MapShape

OWN = "el" if sys.byteorder == "little" else "eb"
OBJECTS = Path(svcctl.__file__).parent / "objects"
F_NO_PREALLOC, F_RDONLY_PROG = 1, 1 << 7
DROP_SLOTS = 64
"""SVC_DROP_SLOTS of bpf/include/svc_types.h."""

# object -> maps it must declare, no more and no less
SHARED = {name: catalog.STATE_MAPS[name] for name in catalog.SHARED_MAPS}
DECLARES = {
    "state": catalog.STATE_MAPS,
    "dispatch": catalog.DISPATCH_MAPS | SHARED,
    "connect": catalog.SERVICE_MAPS | SHARED,
    "packet": catalog.PACKET_MAPS | catalog.SERVICE_MAPS | SHARED,
}
# Types of keys and values by name: sizes alone would not notice two structs changed for each other.
TYPES = {
    "meta": ("__u32", "struct svc_meta"),
    "usage": ("__u32", "struct svc_usage"),
    "writers": ("__u32", "struct svc_writer"),
    "programs": ("__u32", "struct svc_program"),
    "attachments": ("struct svc_attachment_key", "struct svc_attachment"),
    "attach_rules": ("struct svc_attach_rule_key", "struct svc_attach_rule"),
    "bindings": ("struct svc_binding_key", "struct svc_binding"),
    "exact": ("struct svc_exact_key", "struct svc_exact"),
    "ports": ("__u32", "struct svc_ports"),
    "destinations": ("struct svc_destination_key", "struct svc_destination"),
    "binding_owners": ("struct svc_binding_key", "struct svc_owner"),
    "sockets": ("__u32", "__u64"),
    "hints": ("__u32", "__u32"),
    "dispatch_stats": ("__u32", "struct svc_dispatch_stats"),
    "drop_stats": ("__u32", "__u64"),
    "config": ("__u32", "struct svc_config"),
    "frontends": ("struct svc_frontend_key", "struct svc_frontend"),
    "current": ("__u32", "struct svc_current"),
    "blocks": ("__u32", "struct svc_block"),
    "slots": ("struct svc_slot_key", "struct svc_slot"),
    "members": ("struct svc_member_key", "__u32"),
    "backends": ("__u32", "struct svc_backend"),
    "service_stats": ("__u32", "struct svc_service_stats"),
    "node_addresses": ("struct svc_node_key", "__u32"),
    "affinity": ("struct svc_affinity_key", "struct svc_affinity"),
    "reverse": ("__u64", "struct svc_reverse"),
    "reverse_counts": ("__u32", "__u32"),
    "lut": ("__u32", ""),  # of maps
    "lut_sets": ("struct svc_lut_key", "struct svc_lut"),
    "service_names": ("struct svc_service_name", "__u32"),
    "services": ("__u32", "struct svc_service"),
    "service_fronts": ("struct svc_service_item_key", "struct svc_service_frontend"),
    "service_members": ("struct svc_service_item_key", "struct svc_service_member"),
    "node_port_nets": ("struct svc_node_key", "__u32"),
    "backend_ids": ("struct svc_backend_key", "struct svc_backend_id"),
    "flows": ("struct svc_flow_key", "struct svc_flow"),
    "halfopen": ("struct svc_flow_key", "struct svc_flow"),
    "fragments": ("struct svc_fragment_key", "struct svc_fragment"),
    "flow_filter": ("__u32", "struct svc_filter_bucket"),
    "devices": ("__u32", "struct svc_device"),
    "nodes": ("__u32", "struct svc_node"),
    "source_ranges": ("struct svc_range_key", "__u32"),
    "packet_config": ("__u32", "struct svc_packet_config"),
    "packet_stats": ("__u32", "__u64"),
    "packet_scratch": ("__u32", "struct packet_scratch"),
}
TYPELESS = {"tails"}
"""The kernel refuses types for this one's keys and values."""


def path(name: str) -> str:
    return str(OBJECTS / f"{name}.bpf{OWN}.o")


def specs(name: str) -> dict[str, MapSpec]:
    with Object.open(path(name)) as built:
        return built.map_specs


@pytest.mark.parametrize("name", DECLARES)
def test_shapes(name: str) -> None:
    """Type, key and value size of every map, and no map that the catalogue does not know."""
    have = {each: (spec.type, spec.key_size, spec.value_size) for each, spec in specs(name).items()}
    assert have == {each: shape[:3] for each, shape in DECLARES[name].items()}


def test_every_map_is_in_the_catalogue() -> None:
    parts = (catalog.STATE_MAPS, catalog.DISPATCH_MAPS, catalog.SERVICE_MAPS, catalog.PACKET_MAPS)
    assert parts[0] | parts[1] | parts[2] | parts[3] == catalog.MAPS
    assert set(TYPES) | TYPELESS == set(catalog.MAPS)
    assert len(catalog.MAPS) == sum(map(len, parts))


@pytest.mark.parametrize("name", DECLARES)
def test_key_and_value_types(name: str) -> None:
    btf = Btf.from_object(path(name))
    typed = DECLARES[name].keys() - TYPELESS
    assert {each: btf.map_types(each) for each in typed} == {each: TYPES[each] for each in typed}


def test_sizes() -> None:
    """Default sizes of the objects are those of the options; the others follow or are fixed."""
    sizes = catalog.dispatch_sizes(catalog.DEFAULT_BINDINGS, catalog.DEFAULT_DESTINATIONS)
    declared = {name: spec.max_entries for name, spec in specs("dispatch").items()}
    assert declared == sizes | {"ports": 131072, "drop_stats": DROP_SLOTS}
    assert len(enums.DROP_REASONS) <= DROP_SLOTS
    declared = {name: spec.max_entries for name, spec in specs("state").items()}
    assert declared == {
        "meta": 1,
        "usage": enums.USAGE_INDEX["SVC_USAGE_MAPS"],
        "writers": layouts.WRITERS,
        "programs": layouts.PROGRAM_SLOTS,
        "attachments": 8192,
        "attach_rules": 256,
        "drop_stats": DROP_SLOTS,
    }


def test_flags() -> None:
    """Only what is filled by the million, or hardly ever, is not preallocated."""
    flags = {name: spec.flags for name, spec in (specs("state") | specs("dispatch")).items()}
    bare = {"bindings", "exact", "binding_owners", "attachments", "attach_rules"}
    assert {name for name, each in flags.items() if each} == bare
    assert {flags[name] for name in bare} == {F_NO_PREALLOC}


def test_usage_indices() -> None:
    """Every map that is counted has a place of its own, named in the enum."""
    counted = {name: shape.usage for name, shape in catalog.MAPS.items() if shape.usage is not None}
    # The two whose enum names what is counted rather than the map.
    also = {"current": "lanes", "service_names": "services"}
    assert {also.get(name, name): index for name, index in counted.items()} == {
        name.removeprefix("SVC_USAGE_").lower(): index
        for name, index in enums.USAGE_INDEX.items()
        if name != "SVC_USAGE_MAPS"
    }
    # Programs fill these, so nobody counts them.
    assert set(counted) == set(catalog.USAGE_OPTIONS) - set(catalog.FILLED)


def test_programs() -> None:
    for shape in catalog.PROGRAMS:
        with Object.open(path(shape.object)) as built:
            sections = {"dispatch": "sk_lookup", "connect": f"cgroup/{shape.name}", "packet": "tc"}
            section = sections[shape.object]
            assert built.program_sections[shape.name] == section
        assert enums.PROGRAM_INDEX[f"SVC_PROGRAM_{shape.name.upper()}"] == shape.number
        assert shape.number < layouts.NEXT_PROGRAMS


def test_names_fit_the_kernel() -> None:
    """A map's name is cut at 15 bytes; bpffs refuses a dot anywhere in a name."""
    assert all(len(name) <= 15 for name in catalog.MAPS)
    assert all(len(shape.name) <= 15 for shape in catalog.PROGRAMS)
    pins = [*catalog.MAPS, *(shape.pin for shape in catalog.PROGRAMS)]
    # Of the packet path each interface has links of its own.
    pins += [shape.link_pin for shape in catalog.PROGRAMS if shape.link_pin]
    assert len(set(pins)) == len(pins)
    for pin in pins:
        assert "." not in pin + catalog.NEXT
        assert not pin.startswith(catalog.NEXT)


def test_no_global_variables() -> None:
    """They would be maps of their own, which nobody pins and an upgrade would lose. Constants are none."""
    for name in DECLARES:
        with Object.open(path(name)) as built:
            sections = built.section_specs
        assert all(spec.flags & F_RDONLY_PROG for spec in sections.values()), sections


def test_shape_is_a_plain_tuple() -> None:
    assert MapShape(1, 2, 3) == (1, 2, 3, None)
