"""Act four: clients outside, two nodes, tunnels between them, answers that go their own way, and a node that dies."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from acts.stage import Stage, Wrong, play

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = {"node-a": "10.10.1.2", "node-b": "10.10.2.2"}
NODE_PORT, BALANCER = 30080, "203.0.113.10"
SIZE = 40_000_000

# Whoever is outside, or a node: one link to the router, which is this act's own namespace.
LINK = """\
ip netns add {name}
ip link add to-{name} type veth peer name eth0 netns {name}
ip addr add {network}.1/24 dev to-{name} && ip link set to-{name} up
ip -n {name} link set lo up && ip -n {name} addr add {network}.2/24 dev eth0 && ip -n {name} link set eth0 up
ip -n {name} route add default via {network}.1"""

POD = """\
ip netns add {pod}
ip -n node-b link add {pod} type veth peer name eth0 netns {pod}
ip -n node-b addr add 169.254.1.1/32 dev {pod} && ip -n node-b link set {pod} up
ip -n node-b route add {address}/32 dev {pod}
ip -n {pod} link set lo up && ip -n {pod} addr add {address}/32 dev eth0 && ip -n {pod} link set eth0 up
ip -n {pod} route add default via 169.254.1.1 dev eth0 onlink"""

# Says who it is and whom it sees; /big is a file.
WEB = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{sys.argv[1]} sees {self.client_address[0]}\\n".encode()
        if self.path == "/big":
            with open(sys.argv[3], "rb") as file:
                body = file.read()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer((sys.argv[2], 8080), Answer).serve_forever()
"""


def nodes() -> None:
    """Node ports of another node's pod, through the tunnel and with direct answers; then the first node is cut off."""
    with Stage("Nodes: clients outside, tunnels, direct answers, and a node that dies") as stage:
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        big = Path(stage.directory, "big")
        _network(stage, big)
        _load(stage)
        _tunnel(stage)
        _direct(stage)
        _failover(stage, big)
        stage.say("Every invariant holds on both nodes, and all is taken away again.")
        for node in NODES:
            stage.run(f"svcctl --netns /run/netns/{node} check", expect="no problems")
            stage.run(f"svcctl --netns /run/netns/{node} unload --yes", expect="removed")


def _network(stage: Stage, big: Path) -> None:
    stage.say("A client and two nodes, each behind a router; links of 1500 bytes. All pods are node-b's.")
    stage.run("echo 1 >/proc/sys/net/ipv4/ip_forward")
    for name, network in (("client", "192.0.2"), ("node-a", "10.10.1"), ("node-b", "10.10.2")):
        for line in LINK.format(name=name, network=network).splitlines():
            stage.run(line)
    stage.run("ip netns exec node-b sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'")
    stage.run("ip netns exec node-a sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'")
    stage.run("ip route add 10.244.2.0/24 via 10.10.2.2")
    web = stage.file("web.py", WEB)
    big.write_bytes(b"".join(hashlib.sha512(str(number).encode()).digest() for number in range(SIZE // 64)))
    for number in (1, 2):
        pod, address = f"pod{number}", f"10.244.2.{number}"
        for line in POD.format(pod=pod, address=address).splitlines():
            stage.run(line)
        stage.start(f"ip netns exec {pod} {sys.executable} {web} {pod} {address} {big}")
    _wait(lambda: all(_answers(f"http://10.244.2.{number}:8080/") for number in (1, 2)))
    stage.say("The router knows the pods' network. A node port there is not yet.")
    stage.run("ip netns exec client curl -s -m 5 http://10.244.2.1:8080/", expect="pod1 sees 192.0.2.2")
    stage.run(f"ip netns exec client curl -s -m 5 http://{NODES['node-a']}:{NODE_PORT}/", code=7)


def _load(stage: Stage) -> None:
    stage.say("On both nodes: a state, the packet path on the interfaces, and who the other node is.")
    for node, address in NODES.items():
        other = "node-b" if node == "node-a" else "node-a"
        svcctl = f"svcctl --netns /run/netns/{node}"
        stage.run(f"{svcctl} load --no-dispatcher --node-address {address}", expect="created")
        stage.run(f"{svcctl} attach dev eth0 --role host", expect="attached eth0")
        if node == "node-b":
            stage.run(f"{svcctl} attach dev 'pod*' --role workload", expect="attached pod2")
        pods = " --pod-prefix 10.244.2.0/24" if other == "node-b" else ""
        stage.run(
            f"{svcctl} nodes add {other} --address {NODES[other]}{pods}", expect=f"created node {other}"
        )
    stage.run("svcctl --netns /run/netns/node-a nodes", expect=["node-b", "10.10.2.2", "10.244.2.0/24"])


def _tunnel(stage: Stage) -> None:
    stage.say("The same service on both, with a node port; node-b is told that the backends are its own.")
    for node in NODES:
        stage.run(
            f"svcctl --netns /run/netns/{node} service add web --frontend 10.96.0.10:80/tcp --node-port {NODE_PORT}"
            f" {_backends(node)}",
            expect="added service web",
        )
    stage.say("The client asks node-a, which has no pod: node-b's answers, and sees who asks.")
    _ask(stage)
    stage.run(
        "svcctl --netns /run/netns/node-a conntrack --service web | head -n 3",
        expect=[f"10.10.1.2:{NODE_PORT}", "192.0.2.2:"],
    )
    stage.say("Forty megabytes that way come whole, and all of them go through node-a.")
    if _download(stage) < SIZE:
        raise Wrong("the answer did not go through the tunnel")


def _direct(stage: Stage) -> None:
    stage.say("Direct server return: node-b answers the client by itself.")
    for node in NODES:
        stage.run(f"svcctl --netns /run/netns/{node} service set web --external-mode dsr", expect="changed")
    _ask(stage)
    stage.say("Of the same download node-a now sees what the client says only.")
    if _download(stage) > SIZE / 4:
        raise Wrong("the answer went through the tunnel")


def _failover(stage: Stage, big: Path) -> None:
    stage.say(
        "An address of a load balancer, with a Maglev table: both nodes come to the same backend for a flow."
    )
    for node in NODES:
        stage.run(
            f"svcctl --netns /run/netns/{node} service add shop --frontend {BALANCER}:80/tcp --kind load-balancer"
            f" --algorithm maglev --external-mode dsr {_backends(node)}",
            expect="added service shop",
        )
    for node in NODES:
        stage.run(f"svcctl --netns /run/netns/{node} lut shop", expect=["10.244.2.1:8080", "10.244.2.2:8080"])
    stage.say("The router sends it to node-a. A download begins, and node-a is cut off in the middle of it.")
    stage.run(f"ip route add {BALANCER}/32 via {NODES['node-a']}")
    copy = Path(stage.directory, "copy")
    command = f"ip netns exec client curl -s -m 50 --limit-rate 10M -o {copy} http://{BALANCER}/big"
    download = stage.start(command)
    _wait(lambda: copy.exists() and copy.stat().st_size > SIZE / 10)
    stage.run("ip link set to-node-a down")
    if download.poll() is not None:
        raise Wrong("the download was over before node-a was")
    stage.run(f"ip route replace {BALANCER}/32 via {NODES['node-b']}")
    stage.run(f"ls -l {copy}")
    stage.say("node-b has never heard of the connection, and goes on with it.")
    if download.wait(60) != 0:
        raise Wrong(f"the download ended with {download.returncode}")
    digest = hashlib.sha256(big.read_bytes()).hexdigest()
    stage.run(f"sha256sum {big} {copy}", expect=[f"{digest}  {big}", f"{digest}  {copy}"])
    stage.run(
        "svcctl --netns /run/netns/node-b conntrack --service shop", expect=["192.0.2.2:", f"{BALANCER}:80"]
    )


def _backends(node: str) -> str:
    """Both pods; node-b is told that they are its own."""
    local = ",local" if node == "node-b" else ""
    return f"--backend 10.244.2.1:8080{local} --backend 10.244.2.2:8080{local}"


def _ask(stage: Stage) -> None:
    place = f"{NODES['node-a']}:{NODE_PORT}"
    said = "the peer is %{remote_ip}:%{remote_port}\\n"
    stage.run(
        f"for i in 1 2 3; do ip netns exec client curl -s -m 5 http://{place}/ -w '{said}'; done",
        expect=["sees 192.0.2.2", f"the peer is {place}"],
    )


def _download(stage: Stage) -> int:
    """Bytes that node-a sent meanwhile."""
    count = "ip netns exec node-a cat /sys/class/net/eth0/statistics/tx_bytes"
    before = int(stage.run(count))
    stage.run(
        f"ip netns exec client curl -s -m 50 http://{NODES['node-a']}:{NODE_PORT}/big | wc -c",
        expect=str(SIZE),
    )
    return int(stage.run(count)) - before


def _answers(url: str) -> bool:
    command = ["ip", "netns", "exec", "client", "curl", "-s", "-o", "/dev/null", "-m", "1", url]
    return subprocess.run(command, check=False).returncode == 0


def _wait(condition: Callable[[], bool]) -> None:
    """Until something in the background has come that far; Wrong after a minute."""
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            raise Wrong("waited in vain")
        time.sleep(0.02)


if __name__ == "__main__":
    raise SystemExit(play(nodes))
