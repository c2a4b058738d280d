"""Points in time as text: UTC, to the second, sortable, the same in tables and in JSON."""

from __future__ import annotations

import time


def utc(ns: int) -> str:
    """`2026-11-29T21:02:11Z` of nanoseconds since 1970. A number no clock shows is given as it is."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ns // 1_000_000_000))
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"
