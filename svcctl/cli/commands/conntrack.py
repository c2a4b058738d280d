"""`svcctl conntrack`: the flows of the packet path, listed or flushed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.node_params import NODE
from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import PREFIX, PROTOCOL, Word
from svcctl.cli.service_params import SERVICE
from svcctl.errors import UsageProblem
from svcctl.render.changes import CHANGED, DELETED, UNCHANGED, Change
from svcctl.render.records import Column

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.model.prefix import Prefix
    from svcctl.state.conntrack import FlowFilter, FlowRow
    from svcctl.state.session import State


def _seconds(value: float) -> str:
    return f"{value:.1f}"


COLUMNS = (
    Column("PROTOCOL", "protocol"),
    Column("EXPIRES", "expires", _seconds, ">"),
    Column("STATE", "state"),
    Column("SOURCE", "source"),
    Column("DESTINATION", "destination"),
    Column("REPLY SOURCE", "reply_source"),
    Column("REPLY DESTINATION", "reply_destination"),
    Column("SERVICE", "service"),
    Column("AGE", "age", _seconds, ">", wide=True),
    Column("IDLE", "idle", _seconds, ">", wide=True),
    Column("NODE", "node", wide=True),
    Column("FLAGS", "flags", ",".join, wide=True),
)


@verb(
    "conntrack",
    examples=(
        "svcctl conntrack --service web",
        "svcctl conntrack --source 10.244.0.0/24 --protocol tcp -o json",
        "svcctl conntrack flush --backend 10.1.2.3 --reset",
    ),
    exits=(0, 2, 3, 4, 7, 9),
)
@argument(
    "action",
    Word("action", "list", "flush"),
    "list: show the flows [the default]; flush: forget them.",
    required=False,
)
@option("--service", type=SERVICE, metavar="NAME", help="Only flows of this service.")
@option("--source", type=PREFIX, metavar="PREFIX", help="Only flows of clients with such an address.")
@option("--destination", type=PREFIX, metavar="PREFIX", help="Only flows to such a service address.")
@option("--backend", type=PREFIX, metavar="PREFIX", help="Only flows that go to such a backend.")
@option("--node", type=NODE, metavar="NAME", help="Only flows through a tunnel to or from this node.")
@option("--protocol", type=PROTOCOL, metavar="PROTOCOL", help="Only tcp or udp.")
@option("--all", "everything", is_flag=True, help="With flush: every flow.")
@option("--reset", is_flag=True, help="With flush: keep TCP flows until a RST has told their clients.")
def command(
    env: Env,
    action: str | None,
    service: str | None,
    source: Prefix | None,
    destination: Prefix | None,
    backend: Prefix | None,
    node: str | None,
    protocol: int | None,
    everything: bool,
    reset: bool,
) -> None:
    """List the flows that the packet path translates, as 'conntrack -L' lists the kernel's own, or forget some.

    SOURCE and DESTINATION are those of the client's packets, REPLY SOURCE and REPLY DESTINATION of the backend's.
    EXPIRES is in seconds, from the last packet on. STATE: syn-sent, syn-received, established, client-closed,
    backend-closed, closed, reset; of UDP unreplied, replied; expired ones count no more and go with 'gc'.
    FLAGS (-o wide): self, the client is the backend; local, chosen from the backends of this node; other-port, the
    client's port was taken; one-sided, replies go another way; half, one direction was evicted; reset, the client's
    next packet is answered with a RST; tunnel, it goes to NODE, which translates it; dsr, the backend's node answers
    the client by itself; masqueraded, the backend sees this node's address; maglev, any node can go on with it;
    picked-up, another node began it. NODE without the flag tunnel is where the flow's packets come from.

    A flushed TCP connection breaks: the client hears nothing more, or with --reset a RST as soon as it sends
    something. A UDP client gets another backend with its next datagram.
    """
    from svcctl.state.conntrack import FlowFilter

    wanted = FlowFilter(service, source, destination, backend, protocol, node)
    if action == "flush":
        _flush(env, wanted, everything, reset)
        return
    if everything or reset or env.dry_run:
        raise UsageProblem("conntrack: --all, --reset and --dry-run go with flush")
    from svcctl.cli.access import reading
    from svcctl.state.conntrack import list_flows

    def read(state: State) -> list[FlowRow]:
        return list_flows(state, wanted)

    rows = reading(env, read)
    env.emit(
        "conntrack",
        rows,
        COLUMNS,
        name=lambda row: f"{row[3]}>{row[4]}/{row[0]}",
        empty="no flow is remembered",
    )


def _flush(env: Env, wanted: FlowFilter, everything: bool, reset: bool) -> None:
    """Forget what is meant, or have it reset."""
    from svcctl.cli.access import planning
    from svcctl.state.conntrack import can_reset, find, flush, is_marked, mark_reset

    if wanted.is_empty and not everything:
        raise UsageProblem(
            "conntrack flush: says not which flows",
            hint="--service, --source, ... choose some; --all means all",
        )
    with planning(env) as (state, writer):
        found = find(state, wanted)
        flows = [flow for flow in found if not (reset and can_reset(flow))]
        marked = [flow for flow in found if reset and can_reset(flow) and not is_marked(flow)]
        if writer is not None and (flows or marked):
            with writer.changing():
                mark_reset(writer, marked)
                flush(writer, flows)
    changes = [_change(DELETED, len(flows))] if flows else []
    if marked:
        changes.append(_change(CHANGED, len(marked), ("marked for a reset", "mark for a reset")))
    env.emit_changes(changes or [_change(UNCHANGED, 0)])


def _change(action: str, count: int, words: tuple[str, str] | None = None) -> Change:
    text = f"{count} {'flow' if count == 1 else 'flows'}"
    return Change(action, "flow", text, fields={"flows": count}, words=words)
