"""`svcctl save`: the export, written where it is restored from at boot."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.cli.options import argument, verb
from svcctl.cli.params import FILE
from svcctl.errors import PermissionProblem, SvcctlError, UsageProblem
from svcctl.render.changes import CHANGED, CREATED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env

DIRECTORY = "/var/lib/svcctl"
DEFAULT = f"{DIRECTORY}/state.json"
MODE = 0o600
_WORDS = ("saved", "save")


@verb("save", examples=("svcctl save", "svcctl save /srv/bindings.json"), exits=(0, 1, 2, 3, 4, 7, 9))
@argument("file", FILE, f"Where to write it [{DEFAULT}].", required=False, default=DEFAULT)
def command(env: Env, file: str) -> None:
    """Write what 'svcctl export' prints to FILE, for svcctl-restore.service to load at boot.

    Beside that it says which node this is, and which backends are on it: addresses come up later.

    The file is replaced as a whole, with mode 0600, and is on the disk when the command ends. When nothing has
    changed it is left alone.
    """
    from svcctl.cli.access import reading_surely
    from svcctl.cli.desired import document, read_for_restore

    before = _content(file)
    everything = reading_surely(env, read_for_restore)
    data = "".join(f"{line}\n" for line in document("json", everything)).encode()
    action = CREATED if before is None else UNCHANGED if before == data else CHANGED
    if action != UNCHANGED and not env.dry_run:
        _write(file, data)
    counts = {"bindings": len(everything.bindings), "services": len(everything.services)}
    if everything.nodes:
        counts["nodes"] = len(everything.nodes)
    note = ", ".join(f"{count} {noun[: -1 if count == 1 else None]}" for noun, count in counts.items())
    words = None if action == UNCHANGED else _WORDS
    env.emit_changes([Change(action, "file", file, note, counts, words)])


def _content(file: str) -> bytes | None:
    """What is in the file now, None if there is none. Raises UsageProblem for what is no file to replace."""
    from stat import S_ISREG

    try:
        # Looked at before it is opened: opening a pipe would wait.
        if not S_ISREG(os.lstat(file).st_mode):
            raise UsageProblem(f"save {file}: not a regular file", hint="'svcctl export' prints the document")
        with open(file, "rb") as existing:
            return existing.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _problem(file, error) from error


def _write(file: str, data: bytes) -> None:
    from svcctl.host.atomic_file import replace_file

    try:
        if file == DEFAULT and not os.path.isdir(DIRECTORY):
            os.mkdir(DIRECTORY, 0o700)
        replace_file(file, data, MODE)
    except OSError as error:
        raise _problem(file, error) from error


def _problem(file: str, error: OSError) -> SvcctlError:
    text = f"save {file}: {error.strerror}"
    return PermissionProblem(text) if isinstance(error, PermissionError) else SvcctlError(text)
