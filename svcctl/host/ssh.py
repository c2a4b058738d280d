"""The SSH connection this command was typed over, if it was: not to be cut off by a binding."""

from __future__ import annotations

import os

from svcctl.record import Record


class SshConnection(Record):
    """Both ends of the connection; addresses as text without a zone, ports as numbers."""

    client: str
    client_port: int
    server_address: str
    server_port: int


def ssh_connection() -> SshConnection | None:
    """The caller's SSH connection, from SSH_CONNECTION in the environment or in that of an ancestor.

    sudo(8) and su(1) take the variable away, but the shell they were started from still has it. Ancestors
    whose environment may not be read are passed over.
    """
    own = os.environ.get("SSH_CONNECTION")
    if own is not None and (connection := parse(own)) is not None:
        return connection
    pid = os.getppid()
    while pid > 1:
        if (connection := _of_process(pid)) is not None:
            return connection
        parent = _parent(pid)
        if parent is None:
            break
        pid = parent
    return None


def parse(text: str) -> SshConnection | None:
    """Take `CLIENT PORT SERVER PORT` apart; None when it is anything else (sshd writes UNKNOWN at times)."""
    words = text.split()
    if len(words) != 4 or not (words[1].isdecimal() and words[3].isdecimal()):
        return None
    client, server = _address(words[0]), _address(words[2])
    ports = int(words[1]), int(words[3])
    if client is None or server is None or max(ports) > 65535:
        return None
    return SshConnection(client, ports[0], server, ports[1])


def _address(text: str) -> str | None:
    from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

    text = text.split("%", 1)[0]
    try:
        if ":" not in text:
            return inet_ntop(AF_INET, inet_pton(AF_INET, text))
        raw = inet_pton(AF_INET6, text)
    except (OSError, ValueError):
        return None
    if raw.startswith(bytes(10) + b"\xff\xff"):
        return inet_ntop(AF_INET, raw[12:])
    return inet_ntop(AF_INET6, raw)


def _of_process(pid: int) -> SshConnection | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return None
    for variable in variables:
        if variable.startswith(b"SSH_CONNECTION="):
            return parse(variable[15:].decode("ascii", "replace"))
    return None


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, parentheses and spaces too: count from its end.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None
