"""How kubectl is asked, and what it means by the way it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXPIRED = ("(Expired)", "(Gone)", "status code 410")


class Kubectl(Record):
    """A program and the options that lead it to a cluster (`--kubeconfig`, `--context`, `--server`, ...)."""

    program: str
    options: tuple[str, ...]

    def raw(self, path: str) -> Sequence[str]:
        """The command line that prints what the API server answers at a path.

        Not `kubectl get --watch`: it gives no end of the list, prints nothing when there are no objects, and
        ends with 0 when the server says that the version is too old.
        """
        return (self.program, *self.options, "get", "--raw", path)


def is_expired(said: str) -> bool:
    """Whether kubectl failed since the server no longer has the version or the rest of the list (HTTP 410)."""
    return any(word in said for word in _EXPIRED)
