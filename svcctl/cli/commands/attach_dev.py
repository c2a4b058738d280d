"""`svcctl attach dev`: the packet path on interfaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.packet_params import INTERFACE, ROLE, TIMEOUT
from svcctl.cli.params import Count
from svcctl.cli.service_options import size_options
from svcctl.maps.catalog import MAX_FLOWS
from svcctl.render.changes import CHANGED, CREATED, DELETED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@verb(
    "dev",
    examples=(
        "svcctl attach dev 'veth*' --role workload",
        "svcctl attach dev eth0 --role host",
        "svcctl attach dev",
    ),
    exits=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
)
@argument(
    "names", INTERFACE, "Interfaces, or shell patterns of their names in quotes [by the rules].", nargs=-1
)
@option(
    "--role",
    type=ROLE,
    metavar="workload|host",
    help="workload: the host's end of a container's veth; host: the node's own interface.",
)
@option(
    "--timeout",
    "timeouts",
    type=TIMEOUT,
    multiple=True,
    metavar="NAME=SECONDS",
    help="How long an idle flow is remembered: syn, established, fins, reset, after-reset, udp, fragment.",
)
@option(
    "--max-flows", type=Count(1, MAX_FLOWS), metavar="N", help="Room for flows that were answered [131072]."
)
@size_options
def command(
    env: Env,
    names: tuple[str, ...],
    role: str | None,
    timeouts: tuple[tuple[str, int], ...],
    max_flows: int | None,
    max_services: int | None,
    max_backends: int | None,
    max_sockets: int | None,
) -> None:
    """Attach the packet path to interfaces of the network namespace: packets of services are translated there.

    A pattern becomes a rule: interfaces that come later and match are attached by the next 'attach dev', with
    or without names; hooks for udev, networkd-dispatcher and CNI say it by themselves. The first time, maps are
    made with the sizes given. Another role replaces the one an interface has. Filters and programs of others stay
    and keep working. Since Linux 6.6 tcx links are used, before that filters on clsact.
    """
    from svcctl.cli.access import planning
    from svcctl.maps.catalog import PACKETS
    from svcctl.maps.enums import ROLE_NAMES
    from svcctl.state.devices import apply_attach, plan_attach
    from svcctl.state.packets import PacketOptions, apply_packets, plan_packets

    options = PacketOptions(timeouts, max_flows, max_services, max_backends, max_sockets)
    number = next((one for one, name in ROLE_NAMES.items() if name == role), None)
    with planning(env) as (state, writer):
        plan = plan_attach(state, names, number)
        # Said without names where nothing was ever attached (by a hook, say) it makes no maps.
        idle = not names and not plan.attach and not state.has_half(PACKETS)
        packets = plan_packets(state, options)
        if idle:
            packets = packets._replace(services=False, make=False, load=False)
        if plan.clsact:
            from svcctl.host.tc import need_pyroute2

            need_pyroute2()  # not only when half is done
        if writer is not None and (plan.changes or packets.changes):
            with writer.changing():
                apply_packets(writer, packets, options)
                missed = apply_attach(writer, plan)
            plan = plan._replace(attach=tuple(one for one in plan.attach if one not in missed))
    for text in plan.notices:
        env.notice(text)
    how = "clsact" if plan.clsact else "tcx"
    changes = [Change(CREATED, "rule", rule.pattern, ROLE_NAMES[rule.role]) for rule in plan.rules]
    changes += [Change(DELETED, "attachment", name, "its interface is gone") for _, name in plan.gone]
    changes += [
        Change(
            CHANGED if one.before else CREATED,
            "attachment",
            one.device.name,
            f"{ROLE_NAMES[one.role]}, {how}",
            {"interface": one.device.ifindex, "role": ROLE_NAMES[one.role]},
        )
        for one in plan.attach
    ]
    changes += [
        Change(CHANGED, "attachment", plan.name_of(ifindex), f"MTU {value.mtu}")
        for ifindex, value in plan.tell
    ]
    changes += [Change(UNCHANGED, "attachment", one.device.name, ROLE_NAMES[one.role]) for one in plan.same]
    if packets.config_changes:
        changes.append(Change(CHANGED, "packets", "settings"))
    env.emit_changes(changes or [Change(UNCHANGED, "attachment", "packets")])
