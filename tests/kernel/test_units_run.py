"""What the units run, run: load, restore and save over a reboot, and metrics inside its sandbox.

There is no systemd here to run them: their command lines are run as they are written, and the parts of the
sandbox that could be in the way are put up by hand.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lib import stranger, units
from tests.lib.balanced import own_cgroup
from tests.lib.cli import clean_environment, is_written, process
from tests.lib.scrape import exporter

if TYPE_CHECKING:
    from tests.lib.world import World

PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1


@pytest.fixture
def host(world: World, tmp_path: Path) -> World:
    """A world whose /etc/group has the group svcctl and whose /var/lib/svcctl is empty."""
    group = tmp_path / "group"
    group.write_text(Path("/etc/group").read_text() + f"svcctl:x:{stranger.GROUP}:\n")
    world.sh(f"mount --bind {group} /etc/group")
    world.sh("mount -t tmpfs -o mode=0755 none /var/lib && mkdir -m 0750 /var/lib/svcctl")  # StateDirectory=
    return world


def run(unit: str, setting: str) -> None:
    done = units.run(unit, setting)
    assert done.returncode == 0, done.stderr


def bindings() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(process("bindings", "-o", "json").stdout)["bindings"]
    return found


def test_load_and_reload(host: World) -> None:
    run("svcctl-load.service", "ExecStart")
    assert os.stat(f"{host.state_dir}/meta").st_gid == stranger.GROUP
    run("svcctl-load.service", "ExecStart")
    run("svcctl-load.service", "ExecReload")


def test_bindings_survive_a_reboot(host: World) -> None:
    if not is_written("svcctl.cli.commands.save"):
        pytest.skip("save is not written yet")
    run("svcctl-load.service", "ExecStart")
    run("svcctl-restore.service", "ExecStart")  # nothing to restore is no failure
    assert process("bind", "web", "tcp", "192.0.2.0/24", "443").returncode == 0
    assert process("bind", "dns", "udp", "2001:db8::53", "53").returncode == 0
    before = bindings()
    run("svcctl-save.service", "ExecStart")
    assert process("bind", "late", "tcp", "192.0.2.1", "0").returncode == 0
    run("svcctl-restore.service", "ExecStop")
    assert process("unload", "--yes").returncode == 0  # as the reboot does

    run("svcctl-load.service", "ExecStart")
    assert bindings() == []
    run("svcctl-restore.service", "ExecStart")
    assert [one for one in bindings() if one["label"] != "late"] == before
    assert len(bindings()) == 3


def test_services_survive_a_reboot(host: World) -> None:
    """With the balancer attached by a drop-in of svcctl-load.service. Who asked for them is kept as well."""
    with own_cgroup() as path:

        def boot() -> None:
            run("svcctl-load.service", "ExecStart")
            assert process("attach", "cgroup", path, "--max-services", "64").returncode == 0

        boot()
        words = ("service", "add", "web", "--frontend", "10.96.0.1:80/tcp", "--backend", "10.1.0.1:80")
        assert process(*words).returncode == 0
        run(
            "svcctl-save.service", "ExecStart"
        )  # looks at the host's addresses for whether a backend is on it
        assert process("bind", "web", "tcp", "192.0.2.0/24", "443").returncode == 0
        before = process("export").stdout
        run("svcctl-restore.service", "ExecStop")
        assert process("unload", "--yes").returncode == 0
        boot()
        run("svcctl-restore.service", "ExecStart")
        assert process("export").stdout == before
        assert process("unload", "--yes").returncode == 0


def test_a_bad_file_fails_the_restore(host: World) -> None:
    if not is_written("svcctl.cli.commands.load_bindings"):
        pytest.skip("load-bindings is not written yet")
    run("svcctl-load.service", "ExecStart")
    Path("/var/lib/svcctl/state.json").write_text('{"bindings": [{"label": ""}]}')
    assert units.run("svcctl-restore.service", "ExecStart").returncode == 2


def test_many_bindings_are_restored(host: World) -> None:
    """So many that maps and program are swapped, which takes more capabilities than writing entries."""
    run("svcctl-load.service", "ExecStart")
    rows = [
        {"label": "many", "protocol": "tcp", "prefix": f"10.{n >> 8}.{n & 255}.0/24", "port": 80}
        for n in range(12_000)
    ]
    Path("/var/lib/svcctl/state.json").write_text(json.dumps({"schema": 1, "bindings": rows}))
    run("svcctl-restore.service", "ExecStart")
    assert len(bindings()) == 12_000
    assert os.stat(f"{host.state_dir}/bindings").st_gid == stranger.GROUP


def test_gc(host: World) -> None:
    if not is_written("svcctl.cli.commands.gc"):
        pytest.skip("gc is not written yet")
    run("svcctl-gc.service", "ExecStart")
    run("svcctl-load.service", "ExecStart")
    os.mkdir(f"{host.bpffs}/svcctl_tmp_1_1")
    run("svcctl-gc.service", "ExecStart")
    assert not os.path.exists(f"{host.bpffs}/svcctl_tmp_1_1")


def sandbox() -> None:
    """In the child: the mounts and limits of svcctl-metrics.service, then its user."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x00020000) == 0  # CLONE_NEWNS
    # ProtectKernelTunables=, ProtectProc=, ProcSubset=
    for words in ("-o remount,bind,ro /sys/fs/bpf", "-t proc -o hidepid=invisible,subset=pid proc /proc"):
        subprocess.run(["mount", *words.split()], check=True)
    stranger.drop(stranger.GROUP, cap_bpf=stranger.NEEDS_CAP_BPF)
    if not stranger.NEEDS_CAP_BPF:  # MemoryDenyWriteExecute=, from Linux 6.3 by prctl
        libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)


def test_metrics_in_its_sandbox(host: World) -> None:
    run("svcctl-load.service", "ExecStart")
    assert process("bind", "web", "tcp", "192.0.2.0/24", "443").returncode == 0
    with exporter(before=sandbox) as one:
        answer = one.scrape()
    assert answer.status == 200, answer.text
    assert 'label="web"' in answer.text


@pytest.mark.skipif(
    not (shutil.which("strace") and shutil.which("systemd-analyze")),
    reason="strace or systemd is not installed",
)
def test_metrics_makes_no_system_call_that_its_filter_forbids(host: World, tmp_path: Path) -> None:
    run("svcctl-load.service", "ExecStart")
    trace = tmp_path / "trace"
    done = subprocess.run(
        ["strace", "-f", "-o", str(trace), sys.executable, "-m", "svcctl", "metrics"],
        env=clean_environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with exporter() as one:
        tracer = subprocess.Popen(
            ["strace", "-f", "-o", f"{trace}.served", "-p", str(one.process.pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        assert one.scrape().status == 200
        assert one.scrape("/no").status == 404
        one.stop()
        tracer.communicate(timeout=60)
    made = set()
    for path in (trace, Path(f"{trace}.served")):
        for line in path.read_text().splitlines():
            call = line.split(None, 1)[1].partition("(")[0]
            if call.isidentifier():
                made.add(call)
    assert {"bpf", "accept4", "sendto"} <= made
    assert made <= units.allowed_calls("svcctl-metrics.service")
