"""`svcctl top`: exact rates of real traffic, a screen that is left as it was found, and no right but to read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.lib.balanced import SMALL, VIP, VIP6, Balanced, balanced
from tests.lib.stranger import GROUP, NEEDS_CAP_BPF, as_stranger
from tests.lib.svc import assert_one_error, process_env, svc
from tests.lib.world import World

TOP = "svcctl.cli.commands.top"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def both(world: World) -> Iterator[Balanced]:
    """Both halves: a label without a socket, a service with a backend and one without."""
    with balanced(world, *SMALL) as made:
        svc("attach", "netns", "--max-bindings", 1000)
        svc("bind", "web", "tcp", "127.5.0.0/16", 80)
        made.add("shop", f"{VIP}:80/tcp", backends=[made.farm.open("127.0.1.1", 8080)])
        made.add("empty", f"[{VIP6}]:80/tcp")
        yield made


def measured(monkeypatch: pytest.MonkeyPatch, made: Balanced, *words: object) -> str:
    """`top` over two seconds, by its clock, in which so much happens."""
    clock = iter((100.0, 102.0))

    def happen(seconds: float) -> None:
        assert seconds == 2.0
        for _ in range(10):
            made.ask(VIP, 80)
        for _ in range(6):
            assert made.error("127.5.0.1", 80)
        for _ in range(4):
            assert made.error(VIP6, 80)

    with monkeypatch.context() as patched:
        fake = SimpleNamespace(sleep=happen, monotonic=lambda: next(clock), time_ns=time.time_ns)
        patched.setattr(f"{TOP}.time", fake)
        return svc("top", "--interval", 2, *words).out


def test_rates_are_exact(both: Balanced, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    (found,) = json.loads(measured(monkeypatch, both, "-o", "json"))["top"]
    assert found["seconds"] == 2.0
    assert found["labels"] == [
        {"label": "web", "family": "ipv4", "protocol": "tcp", "sockets": 0, "lookups": 3.0, "no_socket": 3.0,
         "errors": 0.0},
    ]  # fmt: skip
    rates = {
        (one["service"], one["family"]): (one["connections"], one["no_backend"]) for one in found["services"]
    }
    assert rates == {("shop", "ipv4"): (5.0, 0.0), ("empty", "ipv6"): (0.0, 2.0)}
    assert found["services"][0]["service"] == "shop"
    assert found["backends"] == [{"backend": "127.0.1.1:8080", "connections": 5.0}]
    assert found["drops"]["no_socket"] == 3.0
    assert found["drops"]["no_backend"] == 2.0


def test_text(both: Balanced, monkeypatch: pytest.MonkeyPatch) -> None:
    """When piped: one interval, without boxes; columns that are rarely of use with -o wide."""
    out = measured(monkeypatch, both)
    assert out.isascii()
    assert re.search(r"^look-ups +3\.0/s of 1 labels$", out, re.M)
    assert re.search(r"^connections +5\.0/s through 2 services$", out, re.M)
    assert re.search(r"^refused +5\.0/s: no_socket 3\.0, no_backend 2\.0$", out, re.M)
    assert re.search(r"^ +shop +ipv4 +5\.0 +0 +0 +0$", out, re.M)
    assert "NOT REMEMBERED/S" not in out
    assert "NOT REMEMBERED/S" in measured(monkeypatch, both, "-o", "wide")


def test_usage(world: World) -> None:
    assert_one_error(svc("top", "--interval", 0, code=2), codes=(2,))
    assert_one_error(svc("top", "--once", code=3), codes=(3,))


def test_as_a_member_of_the_group(world: World) -> None:
    svc("load", "--max-bindings", 1000, "--group", GROUP)
    svc("bind", "web", "tcp", "127.5.0.0/16", 80)
    try:
        words = ("top", "--once", "--interval", "0.1", "-o", "json")
        code, out, err = as_stranger(lambda: tuple(svc(*words, code=None)), cap_bpf=NEEDS_CAP_BPF)
        assert (code, err) == (0, "")
        assert '"label":"web"' in out
    finally:
        svc("unload", "--yes")


class Terminal:
    """`svcctl top` on a terminal of its own, of 24 lines and 100 columns."""

    def __init__(self, *words: str) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.mode = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "svcctl", "top", "--interval", "0.1", *words],
            stdin=self._slave,
            stdout=self._slave,
            stderr=subprocess.PIPE,
            env=process_env() | {"TERM": "xterm", "LC_ALL": "C.UTF-8"},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup ignores it
        )
        self.raw = b""

    def until(self, pattern: str) -> str:
        """Read until what was written since the last call has the pattern."""
        seen, end = b"", time.monotonic() + 60
        while time.monotonic() < end:
            if select.select([self._master], [], [], 0.5)[0]:
                piece = os.read(self._master, 1 << 16)
                seen += piece
                self.raw += piece
                text = _ESCAPE.sub("", seen.decode("utf-8", "replace"))
                if re.search(pattern, text):
                    return text
            assert self.process.poll() is None, (self.process.communicate()[1], seen)
        raise AssertionError(f"no {pattern!r} in a minute: {seen[-3000:]!r}")

    def strike(self, key: str) -> None:
        os.write(self._master, key.encode())

    def end(self) -> int:
        """The exit code; the terminal must be as it was before."""
        while self.process.poll() is None:  # or it waits for room in the terminal
            if select.select([self._master], [], [], 0.2)[0]:
                self.raw += os.read(self._master, 1 << 16)
        while select.select([self._master], [], [], 0)[0]:
            self.raw += os.read(self._master, 1 << 16)
        err = self.process.communicate(timeout=60)[1]
        assert err == b""
        assert termios.tcgetattr(self._slave) == self.mode
        assert self.raw.count(b"\x1b[?1049h") == self.raw.count(b"\x1b[?1049l") == 1
        assert self.raw.rindex(b"\x1b[?25h") > self.raw.rindex(b"\x1b[?25l")
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self._master)
        os.close(self._slave)


@contextlib.contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    one = Terminal(*words)
    try:
        yield one
    finally:
        one.close()


def test_on_a_terminal(both: Balanced) -> None:
    """Drawn again and again, also over `unload` and `load`; q ends it."""
    for number in range(30):
        both.add(f"other{number}", f"10.96.1.{number}:80/tcp")
    with terminal() as screen:
        screen.until(r"services: \d+ of 32 ")  # more than the screen has room for
        end = time.monotonic() + 60
        while not re.search(r"connections +[1-9]", screen.until(r"connections +\d+.*?/s")):
            assert time.monotonic() < end
            both.ask(VIP, 80)
        svc("unload", "--yes")
        screen.until("no state for network namespace")
        svc("load", "--max-bindings", 1000)
        screen.until(r"of 0 labels")
        screen.strike("xq")
        assert screen.end() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_signals(world: World, number: int, code: int) -> None:
    svc("load", "--max-bindings", 1000)
    with terminal() as screen:
        screen.until("look-ups")
        screen.process.send_signal(number)
        assert screen.end() == code


def test_ctrl_c(world: World) -> None:
    svc("load", "--max-bindings", 1000)
    with terminal("--interval", "60") as screen:
        screen.until("measuring")
        screen.strike(" ")  # at once
        screen.until("look-ups")
        # The terminal is not its controlling one here, so the key itself sends nothing.
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 130
