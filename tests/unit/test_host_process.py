"""Pid arguments and pid files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from svcctl.errors import NotFound, UsageProblem
from svcctl.host import process


@pytest.mark.parametrize(("text", "pid"), [("1", 1), ("0042", 42), ("4194303", 4194303)])
def test_number(text: str, pid: int) -> None:
    assert process.parse_pid_or_file(text) == pid


@pytest.mark.parametrize("text", ["0", "-1", "+5", "4194304", "99999999999999999999", "9" * 5000, "", "\0"])
def test_no_pid(text: str) -> None:
    with pytest.raises(UsageProblem):
        process.parse_pid_or_file(text)


@pytest.mark.parametrize(
    "content", [b"123\n", b"123", b"123\r\n", b" 123 \n", b"123\n/var/lib/postgresql\n1700000000\n"]
)
def test_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "service.pid"
    file.write_bytes(content)
    assert process.parse_pid_or_file(str(file)) == 123


@pytest.mark.parametrize("content", [b"", b"\n", b"abc", b"12 34", b"-5", b"0", b"\xff\xfe", b"9" * 5000])
def test_file_without_a_pid(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "service.pid"
    file.write_bytes(content)
    with pytest.raises(UsageProblem) as caught:
        process.parse_pid_or_file(str(file))
    assert str(file) in caught.value.message


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        process.parse_pid_or_file(str(tmp_path / "none"))
    with pytest.raises(UsageProblem, match="directory"):
        process.parse_pid_or_file(str(tmp_path))


def test_command_is_printable() -> None:
    assert "python" in process.command(os.getpid())
    assert process.command(4194303) == ""
    assert len(process.command(os.getpid())) <= 80
