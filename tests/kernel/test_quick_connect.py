"""The connect balancer in a few quick tests: these run inside every kernel of the matrix as well."""

from __future__ import annotations

import errno
import socket

import pytest

from svcctl.bpf import probe
from svcctl.maps import catalog
from svcctl.state.balancer import SET_RETVAL, SOCK_ADDR
from svcctl.state.programs import load_object
from tests.lib.balanced import VIP, VIP6, Balanced, name
from tests.lib.servers import SLOWNESS
from tests.lib.svc import svc

BACKEND = {4: "127.0.1.1", 6: "::1"}
FRONTEND = {4: VIP, 6: VIP6}


@pytest.mark.quick
@pytest.mark.covers(
    "connect4: cgroup/connect4", "connect4: helper get_netns_cookie", "connect4: helper get_prandom_u32",
    "connect4: helper get_socket_cookie", "connect4: helper ktime_get_ns",
    "connect4: helper map_lookup_elem", "connect4: helper map_update_elem", "connect4: helper set_retval",
    "connect4: helper spin_lock", "connect4: helper spin_unlock", "connect4: map array", "connect4: map array_of_maps",
    "connect4: map hash", "connect4: map lpm_trie", "connect4: map lru_hash", "connect4: map percpu_array",
    "connect6: cgroup/connect6", "connect6: helper get_netns_cookie", "connect6: helper get_prandom_u32",
    "connect6: helper get_socket_cookie", "connect6: helper ktime_get_ns",
    "connect6: helper map_lookup_elem", "connect6: helper map_update_elem", "connect6: helper set_retval",
    "connect6: helper spin_lock", "connect6: helper spin_unlock", "connect6: map array", "connect6: map array_of_maps",
    "connect6: map hash", "connect6: map lpm_trie", "connect6: map lru_hash", "connect6: map percpu_array",
    "getpeername4: cgroup/getpeername4", "getpeername4: helper get_socket_cookie",
    "getpeername4: helper map_lookup_elem", "getpeername4: helper spin_lock",
    "getpeername4: helper spin_unlock", "getpeername4: map array", "getpeername4: map hash",
    "getpeername6: cgroup/getpeername6", "getpeername6: helper get_socket_cookie",
    "getpeername6: helper map_lookup_elem", "getpeername6: helper spin_lock",
    "getpeername6: helper spin_unlock", "getpeername6: map array", "getpeername6: map hash",
    "recvmsg4: cgroup/recvmsg4", "recvmsg4: helper get_socket_cookie", "recvmsg4: helper map_lookup_elem",
    "recvmsg4: helper spin_lock", "recvmsg4: helper spin_unlock", "recvmsg4: map array",
    "recvmsg4: map hash", "recvmsg6: cgroup/recvmsg6", "recvmsg6: helper get_socket_cookie",
    "recvmsg6: helper map_lookup_elem", "recvmsg6: helper spin_lock", "recvmsg6: helper spin_unlock",
    "recvmsg6: map array", "recvmsg6: map hash", "sendmsg4: cgroup/sendmsg4",
    "sendmsg4: helper get_netns_cookie", "sendmsg4: helper get_prandom_u32",
    "sendmsg4: helper get_socket_cookie", "sendmsg4: helper ktime_get_ns",
    "sendmsg4: helper map_lookup_elem", "sendmsg4: helper map_update_elem", "sendmsg4: helper set_retval",
    "sendmsg4: helper spin_lock", "sendmsg4: helper spin_unlock", "sendmsg4: map array", "sendmsg4: map array_of_maps",
    "sendmsg4: map hash", "sendmsg4: map lpm_trie", "sendmsg4: map lru_hash", "sendmsg4: map percpu_array",
    "sendmsg6: cgroup/sendmsg6", "sendmsg6: helper get_netns_cookie", "sendmsg6: helper get_prandom_u32",
    "sendmsg6: helper get_socket_cookie", "sendmsg6: helper ktime_get_ns",
    "sendmsg6: helper map_lookup_elem", "sendmsg6: helper map_update_elem", "sendmsg6: helper set_retval",
    "sendmsg6: helper spin_lock", "sendmsg6: helper spin_unlock", "sendmsg6: map array", "sendmsg6: map array_of_maps",
    "sendmsg6: map hash", "sendmsg6: map lpm_trie", "sendmsg6: map lru_hash", "sendmsg6: map percpu_array",
    "sock_release: cgroup/sock_release", "sock_release: helper get_socket_cookie",
    "sock_release: map array", "sock_release: helper map_delete_elem", "sock_release: helper map_lookup_elem",
    "sock_release: map hash",
)  # fmt: skip
def test_every_hook(balanced: Balanced) -> None:
    """TCP and UDP through a service of each family, connected and not, with affinity, from a table, and refused."""
    for family in (4, 6):  # not two tests: attaching takes most of the time in an emulated kernel
        _every_hook(balanced, family)


def _every_hook(balanced: Balanced, family: int) -> None:
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    place = f"[{FRONTEND[family]}]" if family == 6 else FRONTEND[family]
    backend = balanced.farm.open(BACKEND[family], 8080, "tcp udp")
    balanced.add(f"web{family}", f"{place}:80/tcp", f"{place}:80/udp", backends=[backend], affinity=60)
    for _ in range(2):  # the second time by affinity
        with balanced.client(FRONTEND[family], 80, "tcp", kind) as one:
            assert name(one.getpeername()) == (FRONTEND[family], 80)
            assert balanced.farm.taker() == backend
    with balanced.socket("udp", kind) as one:
        one.sendto(b"?", (FRONTEND[family], 80))
        assert balanced.farm.reply() == backend
        data, source = one.recvfrom(64)
        assert (data.decode(), name(source)) == (backend, (FRONTEND[family], 80))
    assert balanced.reverse() == {}
    svc("service", "set", f"web{family}", "--affinity", 0, "--algorithm", "maglev", "--table-size", 251)
    assert balanced.ask(FRONTEND[family], 80, "tcp", kind) == backend
    with balanced.socket("udp", kind) as one:
        one.sendto(b"?", (FRONTEND[family], 80))
        assert balanced.farm.reply() == backend
    svc("backend", "delete", f"web{family}", backend)
    expected = errno.EHOSTUNREACH if probe.has_helper(SOCK_ADDR, SET_RETVAL, 10) else errno.EPERM
    assert balanced.error(FRONTEND[family], 80, "tcp", kind) == expected
    with balanced.socket("udp", kind) as one:
        try:
            one.sendto(b"?", (FRONTEND[family], 80))
            refused = 0
        except OSError as problem:
            refused = problem.errno or 0
    assert refused == expected


@pytest.mark.quick
@pytest.mark.covers(
    "add_count: helper map_lookup_elem", "add_count: map array", "add_count: map hash", "add_count: sk_lookup",
)  # fmt: skip
def test_upgrade_under_connections(balanced: Balanced) -> None:
    """Swapped with all its links, and with larger maps, whose counters go on; the service does too."""
    backend = balanced.farm.open("127.0.1.1", 8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=[backend])
    assert balanced.ask(VIP, 80) == backend
    if SLOWNESS == 1:
        svc("upgrade", "--force")
        assert balanced.ask(VIP, 80) == backend
    svc("upgrade", "--max-services", 100, "--max-backends", 200, "--max-sockets", 1000)
    assert balanced.ask(VIP, 80) == backend
    asked = 3 if SLOWNESS == 1 else 2
    assert (balanced.stats("web").connections, balanced.picks(backend)) == (asked, asked)
    assert "no problems" in svc("check").out


@pytest.mark.quick
@pytest.mark.covers(
    "connect4_eperm: cgroup/connect4", "connect4_eperm: helper get_netns_cookie",
    "connect4_eperm: helper get_prandom_u32", "connect4_eperm: helper get_socket_cookie",
    "connect4_eperm: helper ktime_get_ns", "connect4_eperm: helper map_lookup_elem",
    "connect4_eperm: helper map_update_elem", "connect4_eperm: helper spin_lock",
    "connect4_eperm: helper spin_unlock", "connect4_eperm: map array", "connect4_eperm: map array_of_maps", "connect4_eperm: map hash",
    "connect4_eperm: map lpm_trie", "connect4_eperm: map lru_hash", "connect4_eperm: map percpu_array",
    "connect6_eperm: cgroup/connect6", "connect6_eperm: helper get_netns_cookie",
    "connect6_eperm: helper get_prandom_u32", "connect6_eperm: helper get_socket_cookie",
    "connect6_eperm: helper ktime_get_ns", "connect6_eperm: helper map_lookup_elem",
    "connect6_eperm: helper map_update_elem", "connect6_eperm: helper spin_lock",
    "connect6_eperm: helper spin_unlock", "connect6_eperm: map array", "connect6_eperm: map array_of_maps", "connect6_eperm: map hash",
    "connect6_eperm: map lpm_trie", "connect6_eperm: map lru_hash", "connect6_eperm: map percpu_array",
    "sendmsg4_eperm: cgroup/sendmsg4", "sendmsg4_eperm: helper get_netns_cookie",
    "sendmsg4_eperm: helper get_prandom_u32", "sendmsg4_eperm: helper get_socket_cookie",
    "sendmsg4_eperm: helper ktime_get_ns", "sendmsg4_eperm: helper map_lookup_elem",
    "sendmsg4_eperm: helper map_update_elem", "sendmsg4_eperm: helper spin_lock",
    "sendmsg4_eperm: helper spin_unlock", "sendmsg4_eperm: map array", "sendmsg4_eperm: map array_of_maps", "sendmsg4_eperm: map hash",
    "sendmsg4_eperm: map lpm_trie", "sendmsg4_eperm: map lru_hash", "sendmsg4_eperm: map percpu_array",
    "sendmsg6_eperm: cgroup/sendmsg6", "sendmsg6_eperm: helper get_netns_cookie",
    "sendmsg6_eperm: helper get_prandom_u32", "sendmsg6_eperm: helper get_socket_cookie",
    "sendmsg6_eperm: helper ktime_get_ns", "sendmsg6_eperm: helper map_lookup_elem",
    "sendmsg6_eperm: helper map_update_elem", "sendmsg6_eperm: helper spin_lock",
    "sendmsg6_eperm: helper spin_unlock", "sendmsg6_eperm: map array", "sendmsg6_eperm: map array_of_maps", "sendmsg6_eperm: map hash",
    "sendmsg6_eperm: map lpm_trie", "sendmsg6_eperm: map lru_hash", "sendmsg6_eperm: map percpu_array",
)  # fmt: skip
def test_the_variants_for_older_kernels_load() -> None:
    """What 5.10 attaches for want of bpf_set_retval is taken by every kernel's verifier."""
    names = [f"{hook}_eperm" for hook in sorted(catalog.REFUSING_HOOKS)]
    with load_object("connect", dict.fromkeys(catalog.SERVICE_MAPS, 16) | {"config": 1}, {}, names):
        pass
