"""`svcctl save`: writes the export where svcctl-restore.service reads it at boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.commands.bindings import COLUMNS
from svcctl.cli.options import argument, verb
from svcctl.cli.params import FILE
from svcctl.errors import NotFound, PermissionProblem
from svcctl.render.changes import CHANGED, CREATED, UNCHANGED, Change

if TYPE_CHECKING:
    from svcctl.cli.env import Env

DEFAULT = "/var/lib/svcctl/state.json"
MODE = 0o600


@verb("save", examples=("svcctl save", "svcctl save /root/bindings.json"), exits=(0, 1, 2, 3, 4, 5, 7))
@argument("file", FILE, f"Where to write it [{DEFAULT}].", required=False)
def command(env: Env, file: str | None) -> None:
    """Write what 'export' prints to FILE, mode 0600: after a crash the old file or the new one is there, whole.

    svcctl-restore.service loads the default file at boot. The same content again: nothing is written.
    """
    import os

    from svcctl.cli.commands.export import read_rows
    from svcctl.host import atomic_file
    from svcctl.render import records

    path = file or DEFAULT
    rows = read_rows(env)
    content = "".join(line + "\n" for line in records.render("json", "bindings", rows, COLUMNS)).encode()
    before = atomic_file.read(path)
    action = UNCHANGED if before == content else CHANGED if os.path.lexists(path) else CREATED
    if action != UNCHANGED and not env.dry_run:
        try:
            if file is None:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            atomic_file.write(path, content, MODE)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"save: {path}: no such directory") from None
        except PermissionError:
            raise PermissionProblem(f"save: {path}: permission denied") from None
    words = ("saved", "save") if action != UNCHANGED else None
    env.emit_changes([Change(action, "file", path, f"{len(rows)} bindings", words=words)])
