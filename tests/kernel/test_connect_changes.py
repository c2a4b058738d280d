"""Changes under load: backends replaced, services deleted and made again, programs upgraded; nobody notices."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator

import pytest

from svcctl.bpf.link import query_programs
from svcctl.host.cgroup import open_cgroup
from svcctl.maps import catalog
from svcctl.model.service_edit import add_backends
from svcctl.model.service_endpoint import parse_backend_spec
from svcctl.state import services
from svcctl.state.place import Place
from svcctl.state.service_change import apply_change, plan_change
from svcctl.state.writer import open_writer
from tests.lib.balanced import VIP, Balanced
from tests.lib.child import Child, child
from tests.lib.servers import SLOWNESS, Server
from tests.lib.svc import svc

ROUNDS, SETS, OF_EACH = 1000, 8, 3

_CLIENT = """
import selectors, threading
from collections import Counter
heard, stop, done, met = Counter(), threading.Event(), [], []

def tcp(address, port):
    s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET)
    s.settimeout(60)
    try:
        s.connect((address, port))
        name = b''
        while part := s.recv(100):
            name += part
        return name.decode() or 'nothing'
    except OSError as problem:
        return f'{problem.errno} {problem}'
    finally:
        s.close()

def loop(number, address, port):
    while not stop.is_set():
        began = time.monotonic_ns()
        name = tcp(address, port)
        heard[name] += 1
        met.append((began, time.monotonic_ns(), name))
        done[number] += 1

threads = []
def start(address, port, count):
    for _ in range(count):
        done.append(0)
        threads.append(threading.Thread(target=loop, args=(len(threads), address, port)))
        threads[-1].start()
"""


@contextlib.contextmanager
def clients(address: str, port: int, count: int = 2) -> Iterator[Child]:
    """A process that connects all the time, one connection after the other in each of its threads."""
    with child(_CLIENT) as one:
        one.run(f"start({address!r}, {port}, {count})")
        try:
            yield one
        finally:
            one.run("stop.set()\nfor t in threads: t.join()")


def heard(one: Child) -> dict[str, int]:
    """Who answered how often so far; errors among them."""
    answer: dict[str, int] = one.run("out = dict(heard)")
    return answer


def wait_for_more(one: Child, more: int) -> None:
    goal = sum(heard(one).values()) + more
    end = time.monotonic() + 60 * SLOWNESS
    while sum(heard(one).values()) < goal:
        assert time.monotonic() < end, "the clients have stopped"
        time.sleep(0.005)


def wait_for_all(one: Child) -> None:
    """Until every connection that had begun is over: each thread has made one more since, from its beginning."""
    before = one.run("out = list(done)")
    end = time.monotonic() + 60 * SLOWNESS
    while any(now < then + 2 for then, now in zip(before, one.run("out = list(done)"), strict=True)):
        assert time.monotonic() < end, "the clients have stopped"
        time.sleep(0.002)


@pytest.mark.timeout(900)
def test_backends_replaced_completely(balanced: Balanced, server: Server) -> None:
    """1,000 times at one stroke, by the writers' own code, under connects.

    None fails, and each meets a backend of a set that was the service's at some time while it was made.
    """
    sets = [[f"127.0.{2 + n}.{1 + each}:8080" for each in range(OF_EACH)] for n in range(SETS)]
    for number, backends in enumerate(sets):
        for each, backend in enumerate(backends):
            server.open(f"{number} {each}", address=backend.partition(":")[0], port=8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=sets[0])
    begun, over = [0], [0]  # of the change to set n % SETS, n from 0 on
    with clients(VIP, 80) as one, open_writer(Place(), "test") as writer:
        for number in range(1, ROUNDS + 1):
            members = [parse_backend_spec(backend) for backend in sets[number % SETS]]
            have = services.get(writer, "web", "replace")
            want = add_backends(have.service._replace(members=()), members, 0)
            begun.append(time.monotonic_ns())
            apply_change(writer, plan_change(writer, have, want))
            over.append(time.monotonic_ns())
            if number % 97 == 0:  # each set in its turn
                wait_for_more(one, 20)
        one.run("stop.set()\nfor t in threads: t.join()")
        met = one.run("out = met")
    for start, end, name in met:
        assert name.partition(" ")[0] in map(str, range(SETS)), name
        # Sets that had come before it was over, less those that had gone before it began.
        first = max(bisect_right(over, start) - 1, 0)
        last = bisect_right(begun, end) - 1
        assert int(name[0]) in {n % SETS for n in range(first, last + 1)}, (first, last, name)
    assert len({name[0] for _, _, name in met}) == SETS


@pytest.mark.timeout(300)
def test_backends_that_are_gone_for_good(balanced: Balanced, server: Server) -> None:
    """By the commands: once those that had chosen it have got there, a backend that was deleted can be shut down."""
    server.open("r0", address="127.0.2.0", port=8080)
    names = ["127.0.2.0:8080"]
    balanced.add("web", f"{VIP}:80/tcp", backends=names)
    with clients(VIP, 80) as one:
        for number in range(1, 61):
            address = f"127.0.2.{number}"
            server.open(f"r{number}", address=address, port=8080)
            svc("backend", "add", "web", f"{address}:8080")
            svc("backend", "delete", "web", names.pop())
            names.append(f"{address}:8080")
            if number % 5 == 0:
                wait_for_all(one)
                for old in range(number - 5, number):
                    server.close(f"r{old}")
        wait_for_more(one, 20)
        found = heard(one)
    assert not [text for text in found if not text.startswith("r")], found


@pytest.mark.timeout(300)
def test_each_reaches_the_old_or_the_new_set(balanced: Balanced) -> None:
    """Real sockets, one after the other, between the two commands of each change."""
    sets = [balanced.farm.many(3, first=1), balanced.farm.many(3, first=11)]
    balanced.add("web", f"{VIP}:80/tcp", backends=sets[0])
    for number in range(30):
        old, new = sets[number % 2], sets[1 - number % 2]
        assert set(balanced.ask_often(5, VIP, 80)) <= set(old)
        svc("backend", "add", "web", *new)
        assert set(balanced.ask_often(5, VIP, 80)) <= set(old + new)
        svc("backend", "delete", "web", *old)
        assert set(balanced.ask_often(5, VIP, 80)) <= set(new)


@pytest.mark.timeout(300)
def test_service_deleted_and_made_again_under_load(balanced: Balanced, server: Server) -> None:
    """Between the two the address is nobody's; never another error, and never another service's backend."""
    server.open("a", address="127.0.2.1", port=8080)
    server.open("b", address="127.0.2.2", port=8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=["127.0.2.1:8080"])
    with clients(VIP, 80) as one:
        for _ in range(40):
            svc("service", "delete", "web")
            balanced.add("other", "10.96.0.99:80/tcp", backends=["127.0.2.2:8080"])
            balanced.add("web", f"{VIP}:80/tcp", backends=["127.0.2.1:8080"])
            svc("service", "delete", "other")
        wait_for_more(one, 20)
        found = heard(one)
    unexpected = {text for text in found if text != "a" and not text.startswith(f"{errno.ENETUNREACH} ")}
    assert not unexpected, found


@pytest.mark.timeout(300)
def test_frontend_moves_from_service_to_service(balanced: Balanced, server: Server) -> None:
    """Added to one after it was taken from another: each connection reaches one of the two, or nobody."""
    server.open("a", address="127.0.2.1", port=8080)
    server.open("b", address="127.0.2.2", port=8080)
    balanced.add("one", f"{VIP}:80/tcp", f"{VIP}:1/tcp", backends=["127.0.2.1:8080"])
    balanced.add("two", f"{VIP}:2/tcp", backends=["127.0.2.2:8080"])
    with clients(VIP, 80) as client:
        for _ in range(20):
            svc("service", "set", "one", "--no-frontend", f"{VIP}:80/tcp")
            svc("service", "set", "two", "--frontend", f"{VIP}:80/tcp")
            svc("service", "set", "two", "--no-frontend", f"{VIP}:80/tcp")
            svc("service", "set", "one", "--frontend", f"{VIP}:80/tcp")
        wait_for_more(client, 20)
        found = heard(client)
    assert {text for text in found if not text.startswith(f"{errno.ENETUNREACH} ")} <= {"a", "b"}, found


@pytest.mark.timeout(300)
def test_upgrade_under_load(balanced: Balanced, server: Server) -> None:
    """Programs swapped one by one under their links: each connection is translated, by one of ours. T30."""
    server.open("a", address="127.0.2.1", port=8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=["127.0.2.1:8080"])
    with clients(VIP, 80) as one:
        for _ in range(3):
            before = heard(one).get("a", 0)
            svc("upgrade", "--force")
            svc("load")
            wait_for_more(one, 30)
            assert heard(one)["a"] > before
        found = heard(one)
    assert set(found) == {"a"}
    assert balanced.stats("web").connections >= found["a"]


def test_upgrade_swaps_every_program(balanced: Balanced) -> None:
    before = programs(balanced)
    svc("upgrade", "--force")
    after = programs(balanced)
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())


def programs(balanced: Balanced) -> dict[str, int]:
    """Hook -> id of the one program on the cgroup."""
    fd = open_cgroup(balanced.cgroup)
    try:
        found = {shape.name: query_programs(fd, shape.hook) for shape in catalog.CONNECT}
    finally:
        os.close(fd)
    assert all(len(ids) == 1 for ids in found.values()), found
    return {name: ids[0] for name, ids in found.items()}


@pytest.mark.timeout(300)
def test_maps_grown_under_load(balanced: Balanced, server: Server) -> None:
    """Everything a connection needs is in the new maps before the programs that read them are."""
    server.open("a", address="127.0.2.1", port=8080)
    balanced.add("web", f"{VIP}:80/tcp", backends=["127.0.2.1:8080"])
    with clients(VIP, 80) as one, balanced.client(VIP, 80) as old:
        svc("upgrade", "--max-services", 128, "--max-backends", 512)
        wait_for_more(one, 30)
        svc("upgrade", "--max-sockets", 8192)
        wait_for_more(one, 30)
        found = heard(one)
        assert set(found) == {"a"}
        assert old.getpeername() == (VIP, 80)
    svc("check")


def test_reply_names_while_backends_change(balanced: Balanced) -> None:
    """Replies and peers keep the service's name through every flip: none ever shows the backend."""
    backend = balanced.farm.open("127.0.1.1", 8080, "udp")
    balanced.add("dns", f"{VIP}:53/udp", backends=[backend])
    stop = threading.Event()
    wrong: list[object] = []
    asked = 0

    def ask() -> None:
        nonlocal asked
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.connect((VIP, 53))
            while not stop.is_set():
                for _ in range(50):
                    if one.getpeername() != (VIP, 53):
                        wrong.append(one.getpeername())
                    asked += 1
                time.sleep(0)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        number, end = 0, time.monotonic() + 60 * SLOWNESS
        while number < 60 or (asked < 1000 and time.monotonic() < end):
            svc("backend", "add", "dns", f"127.0.1.9:{1000 + number}")
            svc("backend", "delete", "dns", f"127.0.1.9:{1000 + number}")
            number += 1
    finally:
        stop.set()
        thread.join()
    assert wrong == []
    assert asked >= 1000


def test_shared_backends_outlive_one_service(balanced: Balanced) -> None:
    """Two services with the same backends: the end of one takes nothing from the other. T19."""
    backends = balanced.farm.many(3)
    balanced.add("one", f"{VIP}:80/tcp", backends=backends)
    balanced.add("two", f"{VIP}:81/tcp", backends=backends)
    svc("backend", "delete", "one", backends[0])
    assert set(balanced.ask_often(60, VIP, 81)) == set(backends)
    assert set(balanced.ask_often(60, VIP, 80)) == set(backends[1:])
    svc("service", "delete", "one")
    assert set(balanced.ask_often(60, VIP, 81)) == set(backends)
    assert balanced.error(VIP, 80) == errno.ENETUNREACH
    assert sum(balanced.picks(backend) for backend in backends) == 180


def test_counters_of_a_new_owner_start_at_zero(balanced: Balanced) -> None:
    backend = balanced.farm.open("127.0.1.1", 8080)
    for _ in range(3):
        balanced.add("web", f"{VIP}:80/tcp", backends=[backend])
        assert (balanced.stats("web").connections, balanced.picks(backend)) == (0, 0)
        balanced.ask(VIP, 80)
        assert (balanced.stats("web").connections, balanced.picks(backend)) == (1, 1)
        svc("service", "delete", "web")


def test_one_source_port_again_and_again(balanced: Balanced) -> None:
    """A client that binds its port connects at a high rate while weights change: at once, never to who is gone. T40."""
    backends = balanced.farm.many(3)
    balanced.add("web", f"{VIP}:80/tcp", backends=backends)
    worst = 0.0
    for number in range(120):
        if number % 20 == 10:
            svc("backend", "set", "web", backends[1], "--weight", number)
        if number == 60:
            svc("backend", "delete", "web", backends[0])
        with balanced.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.9", 41000))
            before = time.perf_counter()
            one.connect((VIP, 80))
            worst = max(worst, time.perf_counter() - before)
        assert number < 60 or balanced.farm.takers()[backends[0]] == 0
        balanced.farm.takers()
    assert worst < 20  # who waits for a busy machine waits for less than for a packet that was lost
