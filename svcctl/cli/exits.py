"""What each exit code means, in the words of help and the man page. The numbers are in svcctl.errors."""

from __future__ import annotations

from svcctl.errors import Exit

MEANING: dict[int, str] = {
    Exit.OK: "done, or nothing to do",
    Exit.FAILURE: "failed; diff: there are differences; check: problems were found",
    Exit.USAGE: "wrong arguments or a bad input file",
    Exit.NOT_LOADED: "nothing is loaded in this network namespace",
    Exit.PERMISSION: "a capability or a file permission is missing",
    Exit.NOT_FOUND: "the named object does not exist",
    Exit.CONFLICT: "it exists and belongs to something else",
    Exit.INCOMPATIBLE: "the state was made by an incompatible version",
    Exit.FULL: "a map is full",
    Exit.LOCKED: "the lock was not had in time",
    Exit.TROUBLE: "diff, check: could not do their work",
    Exit.BUG: "a bug in svcctl",
    Exit.INTERRUPTED: "interrupted",
    Exit.CLOSED_PIPE: "the reader of the output went away",
}
