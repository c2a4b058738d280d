"""SO_REUSEPORT groups: up to 16 members registered, traffic on as long as one of them lives."""

from __future__ import annotations

import random

import pytest

from tests.lib.servers import REFUSED, Opened, Server, ask, ask_often, ask_until, asking
from tests.lib.svc import svc
from tests.lib.world import World

KINDS = ("tcp", "udp")
AT = "127.0.0.53"


def open_group(server: Server, kind: str, size: int, prefix: str = "m", **how: object) -> list[Opened]:
    """Members m0, m1, ... on one port."""
    first = server.open(f"{prefix}0", kind, reuseport=True, **how)
    how["port"] = first.port
    return [first, *(server.open(f"{prefix}{n}", kind, reuseport=True, **how) for n in range(1, size))]


def cookies(label: str = "web") -> set[int]:
    (row,) = svc("destinations", label, "-o", "json").json["destinations"]
    return {one["cookie"] for one in row["members"]}


def errors(label: str = "web") -> tuple[int, int]:
    """(no_socket, errors) of a label with one destination."""
    (row,) = svc("destinations", label, "-o", "json").json["destinations"]
    return row["no_socket"], row["errors"]


@pytest.mark.parametrize("kind", KINDS)
def test_members_leave_one_by_one(loaded: World, server: Server, kind: str) -> None:
    """tubular 6.2, 6: there the label was dropped when the one registered member had gone."""
    group = open_group(server, kind, 4)
    svc("bind", "web", kind, AT, 80)
    svc("register-pid", server.pid, "web", kind, "127.0.0.1", group[0].port)
    assert cookies() == {one.cookie for one in group}
    heard = ask_until(kind, AT, 80, ("m0", "m1", "m2", "m3"), 80)
    assert set(heard) == {"m0", "m1", "m2", "m3"}, heard
    order = list(range(4))
    random.Random(kind).shuffle(order)
    for gone in range(1, 4):
        server.close(f"m{order[gone - 1]}")
        left = {f"m{n}" for n in order[gone:]}
        heard = ask_often(kind, AT, 80, 40)
        assert set(heard) <= left, (order, heard)
        assert cookies() == {group[n].cookie for n in order[gone:]}
    assert errors() == (0, 0)
    server.close(f"m{order[3]}")
    assert ask(kind, AT, 80) == REFUSED
    assert errors()[0] == 1


@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_each_member_can_be_the_last(loaded: World, server: Server, last: int) -> None:
    """The hint points anywhere: whichever slot is left is found."""
    group = open_group(server, "tcp", 4)
    svc("bind", "web", "tcp", AT, 80)
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", group[0].port)
    for number in {0, 1, 2, 3} - {last}:
        server.close(f"m{number}")
    assert ask_often("tcp", AT, 80, 10) == {f"m{last}": 10}


def test_a_process_of_several_is_killed(loaded: World) -> None:
    """Workers with a socket each, as nginx's `reuseport` makes them: one is killed, nobody is refused."""
    with Server() as one, Server() as two:
        first = one.open("one", reuseport=True)
        second = two.open("two", reuseport=True, port=first.port)
        svc("bind", "web", "tcp", AT, 80)
        svc("register-pid", one.pid, "web", "tcp", "127.0.0.1", first.port)
        svc("register-pid", two.pid, "web", "tcp", "127.0.0.1", first.port)
        assert cookies() == {first.cookie, second.cookie}
        assert set(ask_until("tcp", AT, 80, ("one", "two"), 40)) == {"one", "two"}
        one.kill()
        assert ask_often("tcp", AT, 80, 20) == {"two": 20}


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_members(loaded: World, server: Server, kind: str) -> None:
    """Sixteen have a slot; the kernel reaches the other four through them."""
    group = open_group(server, kind, 20)
    svc("bind", "web", kind, AT, 80)
    svc("register-pid", server.pid, "web", kind, "127.0.0.1", group[0].port)
    registered = cookies()
    assert len(registered) == 16
    assert registered < {one.cookie for one in group}
    heard = ask_until(kind, AT, 80, [f"m{n}" for n in range(20)], 400)
    assert len(heard) == 20, heard
    again = svc("register-pid", server.pid, "web", kind, "127.0.0.1", group[0].port)
    assert "registered" not in again.out or cookies() == registered
    # All registered ones go: the four that live have no slot, so the label refuses until it is told.
    by_cookie = {one.cookie: f"m{n}" for n, one in enumerate(group)}
    for cookie in registered:
        server.close(by_cookie[cookie])
    assert ask(kind, AT, 80) == REFUSED
    svc("register-pid", server.pid, "web", kind, "127.0.0.1", group[0].port)
    assert len(cookies()) == 4
    unregistered = {by_cookie[one] for one in by_cookie if one not in registered}
    assert set(ask_until(kind, AT, 80, unregistered, 60)) == unregistered


@pytest.mark.parametrize("kind", KINDS)
def test_new_group_replaces_old_one_under_load(loaded: World, kind: str) -> None:
    """A restart that starts the new service first: no connection is refused, and in the end all go to the new."""
    svc("bind", "web", kind, AT, 80)
    with Server() as old, Server() as new:
        before = open_group(old, kind, 4, "old")
        after = open_group(new, kind, 4, "new")  # another port: another group
        svc("register-pid", old.pid, "web", kind, "127.0.0.1", before[0].port)
        with asking(kind, AT, 80) as client:
            client.wait_for(20)
            for _ in range(10):
                svc("register-pid", new.pid, "web", kind, "127.0.0.1", after[0].port)
                assert cookies() == {one.cookie for one in after}
                client.wait_for(5)
                svc("register-pid", old.pid, "web", kind, "127.0.0.1", before[0].port)
                client.wait_for(5)
            svc("register-pid", new.pid, "web", kind, "127.0.0.1", after[0].port)
            client.wait_for(2)
            since = len(client.heard)
            old.kill()
            client.wait_for(50)
    wrong = [answer for answer in client.heard if answer[:3] not in ("old", "new")]
    assert wrong == []
    assert {answer[:3] for answer in client.heard[since:]} == {"new"}
    assert {answer[:3] for answer in client.heard} == {"old", "new"}


def test_full_old_group_is_replaced_under_load(loaded: World) -> None:
    """All 16 slots are taken by strangers: they are replaced in place, never emptied first."""
    svc("bind", "web", "tcp", AT, 80)
    with Server() as old, Server() as new:
        before = open_group(old, "tcp", 16, "old")
        after = open_group(new, "tcp", 3, "new")
        svc("register-pid", old.pid, "web", "tcp", "127.0.0.1", before[0].port)
        assert len(cookies()) == 16
        with asking("tcp", AT, 80) as client:
            client.wait_for(10)
            svc("register-pid", new.pid, "web", "tcp", "127.0.0.1", after[0].port)
            client.wait_for(10)
            assert cookies() == {one.cookie for one in after}
            svc("register-pid", old.pid, "web", "tcp", "127.0.0.1", before[0].port)
            client.wait_for(10)
            assert cookies() == {one.cookie for one in before}
    assert [answer for answer in client.heard if answer[:3] not in ("old", "new")] == []


def test_a_new_member_of_the_old_group_joins(loaded: World, server: Server) -> None:
    """Same address and port, another process: the members that live stay registered beside the new one."""
    first = open_group(server, "tcp", 2)
    svc("bind", "web", "tcp", AT, 80)
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", first[0].port)
    with Server() as other:
        joined = other.open("joined", reuseport=True, port=first[0].port)
        svc("register-pid", other.pid, "web", "tcp", "127.0.0.1", joined.port)
        assert cookies() == {one.cookie for one in (*first, joined)}
        server.kill()
        assert ask_often("tcp", AT, 80, 10) == {"joined": 10}


@pytest.mark.parametrize("kind", KINDS)
def test_group_of_dual_stack_sockets(loaded: World, server: Server, kind: str) -> None:
    loaded.sh("ip -6 route add local 2001:db8::/32 dev lo")
    group = open_group(server, kind, 3, family=6, address="::", v6only=False)
    for prefix in (AT, "2001:db8::53"):
        svc("bind", "web", kind, prefix, 80)
    svc("register-pid", server.pid, "web", kind, "127.0.0.1", group[0].port)
    for at in (AT, "2001:db8::53"):
        assert set(ask_until(kind, at, 80, ("m0", "m1", "m2"), 60)) == {"m0", "m1", "m2"}
    server.close("m0")
    server.close("m2")
    for at in (AT, "2001:db8::53"):
        assert ask_often(kind, at, 80, 10) == {"m1": 10}


def test_listener_that_was_shut_down_is_passed_over(loaded: World, server: Server) -> None:
    """Its descriptor is open and its slot full, but it takes nothing: the next member does, and it is counted."""
    group = open_group(server, "tcp", 2)
    svc("bind", "web", "tcp", AT, 80)
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", group[0].port)
    server.ask("shutdown", name="m0")
    assert ask_often("tcp", AT, 80, 20) == {"m1": 20}
    assert errors() == (0, 1)  # looked at once, then the hint leads past it
    server.ask("shutdown", name="m1")
    assert ask("tcp", AT, 80) == REFUSED
    assert errors() == (1, 3)
    server.ask("listen", name="m0")
    assert ask_often("tcp", AT, 80, 5) == {"m0": 5}


def test_single_listener_that_was_shut_down(loaded: World, server: Server) -> None:
    opened = server.open("it")
    svc("bind", "web", "tcp", AT, 80)
    svc("register-pid", server.pid, "web", "tcp", "127.0.0.1", opened.port)
    server.ask("shutdown", name="it")
    assert ask("tcp", AT, 80) == REFUSED
    assert errors() == (1, 1)
    server.ask("listen", name="it")
    assert ask("tcp", AT, 80) == "it"


def test_udp_socket_that_connects_after_registration(loaded: World, server: Server) -> None:
    """tubular 2.5: counted as an error and dropped. Here the next member takes it; alone it is refused."""
    group = open_group(server, "udp", 2)
    svc("bind", "web", "udp", AT, 80)
    svc("register-pid", server.pid, "web", "udp", "127.0.0.1", group[0].port)
    server.ask("connect", name="m0", address="127.0.0.1", port=9)
    assert ask_often("udp", AT, 80, 10) == {"m1": 10}
    assert errors()[0] == 0
    server.ask("connect", name="m1", address="127.0.0.1", port=9)
    assert ask("udp", AT, 80) == REFUSED
    no_socket, refused = errors()
    assert no_socket == 1
    assert refused >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_groups_are_carried_over_when_the_map_grows(loaded: World, server: Server, kind: str) -> None:
    """All members by a program of svcctl's; one that was shut down cannot be, which is said, and is no loss."""
    group = open_group(server, kind, 5)
    svc("bind", "web", kind, AT, 80)
    svc("register-pid", server.pid, "web", kind, "127.0.0.1", group[0].port)
    if kind == "tcp":
        server.ask("shutdown", name="m2")
    with asking(kind, AT, 80) as client:
        client.wait_for(5)
        ran = svc("upgrade", "--max-destinations", 128)
        client.wait_for(5)
    kept = {one.cookie for number, one in enumerate(group) if kind == "udp" or number != 2}
    assert cookies() == kept
    assert ("1 sockets that no longer listen" in ran.err) == (kind == "tcp")
    assert {answer[0] for answer in client.heard} == {"m"}, client.heard
    for number in (0, 1, 4):
        server.close(f"m{number}")
    assert "m3" in ask_until(kind, AT, 80, ("m3",), 40)
