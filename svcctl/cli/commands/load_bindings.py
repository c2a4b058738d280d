"""`svcctl load-bindings`: makes the bindings those of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import FILE, LABEL
from svcctl.render.changes import CHANGED, CREATED, DELETED, Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.cli.env import Env
    from svcctl.model.plan import Plan


@verb(
    "load-bindings",
    examples=("svcctl load-bindings bindings.json", "svcctl export | svcctl load-bindings -"),
    exits=(0, 2, 3, 4, 6, 7, 8, 9),
)
@argument("file", FILE, "File of bindings (svcctl-bindings(5)), - for standard input.")
@option(
    "--label",
    "labels",
    type=LABEL,
    multiple=True,
    metavar="LABEL",
    help="Decide about this label only; may be repeated.",
)
def command(env: Env, file: str, labels: tuple[str, ...]) -> None:
    """Make the bindings exactly those of FILE: what it lacks is removed, unless --label says otherwise.

    The whole file is read and checked before anything is written. Up to 10,000 changes are made one by one in an
    order in which no connection meets a wrong label; more are swapped in at one stroke. What is bound so belongs to
    nobody, or to the owner that 'svcctl export' gave it in the file.
    """
    import gc

    from svcctl.cli.access import planning
    from svcctl.cli.input import input_name, read_input
    from svcctl.cli.progress import Progress
    from svcctl.host.interrupts import Held
    from svcctl.model.bindings_file import read_bindings
    from svcctl.model.plan import plan as make_plan
    from svcctl.state.bindings import apply_plan, has_room, limit_labels, read_labels
    from svcctl.state.bulk import THRESHOLD, replace_all

    progress = Progress(env, "load-bindings")
    progress.step("reading")
    owners: dict[bytes, str] = {}
    want = read_bindings(read_input(file, env), source=input_name(file), native=True, owners=owners)
    # Millions of small objects that nothing refers to in a circle: the collector would only walk them.
    gc.disable()
    try:
        if labels:
            want = {key: label for key, label in want.items() if label in labels}
        with planning(env) as (state, writer):
            progress.step("comparing")
            everything = read_labels(state)
            have, mine = limit_labels(everything, want, labels) if labels else (everything, want)
            plan = make_plan(have, mine)
            if writer is not None:
                owned = {key: owners[key] for key in _written(plan) if key in owners} if owners else {}
                # What fits in the end may not fit while old and new are there together: swapped in whole.
                if plan.changes > THRESHOLD or not has_room(writer, plan):
                    if labels:
                        want = {key: label for key, label in everything.items() if label not in labels} | want
                    del everything, have, mine
                    replace_all(writer, want, progress.count, owners=owned)
                else:
                    with Held():  # at most THRESHOLD writes: all of them, even when Ctrl-C comes in between
                        apply_plan(writer, plan, owned)
    finally:
        progress.end()
        gc.enable()
    counts = {
        "added": len(plan.added),
        "replaced": len(plan.replaced),
        "removed": len(plan.removed),
        "unchanged": plan.unchanged,
    }
    listed = env.verbosity or env.dry_run
    env.emit_changes(_changes(plan) if listed else (), counts=counts)


def _written(plan: Plan) -> Iterator[bytes]:
    for key, _ in plan.added:
        yield key
    for key, _, _ in plan.replaced:
        yield key


def _changes(plan: Plan) -> Iterator[Change]:
    from svcctl.model.binding import Binding, format_binding

    for key, label in plan.added:
        yield Change(CREATED, "binding", format_binding(Binding.from_key(key, label)))
    for key, label, old in plan.replaced:
        yield Change(CHANGED, "binding", format_binding(Binding.from_key(key, label)), f"was {old}")
    for key, label in plan.removed:
        yield Change(DELETED, "binding", format_binding(Binding.from_key(key, label)))
