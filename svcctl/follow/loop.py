"""The follower: three reflectors, one apply at a time, and the news of this node's interfaces. One thread."""

from __future__ import annotations

import math
import select
import signal
import socket
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from svcctl.follow.pace import Backoff, Pace
from svcctl.follow.reflector import Reflector, Times
from svcctl.follow.resources import RESOURCES, SERVICES, SLICES
from svcctl.follow.store import all_objects
from svcctl.model.sync_figures import Figures, Followed
from svcctl.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from svcctl.follow.kubectl import Kubectl
    from svcctl.follow.resources import Resource
    from svcctl.host.route_changes import RouteChanges

_PUBLISH = 15.0


class Applied(Record):
    """What an apply came to. `no_local_*`: services whose local set is empty while other nodes have backends.

    `show`: nothing was written, and this prints what would have been.
    """

    created: int = 0
    changed: int = 0
    deleted: int = 0
    no_local_internal: int = 0
    no_local_external: int = 0
    ended_flows: int = 0
    show: Callable[[], None] | None = None


class Hooks(Record):
    """What the follower calls, all in its own thread.

    `apply` gets all objects, as a Kubernetes List has them, and makes the state theirs; what it raises is told
    and tried again. `node_changed` is called when this node's interfaces or addresses may have changed, and once
    at the beginning. `reason` makes a line of an exception. `publish` gets the figures after each apply, and
    every 15 seconds.
    """

    apply: Callable[[list[dict[str, Any]]], Applied]
    node_changed: Callable[[], None]
    reason: Callable[[Exception], str]
    publish: Callable[[Figures], None]
    notice: Callable[[str], None]


class Follower:
    """Follows a cluster until SIGTERM or SIGINT."""

    def __init__(
        self,
        kubectl: Kubectl,
        hooks: Hooks,
        changes: RouteChanges | None,
        *,
        resources: Sequence[Resource] = RESOURCES,
        times: Times | None = None,
        once: bool = False,
    ) -> None:
        self._hooks = hooks
        self._changes = changes
        self._once = once
        self._times = times or Times()
        self._started = time.time()
        self.figures = Figures()
        self._reflectors = [Reflector(resource, kubectl, self._times, hooks.notice) for resource in resources]
        self._objects = self._pace()
        self._node = self._pace()
        self._complained: dict[str, str] = {}
        self._published = -math.inf
        self._listed = self._tried = False
        self._stopped_by = 0
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)

    def _pace(self) -> Pace:
        backoff = Backoff(self._times.first_pause, self._times.longest_pause)
        return Pace(backoff, apart=self._times.apart)

    def run(self) -> int:
        """Follow; returns the number of the signal that ended it, 0 with `once`. Only in the main thread."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self._stop) for number in numbers}
        wakeup = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        try:
            if self._changes is not None:
                self._node.change(-math.inf)
            while not self._stopped_by and not (self._once and self._tried):
                self._turn()
            return self._stopped_by
        finally:
            for reflector in self._reflectors:
                reflector.stop()
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._wake.close()
            self._waker.close()

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self._stopped_by = number

    def _turn(self) -> None:
        """Wait for something to happen and deal with it."""
        now = time.monotonic()
        for reflector in self._reflectors:
            if reflector.deadline <= now:
                reflector.wake(now)
        self._wait()
        self._take_note()
        if self._stopped_by:
            return
        if self._apply_due() <= time.monotonic():
            self._apply()
        if self._node.due() <= time.monotonic():
            self._refresh_node()
        if self._published + _PUBLISH <= time.monotonic():
            self._publish()

    def _wait(self) -> None:
        """Until a child or the kernel says something, a signal comes or something is due."""
        poller = select.poll()  # made anew, as the children and their descriptors come and go
        speakers: dict[int, Reflector] = {}
        for reflector in self._reflectors:
            for fd in reflector.child.filenos() if reflector.child is not None else ():
                speakers[fd] = reflector
        listening = [] if self._changes is None else [self._changes.fileno()]
        for fd in (self._wake.fileno(), *listening, *speakers):
            poller.register(fd, select.POLLIN)
        first = min(
            *(reflector.deadline for reflector in self._reflectors),
            self._apply_due(),
            self._node.due(),
            self._published + _PUBLISH,
        )
        ready = poller.poll(math.ceil(min(max(first - time.monotonic(), 0.0), _PUBLISH) * 1000))
        for reflector in {speakers[fd]: None for fd, _ in ready if fd in speakers}:
            if reflector.child is not None:
                reflector.read(time.monotonic())
        for fd, _ in ready:
            if fd == self._wake.fileno():
                self._wake.recv(64)
            elif self._changes is not None and fd in listening and self._changes.take():
                self._node.change(time.monotonic())

    def _apply_due(self) -> float:
        """Nothing is applied before all kinds have been listed: what is missing would be taken for gone."""
        return self._objects.due() if self._listed else math.inf

    def _take_note(self) -> None:
        """Of what the reflectors have learnt."""
        figures, changed = self.figures, 0
        for reflector in self._reflectors:
            store = reflector.store
            count, store.changed = store.changed, 0
            changed += count
            if store.resource is SERVICES:
                figures.services_pending += count
                figures.services_total += count
            elif store.resource is SLICES:
                figures.endpoints_pending += count
                figures.endpoints_total += count
        if not self._listed and all(reflector.store.listed for reflector in self._reflectors):
            # Even if there is nothing: what an earlier follower applied may have gone since.
            self._listed = True
            self._objects.change(-math.inf)
            figures.last_queued = time.time()
        elif changed and self._listed:
            self._objects.change(time.monotonic())
            figures.last_queued = time.time()

    def _apply(self) -> None:
        stores = [reflector.store for reflector in self._reflectors]
        triggers = [trigger for store in stores for trigger in store.triggers.values()]
        figures = self.figures
        self._objects.begin()
        self._tried = True
        begin = time.monotonic()
        try:
            done = self._hooks.apply(all_objects(stores))
        except Exception as error:
            # What is pinned stays as it is, and serves.
            if self._once:
                raise
            figures.failures += 1
            self._complain("apply", error, self._objects.failed(time.monotonic()))
        else:
            end = time.monotonic()
            self._objects.done(end, end - begin)
            self._works("apply")
            figures.sync_seconds.observe(end - begin)
            figures.last_sync = time.time()
            figures.services_pending = figures.endpoints_pending = 0
            figures.no_local_internal, figures.no_local_external = (
                done.no_local_internal,
                done.no_local_external,
            )
            figures.ended_flows += done.ended_flows
            for store in stores:
                store.triggers.clear()
            for trigger in triggers:
                self._observe(trigger)
            if done.show is not None:
                done.show()
            if done.created or done.changed or done.deleted:
                what = "applied" if done.show is None else "would apply"
                self._hooks.notice(
                    f"{what}: {done.created} created, {done.changed} changed, {done.deleted} deleted"
                )
        self._publish()

    def _observe(self, trigger: str) -> None:
        """How long a change took to get here; not for those from before this follower began."""
        try:
            began = datetime.fromisoformat(trigger).timestamp()
        except ValueError:
            return
        if began >= self._started:
            self.figures.programming_seconds.observe(max(self.figures.last_sync - began, 0.0))

    def _refresh_node(self) -> None:
        self._node.begin()
        try:
            self._hooks.node_changed()
        except Exception as error:
            self._complain("node", error, self._node.failed(time.monotonic()))
        else:
            self._node.done(time.monotonic(), 0.0)
            self._works("node")

    def _complain(self, what: str, error: Exception, pause: float) -> None:
        """Say what failed, once for each reason."""
        reason = self._hooks.reason(error)
        if self._complained.get(what) != reason:
            self._complained[what] = reason
            self._hooks.notice(f"{reason}; trying again in {pause:.1f} s")

    def _works(self, what: str) -> None:
        if self._complained.pop(what, None) is not None:
            self._hooks.notice(f"{what}: works again")

    def _publish(self) -> None:
        self._published = time.monotonic()
        self.figures.followed = [
            Followed(
                one.resource.name,
                len(one.store.objects),
                one.lists,
                one.watches,
                one.failures,
                one.store.listed and not one.trouble,
            )
            for one in self._reflectors
        ]
        self._hooks.publish(self.figures)
