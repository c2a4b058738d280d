"""`svcctl metrics` on real state and traffic: what it says, what it survives, and what it never does."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from svcctl.bpf.map import Map
from svcctl.maps import catalog, layouts
from svcctl.maps.layouts import U32
from tests.lib import stranger
from tests.lib.cli import clean_environment, process
from tests.lib.scrape import Samples, exporter, parse, series
from tests.lib.svc import svc_waiting
from tests.lib.until import PATIENCE, lets_go, lose_link, until

if TYPE_CHECKING:
    from tests.lib.world import World

WEB = {"label": "web", "domain": "ipv4", "protocol": "tcp"}


def svcctl(*args: str) -> str:
    done = process(*args)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def printed(*args: str) -> Samples:
    return parse(svcctl("metrics", *args))


def listener(port: int = 8080) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_counts_what_happens(world: World) -> None:
    svcctl("load")
    svcctl("bind", "web", "tcp", "127.1.0.0/16", "80")
    svcctl("bind", "web", "tcp", "127.2.0.1", "80")
    samples = printed()
    assert samples[series("bindings", **WEB)] == 2
    assert samples[series("lookups_total", **WEB)] == 0
    assert samples[series("destination_has_socket", **WEB)] == 0
    assert samples[series("map_entries", map="bindings")] == 1
    assert samples[series("map_entries", map="exact")] == 1
    assert samples[series("map_entries", map="destinations")] == 1
    assert samples[series("map_max_entries", map="destinations")] == 1024
    assert samples[series("interrupted")] == 0
    assert samples[series("snapshot_consistent")] == 1
    assert abs(samples[series("last_change_timestamp_seconds")] - time.time()) < 600
    with listener():
        svcctl("register-pid", str(os.getpid()), "web", "tcp", "127.0.0.1", "8080")
        for _ in range(3):
            socket.create_connection(("127.1.2.3", 80), timeout=60).close()
        samples = printed()
        assert samples[series("destination_has_socket", **WEB)] == 1
        assert samples[series("destination_sockets", **WEB)] == 1
        assert samples[series("lookups_total", **WEB)] == 3
        assert samples[series("misses_total", **WEB)] == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.2.0.1", 80), timeout=60)
    samples = printed()
    assert samples[series("destination_has_socket", **WEB)] == 0
    assert samples[series("lookups_total", **WEB)] == 4
    assert samples[series("misses_total", **WEB)] == 1
    assert samples[series("errors_total", **WEB, reason="bad-socket")] == 0
    assert samples[series("drops_total", reason="no_socket")] == 1


def test_valid_for_promtool_with_labels_of_every_kind(world: World) -> None:
    svcctl("load")
    for number, label in enumerate(('a"b\\c', "naïve 名前 🙂", "{}=,# ", "x" * 255)):
        svcctl("bind", label, "tcp", f"127.0.0.{number + 1}", "80")
        svcctl("bind", label, "udp", "::/0", f"{number + 1}")
    text = svcctl("metrics")
    assert {dict(labels).get("label") for _, labels in parse(text)} >= {'a"b\\c', "naïve 名前 🙂", "x" * 255}
    if shutil.which("promtool"):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_labels_past_svcctl_cannot_spoil_a_scrape(world: World) -> None:
    svcctl("load")
    with Map.open_pinned(f"{world.state_dir}/destinations") as destinations:
        for number, label in enumerate((b"\xff\xfe", b"\\xff\\xfe", b"a\nb\0c", b"\x1b[31m")):
            key = layouts.DESTINATION_KEY.pack(layouts.DestinationKey(label, 4, 6))
            destinations.update(key, layouts.DESTINATION.pack(layouts.DestinationValue(number, 0, 0, 0)))
    with exporter() as one:
        answer = one.scrape()
    assert answer.status == 200
    assert len([key for key in answer.samples if key[0] == "svcctl_bindings"]) == 4


def test_not_loaded(world: World) -> None:
    done = process("metrics")
    assert (done.returncode, done.stdout) == (3, "")
    assert "svcctl load" in done.stderr


def test_survives_load_upgrade_unload(world: World) -> None:
    with exporter() as one:
        first = one.scrape()
        assert first.status == 500
        assert "no state for network namespace" in first.text
        assert one.scrape("/").status == 500
        assert one.scrape(method="HEAD").status == 500
        svcctl("load")
        good = one.scrape()
        assert good.status == 200
        assert good.content_type.startswith("text/plain; version=0.0.4")
        assert good.samples[series("collection_errors_total")] == 3
        svcctl("upgrade", "--max-destinations", "2048")
        assert one.scrape().samples[series("map_max_entries", map="destinations")] == 2048
        svcctl("unload", "--yes")
        assert one.scrape().status == 500
        svcctl("load")
        svcctl("bind", "web", "tcp", "127.0.0.1", "80")
        again = one.scrape()
        assert again.samples[series("bindings", **WEB)] == 1
        assert again.samples[series("collection_errors_total")] == 4
        code, err = one.stop()
    assert code == 0
    # Each change of the reason is said once, not each scrape.
    assert err.count("collection failed") == 2
    assert err.count("works again") == 2


def test_a_missing_pin_is_never_a_success(world: World) -> None:
    svcctl("load")
    with exporter() as one:
        for name in catalog.STATE_MAPS | catalog.DISPATCH_MAPS:
            os.rename(f"{world.state_dir}/{name}", f"{world.state_dir}/away")
            answer = one.scrape()
            assert (name, answer.status) == (name, 500)
            assert f"{world.state_dir}/{name}: the pin is missing" in answer.text
            os.rename(f"{world.state_dir}/away", f"{world.state_dir}/{name}")
        assert one.scrape().status == 200
    os.unlink(f"{world.state_dir}/ports")
    assert process("metrics").returncode == 7


def test_parallel_scrapes_are_all_answered(world: World) -> None:
    svcctl("load")
    statuses: list[int] = []
    with exporter() as one:
        threads = [threading.Thread(target=lambda: statuses.append(one.scrape().status)) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 30


def test_keeps_nothing_open_and_no_lock_between_scrapes(world: World) -> None:
    svcctl("load")
    with exporter() as one:
        assert one.scrape().status == 200
        lets_go(one.process.pid, "bpf", world.bpffs, "net:")
        svcctl("bind", "web", "tcp", "127.0.0.1", "80", "--lock-timeout", "0")


def test_an_interrupted_change_shows(world: World) -> None:
    svcctl("load")
    with Map.open_pinned(f"{world.state_dir}/meta") as meta:
        record = layouts.META.unpack(meta.lookup(U32.pack(0)) or b"")
        meta.update(U32.pack(0), layouts.META.pack(record._replace(generation=record.generation | 1)))
    samples = printed()
    assert samples[series("interrupted")] == 1
    assert samples[series("snapshot_consistent")] == 0
    svcctl("bind", "web", "tcp", "127.0.0.1", "80")  # repairs first
    samples = printed()
    assert samples[series("interrupted")] == 0
    assert samples[series("snapshot_consistent")] == 1


def attachment(samples: Samples) -> float:
    found = [value for (name, _), value in samples.items() if name == "svcctl_attachment_up"]
    assert len(found) == 1
    return found[0]


def test_a_lost_attachment_shows(world: World) -> None:
    svcctl("load")
    assert attachment(printed()) == 1
    lose_link(f"{world.state_dir}/link_netns")
    assert attachment(printed()) == 0


def test_without_a_dispatcher(world: World) -> None:
    svcctl("load", "--no-dispatcher")
    samples = printed()
    assert samples[series("interrupted")] == 0
    assert not [name for name, _ in samples if name in ("svcctl_bindings", "svcctl_attachment_up")]


def test_waiting_for_the_lock_is_counted(world: World) -> None:
    svcctl("load")
    fd = os.open(world.state_dir, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    began = time.monotonic()
    svc_waiting(lambda: os.close(fd), "bind", "web", "tcp", "127.0.0.1", "80")
    took = time.monotonic() - began
    svcctl("bind", "web", "tcp", "127.0.0.2", "80")
    samples = printed()
    assert samples[series("lock_waits_total")] == 1
    assert 0.1 < samples[series("lock_wait_seconds_total")] < took


def test_as_a_group_member_without_capabilities(world: World) -> None:
    svcctl("load", "--group", str(stranger.GROUP))
    svcctl("bind", "web", "tcp", "127.0.0.1", "80")
    with (
        exporter() as roots,
        exporter(before=lambda: stranger.drop(stranger.GROUP, cap_bpf=stranger.NEEDS_CAP_BPF)) as members,
    ):
        with open(f"/proc/{members.process.pid}/status") as status:
            lines = status.read()
        assert "Uid:\t65534\t65534\t65534\t65534" in lines
        if not stranger.NEEDS_CAP_BPF:
            assert "CapEff:\t0000000000000000" in lines
        assert members.scrape() == roots.scrape()
        svcctl("upgrade")
        assert members.scrape().status == 200
        svcctl("unload", "--yes")
        assert members.scrape().status == 500
        svcctl("load", "--group", str(stranger.GROUP))
        assert members.scrape().status == 200


def test_strangers_get_the_reason(world: World) -> None:
    svcctl("load", "--group", str(stranger.GROUP))
    with exporter(before=lambda: stranger.drop(stranger.STRANGERS)) as one:
        answer = one.scrape()
    assert answer.status == 500
    assert "ermission denied" in answer.text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals(world: World, number: int, code: int) -> None:
    svcctl("load")
    with exporter() as one:
        assert one.scrape().status == 200
        assert one.stop(number)[0] == code


def activated(world: World, address: str, family: int, where: object) -> bytes:
    """One scrape of an exporter that systemd-socket-activate starts."""
    paths = f"PYTHONPATH={clean_environment()['PYTHONPATH']}"
    words = ["systemd-socket-activate", "-l", address, "-E", paths]
    server = subprocess.Popen([*words, sys.executable, "-m", "svcctl", "metrics"], stderr=subprocess.PIPE)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(PATIENCE)
            until(lambda: not client.connect_ex(where), f"nobody listens on {where}")  # type: ignore[arg-type]
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = bytearray()
            while piece := client.recv(65536):
                answer += piece
    finally:
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=PATIENCE)
    assert server.returncode == 0, err
    assert b"listening on" in err
    return bytes(answer)


needs_activate = pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="systemd-socket-activate is not installed"
)


@needs_activate
def test_socket_activation(world: World) -> None:
    svcctl("load")
    answer = activated(world, "[::1]:9199", socket.AF_INET6, ("::1", 9199))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\nsvcctl_build_info{" in answer


@needs_activate
def test_socket_activation_on_a_unix_socket(world: World, tmp_path: object) -> None:
    svcctl("load")
    path = f"{tmp_path}/metrics"
    answer = activated(world, path, socket.AF_UNIX, path)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
