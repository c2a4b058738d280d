"""Where svcctl starts, and the one place where exceptions become a line on stderr and an exit code.

Nothing heavy is imported at module level: an interrupt during the imports is an interrupt like any other.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from svcctl.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.cli.env import Env

PROGRAM = "svcctl"
COMPLETE_VARIABLE = "_SVCCTL_COMPLETE"
COLLECT_AFTER = 50_000
"""Objects made and not freed between two looks for garbage: commands never get there, servers do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: that of the process) and return its exit code. Never raises.

    On behalf of the process it also keeps the garbage collector from walking, again and again while modules are
    imported and once more at the end, tens of thousands of objects of which none is garbage: 6 ms.
    """
    if argv is None:
        gc.set_threshold(COLLECT_AFTER)
        code = main(sys.argv[1:])
        gc.freeze()
        return code
    args = list(argv)
    env: Env | None = None
    try:
        if shell := os.environ.get(COMPLETE_VARIABLE):
            from svcctl.cli import shell as completion

            return completion.answer(shell, args)
        from svcctl.cli.env import Env

        env = Env()
        code = run(args, env)
        env.flush()
        return code
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else Exit.FAILURE
    except BaseException as e:
        from svcctl.cli import problems

        return problems.report(e, args, env)


def run(args: Sequence[str], env: Env) -> int:
    """Run one command line in `env` and return its exit code; `batch` calls this for each of its lines.

    Raises whatever the command raises (SvcctlError, OSError, click's usage errors, ...).
    """
    from svcctl.cli.root import root

    with root.make_context(PROGRAM, list(args), obj=env) as context:
        result = root.invoke(context)
    return result if isinstance(result, int) else Exit.OK
