"""Very many connections of one client that all go on at once, and the backends that answer them: two loops over selectors."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator

from tests.lib.outside import RESET
from tests.lib.pods import Namespace

SIZE = 64
DEADLINE = 120


@contextlib.contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Room for that many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def keep_alive(one: socket.socket) -> None:
    """Have it say something after a second in which it heard nothing, and again every second."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 60)):
        one.setsockopt(socket.IPPROTO_TCP, option, value)


class Backends:
    """Echoes in namespaces; each begins its answer with a byte that is its own."""

    def __init__(self, places: list[Namespace], port: int, family: int) -> None:
        self.accepted = [0] * len(places)
        self._selector = selectors.DefaultSelector()
        self._open: set[socket.socket] = set()
        for number, one in enumerate(places):
            listener = one.listen(port, "tcp", family)
            listener.setblocking(False)
            listener.listen(4096)
            self._open.add(listener)
            self._selector.register(listener, selectors.EVENT_READ, (number, True))
        self._end, self._ended = socket.socketpair()
        self._selector.register(self._ended, selectors.EVENT_READ, (-1, False))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                number, listens = key.data
                if number < 0:
                    return
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if listens:
                    self._accept(one, number)
                else:
                    self._answer(one, number)

    def _accept(self, listener: socket.socket, number: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                one, _ = listener.accept()
                one.setblocking(False)
                self.accepted[number] += 1
                self._open.add(one)
                self._selector.register(one, selectors.EVENT_READ, (number, False))

    def _answer(self, one: socket.socket, number: int) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = one.recv(1 << 16)
        if data:
            one.send(bytes([number]) + data[1:])  # never more than a message, which fits
            return
        self._selector.unregister(one)
        self._open.discard(one)
        one.close()

    def close(self) -> None:
        """End them, and whatever is open."""
        self._end.send(b"!")
        self._thread.join()
        for one in (*self._open, self._end, self._ended):
            one.close()
        self._selector.close()


class Flow:
    """A connection: `done` messages were answered, each of them right and by the same backend."""

    def __init__(self, one: socket.socket, number: int) -> None:
        self.socket, self.number = one, number
        self.done = 0
        self.backend: int | None = None
        self.problem = ""
        self._got = b""

    def _message(self) -> bytes:
        return b"?%6d %6d" % (self.number, self.done) + bytes(SIZE - 14)

    def say(self) -> None:
        """The next message."""
        self.socket.send(self._message())

    def hear(self) -> bool:
        """Take what has come; whether that was all of an answer."""
        try:
            data = self.socket.recv(SIZE - len(self._got))
        except OSError as error:
            self.problem = repr(error)
            return False
        self._got += data
        if not data:
            self.problem = "ended"
        if len(self._got) < SIZE:
            return False
        if self._got[1:] != self._message()[1:] or self.backend not in (None, self._got[0]):
            self.problem = f"{self._got!r}, of backend {self.backend}"
        self.backend, self._got = self._got[0], b""
        self.done += 1
        return True


class Flows:
    """All of them, from one client to one place."""

    def __init__(self, client: Namespace, family: int, place: tuple[str, int], count: int) -> None:
        self.all: list[Flow] = []
        with contextlib.ExitStack() as opened:
            for number in range(count):
                one = opened.enter_context(client.socket("tcp", family))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                keep_alive(one)
                one.connect(place)
                one.setblocking(False)
                self.all.append(Flow(one, number))
            self._opened = opened.pop_all()

    def go_on(self, rounds: int, meanwhile: Callable[[], None] | None = None) -> None:
        """So many messages more on each, all at once; `meanwhile` comes when half of them are answered."""
        goal = {flow: flow.done + rounds for flow in self.all}
        until = time.monotonic() + DEADLINE
        half, answered = len(self.all) * rounds // 2, 0
        with selectors.DefaultSelector() as selector:
            for flow in self.all:
                selector.register(flow.socket, selectors.EVENT_READ, flow)
                flow.say()
            while goal:
                assert time.monotonic() < until, f"{len(goal)} of {len(self.all)} do not go on"
                for key, _ in selector.select(1):
                    flow = key.data
                    if flow.hear():
                        answered += 1
                        if flow.done < goal[flow]:
                            flow.say()
                        else:
                            del goal[flow]
                            selector.unregister(flow.socket)
                    assert not flow.problem, f"{flow.number}: {flow.problem}; {len(goal)} are under way"
                    if meanwhile is not None and answered >= half:
                        meanwhile()
                        meanwhile = None

    def close(self) -> None:
        """Reset them all."""
        self._opened.close()
