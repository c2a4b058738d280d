"""Server processes that tests control, and clients that say whom they met.

with Server() as server:
    port = server.open("blue", "tcp", address="127.0.0.1").port
    assert ask("tcp", "127.0.0.1", port) == "blue"
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REFUSED = "refused"
SILENT = "silent"
SLOWNESS = float(os.environ.get("SVCCTL_SLOWNESS", "1"))
"""How many times slower than real hardware this machine is: an emulated one sets it."""

_PROGRAM = str(Path(__file__).with_name("serve.py"))
_IP_RECVERR, _IPV6_RECVERR = 11, 25


class Opened(NamedTuple):
    """A socket of a server: its descriptor there, what the kernel calls it, its port."""

    fd: int
    inode: int
    cookie: int
    port: int


class Server:
    """One server process; `prefix` goes before its command line (`ip netns exec ...`)."""

    def __init__(self, prefix: Sequence[str] = (), **popen: Any) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-I", "-S", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            **popen,
        )
        self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Have one thing done. Raises OSError with the server's words when it failed there."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server has ended"
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer

    def open(self, name: str, kind: str = "tcp", **how: Any) -> Opened:
        """Open a socket that answers with `name`: family, address, port, reuseport, v6only, listen, fd."""
        return Opened(**self.ask("open", name=name, kind=kind, **how))

    def close(self, name: str) -> None:
        self.ask("close", name=name)

    def kill(self) -> None:
        """As kill -9 would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it and everything it opened."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def ask(kind: str, address: str, port: int, timeout: float = 30.0) -> str:
    """Name of the socket that answered at address and port; REFUSED; SILENT when nothing came in time."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    timeout *= SLOWNESS
    try:
        if kind == "tcp":
            with socket.socket(family, socket.SOCK_STREAM) as client:
                client.settimeout(timeout)
                client.connect((address, port))
                return _all_of(client)
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            # Not connected, because the answer may come from another address; so errors must be asked for.
            if family == socket.AF_INET:
                client.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            else:
                client.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
            client.settimeout(timeout)
            client.sendto(b"?", (address, port))
            return client.recv(2048).decode()
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return SILENT


def _all_of(client: socket.socket) -> str:
    parts = []
    while part := client.recv(2048):
        parts.append(part)
    return b"".join(parts).decode()


def ask_often(kind: str, address: str, port: int, times: int) -> Counter[str]:
    """Who answered how often."""
    return Counter(ask(kind, address, port) for _ in range(times))


def ask_until(
    kind: str, address: str, port: int, names: Iterable[str], least: int = 0, most: int = 2000
) -> Counter[str]:
    """Who answered how often, until each of the names has, and `least` answers have come.

    Who gets a new client is chance: a number of clients that is fixed leaves one of them out now and then.
    """
    found: Counter[str] = Counter()
    for _ in range(most):
        found[ask(kind, address, port)] += 1
        if found.total() >= least and found.keys() >= set(names):
            break
    return found


class Asking:
    """What `asking` has heard so far: answers in order, errors among them."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.stop = threading.Event()

    def wait_for(self, more: int) -> None:
        """Let `more` further answers come in."""
        goal = len(self.heard) + more
        pause = threading.Event()
        for _ in range(int(24_000 * SLOWNESS)):
            if len(self.heard) >= goal:
                return
            pause.wait(0.005)
        raise AssertionError(f"only {len(self.heard)} answers of {goal}")


@contextlib.contextmanager
def asking(kind: str, address: str, port: int) -> Iterator[Asking]:
    """A client that asks again and again while the block runs, one connection after the other."""
    state = Asking()

    def loop() -> None:
        while not state.stop.is_set():
            try:
                state.heard.append(ask(kind, address, port))
            except OSError as problem:  # a reset is an answer too, and a wrong one
                state.heard.append(repr(problem))

    # A new thread begins in the namespaces of the one that starts it.
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield state
    finally:
        state.stop.set()
        thread.join()
