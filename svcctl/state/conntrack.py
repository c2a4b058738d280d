"""The flows of the packet path: listed, flushed, and swept when their time is over.

A flow has an entry a direction, in `flows` once it was answered, before that in `halfopen`. Programs judge an entry
when a packet meets it; here it is judged by the same rules (model/conntrack.py).
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from svcctl.bpf.constants import EXIST
from svcctl.bpf.errors import BpfError
from svcctl.maps import catalog, enums
from svcctl.maps import service_codec as codec
from svcctl.maps.packet_codec import is_whole, other_key, other_value
from svcctl.maps.packet_layouts import FLOW, FLOW_KEY, PACKET_CONFIG
from svcctl.model.conntrack import Timeouts, expired, idle_limit_ms, state_name
from svcctl.model.constants import PROTOCOL_NAMES, TCP, UDP
from svcctl.model.prefix import covers, format_host_port
from svcctl.record import Record
from svcctl.state.remembered import Names
from svcctl.state.services import as_backend, read_backend

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from svcctl.maps.packet_layouts import FlowKey, FlowValue
    from svcctl.model.prefix import Prefix
    from svcctl.model.service_endpoint import Backend
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

MAPS = ("flows", "halfopen")
EXPIRED = "expired"
_NS = 1_000_000_000
_PROTOCOL_AT = 36
"""In a key: after two addresses and two ports."""
_FLAGS = (
    (enums.FLOW_SELF, "self"),
    (enums.FLOW_LOCAL, "local"),
    (enums.FLOW_ONE_SIDED, "one-sided"),
    (enums.FLOW_OTHER_PORT, "other-port"),
    (enums.FLOW_TUNNEL, "tunnel"),
    (enums.FLOW_DSR, "dsr"),
    (enums.FLOW_TABLE, "maglev"),
    (enums.FLOW_MASQUERADE, "masqueraded"),
    (enums.FLOW_PICKED_UP, "picked-up"),
)


class FlowFilter(Record):
    """Which flows are meant; None: whatever. `source` and `destination` are of the client's packets, as it sends
    them; `node` is the name of the other end of the tunnel."""

    service: str | None = None
    source: Prefix | None = None
    destination: Prefix | None = None
    backend: Prefix | None = None
    protocol: int | None = None
    node: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether every flow is meant."""
        return not any(one is not None for one in self)


class FlowRow(Record):
    """One flow. `expires`, `age` and `idle` are seconds; the reply's addresses are those the backend's packets have."""

    protocol: str
    expires: float
    state: str
    source: str
    destination: str
    reply_source: str
    reply_destination: str
    service: str
    age: float
    idle: float
    node: str | None
    flags: tuple[str, ...]


class Flow(Record):
    """The client's entry of a flow, and the backend's where it is there; `answered`: it is in `flows`.

    `keys` are the raw keys of the entries there are.
    """

    key: FlowKey
    value: FlowValue
    reply: FlowValue | None
    answered: bool
    keys: tuple[bytes, ...]

    @property
    def seen_ns(self) -> int:
        """When a packet of either direction was seen last."""
        return max(self.value.seen_ns, self.reply.seen_ns if self.reply is not None else 0)


def read_timeouts(state: State) -> Timeouts:
    """The idle times in force."""
    data = state.map("packet_config").lookup(bytes(4))
    return Timeouts(*PACKET_CONFIG.unpack(data or bytes(PACKET_CONFIG.size))[1:8])


def read_flows(state: State, protocol: int | None = None) -> Iterator[Flow]:
    """Every flow (of one protocol), each once. Entries that are torn (given to another key meanwhile) are left out."""
    found: dict[FlowKey, tuple[FlowValue, bool]] = {}
    for name in reversed(MAPS):  # what was moved to `flows` counts there
        for raw_key, raw in state.map(name).items():
            if protocol is not None and raw_key[_PROTOCOL_AT] != protocol:
                continue  # of a hundred thousand flows few may be meant
            key, value = FLOW_KEY.unpack(raw_key), FLOW.unpack(raw)
            if is_whole(key, value) and not (name == "halfopen" and value.seen & enums.SEEN_MOVED):
                found[key] = value, name == "flows"
    for key, (value, answered) in found.items():
        partner = found.get(other_key(key, value))
        if not value.kind & enums.FLOW_REPLY:
            keys = [key] if partner is None else [key, other_key(key, value)]
            reply = None if partner is None else partner[0]
            yield Flow(key, value, reply, answered, tuple(FLOW_KEY.pack(one) for one in keys))
        elif partner is None:  # the client's entry was evicted
            yield Flow(other_key(key, value), other_value(key, value), value, answered, (FLOW_KEY.pack(key),))


def limit_ms(timeouts: Timeouts, flow: Flow) -> int:
    """How long a flow may be idle."""
    value, reply = flow.value, flow.reply
    return idle_limit_ms(
        timeouts,
        flow.key.protocol,
        seen=value.seen | (reply.other if reply is not None else 0),
        other=value.other | (reply.seen if reply is not None else 0),
        answered=flow.answered,
        was_reset=bool(value.reset_ns or (reply is not None and reply.reset_ns)),
        one_sided=bool(value.kind & enums.FLOW_ONE_SIDED),
    )


def is_over(timeouts: Timeouts, flow: Flow, now: int) -> bool:
    """Whether a flow was idle for longer than it may be."""
    return expired(limit_ms(timeouts, flow), now, flow.seen_ns)


def matches(names: Names, flow: Flow, wanted: FlowFilter) -> bool:
    """Whether a flow is meant."""
    key, value = flow.key, flow.value
    return (
        wanted.protocol in (None, key.protocol)
        and (wanted.service is None or names.service_name(value.service) == wanted.service)
        and _covers(wanted.source, key.source)
        and _covers(wanted.destination, key.destination)
        and (wanted.backend is None or _covers(wanted.backend, _backend_address(names, flow)))
        and (wanted.node is None or _node(names, flow) == wanted.node)
    )


def _backend_address(names: Names, flow: Flow) -> bytes:
    """Where the flow ends. What goes into a tunnel is not translated here."""
    if flow.value.kind & enums.FLOW_TUNNEL:
        return names.backend_address(flow.value.backend) or flow.value.destination
    return flow.value.destination


def _node(names: Names, flow: Flow) -> str | None:
    """The other end of the flow's tunnel, `?NUMBER` of a node that is gone."""
    return names.node_name(flow.value.node) if flow.value.node else None


def _covers(prefix: Prefix | None, address: bytes) -> bool:
    return prefix is None or covers(prefix, codec.family_of(address), address)


def list_flows(state: State, wanted: FlowFilter) -> list[FlowRow]:
    """The flows that are meant, by protocol, client and service address."""
    timeouts, names, now = read_timeouts(state), Names(state), time.monotonic_ns()
    found = [
        (
            (flow.key.protocol, flow.key.source, flow.key.source_port, flow.key),
            _row(names, timeouts, flow, now),
        )
        for flow in read_flows(state)
        if matches(names, flow, wanted)
    ]
    return [row for _, row in sorted(found)]


def _row(names: Names, timeouts: Timeouts, flow: Flow, now: int) -> FlowRow:
    key, value = flow.key, flow.value
    idle = max(now - flow.seen_ns, 0) / _NS
    expires = max(limit_ms(timeouts, flow) / 1000 - idle, 0.0)
    state = state_name(key.protocol, seen=value.seen, other=value.other, answered=flow.answered)
    flags = [text for bit, text in _FLAGS if value.kind & bit]
    if flow.reply is None or len(flow.keys) == 1:
        flags.append("half")
    if is_marked(flow):
        flags.append("reset")
    return FlowRow(
        PROTOCOL_NAMES.get(key.protocol, str(key.protocol)),
        round(expires, 3),
        state if expires else EXPIRED,
        _endpoint(key.source, key.source_port),
        _endpoint(key.destination, key.destination_port),
        _endpoint(value.destination, value.destination_port),
        _endpoint(value.source, value.source_port),
        names.service_name(value.service),
        round(max(now - value.created_ns, 0) / _NS, 3),
        round(idle, 3),
        _node(names, flow),
        tuple(flags),
    )


def _endpoint(address: bytes, port: int) -> str:
    return format_host_port(codec.family_of(address), address, port)


def find(state: State, wanted: FlowFilter) -> list[Flow]:
    """The flows that are meant, as they are in the maps."""
    names = Names(state)
    return [flow for flow in read_flows(state) if matches(names, flow, wanted)]


def find_over(state: State) -> list[Flow]:
    """The flows whose time is over."""
    if not state.has_half(catalog.PACKETS):
        return []
    timeouts, now = read_timeouts(state), time.monotonic_ns()
    return [flow for flow in read_flows(state) if is_over(timeouts, flow, now)]


def flush(writer: Writer, flows: list[Flow]) -> None:
    """Forget flows, both directions of each. Inside `changing()`."""
    keys = b"".join(key for flow in flows for key in flow.keys)
    _delete(writer, keys)


def find_udp(state: State, gone: Mapping[int, Collection[Backend]]) -> list[Flow]:
    """The flows of UDP that go to these backends of a service: service id -> backends."""
    if not state.has_half(catalog.PACKETS):
        return []
    places: dict[int, Backend | None] = {}

    def place(number: int) -> Backend | None:
        if number not in places:
            value = read_backend(state, number)
            places[number] = None if value is None else as_backend(value)
        return places[number]

    return [
        flow
        for flow in read_flows(state, UDP)
        if place(flow.value.backend) in gone.get(flow.value.service, ())
    ]


def can_reset(flow: Flow) -> bool:
    """Whether there is somebody to be reset, and the entry that his next packet meets."""
    return flow.key.protocol == TCP and FLOW_KEY.pack(flow.key) in flow.keys


def is_marked(flow: Flow) -> bool:
    """Whether the client is to be reset already."""
    return bool(flow.value.seen & enums.SEEN_RESET)


def mark_reset(writer: Writer, flows: list[Flow]) -> None:
    """Have the client's next packet answered with a RST. Inside `changing()`.

    Nothing but that bit counts in such an entry, so it does not matter what a program notes in it meanwhile.
    """
    for flow in flows:
        table = writer.map("flows" if flow.answered else "halfopen")
        key = FLOW_KEY.pack(flow.key)
        value = FLOW.unpack(table.lookup(key) or bytes(FLOW.size))
        if is_whole(flow.key, value):
            with contextlib.suppress(BpfError):  # gone just now
                table.update(key, FLOW.pack(value._replace(seen=value.seen | enums.SEEN_RESET)), EXIST)


def sweep(writer: Writer, flows: list[Flow]) -> int:
    """Forget flows whose time is over, if they still are as they were; how many. Inside `changing()`."""
    gone = [flow for flow in flows if not _moved_on(writer, flow)]
    flush(writer, gone)
    return len(gone)


def _moved_on(writer: Writer, flow: Flow) -> bool:
    """Whether a packet came meanwhile. What comes between this look and the deletion is lost, as it would have been."""
    for raw in flow.keys:
        for name in MAPS:
            data = writer.map(name).lookup(raw)
            if data is not None and FLOW.unpack(data).seen_ns > flow.seen_ns:
                return True
    return False


def _delete(writer: Writer, keys: bytes) -> None:
    size = FLOW_KEY.size
    for name in MAPS:
        table = writer.map(name)
        for at in range(0, len(keys), size):
            table.delete(keys[at : at + size])
