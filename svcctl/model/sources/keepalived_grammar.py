"""keepalived.conf as a tree: lines of words, some with a block in braces.

A `!` or `#` outside of quotes starts a comment. Braces may share a line with words or stand alone. Definitions
(`$NAME=`), `~SEQ`, conditional lines (`@host`) and `include` need more than this file to be read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from svcctl.model.bad_value import show
from svcctl.model.sources.problem import InputProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 20

_token = re.compile(r"""[!#].*|[{}]|"[^"]*"|'[^']*'|[^\s{}!#"']+|["']""").finditer


class Statement:
    """The words of a line; `block` is None where there are no braces."""

    __slots__ = ("block", "line", "words")

    def __init__(self, line: int, words: list[str]) -> None:
        self.line = line
        self.words = words
        self.block: list[Statement] | None = None


def parse(source: str, text: str) -> list[Statement]:
    """The statements of a file. Raises InputProblem."""
    top: list[Statement] = []
    stack = [top]
    openers: list[Statement] = []
    for number, line in enumerate(text.splitlines(), 1):
        current: Statement | None = None
        for token, is_quoted in _tokens(source, number, line):
            if token == "{" and not is_quoted:
                if current is None:
                    current = stack[-1][-1] if stack[-1] else None
                if current is None or current.block is not None:
                    raise InputProblem(source, "a brace opens nothing", line=number)
                if len(stack) > MAX_DEPTH:
                    raise InputProblem(source, f"nested deeper than {MAX_DEPTH}", line=number)
                current.block = []
                stack.append(current.block)
                openers.append(current)
                current = None
            elif token == "}" and not is_quoted:
                if len(stack) == 1:
                    raise InputProblem(source, "a brace closes nothing", line=number)
                stack.pop()
                openers.pop()
                current = None
            elif current is None:
                _refuse_what_needs_more(source, number, token)
                current = Statement(number, [token])
                stack[-1].append(current)
            else:
                current.words.append(token)
    if openers:
        opener = openers[-1]
        cause = f"the block of {show(opener.words[0])} is not closed: has the file been cut off?"
        raise InputProblem(source, cause, line=opener.line)
    return top


def _tokens(source: str, number: int, line: str) -> Iterator[tuple[str, bool]]:
    """(word or brace, whether it was quoted) of a line, up to a comment."""
    for match in _token(line):
        token = match[0]
        if token[0] in "!#":
            return
        if token[0] not in "\"'":
            yield token, False
        elif len(token) > 1:
            yield token[1:-1], True
        else:
            raise InputProblem(source, "a quote is not closed", line=number)


def _refuse_what_needs_more(source: str, number: int, word: str) -> None:
    hint = "give the configuration as keepalived sees it: keepalived --dump-conf writes it"
    if word.startswith("include"):
        raise InputProblem(source, f"{word}: other files are not read", line=number, hint=hint)
    if word.startswith(("$", "~")):
        raise InputProblem(source, f"{show(word)}: definitions are not read", line=number, hint=hint)
    if word.startswith("@"):
        raise InputProblem(source, f"{show(word)}: conditional lines are not read", line=number, hint=hint)
