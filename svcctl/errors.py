"""What svcctl reports to its user on purpose: one tree of errors, one exit code each.

The numbers are the contract of svcctl(8), section EXIT STATUS. Anything that is not a `SvcctlError`
when it reaches `svcctl.cli.main` is a bug and ends with 70.
"""

from __future__ import annotations


class Exit:
    """Exit codes. Plain integers: enum costs start-up time on every command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_LOADED = 3
    PERMISSION = 4
    NOT_FOUND = 5
    CONFLICT = 6
    INCOMPATIBLE = 7
    FULL = 8
    LOCKED = 9
    TROUBLE = 10
    BUG = 70
    INTERRUPTED = 130
    CLOSED_PIPE = 141


class SvcctlError(Exception):
    """Base of all reported errors.

    `message` follows the grammar `<action>: <object>: <cause>`; `hint` says what to do, if anything.
    `code` is stable text for scripts (`-o json`).
    """

    exit_code = Exit.FAILURE
    code = "failure"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageProblem(SvcctlError):
    """Wrong arguments or a bad input file."""

    exit_code = Exit.USAGE
    code = "usage"


class NotLoaded(SvcctlError):
    """No state directory for this network namespace."""

    exit_code = Exit.NOT_LOADED
    code = "not_loaded"


class PermissionProblem(SvcctlError):
    """A capability or a file mode is in the way."""

    exit_code = Exit.PERMISSION
    code = "permission"


class NotFound(SvcctlError):
    """The named object does not exist."""

    exit_code = Exit.NOT_FOUND
    code = "not_found"


class Conflict(SvcctlError):
    """The object exists, but belongs to something else."""

    exit_code = Exit.CONFLICT
    code = "conflict"


class Incompatible(SvcctlError):
    """State of another schema, or pins that are not what they should be."""

    exit_code = Exit.INCOMPATIBLE
    code = "incompatible"


class Full(SvcctlError):
    """A map has no room; the message names it, its size and the option that grows it."""

    exit_code = Exit.FULL
    code = "full"


class LockTimeout(SvcctlError):
    """The lock was not had in time."""

    exit_code = Exit.LOCKED
    code = "locked"


class Trouble(SvcctlError):
    """`diff` and `check` could not do their work."""

    exit_code = Exit.TROUBLE
    code = "trouble"
