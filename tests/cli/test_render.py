"""Records in every format: same rows, same schema; text is aligned, safe and quick."""

from __future__ import annotations

import builtins
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from svcctl.cli.env import Env
from svcctl.errors import SvcctlError
from svcctl.render import changes, records, text
from svcctl.render.changes import Change
from svcctl.render.records import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (
    Column("PROTOCOL", "protocol"),
    Column("PREFIX", "prefix"),
    Column("PORT", "port", align=">"),
    Column("LABEL", "label"),
    Column("ID", "id", align=">", wide=True),
)
ROWS: Sequence[Sequence[Any]] = [
    ("tcp", "127.0.0.1/32", 80, "web", 1),
    ("udp", "2001:db8::/32", 0, None, 22),
]


def lines(output: str, rows: Sequence[Sequence[Any]] = ROWS, **kwargs: Any) -> list[str]:
    return list(records.render(output, "bindings", rows, COLUMNS, **kwargs))


def test_text() -> None:
    assert lines("text") == [
        "PROTOCOL  PREFIX         PORT  LABEL",
        "tcp       127.0.0.1/32     80  web",
        "udp       2001:db8::/32     0  -",
    ]


def test_wide_shows_all_columns() -> None:
    assert lines("wide")[0] == "PROTOCOL  PREFIX         PORT  LABEL  ID"
    assert lines("wide")[1] == "tcp       127.0.0.1/32     80  web     1"


def test_no_headers() -> None:
    assert lines("text", headers=False)[0] == "tcp  127.0.0.1/32   80  web"


def test_nothing_to_list() -> None:
    assert lines("text", []) == ["PROTOCOL  PREFIX  PORT  LABEL"]
    assert lines("text", [], headers=False) == []
    assert "".join(lines("json", [])) == '{"schema":1,"bindings":[]}'
    assert lines("jsonl", []) == []
    assert lines("name", []) == []


def test_long_cells_are_not_cut() -> None:
    label = "x" * 255
    assert lines("text", [("tcp", "::/0", 1, label, 1)])[1].endswith(label)


def test_no_trailing_blanks() -> None:
    assert all(line == line.rstrip() for line in lines("text"))


def test_json() -> None:
    whole = json.loads("\n".join(lines("json")))
    assert whole == {
        "schema": 1,
        "bindings": [
            {"protocol": "tcp", "prefix": "127.0.0.1/32", "port": 80, "label": "web", "id": 1},
            {"protocol": "udp", "prefix": "2001:db8::/32", "port": 0, "id": 22},
        ],
    }
    assert list(whole["bindings"][0]) == [c.key for c in COLUMNS]


def test_jsonl_and_yaml_say_the_same() -> None:
    yaml = pytest.importorskip("yaml")
    whole = json.loads("\n".join(lines("json")))
    assert [json.loads(line) for line in lines("jsonl")] == whole["bindings"]
    assert yaml.safe_load("\n".join(lines("yaml"))) == whole


def test_jsonl_streams() -> None:
    def endless() -> Any:
        while True:
            yield ROWS[0]

    stream = iter(records.render("jsonl", "bindings", endless(), COLUMNS))
    assert json.loads(next(stream))["port"] == 80


def test_extra_keys_stand_beside_the_list() -> None:
    whole = json.loads("\n".join(lines("json", extra={"inconsistent": True})))
    assert whole["inconsistent"] is True
    assert list(whole) == ["schema", "inconsistent", "bindings"]


def test_name() -> None:
    assert lines("name") == ["tcp", "udp"]
    assert lines("name", name=lambda row: f"{row[3]}#{row[0]}") == ["web#tcp", "None#udp"]


def test_a_row_of_the_wrong_length_is_a_bug_in_every_format() -> None:
    for output in ("json", "jsonl"):
        with pytest.raises(ValueError, match="zip"):
            lines(output, [("tcp",)])
    with pytest.raises(IndexError):
        lines("text", [("tcp",)])


def test_lone_surrogates_stay_valid_json(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    env = Env({})
    env.output = "json"
    env.emit("bindings", [("tcp", "x", 1, "a\udc80b", 1)], COLUMNS)
    env.flush()
    assert json.loads(capfdbinary.readouterr().out)["bindings"][0]["label"] == "a\udc80b"


def test_nested_values_need_a_format_and_lose_their_absent_keys() -> None:
    columns = (Column("MEMBERS", "members", format=lambda ms: ",".join(m["cookie"] for m in ms)),)
    rows = [([{"cookie": "sk:1", "alive": None}],), ([],)]
    assert list(records.render("text", "x", rows, columns)) == ["MEMBERS", "sk:1", "-"]
    whole = json.loads("".join(records.render("json", "x", rows, columns)))
    assert whole["x"] == [{"members": [{"cookie": "sk:1"}]}, {"members": []}]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb", "a\\nb"),
        ("a\u202eb", "a\\u202eb"),
        ("\udcff", "\\udcff"),
        ("\x7f", "\\x7f"),
        ("caf\u00e9 \u2603", "caf\u00e9 \u2603"),
    ],
)
def test_cells_are_safe_for_a_terminal(cell: str, shown: str) -> None:
    assert lines("text", [("tcp", "p", 1, cell, 1)], headers=False) == [f"tcp  p  1  {shown}"]
    assert lines("name", [(cell, "p", 1, "l", 1)]) == [shown]


def test_wide_characters_are_measured_in_terminal_columns() -> None:
    columns = (Column("A", "a"), Column("B", "b", align=">"))
    rows = [("\u6f22\u5b57", "x"), ("abcd", "\u6f22"), ("e\u0301", "y")]
    shown = list(records.render("text", "n", rows, columns))
    assert [text.width(line) for line in shown] == [8, 8, 8, 8]
    assert shown[1] == "\u6f22\u5b57   x"


def test_percent_signs_are_only_text() -> None:
    assert lines("text", [("100%s", "%d", 1, "%", 1)], headers=False) == ["100%s  %d  1  %"]


def test_ten_thousand_rows_are_quick() -> None:
    rows = [("tcp", f"10.0.{i >> 8}.{i & 255}/32", i, f"label-{i}", i) for i in range(10_000)]
    best = 9.0
    for _ in range(5):
        start = time.perf_counter()
        assert len(lines("text", rows)) == 10_001
        best = min(best, time.perf_counter() - start)
    assert best < 0.15  # about 0.012 on the slowest machine tried: the bound is for a change of kind


def test_yaml_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError("No module named 'yaml'", name="yaml")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "yaml", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SvcctlError, match="PyYAML is not installed"):
        lines("yaml")


NAME = "web#tcp:[127.0.0.1/32]:80"


@pytest.mark.parametrize(
    ("change", "done", "planned"),
    [
        (Change("created", "binding", NAME), f"bound {NAME}", f"would bind {NAME}"),
        (Change("deleted", "binding", NAME), f"unbound {NAME}", f"would unbind {NAME}"),
        (Change("unchanged", "binding", NAME), f"unchanged {NAME}", f"unchanged {NAME}"),
        (
            Change("changed", "binding", NAME, "was api"),
            f"replaced {NAME} (was api)",
            f"would replace {NAME} (was api)",
        ),
        (Change("created", "thing", "x"), "created x", "would create x"),
        (Change("changed", "map", "x", words=("grew", "grow")), "grew x", "would grow x"),
    ],
)
def test_lines_of_changes(change: Change, done: str, planned: str) -> None:
    assert list(changes.render("text", [change])) == [done]
    assert list(changes.render("text", [change], dry_run=True)) == [planned]


def test_changes_as_json() -> None:
    change = Change("created", "binding", NAME, fields={"label": "web", "port": 80})
    whole = json.loads("".join(changes.render("json", [change], dry_run=True, counts={"created": 1})))
    record = {"action": "created", "kind": "binding", "name": NAME, "label": "web", "port": 80}
    assert whole == {"schema": 1, "dry_run": True, "counts": {"created": 1}, "changes": [record]}
    assert list(changes.render("name", [change])) == [NAME]


def test_counts_are_the_last_line() -> None:
    counts = {"created": 2, "deleted": 0}
    assert list(changes.render("text", [], counts=counts)) == ["2 created, 0 deleted"]
    assert list(changes.render("text", [], counts=counts, dry_run=True)) == ["2 created, 0 deleted (dry run)"]
