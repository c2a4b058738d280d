"""What goes wrong between us and the kernel: one error with the operation, the object and the errno."""

from __future__ import annotations

import os

ENOTSUPP = 524
"""The kernel's own "not supported"; libc and Python have no name for it."""

_TEXTS = {ENOTSUPP: "operation not supported by this kernel"}

# Lines of a verifier log that follow the reason of the rejection and never explain it.
_LOG_NOISE = ("processed ", "verification time ", "stack depth ", "peak_states ", "mark_read ")


def errno_text(errno: int) -> str:
    """Text of an error number, the kernel-only ones included."""
    return _TEXTS.get(errno) or os.strerror(errno)


class BpfError(OSError):
    """A bpf operation failed; reads `<operation>: <subject>: <reason>`.

    `log` is what the kernel or libbpf said beside the number, `done` how many entries of a bulk operation
    were carried out before it stopped (None when the operation is not a bulk one).
    """

    def __init__(
        self,
        errno: int,
        operation: str,
        subject: str,
        *,
        reason: str | None = None,
        log: str | None = None,
        done: int | None = None,
    ) -> None:
        super().__init__(errno, reason or errno_text(errno))
        self.operation = operation
        self.subject = subject
        self.log = log
        self.done = done

    def __str__(self) -> str:
        """`<operation>: <subject>: <reason>`."""
        return f"{self.operation}: {self.subject}: {self.strerror}"


class Unsupported(BpfError):
    """This libbpf or this kernel lacks `feature`, which came with version `since` of it."""

    def __init__(
        self, errno: int, operation: str, subject: str, *, feature: str, since: str, reason: str
    ) -> None:
        super().__init__(errno, operation, subject, reason=reason)
        self.feature = feature
        self.since = since


class WrongKind(BpfError):
    """The descriptor or pin is a bpf object of another kind, for example a program where a map should be."""


class VerifierRejected(BpfError):
    """The kernel refused a program; `log` is the whole verifier log, the text its last meaningful line."""

    def __init__(self, errno: int, operation: str, subject: str, *, log: str) -> None:
        super().__init__(
            errno, operation, subject, reason=f"rejected by the verifier: {last_line(log)}", log=log
        )


def last_line(log: str) -> str:
    """The line of a verifier log that says why, without what comes after it.

    That is statistics, and since Linux 7.3 an explanation over many lines, headed "Verification failed: ...".
    """
    for line in reversed(log.partition("\nVerification failed:")[0].splitlines()):
        line = line.strip()
        if line and not line.startswith(_LOG_NOISE):
            return line
    return "no reason given"
