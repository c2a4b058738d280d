"""deploy/etcd/svcctl-etcd with a real etcd: a pipe from whatever can be watched into `svcctl apply`."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lib.balanced import Balanced
from tests.lib.cli import ROOT, clean_environment
from tests.lib.svc import svc

pytestmark = pytest.mark.skipif(
    not (shutil.which("etcd") and shutil.which("etcdctl")), reason="etcd and etcdctl are not installed"
)
SCRIPT = ROOT / "deploy" / "etcd" / "svcctl-etcd"
PATIENCE = 60.0


def ended(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)


@contextlib.contextmanager
def etcd(directory: Path) -> Iterator[None]:
    """On 127.0.0.1:2379, which is this world's own."""
    log = (directory / "etcd.log").open("wb")
    words = ["etcd", "--data-dir", str(directory / "etcd"), "--unsafe-no-fsync"]
    process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        until(lambda: etcdctl("endpoint", "health", check=False) == 0)
        yield
    finally:
        ended(process)
        log.close()


def etcdctl(*words: str, check: bool = True) -> int:
    environ = clean_environment() | {"ETCDCTL_API": "3"}
    done = subprocess.run(
        ["etcdctl", *words], env=environ, capture_output=True, check=False, timeout=PATIENCE
    )
    assert not check or done.returncode == 0, done.stderr
    return done.returncode


def put(name: str, **fields: Any) -> None:
    service = {"name": name, **fields}
    etcdctl("put", f"/svcctl/services/{name}", json.dumps({"version": 1, "services": [service]}))


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def services() -> dict[str, int]:
    rows = svc("services", "-o", "json").json["services"]
    return {row["name"]: row["backends"]["all"] for row in rows}


def test_a_prefix_is_followed(balanced: Balanced, tmp_path: Path) -> None:
    balanced.add("mine", "10.96.9.9:80/tcp")
    environ = clean_environment() | {"SVCCTL": f"{sys.executable} -m svcctl", "TMPDIR": str(tmp_path)}
    with etcd(tmp_path):
        put("web", frontends=["10.96.0.10:80/tcp"], backends=["10.1.0.1:8080"])
        script = subprocess.Popen(["sh", str(SCRIPT)], env=environ, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            until(lambda: services() == {"mine": 0, "web": 1})
            put("dns", frontends=["10.96.0.53:53/udp"], backends=["10.1.0.9:53"])
            put("web", frontends=["10.96.0.10:80/tcp"], backends=["10.1.0.1:8080", "10.1.0.2:8080"])
            until(lambda: services() == {"mine": 0, "web": 2, "dns": 1})
            etcdctl("del", "/svcctl/services/dns")
            until(lambda: services() == {"mine": 0, "web": 2})
            etcdctl("del", "/svcctl/services/web")  # the last one: it might be an outage
            put("late", frontends=["10.96.0.20:80/tcp"])
            until(lambda: services() == {"mine": 0, "late": 0})
        finally:
            ended(script)
    assert script.returncode == 0
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("tmp.")] == []
