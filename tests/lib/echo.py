"""Traffic that runs on while a test does other things: bulk through an echo, and short connections, counted and compared."""

from __future__ import annotations

import array
import contextlib
import fcntl
import hashlib
import os
import socket
import struct
import termios
import threading
import time

from tests.lib.pods import Pod

RESET = struct.pack("ii", 1, 0)
PIECE = 1 << 16
PATIENCE = 120
"""Seconds until a socket gives up."""


class Echo:
    """A server in a pod that sends back what it gets, each connection in a thread of its own."""

    def __init__(self, pod: Pod, port: int) -> None:
        self.listener = pod.listen(port)
        self.threads: list[threading.Thread] = []
        self.open: set[tuple[object, socket.socket]] = set()  # a client's address, and the connection
        self._start(self._accept)

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args)  # type: ignore[arg-type]
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        self.listener.settimeout(None)
        with contextlib.suppress(OSError):  # shut down
            while True:
                one, peer = self.listener.accept()
                self.threads = [each for each in self.threads if each.is_alive()]  # the first is this one
                self.open.add((peer, one))
                self._start(self._serve, peer, one)

    def _serve(self, peer: object, one: socket.socket) -> None:
        with one, contextlib.suppress(OSError):  # reset; or nothing came for so long
            one.settimeout(PATIENCE)
            while data := one.recv(PIECE):
                one.sendall(data)
        self.open.discard((peer, one))

    def end_of(self, client: socket.socket) -> socket.socket:
        """The other end of an open connection."""
        own = client.getsockname()
        (server,) = (one for peer, one in list(self.open) if peer == own)
        return server

    def settle(self, client: socket.socket) -> None:
        """Wait until everything that either end of an open connection has sent is acknowledged."""
        server = self.end_of(client)
        until = time.monotonic() + PATIENCE
        while any(unacknowledged(one) for one in (client, server)):
            assert time.monotonic() < until, "bytes are under way"
            time.sleep(0.005)

    def is_open(self, server: socket.socket) -> bool:
        """Whether a connection has not come to its end."""
        return any(one is server for _, one in list(self.open))

    def close(self) -> None:
        """End it, and connections whose client is heard no more."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.threads[0].join()
        for _, one in list(self.open):
            with contextlib.suppress(OSError):  # closed meanwhile
                one.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        self.listener.close()


def unacknowledged(one: socket.socket) -> int:
    """Bytes that were sent, or are to be, and that the other end has not said to have."""
    value = array.array("i", [0])
    fcntl.ioctl(one, termios.TIOCOUTQ, value)
    return value[0]


class Traffic:
    """One connection with bulk both ways at once, and short ones, from a pod to an echo, until `finish`.

    At least so many bytes and connections; of these at most so many a second. `problems` is empty if all was well.
    """

    def __init__(self, pod: Pod, place: tuple[str, int], size: int, connections: int, rate: int) -> None:
        self.pod, self.place = pod, place
        self.size, self.connections, self.rate = size, connections, rate
        self.moved = self.opened = 0
        self.problems: list[str] = []
        self._ending = threading.Event()
        self._sent, self._got = hashlib.sha256(), hashlib.sha256()
        with pod.inside():  # a thread has the namespace of who starts it
            self._bulk = self._connect()
            self._threads = [
                threading.Thread(target=self._guarded, args=(work,))
                for work in (self._send, self._receive, self._short)
            ]
            for thread in self._threads:
                thread.start()

    def _guarded(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except OSError as error:
            self.problems.append(f"{work.__name__}: {error!r}")  # type: ignore[attr-defined]

    def _connect(self) -> socket.socket:
        one = socket.socket()
        one.settimeout(PATIENCE)
        try:
            one.connect(self.place)
        except OSError:
            one.close()
            raise
        return one

    def _send(self) -> None:
        pool, sent = os.urandom(PIECE * 16), 0
        while not self.problems and (sent < self.size or not self._ending.is_set()):
            start = sent // PIECE % 997 * 1000
            piece = pool[start : start + PIECE]
            self._bulk.sendall(piece)
            self._sent.update(piece)
            sent += len(piece)
            if sent >= self.size:
                time.sleep(0.005)  # only to be there: two cores are for others, too
        self._bulk.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        while data := self._bulk.recv(PIECE):
            self._got.update(data)
            self.moved += len(data)

    def _short(self) -> None:
        due = time.monotonic()
        while not self.problems and (self.opened < self.connections or not self._ending.is_set()):
            with self._connect() as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                one.sendall(b"?")
                if one.recv(1) != b"?":
                    raise ConnectionError("closed early")
            self.opened += 1
            due = max(due + 1 / self.rate, time.monotonic() - 0.1)
            time.sleep(max(0.0, due - time.monotonic()))

    def go_on(self) -> None:
        """Wait until both have got further."""
        moved, opened, until = self.moved, self.opened, time.monotonic() + PATIENCE
        while not self.problems and (self.moved < moved + 4 * PIECE or self.opened < opened + 4):
            assert time.monotonic() < until, (self.moved - moved, self.opened - opened)
            time.sleep(0.005)
        assert not self.problems

    def finish(self) -> None:
        """Let all come to its end; bytes must be back as they were sent."""
        self.close()
        assert not self.problems
        assert self.moved >= self.size
        assert self.opened >= self.connections
        assert self._got.digest() == self._sent.digest()

    def close(self) -> None:
        """End it, whatever has become of it."""
        self._ending.set()
        for thread in self._threads:
            thread.join()
        self._bulk.close()
