"""The quick reader of bindings files: the same answers and the same errors as entry by entry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.model import bindings_file, bindings_quick
from svcctl.model.bindings_file import FileProblem, read_bindings
from tests.unit.model_values import labels, networks, ports
from tests.unit.test_model_bindings_file import near

NEVER = 1 << 40

sound = st.fixed_dictionaries(
    {"label": labels, "prefix": networks.map(str), "port": ports},
    optional={
        "protocol": st.sampled_from(["tcp", "udp"]),
        "owner": st.sampled_from(["me", "you", "", 7, " "]),
    },
)


def outcome(text: str, piece: int, *, native: bool = False) -> Any:
    """What reading in pieces of that many characters gives: the bindings in order, or the error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bindings_quick, "PIECE", piece)
        try:
            owners: dict[bytes, str] = {}
            found = list(read_bindings(text, native=native, owners=owners).items())
            return found, {key: owner for key, owner in owners.items() if owner}
        except FileProblem as problem:
            return problem.message, problem.hint


@given(
    st.lists(sound | sound | sound | near, max_size=12),
    st.sampled_from([0, 1, 60, 200]),
    st.sampled_from([None, 0, 1]),
    st.booleans(),
    st.booleans(),
)
def test_same_as_entry_by_entry(
    entries: list[Any], piece: int, indent: int | None, compact: bool, native: bool
) -> None:
    separators = (",", ":") if compact else None
    text = json.dumps({"bindings": entries}, indent=indent, separators=separators)
    assert outcome(text, piece, native=native) == outcome(text, NEVER, native=native)


@given(st.data())
def test_same_when_damaged(data: st.DataObject) -> None:
    entry = {"label": "a}, {", "prefix": "10.0.0.1", "port": 1, "protocol": "tcp"}
    text = json.dumps({"bindings": [{**entry, "port": port} for port in range(5)]})
    at = data.draw(st.integers(0, len(text)))
    gone = data.draw(st.integers(0, 3))
    new = data.draw(st.sampled_from(["", "}", "{", ",", '"', "]", "[", ":", '"port": 1,', "\\", "1", " "]))
    text = text[:at] + new + text[at + gone :]
    piece = data.draw(st.sampled_from([0, 30, 100]))
    assert outcome(text, piece) == outcome(text, NEVER)


@pytest.mark.parametrize(
    "protocol",
    [{}, {"protocol": "udp"}, {"protocol": "tcp", "owner": "me"}],
    ids=["both", "udp", "owned"],
)
def test_sound_files_take_the_quick_way(monkeypatch: pytest.MonkeyPatch, protocol: dict[str, str]) -> None:
    """All but the last piece: otherwise a million entries take twice as long."""
    slowly: list[int] = []
    plain = bindings_file._entry_at

    def entry_at(text: str, at: int) -> Any:
        slowly.append(at)
        return plain(text, at)

    monkeypatch.setattr(bindings_file, "_entry_at", entry_at)
    entries = [
        {"label": f"web-{n % 7}", "prefix": f"10.{n >> 8}.{n & 255}.0/24", "port": n, **protocol}
        for n in range(5_000)
    ]
    owners: dict[bytes, str] = {}
    want = read_bindings(json.dumps({"bindings": entries}), native=True, owners=owners)
    assert owners == (dict.fromkeys(want, "me") if "owner" in protocol else {})
    assert len(want) == 5_000 * (1 if protocol else 2)
    assert len(slowly) < 1_000
