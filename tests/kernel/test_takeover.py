"""Taking a service over from rules as kube-proxy writes them, and giving it back: no connection is lost on the way."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.lib.cli import ROOT
from tests.lib.svc import svc

if TYPE_CHECKING:
    from tests.lib.balanced import Balanced

README = ROOT / "deploy" / "kubernetes" / "README.md"
VIP, BACKEND = "10.96.0.10", "10.0.0.2"
RULES = f"""
table ip kube-proxy {{
  chain output {{
    type nat hook output priority -100; policy accept;
    ip daddr {VIP} tcp dport 80 dnat to {BACKEND}:8080
    ip daddr {VIP} udp dport 53 dnat to {BACKEND}:5353
  }}
}}
"""


def kept() -> str:
    """The empty table that deploy/kubernetes/README.md has one make."""
    (lines,) = re.findall(r"nft -f - <<'END'\n(.*?)\n +END\n", README.read_text(), re.S)
    return str(lines)


class Talk:
    """A connection and its other end."""

    def __init__(self, listener: socket.socket) -> None:
        self.client = socket.create_connection((VIP, 80), timeout=60)
        self.server, _ = listener.accept()
        self.server.settimeout(60)

    def goes_on(self) -> bool:
        """Whether both ways work."""
        self.client.sendall(b"ping")
        there = self.server.recv(4)
        self.server.sendall(b"pong")
        return (there, self.client.recv(4)) == (b"ping", b"pong")

    def close(self) -> None:
        self.client.close()
        self.server.close()


def nft(words: str, text: str | None = None) -> None:
    done = subprocess.run(["nft", *words.split()], input=text, text=True, capture_output=True, check=False)
    if done.returncode and "not supported" in done.stderr.lower():
        pytest.skip(f"this kernel has no nftables NAT: {done.stderr}")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed")
def test_there_and_back(balanced: Balanced) -> None:
    balanced.world.sh(f"ip addr add 10.0.0.1/24 dev lo && ip addr add {BACKEND}/24 dev lo")
    balanced.world.sh("ip route add 10.96.0.0/16 dev lo src 10.0.0.1")
    svc("detach", "cgroup")
    nft("-f -", RULES)
    talks: list[Talk] = []
    with (
        socket.create_server((BACKEND, 8080)) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        server.bind((BACKEND, 5353))
        for one in (server, client, listener):
            one.settimeout(60)
        client.connect((VIP, 53))

        def all_go_on() -> None:
            talks.append(Talk(listener))
            assert all(one.goes_on() for one in talks)
            client.send(b"?")
            _, sender = server.recvfrom(1)
            server.sendto(b"!", sender)
            assert client.recv(1) == b"!"

        try:
            all_go_on()
            assert talks[0].server.getpeername()[0] == "10.0.0.1"
            # svcctl beside it: new connections are its own, those that are there go on.
            balanced.add("web", f"{VIP}:80/tcp", backends=[f"{BACKEND}:8080"])
            balanced.add("dns", f"{VIP}:53/udp", backends=[f"{BACKEND}:5353"])
            svc("attach", "cgroup", balanced.cgroup)
            all_go_on()
            assert balanced.stats("web").connections == 1
            # kube-proxy --cleanup, with something left that keeps the kernel translating: see the README.
            nft("-f -", kept())
            nft("delete table ip kube-proxy")
            all_go_on()
            assert balanced.stats("web").connections == 2
            # Back: its rules first, then ours go.
            nft("-f -", RULES)
            all_go_on()
            svc("detach", "cgroup")
            all_go_on()
            assert balanced.stats("web").connections == 3
            svc("unload", "--yes")
            all_go_on()
        finally:
            for one in talks:
                one.close()
