"""Lines of a batch file: the shell's quoting, comments only where a word could begin."""

from __future__ import annotations

import contextlib
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcctl.cli.words import numbered_lines, split_line
from svcctl.errors import UsageProblem


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        (" \t\r", []),
        ("# bind web", []),
        ("  # bind web", []),
        ("bind web tcp ::/0 53", ["bind", "web", "tcp", "::/0", "53"]),
        ("bind web # all", ["bind", "web"]),
        ("bind web#tcp", ["bind", "web#tcp"]),
        ("bind '#web' \"#web\" \\#web", ["bind", "#web", "#web", "#web"]),
        ("bind 'web two' \"it's\" a\\ b", ["bind", "web two", "it's", "a b"]),
        ("bind '' \"\"", ["bind", "", ""]),
        ("bind\tweb\r", ["bind", "web"]),
        ("bind a'b'c", ["bind", "abc"]),
        ("bind $HOME `x` *", ["bind", "$HOME", "`x`", "*"]),
        ("bind é\u2028x", ["bind", "é\u2028x"]),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    assert split_line(line) == words


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("bind 'web", "quote"),
        ('bind "web', "quote"),
        ('bind "web\\', "backslash"),
        ("bind web\\", "backslash"),
        ("bind \0", "NUL"),
    ],
)
def test_bad_lines(line: str, cause: str) -> None:
    with pytest.raises(UsageProblem, match=cause):
        split_line(line)


@given(st.lists(st.text(st.characters(exclude_characters="\0\n"))))
def test_what_shlex_quotes_is_read_back(words: list[str]) -> None:
    assert split_line(shlex.join(words)) == words


@given(st.text())
def test_any_line_is_read_or_refused(line: str) -> None:
    with contextlib.suppress(UsageProblem):
        split_line(line)


def test_line_numbers_count_line_feeds_only() -> None:
    assert list(numbered_lines(b"a\r\nb\x0bc\n\xff")) == [(1, "a\r"), (2, "b\x0bc"), (3, "\udcff")]
