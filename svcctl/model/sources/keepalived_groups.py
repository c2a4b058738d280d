"""virtual_server_group of keepalived.conf: addresses, ranges of addresses, and ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.bad_value import BadValue, show
from svcctl.model.constants import IPV4
from svcctl.model.prefix import parse_address
from svcctl.model.sources.ipvs import number
from svcctl.model.sources.problem import InputProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.model.sources.keepalived_grammar import Statement
    from svcctl.model.sources.lost import Lost

    Addresses = list[tuple[int, bytes, int]]
    """Family, 16 bytes, port."""

MAX_ADDRESSES = 65536


def read_groups(statements: Sequence[Statement], lost: Lost) -> dict[str, Addresses]:
    """The groups of a file by name. Raises InputProblem."""
    groups: dict[str, Addresses] = {}
    for statement in statements:
        if statement.words[0] != "virtual_server_group":
            continue
        if len(statement.words) != 2 or statement.block is None:
            raise InputProblem(lost.source, "expected a name and a block", line=statement.line)
        name = statement.words[1]
        if name in groups:
            cause = f"virtual_server_group {show(name)} is there already"
            raise InputProblem(lost.source, cause, line=statement.line)
        group: Addresses = []
        for member in statement.block:
            if member.words[0] == "fwmark":
                mark = " ".join(member.words)
                lost.refuse(member.line, f"{mark} of {name}: there is no counterpart to marks")
            elif len(member.words) != 2:
                raise InputProblem(lost.source, "expected an address and a port", line=member.line)
            else:
                group += _read_range(member.words[0], member.words[1], member.line, lost)
                if len(group) > MAX_ADDRESSES:
                    cause = f"more than {MAX_ADDRESSES} addresses in a group"
                    raise InputProblem(lost.source, cause, line=member.line)
        groups[name] = group
    return groups


def read_address(text: str, port_text: str, line: int, lost: Lost) -> Addresses:
    """One address and its port. Raises InputProblem."""
    try:
        family, address = parse_address(text)
    except BadValue as problem:
        raise InputProblem(lost.source, problem.message, line=line, hint=problem.hint) from None
    port = number(port_text, 65535, "port", line, lost)
    if not port:
        lost.refuse(line, f"{text}: port 0, all ports, has no counterpart")
        return []
    return [(family, address, port)]


def _read_range(text: str, port: str, line: int, lost: Lost) -> Addresses:
    """`192.0.2.3-10`: the last number counts up to that; of IPv6 the last word, which is hexadecimal."""
    first, dash, last_text = text.partition("-")
    start = read_address(first, port, line, lost)
    if not dash or not start:
        return start
    family, address, number_of_port = start[0]
    size, base = (1, 10) if family == IPV4 else (2, 16)
    low = int.from_bytes(address[-size:], "big")
    try:
        high = int(last_text, base) if last_text.isalnum() and last_text.isascii() else -1
    except ValueError:
        high = -1
    if not low <= high < 1 << (8 * size):
        raise InputProblem(lost.source, f"{show(text)} is no range of addresses", line=line)
    return [
        (family, address[:-size] + value.to_bytes(size, "big"), number_of_port)
        for value in range(low, high + 1)
    ]
