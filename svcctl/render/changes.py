"""What a verb did, as records: text lines such as `bound web#tcp:[127.0.0.1/32]:80`, or JSON of the same.

`action` is one of created, changed, deleted, unchanged (scripts rely on these); the words of the text line
depend on the kind of object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.record import Record
from svcctl.render import records
from svcctl.render.text import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any


class Change(Record):
    """One step of a plan.

    `kind` is what it happened to (binding, socket, program, ...), `name` the object as a user can paste
    it, `note` a remark put in brackets behind it, `fields` further keys for JSON. `words` overrides the
    verb of the text line: (done, to do), e.g. ("attached", "attach").
    """

    action: str
    kind: str
    name: str
    note: str | None = None
    fields: Mapping[str, Any] | None = None
    words: tuple[str, str] | None = None


CREATED = "created"
CHANGED = "changed"
DELETED = "deleted"
UNCHANGED = "unchanged"

_WORDS = {
    CREATED: ("created", "create"),
    CHANGED: ("changed", "change"),
    DELETED: ("deleted", "delete"),
    UNCHANGED: ("unchanged", "leave"),
    ("binding", CREATED): ("bound", "bind"),
    ("binding", CHANGED): ("replaced", "replace"),
    ("binding", DELETED): ("unbound", "unbind"),
    ("socket", CREATED): ("registered", "register"),
    ("socket", CHANGED): ("replaced", "replace"),
    ("socket", DELETED): ("unregistered", "unregister"),
    ("program", CHANGED): ("upgraded", "upgrade"),
    ("attachment", CREATED): ("attached", "attach"),
    ("attachment", DELETED): ("detached", "detach"),
}


def line(change: Change, dry_run: bool = False) -> str:
    """The text of one change: `bound NAME`, in a dry run `would bind NAME`."""
    words = change.words or _WORDS.get((change.kind, change.action)) or _WORDS[change.action]
    if change.action == UNCHANGED and change.words is None:
        start = "unchanged"
    else:
        start = f"would {words[1]}" if dry_run else words[0]
    note = f" ({change.note})" if change.note else ""
    return escape(f"{start} {change.name}{note}")


def render(
    output: str, changes: Iterable[Change], *, dry_run: bool = False, counts: Mapping[str, int] | None = None
) -> Iterable[str]:
    """Lines of the changes in any output format."""
    changes = list(changes)
    extra: dict[str, Any] = {}
    if dry_run:
        extra["dry_run"] = True
    if counts is not None:
        extra["counts"] = dict(counts)

    def lines() -> Iterator[str]:
        for change in changes:
            yield line(change, dry_run)
        if counts is not None:
            yield summary(counts, dry_run)

    objects = [_object(change) for change in changes]
    return records.render_objects(output, "changes", objects, lines, extra=extra)


def summary(counts: Mapping[str, int], dry_run: bool = False) -> str:
    """`2 created, 0 changed, 1 deleted, 7 unchanged`, in the order given."""
    text = ", ".join(f"{number} {what}" for what, number in counts.items())
    return f"{text} (dry run)" if dry_run else text


def _object(change: Change) -> dict[str, Any]:
    return {
        "action": change.action,
        "kind": change.kind,
        "name": change.name,
        "note": change.note,
        **(change.fields or {}),
    }
