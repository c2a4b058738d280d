"""`svcctl metrics` refuses wrong addresses before anything else; it needs no kernel for that."""

from __future__ import annotations

import os
import socket

import pytest

from tests.lib.cli import process


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nonsense", "9100"), "expected an address"),
        (("localhost", "9100"), "expected an address"),
        (("1.2.3", "9100"), "expected an address"),
        (("", "9100"), "expected an address"),
        (("127.0.0.1/8", "9100"), "expected an address"),
        (("[::1", "9100"), "expected an address"),
        (("[127.0.0.1]x", "9100"), "expected an address"),
        (("::1%nosuchinterface", "9100"), "listen on"),
        (("127.0.0.1",), "PORT: missing"),
        (("127.0.0.1", "65536"), "65536"),
        (("127.0.0.1", "http"), "http"),
        (("127.0.0.1", "9100", "more"), "more"),
        (("127.0.0.1", "9100", "--timeout", "0"), "--timeout"),
    ],
)
def test_usage(args: tuple[str, ...], words: str) -> None:
    done = process("metrics", *args)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        done = process("metrics", "::1", str(port))
    assert done.returncode == 1
    assert f"listen on [::1]:{port}: Address already in use" in done.stderr


def test_a_foreign_address_is_named() -> None:
    done = process("metrics", "[2001:db8::1]", "9100")
    assert done.returncode == 1
    assert "listen on [2001:db8::1]:9100: Cannot assign requested address" in done.stderr


def test_sockets_meant_for_another_process_are_not_ours() -> None:
    done = process("metrics", "--bpffs", "/", env={"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
    assert done.returncode == 3
