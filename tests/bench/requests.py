"""New connections a second: wrk against nginx in another namespace, direct, through svcctl, and through nftables.

The rules are those kube-proxy's nftables mode writes for a cluster address. Ports are made plenty and TIME_WAIT short
in both namespaces: otherwise three seconds of new connections use the ports up, and the rest measures that.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.request
from typing import TYPE_CHECKING

from svcctl.host.netns import Netns
from tests.bench.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.figures import Report
    from tests.bench.services import Balancer

ROUNDS, SECONDS, CONNECTIONS = 12, 1, 16
QUIET = ROUNDS // 4
"""What else the machine does only takes requests away, more in some rounds than the differences sought: the third
best of twelve rounds is compared. Direct is measured twice, to show what is left of that; medians stand beside."""
NFTABLES_SERVICES = 10_000
SERVER, CLIENT = "10.9.0.1", "10.9.0.2"
PORT, ADDRESS = 8080, "10.96.0.1"
GOAL = 3.0
"""Per cent of the direct way's requests that may be lost: at least 0.97 of them."""
TOOLS = ("wrk", "nginx", "nft", "nsenter")

# /run/netns is covered in this mount namespace alone: what is made there goes with it.
NETWORK = f"""
mkdir -p /run/netns && mount -t tmpfs none /run/netns
ip netns add server && ip netns add client
ip link add server0 netns server type veth peer name client0 netns client
ip -n server addr add {SERVER}/24 dev server0 && ip -n client addr add {CLIENT}/24 dev client0
for n in server client; do ip -n $n link set lo up; ip -n $n link set ${{n}}0 up; ip netns exec $n sh -ec '
  echo 1024 65000 > /proc/sys/net/ipv4/ip_local_port_range
  echo 1 > /proc/sys/net/ipv4/tcp_tw_reuse
  echo 50 > /proc/sys/net/ipv4/tcp_max_tw_buckets'; done
ip -n client route add default via {SERVER}
"""
NO_NETWORK = "ip netns delete server; ip netns delete client; umount /run/netns"

NGINX = """
worker_processes 1; daemon off; pid %(scratch)s/pid; error_log %(scratch)s/errors crit;
events { worker_connections 4096; }
http { access_log off; keepalive_timeout 0; server { listen %(server)s:%(port)s; location / { return 200 "ok\\n"; } } }
"""

KUBE_PROXY = """
table ip kube-proxy {
  set cluster-ips { type ipv4_addr; elements = { %(addresses)s } }
  set nodeport-ips { type ipv4_addr; elements = { %(client)s } }
  map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  map service-nodeports { type inet_proto . inet_service : verdict; }
  map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
  map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  chain mark-for-masquerade {
    meta mark set meta mark or 0x4000
  }
  chain masquerading {
    meta mark and 0x4000 == 0 return
    meta mark set meta mark xor 0x4000
    masquerade fully-random
  }
  chain endpoint-web {
    ip saddr %(server)s jump mark-for-masquerade
    meta l4proto tcp dnat to %(server)s:%(port)d
  }
  chain service-web {
    ip daddr %(address)s tcp dport 80 ip saddr != 10.0.0.0/8 jump mark-for-masquerade
    numgen random mod 1 vmap { 0 : goto endpoint-web }
  }
  chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
    ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
  }
  chain service-endpoints-check {
    ip daddr . meta l4proto . th dport vmap @no-endpoint-services
  }
  chain firewall-check {
    ip daddr . meta l4proto . th dport vmap @firewall-ips
  }
  chain cluster-ips-check {
    ip daddr @cluster-ips reject
  }
  chain filter-output {
    type filter hook output priority 0
    ct state new jump service-endpoints-check
    ct state new jump firewall-check
  }
  chain filter-output-post-dnat {
    type filter hook output priority -90
    ct state new jump cluster-ips-check
  }
  chain nat-output {
    type nat hook output priority -100
    jump services
  }
  chain nat-postrouting {
    type nat hook postrouting priority 100
    jump masquerading
  }
}
"""


def measure(report: Report, balancer: Balancer) -> None:
    """All figures of this part; `balancer` is filled already."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        raise RuntimeError(f"needs {', '.join(missing)}")
    report.section(
        "requests",
        f"wrk, {CONNECTIONS} connections at a time, each for one request, to nginx in another namespace"
        f" (number {QUIET} of {ROUNDS} rounds, interleaved)",
    )
    balancer.add("web", ADDRESS, [f"{SERVER}:{PORT}"], affinity=0)
    found = _rounds(balancer.cgroup)
    quiet = {name: sorted(rates)[-QUIET] for name, rates in found.items()}
    middle = {name: statistics.median(rates) for name, rates in found.items()}
    for name, title, goal in (
        ("svcctl", f"svcctl, {balancer.filled:,} services", GOAL),
        ("nftables", f"nftables, {NFTABLES_SERVICES:,} services", None),
        ("again", "direct, the other time", None),
    ):
        rate, direct = quiet[name], quiet["direct"]
        report.add(
            Figure(
                f"{title}: fewer than direct",
                (1 - rate / direct) * 100,
                "%",
                f"{rate:,.0f} /s",
                f"direct {direct:,.0f} /s: {rate / direct:.3f} of it;"
                f" medians {middle[name]:,.0f} and {middle['direct']:,.0f}",
                goal=goal,
            )
        )


def _rounds(cgroup: str) -> dict[str, list[float]]:
    """Requests a second by way, of every round. Who is first changes; the rules are there for their own way only."""
    direct, through = f"http://{SERVER}:{PORT}/", f"http://{ADDRESS}/"
    rules = _rules(NFTABLES_SERVICES)
    ways: list[tuple[str, str, str | None, str]] = [
        ("direct", direct, None, ""),
        ("svcctl", through, cgroup, ""),
        ("again", direct, None, ""),
        ("nftables", through, None, rules),
    ]
    found: dict[str, list[float]] = {name: [] for name, *_ in ways}
    with _servers():
        for turn in range(ROUNDS):
            first = turn % len(ways)
            for name, url, group, ruleset in ways[first:] + ways[:first]:
                _nft(f"flush ruleset\n{ruleset}")
                found[name].append(_wrk(url, group))
    return found


def _rules(count: int) -> str:
    """The ruleset for that many services. All but one share their chains: what is looked up is the map."""
    others = [f"10.{97 + (n >> 16)}.{n >> 8 & 255}.{n & 255}" for n in range(count - 1)]
    text = KUBE_PROXY % {
        "addresses": ", ".join([ADDRESS, *others]),
        "client": CLIENT,
        "server": SERVER,
        "port": PORT,
        "address": ADDRESS,
    }
    elements = ", ".join(f"{each} . tcp . 80 : goto service-web" for each in (ADDRESS, *others))
    return f"{text}add element ip kube-proxy service-ips {{ {elements} }}\n"


def _nft(rules: str) -> None:
    command = ["nsenter", "--net=/run/netns/client", "nft", "-f", "-"]
    subprocess.run(command, input=rules, text=True, check=True)


def _wrk(url: str, cgroup: str | None = None) -> float:
    """Requests a second. Raises RuntimeError when some failed: then something else was measured."""
    join = f"echo $$ > {cgroup}/cgroup.procs && " if cgroup else ""
    command = f"wrk -t1 -c{CONNECTIONS} -d{SECONDS}s -H 'Connection: close' {url}"
    done = subprocess.run(
        ["sh", "-c", f"{join}exec nsenter --net=/run/netns/client {command}"],
        capture_output=True,
        text=True,
        check=True,
    )
    if "Socket errors" in done.stdout or "Non-2xx" in done.stdout or "Requests/sec:" not in done.stdout:
        raise RuntimeError(f"{command}: {done.stdout}")
    return float(done.stdout.split("Requests/sec:")[1].split()[0])


@contextlib.contextmanager
def _servers() -> Iterator[None]:
    """Two namespaces with a link between them, and nginx in one."""
    subprocess.run(["sh", "-ec", NETWORK], check=True)
    try:
        with tempfile.TemporaryDirectory(prefix="svcctl-bench-") as scratch:
            with open(f"{scratch}/nginx.conf", "w", encoding="ascii") as file:
                file.write(NGINX % {"scratch": scratch, "server": SERVER, "port": PORT})
            nginx = subprocess.Popen(
                ["nsenter", "--net=/run/netns/server", "nginx", "-c", file.name], stderr=subprocess.DEVNULL
            )
            try:
                _wait_for_server()
                yield
            finally:
                nginx.terminate()
                nginx.wait()
    finally:
        subprocess.run(["sh", "-c", NO_NETWORK], check=True)


def _wait_for_server() -> None:
    netns = Netns.open("/run/netns/client")
    with netns, netns.entered():
        for attempt in range(100):
            try:
                urllib.request.urlopen(f"http://{SERVER}:{PORT}/", timeout=1).close()
                return
            except OSError:
                if attempt == 99:
                    raise
                time.sleep(0.05)
