"""Bad input: each command, each argument, wrong in every way that hypothesis finds.

It ends with 2, 5 or 6 (3, 4 where that is the matter), one clear line on stderr and perhaps a hint; nothing is
changed, nothing is a traceback or a bug.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lib.pins import dump
from tests.lib.servers import Server
from tests.lib.svc import Ran, assert_one_error, svc, svc_process
from tests.lib.world import World

LONGEST_LINE = 500
EXAMPLES = settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))

Words = tuple[str, ...]


def is_label(text: str) -> bool:
    try:
        return 1 <= len(text.encode()) <= 255 and text.isprintable()
    except UnicodeEncodeError:
        return False


def is_prefix(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def is_port(text: str) -> bool:
    return re.fullmatch("0|[1-9][0-9]{0,4}", text, re.ASCII) is not None and int(text) < 65536


def is_one_of(*words: str) -> Callable[[str], bool]:
    return lambda text: text in words


def is_seconds(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1e9 and "_" not in text
    except ValueError:
        return False


def is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def like(*examples: str) -> st.SearchStrategy[str]:
    """Good values with one character added, removed or replaced."""

    @st.composite
    def mutate(draw: st.DrawFn) -> str:
        text = draw(st.sampled_from(examples))
        at = draw(st.integers(0, len(text)))
        put = draw(st.sampled_from(["", "0", "-", " ", "/", ":", ".", "%", "\n", "é", "\x00", "x"]))
        return text[:at] + put + text[at + draw(st.integers(0, 1)) :]

    return mutate()


# Bytes of a command line that are no UTF-8 arrive as surrogates.
JUNK = (
    st.text(max_size=300)
    | st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
    | st.integers().map(str)
    | st.floats().map(str)
)
PREFIXES = ("127.0.0.1", "10.0.0.0/8", "2001:db8::/32", "::1", "0.0.0.0/0", "fe80::1")
# Written in ways that some programs take, and that mean something else to others.
BAD_PREFIXES = st.sampled_from(
    ["", "/", "/8", "127.1", "1.2.3.4/", "1.2.3.4/33", "1.2.3.4/-1", "1.2.3.4/08", "::/129", "::ffff:1.2.3.4",
     "::ffff:1.2.3.4/128", "::ffff:0:0/96", "fe80::1%lo", "[::1]", "010.0.0.1", "1.2.3.4/255.0.0.0", "localhost",
     "1.2.3.4:80", "1.2.3.4 ", "٣.2.3.4"]
)  # fmt: skip
BAD_LABELS = st.sampled_from(
    ["", "a" * 256, "é" * 128, "a\nb", "a\tb", "\x1b[31m", "a\u202eb", "a\u2028b", "\udcff", "\x00"]
)

LABEL = (BAD_LABELS | JUNK | like("web")).filter(lambda text: not is_label(text))
PROTOCOL = (JUNK | like("tcp", "udp") | st.sampled_from(["any", "TCP", "sctp", "6"])).filter(
    lambda text: not is_one_of("tcp", "udp")(text)
)
PREFIX = BAD_PREFIXES | (JUNK | like(*PREFIXES)).filter(lambda text: not is_prefix(text))
PORT = (
    JUNK | like("80", "65535") | st.sampled_from(["", "65536", "080", "+80", "-0", "8_0", "http", "٨٠"])
).filter(lambda text: not is_port(text))
FAMILY = (JUNK | like("ipv4", "ipv6")).filter(lambda text: not is_one_of("ipv4", "ipv6")(text))
SECONDS = (JUNK | like("1.5") | st.sampled_from(["nan", "-1", "inf", "1_0", "1e10", ""])).filter(
    lambda text: not is_seconds(text)
)
COUNT = (JUNK | like("1000") | st.sampled_from(["0", "-1", "1e3", "99999999999999999999"])).filter(
    lambda text: not is_count(text) or int(text) in (0, 99999999999999999999)
)
OUTPUT = (JUNK | like("json")).filter(
    lambda text: not is_one_of("text", "wide", "json", "jsonl", "yaml", "name")(text)
)
GROUP = (JUNK | like("nogroup")).filter(lambda text: not is_count(text) and text not in _groups())


def _groups() -> set[str]:
    import grp

    return {group.gr_name for group in grp.getgrall()}


ANY_PROTOCOL = PROTOCOL.filter(lambda text: text != "any")
COMMANDS: dict[str, tuple[Words, tuple[st.SearchStrategy[str], ...]]] = {
    "bind": (("web", "tcp", "127.0.0.1", "80"), (LABEL, PROTOCOL, PREFIX, PORT)),
    "unbind": (("web", "tcp", "127.0.0.1", "80"), (LABEL, PROTOCOL, PREFIX, PORT)),
    "unregister": (("web", "ipv4", "tcp"), (LABEL, FAMILY, PROTOCOL)),
    "bindings": (("tcp", "127.0.0.1", "80"), (ANY_PROTOCOL, PREFIX, PORT)),
    "destinations": (("web",), (LABEL,)),
    "register": (("web",), (LABEL,)),
    "register-pid": (("PID", "web", "tcp", "127.0.0.1", "80"), (JUNK, LABEL, PROTOCOL, PREFIX, PORT)),
}
SLOTS = [(command, slot) for command, (good, _) in COMMANDS.items() for slot in range(len(good))]


@pytest.fixture
def busy(loaded: World, server: Server) -> World:
    """A state with something in it that bad input could damage."""
    opened = server.open("it")
    svc("bind", "web", "tcp", "127.0.0.1", 80)
    svc("bind", "web", "tcp", "127.0.0.0/8", 0)
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    return loaded


def check(ran: Ran, codes: tuple[int, ...] = (2,)) -> None:
    assert_one_error(ran, codes=codes)
    for line in ran.err.splitlines():
        assert len(line) <= LONGEST_LINE, line
        assert line.isprintable(), repr(line)


@pytest.mark.parametrize(("command", "slot"), SLOTS, ids=[f"{command}-{slot}" for command, slot in SLOTS])
def test_each_argument(busy: World, server: Server, command: str, slot: int) -> None:
    good, junk = COMMANDS[command]
    before = dump(busy.state_dir)

    @EXAMPLES
    @given(junk[slot])
    def run(word: str) -> None:
        words = [*good[:slot], word, *good[slot + 1 :]]
        words = [str(server.pid) if each == "PID" else each for each in words]
        wait = ("--wait", "0") if command == "register-pid" else ()
        # A pid may be any process's: not there, elsewhere, or out of reach.
        codes = (2, 4, 5, 6) if (command, slot) == ("register-pid", 0) else (2,)
        check(svc(command, *wait, "--", *words, code=None), codes)

    run()
    assert dump(busy.state_dir) == before


@pytest.mark.parametrize("command", [*COMMANDS, "load", "unload"])
def test_too_few_and_too_many_arguments(busy: World, server: Server, command: str) -> None:
    good = [str(server.pid) if word == "PID" else word for word in COMMANDS.get(command, ((), ()))[0]]
    before = dump(busy.state_dir)
    if command not in ("bindings", "destinations", "load", "unload"):
        for count in range(len(good)):
            ran = svc(command, *good[:count], code=2)
            check(ran)
            assert "missing argument" in ran.err
            assert "hint: usage: svcctl" in ran.err
    check(svc(command, *good, "more", code=2))
    check(svc(command, *good, *(["more"] * 100), code=2))
    assert dump(busy.state_dir) == before


OPTIONS = {
    "--lock-timeout": SECONDS,
    "-o": OUTPUT,
    "--netns": (JUNK | like("/proc/self/ns/net")).filter(
        lambda text: not os.path.exists(text.replace("\0", "?"))
    ),
    "--bpffs": (JUNK | like("/sys/fs/bpf")).filter(
        lambda text: text.rstrip("/") != "/sys/fs/bpf" and "//" not in text and "/." not in text
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_common_option(busy: World, name: str) -> None:
    """Before the command and after it."""
    before = dump(busy.state_dir)

    @EXAMPLES
    @given(OPTIONS[name], st.sampled_from(["bindings", "bind"]), st.booleans())
    def run(value: str, command: str, first: bool) -> None:
        good = COMMANDS[command][0]
        option = [f"{name}={value}"] if name.startswith("--") else [name, value]
        words = [*option, command, *good] if first else [command, *good, *option]
        if name == "-o" and value.startswith("-"):
            return
        check(svc(*words, code=None), (2, 3, 4, 5))

    run()
    assert dump(busy.state_dir) == before


@pytest.mark.parametrize(
    ("option", "junk"),
    [("--group", GROUP), ("--max-bindings", COUNT), ("--max-destinations", COUNT)],
)
def test_options_of_load(world: World, option: str, junk: st.SearchStrategy[str]) -> None:
    @EXAMPLES
    @given(junk)
    def run(value: str) -> None:
        check(svc("load", f"{option}={value}", code=None))

    run()
    assert not os.path.exists(world.state_dir)


@EXAMPLES
@given(JUNK)
def _no_such_command(name: str) -> None:
    from svcctl.cli.registry import COMMANDS as known

    if name not in known and not name.startswith("-"):
        check(svc(name, code=None))


def test_no_such_command_or_option(busy: World) -> None:
    before = dump(busy.state_dir)
    _no_such_command()
    check(svc("bindngs", code=2))
    assert "bindings" in svc("bindngs", code=2).err
    for command in (*COMMANDS, "load", "unload"):
        ran = svc(command, "--no-such-option", code=2)
        check(ran)
        assert "--no-such-option" in ran.err
    assert dump(busy.state_dir) == before


@pytest.mark.parametrize("command", [*COMMANDS, "load", "unload"])
def test_junk_all_over(busy: World, server: Server, command: str) -> None:
    """Any words at all: whatever it is, it is no bug, and nothing is changed."""
    before = dump(busy.state_dir)
    dry = [] if command in ("bindings", "destinations") else ["--dry-run"]
    words = JUNK | st.sampled_from(["tcp", "udp", "127.0.0.1", "80", "web", "ipv4", "--wait=0", "-q"])

    @EXAMPLES
    @given(st.lists(words.filter(lambda word: word != "--"), max_size=6))
    def run(words: list[str]) -> None:
        ran = svc(command, *words, *dry, code=None)
        assert ran.code in (0, 2, 3, 4, 5, 6), ran
        if ran.code:
            check(ran, (2, 3, 4, 5, 6))

    run()
    assert dump(busy.state_dir) == before


def test_errors_as_json(busy: World) -> None:
    """One line, an object, with everything the text has."""
    import json

    for words in (
        ("bind", "web"),
        ("bind", "web", "tcp", "x", "80"),
        ("unbind", "web", "udp", "::1", "80"),
        ("none",),
    ):
        ran = svc("-o", "json", *words, code=None)
        assert ran.code in (2, 5)
        (line,) = ran.err.splitlines()
        error: dict[str, Any] = json.loads(line)["error"]
        assert error["exit_code"] == ran.code
        assert error["code"] == {2: "usage", 5: "not_found"}[ran.code]
        assert error["message"]


# What is well formed and still cannot be done


def test_conflicts_and_what_is_not_there(busy: World, server: Server) -> None:
    before = dump(busy.state_dir)
    cases: list[tuple[int, str, Words]] = [
        (6, "'web'", ("bind", "other", "tcp", "127.0.0.1", "80")),
        (6, "'web'", ("bind", "other", "tcp", "127.9.9.9/8", "0")),
        (6, "'web'", ("unbind", "other", "tcp", "127.0.0.1", "80")),
        (5, "no such binding", ("unbind", "web", "tcp", "127.0.0.2", "80")),
        (5, "no such binding", ("unbind", "web", "tcp", "127.0.0.1", "81")),
        (5, "no such binding", ("unbind", "web", "udp", "127.0.0.1", "80")),
        (5, "no such binding", ("unbind", "web", "tcp", "127.0.0.0/9", "0")),  # only a shorter one matches
        (5, "other#", ("unregister", "other", "ipv4", "tcp")),
        (5, "web#", ("unregister", "web", "ipv6", "tcp")),
        (6, "--max-bindings", ("load", "--max-bindings", "5")),
        (6, "--max-destinations", ("load", "--max-destinations", "5")),
        (6, "--group", ("load", "--group", "12345")),
        (2, "--yes", ("unload",)),
        (5, "no such process", ("register-pid", "4194000", "web", "tcp", "127.0.0.1", "80", "--wait", "0")),
        (5, "no such file", ("register-pid", "/none", "web", "tcp", "127.0.0.1", "80", "--wait", "0")),
        (5, "no such socket", ("register-pid", str(server.pid), "web", "tcp", "127.0.0.1", "9", "--wait", "0")),
        (5, "no such socket", ("register-pid", str(server.pid), "web", "udp", "127.0.0.1", "9", "--wait", "0")),
        (2, "port", ("register-pid", str(server.pid), "web", "tcp", "127.0.0.1", "0", "--wait", "0")),
        (2, "itself", ("register-pid", str(os.getpid()), "web", "tcp", "127.0.0.1", "80", "--wait", "0")),
        (2, "process number", ("register-pid", "0", "web", "tcp", "127.0.0.1", "80")),
        (2, "process number", ("register-pid", "99999999999999999999", "web", "tcp", "127.0.0.1", "80")),
        (2, "process number", ("register-pid", "/etc/hostname", "web", "tcp", "127.0.0.1", "80")),
        (2, "address", ("register-pid", "1", "web", "tcp", "127.0.0.0/8", "80")),
    ]  # fmt: skip
    for code, word, words in cases:
        ran = svc(*words, code=code)
        check(ran, (code,))
        assert word in ran.err, ran
    assert dump(busy.state_dir) == before


def test_hints_of_bad_values(busy: World) -> None:
    """What to write instead is said, where it can be known."""
    ran = svc("bind", "web", "tcp", "::ffff:10.0.0.0/104", "80", code=2)
    assert "hint: write 10.0.0.0/8" in ran.err
    ran = svc("bind", "web", "tcp", "127.1", "80", code=2)
    assert "hint: write all four numbers" in ran.err
    ran = svc("bind", "web", "tcp", "fe80::1%lo", "80", code=2)
    assert "zone" in ran.err


def test_not_loaded(world: World, server: Server) -> None:
    """3, whatever else is right or wrong with the state of the host; reading makes nothing."""
    opened = server.open("it")
    for words in (
        ("bind", "web", "tcp", "127.0.0.1", 80),
        ("unbind", "web", "tcp", "127.0.0.1", 80),
        ("bindings",),
        ("destinations",),
        ("unregister", "web", "ipv4", "tcp"),
        ("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port),
    ):
        ran = svc(*words, code=3)
        check(ran, (3,))
        assert str(world.netns_inode) in ran.err
        assert "svcctl load" in ran.err
    assert svc("unload").code == 0
    assert not os.path.exists(world.state_dir)


def test_bytes_on_a_real_command_line(busy: World) -> None:
    """As a process: bytes that are no UTF-8, and a locale that cannot show them."""
    before = dump(busy.state_dir)
    for label in (b"\xff\xfe", b"web\xc3", "\u202e".encode()):
        for env in ({"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}, {"PYTHONUTF8": "0", "LC_ALL": "POSIX"}):
            ran = svc_process("bind", os.fsdecode(label), "tcp", "127.0.0.1", 80, env=env, code=2)
            check(ran)
    assert dump(busy.state_dir) == before


def test_labels_that_are_good(loaded: World) -> None:
    """Spaces, quotes, every script, 255 bytes: bound, listed and unbound as they are."""
    labels = [
        "a",
        " a ",
        "a b",
        "é" * 127,
        "x" * 255,
        "日本",
        "-q",
        "--",
        "'\"$`\\",
        "web#tcp:[::/0]:0",
        "😀",
        "0",
    ]
    for number, label in enumerate(labels):
        svc("bind", "--", label, "tcp", f"127.0.2.{number}", 80)
    rows = svc("bindings", "-o", "json").json["bindings"]
    assert [row["label"] for row in rows] == labels
    assert len(svc("bindings").out.splitlines()) == len(labels) + 1
    for number, label in enumerate(labels):
        svc("unbind", "--", label, "tcp", f"127.0.2.{number}", 80)
    assert svc("destinations", "-o", "json").json["destinations"] == []
