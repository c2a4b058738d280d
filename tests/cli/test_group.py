"""The lazy group: help, completion and suggestions without importing commands; options on both sides."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest

from svcctl.cli import root as root_module
from svcctl.cli.env import Env
from svcctl.cli.group import LazyGroup
from svcctl.cli.main import main, run
from svcctl.cli.options import COMMON, VERSION, argument, noun, option, verb
from svcctl.cli.params import FAMILY, FILE, SECONDS, Count
from svcctl.cli.registry import COMMANDS, Entry
from svcctl.render.changes import Change
from tests.lib.cli import all_commands, clean_environment, is_written

if TYPE_CHECKING:
    from svcctl.cli.options import Command

MISSING_ALLOWED = True  # until every command of the registry is written

SEEN: dict[str, Any] = {}


@noun("show", examples=("svcctl show",))
@argument("family", FAMILY, "Which family.", required=False)
@option("--limit", type=Count(1, 9), help="How many.")
def show(env: Env, family: str | None, limit: int | None) -> None:
    """Show things.

    A second paragraph.
    """
    SEEN.update(env=env, family=family, limit=limit)


@verb("make", exits=(0, 2, 6))
@argument("name", FILE, "What to make.")
def make(env: Env, name: str) -> int:
    """Make a thing."""
    SEEN.update(env=env)
    env.emit_changes([Change("created", "thing", name)])
    return 1


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> LazyGroup:
    """A root with the two commands above and a group, in modules that exist only here."""
    modules: dict[str, Command | LazyGroup] = {"show": show, "make": make}
    inner = LazyGroup("inner", registry={"make": Entry("test_module_make", "Make.", "Things")}, help="Inner.")
    modules["inner"] = inner
    for name, command in modules.items():
        module = type(sys)(f"test_module_{name}")
        module.command = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"test_module_{name}", module)
    registry = {name: Entry(f"test_module_{name}", f"{name} it.", "Things") for name in modules}
    registry["broken"] = Entry("svcctl.no_such_module", "Broken.", "Other")
    group = LazyGroup("svcctl", registry=registry, params=[*COMMON, VERSION])
    monkeypatch.setattr(root_module, "root", group)
    SEEN.clear()
    return group


def test_common_options_before_and_after() -> None:
    for args in (
        "--netns /n --bpffs /b --lock-timeout 2.5 -o json -q -vv --no-headers show",
        "show --netns=/n --bpffs=/b --lock-timeout=2.5 -ojson -q -vv --no-headers",
        "--netns /x -o yaml -v show --netns=/n --bpffs=/b --lock-timeout=2.5 -ojson -v -q --no-headers",
    ):
        env = Env({})
        assert run(args.split(), env) == 0
        assert SEEN["env"] is env
        assert (env.netns, env.bpffs, env.lock_timeout, env.output) == ("/n", "/b", 2.5, "json")
        assert (env.quiet, env.verbosity, env.headers) == (1, 2, False)


def test_an_option_before_is_kept_when_absent_after() -> None:
    env = Env({"SVCCTL_NETNS": "/e", "SVCCTL_BPFFS": ""})
    run(["--lock-timeout", "0", "show", "ipv4", "--limit", "3"], env)
    assert (env.netns, env.bpffs, env.lock_timeout) == ("/e", "/sys/fs/bpf", 0.0)
    assert (SEEN["family"], SEEN["limit"]) == ("ipv4", 3)
    run(["--netns", "/n", "show"], env)
    assert env.netns == "/n"


def test_a_verb_has_dry_run_and_returns_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    env = Env({})
    assert run(["make", "x", "--dry-run"], env) == 1
    env.flush()
    assert env.dry_run
    assert capfd.readouterr().out == "would create x\n"
    with pytest.raises(click.UsageError):
        run(["show", "--dry-run"], Env({}))


def test_quiet_twice_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    env = Env({})
    run(["make", "x", "-qq"], env)
    env.notice("n")
    env.warn("w")
    env.flush()
    assert capfd.readouterr() == ("", "")


def test_a_group_in_the_group(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inner", "make", "x", "-o", "name"]) == 1
    assert main(["inner"]) == 2
    assert main(["inner", "mak"]) == 2
    assert main(["inner", "make"]) == 2
    out, err = capfd.readouterr()
    assert out == "x\n"
    assert err.splitlines() == [
        "svcctl: error: inner: missing command",
        "hint: 'svcctl inner --help' lists the commands",
        "svcctl: error: inner: no such command 'mak', did you mean 'make'?",
        "svcctl: error: inner make: missing argument NAME",
        "hint: usage: svcctl inner make [OPTION]... NAME",
    ]


def test_a_type_names_its_parameter(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "ipx"]) == 2
    assert main(["show", "--limit", "10"]) == 2
    assert capfd.readouterr().err.splitlines() == [
        "svcctl: error: show: FAMILY 'ipx': expected ipv4 or ipv6",
        "svcctl: error: show: --limit '10': expected 1-9",
    ]


@pytest.mark.parametrize("wrong", ["", "x", "-1", "1_0", "\u0661", "1e3", "9" * 5000])
def test_numbers(wrong: str) -> None:
    with pytest.raises(click.BadParameter):
        Count(0, 10).convert(wrong, None, None)


@pytest.mark.parametrize("wrong", ["", "x", "-1", "1_0", "nan", "-inf", "1e99"])
def test_seconds(wrong: str) -> None:
    with pytest.raises(click.BadParameter):
        SECONDS.convert(wrong, None, None)


def test_help_of_a_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--help"]) == 0
    by_option = capfd.readouterr().out
    for part in (
        "Usage: svcctl show [OPTION]... [FAMILY]",
        "  Show things.",
        "  A second paragraph.",
        "Arguments:\n  [FAMILY]  Which family.",
        "--limit",
        "Global options:",
        "Examples:\n  svcctl show\n",
        "Exit codes:\n  0  done",
    ):
        assert part in by_option
    assert by_option.index("\nOptions:") < by_option.index("\nGlobal options:")


def test_help_does_not_import_commands(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    out = capfd.readouterr().out
    assert "broken  Broken." in out
    assert out.index("Things:") < out.index("Other:")


def test_completion_of_names_does_not_import_commands(small: LazyGroup) -> None:
    context = click.Context(small, resilient_parsing=True, obj=Env({}))
    assert [i.value for i in small.shell_complete(context, "b")] == ["broken"]
    assert "--netns" in [i.value for i in small.shell_complete(context, "--n")]


def test_difflib_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys; from svcctl.cli.main import main; main(['version']); sys.exit('difflib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(), stdout=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0


def test_child_env_keeps_and_does_not_leak() -> None:
    env = Env({})
    env.netns = "/n"
    child = env.child()
    assert child.netns == "/n"
    child.apply({"output": "json", "verbose": 1})
    assert (env.output, env.verbosity) == ("text", 0)


@pytest.mark.parametrize(
    ("environ", "color"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, False),
    ],
)
def test_color_without_a_terminal(environ: dict[str, str], color: bool) -> None:
    assert Env(environ).color is color


@pytest.mark.parametrize(
    ("environ", "color"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
    ],
)
def test_color_on_a_terminal(environ: dict[str, str], color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svcctl.cli.env.isatty", lambda stream: True)
    env = Env(environ)
    assert env.color is color
    env.output = "json"
    assert not env.color


@pytest.mark.parametrize("name", COMMANDS)
def test_every_registered_command_can_be_imported(name: str) -> None:
    entry = COMMANDS[name]
    if MISSING_ALLOWED and not is_written(entry.module):
        pytest.skip(f"{entry.module} is not written yet")
    import importlib

    command = importlib.import_module(entry.module).command
    assert isinstance(command, click.Command)
    assert command.name == name
    assert entry.help.endswith(".")
    assert len(entry.help) <= 60


def test_every_command_has_help_and_no_option_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name, command in all_commands():
        assert command.help, name
        used = [
            o for p in command.params for o in (*p.opts, *p.secondary_opts) if isinstance(p, click.Option)
        ]
        assert len(used) == len(set(used)), name
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help, f"{name} {param.opts}"
            else:
                assert getattr(param, "about", ""), f"{name} {param.name}"


def test_version(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    from svcctl import __version__

    assert main(["--version"]) == 0
    assert main(["version"]) == 0
    assert capfd.readouterr().out == f"svcctl {__version__}\n" * 2
    assert main(["version", "-o", "json"]) == 0
    whole = json.loads(capfd.readouterr().out)
    assert whole["schema"] == 1
    assert whole["version"][0]["version"] == __version__


def test_confirm_needs_yes_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from svcctl.errors import UsageProblem

    monkeypatch.setattr("sys.stdin", None)
    env = Env({})
    with pytest.raises(UsageProblem, match="--yes"):
        env.confirm("unload: remove everything", yes=False)
    env.confirm("unload: remove everything", yes=True)
