"""The environment of sd_listen_fds(3), taken apart. For real sockets see test_host_socket_activation.py."""

from __future__ import annotations

import os

import pytest

from svcctl.errors import UsageProblem
from svcctl.host.listen_fds import listen_fds

OWN = str(os.getpid())


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "LISTEN_FDS: not set"),
        ({"LISTEN_FDS": ""}, "LISTEN_FDS: not set"),
        ({"LISTEN_FDS": "0", "LISTEN_PID": OWN}, "no sockets were passed"),
        ({"LISTEN_FDS": "two", "LISTEN_PID": OWN}, "got 'two'"),
        ({"LISTEN_FDS": "-1", "LISTEN_PID": OWN}, "got '-1'"),
        ({"LISTEN_FDS": "99999999", "LISTEN_PID": OWN}, "got '99999999'"),
        ({"LISTEN_FDS": "²", "LISTEN_PID": OWN}, "got '²'"),
        ({"LISTEN_FDS": "1"}, "LISTEN_PID: not set"),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "me"}, "LISTEN_PID: expected a process number, got 'me'"),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "1"}, "passed to process 1, this is OWN"),
        ({"LISTEN_FDS": "1", "LISTEN_PID": OWN, "LISTEN_FDNAMES": "a:b"}, "2 names for 1 sockets"),
        ({"LISTEN_FDS": "60000", "LISTEN_PID": OWN}, "not open, but LISTEN_FDS is 60000"),
    ],
)
def test_refused(environ: dict[str, str], told: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        listen_fds(environ)
    assert told.replace("OWN", OWN) in caught.value.message
    assert caught.value.message.startswith("take sockets from systemd: ")
