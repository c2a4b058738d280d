"""attach dev and detach dev: the packet path on interfaces, by name and by rules for those that come later.

An interface has a role and is attached at both sides. What is recorded for it is written before anything is
attached and deleted after it has been taken off. A rule is a shell pattern with a role: whoever attaches next
attaches the interfaces that match one, too.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from svcctl.errors import Conflict, Full, NotFound, PermissionProblem, UsageProblem
from svcctl.host import devices as host_devices
from svcctl.host.devices import is_pattern, matches
from svcctl.maps import catalog, enums, layouts
from svcctl.maps.layouts import U32
from svcctl.maps.packet_layouts import DEVICE
from svcctl.maps.packet_layouts import Device as DeviceValue
from svcctl.record import Record
from svcctl.state import device_links, foreign
from svcctl.state.device_links import SIDES, Hooks

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from svcctl.host.devices import Device
    from svcctl.maps.layouts import AttachRule
    from svcctl.state.device_links import Records
    from svcctl.state.session import State
    from svcctl.state.writer import Writer

MOST_RULES = 256
PIPES = ("veth", "netkit")
"""Kinds of interfaces whose other end is a container's."""


class Rule(Record):
    """Interfaces that match `pattern` get `role` when somebody attaches."""

    pattern: str
    role: int
    since_ns: int = 0


class Attach(Record):
    """One interface to be attached; `before` is the role it has, 0 for none; `rule` why, None: by its name."""

    device: Device
    role: int
    before: int
    rule: str | None


class DevicePlan(Record):
    """What `attach dev` has to do. `rules` are to be written, `gone` to be forgotten: (index, name).

    `same` are interfaces that were named and have it all; `tell`: what programs are to be told of others that are
    attached, whose MTU or other end is another by now; `notices` are for stderr.
    """

    rules: tuple[Rule, ...]
    attach: tuple[Attach, ...]
    same: tuple[Attach, ...]
    gone: tuple[tuple[int, str], ...]
    clsact: bool
    notices: tuple[str, ...]
    tell: tuple[tuple[int, DeviceValue], ...] = ()
    names: tuple[tuple[int, str], ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything is to be written."""
        return bool(self.rules or self.attach or self.gone or self.tell)

    def name_of(self, ifindex: int) -> str:
        """The name of an interface of `tell`."""
        return dict(self.names)[ifindex]


class DetachPlan(Record):
    """What `detach dev` has to do: rules and interfaces (index, name) to be forgotten."""

    rules: tuple[str, ...]
    detach: tuple[tuple[int, str], ...]
    notices: tuple[str, ...]


def read_rules(state: State) -> list[Rule]:
    """All rules, the longest pattern first: it says most."""
    found = []
    for key, data in state.map("attach_rules").items():
        value: AttachRule = layouts.ATTACH_RULE.unpack(data)
        pattern = key.rstrip(b"\0").decode("utf-8", "surrogateescape")
        found.append(Rule(pattern, value.role, value.since_ns))
    return sorted(found, key=lambda rule: (-len(rule.pattern), rule.pattern))


def rule_key(pattern: str) -> bytes:
    """Key of a rule in `attach_rules`."""
    return layouts.ATTACH_RULE_KEY.pack(layouts.AttachRuleKey(pattern.encode("utf-8", "surrogateescape")))


def device_name(known: Records, ifindex: int) -> str:
    """The name an interface was recorded by."""
    for side in SIDES:
        record = known.get((side.hook, ifindex))
        if record is not None:
            return record.name.rstrip(b"\0").decode("utf-8", "surrogateescape")
    return f"#{ifindex}"


def current_names(state: State) -> dict[int, str]:
    """Index -> name of every interface as it is now; empty where the namespace may not be entered."""
    try:
        return {one.ifindex: one.name for one in host_devices.devices(state.netns)}
    except (OSError, PermissionProblem):
        return {}


def find_gone(state: State, there: Sequence[Device]) -> list[tuple[int, str]]:
    """(index, name) of every attachment whose interface is gone, or whose index another one has by now."""
    known = device_links.records(state)
    names = {one.ifindex: one for one in there}
    found = []
    for ifindex in sorted({index for _, index in known}):
        name, device = device_name(known, ifindex), names.get(ifindex)
        renamed = device is not None and name not in (device.name, *device.others)
        if device is None or (renamed and not _any_live(state, known, ifindex)):
            found.append((ifindex, name))
    return found


def _any_live(state: State, known: Records, ifindex: int) -> bool:
    if os.geteuid() != 0:
        return True  # only a dry run; links are not for members to open
    for side in SIDES:
        record = known.get((side.hook, ifindex))
        if record is not None and device_links.live(state, side, ifindex, record) is not None:
            return True
    return False


def is_whole(state: State, known: Records, device: Device, role: int) -> bool:
    """Whether both sides of an interface run the programs of a role, as recorded and in the kernel, and are told
    what it is."""
    ifindex = device.ifindex
    if read_table(state).get(ifindex) != table_value(device, role):
        return False
    for side in SIDES:
        record = known.get((side.hook, ifindex))
        shape = device_links.shape_of(role, side)
        if record is None or record.program != shape.number or record.role != role:
            return False
        if os.geteuid() != 0:
            continue
        loaded = state.program_record(shape.number).id
        live = device_links.live(state, side, ifindex, record)
        if live is None or not loaded or live.program_id != loaded:
            return False
    return True


def role_of(known: Records, ifindex: int) -> int:
    """The recorded role of an interface, 0 for none."""
    return next((known[s.hook, ifindex].role for s in SIDES if (s.hook, ifindex) in known), 0)


def plan_attach(state: State, names: Sequence[str], role: int | None) -> DevicePlan:
    """Compare what is attached with what is asked for, and with all rules.

    Raises NotFound (no such interface), UsageProblem (no role, loopback), Conflict (another state's packet path is
    there), Full (too many rules or interfaces).
    """
    rules = read_rules(state)
    if names and role is None:
        raise UsageProblem(
            "attach dev: --role is missing",
            hint="workload: the host's end of a container's veth; host: the node's own interface",
        )
    there = host_devices.devices(state.netns)
    known = device_links.records(state)
    gone = find_gone(state, there)
    forgotten = {index for index, _ in gone}
    notices: list[str] = []
    if not names and not rules:
        notices.append("no interface is named and there are no rules: see 'svcctl attach dev --help'")
    wanted: dict[int, Attach] = {}
    new = []
    for name, mine in host_devices.select(there, names).items():
        assert role is not None
        if is_pattern(name) and not any((rule.pattern, rule.role) == (name, role) for rule in rules):
            new.append(Rule(name, role))
        for device in mine:
            before = 0 if device.ifindex in forgotten else role_of(known, device.ifindex)
            wanted[device.ifindex] = Attach(device, role, before, name if is_pattern(name) else None)
            notices += _remarks(device, role)
        if is_pattern(name) and not mine:
            notices.append(
                f"no interface matches {name!r} now: those that come will be attached by the next attach"
            )
    if len(rules) + len(new) > MOST_RULES:
        raise Full(
            f"attach dev: there is room for {MOST_RULES} rules", hint="'svcctl detach dev PATTERN' ends one"
        )
    named = set(names)
    for rule in rules:
        if rule.pattern in named:
            continue
        for device in there:
            if device.loopback or device.ifindex in wanted or not matches(device, rule.pattern):
                continue
            before = 0 if device.ifindex in forgotten else role_of(known, device.ifindex)
            if before in (0, rule.role):
                wanted[device.ifindex] = Attach(device, rule.role, before, rule.pattern)
    attach: list[Attach] = []
    same: list[Attach] = []
    for one in sorted(wanted.values()):
        other = None if one.before else _stranger(state, one.device)
        if other is not None and one.rule is not None:
            notices.append(f"{one.device.name} is left out: {other}")
        elif other is not None:
            raise Conflict(
                f"attach dev: interface {one.device.name}: {other}",
                hint="packets would be translated twice; detach that one first",
            )
        elif one.before != one.role or not is_whole(state, known, one.device, one.role):
            attach.append(one)
        elif one.rule is None or one.rule in named:
            same.append(one)
    attached = {one.device.ifindex for one in attach}
    if attached:
        refuse_too_many(state, ({index for _, index in known} - forgotten) | attached)
    tell = {ifindex: value for ifindex, value in stale_table(state, there).items() if ifindex not in attached}
    return DevicePlan(
        tuple(new),
        tuple(attach),
        tuple(same),
        tuple(gone),
        device_links.wants_clsact() if attach else False,
        tuple(dict.fromkeys(notices)),
        tuple(tell.items()),
        tuple((one.ifindex, one.name) for one in there if one.ifindex in tell),
    )


def refuse_too_many(state: State, interfaces: Collection[int]) -> None:
    """Raise Full if the maps have no room for that many: before the first write, not at the interface that is too much.

    `attachments` has two records an interface, and keeps room for the dispatcher's and the balancer's.
    """
    table = state.map("attachments")
    others = 1 + len(catalog.CONNECT)
    most = (table.info.max_entries - others) // len(SIDES)
    if state.has_map("devices"):
        most = min(most, state.map("devices").info.max_entries)
    if len(interfaces) > most:
        raise Full(
            f"attach dev: there is room for {most} interfaces (maps attachments and devices), {len(interfaces)} are"
            " needed",
            hint="'svcctl detach dev PATTERN' ends a rule; a pattern may be narrower",
        )


def stale_table(state: State, there: Sequence[Device]) -> dict[int, DeviceValue]:
    """Interface index -> what programs should be told of an attached interface, where that is not what they are."""
    known = device_links.records(state)
    if not known:
        return {}
    table = read_table(state)
    gone = {index for index, _ in find_gone(state, there)}
    recorded = {index for _, index in known} - gone
    wanted = {
        one.ifindex: table_value(one, role_of(known, one.ifindex))
        for one in there
        if one.ifindex in recorded and role_of(known, one.ifindex) in enums.ROLE_NAMES
    }
    return {ifindex: value for ifindex, value in wanted.items() if table.get(ifindex) != value}


def _stranger(state: State, device: Device) -> str | None:
    """What is to be said of a packet path of another state on an interface."""
    if os.geteuid() != 0:
        return None  # only a dry run
    own = {program for program, _ in device_links.loaded_programs(state)}
    for side in SIDES:
        for other in foreign.others_on_device(state.netns, device.ifindex, side.hook, own):
            if other.ours:
                return f"a packet path of svcctl (program {other.program_id}) is on it, of another state"
    return None


def _remarks(device: Device, role: int) -> list[str]:
    """What there is to say of an interface that packets cannot be handed through."""
    if role != enums.ROLE_WORKLOAD:
        return []
    if device.kind not in PIPES:
        return [
            f"{device.name} is no veth: packets for it are sent out of it, not handed to a container's end"
        ]
    if not device.peer_elsewhere:
        text = f"{device.name}: its other end is in this network namespace still; once a container has it,"
        return [f"{text} 'svcctl attach dev' makes packets go straight there"]
    return []


def apply_attach(writer: Writer, plan: DevicePlan) -> list[Attach]:
    """Carry a plan out; the programs are pinned. Returns what went meanwhile. Inside `changing()`."""
    rules = writer.map("attach_rules")
    for rule in plan.rules:
        value = layouts.AttachRule(rule.role, 0, time.time_ns())
        rules.update(rule_key(rule.pattern), layouts.ATTACH_RULE.pack(value))
    missed = []
    for ifindex, told in plan.tell:
        put_table(writer, ifindex, told)
    with Hooks(writer) as hooks:
        for ifindex, _ in plan.gone:
            forget(hooks, ifindex)
        for one in plan.attach:
            try:
                attach_device(hooks, one.device, one.role, clsact=plan.clsact)
            except NotFound:
                forget(hooks, one.device.ifindex)
                if one.rule is None:
                    raise
                missed.append(one)
    return missed


def attach_new(writer: Writer) -> list[str]:
    """Attach the interfaces that match a rule and are not attached, forget those that are gone; names of the former.

    For whoever holds the lock anyway, and looks again and again (`follow`). Writes nothing when there is nothing.
    """
    if not writer.has_half(catalog.PACKETS):
        return []
    plan = plan_attach(writer, (), None)
    if not plan.changes:
        return []
    with writer.changing():
        missed = apply_attach(writer, plan)
    return [one.device.name for one in plan.attach if one not in missed]


def attach_device(hooks: Hooks, device: Device, role: int, *, clsact: bool) -> None:
    """Both sides of one interface, recorded first. Inside `changing()`."""
    for side in SIDES:
        hooks.record_missing(side, device, role, clsact=clsact)
    put_table(hooks.writer, device.ifindex, table_value(device, role))
    for side in SIDES:
        hooks.make(side, device, role, clsact=clsact)


def forget(hooks: Hooks, ifindex: int) -> None:
    """Detach an interface that is there, and drop what is left of one that is not. Inside `changing()`."""
    for side in SIDES:
        hooks.drop(side, ifindex)
    put_table(hooks.writer, ifindex, None)


def table_value(device: Device, role: int) -> DeviceValue:
    """What programs are told of an attached interface.

    Which packets may leave by the node's own interface without meeting the host's rules (masquerading, say) the
    programs know.
    """
    flags = enums.DEVICE_NEIGHBOUR if device.ethernet else 0
    if role == enums.ROLE_WORKLOAD and device.kind in PIPES and device.peer_elsewhere:
        flags |= enums.DEVICE_PEER
    return DeviceValue(role, flags, min(device.mtu, 0xFFFF))


def read_table(state: State) -> dict[int, DeviceValue]:
    """Interface index -> what programs are told of it."""
    return {U32.unpack(key)[0]: DEVICE.unpack(value) for key, value in state.map("devices").items()}


def put_table(writer: Writer, ifindex: int, value: DeviceValue | None) -> None:
    """Tell programs of an interface; None: that it is none of theirs. Inside `changing()`."""
    if value is None:
        writer.map("devices").delete(U32.pack(ifindex))
    else:
        writer.map("devices").update(U32.pack(ifindex), DEVICE.pack(value))


def plan_detach(state: State, names: Sequence[str], *, everything: bool) -> DetachPlan:
    """Which rules and interfaces `detach dev` means. A name that is not attached is no error."""
    if not names and not everything:
        raise UsageProblem(
            "detach dev: no interface is named", hint="--all detaches every one and ends all rules"
        )
    rules = read_rules(state)
    there = {one.ifindex: one for one in host_devices.devices(state.netns)}
    known = device_links.records(state)
    dropped, detached, notices = [], {}, []
    for ifindex in sorted({index for _, index in known}):
        recorded, device = device_name(known, ifindex), there.get(ifindex)
        mine = {recorded} if device is None else {recorded, device.name, *device.others}
        if everything or any(_means(name, mine) for name in names):
            detached[ifindex] = recorded
    for rule in rules:
        if everything or rule.pattern in names:
            dropped.append(rule.pattern)
    for ifindex, recorded in detached.items():
        for rule in rules:
            if rule.pattern not in dropped and ifindex in there and matches(there[ifindex], rule.pattern):
                notices.append(
                    f"{recorded} matches the rule {rule.pattern!r}: the next attach dev attaches it again;"
                    f" svcctl detach dev {rule.pattern!r} ends the rule"
                )
                break
    return DetachPlan(tuple(dropped), tuple(detached.items()), tuple(notices))


def _means(name: str, mine: set[str]) -> bool:
    if not is_pattern(name):
        return name in mine
    from fnmatch import fnmatchcase

    return any(fnmatchcase(each, name) for each in mine)


def apply_detach(writer: Writer, plan: DetachPlan) -> None:
    """Carry a plan out: rules first, so that nobody attaches again what is being detached."""
    if not (plan.rules or plan.detach):
        return
    with writer.changing(), Hooks(writer) as hooks:
        for pattern in plan.rules:
            writer.map("attach_rules").delete(rule_key(pattern))
        for ifindex, _ in plan.detach:
            forget(hooks, ifindex)
