"""Doctor's lines about the connect balancer: its programs, and whether they are attached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import SvcctlError
from svcctl.host.cgroup import path_of
from svcctl.maps import catalog, layouts
from svcctl.state.balancer_settings import read_settings
from svcctl.state.condition import condition, serves_packets
from svcctl.state.doctor.line import FAIL, OK, WARN, Line
from svcctl.state.programs import object_digest, object_path

if TYPE_CHECKING:
    from svcctl.state.doctor.probe import Probe
    from svcctl.state.session import Reader

NEVER = "there are no service maps: the balancer was never attached"


def programs(probe: Probe, reader: Reader) -> Line:
    """Whether the programs that are loaded are those of this svcctl."""
    name = "balancer programs"
    if not reader.has_half(catalog.BALANCER):
        return Line(name, OK, NEVER)
    records = {}
    for shape in catalog.CONNECT:
        record = reader.program_record(shape.number)
        if record.id:
            records[shape.name] = record
    if not records:
        return Line(name, OK, "none is loaded")
    version = layouts.text(next(iter(records.values())).version)
    text = f"{len(records)} programs of svcctl {version}"
    try:
        digest = object_digest(object_path(catalog.BALANCER.object))
    except (SvcctlError, OSError) as error:
        return Line(name, WARN, f"{text}, not compared: {error}")
    other = sorted(one for one, record in records.items() if record.sha256 != digest)
    if other:
        return Line(
            name,
            WARN,
            f"{text}, not those this svcctl has: {', '.join(other)}",
            "'svcctl upgrade' swaps them in place",
        )
    return Line(name, OK, text)


def attachment(probe: Probe, reader: Reader) -> Line:
    """Whether the hooks that the settings ask for are attached."""
    if not reader.has_half(catalog.BALANCER):
        return Line("balancer", OK, NEVER)
    now = condition(reader)
    if now.cgroup is None and serves_packets(reader):
        return Line("balancer", OK, "not attached: packets are served, sockets of this host only as those")
    if now.cgroup is None:
        return Line("balancer", WARN, "not attached: services have no effect", "'svcctl attach cgroup'")
    if now.gone:
        hint = "'svcctl attach cgroup' puts the balancer on another"
        return Line("balancer", FAIL, "the cgroup it was attached to is gone", hint)
    if now.down:
        hint = "'svcctl check --repair' attaches them"
        return Line("balancer", FAIL, f"recorded as attached, but not: {', '.join(now.down)}", hint)
    where = path_of(now.cgroup) or f"cgroup {now.cgroup}"
    return Line("balancer", OK, f"attached to {where}: {read_settings(reader)}")
