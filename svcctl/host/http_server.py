"""A small HTTP/1.1 server for pages that are made when asked for: GET and HEAD, one thread, every wait bounded.

Requests that have come in by the time the pages are made are answered together: however many ask at once, nobody
is turned away and the work is done once, after all of them asked. Each connection is closed after its answer.
"""

from __future__ import annotations

import math
import selectors
import signal
import socket
import time
from typing import TYPE_CHECKING

from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

MOST_CONNECTIONS = 256
"""More wait in the backlog of the listening socket."""

LARGEST_HEAD = 16_384
"""Bytes of request line and headers. There is no use for a body here: it is not read."""

LINGER = 1.0
"""Seconds to wait for the client to close: closing before it may destroy the answer on its way."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


class Request(Record):
    """What was asked for: the path, and the listening socket that it came in by."""

    path: str
    listener: socket.socket


class Response(Record):
    """An answer: status code, content type, body, and headers beyond the usual ones."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class _Connection:
    """One client. `answer` is what is left to send, `deadline` (monotonic) ends what it is doing now."""

    def __init__(self, peer: socket.socket, listener: socket.socket, deadline: float) -> None:
        self.peer = peer
        self.listener = listener
        self.path = ""
        self.deadline = deadline
        self.received = b""
        self.head_only = False
        self.answered = False
        self.answer = memoryview(b"")


class Server:
    """Serves `pages` at `paths` (None: all) on listening stream sockets, which it takes over and closes.

    `pages` gets all requests of a turn and makes an answer for each. `tick` is called at the beginning and every
    `interval` seconds, and may call `add` and `remove`. Both run in the serving thread and must not raise.
    `timeout` is what a client has, in seconds, to send its request, and again to take the answer.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        pages: Callable[[Sequence[Request]], Sequence[Response]],
        *,
        paths: Sequence[str] | None = ("/metrics", "/"),
        timeout: float = 10.0,
        tick: Callable[[], None] | None = None,
        interval: float = 1.0,
    ) -> None:
        self._pages = pages
        self._paths = paths
        self._timeout = timeout
        self._tick = tick
        self._interval = interval
        self._next_tick = math.inf if tick is None else -math.inf
        self._listeners: list[socket.socket] = []
        self._connections: set[_Connection] = set()
        self._asking: list[_Connection] = []
        self._accepting = False
        self._accept_after = 0.0
        self._stopped_by = 0
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        for one in (self._wake, self._waker):
            one.setblocking(False)
        for listener in listeners:
            self.add(listener)

    def add(self, listener: socket.socket) -> None:
        """Serve on one more listening socket."""
        listener.setblocking(False)
        self._listeners.append(listener)
        if self._accepting:
            self._selector.register(listener, selectors.EVENT_READ)

    def remove(self, listener: socket.socket) -> None:
        """Close a listening socket. Whoever was let in by it is still answered."""
        self._listeners.remove(listener)
        if self._accepting:
            self._selector.unregister(listener)
        listener.close()

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the signal's number. Only in the main thread."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self._stop) for number in numbers}
        wakeup = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        try:
            while not self._stopped_by:
                self._turn()
            self._finish()
            return self._stopped_by
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self.close()

    def close(self) -> None:
        """Close every socket. May be called twice."""
        for one in list(self._connections):
            self._drop(one)
        for listener in (*self._listeners, self._wake, self._waker):
            listener.close()
        self._selector.close()

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self._stopped_by = number

    def _finish(self) -> None:
        """Let answers that are on their way arrive; nobody new is let in."""
        end = time.monotonic() + LINGER
        self._next_tick = math.inf
        for listener in list(self._listeners):
            self.remove(listener)
        self._accepting = False
        while time.monotonic() < end:
            for one in list(self._connections):
                one.deadline = min(one.deadline, end)
                if not one.answer:
                    self._drop(one)
            if not self._connections:
                return
            self._turn()

    def _turn(self) -> None:
        """Wait for something to happen and deal with it."""
        now = time.monotonic()
        if self._tick is not None and self._next_tick <= now:
            self._tick()
            now = time.monotonic()
            self._next_tick = now + self._interval
        self._watch_listeners(now)
        ends = [one.deadline for one in self._connections] + [self._next_tick]
        if self._listeners and not self._accepting and len(self._connections) < MOST_CONNECTIONS:
            ends.append(self._accept_after)
        first = min(ends, default=math.inf)
        self._handle(None if first == math.inf else max(first - now, 0.0))
        if self._asking:
            self._handle(0)  # those that were just let in: they share the page
        now = time.monotonic()
        for one in [one for one in self._connections if one.deadline <= now]:
            self._drop(one)
        if self._asking:
            pages = self._pages([Request(one.path, one.listener) for one in self._asking])
            asking, self._asking = self._asking, []
            for one, page in zip(asking, pages, strict=True):
                self._answer(one, page)

    def _handle(self, wait: float | None) -> None:
        for key, _ in self._selector.select(wait):
            if key.data is not None:
                self._serve(key.data)
            elif key.fileobj is self._wake:
                self._wake.recv(64)
            else:
                self._accept(key.fileobj)  # type: ignore[arg-type]

    def _watch_listeners(self, now: float) -> None:
        wanted = len(self._connections) < MOST_CONNECTIONS and now >= self._accept_after
        if wanted == self._accepting:
            return
        self._accepting = wanted
        for listener in self._listeners:
            if wanted:
                self._selector.register(listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(listener)

    def _accept(self, listener: socket.socket) -> None:
        while len(self._connections) < MOST_CONNECTIONS:
            try:
                peer, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                # No descriptors or no memory: the client stays in the backlog, and select() would not rest.
                self._accept_after = time.monotonic() + 0.1
                return
            peer.setblocking(False)
            one = _Connection(peer, listener, time.monotonic() + self._timeout)
            self._connections.add(one)
            self._selector.register(peer, selectors.EVENT_READ, one)
            self._serve(one)

    def _drop(self, one: _Connection) -> None:
        self._connections.discard(one)
        if one in self._asking:
            self._asking.remove(one)
        self._selector.unregister(one.peer)
        one.peer.close()

    def _serve(self, one: _Connection) -> None:
        try:
            if one.answer:
                self._send(one)
            elif one.answered:
                if not one.peer.recv(65536):
                    self._drop(one)
            else:
                self._receive(one)
        except BlockingIOError:
            return
        except OSError:  # the client has gone
            self._drop(one)

    def _receive(self, one: _Connection) -> None:
        data = one.peer.recv(65536)
        if not data:
            self._drop(one)
            return
        if one in self._asking:
            return  # a second request, or a body: this connection gets one answer
        one.received += data
        if b"\r\n\r\n" in one.received or b"\n\n" in one.received:
            self._decide(one)
        elif len(one.received) > LARGEST_HEAD:
            self._answer(one, _plain(431))

    def _decide(self, one: _Connection) -> None:
        """Look at the request line; the headers change nothing."""
        words = one.received.split(b"\n", 1)[0].rstrip(b"\r").decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            self._answer(one, _plain(400))
            return
        method, target, version = words
        if not version.startswith("HTTP/1."):
            self._answer(one, _plain(505))
            return
        if "://" in target.split("?", 1)[0]:  # the form that proxies are asked in
            target = "/" + target.partition("://")[2].partition("/")[2]
        one.head_only = method == "HEAD"
        one.path = target.split("?", 1)[0]
        if self._paths is not None and one.path not in self._paths:
            self._answer(one, _plain(404))
        elif method not in ("GET", "HEAD"):
            self._answer(one, _plain(405))
        else:
            one.deadline = math.inf  # it has done its part: now it waits for us
            self._asking.append(one)

    def _answer(self, one: _Connection, response: Response) -> None:
        one.answered = True
        one.deadline = time.monotonic() + self._timeout
        one.answer = memoryview(_message(response, head_only=one.head_only))
        self._selector.modify(one.peer, selectors.EVENT_WRITE, one)
        self._serve(one)

    def _send(self, one: _Connection) -> None:
        one.answer = one.answer[one.peer.send(one.answer) :]
        if not one.answer:
            one.deadline = time.monotonic() + LINGER
            self._selector.modify(one.peer, selectors.EVENT_READ, one)
            one.peer.shutdown(socket.SHUT_WR)


def _plain(status: int) -> Response:
    return Response(status, "text/plain; charset=utf-8", f"{status} {_REASONS[status]}\n".encode())


def _message(response: Response, *, head_only: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {response.status} {_REASONS.get(response.status, '')}",
        time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(f"{name}: {value}" for name, value in response.headers),
    ]
    if response.status == 405:
        lines.append("Allow: GET, HEAD")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if head_only else response.body)
