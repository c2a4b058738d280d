"""Sections drawn in boxes, for a terminal. rich is imported here and nowhere else."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from svcctl.render.text import ABSENT, escape

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import TextIO

    from rich.console import Console
    from rich.panel import Panel

    from svcctl.render.sections import Section


def lines(sections: Sequence[Section], *, width: int, color: bool, wide: bool = False) -> list[str]:
    """Lines of the drawing, at most `width` columns wide. Raises ModuleNotFoundError without rich."""
    out = io.StringIO()
    console = _console(out, color=color, width=width)
    for section in sections:
        console.print(_panel(section, wide=wide))
    return out.getvalue().splitlines()


class Screen:
    """The whole of a terminal, drawn on again and again; what was there before is there again at the end."""

    def __init__(self, *, color: bool) -> None:
        """Raises ModuleNotFoundError without rich."""
        from rich.live import Live

        self._console = _console(sys.stdout, color=color)
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    @property
    def height(self) -> int:
        """Lines there are now."""
        return self._console.size.height

    def draw(self, sections: Sequence[Section], *, wide: bool = False) -> None:
        """Replace what the screen shows."""
        from rich.console import Group

        self._live.update(Group(*[_panel(section, wide=wide) for section in sections]), refresh=True)

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def _console(out: TextIO, *, color: bool, width: int | None = None) -> Console:
    from rich.console import Console

    return Console(
        file=out,
        width=width,
        force_terminal=True if width is None else color,
        no_color=not color,
        color_system="standard" if color else None,
        highlight=False,
        legacy_windows=False,
    )


def _panel(section: Section, *, wide: bool) -> Panel:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=bool(section.columns))
    if section.columns:
        shown = [i for i, column in enumerate(section.columns) if wide or not column.wide]
        for i in shown:
            column = section.columns[i]
            table.add_column(
                column.header, justify="right" if column.align == ">" else "left", header_style="bold"
            )
        for row in section.rows:
            cells = []
            for i in shown:
                form = section.columns[i].format or str
                cells.append(Text(escape(ABSENT if row[i] is None else form(row[i]) or ABSENT)))
            table.add_row(*cells)
    else:
        table.add_column(style="bold")
        table.add_column()
        for name, value in section.rows:
            table.add_row(Text(name), Text(escape(str(value))))
    return Panel(table, title=section.title, title_align="left")
