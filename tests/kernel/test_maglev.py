"""Services with a Maglev table: who a socket is given, what changes move, sharing, the listing, and broken tables."""

from __future__ import annotations

import os
import socket
from collections import Counter

import pytest

from svcctl.bpf.map import Map
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import LUT
from svcctl.model.flow_hash import cookie_hash, slot_of
from svcctl.model.maglev import DEFAULT_SIZE
from svcctl.state import lut as tables
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from tests.lib.balanced import VIP, Balanced, cookie
from tests.lib.svc import svc

OTHER = "10.96.0.11"


def table(service: str) -> list[str]:
    """The backend of every slot of a service with one set."""
    return [row["backend"] for row in svc("lut", service, "--raw", "-o", "json").json["lut"]]


def shares(service: str, *options: object) -> dict[str, int]:
    """Slots by backend."""
    rows = svc("lut", service, *options, "-o", "json").json["lut"]
    return {row["backend"]: row["slots"] for row in rows}


def pins(balanced: Balanced) -> list[str]:
    """Pins of tables."""
    return sorted(
        name for name in os.listdir(balanced.state_dir) if name.startswith("lut_") and name != "lut_sets"
    )


def references(balanced: Balanced) -> list[int]:
    """How many blocks use each table."""
    with Map.open_pinned(f"{balanced.state_dir}/lut_sets", read_only=True) as sets:
        return sorted(LUT.unpack(data).refs for _, data in sets.items())


def clean() -> None:
    """No invariant is broken."""
    svc("check")


@pytest.mark.parametrize(("vip", "family"), [(VIP, socket.AF_INET), ("2001:db8:96::10", socket.AF_INET6)])
def test_a_connection_goes_where_its_slot_says(balanced: Balanced, vip: str, family: int) -> None:
    """By the socket's cookie, through the very table that the listing shows."""
    farm = balanced.farm
    names = (
        farm.many(4) if family == socket.AF_INET else [farm.open("::1", port) for port in range(8081, 8085)]
    )
    text = f"[{vip}]:80/tcp" if family == socket.AF_INET6 else f"{vip}:80/tcp"
    balanced.add("web", text, backends=[f"{names[0]},weight=3", *names[1:]], algorithm="maglev")
    slots = table("web")
    assert len(slots) == DEFAULT_SIZE
    for _ in range(60):
        with balanced.socket("tcp", family) as one:
            wanted = slots[slot_of(cookie_hash(cookie(one)), len(slots))]
            one.connect((vip, 80))
            assert farm.taker() == wanted
    assert balanced.stats("web", 4 if family == socket.AF_INET else 6).connections == 60
    clean()


def test_an_unconnected_socket_keeps_its_backend_while_others_come_and_go(balanced: Balanced) -> None:
    """A slot of a backend that stays is nearly always kept; the backend that went is not met again."""
    names = balanced.farm.many(5, "udp")
    balanced.add("dns", f"{VIP}:53/udp", backends=names, algorithm="maglev")
    with balanced.socket("udp") as one:
        one.sendto(b"?", (VIP, 53))
        first = balanced.farm.taker("udp")
        svc("backend", "delete", "dns", first)
        one.sendto(b"?", (VIP, 53))
        second = balanced.farm.taker("udp")
        assert second != first
        slots = table("dns")
        assert slots[slot_of(cookie_hash(cookie(one)), len(slots))] == second


def test_affinity_comes_first(balanced: Balanced) -> None:
    """A client with affinity stays, whatever slot its next socket has."""
    balanced.add("web", f"{VIP}:80/tcp", backends=balanced.farm.many(4), algorithm="maglev", affinity=60)
    assert len(balanced.ask_often(10, VIP, 80)) == 1


def test_weights_and_what_would_move(balanced: Balanced) -> None:
    """Exact shares; --without says what the deletion then does."""
    names = balanced.farm.many(4)
    balanced.add("web", f"{VIP}:80/tcp", backends=[*names[:3], f"{names[3]},weight=2"], algorithm="maglev")
    exact = DEFAULT_SIZE / 5
    assert all(
        abs(shares("web")[name] - exact * weight) < 1
        for name, weight in zip(names, (1, 1, 1, 2), strict=True)
    )
    before = table("web")
    assert sorted(svc("lut", "web", "-o", "name").out.split()) == sorted(names)
    ran = svc("lut", "web", "--without", names[0])
    assert "slots would move" in ran.err
    rows = {row["backend"]: row for row in svc("lut", "web", "--without", names[0], "-o", "json").json["lut"]}
    svc("backend", "delete", "web", names[0])
    after = table("web")
    assert {name: rows[name]["after"] for name in names[1:]} == dict(Counter(after))
    kept = Counter(one for one, other in zip(before, after, strict=True) if one == other)
    assert {name: rows[name]["kept"] for name in names} == {name: kept[name] for name in names}


def test_stable_moves_nothing_else(balanced: Balanced) -> None:
    """A backend that goes moves its own slots, one that comes takes what it needs."""
    names = balanced.farm.many(6)
    balanced.add("web", f"{VIP}:80/tcp", backends=names[:5], algorithm="maglev", stable=True, table_size=4093)
    one = table("web")
    svc("backend", "delete", "web", names[2])
    two = table("web")
    assert all(new == old for old, new in zip(one, two, strict=True) if old != names[2])
    svc("backend", "add", "web", names[5])
    three = table("web")
    assert all(new in (old, names[5]) for old, new in zip(two, three, strict=True))
    assert max(Counter(three).values()) - min(Counter(three).values()) <= 1
    clean()


def test_equal_sets_share_a_table(balanced: Balanced) -> None:
    """Of whichever service, and however its backends were named; it goes with the last."""
    names = balanced.farm.many(3)
    balanced.add("web", f"{VIP}:80/tcp", backends=names, algorithm="maglev")
    balanced.add("more", f"{OTHER}:80/tcp", backends=names[::-1], algorithm="maglev")
    assert len(pins(balanced)) == 1
    assert references(balanced) == [2]
    svc("backend", "set", "more", names[0], "--weight", 2)
    assert references(balanced) == [1, 1]
    clean()
    svc("service", "delete", "web")
    svc("service", "set", "more", "--algorithm", "random")
    assert pins(balanced) == []
    assert references(balanced) == []
    clean()


def test_changes_of_one_table_under_connects(balanced: Balanced) -> None:
    """Every connection is served by a backend of the set before or after."""
    names = balanced.farm.many(4)
    balanced.add("web", f"{VIP}:80/tcp", backends=names[:2], algorithm="maglev", table_size=251)
    for round_ in range(12):
        coming, going = names[2 + round_ % 2], names[2 + (round_ + 1) % 2]
        svc("backend", "add", "web", coming)
        assert set(balanced.ask_often(30, VIP, 80)) <= {*names[:2], coming, going}
        svc("backend", "delete", "web", coming)
        assert set(balanced.ask_often(30, VIP, 80)) <= set(names[:2])
    assert len(pins(balanced)) == 1


def test_upgrade_and_resize_keep_tables(balanced: Balanced) -> None:
    """The same slots afterwards, and the programs use them."""
    names = balanced.farm.many(3)
    balanced.add("web", f"{VIP}:80/tcp", backends=names, algorithm="maglev")
    before = table("web")
    svc("upgrade")
    svc("upgrade", "--max-services", 128)
    assert table("web") == before
    with balanced.socket() as one:
        wanted = before[slot_of(cookie_hash(cookie(one)), len(before))]
        one.connect((VIP, 80))
        assert balanced.farm.taker() == wanted
    clean()


def test_a_slot_of_a_backend_that_left(balanced: Balanced) -> None:
    """While a change is under way the table may still name a backend that the service has no more."""
    names = [f"10.1.0.{number}:80" for number in (1, 2, 3)]
    add = [word for one in names for word in ("--backend", one)]
    svc(
        "service",
        "add",
        "web",
        "--frontend",
        f"{VIP}:80/tcp",
        "--algorithm",
        "maglev",
        "--table-size",
        251,
        *add,
    )
    with open_reader(Place()) as reader:
        (table,) = [one for one in tables.tables_of(reader, "web") if one.slots]
    number, left = next(iter(table.backends.items()))
    rest = {key: value for key, value in table.backends.items() if key != number}
    members = tuple(one for one in table.set.members if one[0] != left)
    torn = table._replace(backends=rest, set=table.set._replace(members=members))
    for rows in (tables.shares(torn), tables.shares(torn, [members[0][0]])):
        assert len(rows) == 2
        assert sum(one.slots for one in rows) == 251 - list(table.slots).count(number)


def test_wrong_words(balanced: Balanced) -> None:
    """Sizes that are none, options without the algorithm, services without a table."""
    add = ("service", "add", "web", "--frontend", f"{VIP}:80/tcp")
    assert "expected one of 251" in svc(*add, "--algorithm", "maglev", "--table-size", 1000, code=2).err
    assert "for the algorithm maglev" in svc(*add, "--table-size", 251, code=2).err
    assert "for the algorithm maglev" in svc(*add, "--stable", code=2).err
    svc(*add)
    assert "its algorithm is random" in svc("lut", "web", code=5).err
    svc("lut", "nope", code=5)
    svc("service", "set", "web", "--algorithm", "maglev")
    assert svc("lut", "web", "-o", "json").json["lut"] == []  # nobody to choose from
    assert "no share" in svc("lut", "web", "--without", "10.1.2.3:80", code=5).err
    svc("lut", "web", "--raw", "--without", "10.1.2.3:80", code=2)
    assert balanced.error(VIP, 80)


def _lose_pin(balanced: Balanced) -> None:
    os.unlink(f"{balanced.state_dir}/{pins(balanced)[0]}")


def _lose_entry(balanced: Balanced) -> None:
    with Map.open_pinned(f"{balanced.state_dir}/lut") as lut:
        lut.delete(U32.pack(int(pins(balanced)[0][4:])))


def _lose_record(balanced: Balanced) -> None:
    with Map.open_pinned(f"{balanced.state_dir}/lut_sets") as sets:
        for key in [key for key, _ in sets.items()]:
            sets.delete(key)


def _miscount(balanced: Balanced) -> None:
    with Map.open_pinned(f"{balanced.state_dir}/lut_sets") as sets:
        for key, data in list(sets.items()):
            sets.update(key, LUT.pack(LUT.unpack(data)._replace(refs=9)))


def _stray_record(balanced: Balanced) -> None:
    with Map.open_pinned(f"{balanced.state_dir}/lut_sets") as sets:
        sets.update(bytes(16), LUT.pack(LUT.unpack(bytes(LUT.size))._replace(place=77, size=251, refs=1)))


def _stray_pin(balanced: Balanced) -> None:
    with Map.open_pinned(f"{balanced.state_dir}/{pins(balanced)[0]}", read_only=True) as inner:
        inner.pin(f"{balanced.state_dir}/lut_500")


def _lose_records_and_tails(balanced: Balanced) -> None:
    """All that is known of tables, beside what else cannot be judged while it is lost."""
    svc("attach", "dev", "nothing*", "--role", "workload", "--max-flows", 4096)
    for name in ("lut_sets", "tails"):
        os.unlink(f"{balanced.state_dir}/{name}")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (_lose_records_and_tails, "pin 'lut_sets' is missing"),
        (_lose_pin, "has no pin"),
        (_lose_entry, "is not in lut"),
        (_lose_record, "is not known"),
        (_miscount, "9 references, 1 blocks"),
        (_stray_record, "is no block's"),
        (_stray_pin, "is of no table"),
    ],
)
def test_broken_tables_are_found_and_mended(balanced: Balanced, damage: object, text: str) -> None:
    """Each kind of damage is named by `check`, mended by --repair, and connections go by the table again."""
    names = balanced.farm.many(3)
    balanced.add("web", f"{VIP}:80/tcp", backends=names, algorithm="maglev")
    assert callable(damage)
    damage(balanced)
    assert text in svc("check", code=1).out
    svc("check", "--repair")
    clean()
    assert len(pins(balanced)) == 1
    slots = table("web")
    with balanced.socket() as one:
        wanted = slots[slot_of(cookie_hash(cookie(one)), len(slots))]
        one.connect((VIP, 80))
        assert balanced.farm.taker() == wanted
