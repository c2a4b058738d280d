"""Sections drawn in boxes, for a terminal. rich is imported here and nowhere else."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from svcctl.render.text import ABSENT, escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.render.sections import Section


def lines(sections: Sequence[Section], *, width: int, color: bool, wide: bool = False) -> list[str]:
    """Lines of the drawing, at most `width` columns wide. Raises ModuleNotFoundError without rich."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        highlight=False,
        legacy_windows=False,
    )
    for section in sections:
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
        console.print(Panel(table, title=section.title, title_align="left"))
    return out.getvalue().splitlines()
