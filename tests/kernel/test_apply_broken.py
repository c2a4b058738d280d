"""Maps that hands have broken, and full ones: ids are never taken from what is broken, nothing is written in part."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from svcctl.errors import Full
from svcctl.maps import catalog, layouts
from svcctl.maps import service_codec as codec
from svcctl.maps.layouts import U32
from svcctl.maps.service_layouts import BACKEND_ID, CURRENT, SERVICE, SLOT_KEY
from svcctl.model.service import MAGLEV, Service
from svcctl.state.place import Place
from svcctl.state.services import current_blocks
from svcctl.state.writer import Writer, open_writer
from tests.lib.applying import actions, apply, desired, maps, plain, plain_services, problems, service, stored
from tests.lib.balanced import VIP, Balanced
from tests.lib.inspect_state import generation
from tests.lib.pins import dump

MOVING = ("drop_stats", "service_stats", "affinity", "reverse", "meta", "writers")


def wanted(balanced: Balanced) -> list[Service]:
    first, second = balanced.farm.many(2)
    return [
        service("one", f"{VIP}:80/tcp", first),
        service("two", f"{VIP}:81/tcp", second),
        service("kept", f"{VIP}:82/tcp", f"{first} {second}"),
    ]


def value_of(writer: Writer, name: str):
    number = writer.map("service_names").lookup(codec.name_key(name))
    assert number is not None
    data = writer.map("services").lookup(number)
    assert data is not None
    return number, SERVICE.unpack(data)


def two_values_with_one_id(writer: Writer) -> None:
    number, value = value_of(writer, "two")
    writer.map("services").update(number, SERVICE.pack(value._replace(id=value_of(writer, "one")[1].id)))


def two_names_with_one_id(writer: Writer) -> None:
    writer.map("service_names").update(codec.name_key("two"), value_of(writer, "one")[0])


def two_services_with_one_lane(writer: Writer) -> None:
    number, value = value_of(writer, "two")
    writer.map("services").update(
        number, SERVICE.pack(value._replace(lane4=value_of(writer, "one")[1].lane4))
    )


def two_services_with_one_name(writer: Writer) -> None:
    number, value = value_of(writer, "two")
    writer.map("services").update(number, SERVICE.pack(value._replace(name=b"one")))


def a_lane_that_is_none(writer: Writer) -> None:
    number, value = value_of(writer, "two")
    writer.map("services").update(number, SERVICE.pack(value._replace(lane4=1_000_000)))


def a_lane_that_leads_to_another(writer: Writer) -> None:
    one, two = value_of(writer, "one")[1].lane4, value_of(writer, "two")[1].lane4
    data = writer.map("current").lookup(U32.pack(one))
    assert data is not None
    writer.map("current").update(U32.pack(two), data)


def a_lane_that_leads_nowhere(writer: Writer) -> None:
    writer.map("current").update(U32.pack(value_of(writer, "two")[1].lane4), bytes(CURRENT.size))


def a_lost_member(writer: Writer) -> None:
    writer.map("service_members").delete(next(key for key, _ in writer.map("service_members").items()))


def a_lost_frontend(writer: Writer) -> None:
    writer.map("frontends").delete(next(key for key, _ in writer.map("frontends").items()))


def two_backends_with_one_id(writer: Writer) -> None:
    (one, data), (two, _) = list(writer.map("backend_ids").items())[:2]
    writer.map("backend_ids").update(two, data)
    assert one != two
    assert BACKEND_ID.unpack(data).id


BROKEN = (
    two_values_with_one_id,
    two_names_with_one_id,
    two_services_with_one_lane,
    two_services_with_one_name,
    a_lane_that_is_none,
    a_lane_that_leads_to_another,
    a_lane_that_leads_nowhere,
    a_lost_member,
    a_lost_frontend,
    two_backends_with_one_id,
)


@pytest.mark.parametrize("damage", BROKEN, ids=[one.__name__ for one in BROKEN])
def test_the_same_apply_makes_it_right(balanced: Balanced, damage: Callable[[Writer], None]) -> None:
    there = wanted(balanced)
    apply(desired(*there))
    before = stored()
    with open_writer(Place(), "test") as writer:
        damage(writer)
    assert problems() != []
    apply(desired(*there))
    assert problems() == []
    assert plain_services() == {one.name: plain(one) for one in there}
    first, second = (f"127.0.1.{n}:8080" for n in (1, 2))
    assert [balanced.ask(VIP, 80), balanced.ask(VIP, 81)] == [first, second]
    assert balanced.ask(VIP, 82) in (first, second)
    again = generation()
    apply(desired(*there))
    assert generation() == again
    if damage in (two_values_with_one_id, two_services_with_one_lane):
        after = stored()
        old = {one.service.id for one in before.values()}
        assert {after[name].service.id for name in ("one", "two")}.isdisjoint(old)
        assert after["kept"].service.id == before["kept"].service.id


def test_who_shares_an_id_gets_another_even_when_only_one_is_asked_for(balanced: Balanced) -> None:
    there = wanted(balanced)
    apply(desired(*there))
    with open_writer(Place(), "test") as writer:
        two_services_with_one_lane(writer)
    done = apply(desired(there[0]), prune=False)
    assert actions(done) == {"one": "changed", "two": "changed"}
    assert problems() == []
    assert balanced.ask(VIP, 81) == "127.0.1.2:8080"


@pytest.mark.parametrize(
    "table", ["slots", "service_members", "blocks", "frontends", "backends", "service_names", "source_ranges"]
)
def test_full_maps_are_found_before_the_first_write(balanced: Balanced, table: str) -> None:
    there = wanted(balanced)
    apply(desired(*there))
    with open_writer(Place(), "test") as writer:
        usage = writer.usage(table)
        writer.put_usage(table, usage._replace(used=writer.map(table).info.max_entries))
    before = dump(balanced.state_dir, but=MOVING)
    more = service("more", f"{VIP}:90/tcp", "10.1.0.1:1", kind=2, sources="10.0.0.0/8")
    with pytest.raises(Full, match=f"map '{table}' is full") as raised:
        apply(desired(*there, more))
    assert catalog.USAGE_OPTIONS[table] in (raised.value.hint or "")
    assert dump(balanced.state_dir, but=MOVING) == before
    assert layouts.SCHEMA


@pytest.mark.parametrize("few", [0, 10**9], ids=["whole maps", "look-ups"])
@pytest.mark.parametrize("lost", [False, True], ids=["sound", "a lost slot"])
def test_nothing_is_left_of_a_block_that_goes(
    balanced: Balanced, monkeypatch: pytest.MonkeyPatch, few: int, lost: bool
) -> None:
    monkeypatch.setattr("svcctl.state.service_snapshot._FEW_SLOTS", few)
    first, second = balanced.farm.many(2)
    backends = f"{first},weight=3 {second} 10.1.0.3:80,state=draining 10.1.0.4:80,weight=0"
    some = service("some", f"{VIP}:80/tcp [2001:db8::1]:80/tcp", backends, internal_local=True)
    table = service("table", f"{VIP}:81/tcp", backends, algorithm=MAGLEV)
    apply(desired(some, table, service("kept", f"{VIP}:82/tcp", first)))
    with open_writer(Place(), "test") as writer:
        slots = writer.map("slots")
        if lost:
            kept = stored()["kept"].lanes.values()
            blocks = {block for lane in kept for block in current_blocks(writer, lane)}
            key = next(key for key, _ in slots.items() if SLOT_KEY.unpack(key).block not in blocks)
            slots.delete(key)
    done = apply(desired(some._replace(members=()), service("kept", f"{VIP}:82/tcp", first)))
    assert actions(done) == {"some": "changed", "table": "deleted", "kept": "unchanged"}
    found = problems()
    assert found == [] or (lost and all(one.startswith("usage") for one in found)), found
    assert len(maps(["slots"])["slots"]) == 1
