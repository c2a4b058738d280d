"""status: one state, one label, every directory; plain when piped, boxes on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from svcctl.bpf.link import Link
from tests.kernel.test_gc import dead_state
from tests.lib.foreign import foreign_program
from tests.lib.run import ok, svcctl
from tests.lib.sockets import cookie, register, tcp, writer
from tests.lib.svc import process_env
from tests.lib.world import World


@pytest.fixture
def loaded(world: World) -> World:
    ok("load", "--max-bindings", "100", "--max-destinations", "10")
    ok("bind", "web", "tcp", "127.0.0.1", "80")
    ok("bind", "web", "tcp", "192.0.2.0/24", "0")
    ok("bind", "dns", "udp", "2001:db8::53", "53")
    return world


def test_json(loaded: World) -> None:
    with tcp() as web:
        register("web", 4, 6, web)
        (status,) = ok("status", "-o", "json").json["status"]
        number = cookie(web)
    assert status["path"] == loaded.state_dir
    assert status["netns"] == loaded.netns_inode
    assert (status["hosts"], status["prefixes"]) == (2, 1)
    assert status["interrupted"] is False
    assert "bindings" not in status
    by_label = {row["label"]: row for row in status["destinations"]}
    assert by_label["web"]["bindings"] == 2
    assert by_label["web"]["members"] == [{"cookie": number, "slot": 0, "alive": True}]
    assert by_label["dns"]["protocol"] == "udp"
    assert status["maps"][0] == {"name": "bindings", "used": 1, "max": 100}
    assert status["attachments"][0]["state"] == "up"
    commands = [row["command"] for row in status["writes"]]
    assert commands[0] == "bind dns udp 2001:db8::53 53"
    assert commands[-1].startswith("load")
    assert status["writes"][0]["pid"] == os.getpid()
    assert status["drops"]["no_socket"] == 0


def test_one_label(loaded: World) -> None:
    (status,) = ok("status", "web", "-o", "json").json["status"]
    assert [row["prefix"] for row in status["bindings"]] == ["127.0.0.1/32", "192.0.2.0/24"]
    assert [row["label"] for row in status["destinations"]] == ["web"]
    text = ok("status", "web").out
    assert "192.0.2.0/24" in text
    assert "dns" not in text.split("last writes")[0]
    assert svcctl("status", "nobody").code == 5
    assert svcctl("status", "web", "--all").code == 2


def test_the_last_ten_writes(loaded: World) -> None:
    for number in range(12):
        ok("bind", "many", "tcp", "127.0.0.1", str(1000 + number))
    (status,) = ok("status", "-o", "json").json["status"]
    assert [row["command"].split()[-1] for row in status["writes"]] == [str(1011 - i) for i in range(10)]


def test_plain_text_when_piped(loaded: World) -> None:
    done = ok("status")
    assert done.out.isascii()
    assert "attached: program" in done.out
    assert "3 (2 hosts, 1 prefixes)" in done.out
    assert "rich" not in modules_of("status")


def test_boxes_on_a_terminal(loaded: World) -> None:
    main, terminal = pty.openpty()
    try:
        process = subprocess.run(
            [sys.executable, "-m", "svcctl", "status"],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.PIPE,
            env=process_env() | {"TERM": "xterm", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"},
            timeout=60,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        seen = os.read(main, 1 << 16).decode()
    finally:
        os.close(main)
        os.close(terminal)
    assert "╭─ destinations" in seen
    assert "\x1b[" not in seen


def modules_of(*words: str) -> set[str]:
    code = (
        f"import sys; from svcctl.cli.main import main; sys.argv[1:] = {list(words)!r}; code = main();"
        "print('MODULES', *sorted(sys.modules)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=process_env(),
        timeout=60,
        check=True,
    )
    return {name.split(".")[0] for name in done.stdout.split("MODULES")[1].split()}


def test_what_is_wrong_is_said(loaded: World) -> None:
    with foreign_program():
        assert "1 foreign at the same hook" in ok("status").out
    with Link.open_pinned(f"{loaded.state_dir}/link_netns") as link:
        link.detach()
    assert "recorded, but DOWN" in ok("status").out
    ok("detach", "netns")
    assert "not attached" in ok("status").out
    with writer() as state:
        state.put_meta(state.meta()._replace(generation=99, mark_command=b"bind x"))
    done = ok("status")
    assert "bind x (pid" in done.out
    assert "inconsistent" in done.err


def test_every_directory(loaded: World) -> None:
    dead = dead_state(loaded)
    rows = {row["path"]: row for row in ok("status", "--all", "-o", "json").json["status"]}
    assert rows[loaded.state_dir]["state"] == "own"
    assert rows[dead]["state"] == "dead"
    assert rows[dead]["hosts"] == 0
    os.unlink(f"{dead}/meta")
    os.mkdir(f"{loaded.bpffs}/1_svcctl")
    rows = {row["path"]: row for row in ok("status", "--all", "-o", "json").json["status"]}
    # Without a cookie a namespace that has the number by now cannot be told from it.
    assert rows[dead]["state"] in ("dead", "broken")
    assert rows[f"{loaded.bpffs}/1_svcctl"]["state"] == "broken"
    assert "the pin is missing" in rows[dead]["problem"]
    text = ok("status", "--all").out
    assert len(text.splitlines()) == 4
    assert "broken" in text


def test_not_loaded(world: World) -> None:
    assert svcctl("status").code == 3
    done = ok("status", "--all")
    assert (done.out, done.err) == ("", "nothing is loaded\n")
    assert ok("status", "--all", "-o", "json").json == {"schema": 1, "status": []}


def test_without_a_dispatcher(world: World) -> None:
    ok("load", "--no-dispatcher")
    assert "not attached" in ok("status").out
    (status,) = ok("status", "-o", "json").json["status"]
    assert status["maps"] == []
