"""Breaks of what is in the maps: ids, destinations, bindings, counts, sockets."""

from __future__ import annotations

from svcctl.maps import layouts
from svcctl.maps.layouts import U32, U64
from svcctl.model.binding import KEY, parse_binding
from svcctl.state import destinations
from svcctl.state.bindings import encode_value
from tests.lib.breaks import Setup, case, put_meta
from tests.lib.sockets import find, put_socket, tcp, writer

# ids


def change(label: str, family: int = 4, protocol: int = 6, **fields: int) -> None:
    with writer() as state:
        destinations.put(state, find(state, label, family, protocol)._replace(**fields))  # type: ignore[arg-type]


@case("ids", "which is also", mended=False)
def two_with_one_id(setup: Setup) -> None:
    with writer() as state:
        number = find(state, "web").id
    change("dns", 4, 17, id=number)


@case("ids", "of at most 64", mended=False)
def id_out_of_range(setup: Setup) -> None:
    change("web", id=64)


@case("ids", "the next id is 1, but 2 is in use")
def next_id_too_low(setup: Setup) -> None:
    put_meta(next_destination=1)


@case("ids", "the next id is 65")
def next_id_too_high(setup: Setup) -> None:
    put_meta(next_destination=65)


# destinations


def put_destination(raw: bytes, number: int) -> None:
    with writer() as state:
        state.map("destinations").update(
            raw, layouts.DESTINATION.pack(layouts.DestinationValue(number, 0, 0, 0))
        )


@case("destinations", "has a name that is none")
def nameless_destination(setup: Setup) -> None:
    put_destination(bytes(255) + bytes((4, 6)), 1)


@case("destinations", "has a name that is none")
def destination_of_no_protocol(setup: Setup) -> None:
    put_destination(b"x".ljust(255, b"\0") + bytes((4, 99)), 1)


@case("destinations", "has a name that is none")
def destination_with_a_torn_name(setup: Setup) -> None:
    put_destination(b"a\0b".ljust(255, b"\0") + bytes((4, 6)), 1)


@case("destinations", "has a name that is none")
def destination_with_control_characters(setup: Setup) -> None:
    put_destination(b"a\x1b[31m".ljust(255, b"\0") + bytes((4, 6)), 1)


@case("destinations", "slots above 15")
def slots_out_of_range(setup: Setup) -> None:
    change("web", slots=0x10001)


# bindings


def put_binding(name: str, raw: bytes, value: bytes) -> None:
    with writer() as state:
        state.map(name).update(raw, value)


@case("bindings", "unknown protocol 99")
def exact_of_no_protocol(setup: Setup) -> None:
    key = KEY.pack(160, 99, 4, 80, bytes(10) + b"\xff\xff" + bytes(4))
    put_binding("exact", key[4:], encode_value(key, 0))


@case("bindings", "the address is of the other family")
def prefix_of_the_other_family(setup: Setup) -> None:
    key = KEY.pack(128, 6, 4, 80, bytes(16))
    put_binding("bindings", key, encode_value(key, 0))


@case("bindings", "bits below the prefix length")
def prefix_with_host_bits(setup: Setup) -> None:
    """The trie takes it as what it stands for; the entry it replaces is written anew."""
    sound = parse_binding("web", "tcp", "192.0.2.0/24", "443").key()
    with writer() as state:
        value = state.map("bindings").lookup(sound)
        assert value is not None
        assert state.map("bindings").delete(sound)
        state.map("bindings").update(sound[:-1] + b"\x05", value)


@case("bindings", "belongs into 'exact'")
def host_in_the_trie(setup: Setup) -> None:
    key = parse_binding("web", "tcp", "127.0.0.1", "80").key()
    with writer() as state:
        value = state.map("exact").lookup(key[4:])
        assert value is not None
        state.map("bindings").update(key, encode_value(key, U32.unpack_from(value)[0])[:4] + U32.pack(160))
        state.map("exact").delete(key[4:])


@case("bindings", "the value does not belong to the key")
def exact_check_is_wrong(setup: Setup) -> None:
    key = parse_binding("web", "tcp", "127.0.0.1", "80").key()
    put_binding("exact", key[4:], layouts.EXACT.pack(layouts.ExactValue(0, 1)))


@case("bindings", "the value does not belong to the key")
def prefix_length_is_wrong(setup: Setup) -> None:
    key = parse_binding("web", "tcp", "192.0.2.0/24", "443").key()
    put_binding("bindings", key, layouts.BINDING.pack(layouts.BindingValue(0, 7)))


@case("bindings", "bind --replace", mended=False)
def binding_to_nobody(setup: Setup) -> None:
    key = parse_binding("web", "tcp", "127.0.0.1", "80").key()
    put_binding("exact", key[4:], encode_value(key, 50))


@case("bindings", "bind --replace", mended=False)
def binding_to_another_protocol(setup: Setup) -> None:
    with writer() as state:
        number = find(state, "dns", 4, 17).id
    key = parse_binding("web", "tcp", "127.0.0.1", "80").key()
    put_binding("exact", key[4:], encode_value(key, number))


# references, ports, usage


@case("references", "web#tcp:ipv4: 9 references, 2 bindings")
def references_too_many(setup: Setup) -> None:
    change("web", refs=9)


@case("references", "web#tcp:ipv4: 0 references, 2 bindings")
def references_too_few(setup: Setup) -> None:
    change("web", refs=0)


@case("ports", "tcp port 80: 5 exact and 0 prefixes noted, 1 and 0 counted")
def ports_too_many(setup: Setup) -> None:
    put_binding("ports", U32.pack(80), U32.pack(5) + U32.pack(0))


@case("ports", "udp port 53: 0 exact and 0 prefixes noted, 1 and 0 counted")
def ports_too_few(setup: Setup) -> None:
    put_binding("ports", U32.pack(65536 + 53), bytes(8))


@case("ports", "more ports with wrong counts")
def all_ports(setup: Setup) -> None:
    with writer() as state:
        for number in range(1000, 1050):
            state.map("ports").update(U32.pack(number), U32.pack(1) * 2)


for _name in ("bindings", "exact", "destinations"):

    def _usage(setup: Setup, name: str = _name) -> None:
        with writer() as state:
            state.put_usage(name, layouts.Usage(40, 3))

    _usage.__name__ = f"usage_of_{_name}"
    case("usage", f"{_name}: 40 of 3 noted")(_usage)


# sockets


@case("sockets", "a socket nobody registered")
def socket_in_an_unnoted_slot(setup: Setup) -> None:
    with writer() as state:
        put_socket(state, find(state, "web"), 5, setup.web, note=False)


@case("sockets", "a socket nobody registered", same=False)
def socket_under_a_gone_destination(setup: Setup) -> None:
    with writer() as state:
        state.map("sockets").update(U32.pack(1 * 16), U64.pack(setup.web.fileno()))
        state.map("destinations").delete(destinations.encode_key(find(state, "web", 6).key))
        state.map("bindings").delete(parse_binding("web", "tcp", "2001:db8::/32", "0").key())


@case("sockets", "which was never handed out, holds a socket")
def socket_under_a_future_id(setup: Setup) -> None:
    with writer() as state:
        state.map("sockets").update(U32.pack(30 * 16 + 2), U64.pack(setup.web.fileno()))


@case("sockets", "holds an ipv4 udp socket")
def socket_of_another_protocol(setup: Setup) -> None:
    with writer() as state:
        put_socket(state, find(state, "web"), 3, setup.dns)


@case("sockets", "holds an ipv4 tcp socket")
def socket_of_another_family(setup: Setup) -> None:
    with writer() as state:
        put_socket(state, find(state, "web", 6), 3, setup.web)


@case("sockets", "holds an ipv6 tcp socket")
def v6only_socket_for_ipv4(setup: Setup) -> None:
    sock = tcp("::1")
    setup.close_later.append(sock)
    with writer() as state:
        put_socket(state, find(state, "web"), 3, sock)


# hints, counters


@case("hints", "is slot 16")
def hint_out_of_range(setup: Setup) -> None:
    put_binding("hints", U32.pack(0), U32.pack(16))


@case("hints", "never handed out, has a hint")
def hint_of_a_future_id(setup: Setup) -> None:
    put_binding("hints", U32.pack(40), U32.pack(3))


@case("counters", "has counted 7 lookups")
def counters_of_a_future_id(setup: Setup) -> None:
    with writer() as state:
        stats = state.map("dispatch_stats")
        stats.update(U32.pack(40), U64.pack(7) + bytes(stats.value_bytes - 8))
