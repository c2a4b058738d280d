"""tubectl's file of bindings, which is also what `svcctl export` and `svcctl bindings -o json` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.binding import Binding
from svcctl.model.bindings_file import FileProblem, read_bindings
from svcctl.model.desired import TUBECTL, Desired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.model.sources.document import Document
    from svcctl.model.sources.options import Options

KEYS = frozenset({"schema", "bindings"})


def looks_like(value: object) -> bool:
    """Whether a document is such a file."""
    return isinstance(value, dict) and "bindings" in value and value.keys() <= KEYS


def read(documents: Sequence[Document], options: Options) -> Desired:
    """The bindings of all files together; of one in two files the labels have to be equal. Raises InputProblem."""
    import json

    want: dict[bytes, str] = {}
    for document in documents:
        try:
            # The one reader of that format works on text; here it may have been YAML, or part of a stream.
            found = read_bindings(json.dumps(document.value, ensure_ascii=False))
        except FileProblem as problem:
            raise document.problem_at(problem.path, problem.cause, hint=problem.hint) from None
        for key, label in found.items():
            if want.setdefault(key, label) != label:
                cause = f"{Binding.from_key(key, label)}: another file has it for {want[key]}"
                raise document.problem((), cause)
    return desired(want, options)


def desired(want: dict[bytes, str], options: Options) -> Desired:
    """What bindings by key ask for."""
    bindings = tuple(Binding.from_key(key, label) for key, label in want.items())
    return Desired(TUBECTL, options.owner or TUBECTL, bindings=bindings)
