"""What `follow` does with what it has learnt: the objects into the state, the node's addresses too, and its figures."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from svcctl.cli.access import command_line, place
from svcctl.errors import SvcctlError

if TYPE_CHECKING:
    from svcctl.cli.env import Env
    from svcctl.follow.loop import Applied
    from svcctl.model.apply_plan import ApplyPlan
    from svcctl.model.desired import Desired, Notice
    from svcctl.model.sources.options import Options
    from svcctl.model.sync_figures import Figures


class Cluster:
    """The hooks of a follower. The state is locked for each change, and for no longer."""

    def __init__(
        self,
        env: Env,
        options: Options,
        metrics_file: str | None,
        *,
        force: bool = False,
        take_over: bool = False,
    ) -> None:
        self._env = env
        self._options = options
        self._metrics_file = metrics_file
        self._metrics_trouble = ""
        self._force, self._take_over = force, take_over
        self._failing_since = 0
        self._said: frozenset[Notice] = frozenset()

    def check(self) -> None:
        """Raise what would keep every apply from going well: NotLoaded, PermissionProblem, Incompatible."""
        from svcctl.state.services import need_services
        from svcctl.state.session import open_reader

        with open_reader(place(self._env)) as reader:
            need_services(reader)

    def apply(self, objects: list[dict[str, Any]]) -> Applied:
        """Make the state what the objects ask for; everything else that its owner has is removed."""
        try:
            desired = self._read(objects)
            applied = self._carry_out(desired)
        except Exception:
            if not self._failing_since:
                self._failing_since = time.time_ns()
            self._note(pending_ns=self._failing_since)
            raise
        own = [node for node in desired.nodes if node.own]
        self._failing_since = 0
        self._note(eligible=all(node.eligible for node in own), pending_ns=0)
        return applied

    def _read(self, objects: list[dict[str, Any]]) -> Desired:
        from svcctl.model.sources.kubernetes import desired

        return desired(objects, self._options)

    def _carry_out(self, desired: Desired) -> Applied:
        from svcctl.cli.access import planning
        from svcctl.cli.apply_commands import changes_of, counts_of, end_flows, refuse_outage
        from svcctl.follow.loop import Applied
        from svcctl.model.sync_figures import count_no_local
        from svcctl.state.apply import carry_out, prepare

        refuse_outage("apply", [desired], force=self._force)
        ended = 0
        with planning(self._env) as (state, writer):
            # Its doubts are about inputs that are a part; these lists are whole, or they were not there.
            prepared = prepare(state, [desired], prune=True, force=self._force, take_over=self._take_over)
            if writer is not None:
                carry_out(writer, prepared)
                ended = end_flows(self._env, writer, prepared)
        self._say((*desired.notices, *prepared.plan.notices))
        if not self._env.dry_run:
            for one in changes_of(prepared.plan, unchanged=False):
                self._env.verbose(f"{one['kind']} {one['name']} {one['action']}")
        counts = counts_of(prepared.plan)
        return Applied(
            counts["created"],
            counts["changed"],
            counts["deleted"],
            *count_no_local(desired.services),
            ended_flows=ended,
            show=partial(self._show, prepared.plan) if self._env.dry_run else None,
        )

    def _show(self, plan: ApplyPlan) -> None:
        from svcctl.cli.apply_commands import emit_plan

        emit_plan(self._env, plan, dry_run=True, unchanged=False, details=bool(self._env.verbosity))
        self._env.flush()

    def _say(self, notices: tuple[Notice, ...]) -> None:
        """Notices that there were none of the last time."""
        from svcctl.cli.apply_commands import say

        say(self._env, [one for one in notices if one not in self._said])
        self._said = frozenset(notices)

    def _note(self, *, eligible: bool | None = None, pending_ns: int) -> None:
        """For `svcctl health`. Locks only if there is something to write; failing at it is no reason to stop."""
        from svcctl.state.node_status import needs_note, note_node
        from svcctl.state.session import open_reader
        from svcctl.state.writer import open_writer

        if self._env.dry_run:
            return
        try:
            with open_reader(place(self._env)) as reader:
                if not needs_note(reader, eligible=eligible, pending_ns=pending_ns):
                    return
            with open_writer(place(self._env), command_line()) as writer:
                note_node(writer, eligible=eligible, pending_ns=pending_ns)
        except (SvcctlError, OSError) as error:
            self._env.verbose(f"note for health checks: {error}")

    def node_changed(self) -> None:
        """Have node ports served on the addresses that the node has now, and interfaces attached as the rules say."""
        from svcctl.maps import catalog
        from svcctl.state.devices import attach_new, plan_attach
        from svcctl.state.node_addresses import needs_refresh, refresh
        from svcctl.state.session import open_reader
        from svcctl.state.writer import open_writer

        if self._env.dry_run:
            return
        with open_reader(place(self._env)) as reader:
            has_packets = reader.has_half(catalog.PACKETS)
            if not needs_refresh(reader) and not (has_packets and plan_attach(reader, (), None).changes):
                return
        with open_writer(place(self._env), command_line()) as writer:
            if needs_refresh(writer):
                with writer.changing():
                    count = refresh(writer)
                self._env.notice(f"node addresses: {count} changed")
            for name in attach_new(writer):
                self._env.notice(f"attached {name}")

    def reason(self, error: Exception) -> str:
        """A line, with the hint if there is one."""
        from svcctl.cli.problems import describe

        problem = describe(error)
        if problem.log and (self._env.verbosity >= 2 or problem.code == "bug"):
            self._env.notice(problem.log.rstrip("\n"))
        return f"{problem.message} ({problem.hint})" if problem.hint else problem.message

    def publish(self, figures: Figures) -> None:
        """Replace the file of metrics, if one was asked for."""
        if self._metrics_file is None or self._env.dry_run:
            return
        from svcctl.host.atomic_file import replace_file
        from svcctl.render.sync_metrics import body

        try:
            replace_file(self._metrics_file, body(figures), 0o644)
        except OSError as error:
            trouble = f"metrics file {self._metrics_file}: {error.strerror}"
        else:
            trouble = ""
        if trouble and trouble != self._metrics_trouble:
            self._env.warn(trouble)
        self._metrics_trouble = trouble
