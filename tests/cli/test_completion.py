"""Completion, by the real shells where they are installed: names, options, values, live labels, odd characters."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from svcctl.cli import complete, shell
from svcctl.cli.env import Env
from svcctl.cli.params import LABEL
from svcctl.cli.registry import COMMANDS
from tests.lib.cli import ROOT, all_commands, clean_environment, process

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LABELS = ("web", "web two", "ns/name:80/tcp", "it's")
PREFIXES = ("2001:db8::/32", "2001:db9::1/128", "192.0.2.0/24")

# A svcctl whose `bind` and live state are made up: completion is about the way from the shell and back.
_PROGRAM = f"""#!{sys.executable}
import sys, types
from svcctl.cli import registry
from svcctl.cli.options import argument, option, verb
from svcctl.cli.params import FILE, LABEL, PORT, PREFIX, PROTOCOL

def candidates(kind, env):
    if env.bpffs == "/broken":
        print("noise", file=sys.stderr)
        raise RuntimeError
    return {{"label": {LABELS!r}, "prefix": {PREFIXES!r}}}.get(kind, ())

@verb("bind")
@argument("label", LABEL, "Label.")
@argument("protocol", PROTOCOL, "Protocol.")
@argument("prefix", PREFIX, "Prefix.")
@argument("port", PORT, "Port.")
@option("--from", "source", type=FILE, help="File.")
def bind(env, **kw):
    "Bind."

for name, attribute, value in (("svcctl.cli.live", "candidates", candidates),
                               ("svcctl.cli.commands.bind", "command", bind)):
    module = types.ModuleType(name)
    setattr(module, attribute, value)
    sys.modules[name] = module

from svcctl.cli.main import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment in which the made-up svcctl is on PATH."""
    directory: Path = tmp_path_factory.mktemp("bin")
    program = directory / "svcctl"
    program.write_text(_PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (directory / "file.json").write_text("")
    path = f"{directory}:{os.environ['PATH']}"
    return {
        **clean_environment(),
        "PATH": path,
        "HOME": str(directory),
        "LC_ALL": "C.UTF-8",
        "DIR": str(directory),
    }


def in_bash(line: str, environment: Mapping[str, str], breaks: str | None = None) -> list[str]:
    """What bash would offer for a line, with completions/svcctl.bash loaded."""
    script = (
        (
            f"COMP_WORDBREAKS={breaks!r}\n"
            if breaks is not None
            else "COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'\n"
        )
        + f"source {ROOT}/completions/svcctl.bash\n"
        + 'COMP_LINE=$1 COMP_POINT=${#1}\n_svcctl svcctl\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", line],
        env=dict(environment), text=True, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stderr == ""
    return [word for word in done.stdout.split("\n") if word]


def in_fish(line: str, environment: Mapping[str, str]) -> list[str]:
    """What fish would offer for a line."""
    script = f"source {ROOT}/completions/svcctl.fish; complete -C $argv[1]"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script, line],
        env=dict(environment), text=True, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    return [word.split("\t")[0] for word in done.stdout.split("\n") if word]


_ZSH = r"""
zmodload zsh/zpty
comp() {
    local out
    zpty -b z zsh -f -i
    zpty -w z 'PROMPT= RPROMPT= ; unsetopt zle_bracketed_paste; fpath=('$ROOT'/completions $fpath)'
    zpty -w z 'autoload -Uz compinit; compinit -u -d $DIR/.zcompdump; bindkey "^I" complete-word'
    zpty -w z 'zstyle ":completion:*" list-colors; null() { BUFFER="print -r -- DONE${(q+)BUFFER}"; zle accept-line }'
    zpty -w z 'zle -N null; bindkey "^T" null; print -r REA''DY'
    zpty -r -m z out '*READY*'
    zpty -w -n z "$1"$'\t\x14'
    zpty -r -m z out $'*\nDONE*\n*'
    print -r -- ${${out##*$'\n'DONE}%%$'\r'*}
    zpty -d z
}
comp "$1"
"""


def in_zsh(line: str, environment: Mapping[str, str]) -> str:
    """The line zsh makes of a line and one press of the tab key."""
    done = subprocess.run(
        ["zsh", "-f", "-c", _ZSH, "zsh", line],
        env={**environment, "ROOT": str(ROOT), "TERM": "dumb"}, text=True, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    return done.stdout.strip().strip("'")


need_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
need_fish = pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
need_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")

COMMON_CASES = [
    ("svcctl bi", ["bind", "bindings"]),
    ("svcctl --netns /x bi", ["bind", "bindings"]),
    ("svcctl bind --dry", ["--dry-run"]),
    ("svcctl bind web ", ["tcp", "udp"]),
    ("svcctl bind web t", ["tcp"]),
    ("svcctl bind -o js", ["json", "jsonl"]),
    ("svcctl nosuch ", []),
]


@need_bash
@pytest.mark.parametrize(
    ("line", "words"),
    [
        *COMMON_CASES,
        ("svcctl --output=js", ["json", "jsonl"]),
        ("svcctl bind w", ["web", "web\\ two"]),
        ("svcctl bind web\\ ", ["web\\ two"]),
        ("svcctl bind 'web ", ["web two"]),
        ("svcctl bind it", ["it\\'s"]),
        ("svcctl bind ns/name:", ["80/tcp"]),
        ("svcctl bind web tcp 2001:db8", ["db8::/32"]),
        ("svcctl bind web tcp 2001:db", ["db8::/32", "db9::1/128"]),
        ("svcctl --bpffs /broken bind ", []),
    ],
)
def test_bash(line: str, words: list[str], environment: Mapping[str, str]) -> None:
    assert in_bash(line, environment) == words


@need_bash
def test_bash_where_the_colon_breaks_no_words(environment: Mapping[str, str]) -> None:
    assert in_bash("svcctl bind web tcp 2001:db8", environment, breaks=" \t\n") == ["2001:db8::/32"]
    assert in_bash("svcctl --output=js", environment, breaks=" \t\n") == ["--output=json", "--output=jsonl"]


@need_fish
@pytest.mark.parametrize(
    ("line", "words"),
    [
        *COMMON_CASES,
        ("svcctl bind w", ["web", "web two"]),
        ("svcctl bind web tcp 2001:db8", ["2001:db8::/32"]),
        ("svcctl --output=js", ["--output=json", "--output=jsonl"]),
        ("svcctl --bpffs /broken bind ", []),
    ],
)
def test_fish(line: str, words: list[str], environment: Mapping[str, str]) -> None:
    assert sorted(in_fish(line, environment)) == sorted(words)


@need_zsh
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("svcctl bindi", "svcctl bindings "),
        ("svcctl bind --dry", "svcctl bind --dry-run "),
        ("svcctl bind web t", "svcctl bind web tcp "),
        ("svcctl bind web tcp 2001:db8", "svcctl bind web tcp 2001:db8::/32 "),
        ("svcctl bind ns/", "svcctl bind ns/name:80/tcp "),
        ("svcctl --output=jsonl", "svcctl --output=jsonl "),
        ("svcctl --bpffs /broken bind w", "svcctl --bpffs /broken bind w"),
    ],
)
def test_zsh(line: str, completed: str, environment: Mapping[str, str]) -> None:
    assert in_zsh(line, environment).strip() == completed.strip()


def test_the_scripts_are_what_is_generated() -> None:
    for name, text in shell.SCRIPTS.items():
        assert (ROOT / "completions" / name).read_text() == text, "run `make completions`"
    assert sorted(p.name for p in (ROOT / "completions").iterdir()) == sorted(shell.SCRIPTS)


def _values(*words: str) -> list[str]:
    done = process("--", *words, env={"_SVCCTL_COMPLETE": "fish"})
    assert done.returncode == 0
    assert done.stderr == ""
    return [line.split("\t")[1] for line in done.stdout.splitlines()]


def test_commands_that_exist_and_no_others_are_completed() -> None:
    assert _values("") == list(COMMANDS)


@pytest.mark.parametrize("name", [name for name, _ in all_commands()])
def test_options_that_exist_and_no_others_are_completed(name: str) -> None:
    command = dict(all_commands())[name]
    options = {o for p in command.params if isinstance(p, click.Option) for o in (*p.opts, *p.secondary_opts)}
    assert set(_values(*name.split(), "-")) == options


@pytest.mark.parametrize(
    "line", ["", "svcctl", "svcctl 'x", 'svcctl "', "svcctl \\", "svcctl $(", "svcctl \x01 --=", "\t"]
)
def test_half_lines_never_fail(line: str) -> None:
    done = process(line, env={"_SVCCTL_COMPLETE": "bash"})
    assert done.stderr == ""


def test_an_unknown_shell_or_closed_stdout_is_silent() -> None:
    done = process("x", env={"_SVCCTL_COMPLETE": "bash"}, stdout=subprocess.DEVNULL)
    assert done.stderr == ""
    with open("/dev/full", "w") as full:
        assert process("svcctl ", env={"_SVCCTL_COMPLETE": "bash"}, stdout=full).stderr == ""


def test_no_state_no_candidates() -> None:
    context = click.Context(click.Command("x"), obj=Env({}))
    param = click.Argument(["label"], type=LABEL)
    assert LABEL.shell_complete(context, param, "w") == []


def test_at_most_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete, "_provider", lambda kind, env: (f"l{i}" for i in range(10**9)))
    context = click.Context(click.Command("x"))
    assert len(complete.complete_labels(context, click.Argument(["label"]), "l")) == complete.LIMIT


def test_namespace_given_before_the_cursor_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Env] = []

    def provider(kind: str, env: Env) -> list[str]:
        seen.append(env)
        return []

    monkeypatch.setattr(complete, "_provider", provider)
    root = click.Context(click.Command("svcctl"))
    root.params = {"netns": "/a", "bpffs": "/b"}
    below = click.Context(click.Command("x"), parent=root)
    below.params = {"netns": "/c", "bpffs": None}
    complete.items(below, "label", "")
    assert (seen[0].netns, seen[0].bpffs) == ("/c", "/b")
