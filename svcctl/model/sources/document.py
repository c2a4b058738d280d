"""One document of an input: its value, and the line of any place in it once somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.sources.problem import InputProblem, find_steps, format_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcctl.model.sources.problem import Steps

JSON, YAML = "json", "yaml"


class Document:
    """A parsed document. Nothing but its value is kept of it: lines are looked up by reading it again.

    `source` is the input's name, `form` JSON or YAML. `odd_numbers` are the numbers of YAML that are not
    written as one writes numbers (0777, 0x1F, 1_000): place, text, and what kubectl takes them for.
    `check` looks for repeated keys, where that has not been done.
    """

    __slots__ = ("_find_line", "check", "form", "odd_numbers", "source", "value")

    def __init__(
        self,
        source: str,
        value: object,
        form: str,
        find_line: Callable[[Steps], int],
        odd_numbers: list[tuple[Steps, str, object]] | None = None,
    ) -> None:
        self.source = source
        self.value = value
        self.form = form
        self.odd_numbers = odd_numbers or []
        self._find_line = find_line
        self.check: Callable[[], None] | None = None

    def line(self, steps: Steps) -> int:
        """The line, from 1, where the value of that path starts, or the last part of it that is there."""
        return self._find_line(steps)

    def problem(self, steps: Steps, cause: str, *, hint: str | None = None) -> InputProblem:
        """The error for the value at that path."""
        return InputProblem(
            self.source, cause, path=format_path(steps), line=self._find_line(steps), hint=hint
        )

    def problem_at(self, path: str, cause: str, *, hint: str | None = None) -> InputProblem:
        """The error for a path that somebody else has put into words."""
        line = self._find_line(find_steps(self.value, path))
        return InputProblem(self.source, cause, path=path, line=line, hint=hint)

    def refuse_repeated_keys(self) -> None:
        """Raises InputProblem for a key that is twice in one object, if that was not looked for before.

        It was in all but large JSON (`json_reading.LARGE`).
        """
        if self.check is not None:
            check, self.check = self.check, None
            check()
