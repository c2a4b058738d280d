"""The desired state as a document that `load-bindings` reads back: what `export` prints and `save` keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.errors import Incompatible
from svcctl.render.records import Column, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcctl.state.session import State

COLUMNS = (
    Column("LABEL", "label"),
    Column("PROTOCOL", "protocol"),
    Column("PREFIX", "prefix"),
    Column("PORT", "port"),
)


def read_desired(state: State) -> Mapping[bytes, str]:
    """All bindings: 24-byte key -> label. Raises Incompatible when one has no label: a file would invent it one."""
    from svcctl.model.binding import key_fields
    from svcctl.state import destinations
    from svcctl.state.bindings import read_labels

    labels = read_labels(state)
    odd = [key for key, label in labels.items() if label.startswith("?")]
    if odd:
        known = {one.key.label for one in destinations.read_all(state).values()}
        for key in odd:
            if labels[key] not in known:
                protocol, prefix, port = key_fields(key)
                raise Incompatible(
                    f"binding {protocol}:[{prefix}]:{port}: its destination {labels[key][1:]} does not exist",
                    hint="'svcctl check' lists what is broken, --repair mends it",
                )
    return labels


def document(output: str, labels: Mapping[bytes, str]) -> Iterable[str]:
    """Lines of the document, json or yaml: most specific bindings first, so equal states give equal files."""
    from svcctl.model.listing import listing_rows

    rows = ((label, protocol, prefix, port) for protocol, prefix, port, label in listing_rows(labels))
    return render(output, "bindings", rows, COLUMNS)
