"""keepalived.conf: its virtual servers, with the addresses and weights of their real servers.

Health checks and VRRP are a daemon's work and stay keepalived's: they are named and not converted. Its scripts
can call `svcctl backend drain` and `backend set` when a check fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.bad_value import BadValue, show
from svcctl.model.constants import PROTOCOL_NUMBERS
from svcctl.model.desired import KEEPALIVED, Desired
from svcctl.model.prefix import format_host_port, parse_address
from svcctl.model.service_endpoint import Frontend, format_backend, format_frontend
from svcctl.model.sources.ipvs import Virtual, convert_persistence, convert_weight, number, read_backend
from svcctl.model.sources.keepalived_grammar import parse
from svcctl.model.sources.keepalived_groups import read_address, read_groups
from svcctl.model.sources.lost import Lost
from svcctl.model.sources.problem import InputProblem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.model.desired import Notice
    from svcctl.model.service import Service
    from svcctl.model.sources.keepalived_grammar import Statement
    from svcctl.model.sources.keepalived_groups import Addresses
    from svcctl.model.sources.options import Options

DEFAULT_PERSISTENCE = "360"
"""Seconds, of persistence_timeout without a number; later versions have another default."""

HEALTH_CHECKS = frozenset(
    """HTTP_GET SSL_GET TCP_CHECK SMTP_CHECK DNS_CHECK UDP_CHECK MISC_CHECK PING_CHECK BFD_CHECK FILE_CHECK""".split()
)
_OF_CHECKS = frozenset(
    """delay_loop alpha omega quorum hysteresis quorum_up quorum_down retry delay_before_retry warmup
    notify_up notify_down inhibit_on_failure virtualhost snmp_name log_all_failures smtp_alert
    no_smtp_alert ha_suspend alpha_up connect_timeout""".split()
)
_THRESHOLDS = frozenset({"uthreshold", "lthreshold"})


def read(texts: Sequence[tuple[str, str]], options: Options) -> Desired:
    """The virtual servers of all files. Raises InputProblem."""
    owner = options.owner or KEEPALIVED
    services: dict[str, Service] = {}
    notices: list[Notice] = []
    for source, text in texts:
        lost = Lost(source, options)
        statements = parse(source, text)
        groups = read_groups(statements, lost)
        for statement in statements:
            if statement.words[0] == "virtual_server":
                virtual = _virtual_server(statement, groups, lost)
                service = virtual.service(owner, lost) if virtual else None
                if service is not None:
                    if service.name in services:
                        cause = f"virtual server {service.name} is there already"
                        raise InputProblem(source, cause, line=statement.line)
                    services[service.name] = service
            elif statement.words[0] != "virtual_server_group":
                lost.note(statement.line, f"{statement.words[0]} is not converted: it stays keepalived's")
        notices += lost.notices()
    return Desired(KEEPALIVED, owner, tuple(services.values()), notices=tuple(notices))


def _virtual_server(statement: Statement, groups: Mapping[str, Addresses], lost: Lost) -> Virtual | None:
    """None if it has been refused."""
    if statement.block is None:
        raise InputProblem(lost.source, "a virtual server without a block", line=statement.line)
    said = _said(statement.block, lost)
    protocol = said.get("protocol", (["protocol", "TCP"], 0))
    name = protocol[0][1].lower() if len(protocol[0]) > 1 else ""
    addresses, title = _addresses(statement, groups, lost)
    if addresses is None:
        return None
    if name not in PROTOCOL_NUMBERS:
        if name != "sctp":
            raise InputProblem(lost.source, "expected the protocol TCP, UDP or SCTP", line=protocol[1])
        lost.refuse(statement.line, f"{title}: SCTP is not served")
        return None
    frontends = [Frontend(*each, PROTOCOL_NUMBERS[name]) for each in addresses]
    label = f"{title}/{name}" if statement.words[1] == "group" else format_frontend(frontends[0])
    refusal = _refusal(said)
    if refusal:
        lost.refuse(statement.line, f"{label}: {refusal}")
        return None
    virtual = Virtual(label, statement.line, list(dict.fromkeys(frontends)))
    words, _ = said.get("lb_algo", (["lb_algo", "wlc"], 0))
    virtual.scheduler = words[1] if len(words) > 1 else ""
    if "persistence_timeout" in said:
        words, line = said["persistence_timeout"]
        text = words[1] if len(words) > 1 else DEFAULT_PERSISTENCE
        virtual.affinity_seconds = convert_persistence(text, line, lost)
    _real_servers(statement.block, said, virtual, lost)
    return virtual


def _said(block: list[Statement], lost: Lost) -> dict[str, tuple[list[str], int]]:
    """Word -> (its line's words, line) of what a virtual server says of itself; later lines win, as there."""
    aliases = {"lvs_sched": "lb_algo", "lvs_method": "lb_kind"}
    known = frozenset(
        """protocol lb_algo lb_kind persistence_timeout persistence_granularity persistence_engine ops weight""".split()
    )
    said: dict[str, tuple[list[str], int]] = {}
    for statement in block:
        word = aliases.get(statement.words[0], statement.words[0])
        if word in known:
            said[word] = (statement.words, statement.line)
        elif word == "sorry_server":
            text = " ".join(statement.words[1:])
            lost.refuse(statement.line, f"sorry_server {text}: there is no second tier of backends")
        elif word == "real_server":
            continue
        elif word in _OF_CHECKS or word in HEALTH_CHECKS:
            lost.note(statement.line, f"{word} is not converted: health checks stay keepalived's")
        else:
            lost.tell(statement.line, f"{word} is not converted")
    return said


def _refusal(said: Mapping[str, tuple[list[str], int]]) -> str:
    if "ops" in said:
        return "one-packet scheduling (ops) has no counterpart"
    if "persistence_engine" in said:
        return "persistence engines have no counterpart"
    words, _ = said.get("persistence_granularity", ([], 0))
    if len(words) > 1 and words[1] not in ("255.255.255.255", "32", "128"):
        return f"persistence of whole networks (persistence_granularity {words[1]}) has no counterpart"
    return ""


def _addresses(
    statement: Statement, groups: Mapping[str, Addresses], lost: Lost
) -> tuple[Addresses | None, str]:
    """(addresses with ports, None if refused; what to call the virtual server)."""
    words = statement.words[1:]
    title = " ".join(words)
    if words[:1] == ["fwmark"]:
        lost.refuse(statement.line, f"virtual_server {title}: there is no counterpart to marks")
        return None, title
    if words[:1] == ["group"]:
        if len(words) != 2 or words[1] not in groups:
            cause = f"there is no virtual_server_group {show(' '.join(words[1:]))}"
            raise InputProblem(lost.source, cause, line=statement.line)
        addresses = groups[words[1]]
        if not addresses:
            lost.refuse(statement.line, f"virtual_server {title}: the group has no address left")
            return None, title
        return addresses, words[1]
    if len(words) != 2:
        cause = "expected an address and a port behind virtual_server"
        raise InputProblem(lost.source, cause, line=statement.line)
    return read_address(words[0], words[1], statement.line, lost) or None, title


def _real_servers(
    block: list[Statement], said: Mapping[str, tuple[list[str], int]], virtual: Virtual, lost: Lost
) -> None:
    usual_kind = said.get("lb_kind", ([], 0))[0]
    usual_weight = said.get("weight", (["weight", "1"], 0))[0]
    for statement in block:
        if statement.words[0] != "real_server":
            continue
        line = statement.line
        kind, weight = usual_kind, usual_weight
        for inner in statement.block or ():
            word = inner.words[0]
            if word == "weight":
                weight = inner.words
            elif word in ("lb_kind", "lvs_method"):
                kind = inner.words
            elif word in _THRESHOLDS:
                lost.tell(inner.line, "thresholds of connections are not converted")
            elif word in HEALTH_CHECKS or word in _OF_CHECKS:
                lost.note(inner.line, f"{word} is not converted: health checks stay keepalived's")
            else:
                lost.tell(inner.line, f"{word} is not converted")
        backend = read_backend(_place(statement.words[1:], virtual, line, lost), line, lost)
        if (kind[1:2] or [""])[0].upper() != "NAT":
            said_kind = " ".join(kind) or "no lb_kind"
            lost.refuse(line, f"{format_backend(backend)}: {said_kind}: only NAT can be converted")
            continue
        if backend in virtual.members:
            raise InputProblem(lost.source, f"{format_backend(backend)} is there already", line=line)
        virtual.members[backend] = convert_weight((weight[1:2] or [""])[0], backend, line, lost)


def _place(words: list[str], virtual: Virtual, line: int, lost: Lost) -> str:
    """ADDRESS:PORT of a real server; without a port it is that of the virtual server."""
    if len(words) not in (1, 2):
        cause = "expected an address and a port behind real_server"
        raise InputProblem(lost.source, cause, line=line)
    port = number(words[1], 65535, "port", line, lost) if len(words) == 2 else 0
    try:
        family, address = parse_address(words[0])
    except BadValue as problem:
        raise InputProblem(lost.source, problem.message, line=line, hint=problem.hint) from None
    return format_host_port(family, address, port or virtual.frontends[0].port)
