"""Tells kinds of inputs apart by their content, and has each read by its reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.model.desired import Desired
    from svcctl.model.sources.options import Options


def read_inputs(inputs: Sequence[tuple[str, bytes]], options: Options) -> list[Desired]:
    """What the inputs ask for: (name for messages, content) each, in one Desired per kind of source.

    All inputs of one kind are read together. Raises UsageProblem for anything that cannot be read.
    """
    raise NotImplementedError
