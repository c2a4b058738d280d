"""SSH_CONNECTION: what is understood, and where it is looked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from svcctl.host.ssh import parse, ssh_connection


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.1 50000 198.51.100.2 22", ("192.0.2.1", 50000, "198.51.100.2", 22)),
        ("2001:db8::1 50000 2001:db8:0::2 2222", ("2001:db8::1", 50000, "2001:db8::2", 2222)),
        ("fe80::1%eth0 50000 fe80::2%eth0 22", ("fe80::1", 50000, "fe80::2", 22)),
        ("::ffff:192.0.2.1 50000 ::ffff:198.51.100.2 22", ("192.0.2.1", 50000, "198.51.100.2", 22)),
        ("UNKNOWN 65535 UNKNOWN 65535", None),
        ("192.0.2.1 50000 198.51.100.2", None),
        ("192.0.2.1 x 198.51.100.2 22", None),
        ("192.0.2.1 50000 198.51.100.2 65536", None),
        ("192.0.2.1 50000 198.51.100 22", None),
        ("", None),
    ],
)
def test_parse(text: str, expected: tuple[str, int, str, int] | None) -> None:
    assert parse(text) == expected


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 50000 198.51.100.2 22")
    found = ssh_connection()
    assert found is not None
    assert found.server_port == 22
    assert found.server_address == "198.51.100.2"


def test_from_an_ancestor_as_under_sudo() -> None:
    """The grandparent has the variable, parent and child do not."""
    code = "from svcctl.host.ssh import ssh_connection; print(*ssh_connection())"
    inner = f'env -u SSH_CONNECTION sh -c \'"{sys.executable}" -c "{code}"; true\'; true'
    environment = {**os.environ, "SSH_CONNECTION": "192.0.2.7 50001 198.51.100.9 2222"}
    done = subprocess.run(["sh", "-c", inner], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["192.0.2.7", "50001", "198.51.100.9", "2222"]


def test_none_anywhere() -> None:
    """The environment is clean, and so are the ancestors'."""
    own = {name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"}
    if ssh_connection() is not None:
        pytest.skip("the tests themselves run over SSH")
    code = "from svcctl.host.ssh import ssh_connection; print(ssh_connection())"
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
