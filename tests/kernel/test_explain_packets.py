"""explain --from: what is said of a workload's packets is what becomes of them."""

from __future__ import annotations

from typing import Any

from tests.lib.pods import pods
from tests.lib.svc import svc
from tests.lib.world import World

SMALL = ("--max-flows", 20000, "--max-services", 64, "--max-backends", 64, "--max-sockets", 1000)


def explained(endpoint: str, source: str) -> dict[str, Any]:
    (found,) = svc("explain", endpoint, "--from", source, "-o", "json").json["explain"]
    packets: dict[str, Any] = found["packets"]
    return packets


def test_packets_of_a_client(world: World) -> None:
    """By its interface, source ranges, internal policy and affinity."""
    svc("load", "--no-dispatcher")
    with pods(3) as (client, first, second):
        svc("attach", "dev", "pod1", "--role", "workload", *SMALL)
        backends = tuple(f"{pod.address}:8080" for pod in (first, second))
        svc("service", "add", "web", "--frontend", "10.96.0.1:80/tcp", "--backend", backends[0], "--block")
        found = explained("10.96.0.1:80/tcp", client.address)
        assert (found["verdict"], found["interface"], found["service"]) == ("serve", "pod1", "web")
        assert found["backends"] == [{"backend": backends[0], "share": 1.0}]
        assert explained("10.96.0.1:81/tcp", client.address)["verdict"] == "refuse"
        assert explained("10.96.0.1:80/tcp", first.address)["verdict"] == "pass"
        text = svc("explain", "10.96.0.1:80/tcp", "--from", client.address).out
        assert f"packets     by pod1 go to one of {backends[0]}=100%" in text

        svc("service", "set", "web", "--affinity", 600)
        svc("backend", "add", "web", backends[1])
        assert explained("10.96.0.1:80/tcp", client.address).get("affine") is None
        with first.listen(8080) as one, second.listen(8080) as other, client.socket() as stream:
            stream.connect(("10.96.0.1", 80))
            one.setblocking(False)
            try:
                one.accept()[0].close()
                served = backends[0]
            except BlockingIOError:
                other.accept()[0].close()
                served = backends[1]
        found = explained("10.96.0.1:80/tcp", client.address)
        assert found["affine"] == served
        assert 0 < found["remaining"] <= 600
        svc("backend", "drain", "web", served)
        assert explained("10.96.0.1:80/tcp", client.address).get("affine") is None

        svc("service", "add", "near", "--frontend", "10.96.0.2:80/tcp", "--backend", backends[0])
        svc("service", "set", "near", "--internal-policy", "local")
        found = explained("10.96.0.2:80/tcp", client.address)
        assert (found["verdict"], found["set"], found.get("backends", [])) == ("drop", "local", [])
        assert (
            svc("explain", "10.96.0.3:80/tcp", "--from", client.address, "-o", "json")
            .json["explain"][0]
            .get("packets")
            is None
        )


def test_source_ranges(world: World) -> None:
    """Which one admits, or that none does: what packets meet."""
    svc("load", "--no-dispatcher")
    with pods(2) as (client, server), server.listen(8080) as listener:
        svc("attach", "dev", "pod1", "--role", "workload", *SMALL)
        add = ("service", "add", "web", "--frontend", "203.0.113.1:80/tcp", "--kind", "load-balancer")
        backend = f"{server.address}:8080"
        svc(*add, "--backend", backend, "--source", "198.51.100.0/24", "--source", "2001:db8::/32")
        found = explained("203.0.113.1:80/tcp", client.address)
        assert (found["verdict"], found.get("admitted_by")) == ("drop", None)
        text = svc("explain", "203.0.113.1:80/tcp", "--from", client.address).out
        assert f"sources     {client.address} is not admitted: it is in none of 198.51.100.0/24\n" in text
        assert "not chosen" not in text

        wide = f"{client.address.rpartition('.')[0]}.0/24"
        svc("service", "delete", "web")
        svc(*add, "--backend", backend, "--source", wide, "--source", "0.0.0.0/1", "--source", "128.0.0.0/1")
        found = explained("203.0.113.1:80/tcp", client.address)
        assert (found["verdict"], found["admitted_by"]) == ("serve", wide)
        text = svc("explain", "203.0.113.1:80/tcp", "--from", client.address).out
        assert f"packets     by pod1 go to one of {backend}=100%; {wide} admits the client\n" in text
        assert f"sources     {client.address} is admitted by {wide}\n" in text
        with client.socket() as stream:
            stream.connect(("203.0.113.1", 80))
            listener.accept()[0].close()
        text = svc("explain", "203.0.113.1:80/tcp").out
        assert f"sources     admitted are 0.0.0.0/1, {wide}, 128.0.0.0/1\n" in text
        (whole,) = svc("explain", "203.0.113.1:80/tcp", "-o", "json").json["explain"]
        assert whole["outgoing"]["sources"] == ["0.0.0.0/1", wide, "128.0.0.0/1"]
