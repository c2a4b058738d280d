"""Options that several commands on services and their maps take, each group declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.options import option
from svcctl.cli.params import Count
from svcctl.maps.catalog import MAX_BACKENDS, MAX_SERVICES, MAX_SOCKETS

if TYPE_CHECKING:
    from collections.abc import Callable

_TABLE = (
    option(
        "--stable/--no-stable",
        default=None,
        help="With maglev: a changed set moves as few flows as possible, at the price that nodes may differ.",
    ),
    option(
        "--table-size",
        type=Count(0, 655_373),
        metavar="SLOTS",
        help="With maglev: slots of the table, a prime; 0: the default, 16381.",
    ),
)
_SIZES = (
    option("--max-services", type=Count(1, MAX_SERVICES), metavar="N", help="Room for services [4096]."),
    option("--max-backends", type=Count(1, MAX_BACKENDS), metavar="N", help="Room for backends [65536]."),
    option(
        "--max-sockets",
        type=Count(1, MAX_SOCKETS),
        metavar="N",
        help="Room for sockets and clients remembered [131072].",
    ),
)


def table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--stable and --table-size, of what `service add` and `service set` make of Maglev."""
    for one in reversed(_TABLE):
        function = one(function)
    return function


def size_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--max-services, --max-backends, --max-sockets, of the commands that make the maps of services."""
    for one in reversed(_SIZES):
        function = one(function)
    return function
