"""What attaches interfaces by itself: the CNI plugin, the udev rule's unit, the networkd-dispatcher hook."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lib import units
from tests.lib.svc import ROOT, process_env, svc
from tests.lib.veths import pod
from tests.lib.world import World

CNI = ROOT / "deploy" / "cni" / "svcctl-cni"
DISPATCHER = ROOT / "deploy" / "networkd-dispatcher"
SMALL = ("--max-flows", 5000, "--max-services", 64, "--max-backends", 64, "--max-sockets", 1000)


@pytest.fixture
def command(tmp_path: Path) -> str:
    """A svcctl to be found by its path."""
    path = tmp_path / "svcctl"
    path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-m", "svcctl"])} "$@"\n')
    path.chmod(0o755)
    return str(path)


def cni(call: str, config: object, expect: int = 0) -> Any:
    """One call of the plugin; what it prints."""
    done = subprocess.run(
        [sys.executable, "-I", str(CNI)],
        input=config if isinstance(config, str) else json.dumps(config),
        text=True,
        capture_output=True,
        env=process_env() | {"CNI_COMMAND": call, "CNI_IFNAME": "eth0", "CNI_CONTAINERID": "one"},
        check=False,
        timeout=120,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout) if done.stdout else None


def result(*names: str) -> dict[str, Any]:
    """What the plugin before made: these interfaces of the host, and the container's end."""
    found = [{"name": name, "mac": "02:00:00:00:00:01"} for name in names]
    return {
        "cniVersion": "1.0.0",
        "interfaces": [*found, {"name": "eth0", "sandbox": "/proc/1/ns/net"}],
        "ips": [{"address": "10.244.1.2/24", "interface": len(found)}],
    }


def attached() -> dict[str, str]:
    """Interface -> role."""
    rows = svc("attachments", "-o", "json").json["attachments"]
    return {row["interface"]: row["role"] for row in rows if row["kind"] == "dev"}


def prepared(world: World) -> None:
    """A state with the packet path's maps, small ones."""
    svc("load", "--no-dispatcher")
    svc("attach", "dev", "rule*", "--role", "workload", *SMALL)


def test_a_container_comes_and_goes(world: World, command: str) -> None:
    prepared(world)
    with pod("veth1"):
        config = {"cniVersion": "1.0.0", "name": "pods", "type": "svcctl-cni", "command": command}
        before = result("veth1")
        assert cni("ADD", config | {"prevResult": before}) == before
        assert attached() == {"veth1": "workload"}
        assert cni("CHECK", config | {"prevResult": before}) is None
        assert cni("ADD", config | {"prevResult": before}) == before  # again
        assert cni("DEL", config | {"prevResult": before}) is None
        assert attached() == {}
        assert cni("DEL", config | {"prevResult": before}) is None
        assert cni("DEL", config) is None
        named = config | {"role": "host", "interfaces": ["veth1"], "prevResult": result("gone")}
        assert cni("ADD", named) == result("gone")
        assert attached() == {"veth1": "host"}


def test_what_a_runtime_is_told(world: World, command: str) -> None:
    assert "1.0.0" in cni("VERSION", "")["supportedVersions"]
    config = {"cniVersion": "0.4.0", "name": "pods", "type": "svcctl-cni", "command": command}
    for call, given, code, text in (
        ("ADD", "nonsense", 7, "configuration"),
        ("ADD", "[]", 7, "configuration"),
        ("ADD", config, 7, "behind the plugin"),
        ("ADD", config | {"prevResult": {}}, 11, "no interface"),
        ("ADD", config | {"prevResult": result("veth1")}, 11, "veth1 failed"),  # nothing is loaded
        ("ADD", config | {"prevResult": result("x"), "command": "/none/svcctl"}, 11, "cannot be run"),
        ("WHAT", config, 4, "WHAT"),
    ):
        answer = cni(call, given, expect=1)
        assert (answer["code"], text in answer["msg"]) == (code, True), answer
    assert "no state" in cni("ADD", config | {"prevResult": result("veth1")}, expect=1)["details"]
    for call in ("DEL", "GC", "STATUS"):
        assert cni(call, config | {"prevResult": result("veth1")}) is None


def test_the_example_is_one() -> None:
    text = json.loads((ROOT / "deploy/cni/example-10-pods.conflist").read_text())
    assert text["plugins"][-1]["type"] == CNI.name


def hook(command: str) -> int:
    """Run the dispatcher's hook; its exit code."""
    path = f"{os.path.dirname(command)}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", str(DISPATCHER / "routable.d" / "50-svcctl")],
        env=process_env() | {"PATH": path, "IFACE": "veth1", "OperationalState": "routable"},
        check=False,
        timeout=120,
    )
    return done.returncode


def test_new_interfaces_by_a_hook(world: World, command: str) -> None:
    assert hook(command) == 0  # not loaded
    prepared(world)
    with pod("rule1"):
        assert attached() == {}
        assert hook(command) == 0
        assert attached() == {"rule1": "workload"}
        assert hook(command) == 0


def test_new_interfaces_by_the_unit_of_the_udev_rule(world: World) -> None:
    unit = "svcctl-attach@.service"
    assert units.run(unit, "ExecStart").returncode == 3
    assert units.settings(unit, "SuccessExitStatus") == ["3"]
    prepared(world)
    with pod("rule1"):
        done = units.run(unit, "ExecStart")
        assert done.returncode == 0, done.stderr
        assert attached() == {"rule1": "workload"}


def test_the_udev_rule() -> None:
    rules = ROOT / "deploy" / "udev" / "90-svcctl.rules"
    text = rules.read_text()
    assert 'ENV{SYSTEMD_WANTS}+="svcctl-attach@.service"' in text
    assert (ROOT / "deploy" / "systemd" / "svcctl-attach@.service").exists()
    if shutil.which("udevadm") is None:
        return
    done = subprocess.run(["udevadm", "verify", str(rules)], capture_output=True, text=True, check=False)
    if "Unknown command" not in done.stderr + done.stdout:  # systemd 254 has it
        assert done.returncode == 0, done.stdout + done.stderr
