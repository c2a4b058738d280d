"""The balancer that is down, detached, on a cgroup that is gone, or of a namespace that is: who says so, and what helps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from svcctl.bpf.link import Link
from svcctl.host.all_netns import Namespaces
from tests.lib.outgoing import SIZES, balancer, cgroup
from tests.lib.run import ok, svcctl
from tests.lib.svc import process_env
from tests.lib.until import lose_link, remove_cgroup
from tests.lib.world import World

FRONTEND = "10.96.0.10:80/tcp"


@pytest.fixture
def group() -> Iterator[str]:
    """The path of a cgroup with the balancer and a service, in a world of its own."""
    with balancer() as path:
        ok("service", "add", "web", "--frontend", FRONTEND, "--backend", "127.0.0.1:8081")
        yield path


def said(text: str) -> None:
    """Everybody who tells of services says it, and none claims that connections are served."""
    for words in (("nat",), ("frontends",), ("upgrade",)):
        assert text in ok(*words).err, words
    assert text in ok("status").out
    found = ok("explain", FRONTEND, "-o", "json").json["explain"][0]["outgoing"]
    assert (found["verdict"], found["attached"]) == ("pass", False)
    assert text in found["reason"]
    assert "result" in ok("explain", FRONTEND).out.splitlines()[-1]
    (line,) = (row for row in svcctl("doctor", "-o", "json").json["doctor"] if row["name"] == "balancer")
    assert line["status"] != "ok"


def test_every_way_to_be_down(group: str) -> None:
    ok("detach", "cgroup")
    said("the balancer is not attached")
    ok("attach", "cgroup", group)
    assert ok("nat").err == ""
    path = ok("status", "-o", "name").out.strip()
    with Link.open_pinned(f"{path}/link_connect4") as link:
        link.detach()
    said("hooks of the balancer are down: connect4")
    ok("check", "--repair")
    lose_link(f"{path}/link_recvmsg4")
    assert "recvmsg4" in ok("nat").err
    found = ok("explain", FRONTEND, "-o", "json").json["explain"][0]["outgoing"]
    assert found["verdict"] == "serve"
    assert "recvmsg4" in found["fault"]
    ok("attach", "cgroup", group)
    assert ok("nat").err == ""


def test_a_cgroup_that_is_gone(group: str) -> None:
    """Named by its hooks, and another attach begins anew."""
    remove_cgroup(group)
    said("cgroup was removed")
    assert "(gone)" in ok("attachments").out
    assert "connect4 is recorded on cgroup" in svcctl("check").out
    with cgroup() as other:
        ok("attach", "cgroup", other)
        assert ok("check").code == 0
        assert ok("nat").err == ""
        ok("detach", "cgroup")
    os.mkdir(group)


def settings() -> object:
    """What `status` says of them."""
    value = ok("status", "-o", "json").json["status"][0]["balancer"]
    return value["sockets"], value["udp"], value["udp_affinity"]


def test_settings_end_with_the_attachment(group: str) -> None:
    done = ok("attach", "cgroup", group, "--exclude-udp", "--udp-affinity", "30")
    assert "(udp served -> excluded, udp-affinity none -> 30s)" in done.out
    assert settings() == ("all", False, 30)
    assert "sockets all, udp excluded, udp-affinity 30s" in ok("attachments", "-o", "wide").out
    assert "udp excluded" in ok("status").out
    assert ok("attach", "cgroup", group).out.startswith("unchanged")
    assert settings() == ("all", False, 30)
    ok("attach", "cgroup", group, "--udp-affinity", "0")
    assert settings() == ("all", False, 0)
    ok("detach", "cgroup")
    assert "(udp excluded -> served)" in ok("attach", "cgroup", group).out
    assert settings() == ("all", True, 0)
    assert len(ok("attachments", "-o", "json").json["attachments"]) == 9 + 1


def test_a_dead_namespace_without_a_dispatcher(world: World) -> None:
    """Its balancer goes on: a conflict names the directory and what removes it, and gc does."""
    if not Namespaces().complete:
        pytest.skip("not every process of this host can be looked at")
    with cgroup() as path:
        before = set(os.listdir(world.bpffs))
        svcctl_words = f"{sys.executable} -m svcctl"
        words = (
            f"{svcctl_words} load --no-dispatcher && {svcctl_words} attach cgroup {path} {' '.join(SIZES)}"
        )
        subprocess.run(["unshare", "-n", "sh", "-c", words], check=True, env=process_env(), timeout=60)
        (name,) = set(os.listdir(world.bpffs)) - before
        # Ours lives: it is told from the dead one.
        ok("load", "--no-dispatcher")
        states = {row["path"]: row["state"] for row in ok("status", "--all", "-o", "json").json["status"]}
        assert states == {f"{world.bpffs}/{name}": "dead", world.state_dir: "own"}
        refused = svcctl("attach", "cgroup", path)
        assert refused.code == 6
        assert f"its state is {world.bpffs}/{name}" in refused.err
        assert "'svcctl gc' removes it" in refused.err
        rows = ok("gc", "--dry-run", "-o", "json").json["changes"]
        assert [(row["kind"], row["name"]) for row in rows] == [("state", f"{world.bpffs}/{name}")]
        assert os.path.isdir(f"{world.bpffs}/{name}")
        ok("gc")
        assert not os.path.exists(f"{world.bpffs}/{name}")
        assert os.path.isdir(world.state_dir)
        ok("attach", "cgroup", path, *SIZES)
        ok("unload", "--yes")


def test_one_that_lives_is_named_with_its_namespace(world: World) -> None:
    with cgroup() as path:
        held = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; read x"], stdin=-1, stdout=-1)
        try:
            assert held.stdout is not None
            held.stdout.readline()
            theirs = ("--netns", f"/proc/{held.pid}/ns/net")
            ok(*theirs, "load", "--no-dispatcher")
            ok(*theirs, "attach", "cgroup", path, *SIZES)
            ok("load", "--no-dispatcher")
            refused = svcctl("attach", "cgroup", path)
            assert refused.code == 6
            assert "--netns /proc/" in refused.err
            assert "detach cgroup" in refused.err
            assert {row["state"] for row in ok("status", "--all", "-o", "json").json["status"]} == {
                "own",
                "live",
            }
            assert ok("gc").out == ""
            ok(*theirs, "unload", "--yes")
        finally:
            held.communicate()
        ok("unload", "--yes")
