"""`svcctl follow` with the real kubectl, real maps and real connections, against the tests' own API server."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from svcctl.bpf.map import Map
from svcctl.maps import layouts
from svcctl.maps.layouts import U32
from tests.lib import units
from tests.lib.api_server import (
    NODES,
    SERVICES,
    SLICES,
    ApiServer,
    api_server,
    endpoint_slice,
    node,
    refuse,
    service,
)
from tests.lib.balanced import VIP, Balanced
from tests.lib.cli import ROOT, clean_environment, process
from tests.lib.following import KUBECTL
from tests.lib.health import ask, health, wait_for
from tests.lib.svc import svc

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
PATIENCE = 60.0
BACKENDS = ["10.0.1.1", "10.0.1.2", "10.0.1.3"]
KUBERNETES = service("kubernetes", "10.96.0.1", 443)


@pytest.fixture
def api(balanced: Balanced) -> Iterator[ApiServer]:
    """A cluster of one service with a backend that is there, on node-a; the balancer is attached."""
    for address in BACKENDS:
        balanced.world.sh(f"ip addr add {address}/32 dev lo")
        balanced.farm.open(address, 8080, "tcp udp")
    with api_server() as server:
        server.put(node(), KUBERNETES, endpoint_slice("kubernetes", "192.0.2.1", port=6443))
        server.put(service("web", VIP), endpoint_slice("web", BACKENDS[0]))
        yield server


class Follow:
    """The command. `err` is what it has said so far."""

    def __init__(self, api: ApiServer, tmp_path: Path, *args: str) -> None:
        words = ["follow", "--node", "node-a", *args, "--", "--kubeconfig", str(api.kubeconfig(tmp_path))]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "svcctl", *words],
            env=clean_environment(),
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.err = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.err += line

    def wait_said(self, words: str) -> None:
        until(lambda: words in self.err, lambda: f"{words!r} in {self.err!r}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._thread.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@contextlib.contextmanager
def follow(api: ApiServer, tmp_path: Path, *args: str) -> Iterator[Follow]:
    one = Follow(api, tmp_path, *args)
    try:
        yield one
    finally:
        if one.process.returncode is None:
            code = one.end()
            assert code == 0, one.err


def until(true: Callable[[], object], what: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


def state() -> dict[str, list[str]]:
    """Backends of each service that may get connections."""
    rows = svc("services", "-o", "json").json["services"]
    return {row["name"]: row["frontends"] for row in rows}


def wait_for_services(*names: str) -> None:
    until(lambda: sorted(state()) == sorted(names), lambda: f"{sorted(state())}, not {sorted(names)}")


def generation(made: Balanced) -> int:
    with Map.open_pinned(f"{made.state_dir}/meta", read_only=True) as meta:
        return layouts.META.unpack(meta.lookup(U32.pack(0)) or b"").generation


WEB, MASTER = "default/web:web/tcp", "default/kubernetes:web/tcp"


def names() -> list[str]:
    return sorted(state())


def wait_taken(made: Balanced, *expected: str) -> None:
    """Until connections to the service go to these backends, and to no other."""
    wanted = {f"{address}:8080" for address in expected}

    def found() -> set[str]:
        with contextlib.suppress(OSError):
            return set(made.ask_often(12, VIP, 80))
        return set()

    until(lambda: found() == wanted, lambda: f"{found()}, not {wanted}")


def test_a_cluster_is_followed(balanced: Balanced, api: ApiServer, tmp_path: Path) -> None:
    with follow(api, tmp_path) as one:
        wait_taken(balanced, BACKENDS[0])
        assert names() == [MASTER, WEB]
        api.put(endpoint_slice("web", *BACKENDS[:2]))
        wait_taken(balanced, *BACKENDS[:2])
        api.put(endpoint_slice("web", BACKENDS[2]))
        wait_taken(balanced, BACKENDS[2])
        api.put(service("other", "10.96.0.11"))
        until(lambda: len(names()) == 3, lambda: one.err)
        api.delete("Service", "other", "default")
        until(lambda: len(names()) == 2, lambda: one.err)
        assert "applied: 2 created" in one.err
    # What serves does not need it.
    assert balanced.ask(VIP, 80) == f"{BACKENDS[2]}:8080"


def test_after_a_restart_what_has_gone_is_removed(balanced: Balanced, api: ApiServer, tmp_path: Path) -> None:
    balanced.add("mine", "10.96.9.9:80/tcp")
    api.put(service("other", "10.96.0.11"))
    with follow(api, tmp_path) as one:
        until(lambda: len(names()) == 4, lambda: one.err)
        one.process.kill()
        one.process.wait()
        one.end()
    api.delete("Service", "other", "default")
    before = generation(balanced)
    with follow(api, tmp_path) as one:
        until(lambda: len(names()) == 3, lambda: one.err)
        assert "mine" in names(), "what others made stays"
        one.wait_said("applied: 0 created, 0 changed, 1 deleted")
        assert generation(balanced) == before + 2


def svc_follow_once(api: ApiServer, tmp_path: Path, *args: str, code: int = 0) -> str:
    config = str(api.kubeconfig(tmp_path))
    done = process("follow", "--once", "--node", "node-a", *args, "--", "--kubeconfig", config)
    assert done.returncode == code, done.stderr
    return str(done.stderr).replace("applied: 2 created, 0 changed, 0 deleted\n", "")


def test_requests_go_on_while_the_api_server_does_not(
    balanced: Balanced, api: ApiServer, tmp_path: Path
) -> None:
    with follow(api, tmp_path) as one:
        wait_taken(balanced, BACKENDS[0])
        api.wait_for_watches()
        for resource in (SERVICES, SLICES, NODES):
            api.fail("list", resource, refuse(500, "InternalError"))
        with api.changed:
            api.put(endpoint_slice("web", *BACKENDS[1:]))
            api.compact()
            api.end_watches(abrupt=True)
        wait_taken(balanced, *BACKENDS[1:])
        until(lambda: "(InternalError)" in one.err, lambda: one.err)
        assert MASTER in names()


def test_an_input_that_may_be_an_outage_changes_nothing(
    balanced: Balanced, api: ApiServer, tmp_path: Path
) -> None:
    with follow(api, tmp_path) as one:
        wait_taken(balanced, BACKENDS[0])
        api.wait_for_watches()
        for name in ("web-abc", "kubernetes-abc"):
            api.delete("EndpointSlice", name, "default")
        one.wait_said("not one EndpointSlice")
        assert balanced.ask(VIP, 80) == f"{BACKENDS[0]}:8080"
        api.put(endpoint_slice("kubernetes", "192.0.2.1", port=6443), endpoint_slice("web", BACKENDS[1]))
        wait_taken(balanced, BACKENDS[1])
        one.wait_said("apply: works again")
    assert "Forbidden" not in one.err


def test_a_lock_that_is_held_is_waited_for(balanced: Balanced, api: ApiServer, tmp_path: Path) -> None:
    with follow(api, tmp_path, "--lock-timeout", "0") as one:
        wait_taken(balanced, BACKENDS[0])
        api.wait_for_watches()
        holder = subprocess.Popen(
            ["flock", balanced.state_dir, "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        try:
            until(
                lambda: process("service", "delete", "x", "--lock-timeout", "0").returncode == 9, lambda: ""
            )
            api.put(endpoint_slice("web", BACKENDS[1]))
            one.wait_said("; trying again in")
        finally:
            assert holder.stdin is not None
            holder.stdin.close()
            holder.wait(PATIENCE)
        wait_taken(balanced, BACKENDS[1])
        one.wait_said("apply: works again")


def test_new_addresses_serve_node_ports(balanced: Balanced, api: ApiServer, tmp_path: Path) -> None:
    web = service("web", VIP, type="NodePort")
    web["spec"]["ports"][0]["nodePort"] = 30080
    api.put(web)
    with follow(api, tmp_path) as one:
        wait_taken(balanced, BACKENDS[0])
        balanced.world.sh("ip addr add 192.0.2.77/32 dev lo")
        one.wait_said("node addresses: 1 changed")
        assert balanced.ask("192.0.2.77", 30080) == f"{BACKENDS[0]}:8080"
        balanced.world.sh("ip addr del 192.0.2.77/32 dev lo")
        until(lambda: one.err.count("node addresses: 1 changed") == 2, lambda: one.err)
    assert svc("check").code == 0


def test_new_interfaces_are_attached_as_the_rules_say(
    balanced: Balanced, api: ApiServer, tmp_path: Path
) -> None:
    svc("attach", "dev", "work*", "--role", "workload", "--max-flows", 4096)
    with follow(api, tmp_path) as one:
        wait_taken(balanced, BACKENDS[0])
        balanced.world.sh("ip link add work0 type veth peer name other0")
        one.wait_said("attached work0")
        assert "other0" not in one.err
        balanced.world.sh("ip link del work0; ip link add work1 type veth peer name other0")
        one.wait_said("attached work1")
    assert svc("check").code == 0
    assert "detached work1" in svc("detach", "dev", "--all").out


def test_health_as_the_cluster_says(balanced: Balanced, api: ApiServer, tmp_path: Path) -> None:
    ports: dict[str, Any] = {"healthCheckNodePort": 30999, "externalTrafficPolicy": "Local"}
    api.put(service("web", VIP, type="LoadBalancer", **ports))
    with follow(api, tmp_path), health():
        wait_for(200, 30999)
        assert ask(30999).json["service"] == {"namespace": "default", "name": "web"}
        assert ask(10256, "/healthz").json["nodeEligible"] is True
        api.put(endpoint_slice("web", BACKENDS[0], node="node-b"))
        wait_for(503, 30999)
        api.put(node(taints=[{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]))
        wait_for(503, 10256, "/healthz")
        assert ask(10256, "/livez").status == 200
        api.put(node())
        wait_for(200, 10256, "/healthz")
        api.put(service("web", VIP))
        wait_for(0, 30999)


def test_an_apply_that_fails_for_long_shows(balanced: Balanced, api: ApiServer, tmp_path: Path) -> None:
    with follow(api, tmp_path), health("--late", "0"):
        wait_taken(balanced, BACKENDS[0])
        wait_for(200, 10256, "/livez")
        for name in ("web-abc", "kubernetes-abc"):
            api.delete("EndpointSlice", name, "default")
        wait_for(503, 10256, "/livez")
        api.put(endpoint_slice("web", BACKENDS[0]))
        wait_for(200, 10256, "/livez")


def test_once(balanced: Balanced, api: ApiServer, tmp_path: Path) -> None:
    """Of the same cluster a second one writes nothing; what it came to is in the metrics file."""
    begin = generation(balanced)
    path = tmp_path / "svcctl.prom"
    words = ("follow", "--once", "--node", "node-a", "--dry-run", "--metrics-file", str(path), "-o", "json")
    done = process(*words, "--", "--kubeconfig", str(api.kubeconfig(tmp_path)))
    assert (done.returncode, done.stderr) == (0, "would apply: 2 created, 0 changed, 0 deleted\n")
    plan = json.loads(done.stdout)
    assert plan["dry_run"] is True
    assert [(one["name"], one["action"]) for one in plan["changes"]] == [
        (MASTER, "created"),
        (WEB, "created"),
    ]
    assert (generation(balanced), names(), path.exists()) == (begin, [], False)
    assert svc_follow_once(api, tmp_path, "--metrics-file", str(path)) == ""
    samples = {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(path.read_text())
        for one in family.samples
    }
    assert samples["kubeproxy_sync_proxy_rules_duration_seconds_count",] == 1
    assert abs(samples["kubeproxy_sync_proxy_rules_last_timestamp_seconds",] - time.time()) < 600
    assert samples["svcctl_follow_objects", "services"] == 2
    assert samples["svcctl_follow_up", "nodes"] == 1
    assert path.stat().st_mode & 0o777 == 0o644
    begin = generation(balanced)
    assert svc_follow_once(api, tmp_path) == ""
    assert generation(balanced) == begin
    err = svc_follow_once(api, tmp_path, "--metrics-file", "/no/such/directory/file")
    assert err == "svcctl: warning: metrics file /no/such/directory/file: No such file or directory\n"


def test_once_says_why_not(balanced: Balanced, api: ApiServer, tmp_path: Path) -> None:
    api.delete("EndpointSlice", "web-abc", "default")
    api.delete("EndpointSlice", "kubernetes-abc", "default")
    assert "not one EndpointSlice" in svc_follow_once(api, tmp_path, code=1)
    assert svc_follow_once(api, tmp_path, "--force") == ""
    assert names() == [MASTER, WEB]


def test_own_node_alone(balanced: Balanced, api: ApiServer, tmp_path: Path) -> None:
    """Its name as people write it; a name that no node has changes nothing."""
    err = svc_follow_once(api, tmp_path, "--own-node", "--node", "wrong", code=1)
    assert "no Node is called wrong: nothing would be local" in err
    assert names() == []
    assert svc_follow_once(api, tmp_path, "--own-node", "--node", " Node-A") == ""
    assert names() == [MASTER, WEB]


def test_what_is_missing_is_said_at_once(balanced: Balanced, api: ApiServer, tmp_path: Path) -> None:
    done = process("follow", "--kubectl", "/no/such/kubectl")
    assert (done.returncode, "/no/such/kubectl: not found" in done.stderr) == (5, True)
    svc("unload", "--yes")
    assert process("follow").returncode == 3
    svc("load", "--no-dispatcher")
    done = process("follow")
    assert (done.returncode, "svcctl attach cgroup" in done.stderr) == (3, True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals(balanced: Balanced, api: ApiServer, tmp_path: Path, number: int, code: int) -> None:
    with follow(api, tmp_path) as one:
        wait_taken(balanced, BACKENDS[0])
        assert one.end(number) == code


def capabilities() -> dict[str, list[str]]:
    """What the unit and the DaemonSet leave to the follower."""
    (unit,) = units.settings("svcctl-follow.service", "CapabilityBoundingSet")
    (pods,) = [
        one
        for one in yaml.safe_load_all((ROOT / "deploy/kubernetes/daemonset.yaml").read_text())
        if one["kind"] == "DaemonSet"
    ]
    (follower,) = [one for one in pods["spec"]["template"]["spec"]["containers"] if one["name"] == "follow"]
    return {
        "unit": [name.removeprefix("CAP_") for name in unit.split()],
        "DaemonSet": follower["securityContext"]["capabilities"]["add"],
    }


@pytest.mark.parametrize("where", ["unit", "DaemonSet"])
def test_with_the_capabilities_that_are_left(
    balanced: Balanced, api: ApiServer, tmp_path: Path, where: str
) -> None:
    """Also for what comes after a killed command."""
    with Map.open_pinned(f"{balanced.state_dir}/meta") as meta:
        record = layouts.META.unpack(meta.lookup(U32.pack(0)) or b"")
        meta.update(U32.pack(0), layouts.META.pack(record._replace(generation=record.generation | 1)))
    kept = ",".join(f"+{name.lower()}" for name in capabilities()[where])
    words = ["setpriv", f"--bounding-set=-all,{kept}", "--no-new-privs", sys.executable, "-m", "svcctl"]
    words += ["follow", "--once", "--node", "node-a", "--", "--kubeconfig", str(api.kubeconfig(tmp_path))]
    done = subprocess.run(
        words,
        env=clean_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert names() == [MASTER, WEB]
