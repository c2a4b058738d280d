"""Help, man pages, README and units say what exists, all of it and nothing else."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING, Any

import click
import pytest

from svcctl.cli.env import Env
from svcctl.cli.exits import MEANING
from svcctl.cli.group import LazyGroup
from svcctl.cli.options import Argument, Command
from svcctl.cli.registry import COMMANDS
from svcctl.cli.root import root
from svcctl.errors import Exit
from svcctl.maps import enums
from tests.lib.cli import ROOT, all_commands, is_written

if TYPE_CHECKING:
    from pathlib import Path

MAN = ROOT / "man"
PAGES = sorted(MAN.glob("*.[1-9]"))
ALL_WRITTEN = all(is_written(entry.module) for entry in COMMANDS.values())
# Options of other programs that pages may mention.
FOREIGN = frozenset({"--help", "--now", "--system", "--kubeconfig", "--verb", "--resource"})


@cache
def manual() -> Any:
    """scripts/manual.py as a module."""
    spec = importlib.util.spec_from_file_location("manual", ROOT / "scripts" / "manual.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(page: Path) -> str:
    """A page without roff's escapes."""
    text = re.sub(r"\\f[BIRP]", "", page.read_text())
    return text.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def options_of(command: click.Command) -> set[str]:
    """Names of all options of a command."""
    return {o for p in command.params if isinstance(p, click.Option) for o in (*p.opts, *p.secondary_opts)}


def all_options() -> set[str]:
    """Names of all options of all commands, the common ones included."""
    return options_of(root).union(*(options_of(command) for _, command in all_commands()))


def test_the_pages_are_what_is_generated() -> None:
    if not ALL_WRITTEN:
        pytest.skip("not every command is written yet")
    for path, content in manual().pages().items():
        assert path.read_text() == content, f"{path.name} is stale: run `make man`"


def test_every_command_has_its_place_in_one_page_and_no_other_does() -> None:
    described = [name for page in PAGES for name in re.findall(r"^\.SS svcctl (.+)$", plain(page), re.M)]
    exist = [name for name, command in all_commands() if not isinstance(command, LazyGroup)]
    if ALL_WRITTEN:
        assert sorted(described) == sorted(exist)
    else:
        assert set(described) <= set(exist)


def test_the_overview_lists_every_command() -> None:
    listed = re.findall(r"^\.TP\n([a-z-]+)\n", plain(MAN / "svcctl.8"), re.M)
    assert set(COMMANDS) <= set(listed)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_options_in_pages_exist(page: Path) -> None:
    if not ALL_WRITTEN:
        pytest.skip("not every command is written yet")
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", plain(page)))
    assert mentioned <= all_options() | FOREIGN


@pytest.mark.parametrize("name", [n for n, c in all_commands() if not isinstance(c, LazyGroup)])
def test_page_and_help_name_every_option_and_argument(name: str) -> None:
    command = dict(all_commands())[name]
    text = "\n".join(plain(page) for page in PAGES)
    found = re.search(rf"^\.SS svcctl {re.escape(name)}\n(.*?)(?=^\.S[SH] )", text, re.M | re.S)
    if found is None and not ALL_WRITTEN:
        pytest.skip("the page was made before this command")
    assert found is not None
    help_text = command.get_help(click.Context(command, info_name=name, obj=Env({})))
    common = options_of(root)
    for option in options_of(command):
        assert option in help_text
        assert option in common or option in found[1], f"`make man`: {name} {option}"
    for param in command.params:
        if isinstance(param, Argument):
            assert param.about in found[1]
            assert param.about.split()[0] in help_text


@pytest.mark.parametrize("name", [n for n, _ in all_commands()])
def test_examples_and_exit_codes_of_help(name: str) -> None:
    command = dict(all_commands())[name]
    if isinstance(command, LazyGroup):
        return
    assert isinstance(command, Command)
    assert command.examples, "two to four examples one can paste"
    assert all(name in example for example in command.examples)
    assert command.exits
    assert set(command.exits) <= set(MEANING)
    assert list(command.exits) == sorted(command.exits)
    for example in command.examples:
        _parse(example)


def _parse(line: str) -> None:
    """Parse the svcctl commands of an example without running them."""
    import shlex

    for part in re.split(r"\s[|&]+\s", line):
        words = shlex.split(part)
        starts = [i for i, word in enumerate(words) if word.rpartition("=")[2].lstrip("+") == "svcctl"]
        for start in starts[:1]:
            words = [w.replace("$MAINPID", "1") for w in words[start + 1 :]]
            if ">" in words:
                words = words[: words.index(">")]
            if not words or words[0] not in COMMANDS or not is_written(COMMANDS[words[0]].module):
                continue
            context = root.make_context("svcctl", words, obj=Env({}))
            group: click.Command = root
            rest = words
            while isinstance(group, LazyGroup):
                name, found, rest = group.resolve_command(context, rest)
                assert found is not None
                context = found.make_context(name, list(rest), parent=context)
                group, rest = found, rest


def test_every_exit_code_has_a_meaning() -> None:
    numbers = {value for name, value in vars(Exit).items() if name.isupper()}
    assert numbers == set(MEANING)
    text = plain(MAN / "svcctl.8")
    for code, meaning in MEANING.items():
        assert f".TP\n{code}\n{meaning}\n" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_references_between_pages(page: Path) -> None:
    known = {(p.stem, p.suffix[1:]) for p in PAGES}
    for name, section in re.findall(r"(svcctl(?:-[a-z]+)?) ?\((\d)\)", plain(page)):
        assert (name, section) in known


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_groff_has_nothing_to_say(page: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-t", "-man", "-ww", "-z", "-Tutf8", str(page)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    first_lines = plain(page).split("\n")[:6]
    assert any(line.startswith(".TH SVCCTL") for line in first_lines)
    assert re.search(r"^\.SH NAME\n" + page.stem + r" - ", plain(page), re.M)


def test_what_is_counted_is_explained() -> None:
    text = plain(MAN / "svcctl-metrics.8")
    for name in (*enums.DROP_REASONS, *enums.PACKET_EVENTS):
        assert f".TP\n.B {name}\n" in text


def _mentions(text: str) -> set[str]:
    """First words of `svcctl WORD` where a command is meant: at the start of a line or behind a shell's words."""
    found = re.findall(
        r"(?:^|[`|;+=$#] ?|sudo |bin/)svcctl((?: -[-\w]+(?:[= ]/\S+)?)*) ([a-z][a-z-]+)", text, re.M
    )
    return {word for _, word in found}


@pytest.mark.parametrize(
    "path",
    [
        *sorted(ROOT.glob("*.md")),
        *sorted(path for path in (ROOT / "deploy").rglob("*.*") if path.is_file()),
        *sorted(MAN.glob("*.in")),
    ],
    ids=lambda p: p.name,
)
def test_documents_and_units_name_commands_that_exist(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".md":  # in prose svcctl may be followed by a verb of English
        text = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.S))
    wrong = _mentions(text) - set(COMMANDS)
    assert not wrong
