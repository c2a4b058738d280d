"""Act three: the same services for packets of other network namespaces, no socket call looked at; and apply."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from acts.outgoing import WEB
from acts.stage import Stage, Wrong, play

if TYPE_CHECKING:
    from collections.abc import Callable

SERVICE = "10.96.0.10"
APPLIED = "10.96.0.20"

# A container's network as a runtime makes it: an address of its own, and all else goes to the veth's other end.
POD = """\
ip netns add pod{n}
ip link add veth{n} type veth peer name eth0 netns pod{n}
ip addr add 169.254.1.1/32 dev veth{n} && ip link set veth{n} up && ip route add 10.244.0.{n}/32 dev veth{n}
ip -n pod{n} link set lo up && ip -n pod{n} addr add 10.244.0.{n}/32 dev eth0 && ip -n pod{n} link set eth0 up
ip -n pod{n} route add default via 169.254.1.1 dev eth0 onlink"""

MANIFEST = """\
apiVersion: v1
kind: Service
metadata: {{name: shop, namespace: default}}
spec:
  clusterIP: {address}
  ports: [{{name: http, port: 80, protocol: TCP}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: shop-1, namespace: default, labels: {{kubernetes.io/service-name: shop}}}}
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}]
endpoints:
- addresses: [10.244.0.2]
  conditions: {{ready: true}}
- addresses: [10.244.0.3]
  conditions: {{ready: true}}
"""


def packets() -> None:
    """Attach to the pods' interfaces, ask, look at the flows, apply a manifest, detach."""
    with Stage("Packets: services for network namespaces, without their sockets") as stage:
        # What `ip netns` makes is under /run, and so in this act's own mounts alone.
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        _pods(stage)
        _service(stage)
        _apply(stage)
        stage.say("Off the interfaces: packets pass as they come, and nobody is at the address any more.")
        stage.run("svcctl detach dev 'veth*'", expect=["deleted veth*", "detached veth3"])
        stage.run(f"ip netns exec pod1 curl -s -m 3 http://{SERVICE}/", code=7)
        stage.say("From pod to pod nothing has changed. Every invariant holds, and all is taken away again.")
        stage.run("ip netns exec pod1 curl -s -m 3 http://10.244.0.2:8080/", expect="pod2")
        stage.run("svcctl check", expect="no problems")
        stage.run("svcctl unload --yes", expect="removed")


def _pods(stage: Stage) -> None:
    stage.say("Three pods: network namespaces behind veths of this host, which forwards between them.")
    stage.run("echo 1 >/proc/sys/net/ipv4/ip_forward")
    for number in (1, 2, 3):
        for line in POD.format(n=number).splitlines():
            stage.run(line)
    stage.say("Pods 2 and 3 run a web server each.")
    web = stage.file("web.py", WEB)
    for number in (2, 3):
        stage.start(f"ip netns exec pod{number} {sys.executable} {web} 10.244.0.{number} 8080 pod{number}")
    _wait(lambda: all(_answers(f"http://10.244.0.{number}:8080/") for number in (2, 3)))
    stage.run("ip netns exec pod1 curl -s -m 3 http://10.244.0.2:8080/", expect="pod2")
    stage.run(f"ip netns exec pod1 curl -s -m 3 http://{SERVICE}/", code=7)


def _service(stage: Stage) -> None:
    stage.say("Load the state, and attach the packet path to the pods' interfaces. No cgroup is attached.")
    stage.run("svcctl load --no-dispatcher", expect="created")
    stage.run("svcctl attach dev 'veth*' --role workload", expect="attached veth3")
    stage.run("svcctl attachments", expect=["veth1", "veth2", "veth3"])
    stage.run(
        "svcctl status | grep -E '^(balancer|packet path) '", expect=["not attached", "3 workload interfaces"]
    )
    stage.say("A service; pod 1 asks it.")
    stage.run(
        f"svcctl service add web --frontend {SERVICE}:80/tcp --backend 10.244.0.2:8080 --backend 10.244.0.3:8080",
        expect="added service web",
    )
    stage.run(
        f"ip netns exec pod1 curl -s -m 3 http://{SERVICE}/ -w 'the peer is %{{remote_ip}}:%{{remote_port}}\\n'",
        expect=["pod", f"the peer is {SERVICE}:80"],
    )
    _spread(stage, "pod1", SERVICE, {"pod2", "pod3"})
    stage.say("A backend that asks its own service may get itself.")
    _spread(stage, "pod2", SERVICE, {"pod2", "pod3"})
    stage.say("What is remembered: how packets of a flow are changed, there and back.")
    hold = f"kept = socket.create_connection(('{SERVICE}', 80)); time.sleep(600)"
    stage.start(f'ip netns exec pod1 {sys.executable} -c "import socket, time; {hold}"')
    _wait(lambda: "established" in _flows())
    flows = "svcctl conntrack --service web --source 10.244.0.1"
    stage.run(f"{flows} | head -n 6", expect=[f"{SERVICE}:80", "closed"])
    stage.run(f"{flows} | grep established", expect=["10.244.0.1:", f"{SERVICE}:80", ":8080", "web"])


def _apply(stage: Stage) -> None:
    path = stage.file("shop.yaml", MANIFEST.format(address=APPLIED))
    stage.say("Services of Kubernetes: what a manifest would change, and then so be it.")
    stage.run(f"cat {path}", expect="EndpointSlice")
    stage.run(f"svcctl diff -f {path}", code=1, expect="shop")
    stage.run(f"svcctl apply -f {path}", expect="shop")
    _spread(stage, "pod1", APPLIED, {"pod2", "pod3"})
    stage.say("One endpoint is ready no more. What is applied differs no more.")
    stage.run(f"sed -i '$ s/true/false/' {path}")
    stage.run(f"svcctl diff -f {path}", code=1, expect="10.244.0.3:8080")
    stage.run(f"svcctl apply -f {path}", expect="1 changed")
    _spread(stage, "pod1", APPLIED, {"pod2"})
    stage.run(f"svcctl diff -f {path}", expect="0 changed")
    stage.run("svcctl services", expect=["web", "shop"])


def _spread(stage: Stage, pod: str, address: str, expected: set[str]) -> None:
    """Forty requests of a pod, each a new connection; Wrong unless these answer, and nobody else."""
    command = f"for i in $(seq 40); do curl -s -m 3 http://{address}/; done"
    said = stage.run(f"ip netns exec {pod} sh -c '{command}' | sort | uniq -c")
    answers = Counter({name: int(times) for times, name in (line.split() for line in said.splitlines())})
    if set(answers) != expected or answers.total() != 40:
        raise Wrong(f"expected 40 answers of {expected}")


def _answers(url: str) -> bool:
    command = ["curl", "-s", "-o", os.devnull, "-m", "1", url]
    return subprocess.run(command, check=False).returncode == 0


def _flows() -> str:
    return subprocess.run(["svcctl", "conntrack"], capture_output=True, text=True, check=True).stdout


def _wait(condition: Callable[[], bool]) -> None:
    """Until something in the background has come that far; Wrong after a minute."""
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            raise Wrong("waited in vain")
        time.sleep(0.05)


if __name__ == "__main__":
    raise SystemExit(play(packets))
