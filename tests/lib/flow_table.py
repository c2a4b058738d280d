"""States of a flow and how long each may be idle, in seconds, with the times that are the default."""

from __future__ import annotations

from typing import NamedTuple

from svcctl.model.conntrack import FIN, REPLY, RST
from svcctl.model.constants import TCP, UDP


class Row(NamedTuple):
    """A state: bits of the two directions, which map it is in, and its limit."""

    name: str
    protocol: int
    limit_s: int
    seen: int = 0
    other: int = 0
    answered: bool = True
    was_reset: bool = False
    one_sided: bool = False


ROWS = (
    Row("udp", UDP, 60),
    Row("udp, not answered", UDP, 60, answered=False),
    Row("udp, answered once", UDP, 60, 0, REPLY, answered=False),
    Row("syn sent", TCP, 20, answered=False),
    Row("syn and syn-ack", TCP, 20, 0, REPLY, answered=False),
    Row("established", TCP, 3600, 0, REPLY),
    Row("one fin", TCP, 3600, FIN, REPLY),
    Row("one fin, before an answer", TCP, 20, FIN, 0, answered=False),
    Row("both fins", TCP, 120, FIN, FIN | REPLY),
    Row("both fins, never answered", TCP, 120, FIN, FIN, answered=False),
    Row("reset", TCP, 40, RST, REPLY, was_reset=True),
    Row("reset by both", TCP, 40, RST, RST | REPLY, was_reset=True),
    Row("refused", TCP, 40, 0, RST, answered=False, was_reset=True),
    Row("reset after fins", TCP, 40, FIN | RST, FIN | REPLY, was_reset=True),
    Row("reset after one fin", TCP, 40, FIN, RST | REPLY, was_reset=True),
    Row("traffic after a reset", TCP, 120, 0, REPLY, was_reset=True),
    Row("one fin, traffic after a reset", TCP, 120, FIN, REPLY, was_reset=True),
    Row("one-sided, not yet gone on with", TCP, 20, one_sided=True, answered=False),
    Row("one-sided, answered", TCP, 3600, one_sided=True),
    Row("one-sided, one fin", TCP, 120, FIN, one_sided=True, answered=False),
    Row("one-sided, both fins", TCP, 120, FIN, FIN, one_sided=True),
    Row("one-sided, reset", TCP, 40, RST, one_sided=True, answered=False, was_reset=True),
    Row("one-sided, traffic after a reset", TCP, 120, one_sided=True, was_reset=True),
    Row("one-sided udp", UDP, 60, one_sided=True, answered=False),
)
