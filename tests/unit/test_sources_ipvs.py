"""ipvsadm's rules and keepalived.conf: what is converted, what is refused and by which line."""

from __future__ import annotations

from pathlib import Path

import pytest

from svcctl.model.desired import IPVSADM, KEEPALIVED, Desired
from svcctl.model.service import MAGLEV, RANDOM
from svcctl.model.service_endpoint import (
    STATE_NAMES,
    format_backend,
    format_frontend,
)
from svcctl.model.sources.detect import read_inputs
from svcctl.model.sources.options import Options
from svcctl.model.sources.problem import InputProblem
from tests.lib.cli import ROOT

DATA = Path(ROOT) / "tests" / "data" / "sources"
PARTIAL = Options(partial=True)


def read(text: str, options: Options = Options()) -> Desired:  # noqa: B008
    (desired,) = read_inputs([("rules", text.encode())], options)
    return desired


def problem(text: str) -> InputProblem:
    with pytest.raises(InputProblem) as caught:
        read(text)
    return caught.value


def backends(desired: Desired, number: int = 0) -> dict[str, tuple[int, str]]:
    """Backend -> weight and state of one service."""
    members = desired.services[number].members
    return {format_backend(one.backend): (one.weight, STATE_NAMES[one.state]) for one in members}


def notices(desired: Desired) -> str:
    return "\n".join(f"{each.level}: {each.subject}: {each.text}" for each in desired.notices)


def test_saved_rules() -> None:
    """What can be converted of the sample, and its refusals."""
    text = (DATA / "ipvsadm.rules").read_text()
    refused = problem(text)
    for words in ("line 8: firewall mark 7", "line 9:", "line 10: 192.0.2.11:0/tcp: port 0", "line 11:"):
        assert words in refused.message
    assert "--partial" in str(refused.hint)
    desired = read(text, PARTIAL)
    assert (desired.kind, desired.owner, desired.bindings, desired.blockers) == (IPVSADM, IPVSADM, None, ())
    assert [
        (
            each.name,
            [format_frontend(one.frontend) for one in each.frontends],
            each.affinity_seconds,
            each.algorithm,
        )
        for each in desired.services
    ] == [
        ("192.0.2.10:80/tcp", ["192.0.2.10:80/tcp"], 600, RANDOM),
        ("192.0.2.10:53/udp", ["192.0.2.10:53/udp"], 0, RANDOM),
        ("[2001:db8::10]:443/tcp", ["[2001:db8::10]:443/tcp"], 0, MAGLEV),
    ]
    assert backends(desired) == {"10.0.0.11:8080": (1, "active"), "10.0.0.12:8080": (3, "active")}
    assert backends(desired, 1) == {"10.0.0.21:53": (1, "active")}
    assert backends(desired, 2) == {"[fd00::11]:8443": (1, "active")}
    told = notices(desired)
    assert "warning: rules: line 5: thresholds" in told
    assert "warning: rules: line 8: left out: firewall mark 7" in told
    assert "line 1: the scheduler wlc" in told


V = "-A -t 10.0.0.1:80\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (V + "-a -t 10.0.0.1:80 -r 10.1.0.1 -m", {"10.1.0.1:80": (1, "active")}),
        (V + "-a -t 10.0.0.1:80 -r 10.1.0.1:0 -m", {"10.1.0.1:80": (1, "active")}),
        (V + "-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 0", {"10.1.0.1:8080": (1, "draining")}),
        (V + "-a -t10.0.0.1:80 -r10.1.0.1:8080 -mw9", {"10.1.0.1:8080": (9, "active")}),
        ("ipvsadm -At 10.0.0.1:80\n/sbin/ipvsadm -at 10.0.0.1:80 -r 10.1.0.1:8080 -m", {"10.1.0.1:8080": (1, "active")}),
        (
            "--add-service --tcp-service=10.0.0.1:80 --scheduler rr\n--add-server --tcp-service 10.0.0.1:80 --real-server 10.1.0.1:1 --masquerading --weight=4",
            {"10.1.0.1:1": (4, "active")},
        ),
        ("-A -t 10.0.0.1:http\n-a -t 10.0.0.1:http -r 10.1.0.1 -m\n", {"10.1.0.1:80": (1, "active")}),
        (V + "-a -t 10.0.0.1:80 -r 10.1.0.1:1 -m\n-e -t 10.0.0.1:80 -r 10.1.0.1:1 -m -w 5", {"10.1.0.1:1": (5, "active")}),
        (V + "-a -t 10.0.0.1:80 -r 10.1.0.1:1 -m\n-d -t 10.0.0.1:80 -r 10.1.0.1:1", {}),
        ("# saved\n\n-C\n" + V + "-Z\n--set 900 120 300\n", {}),
        ("-A -t 10.9.0.1:80\n-C\n" + V, {}),
        ("-A -t 10.9.0.1:80\n-D -t 10.9.0.1:80\n" + V, {}),
        ("-A -t [fd00::1]:80 -s rr\n-a -t [fd00::1]:80 -r [fd00::2] -m", {"[fd00::2]:80": (1, "active")}),
    ],
)  # fmt: skip
def test_command_lines(text: str, wanted: dict[str, tuple[int, str]]) -> None:
    desired = read(text)
    assert len(desired.services) == 1
    assert backends(desired) == wanted


@pytest.mark.parametrize(
    ("options", "seconds", "algorithm"),
    [
        ("", 0, RANDOM),
        ("-s rr", 0, RANDOM),
        ("-s mh", 0, MAGLEV),
        ("-p", 300, RANDOM),
        ("-p 60", 60, RANDOM),
        ("-p -s sh", 300, MAGLEV),
        ("--persistent=9 -M 255.255.255.255", 9, RANDOM),
    ],
)
def test_options_of_a_service(options: str, seconds: int, algorithm: int) -> None:
    (service,) = read(f"-A -t 10.0.0.1:80 {options}").services
    assert (service.affinity_seconds, service.algorithm) == (seconds, algorithm)
    (service,) = read(f"{V}-E -t 10.0.0.1:80 {options}").services
    assert (service.affinity_seconds, service.algorithm) == (seconds, algorithm)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("-A -t 10.0.0.1:80\n-A -t 10.0.0.1:80", 2, "is there already"),
        ("-A -t 10.0.0.1:80\n-a -t 10.0.0.2:80 -r 10.1.0.1 -m", 2, "is not there"),
        (V + "-a -t 10.0.0.1:80 -m", 2, "needs -r"),
        (V + "-a -t 10.0.0.1:80 -r 10.1.0.1 -m\n-a -t 10.0.0.1:80 -r 10.1.0.1 -m", 3, "is a server of"),
        (V + "-e -t 10.0.0.1:80 -r 10.1.0.1 -m", 2, "is no server of"),
        (V + "-d -t 10.0.0.1:80 -r 10.1.0.1", 2, "is no server of"),
        (V + "-a -t 10.0.0.1:80 -r 10.1.0.1 -m -w x", 2, "weight: expected 0-65535, got 'x'"),
        (V + "-a -t 10.0.0.1:80 -r web -m", 2, "is not an IPv4 address"),
        ("-A -t web:http", 1, "is not an IPv4 address"),
        ("-A -t 10.0.0.1", 1, "expected a colon and a port"),
        ("-A -t 10.0.0.1:1-9", 1, "expected one port"),
        ("-A -t 10.0.0.1:80 -s nope", 1, "unknown scheduler 'nope'"),
        ("-A -t 10.0.0.1:80 -p 0", 1, "at least 1 second"),
        ("-A -t 10.0.0.1:80 -q", 1, "unknown option '-q'"),
        ("-A -t 10.0.0.1:80 --nope=1", 1, "unknown option '--nope=1'"),
        ("-A -t 10.0.0.1:80 stray", 1, "expected an option, got 'stray'"),
        ("-A -t", 1, "-t needs a value"),
        ("-A -a -t 10.0.0.1:80", 1, "two commands"),
        ("-A -t 10.0.0.1:80 -t 10.0.0.1:81", 1, "says --tcp-service twice"),
        (V + "-t 10.0.0.1:80", 2, "has no command"),
        (V + "-A -s rr", 2, "names no service"),
        ("-A -u 224.0.0.1:80", 1, "multicast"),
        ("-A -t 0.0.0.0:80", 1, "zero address"),
    ],
)
def test_what_ipvsadm_would_not_take(text: str, line: int, words: str) -> None:
    found = problem(text)
    assert found.line == line, found.message
    assert words in found.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-A -f 7", "line 1: firewall mark 7"),
        ("-A --sctp-service 10.0.0.1:80", "line 1: 10.0.0.1:80/sctp: SCTP"),
        ("-A -t 10.0.0.1:0 -p", "line 1: 10.0.0.1:0/tcp: port 0"),
        ("-A -t 10.0.0.1:80 -s dh", "line 1: the scheduler dh"),
        ("-A -u 10.0.0.1:80 -o", "one-packet"),
        ("-A -u 10.0.0.1:80 -p --pe sip", "engine sip"),
        ("-A -t 10.0.0.1:80 -p 9 -M 255.255.255.0", "whole networks"),
        (V + "-a -t 10.0.0.1:80 -r 10.1.0.1", "line 2: 10.1.0.1:80: direct routing"),
        (V + "-a -t 10.0.0.1:80 -r 10.1.0.1 -g", "direct routing"),
        (V + "-a -t 10.0.0.1:80 -r 10.1.0.1 -i", "tunnelling"),
        (V + "-E -t 10.0.0.1:80 -p -M 255.0.0.0", "line 2: 10.0.0.1:80/tcp: persistence of whole"),
    ],
)
def test_refusals_give_way_to_partial(text: str, words: str) -> None:
    assert words in problem(text).message
    desired = read(text, PARTIAL)
    assert words.removeprefix("line 1: ").removeprefix("line 2: ") in notices(desired)
    assert all(not service.members for service in desired.services)


def test_a_listing_is_not_a_save() -> None:
    found = problem("IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n")
    assert "ipvsadm -S -n" in str(found.hint)


# keepalived


def test_keepalived() -> None:
    text = (DATA / "keepalived.conf").read_text()
    refused = problem(text)
    for words in (
        "line 18: fwmark 3 of WEB",
        "line 28: sorry_server 10.0.0.99 80",
        "line 44: 10.0.0.13:8080: lvs_method DR",
        "line 54: virtual_server fwmark 7",
        "line 55: the scheduler dh",
    ):
        assert words in refused.message
    desired = read(text, PARTIAL)
    assert (desired.kind, desired.owner) == (KEEPALIVED, KEEPALIVED)
    web, dns = desired.services
    assert (web.name, web.affinity_seconds, web.algorithm) == ("WEB/tcp", 360, RANDOM)
    assert [format_frontend(each.frontend) for each in web.frontends] == [
        "192.0.2.10:80/tcp",
        "192.0.2.20:80/tcp",
        "192.0.2.21:80/tcp",
        "192.0.2.22:80/tcp",
        "[2001:db8::8]:80/tcp",
        "[2001:db8::9]:80/tcp",
        "[2001:db8::a]:80/tcp",
    ]
    assert backends(desired) == {
        "10.0.0.11:8080": (3, "active"),
        "10.0.0.12:80": (1, "draining"),
        "[2001:db8:1::1]:8080": (1, "active"),
    }
    assert (dns.name, dns.affinity_seconds, dns.algorithm) == ("192.0.2.10:53/udp", 120, MAGLEV)
    assert backends(desired, 1) == {"10.0.0.21:53": (1, "active")}
    told = notices(desired)
    for words in (
        "line 7: vrrp_instance is not converted",
        "line 2: global_defs is not converted",
        "line 34: TCP_CHECK is not converted",
        "line 38: HTTP_GET is not converted",
        "line 23: delay_loop is not converted",
        "warning: rules: line 33: thresholds",
        "the scheduler wlc looks at connections",
    ):
        assert words in told, told


K = "virtual_server 10.0.0.1 80 {\n lb_kind NAT\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (K, 1, "the block of 'virtual_server' is not closed"),
        (K + "real_server 10.1.0.1 80 {", 3, "the block of 'real_server' is not closed"),
        (K + "}\n}", 4, "a brace closes nothing"),
        ("virtual_server 10.0.0.1 80", 1, "without a block"),
        ("virtual_server 10.0.0.1 {\n}", 1, "expected an address and a port"),
        ("virtual_server 10.0.0.1 x {\n}", 1, "port: expected 0-65535, got 'x'"),
        ("virtual_server web 80 {\n}", 1, "not an IPv4 address"),
        ("virtual_server group A {\n}", 1, "there is no virtual_server_group 'A'"),
        ("virtual_server_group A {\n 10.0.0.9-3 80\n}", 2, "is no range of addresses"),
        ("virtual_server_group A {\n 10.0.0.9-300 80\n}", 2, "is no range of addresses"),
        ("virtual_server_group A {\n 10.0.0.9\n}", 2, "expected an address and a port"),
        ("virtual_server_group A {\n}\nvirtual_server_group A {\n}", 3, "is there already"),
        (K + "}\n" + K + "}", 4, "is there already"),
        (K + "real_server 10.1.0.1 80 { }\nreal_server 10.1.0.1 80 { }\n}", 4, "is there already"),
        (K + "real_server 10.1.0.1 80 { weight x }\n}", 3, "weight: expected"),
        (K + "real_server\n}", 3, "expected an address and a port"),
        (K + "lb_algo nope\n}", 1, "unknown scheduler"),
        (K + "protocol ICMP\n}", 3, "expected the protocol"),
        (K + "persistence_timeout x\n}", 3, "persistence: expected"),
        ("global_defs {\n}\ninclude other.conf", 3, "include: other files"),
        ("$VIP=10.0.0.1\nvirtual_server $VIP 80 {\n}", 1, "definitions"),
        ("@host virtual_server 10.0.0.1 80 {\n}", 1, "conditional"),
        ("global_defs {\n a \"b\n}", 2, "a quote is not closed"),
        ("global_defs {\n}\n{\n}", 3, "a brace opens nothing"),
    ],
)  # fmt: skip
def test_keepalived_that_cannot_be_read(text: str, line: int, words: str) -> None:
    found = problem(text)
    assert found.line == line, found.message
    assert words in found.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (K + "protocol SCTP\n}", "SCTP"),
        (K + "ops\n}", "one-packet"),
        (K + "persistence_timeout 9\npersistence_granularity 255.255.255.0\n}", "whole networks"),
        (K + "persistence_engine sip\n}", "engines"),
        ("virtual_server 10.0.0.1 80 {\nreal_server 10.1.0.1 80 { }\n}", "no lb_kind: only NAT"),
        (
            "virtual_server 10.0.0.1 80 {\nlb_kind TUN\nreal_server 10.1.0.1 80 { }\n}",
            "lb_kind TUN: only NAT",
        ),
        ("virtual_server 10.0.0.1 0 {\n}", "port 0"),
        ("virtual_server_group A {\nfwmark 1\n}\nvirtual_server group A {\n}", "no address left"),
    ],
)
def test_keepalived_refusals_give_way_to_partial(text: str, words: str) -> None:
    assert words in problem(text).message
    desired = read(text, PARTIAL)
    assert words in notices(desired)
    assert all(not service.members for service in desired.services)


def test_one_server_may_say_its_own_kind() -> None:
    desired = read(
        "virtual_server 10.0.0.1 80 {\nlb_kind DR\nreal_server 10.1.0.1 80 {\nlvs_method NAT\n}\n}"
    )
    assert backends(desired) == {"10.1.0.1:80": (1, "active")}
