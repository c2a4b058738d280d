"""`svcctl diff`: what apply would change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.apply_commands import decision_options, file_option, input_options
from svcctl.cli.options import noun, option
from svcctl.errors import Exit, SvcctlError, Trouble, UsageProblem

if TYPE_CHECKING:
    from svcctl.cli.env import Env


@noun(
    "diff",
    examples=(
        "svcctl diff -f services.yaml",
        "kubectl get services,endpointslices,nodes -A -o json | svcctl diff -f - --prune",
    ),
    exits=(0, 1, 2, 10),
)
@file_option("What is wanted, as for 'svcctl apply'; may be repeated.")
@option("--prune", is_flag=True, help="Also what 'apply --prune' would remove.")
@decision_options
@input_options
def command(
    env: Env, files: tuple[str, ...], prune: bool, force: bool, take_over: bool, **options: Any
) -> int:
    """Print what 'svcctl apply' would change, and how. Reads only.

    Ends with 0 if nothing would change, with 1 if something would, and with 10 if that could not be told: also when
    another command was at work all the time, or died at it.
    """
    from svcctl.bpf.errors import BpfError

    try:
        return _diff(env, files, prune, force, take_over, options)
    except (UsageProblem, Trouble):
        raise
    except SvcctlError as error:
        raise Trouble(error.message.removeprefix("diff: "), hint=error.hint) from error
    except (BpfError, OSError) as error:
        raise Trouble(str(error)) from error


def _diff(
    env: Env, files: tuple[str, ...], prune: bool, force: bool, take_over: bool, options: dict[str, Any]
) -> int:
    import gc

    from svcctl.cli.access import reading_told
    from svcctl.cli.apply_commands import emit_plan, read_desired, refuse_doubts, refuse_outage, say
    from svcctl.state.apply import prepare

    gc.disable()
    try:
        desired = read_desired(env, files, options)
        refuse_outage("diff", desired, force=force)
        prepared, consistent = reading_told(
            env, lambda state: prepare(state, desired, prune=prune, force=force, take_over=take_over)
        )
        refuse_doubts("diff", prepared.plan.doubts, force=force)
        say(env, prepared.plan.notices)
        emit_plan(env, prepared.plan, dry_run=False, unchanged=False, details=True)
        if not consistent:
            return (
                Exit.TROUBLE
            )  # what a dead writer left is not what is written there: apply repairs it first
        return Exit.FAILURE if prepared.writes else Exit.OK
    finally:
        gc.enable()
