"""Keeps the objects of one kind as the cluster has them: a list, then a watch from there on, for ever.

What an informer does, with one kubectl at a time. A watch that ends is begun again where it ended; one whose
version the server no longer has is followed by a new list. Whatever fails is tried again after growing pauses,
and what was known stays.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from svcctl.follow.kubectl import is_expired
from svcctl.follow.pace import APART, Backoff
from svcctl.follow.resources import list_path, watch_path
from svcctl.follow.store import BadAnswer, Expired, Store
from svcctl.host.child import Child
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcctl.follow.kubectl import Kubectl
    from svcctl.follow.resources import Resource

LARGEST_PAGE = 1 << 30
LARGEST_EVENT = 1 << 26
"""Bytes. An object has a megabyte or two at most."""

_FAILED_WATCHES = 3
"""After so many in a row the reason may be the version they began at: list again."""


class Times(Record):
    """Seconds, and objects a page; smaller ones are for tests.

    A list has `answer` for each page. A watch is asked to last between `watch` and twice that, as informers
    do, so that not all nodes begin anew at once; `grace` later it is taken to be dead. One that has lasted for
    `proof` works, though nothing may have changed in the cluster. `apart` is between two applies.
    """

    answer: float = 60.0
    watch: float = 300.0
    grace: float = 30.0
    proof: float = 10.0
    first_pause: float = 1.0
    longest_pause: float = 30.0
    page: int = 500
    apart: float = APART


class Reflector:
    """One kind of object. `store` is what is known; when `child` has said something, `read` takes it.

    `deadline` (the clock given) says when `wake` has. `trouble` is why there is no watch, or empty; it is told
    to `notice` when it changes. `lists` and `watches` count how often one was begun.
    """

    def __init__(
        self, resource: Resource, kubectl: Kubectl, times: Times, notice: Callable[[str], None]
    ) -> None:
        self.resource = resource
        self.store = Store(resource)
        self.child: Child | None = None
        self.deadline = -math.inf
        self.trouble = ""
        self.lists = self.watches = self.failures = 0
        self._kubectl = kubectl
        self._times = times
        self._notice = notice
        self._backoff = Backoff(times.first_pause, times.longest_pause)
        self._page = times.page
        self._token = ""
        self._watching = False
        self._failed_watches = 0
        self._works = False
        self._give_up = 0.0
        self._received = bytearray()

    def wake(self, now: float) -> None:
        """The deadline has come: begin what is to begin, or give up on what takes too long."""
        if self.child is None:
            if self.store.version:
                self._watch(now)
            else:
                self._list(now, "")
        elif self._watching and now < self._give_up:
            self._well()
            self.deadline = self._give_up
        else:
            self.stop()
            what = "watch did not end when it should have" if self._watching else "list is not answered"
            self._fail(now, f"the {what}")

    def read(self, now: float) -> None:
        """Take what the child has written."""
        assert self.child is not None
        data = self.child.read()
        if data is None:
            return
        try:
            if data:
                self._received += data
                if self._watching:
                    self._events()
                elif len(self._received) > LARGEST_PAGE:
                    raise BadAnswer("the list does not end")
                return
            code, said = self._end_child()
            if self._watching:
                self._watch_ended(now, code, said)
            else:
                self._list_ended(now, code, said)
        except Expired as error:
            self.stop()
            self._fail(now, str(error), relist=True)
        except BadAnswer as error:
            self.stop()
            self._fail(now, str(error), relist=self._watching)

    def stop(self) -> None:
        """End the child, if there is one."""
        if self.child is not None:
            child, self.child = self.child, None
            child.stop()

    # Listing

    def _list(self, now: float, token: str) -> None:
        if not token:
            self.store.begin()
            self.lists += 1
        self._watching = False
        self._token = token
        self._begin(now, list_path(self.resource, self._page, token), self._times.answer)

    def _list_ended(self, now: float, code: int, said: str) -> None:
        if code != 0:
            if is_expired(said) and self._token:
                # The pages take longer than the server keeps what they are cut from: fewer of them.
                self._page *= 4
            self._fail(now, said or f"kubectl ended with {code}")
            return
        token = self.store.page(bytes(self._received))
        if token:
            self._list(now, token)
        else:
            self._failed_watches = 0
            self._watch(now)

    # Watching

    def _watch(self, now: float) -> None:
        self.watches += 1
        self._watching = True
        self._works = False
        seconds = max(int(self._times.watch * (1 + random.random())), 1)
        path = watch_path(self.resource, self.store.version, seconds)
        self._begin(now, path, seconds + self._times.grace)

    def _events(self) -> None:
        """Take whole lines; an event that was cut short with its connection is sent again."""
        *lines, rest = self._received.split(b"\n")
        self._received = rest
        if len(rest) > LARGEST_EVENT:
            raise BadAnswer("an event does not end")
        for line in lines:
            if line.strip():
                self.store.event(bytes(line))
                self._well()

    def _watch_ended(self, now: float, code: int, said: str) -> None:
        if code != 0 and is_expired(said):
            raise Expired(said)
        if code == 0 and self._works:
            self._watch(now)  # the server has ended it as it was asked to
            return
        self._failed_watches += 1
        self._fail(
            now,
            said or f"the watch ended with {code}",
            relist=self._failed_watches >= _FAILED_WATCHES,
        )

    # Both

    def _begin(self, now: float, path: str, seconds: float) -> None:
        self._received = bytearray()
        try:
            self.child = Child(self._kubectl.raw(path))
        except OSError as error:
            self._fail(now, f"{self._kubectl.program}: {error.strerror}")
            return
        self._give_up = now + seconds
        self.deadline = min(self._give_up, now + self._times.proof) if self._watching else self._give_up

    def _end_child(self) -> tuple[int, str]:
        assert self.child is not None
        child, self.child = self.child, None
        return child.end()

    def _well(self) -> None:
        """The watch works: it has brought something, or has lasted for a while."""
        self._works = True
        self._failed_watches = 0
        self._backoff.reset()
        self._page = self._times.page
        if self.trouble:
            self.trouble = ""
            self._notice(f"{self.resource.name}: following again")

    def _fail(self, now: float, why: str, *, relist: bool = False) -> None:
        """Try again later: the watch from its last version, or a list. What is known stays."""
        if relist:
            self.store.version = ""
        self.failures += 1
        pause = self._backoff.next()
        self.deadline = now + pause
        if why != self.trouble:
            self.trouble = why
            self._notice(f"{self.resource.name}: {why}; trying again in {pause:.1f} s")
