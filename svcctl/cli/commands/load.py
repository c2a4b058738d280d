"""`svcctl load`: makes the state directory and attaches the dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.node_params import OWN_NAME, POD_PREFIX
from svcctl.cli.options import option, verb
from svcctl.cli.packet_params import CLIENT_PREFIX, MTU, NODE_ADDRESSES, PORTS, TIMEOUT
from svcctl.cli.params import Count
from svcctl.errors import UsageProblem
from svcctl.maps.catalog import MAX_BINDINGS, MAX_DESTINATIONS
from svcctl.render.changes import CHANGED, CREATED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.prefix import Prefix


@verb(
    "load",
    examples=(
        "svcctl load",
        "svcctl load --group svcctl --max-bindings 4000000",
        "svcctl load --node-address 192.0.2.11,2001:db8::11 --pod-prefix 10.244.1.0/24",
    ),
    exits=(0, 1, 2, 4, 6, 7, 8, 9),
)
@option("--group", metavar="NAME", help="Group whose members may read the state [the caller's].")
@option("--no-dispatcher", is_flag=True, help="Make the state directory, attach nothing.")
@option(
    "--max-bindings",
    type=Count(1, MAX_BINDINGS),
    metavar="N",
    help="Room for host and for prefix bindings [1000000].",
)
@option(
    "--max-destinations",
    type=Count(1, MAX_DESTINATIONS),
    metavar="N",
    help="Room for labels by family and protocol [1024].",
)
@option(
    "--mount-bpffs",
    is_flag=True,
    help="Mount a BPF file system even where it will not outlive this mount namespace.",
)
@option(
    "--from-tubular",
    is_flag=True,
    help="Take bindings and sockets over from a loaded tubular, then remove it.",
)
@option(
    "--node-address",
    type=NODE_ADDRESSES,
    metavar="ADDRESS[,ADDRESS]|none",
    help="This node's ends of tunnels to other nodes, one of a family [none, or what Node objects say].",
)
@option(
    "--pod-prefix",
    type=POD_PREFIX,
    multiple=True,
    metavar="PREFIX|none",
    help="Addresses of this node's workloads; may be repeated [none, or what Node objects say].",
)
@option(
    "--node-name",
    type=OWN_NAME,
    metavar="NAME|none",
    help="What other nodes call this one, for 'svcctl export' [what Node objects say, or the host's name].",
)
@option(
    "--tunnel-port", type=Count(1, 65535), metavar="PORT", help="UDP port of tunnels, on all nodes [4789]."
)
@option(
    "--tunnel-mtu",
    type=MTU,
    metavar="BYTES",
    help="Longest tunnelled packet with its outer headers; 0: as long as the interface takes [0].",
)
@option(
    "--clamp-mss/--no-clamp-mss", default=None, help="Lower the MSS of TCP that is tunnelled, or not [not]."
)
@option(
    "--snat-ports",
    type=PORTS,
    metavar="FIRST-LAST",
    help="Source ports for flows that would be the same, or have this node's address [20000-29999].",
)
@option(
    "--no-dsr",
    type=CLIENT_PREFIX,
    multiple=True,
    metavar="PREFIX|none",
    help="Clients that are answered through the tunnel whatever a service says; may be repeated [none].",
)
@option(
    "--keep-flows/--no-keep-flows",
    default=None,
    help="Let TCP connections whose backend was deleted go on, or reset them [reset].",
)
@option(
    "--reset-unknown/--no-reset-unknown",
    default=None,
    help="Reset TCP to a service that belongs to no known connection, or let it by [let by].",
)
@option(
    "--timeout",
    "timeouts",
    type=TIMEOUT,
    multiple=True,
    metavar="NAME=SECONDS",
    help="How long the packet path remembers an idle flow, as 'attach dev --timeout'; may be said again.",
)
def command(
    env: Env,
    group: str | None,
    no_dispatcher: bool,
    max_bindings: int | None,
    max_destinations: int | None,
    mount_bpffs: bool,
    from_tubular: bool,
    node_address: tuple[tuple[int, bytes], ...] | None,
    pod_prefix: tuple[Prefix | str, ...],
    node_name: str | None,
    tunnel_port: int | None,
    tunnel_mtu: int | None,
    clamp_mss: bool | None,
    snat_ports: tuple[int, int] | None,
    no_dsr: tuple[Prefix | str, ...],
    keep_flows: bool | None,
    reset_unknown: bool | None,
    timeouts: tuple[tuple[str, int], ...],
) -> None:
    """Make the state directory of the network namespace and attach the dispatcher to it.

    Traffic is steered from the first 'bind' on. Loading what is loaded is no error; with other options it is a
    conflict, but for the options on packets, which can be changed at any time: what is not said stays.

    The packet path is made if there is none and something of tunnels is said. Tunnels are for backends on other nodes
    ('svcctl nodes'). Backends that are added in a --pod-prefix are on this node.
    """
    from svcctl.cli.access import command_line, place
    from svcctl.model.packet_settings import PacketSettings
    from svcctl.state.create import LoadOptions, load, planned

    asked = PacketSettings(
        node_address,
        tunnel_port,
        tunnel_mtu,
        clamp_mss,
        snat_ports,
        _prefixes("--no-dsr", no_dsr),
        _prefixes("--pod-prefix", pod_prefix),
        node_name,
        keep_flows,
        reset_unknown,
    )
    # Whoever changes settings of what is loaded is told of those.
    about_settings = bool(timeouts) or not asked.is_empty
    options = LoadOptions(
        group, not no_dispatcher, max_bindings, max_destinations, mount_bpffs, from_tubular, timeouts,
        quiet=about_settings,
    )  # fmt: skip
    where = place(env)
    done = planned(where, options) if env.dry_run else load(where, options, command_line())
    changes = []
    if done.created or not about_settings:
        action = CREATED if done.created else UNCHANGED
        changes.append(Change(action, "state", done.path, words=_WORDS[done.created]))
    if done.created and done.attached:
        changes.append(Change(CREATED, "attachment", "dispatcher", f"network namespace {done.inode}"))
    if done.timeouts:
        changes.append(Change(CHANGED, "packets", "settings", done.timeouts))
    if not done.created and not about_settings:
        env.notice(f"already loaded: {done.path}")
    changes += [Change(*row) for row in done.taken]
    if not asked.is_empty:
        from svcctl.cli.packet_commands import change_settings

        changes += change_settings(env, asked, exists=not (done.created and env.dry_run))
    env.emit_changes(changes or [Change(UNCHANGED, "packets", "settings", words=_WORDS[False])])


def _prefixes(name: str, words: tuple[Prefix | str, ...]) -> tuple[Prefix, ...] | None:
    """The prefixes of an option, each once; None: not said. Raises UsageProblem."""
    prefixes = tuple(dict.fromkeys(one for one in words if not isinstance(one, str)))
    if prefixes and "none" in words:
        raise UsageProblem(f"load: {name}: none stands alone")
    return prefixes if words else None


_WORDS = {True: ("created", "create"), False: ("unchanged", "leave")}
