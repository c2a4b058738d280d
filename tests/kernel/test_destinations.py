"""destinations: which sockets of a label are alive, labels that are not there, and none at all."""

from __future__ import annotations

import contextlib
import socket

from svcctl.model.constants import IPV4, TCP, UDP
from svcctl.state.members import read_listed
from svcctl.state.place import Place, directory_name
from svcctl.state.session import open_reader
from tests.lib.run import ok, svcctl
from tests.lib.sockets import cookie, register, tcp, udp
from tests.lib.world import World


def members(label: str, protocol: str) -> dict[int, object]:
    rows = ok("destinations", label, "-o", "json").json["destinations"]
    (found,) = (row["members"] for row in rows if row["protocol"] == protocol)
    return {one["cookie"]: one["alive"] for one in found}


def test_of_another_namespace_nobody_can_tell(loaded: World) -> None:
    """`status --all` reads what belongs to namespaces that it does not enter."""
    with open_reader(Place()) as reader:
        assert read_listed(reader, 6) is not None
        reader.path = f"{loaded.bpffs}/{directory_name(reader.netns.inode + 1)}"
        assert read_listed(reader, 6) is None


def test_what_takes_nothing_is_not_alive(loaded: World) -> None:
    """A listener that was shut down and a UDP socket that was connected keep their slots."""
    ok("bind", "web", "tcp", "127.0.1.0/24", "80")
    ok("bind", "web", "udp", "127.0.1.0/24", "53")
    with contextlib.ExitStack() as stack:
        first, second = stack.enter_context(tcp()), stack.enter_context(tcp())
        query = stack.enter_context(udp())
        register("web", IPV4, TCP, first, second)
        register("web", IPV4, UDP, query)
        assert members("web", "tcp") == {cookie(first): True, cookie(second): True}
        assert members("web", "udp") == {cookie(query): True}
        assert "dead" not in ok("destinations").out
        first.shutdown(socket.SHUT_RDWR)
        query.connect((query.getsockname()[0], 9))
        assert members("web", "tcp") == {cookie(first): False, cookie(second): True}
        assert members("web", "udp") == {cookie(query): False}
        shown = ok("destinations").out
        assert f"sk:{cookie(first):x}(dead) sk:{cookie(second):x}  " in shown
        assert f"sk:{cookie(query):x}(dead)" in shown
    assert members("web", "tcp") == members("web", "udp") == {}


def test_no_such_label(loaded: World) -> None:
    done = ok("destinations")
    assert (done.out, done.err) == ("", "no labels\n")
    assert ok("destinations", "-o", "json").json["destinations"] == []
    ok("bind", "web", "tcp", "127.0.1.0/24", "80")
    done = svcctl("destinations", "nope", "-o", "json")
    assert (done.code, done.out) == (5, "")
    assert done.error["code"] == "not_found"
    assert "no such label: 'nope'" in done.error["message"]
