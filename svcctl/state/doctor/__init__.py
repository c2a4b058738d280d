"""doctor: what svcctl needs of the kernel, the host and its state, line by line: ok, warn or fail, with a hint.

Works without a loaded state and without root; what could not be looked at is a warning that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.state.doctor import host, kernel, loaded, socket_calls
from svcctl.state.doctor.line import FAIL, OK, WARN, Line
from svcctl.state.doctor.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Iterator


def diagnose(probe: Probe) -> list[Line]:
    """All lines, in a fixed order. Raises nothing that the host or the state is to blame for."""
    return list(_lines(probe))


def _lines(probe: Probe) -> Iterator[Line]:
    yield from kernel.lines(probe)
    yield from socket_calls.lines(probe)
    yield from host.lines(probe)
    yield from loaded.lines(probe)


__all__ = ["FAIL", "OK", "WARN", "Line", "Probe", "diagnose"]
