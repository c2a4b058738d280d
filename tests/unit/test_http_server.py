"""The small HTTP server: what it answers, and that no client can keep another one waiting."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from svcctl.host.listeners import adopt, listen, name_of
from tests.lib.until import until

if TYPE_CHECKING:
    from collections.abc import Iterator

# A page that counts how often it is made, and takes its time.
PROGRAM = """
import sys, time
from svcctl.host import http_server
from svcctl.host.http_server import Response, Server
from svcctl.host.listeners import listen, name_of
made = 0
def pages(requests):
    global made
    made += 1
    time.sleep(0.1)
    return [Response(200, "text/plain", b"%d " % made + b"x" * int(sys.argv[2]) + b"\\n")] * len(requests)
http_server.LINGER = float(sys.argv[3])
listener = listen("::1", 0)
print(name_of(listener), listener.getsockname()[1], flush=True)
print(Server([listener], pages, timeout=float(sys.argv[1])).run(), flush=True)
"""


class Running:
    """The server as a process; `port` on ::1."""

    def __init__(self, timeout: float = 60.0, size: int = 0, linger: float = 60.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, str(timeout), str(size), str(linger)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.name, port = self.process.stdout.readline().split()
        self.port = int(port)

    def connect(self) -> socket.socket:
        return socket.create_connection(("::1", self.port), timeout=60)

    def ask(self, request: bytes) -> bytes:
        with self.connect() as client:
            client.sendall(request)
            return everything(client)

    def descriptors(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self, number: int = signal.SIGTERM) -> str:
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return out.strip()


def everything(client: socket.socket) -> bytes:
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            data += piece
    return bytes(data)


@pytest.fixture
def server() -> Iterator[Running]:
    running = Running()
    yield running
    running.stop()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (b"GET /metrics HTTP/1.1", 200),
        (b"GET / HTTP/1.0", 200),
        (b"GET /metrics?x=/y HTTP/1.1", 200),
        (b"GET http://host:1/metrics?a=b HTTP/1.1", 200),
        (b"GET /metrics/ HTTP/1.1", 404),
        (b"GET /favicon.ico HTTP/1.1", 404),
        (b"GET * HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"OPTIONS / HTTP/1.1", 405),
        (b"GET /metrics", 400),
        (b"\x16\x03\x01 nonsense", 400),
        (b"PRI * HTTP/2.0", 505),
    ],
)
def test_request_lines(server: Running, request_line: bytes, expected: int) -> None:
    answer = server.ask(request_line + b"\r\nHost: x\r\n\r\n")
    assert status(answer) == expected
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nConnection: close" in head
    assert f"\r\nContent-Length: {len(body)}\r\n".encode() in head
    assert (b"\r\nAllow: GET, HEAD" in head) == (expected == 405)


def test_head_has_the_length_and_no_body(server: Running) -> None:
    head, _, body = server.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"Content-Length: 3\r\n" in head
    assert body == b""


def test_a_request_may_come_in_pieces(server: Running) -> None:
    with server.connect() as client:
        for piece in (b"GET /met", b"rics HTTP/1.1\r\nA: b\r", b"\n\r\n"):
            client.sendall(piece)
            time.sleep(0.02)
        assert status(everything(client)) == 200


def test_a_head_without_end_is_refused(server: Running) -> None:
    assert status(server.ask(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000)) == 431


def test_parallel_requests_are_all_answered_and_share_the_work(server: Running) -> None:
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(40)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answers = [everything(client) for client in clients]
    assert [status(answer) for answer in answers] == [200] * 40
    made = max(int(answer.split(b"\r\n\r\n")[1].split()[0]) for answer in answers)
    assert made < 20, f"the page was made {made} times for 40 requests in {time.monotonic() - start:.1f} s"


def test_silent_and_slow_clients_are_dropped_and_hold_nobody_up() -> None:
    running = Running(timeout=2)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(running.connect()) for _ in range(300)]  # more than are let in at once
        silent[0].sendall(b"GET /")
        begin = time.monotonic()
        assert status(running.ask(b"GET / HTTP/1.1\r\n\r\n")) == 200
        assert time.monotonic() - begin < 60
        assert everything(silent[0]) == b""
    running.stop()


def test_a_client_that_does_not_read_is_dropped() -> None:
    running = Running(timeout=3, size=20_000_000)
    with running.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.recv(1) == b"H"
        during = running.descriptors()
        until(lambda: running.descriptors() < during, "the end of the connection")
        assert len(everything(client)) < 20_000_000
    running.stop()


def test_an_answer_on_its_way_is_finished_on_sigterm() -> None:
    running = Running(size=20_000_000)
    with running.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        data = client.recv(1000)
        running.process.send_signal(signal.SIGTERM)
        data += everything(client)
    assert len(data) > 20_000_000
    running.process.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(number: int) -> None:
    running = Running()
    running.ask(b"GET / HTTP/1.1\r\n\r\n")
    with running.connect() as idle:
        idle.sendall(b"G")
        start = time.monotonic()
        assert running.stop(number) == str(int(number))
        assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("address", "client"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1"), ("::", "::1")]
)
def test_listen(address: str, client: str) -> None:
    with listen(address, 0) as listener:
        port = listener.getsockname()[1]
        host = f"[{address}]" if ":" in address else address
        assert name_of(listener) == f"http://{host}:{port}/metrics"
        socket.create_connection((client, port), timeout=60).close()


@pytest.mark.parametrize("address", ["localhost", "", "nonsense", "::1::"])
def test_listen_takes_addresses_only(address: str) -> None:
    with pytest.raises(socket.gaierror):
        listen(address, 0)


def test_adopt_refuses_what_does_not_listen() -> None:
    with socket.socket() as plain, pytest.raises(ValueError, match="listening"):
        adopt(plain.fileno())
    with socket.socket(type=socket.SOCK_DGRAM) as udp, pytest.raises(ValueError, match="listening"):
        adopt(udp.fileno())
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="socket"):
        adopt(reading)
    os.close(reading)
    os.close(writing)


def test_adopt_takes_unix_sockets_too(tmp_path: object) -> None:
    path = f"{tmp_path}/metrics"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        adopted = adopt(os.dup(listener.fileno()))
        with adopted:
            assert name_of(adopted) == f"unix:{path}"
