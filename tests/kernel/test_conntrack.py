"""conntrack: flows of real connections listed, chosen, flushed, and swept by gc."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from socket import AF_INET, AF_INET6

import pytest

from svcctl.maps import enums
from svcctl.maps.packet_codec import with_check
from svcctl.maps.packet_layouts import FLOW, FLOW_KEY, FlowKey, FlowValue
from svcctl.model.prefix import parse_address
from svcctl.state.place import Place
from svcctl.state.writer import lock_state
from tests.lib.balanced import VIP, VIP6
from tests.lib.pods import Pod, pods
from tests.lib.svc import assert_one_error, svc
from tests.lib.veths import wait
from tests.lib.world import World

SMALL = ("--max-flows", 5000, "--max-services", 64, "--max-backends", 64, "--max-sockets", 1000)


class Cluster:
    """Two pods behind `attach dev`, the second one the backend of two services."""

    def __init__(self, client: Pod, backend: Pod) -> None:
        self.client, self.backend = client, backend


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    svc("load", "--no-dispatcher")
    with pods(2) as (client, backend):
        svc("attach", "dev", "pod*", "--role", "workload", *SMALL)
        for name, port, protocol in (("web", 80, "tcp"), ("dns", 53, "udp")):
            svc(
                "service", "add", name, "--frontend", f"{VIP}:{port}/{protocol}",
                "--frontend", f"[{VIP6}]:{port}/{protocol}",
                "--backend", f"{backend.address}:8080", "--backend", f"[{backend.address6}]:8080",
            )  # fmt: skip
        yield Cluster(client, backend)


def listed(*words: object) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = svc("conntrack", *words, "-o", "json").json["conntrack"]
    return rows


def vip(family: int) -> str:
    return VIP6 if family == AF_INET6 else VIP


def place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def connected(stack: contextlib.ExitStack, cluster: Cluster, family: int) -> socket.socket:
    """An established connection through `web`."""
    listener = stack.enter_context(cluster.backend.listen(8080, "tcp", family))
    one = stack.enter_context(cluster.client.socket("tcp", family))
    one.connect((vip(family), 80))
    server = stack.enter_context(listener.accept()[0])
    one.sendall(b"?")
    assert server.recv(1) == b"?"
    return one


def asked(stack: contextlib.ExitStack, cluster: Cluster, family: int = AF_INET) -> socket.socket:
    """A socket that got an answer from `dns`."""
    server = stack.enter_context(cluster.backend.listen(8080, "udp", family))
    one = stack.enter_context(cluster.client.socket("udp", family))
    one.sendto(b"?", (vip(family), 53))
    _, peer = server.recvfrom(16)
    server.sendto(b"!", peer)
    assert one.recvfrom(16)[0] == b"!"
    return one


@pytest.mark.parametrize("family", [AF_INET, AF_INET6], ids=("v4", "v6"))
def test_flows_of_connections(cluster: Cluster, family: int) -> None:
    assert svc("conntrack").err == "no flow is remembered\n"
    assert svc("frontends").err == ""  # the balancer is attached nowhere, and need not be
    assert listed() == []
    client, backend = cluster.client.own(family), cluster.backend.own(family)
    with contextlib.ExitStack() as stack:
        tcp, udp = connected(stack, cluster, family), asked(stack, cluster, family)
        one, other = listed()
        assert {key: one[key] for key in one if key not in ("expires", "age", "idle")} == {
            "protocol": "tcp",
            "state": "established",
            "source": place(client, tcp.getsockname()[1]),
            "destination": place(vip(family), 80),
            "reply_source": place(backend, 8080),
            "reply_destination": place(client, tcp.getsockname()[1]),
            "service": "web",
            "flags": [],
        }
        assert 3000 < float(str(one["expires"])) <= 3600
        assert (other["protocol"], other["state"], other["service"]) == ("udp", "replied", "dns")
        assert other["source"] == place(client, udp.getsockname()[1])
        assert 0 < float(str(other["expires"])) <= 60
        assert [row["service"] for row in listed("--service", "web")] == ["web"]
        assert listed("--service", "none") == []
        assert [row["service"] for row in listed("--protocol", "udp")] == ["dns"]
        assert len(listed("--source", client)) == 2
        assert listed("--source", backend) == []
        assert len(listed("--destination", vip(family))) == 2
        assert len(listed("--backend", backend)) == 2
        assert listed("--backend", client) == []
        text = svc("conntrack", "-o", "wide").out.splitlines()
        assert text[0].split("  ")[0] == "PROTOCOL"
        assert len(text) == 3
        tcp.close()
        wait(lambda: [row["state"] for row in listed("--protocol", "tcp")] == ["client-closed"])
        svc("check")


@pytest.mark.parametrize("file_says", ["down", "draining", "active"])
def test_flows_of_backends_that_apply_sets_down(cluster: Cluster, tmp_path: Path, file_says: str) -> None:
    """Those of UDP go, as the packets' next backend is another one; TCP, and whoever drains, goes on."""
    with contextlib.ExitStack() as stack:
        tcp, udp = connected(stack, cluster, AF_INET), asked(stack, cluster)
        file = tmp_path / "state.json"
        document = svc("export", "-o", "json").json
        for service in document["services"]:
            service["backends"] = [
                {"address": f"{cluster.backend.address}:8080", "state": file_says},
                f"{cluster.client.address}:8081",
            ]
        file.write_text(json.dumps(document))
        ran = svc("apply", "-f", file)
        assert ("forgot 1 UDP flow of backends that left" in ran.err) == (file_says == "down")
        left = ["tcp"] if file_says == "down" else ["tcp", "udp"]
        assert [row["protocol"] for row in listed()] == left
        with cluster.client.listen(8081, "udp") as other:
            if file_says == "down":
                udp.sendto(b"?", (VIP, 53))
                assert other.recvfrom(16)[0] == b"?"
        tcp.sendall(b"!")
        assert "unchanged" in svc("apply", "-f", file).out
        assert [row["protocol"] for row in listed("--protocol", "tcp")] == ["tcp"]
        svc("check")


def test_flushing(cluster: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        one = connected(stack, cluster, AF_INET)
        asked(stack, cluster)
        assert_one_error(svc("conntrack", "flush", code=None), codes=(2,))
        assert_one_error(svc("conntrack", "--all", code=None), codes=(2,))
        assert_one_error(svc("conntrack", "empty", code=None), codes=(2,))
        assert svc("conntrack", "flush", "--service", "none").out == "unchanged 0 flows\n"
        assert svc("conntrack", "flush", "--protocol", "udp", "--dry-run").out == "would delete 1 flow\n"
        assert len(listed()) == 2
        assert svc("conntrack", "flush", "--protocol", "udp").out == "deleted 1 flow\n"
        assert [row["service"] for row in listed()] == ["web"]
        assert svc("conntrack", "flush", "--all").out == "deleted 1 flow\n"
        assert listed() == []
        one.settimeout(0.2)
        one.sendall(b"more")  # into the void, until it gives up
        with pytest.raises(TimeoutError):
            one.recv(1)
    svc("check")


@pytest.mark.parametrize("family", [AF_INET, AF_INET6], ids=("v4", "v6"))
def test_flushing_with_a_reset(cluster: Cluster, family: int) -> None:
    """TCP is told at its next packet, and its entry goes like any that was reset; UDP has nothing to be told."""
    with contextlib.ExitStack() as stack:
        one = connected(stack, cluster, family)
        asked(stack, cluster, family)
        assert_one_error(svc("conntrack", "--reset", code=None), codes=(2,))
        words = ("conntrack", "flush", "--all", "--reset")
        assert svc(*words, "--dry-run").out == "would delete 1 flow\nwould mark for a reset 1 flow\n"
        assert [row["flags"] for row in listed()] == [[], []]
        assert svc(*words).out == "deleted 1 flow\nmarked for a reset 1 flow\n"
        assert svc(*words).out == "unchanged 0 flows\n"
        assert [(row["state"], row["flags"]) for row in listed()] == [("established", ["reset"])]
        one.sendall(b"more")
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        assert [row["state"] for row in listed()] == ["reset"]
    assert svc("check").out == "no problems found\n"


def test_expired_flows_go_with_gc(cluster: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        connected(stack, cluster, AF_INET)
        asked(stack, cluster)
        svc("attach", "dev", "--timeout", "udp=0.001")
        wait(lambda: [row["state"] for row in listed("--protocol", "udp")] == ["expired"])
        assert svc("gc", "--dry-run").out == "would remove 1 flow (idle for longer than they may be)\n"
        assert svc("gc").out == "removed 1 flow (idle for longer than they may be)\n"
        assert [row["service"] for row in listed()] == ["web"]
        assert svc("gc").out == ""


def raw(key: FlowKey, value: FlowValue, name: str) -> None:
    """Write an entry by hand."""
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        writer.map(name).update(FLOW_KEY.pack(key), FLOW.pack(with_check(key, value)))


def test_halves_and_torn_entries(cluster: Cluster) -> None:
    """An entry whose partner was evicted is a flow of its own; one whose digest is wrong is none."""
    (_, client), (_, service), (_, backend) = map(
        parse_address, (cluster.client.address, VIP, cluster.backend.address)
    )
    now = time.monotonic_ns()
    key = FlowKey(backend, client, 8080, 40000, 6, bytes(3))
    value = FlowValue(service, client, 80, 40000, 1, 0, 9, 9, 0, now, now, 0, 0, 0, 0, 0, 0, 0)
    raw(key, value, "flows")
    (row,) = listed()
    assert (row["source"], row["destination"]) == (f"{cluster.client.address}:40000", f"{VIP}:80")
    assert (row["reply_source"], row["flags"], row["service"]) == (
        f"{cluster.backend.address}:8080", ["half"], "?9",
    )  # fmt: skip
    with lock_state(Place("/proc/thread-self/ns/net"), "test") as writer:
        writer.map("flows").update(FLOW_KEY.pack(key._replace(source_port=1)), FLOW.pack(value))
    assert len(listed()) == 1
    raw(key, value._replace(seen=8), "halfopen")  # it was moved
    assert len(listed()) == 1
    assert svc("conntrack", "flush", "--source", cluster.client.address).out == "deleted 1 flow\n"
    assert listed() == []


def test_without_a_packet_path(world: World) -> None:
    svc("load", "--no-dispatcher")
    ran = svc("conntrack", code=3)
    assert "svcctl attach dev" in ran.err
    assert svc("gc").out == ""


def test_flows_through_tunnels(cluster: Cluster) -> None:
    """What goes to another node is shown with its name, and found by its backend, which is not in the entry."""
    svc("nodes", "add", "b", "--address", "192.0.2.12")
    svc(
        "service",
        "add",
        "far",
        "--frontend",
        "192.0.2.80:80/tcp",
        "--kind",
        "external",
        "--backend",
        "10.9.9.9:80",
    )
    number = svc("nodes", "-o", "json").json["nodes"][0]["number"]
    (backend,) = (row["id"] for row in svc("backends", "far", "-o", "json").json["backends"])
    (service,) = (row["id"] for row in svc("services", "far", "-o", "json").json["services"])
    (_, client), (_, front), (_, away) = map(parse_address, ("198.51.100.1", "192.0.2.80", "198.51.100.2"))
    now = time.monotonic_ns()
    for port, source, to, kind in (
        (1, client, number, enums.FLOW_TUNNEL),
        (2, client, number, enums.FLOW_TUNNEL | enums.FLOW_DSR | enums.FLOW_ONE_SIDED | enums.FLOW_TABLE),
        (3, away, number + 1, enums.FLOW_TUNNEL),
        (4, client, 0, enums.FLOW_MASQUERADE),
    ):
        key = FlowKey(source, front, port, 80, 6, bytes(3))
        value = FlowValue(
            source, front, port, 80, kind, 0, service, backend, 0, now, now, 0, 0, 0, 0, 0, 0, 0, node=to
        )
        raw(key, value, "flows")
    found = {row["source"]: (row.get("node"), row["flags"]) for row in listed()}
    assert found == {
        "198.51.100.1:1": ("b", ["tunnel", "half"]),
        "198.51.100.1:2": ("b", ["one-sided", "tunnel", "dsr", "maglev", "half"]),
        "198.51.100.2:3": (f"?{number + 1}", ["tunnel", "half"]),
        "198.51.100.1:4": (None, ["masqueraded", "half"]),
    }
    assert {row["source"] for row in listed("--node", "b")} == {"198.51.100.1:1", "198.51.100.1:2"}
    assert len(listed("--backend", "10.9.9.9")) == 3
    assert svc("conntrack", "flush", "--node", "b").out == "deleted 2 flows\n"
    assert len(listed()) == 2
