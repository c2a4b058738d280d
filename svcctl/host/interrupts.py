"""Holding Ctrl-C and SIGTERM back while something is written that should be there as a whole or not at all."""

from __future__ import annotations

from signal import SIG_BLOCK, SIG_SETMASK, SIGHUP, SIGINT, SIGTERM, pthread_sigmask


class Held:
    """Context of a short stretch of writes: signals that would end the command arrive after it.

    Only for the main thread, and for fractions of a second: nobody can interrupt it but with SIGKILL.
    """

    def __enter__(self) -> None:
        self._before = pthread_sigmask(SIG_BLOCK, (SIGINT, SIGTERM, SIGHUP))

    def __exit__(self, *unused: object) -> None:
        pthread_sigmask(SIG_SETMASK, self._before)
