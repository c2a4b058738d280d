"""Tiny servers for real clients: HTTP that says who it is, and DNS that knows one answer. Threads of the test."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER4, ANSWER6 = "192.0.2.53", "2001:db8::53"


@contextlib.contextmanager
def http(address: str, port: int) -> Iterator[list[str]]:
    """Answers every request with `address:port`; gives the addresses of the clients that came."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append(self.client_address[0])
            body = f"{address}:{port}\n".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        request_queue_size = 128

    with Server((address, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def dns(address: str, port: int = 53) -> Iterator[list[str]]:
    """Answers every question for A and AAAA, over UDP; gives the names that were asked for."""
    asked: list[str] = []
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, port))

        def serve() -> None:
            while True:
                question, client = server.recvfrom(2048)
                if not question:
                    return
                asked.append(_name(question))
                server.sendto(_answer(question), client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            with socket.socket(server.family, socket.SOCK_DGRAM) as last:
                last.sendto(b"", (address, port))
            thread.join()


def _name(question: bytes) -> str:
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    return ".".join(labels)


def _answer(question: bytes) -> bytes:
    end = question.index(b"\0", 12) + 5
    kind = int.from_bytes(question[end - 4 : end - 2], "big")
    data = {1: socket.inet_aton(ANSWER4), 28: socket.inet_pton(socket.AF_INET6, ANSWER6)}.get(kind)
    header = question[:2] + struct.pack("!5H", 0x8580, 1, 1 if data else 0, 0, 0)
    if data is None:
        return header + question[12:end]
    return header + question[12:end] + struct.pack("!3HIH", 0xC00C, kind, 1, 60, len(data)) + data
