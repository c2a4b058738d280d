"""Exceptions -> what the user is told: message, hint, stable code, exit code. Imported only when one occurs.

Text is `svcctl: error: <action>: <object>: <cause>` and a line `hint: ...` if there is something to do; under
`-o json`, `-o jsonl` and `-o yaml` (of which JSON is a part) it is one JSON line. Both go to stderr.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

from svcctl.cli.env import Env, StreamProblem, abandon, write_stderr
from svcctl.errors import Exit, SvcctlError
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import click


class Problem(Record):
    """What is told about one exception. `log` is shown with `-vv` (verifier log, traceback)."""

    code: str
    message: str
    hint: str | None
    exit_code: int
    log: str | None = None


_LONGEST = 300
_PARSED = ("json", "jsonl", "yaml")
_NO_ACTION = ("/", "<", "no state")
"""How messages begin that do not say what was being done: with a file, standard input, or that there is no state."""
_NEEDED = ("CAP_BPF", "CAP_NET_ADMIN")
_CAPABILITY_BITS = (1 << 39) | (1 << 12)  # CAP_BPF, CAP_NET_ADMIN


def report(
    error: BaseException, args: Sequence[str] = (), env: Env | None = None, line: int | None = None
) -> int:
    """Tell the user about an exception and return the exit code. `line` is that of a batch."""
    click_exit = _click("Exit")
    if click_exit is not None and isinstance(error, click_exit):  # --help, --version
        try:
            if env is not None:
                env.flush()
        except StreamProblem as e:
            return report(e, args, env)
        return int(error.exit_code)
    if isinstance(error, StreamProblem):
        abandon(sys.stdout)
        if error.errno == errno.EPIPE:
            return Exit.CLOSED_PIPE
    elif env is not None:
        try:
            env.flush()
        except StreamProblem:
            abandon(sys.stdout)
    problem = describe(error)
    if env is not None and env.action and problem.message.startswith(_NO_ACTION):
        problem = problem._replace(message=f"{env.action}: {problem.message}")
    _tell(problem, args, env, line)
    return problem.exit_code


def describe(error: BaseException) -> Problem:
    """What there is to say about an exception of any kind."""
    if isinstance(error, SvcctlError):
        return Problem(error.code, error.message, error.hint, error.exit_code)
    if isinstance(error, StreamProblem):
        return Problem("output", str(error), None, Exit.FAILURE)
    if isinstance(error, KeyboardInterrupt):
        return Problem("interrupted", "interrupted", None, Exit.INTERRUPTED)
    bpf = sys.modules.get("svcctl.bpf.errors")
    if bpf is not None and isinstance(error, bpf.BpfError):
        return _bpf(error, rejected=isinstance(error, bpf.VerifierRejected))
    usage = _click("ClickException")
    if usage is not None and isinstance(error, usage):
        return _usage(error)
    abort = _click("Abort")
    if abort is not None and isinstance(error, abort):
        return Problem("interrupted", "interrupted", None, Exit.INTERRUPTED)
    if isinstance(error, MemoryError):
        return Problem("memory", "out of memory", None, Exit.FAILURE)
    if isinstance(error, OSError) and error.errno is not None:
        return _os(error)
    return _bug(error)


def _tell(problem: Problem, args: Sequence[str], env: Env | None, line: int | None) -> None:
    loud = (env is not None and env.verbosity >= 2) or bool(os.environ.get("SVCCTL_DEBUG"))
    if wants_json(args, env):
        from svcctl.render.json import one_line

        record: dict[str, Any] = {"code": problem.code, "message": problem.message}
        if line is not None:
            record["line"] = line
        if problem.hint:
            record["hint"] = problem.hint
        record["exit_code"] = problem.exit_code
        if problem.log and loud:
            record["log"] = problem.log
        write_stderr(one_line({"error": record}))
        return
    from svcctl.render.text import escape

    if problem.log and loud:
        write_stderr(problem.log.rstrip("\n"))
    where = f"line {line}: " if line is not None else ""
    write_stderr(f"svcctl: error: {where}{escape(problem.message)}")
    if problem.hint:
        write_stderr(f"hint: {escape(problem.hint)}")


def wants_json(args: Sequence[str], env: Env | None) -> bool:
    """Whether errors are wanted as JSON. The words are searched too: the error may be in parsing them."""
    if env is not None and env.output in _PARSED:
        return True
    wanted = ""
    for i, word in enumerate(args):
        if word == "--":
            break
        if word in ("-o", "--output"):
            wanted = args[i + 1] if i + 1 < len(args) else ""
        elif word.startswith("--output="):
            wanted = word[9:]
        elif word.startswith("-o"):
            wanted = word[2:]
    return wanted in _PARSED


def _click(name: str) -> Any:
    exceptions = sys.modules.get("click.exceptions")
    return getattr(exceptions, name, None)


def _usage(error: click.ClickException) -> Problem:
    """One line for a usage error, built from its parts: click's sentences differ between versions."""
    ctx = getattr(error, "ctx", None)
    exceptions = sys.modules["click.exceptions"]
    where = " ".join(ctx.command_path.split()[1:]) if ctx is not None else ""
    param = getattr(error, "param", None)
    hint = None
    if isinstance(error, exceptions.MissingParameter) and param is not None:
        text = f"missing {param.param_type_name} {_name(param)}"
        hint = _usage_line(ctx)
    elif isinstance(error, exceptions.BadParameter) and param is not None:
        text = f"{_name(param)} {_lower(error.message)}"
        hint = getattr(error, "hint", None)
    elif isinstance(error, exceptions.NoSuchOption):
        text = f"no such option '{error.option_name}'{_near_option(error.option_name, ctx)}"
    else:
        text = _lower(error.message)
        if text.startswith("got unexpected extra"):
            text = text[4:]
            hint = _usage_line(ctx)
        elif text.startswith("missing command"):
            hint = f"'{ctx.command_path} --help' lists the commands" if ctx is not None else None
    message = f"{where}: {text}" if where else text
    return Problem("usage", _shortened(message), hint, Exit.USAGE)


def _shortened(message: str) -> str:
    """A message that repeats what was typed, however much that was, as one line to read."""
    from svcctl.render.text import escape

    message = escape(message)
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."


def _name(param: click.Parameter) -> str:
    if param.param_type_name == "argument":
        return (param.metavar or param.name or "").upper()
    return max(param.opts, key=len)


def _near_option(wrong: str, ctx: click.Context | None) -> str:
    if ctx is None:
        return ""
    from difflib import get_close_matches

    # Without the dashes, which would make any two options look alike.
    names = [name[2:] for param in ctx.command.params for name in param.opts if name.startswith("--")]
    near = get_close_matches(wrong.lstrip("-"), names, n=1)
    return f", did you mean '--{near[0]}'?" if near else ""


def _usage_line(ctx: click.Context | None) -> str | None:
    if ctx is None:
        return None
    return f"usage: {ctx.command_path} {' '.join(ctx.command.collect_usage_pieces(ctx))}"


def _lower(text: str) -> str:
    """A sentence of click as the tail of ours: no capital, no full stop."""
    text = " ".join(text.split()).rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _bpf(error: Any, *, rejected: bool) -> Problem:
    log = error.log
    # The verifier says EACCES too: that is about the program, not about the caller.
    if error.errno in (errno.EPERM, errno.EACCES) and not rejected:
        return Problem("permission", str(error), _capability_hint(), Exit.PERMISSION, log)
    if error.errno == errno.ENOMEM:
        return Problem("memory", str(error), "the kernel had no memory for this", Exit.FAILURE)
    hint = "run again with -vv for the whole log" if log else None
    return Problem("kernel", str(error), hint, Exit.FAILURE, log)


def _capability_hint() -> str | None:
    """Which capabilities bpf() wants, unless the process has them all (then something else refused)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            held = next((int(line[7:], 16) for line in status if line.startswith("CapEff:")), 0)
    except (OSError, ValueError):
        held = 0
    if held & _CAPABILITY_BITS == _CAPABILITY_BITS:
        return None
    try:
        with open("/proc/sys/kernel/unprivileged_bpf_disabled", encoding="ascii") as knob:
            setting = f"kernel.unprivileged_bpf_disabled={knob.read().strip()}"
    except OSError:
        setting = "kernel.unprivileged_bpf_disabled is not readable"
    return f"needs {' and '.join(_NEEDED)} ({setting})"


def _os(error: OSError) -> Problem:
    cause = error.strerror or os.strerror(error.errno or 0)
    name = error.filename
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    message = f"{name}: {cause}" if name is not None else cause
    if error.errno in (errno.EPERM, errno.EACCES):
        return Problem("permission", message, None, Exit.PERMISSION)
    return Problem("system", message, None, Exit.FAILURE)


def _bug(error: BaseException) -> Problem:
    from traceback import format_exception

    first = (str(error).splitlines() or [""])[0]
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return Problem(
        "bug",
        f"internal error: {what}",
        "a bug in svcctl: please report it, with the output of the same command under SVCCTL_DEBUG=1",
        Exit.BUG,
        "".join(format_exception(error)),
    )
