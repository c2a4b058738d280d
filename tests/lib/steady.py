"""Connections through a service all the time, in a process of their own: none may fail or go astray."""

from __future__ import annotations

import time

from tests.lib.child import Child, child
from tests.lib.own_cgroup import enter
from tests.lib.servers import SLOWNESS

# Reset by the client, who has the answer by then, so that no port waits; not as fast as it can, so that others work.
_CODE = """
import struct, threading
wrong, stop, made = [], threading.Event(), 0

def serve(one):
    with one:
        one.settimeout(0.5)
        while not stop.is_set():
            try:
                taken = one.accept()[0]
            except TimeoutError:
                continue
            with taken:
                try:
                    taken.sendall(b'steady')
                    taken.recv(1)
                except OSError:
                    pass

def connect(address, port):
    global made
    while not stop.is_set():
        began = time.monotonic()
        with socket.socket() as one:
            one.settimeout(60)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
            try:
                one.connect((address, port))
                answer, peer = one.recv(100), one.getpeername()
                if (answer, peer) != (b'steady', (address, port)):
                    wrong.append(f'{answer} of {peer}')
            except OSError as problem:
                wrong.append(repr(problem))
        made += 1
        time.sleep(0.003 + time.monotonic() - began)

threads = []
def start(backend, frontend):
    threads.append(threading.Thread(target=serve, args=(socket.create_server(backend),)))
    threads.append(threading.Thread(target=connect, args=frontend))
    for one in threads:
        one.start()
"""


class Steady:
    """Such a process; the service is there before `start`."""

    def __init__(self, cgroup: str, backend: tuple[str, int], frontend: tuple[str, int]) -> None:
        self._opened = child(_CODE)
        self._child: Child = self._opened.__enter__()
        enter(cgroup, self._child.pid)
        self._child.run(f"start({backend!r}, {frontend!r})")

    def undisturbed(self, where: str) -> int:
        """How many were made so far. None of them was wrong."""
        made, wrong = self._child.run("out = made, wrong[:5]")
        assert not wrong, f"{where}: of {made} connections through another service: {wrong}"
        return int(made)

    def wait_for(self, more: int) -> None:
        """Let so many more be made."""
        goal = self.undisturbed("waiting") + more
        end = time.monotonic() + 60 * SLOWNESS
        while self.undisturbed("waiting") < goal:
            assert time.monotonic() < end, "the connections have stopped"
            time.sleep(0.01)

    def stop(self) -> None:
        """End it."""
        try:
            self._child.run("stop.set()\nfor one in threads: one.join()")
        finally:
            self._opened.__exit__(None, None, None)
