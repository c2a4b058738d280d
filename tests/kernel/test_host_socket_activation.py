"""Socket activation by the real thing, systemd-socket-activate."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.lib.child import ROOT, needs_root
from tests.lib.until import PATIENCE, until
from tests.lib.world import World, world

ACTIVATE = shutil.which("systemd-socket-activate")
pytestmark = pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not installed")

CODE = """
import json, os
from svcctl.host.listen_fds import listen_fds
from svcctl.host.socket_info import describe
found = [[fd, name, describe(fd).port, os.get_inheritable(fd)] for fd, name in listen_fds()]
print(json.dumps(found))
"""


@pytest.fixture(scope="module", autouse=True)
def w() -> Iterator[World]:
    needs_root()
    with world() as one:
        yield one


def _connected(port: int) -> bool:
    """Whether somebody listens, who has been connected to by then."""
    with socket.socket() as client:
        return not client.connect_ex(("127.0.0.1", port))


def _activated(*options: str, code: str = CODE, port: int) -> str:
    """Start under systemd-socket-activate, connect to set it off, give the command's output."""
    assert ACTIVATE is not None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LISTEN_")}
    process = subprocess.Popen(
        [ACTIVATE, "-E", f"PYTHONPATH={ROOT}", *options, sys.executable, "-c", code, ROOT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        until(lambda: _connected(port), f"nobody listens on {port}")
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    return out


def test_two_named_sockets(w: World) -> None:
    options = ("-l", "127.0.0.1:7001", "-l", "[::1]:7002", "--fdname=web:web6")
    found = json.loads(_activated(*options, port=7001))
    assert found == [[3, "web", 7001, False], [4, "web6", 7002, False]]


def test_without_names(w: World) -> None:
    code = CODE.replace("import json, os\n", "import json, os\nos.environ.pop('LISTEN_FDNAMES', None)\n")
    assert json.loads(_activated("-l", "127.0.0.1:7003", code=code, port=7003)) == [
        [3, "unknown", 7003, False]
    ]


def test_through_a_process_in_between(w: World) -> None:
    """A wrapper that forks: the sockets are not for the child, and that is said."""
    code = (
        "import subprocess, sys\n"
        "code = 'from svcctl.host.listen_fds import listen_fds; listen_fds()'\n"
        "print(subprocess.run([sys.executable, '-c', code],"
        " capture_output=True, text=True, close_fds=False).stderr)"
    )
    out = _activated("-l", "127.0.0.1:7004", code=code, port=7004)
    assert "LISTEN_PID: the sockets were passed to process" in out
