"""identity, mark, writers: whose state it is, whether a writer died at it, and the ring of the last ten."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from svcctl.errors import SvcctlError
from svcctl.maps import enums, layouts
from svcctl.maps.layouts import U32
from svcctl.state.audit.finding import Finding
from svcctl.state.session import ZERO, need_current_schema
from svcctl.state.writer import is_dead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.state.writer import Writer


def find(writer: Writer) -> Iterator[Finding]:
    """Findings about `meta` and `writers`. Raises Incompatible for another layout: nothing here fits that."""
    meta = writer.meta()
    need_current_schema(meta)
    if meta.netns_inode != writer.netns.inode:
        yield Finding(
            "identity",
            f"meta names network namespace {meta.netns_inode}, the directory {writer.netns.inode}",
            None,
            "'svcctl unload' and 'svcctl load' start anew",
        )
    elif _is_dead(writer):
        yield Finding(
            "identity",
            f"the state belongs to an earlier network namespace with inode {writer.netns.inode}, which is gone",
            None,
            "'svcctl gc' removes it, 'svcctl load' starts anew",
        )
    if meta.generation & 1 or meta.swap_phase != enums.SWAP_NONE:
        yield Finding(
            "mark",
            f"interrupted: {layouts.text(meta.mark_command)!r} by pid {meta.mark_pid}, uid {meta.mark_uid}",
            lambda: None,  # whoever repairs begins with that: see check.py
        )
    yield from _writers(writer)


def unusable(writer: Writer) -> list[Finding]:
    """identity: `meta` is svcctl's. Raises Incompatible when it is, but of a newer layout."""
    meta = layouts.META.unpack(writer.map("meta").lookup(ZERO) or bytes(layouts.META.size))
    if meta.magic == layouts.MAGIC:
        writer.meta()
    return [
        Finding(
            "identity",
            "'meta' was not written by svcctl, or is torn",
            None,
            "'svcctl unload' and 'svcctl load' start anew",
        )
    ]


def _is_dead(writer: Writer) -> bool:
    try:
        return is_dead(writer)
    except SvcctlError:
        return False  # the pin of the link is no link: `pins` says so


def _writers(writer: Writer) -> Iterator[Finding]:
    """writers: the oldest line is the next to be overwritten."""
    ring = writer.map("writers")
    times = [
        layouts.WRITER.unpack(ring.lookup(U32.pack(index)) or bytes(layouts.WRITER.size)).time_ns
        for index in range(layouts.WRITERS)
    ]
    following = writer.meta().next_writer
    used = [index for index, time_ns in enumerate(times) if time_ns]
    # Filled from the start, then round and round: never a gap before the position.
    sound = len(used) == layouts.WRITERS or used == list(range(following))
    if following < layouts.WRITERS and sound:
        return
    right = 0
    if used:
        newest = max(used, key=lambda index: times[index])
        right = (newest + 1) % layouts.WRITERS
        gaps = [index for index, time_ns in enumerate(times) if not time_ns]
        if gaps:
            right = gaps[0]
    yield Finding(
        "writers",
        f"the next writer's line is {following}, but {len(used)} of {layouts.WRITERS} are in use",
        partial(_set_next_writer, writer, right, times),
    )


def _set_next_writer(writer: Writer, position: int, times: list[int]) -> None:
    """Correct the position; lines behind a gap are moved nowhere, they are forgotten."""
    ring = writer.map("writers")
    if not all(times):
        for index in range(position, layouts.WRITERS):
            ring.update(U32.pack(index), bytes(layouts.WRITER.size))
    writer.put_meta(writer.meta()._replace(next_writer=position))
