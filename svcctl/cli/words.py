"""A line of a batch file -> words, by the shell's rules of quoting; `#` begins a comment where a word could begin."""

from __future__ import annotations

from shlex import shlex
from typing import TYPE_CHECKING, Any

from svcctl.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLANKS = " \t\r\n"


def split_line(line: str) -> list[str]:
    """The words of a line; none for a blank one or a comment. Nothing is expanded.

    Raises UsageProblem for a quote that is not closed, a backslash at the end and a NUL byte. shlex would begin a
    comment within a word too, and labels may have a `#`.
    """
    if "\0" in line:
        raise UsageProblem("a NUL byte in the line")
    lexer: Any = shlex(line, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        while True:
            rest = line[lexer.instream.tell() :].lstrip(_BLANKS)
            if not rest or rest.startswith("#"):
                return words
            words.append(lexer.get_token())
    except ValueError as error:
        backslash = lexer.state == lexer.escape
        cause = "a backslash at the end of the line" if backslash else "a quote that is not closed"
        raise UsageProblem(cause, hint="a command is one line; quotes work as in a shell") from error


def numbered_lines(data: bytes) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers from 1. Bytes that are no UTF-8 arrive as those of a command line do."""
    return enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1)
