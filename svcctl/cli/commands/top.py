"""`svcctl top`: live rates by label and service."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from svcctl.cli.options import noun, option
from svcctl.cli.params import SECONDS
from svcctl.errors import Exit, SvcctlError, UsageProblem
from svcctl.render.records import Column

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from svcctl.cli.env import Env
    from svcctl.model.rates import Rates
    from svcctl.model.snapshot import Snapshot
    from svcctl.render.sections import Section

LEAST = 0.1
"""Seconds between two looks: reading takes its time too."""


@noun(
    "top",
    examples=("svcctl top", "svcctl top --interval 5", "svcctl top --once -o json"),
    exits=(0, 2, 3, 4, 7, 130),
)
@option("--interval", type=SECONDS, metavar="SECONDS", default="1", help="Time between two looks [1].")
@option("--once", is_flag=True, help="Print the rates of one interval as text and end.")
def command(env: Env, interval: float, once: bool) -> int:
    """Show what happens now, per second: look-ups of each label, connections of each service and backend, and
    what is refused, the busiest first.

    On a terminal the screen is drawn anew after each interval, until q or ctrl-C; a blank draws it at once.
    Elsewhere, with --once and with -o json, yaml or name, one interval is measured and printed. Reads only: run
    it as a member of the group given to 'svcctl load --group'.
    """
    if interval < LEAST:
        raise UsageProblem(f"top: --interval: expected at least {LEAST} seconds")
    first = _Look(env)
    if not once and env.output in ("text", "wide") and _is_screen(env):
        try:
            from svcctl.render.panel import Screen

            with Screen(color=env.color) as screen:
                return _watch(env, screen, first, interval)
        except ModuleNotFoundError:
            env.verbose("rich is not installed: one interval, as text")
    time.sleep(interval)
    _print(env, _Look(env).since(first))
    return Exit.OK


class _Look:
    """The counters at one moment."""

    def __init__(self, env: Env) -> None:
        from svcctl.cli.access import place
        from svcctl.state.collect import collect

        self.snapshot: Snapshot = collect(place(env))
        self.at = time.monotonic()

    def since(self, before: _Look) -> Rates:
        """What happened between two looks."""
        from svcctl.model.rates import between

        return between(before.snapshot, self.snapshot, self.at - before.at)


def _is_screen(env: Env) -> bool:
    from svcctl.cli.env import isatty

    return isatty(sys.stdout) and env.environ.get("TERM", "dumb") != "dumb"


def _watch(env: Env, screen: Screen, before: _Look, interval: float) -> int:
    """Until a key, a signal or the end of the terminal."""
    from svcctl.bpf.errors import BpfError
    from svcctl.cli.problems import describe
    from svcctl.cli.terminal import Terminated, keys

    wide = env.output == "wide"
    last: _Look | None = before
    try:
        with keys() as keyboard:
            screen.draw(_facts("measuring", interval))
            while True:
                due = time.monotonic() + interval
                while (left := due - time.monotonic()) > 0:
                    struck = keyboard.wait(left)
                    if "q" in struck.lower():
                        return Exit.OK
                    if " " in struck:
                        break
                try:
                    look = _Look(env)
                except (SvcctlError, BpfError, OSError) as error:
                    # Unloaded, or being upgraded: it may be back with the next look.
                    last = None
                    screen.draw(_facts(describe(error).message, interval))
                    continue
                if last is None:
                    screen.draw(_facts("measuring", interval))
                else:
                    rates = look.since(last)
                    screen.draw([*_summary(rates, interval), *_tables(rates, screen.height, wide)], wide=wide)
                last = look
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except Terminated:
        return Exit.OK


def _print(env: Env, rates: Rates) -> None:
    from svcctl.render import sections

    wide = env.output == "wide"
    env.emit_objects(
        "top",
        [_object(rates)],
        lambda: sections.lines(
            [*_summary(rates, None), *_tables(rates, None, wide)], headers=env.headers, wide=wide
        ),
        name="seconds",
    )


def _object(rates: Rates) -> dict[str, Any]:
    """As JSON has it: every row, in the order of the tables."""
    value: dict[str, Any] = {"seconds": round(rates.seconds, 3)}
    for title, columns, rows in _rows(rates):
        keys = [column.key for column in columns]
        value[title] = [{key: _rounded(one) for key, one in zip(keys, row, strict=True)} for row in rows]
    value["drops"] = {reason: _rounded(rate) for reason, rate in rates.drops.items()}
    return value


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _facts(text: str, interval: float) -> list[Section]:
    from svcctl.render.sections import Section

    return [Section("svcctl top", (), [("every", f"{interval:g} s"), ("now", text)])]


def _summary(rates: Rates, interval: float | None) -> list[Section]:
    from svcctl.render.sections import Section
    from svcctl.render.times import utc

    facts = [
        ("time", utc(time.time_ns())),
        ("over", f"{rates.seconds:.1f} s" + (f", every {interval:g} s; q ends" if interval else "")),
        ("look-ups", f"{_number(rates.lookups)}/s of {len(rates.labels)} labels"),
        ("connections", f"{_number(rates.connections)}/s through {len(rates.services)} services"),
        ("refused", _refused(rates)),
    ]
    return [Section("svcctl top", (), facts)]


def _refused(rates: Rates) -> str:
    reasons = [f"{reason} {_number(rate)}" for reason, rate in rates.drops.items() if rate]
    return f"{_number(rates.refused)}/s" + (f": {', '.join(reasons)}" if reasons else "")


def _tables(rates: Rates, height: int | None, wide: bool) -> list[Section]:
    """The tables that have rows; with a height, as many rows as there is room for."""
    from svcctl.render.sections import Section

    found = [(title, columns, rows) for title, columns, rows in _rows(rates) if rows]
    if height is None:
        return [Section(title, columns, rows) for title, columns, rows in found]
    room = share_out([len(rows) for _, _, rows in found], height - SUMMARY - AROUND * len(found))
    return [
        Section(title if len(rows) == count else f"{title}: {count} of {len(rows)}", columns, rows[:count])
        for (title, columns, rows), count in zip(found, room, strict=True)
    ]


SUMMARY, AROUND = 7, 3
"""Lines of a screen: the first box, and what a table has besides its rows."""


def share_out(wanted: Sequence[int], room: int) -> list[int]:
    """How many rows each table gets: what it wants, or an equal share of what the small ones leave. At least one."""
    given = [0] * len(wanted)
    left = room
    for place, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[index] = max(min(wanted[index], left // (len(wanted) - place)), 1)
        left -= given[index]
    return given


def _rows(rates: Rates) -> Iterable[tuple[str, Sequence[Column], Sequence[Sequence[Any]]]]:
    from svcctl.model.constants import FAMILY_NAMES, PROTOCOL_NAMES

    families, protocols = FAMILY_NAMES.get, PROTOCOL_NAMES.get
    labels = [
        (row[0], families(row[1], str(row[1])), protocols(row[2], str(row[2])), *row[3:])
        for row in rates.labels
    ]
    services = [(row[0], families(row[1], str(row[1])), *row[2:]) for row in rates.services]
    yield "labels", _LABELS, labels
    yield "services", _SERVICES, services
    yield "backends", _BACKENDS, rates.backends


def _number(rate: float) -> str:
    """One decimal where it says something."""
    return f"{rate:.0f}" if rate >= 100 or not rate else f"{rate:.1f}"


_LABELS = (
    Column("LABEL", "label"),
    Column("FAMILY", "family"),
    Column("PROTOCOL", "protocol"),
    Column("SOCKETS", "sockets", None, ">"),
    Column("LOOKUPS/S", "lookups", _number, ">"),
    Column("NO SOCKET/S", "no_socket", _number, ">"),
    Column("ERRORS/S", "errors", _number, ">"),
)
_SERVICES = (
    Column("SERVICE", "service"),
    Column("FAMILY", "family"),
    Column("CONNECTIONS/S", "connections", _number, ">"),
    Column("BY AFFINITY/S", "affinity", _number, ">"),
    Column("BY SOCKET/S", "remembered", _number, ">", wide=True),
    Column("NO BACKEND/S", "no_backend", _number, ">"),
    Column("DROPPED/S", "dropped", _number, ">"),
    Column("NOT REMEMBERED/S", "reverse_full", _number, ">", wide=True),
)
_BACKENDS = (
    Column("BACKEND", "backend"),
    Column("CONNECTIONS/S", "connections", _number, ">"),
)

if TYPE_CHECKING:
    from svcctl.render.panel import Screen
