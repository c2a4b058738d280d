"""What a measurement says: a figure, the peer it stands beside, the goal, and whether it was met."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


class Figure(NamedTuple):
    """One line of the report.

    `figure` is what the goal is about (a ratio, a difference, a count), in `unit`; `measured` and `peer` are
    the two numbers behind it in words. `goal` is the most the figure may be, None where the line only informs.
    """

    name: str
    figure: float
    unit: str
    measured: str = ""
    peer: str = ""
    goal: float | None = None
    about: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal."""
        return None if self.goal is None else self.figure <= self.goal

    def record(self) -> dict[str, Any]:
        """For `--json`."""
        found = {key: value for key, value in self._asdict().items() if value not in (None, "")}
        if self.met is not None:
            found["met"] = self.met
        return found


class Report:
    """Prints figures as they come and keeps them."""

    def __init__(self) -> None:
        self.sections: dict[str, list[Figure]] = {}
        self._section: list[Figure] = []

    def section(self, name: str, about: str) -> None:
        """A new table begins."""
        self._section = self.sections.setdefault(name, [])
        print(f"\n{name}: {about}", flush=True)
        print(f"  {'':52} {'figure':>12} {'goal':>8}         {'svcctl':>12}  peer", flush=True)

    def add(self, figure: Figure) -> None:
        """One more line."""
        self._section.append(figure)
        goal = "" if figure.goal is None else number(figure.goal)
        verdict = {None: "", True: "ok", False: "MISSED"}[figure.met]
        shown = f"{number(figure.figure)} {figure.unit}".strip()
        line = f"  {figure.name:52} {shown:>12} {goal:>8} {verdict:7} {figure.measured:>12}  {figure.peer}"
        print(line.rstrip(), flush=True)
        if figure.about:
            print(f"  {'':4}{figure.about}", flush=True)

    def __iter__(self) -> Iterator[Figure]:
        for figures in self.sections.values():
            yield from figures

    @property
    def missed(self) -> list[Figure]:
        """The figures that are beyond their goals."""
        return [figure for figure in self if figure.met is False]

    def document(self, machine: Mapping[str, Any]) -> dict[str, Any]:
        """For `--json`."""
        figures = {name: [figure.record() for figure in found] for name, found in self.sections.items()}
        return {"schema": 1, "machine": dict(machine), "figures": figures}


def number(value: float) -> str:
    """As many digits as a measurement deserves."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
