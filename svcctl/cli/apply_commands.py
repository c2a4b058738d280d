"""What apply, diff and check -f share: the options about inputs, reading them, and saying what a plan comes to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from svcctl.cli.options import option
from svcctl.cli.params import FILE, WORD, Word
from svcctl.errors import SvcctlError, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from svcctl.cli.env import Env
    from svcctl.model.apply_plan import ApplyPlan
    from svcctl.model.desired import Desired, Notice
    from svcctl.model.prefix import Prefix
    from svcctl.model.service import Service
    from svcctl.model.sources.options import Options
    from svcctl.state.apply import Prepared
    from svcctl.state.writer import Writer

_INPUT_OPTIONS = (
    (
        ("--owner",),
        "owner",
        {"type": WORD, "metavar": "NAME", "help": "Who the objects belong to [the kind of input]."},
    ),
    (
        ("--node",),
        "node",
        {"type": WORD, "metavar": "NAME", "help": "This node's name in the inputs [the host's name]."},
    ),
    (
        ("--zone",),
        "zone",
        {"type": WORD, "metavar": "NAME", "help": "This node's zone, where no Node object says it."},
    ),
    (
        ("--external-ips",),
        "external_ips",
        {
            "type": WORD,
            "multiple": True,
            "metavar": "allow|deny|PREFIX",
            "help": "Which externalIPs of Kubernetes are served; prefixes may be repeated [allow].",
        },
    ),
    (
        ("--node-port-addresses",),
        "node_port_addresses",
        {
            "type": WORD,
            "multiple": True,
            "metavar": "PREFIX|primary|all",
            "help": "Addresses of this node that serve node ports; may be repeated [as it is; all at first].",
        },
    ),
    (
        ("--consul-address",),
        "consul_address",
        {
            "type": WORD,
            "metavar": "TAG",
            "help": "Which tagged address of Consul to take: lan, wan ... [the service's].",
        },
    ),
    (
        ("--compat",),
        "compat",
        {
            "type": Word("compat", "headless-label"),
            "multiple": True,
            "metavar": "headless-label",
            "help": "Behave as older versions of a source did; may be repeated.",
        },
    ),
    (
        ("--partial",),
        "partial",
        {"is_flag": True, "help": "Take what can be taken where an input has something that cannot be."},
    ),
)
_FORCE = "Take the input as it is, though it may be an outage, or only a part."
_TAKE_OVER = "Take what the input asks for, though it belongs to another owner or was made by hand."


def decision_options(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """--force and --take-over: what is to be done in doubt, and with what is somebody else's."""
    function = option("--take-over", is_flag=True, help=_TAKE_OVER)(function)
    return option("--force", is_flag=True, help=_FORCE)(function)


def input_options(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """The options that say how inputs are to be read."""
    for names, key, attributes in reversed(_INPUT_OPTIONS):
        function = option(*names, key, **attributes)(function)
    return function


def kubernetes_options(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Those of them that have a meaning for Kubernetes objects."""
    for names, key, attributes in reversed(_INPUT_OPTIONS):
        if key not in ("consul_address", "partial"):
            function = option(*names, key, **attributes)(function)
    return function


def file_option(help: str, *, required: bool = True) -> Callable[..., Any]:
    """-f, any number of times."""
    return option(
        "-f", "--file", "files", type=FILE, multiple=True, required=required, metavar="FILE", help=help
    )


def read_desired(env: Env, files: Sequence[str], options: dict[str, Any]) -> list[Desired]:
    """Read the inputs and say what there is to know of them. Raises UsageProblem."""
    from svcctl.cli.input import input_name, read_input
    from svcctl.model.sources.detect import read_inputs

    chosen = read_options(options)
    if files.count("-") > 1:
        raise UsageProblem("standard input is named twice")
    desired = read_inputs([(input_name(file), read_input(file, env)) for file in files], chosen)
    for each in desired:
        say(env, each.notices)
    return desired


def read_options(options: dict[str, Any]) -> Options:
    """What the options about inputs come to. Raises UsageProblem."""
    from svcctl.model.sources.options import Options

    for name, usual in (("node", "the host's name"), ("owner", "the kind of input")):
        if options.get(name) == "":
            raise UsageProblem(f"--{name}: is empty", hint=f"left out, it is {usual}")
    return Options(
        node=options.get("node") or os.uname().nodename.lower(),
        zone=options.get("zone") or "",
        owner=_owner(options.get("owner")),
        external_ips=_external_ips(options.get("external_ips") or ()),
        node_port_addresses=_node_port_addresses(options.get("node_port_addresses") or ()),
        partial=bool(options.get("partial")),
        compat=tuple(options.get("compat") or ()),
        consul_address=options.get("consul_address") or "",
        node_said=bool(options.get("node")),
    )


def _owner(name: str | None) -> str:
    from svcctl.model.label import MAX_OWNER_BYTES, check_name

    return check_name("owner", name, MAX_OWNER_BYTES) if name else ""


def _external_ips(words: Sequence[str]) -> tuple[Prefix, ...] | None:
    from svcctl.model.prefix import parse_prefix

    if not words or tuple(words) == ("allow",):
        return None
    if tuple(words) == ("deny",):
        return ()
    if {"allow", "deny"} & set(words):
        raise UsageProblem("--external-ips: allow and deny stand alone")
    return tuple(parse_prefix(one) for word in words for one in word.split(","))


def _node_port_addresses(words: Sequence[str]) -> tuple[str, ...]:
    """As kube-proxy takes them: a list with commas, too."""
    found = tuple(one for word in words for one in word.split(","))
    if found:
        from svcctl.model.sources.kubernetes.node_ports import read_words

        read_words(found)
    return found


def say(env: Env, notices: Sequence[Notice]) -> None:
    """Notices of inputs and plans, to stderr."""
    from svcctl.model.desired import WARNING

    for level, subject, text in notices:
        line = f"{subject}: {text}" if subject else text
        (env.warn if level == WARNING else env.notice)(line)


def refuse_outage(action: str, desired: Sequence[Desired], *, force: bool = False) -> None:
    """Raise SvcctlError for an input that may be an outage rather than a wish; what is one, nothing forces."""
    errors = [text for each in desired for text in each.errors]
    if errors:
        raise SvcctlError(f"{action}: nothing is changed: {'; '.join(errors)}")
    refuse_doubts(action, [text for each in desired for text in each.blockers], force=force)


def refuse_doubts(action: str, doubts: Sequence[str], *, force: bool) -> None:
    """Raise SvcctlError for reasons not to do what the input asks for, unless forced."""
    if doubts and not force:
        raise SvcctlError(
            f"{action}: nothing is changed: {'; '.join(doubts)}", hint="--force takes the input as it is"
        )


def check_inputs(env: Env, files: Sequence[str], options: dict[str, Any]) -> int:
    """Read inputs and say what they ask for, as far as that can be told without a state."""
    from svcctl.errors import Conflict, Exit
    from svcctl.model.apply_plan import Have, node_port_addresses, plan_apply
    from svcctl.model.node_plan import HaveNodes, plan_nodes
    from svcctl.render.text import escape

    desired = read_desired(env, files, options)
    node_port_addresses(desired)
    try:
        plan_apply(desired, Have({}), nodes=plan_nodes(desired, HaveNodes({})))
    except Conflict as problem:  # of the inputs with each other, as there is nothing else
        raise UsageProblem(problem.message) from None
    rows = [
        {
            "kind": each.kind,
            "owner": each.owner,
            "services": len(each.services),
            "bindings": None if each.bindings is None else len(each.bindings),
            "blockers": list(each.blockers) or None,
        }
        for each in desired
    ]

    def lines() -> Iterator[str]:
        for each in desired:
            bindings = "" if each.bindings is None else f", {_count(len(each.bindings), 'binding')}"
            yield escape(f"{each.kind}: {_count(len(each.services), 'service')}{bindings}")
            yield from (escape(f"{each.kind}: would be refused: {text}") for text in each.blockers)

    env.emit_objects("inputs", rows, lines, name="kind")
    return Exit.FAILURE if any(each.blockers for each in desired) else Exit.OK


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def changes_of(plan: ApplyPlan, *, unchanged: bool = True) -> Iterator[dict[str, Any]]:
    """Every object of a plan: kind, name, action, owner, note, and what of it changes."""
    from svcctl.model.apply_plan import CHANGED
    from svcctl.model.node import difference
    from svcctl.model.service_plan import diff, lines

    def service_details(have: Service, want: Service) -> list[str]:
        return lines(diff(have, want), want.name)

    yield from _objects("service", plan.services, unchanged, service_details)
    yield from _bindings(plan, unchanged)
    yield from _objects("node", plan.nodes.steps, unchanged, difference)
    for setting, note in plan.settings:
        yield {"action": CHANGED, "kind": "setting", "name": setting, "owner": None, "note": note}


def _objects(
    kind: str, steps: Iterable[Any], unchanged: bool, details_of: Callable[[Any, Any], list[str]]
) -> Iterator[dict[str, Any]]:
    """The rows of a kind of objects, whose steps all have the same fields."""
    from svcctl.model.apply_plan import UNCHANGED

    for step in steps:
        if step.action == UNCHANGED and not unchanged:
            continue
        some = step.want or step.have
        assert some is not None
        details = None
        if step.have is not None and step.want is not None and step.action != UNCHANGED:
            details = details_of(step.have, step.want) or None
        yield {
            "action": step.action,
            "kind": kind,
            "name": step.name,
            "owner": some.owner or None,
            "note": step.note or None,
            "details": details,
        }


def _bindings(plan: ApplyPlan, unchanged: bool) -> Iterator[dict[str, Any]]:
    from svcctl.model.apply_plan import CHANGED, CREATED, DELETED, UNCHANGED
    from svcctl.model.binding import Binding, format_binding

    steps = plan.bindings
    disowned = set(steps.disowned) - {key for key, _ in steps.plan.removed}
    rows: list[tuple[str, bytes, str, str | None]]
    rows = [(CREATED, key, label, None) for key, label in steps.plan.added]
    rows += [(CHANGED, key, label, f"was {old}") for key, label, old in steps.plan.replaced]
    rows += [(CHANGED, key, label, f"was {_whose(old)}") for key, label, old in steps.adopted]
    rows += [(DELETED, key, label, None) for key, label in steps.plan.removed]
    if unchanged:
        rows += [(UNCHANGED, key, label, None) for key, label in steps.unchanged]
    for action, key, label, note in rows:
        name = format_binding(Binding.from_key(key, label))
        owner = steps.owners.get(key) or (None if key in disowned else steps.holders.get(key))
        yield {"action": action, "kind": "binding", "name": name, "owner": owner, "note": note}


def _whose(owner: str) -> str:
    from svcctl.model.apply_plan import BY_HAND

    return f"{owner}'s" if owner else BY_HAND


def counts_of(plan: ApplyPlan) -> dict[str, int]:
    """How many objects are created, changed, deleted and left alone."""
    from svcctl.model.apply_plan import CHANGED, CREATED, DELETED, UNCHANGED

    counts = dict.fromkeys((CREATED, CHANGED, DELETED, UNCHANGED), 0)
    for step in plan.services:
        counts[step.action] += 1
    bindings = plan.bindings
    counts[CREATED] += len(bindings.plan.added)
    counts[CHANGED] += len(bindings.plan.replaced) + len(bindings.adopted) + len(plan.settings)
    counts[DELETED] += len(bindings.plan.removed)
    counts[UNCHANGED] += len(bindings.unchanged)
    for node in plan.nodes.steps:
        counts[node.action] += 1
    return counts


FEW = 100
"""So many objects that are unchanged have a line each; of more, the totals say it."""


def emit_plan(env: Env, plan: ApplyPlan, *, dry_run: bool, unchanged: bool, details: bool) -> None:
    """Print a plan: `service default/web:80/TCP created`, a line an object, and the totals.

    As text it has no lines for more than FEW objects that are unchanged, without `details`; other formats are whole.
    """
    from svcctl.model.apply_plan import UNCHANGED
    from svcctl.render.changes import summary
    from svcctl.render.text import escape

    objects = list(changes_of(plan, unchanged=unchanged))
    counts = counts_of(plan)
    hides = counts[UNCHANGED] > FEW and not details

    def lines() -> Iterator[str]:
        for one in objects:
            if hides and one["action"] == UNCHANGED:
                continue
            note = f" ({one['note']})" if one["note"] else ""
            end = " (dry run)" if dry_run else ""
            yield escape(f"{one['kind']} {one['name']} {one['action']}{note}{end}")
            if details:
                yield from (escape(f"  {line}") for line in one.get("details") or ())
        yield summary(counts, dry_run)

    extra: dict[str, Any] = {"dry_run": True} if dry_run else {}
    env.emit_objects("changes", objects, lines, name="name", extra=extra | {"counts": counts})


def end_flows(env: Env, writer: Writer, prepared: Prepared) -> int:
    """End UDP sockets that still go to backends which left or are down, and forget such flows: how many.

    It must not make a failure of what is done.
    """
    from svcctl.state.apply import left_backends
    from svcctl.state.conntrack import find_udp, flush
    from svcctl.state.flows_left import backends_nobody_has, note_flows
    from svcctl.state.terminate import terminate_udp

    gone = left_backends(prepared)
    if not gone and not prepared.flows_left:
        return 0
    try:
        try:
            if prepared.flows_left:
                gone = backends_nobody_has(writer)
            flows = find_udp(writer, gone)
            if flows:
                with writer.changing():
                    flush(writer, flows)
            ended = terminate_udp(writer, gone)
        except (SvcctlError, OSError):
            note_flows(writer, False)  # each apply would fail at it again
            raise
        note_flows(writer, False)
    except (SvcctlError, OSError) as error:
        env.warn(f"end UDP sockets of backends that left: {error}")
        return 0
    if ended.udp:
        env.notice(f"ended {ended.udp} UDP socket{'' if ended.udp == 1 else 's'} of backends that left")
    if flows:
        env.notice(f"forgot {len(flows)} UDP flow{'' if len(flows) == 1 else 's'} of backends that left")
    return ended.udp + len(flows)
