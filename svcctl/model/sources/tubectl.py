"""tubectl's file of bindings, which is also what `svcctl bindings -o json` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.bad_value import show
from svcctl.model.binding import Binding
from svcctl.model.bindings_file import FileProblem, read_bindings
from svcctl.model.desired import TUBECTL, Desired

if TYPE_CHECKING:
    from svcctl.model.sources.document import Document
    from svcctl.model.sources.options import Options

KEYS = frozenset({"schema", "bindings"})


def looks_like(value: object) -> bool:
    """Whether a document is such a file."""
    return isinstance(value, dict) and "bindings" in value and value.keys() <= KEYS


def read(document: Document) -> dict[bytes, str]:
    """The bindings of a document: key of 24 bytes -> label. Raises InputProblem."""
    import json

    try:
        # The one reader of that format works on text; here it was YAML, or part of a stream.
        return read_bindings(json.dumps(document.value, ensure_ascii=False))
    except FileProblem as problem:
        raise document.problem_at(problem.path, problem.cause, hint=problem.hint) from None


def merge(want: dict[bytes, str], found: dict[bytes, str]) -> None:
    """Adds the bindings of another file. Raises ValueError for one that is there with another label."""
    for key, label in found.items():
        if want.setdefault(key, label) != label:
            raise ValueError(f"{Binding.from_key(key, label)}: another file has it for {show(want[key])}")


def desired(want: dict[bytes, str], options: Options) -> Desired:
    """What bindings by key ask for."""
    bindings = tuple(Binding.from_key(key, label) for key, label in want.items())
    return Desired(TUBECTL, options.owner or TUBECTL, bindings=bindings, no_services=True)
