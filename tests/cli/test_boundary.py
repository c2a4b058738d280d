"""The exception boundary: every kind of failure ends in its exit code and one clear line, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from svcctl.bpf.errors import BpfError, VerifierRejected
from svcctl.cli import main as main_module
from svcctl.cli import problems
from svcctl.cli.env import Env
from svcctl.cli.main import main
from svcctl.errors import Conflict, Exit, NotLoaded, SvcctlError
from tests.lib.cli import ROOT, clean_environment, process
from tests.lib.svc import svc, svc_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.lib.world import World


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make the command line, once parsed, raise an exception."""

    def use(error: BaseException) -> None:
        def run(args: Sequence[str], env: Env) -> int:
            raise error

        monkeypatch.setattr(main_module, "run", run)

    return use


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (SvcctlError("bind: no"), 1, "svcctl: error: bind: no\n"),
        (NotLoaded("bind: nothing", hint="run it"), 3, "svcctl: error: bind: nothing\nhint: run it\n"),
        (Conflict("bind: 'x': taken"), 6, "svcctl: error: bind: 'x': taken\n"),
        (KeyboardInterrupt(), 130, "svcctl: error: interrupted\n"),
        (MemoryError(), 1, "svcctl: error: out of memory\n"),
        (OSError(errno.EIO, "Input/output error", "/x"), 1, "svcctl: error: /x: Input/output error\n"),
        (OSError(errno.EACCES, "Permission denied", "/x"), 4, "svcctl: error: /x: Permission denied\n"),
        (
            OSError(errno.EIO, "Input/output error", b"/\xff"),
            1,
            "svcctl: error: /\\udcff: Input/output error\n",
        ),
    ],
)
def test_each_error_has_its_code_and_line(
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    text: str,
) -> None:
    failing(error)
    assert main(["version"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", text)


def test_escape_sequences_do_not_reach_the_terminal(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    failing(SvcctlError("bad \x1b[31m\nname", hint="\x07"))
    main(["version"])
    assert capsys.readouterr().err == "svcctl: error: bad \\x1b[31m\\nname\nhint: \\x07\n"


def test_a_bug_is_one_line_and_seventy(
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SVCCTL_DEBUG", raising=False)
    failing(KeyError("x"))
    assert main(["version"]) == 70
    err = capsys.readouterr().err
    assert err.startswith("svcctl: error: internal error: KeyError: 'x'\nhint: ")
    assert "Traceback" not in err


def test_a_bug_shows_its_traceback_when_asked(
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SVCCTL_DEBUG", "1")
    failing(KeyError("x"))
    assert main(["version"]) == 70
    assert "Traceback" in capsys.readouterr().err
    assert problems.describe(KeyError("x")).log is not None


def test_very_verbose_shows_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    env = Env()
    env.verbosity = 2
    assert problems.report(ZeroDivisionError(), [], env) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("log", [None, "libbpf: no"])
@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_bpf_permission_names_what_is_needed(
    number: int, log: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "_CAPABILITY_BITS", 1 << 63)  # a capability nobody has
    problem = problems.describe(BpfError(number, "open map", "'meta'", log=log))
    assert problem.exit_code == Exit.PERMISSION
    assert problem.message.startswith("open map: 'meta': ")
    assert problem.hint is not None
    for word in ("CAP_BPF", "CAP_NET_ADMIN", "kernel.unprivileged_bpf_disabled"):
        assert word in problem.hint


def test_bpf_permission_does_not_blame_capabilities_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "_CAPABILITY_BITS", 0)
    problem = problems.describe(BpfError(errno.EPERM, "update", "frozen map"))
    assert (problem.exit_code, problem.hint) == (Exit.PERMISSION, None)


def test_bpf_other_errors() -> None:
    assert problems.describe(BpfError(errno.ENOMEM, "create", "map")).code == "memory"
    assert problems.describe(BpfError(errno.ENOMEM, "create", "map")).exit_code == Exit.FAILURE
    assert problems.describe(BpfError(errno.EINVAL, "create", "map")).exit_code == Exit.FAILURE
    problem = problems.describe(
        VerifierRejected(errno.EACCES, "load", "dispatch", log="0: (b7) r0\nR0 bad\n")
    )
    assert problem.exit_code == Exit.FAILURE
    assert "R0 bad" in problem.message
    assert problem.log == "0: (b7) r0\nR0 bad\n"


def test_the_bpf_package_is_not_imported_to_look_at_an_error() -> None:
    code = (
        "import sys; from svcctl.cli import problems; problems.describe(OSError(1, 'x'));"
        "sys.exit('svcctl.bpf.errors' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment(), check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ([], "missing command"),
        (["bindigs"], "no such command 'bindigs', did you mean 'bindings'?"),
        (["zzzz"], "no such command 'zzzz'"),
        (["--", "-x"], "no such command '-x'"),
        (["--nope", "version"], "no such option '--nope'"),
        (["--bpfs", "x", "version"], "no such option '--bpfs', did you mean '--bpffs'?"),
        (["version", "--outptu", "x"], "version: no such option '--outptu', did you mean '--output'?"),
        (["version", "--out", "json"], "version: no such option '--out', did you mean '--output'?"),
        (["version", "-z"], "version: no such option '-z'"),
        (["version", "a", "b"], "version: unexpected extra arguments (a b)"),
        (["version", "--netns"], "version: option '--netns' requires an argument"),
        (["version", "--quiet=3"], "version: option '--quiet' does not take a value"),
        (["--netns", "", "version"], "--netns '': expected a path"),
        (
            ["--lock-timeout", "-1", "version"],
            "--lock-timeout '-1': expected a number of seconds, 0-1000000000",
        ),
        (
            ["--lock-timeout", "nan", "version"],
            "--lock-timeout 'nan': expected a number of seconds, 0-1000000000",
        ),
        (
            ["--lock-timeout", "inf", "version"],
            "--lock-timeout 'inf': expected a number of seconds, 0-1000000000",
        ),
        (["-o", "xml", "version"], "--output 'xml': expected text, wide, json, jsonl, yaml or name"),
        (["-o", "", "version"], "--output '': expected text, wide, json, jsonl, yaml or name"),
        (["help", "bindigs"], "help: no such command or topic 'bindigs', did you mean 'bindings'?"),
        (["help", "version", "x"], "help: no such command or topic 'x'"),
    ],
)
def test_usage_errors_are_one_clear_line(
    args: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    first, *rest = err.splitlines()
    assert out == ""
    assert first == f"svcctl: error: {line}"
    assert len(rest) <= 1
    assert all(one.startswith("hint: ") for one in rest)


@pytest.mark.parametrize(
    "args",
    [
        ["-o", "json", "bindigs"],
        ["-ojson", "bindigs"],
        ["--output=json", "bindigs"],
        ["version", "extra", "-o", "json"],
        ["version", "-o", "jsonl", "--nope"],
        ["version", "-o", "yaml", "--nope"],
        ["-oyaml", "bindigs"],
    ],
)
def test_errors_are_json_under_json(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    error = json.loads(err)["error"]
    assert error["code"] == "usage"
    assert error["exit_code"] == 2
    assert not error["message"].startswith("svcctl")


def test_json_error_has_the_hint_only_when_there_is_one(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    failing(NotLoaded("x", hint="do"))
    main(["-o", "json", "version"])
    expected = {"code": "not_loaded", "message": "x", "hint": "do", "exit_code": 3}
    assert json.loads(capsys.readouterr().err) == {"error": expected}
    failing(Conflict("x"))
    main(["-o", "json", "version"])
    assert "hint" not in json.loads(capsys.readouterr().err)["error"]


def test_a_word_after_two_dashes_is_not_an_option() -> None:
    assert not problems.wants_json(["bind", "--", "-o", "json"], None)
    assert problems.wants_json(["-o", "text", "bind", "-o", "json"], None)


def _shell(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script.replace("svcctl", f"{sys.executable} -m svcctl")],
        env=clean_environment(),
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("args", ["version", "--help", "--version", "help exit-codes", "version -o wide"])
def test_full_disk(args: str) -> None:
    done = _shell(f"svcctl {args} > /dev/full")
    assert done.returncode == 1
    assert (
        done.stderr.replace(sys.executable, "") == "svcctl: error: write to stdout: No space left on device\n"
    )


def test_full_disk_under_json_is_json() -> None:
    done = _shell("svcctl -o json version > /dev/full")
    assert done.returncode == 1
    assert json.loads(done.stderr)["error"]["code"] == "output"


@pytest.mark.parametrize("args", ["version", "--help", "help exit-codes", "version -o yaml"])
def test_closed_pipe_is_silent(args: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = process(*args.split(), stdout=write)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


def test_closed_stdout() -> None:
    done = _shell("svcctl version >&-")
    assert done.returncode == 1
    assert done.stderr == "svcctl: error: write to stdout: Bad file descriptor\n"


@pytest.mark.parametrize("where", [">&-", "2>&-", "2>/dev/full", ">/dev/full 2>/dev/full", ">&- 2>&-"])
def test_exit_code_survives_broken_streams(where: str) -> None:
    assert _shell(f"svcctl bindigs {where}").returncode == 2


def test_interrupt_during_the_imports() -> None:
    """A real SIGINT, sent by the process to itself while click is being imported."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click.core': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from svcctl.cli.main import main\n"
        "sys.exit(main(['version']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(), text=True, capture_output=True, check=False
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "svcctl: error: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is not None


def test_output_the_terminal_cannot_show_is_escaped() -> None:
    code = "from svcctl.cli.env import Env; e = Env(); e.write('\\u2603\\n'); e.output='json'; e.write('\\u2603\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean_environment(), "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"\\u2603\n" + "\u2603\n".encode()


@pytest.mark.parametrize("text", ["", "{", "version: 2\n", '{"kind": "Service", "metadata": 3}', "-A -t 1:2"])
def test_standard_input_has_a_name_in_errors(text: str) -> None:
    """As files have."""
    ran = svc_process("check", "-f", "-", code=2, input=text)
    assert ran.err.startswith("svcctl: error: check: <stdin>: ")


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("words", "code", "start"),
    [
        (("bindings",), 3, "bindings: no state for network namespace "),
        (("bind", "web", "tcp", "127.0.0.1", "80"), 3, "bind: no state for network namespace "),
        (("--bpffs", "/nonexistent", "attach", "netns"), 3, "attach netns: /nonexistent: no such directory"),
        (("services", "--bpffs", "/nonexistent"), 3, "services: /nonexistent: no such directory"),
        (("diff", "-f", "/dev/null"), 2, "diff: /dev/null: is empty"),
        (("load-bindings", "/dev/null"), 2, "load-bindings: /dev/null: "),
    ],
)
def test_errors_begin_with_what_was_being_done(
    world: World, words: tuple[str, ...], code: int, start: str
) -> None:
    assert svc(*words, code=code).err.startswith(f"svcctl: error: {start}")
    ran = svc("-o", "json", *words, code=code)
    assert json.loads(ran.err)["error"]["message"].startswith(start)
