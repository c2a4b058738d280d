"""The health server: which ports it listens on, and what is answered at each. Reads the state, never writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svcctl.host.http_server import Response, Server
from svcctl.host.listeners import name_of
from svcctl.model.health import Health, is_healthy, node_answer, service_answer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from svcctl.host.http_server import Request
    from svcctl.model.health import Answer

NODE, METRICS = "healthz", "metrics"
Purpose = str | int
"""What a listening socket is for: NODE, METRICS, or the health-check port of a service."""

PATHS: dict[Purpose, str] = {NODE: "/healthz", METRICS: "/metrics"}

_JSON = "application/json"


class HealthServer:
    """Serves until SIGTERM or SIGINT.

    `read` looks at the state: a Health, or the last one again when nothing has changed; it must not raise.
    `always` is what to serve beside the services' ports, NODE and METRICS. `listen` makes the sockets of one of
    those or of a port, that on the addresses which `read` said (None: all), and may raise OSError: it is asked again
    then, since kube-proxy or another svcctl may still have them. `given` says what sockets are for that are there
    from the start; nothing else is opened for that. `metrics` makes the page for METRICS.
    """

    def __init__(
        self,
        read: Callable[[], Health],
        listen: Callable[[Purpose, Sequence[str] | None], list[socket.socket]],
        always: Sequence[str],
        given: Sequence[tuple[socket.socket, Purpose]],
        *,
        metrics: Callable[[], Response],
        notice: Callable[[str], None],
        late: float,
        timeout: float,
    ) -> None:
        self._read = read
        self._listen = listen
        self._always = always
        self._metrics = metrics
        self._notice = notice
        self._late = late
        self._purpose: dict[socket.socket, Purpose] = dict(given)
        self._given = {purpose for _, purpose in given}
        self._open: dict[Purpose, list[socket.socket]] = {}
        self._refused: dict[Purpose, str] = {}
        self._addresses: tuple[str, ...] | None = None
        self._server = Server(
            list(self._purpose), self._answer, paths=None, timeout=timeout, tick=self._follow_ports
        )

    def run(self) -> int:
        """Serve; returns the number of the signal that ended it."""
        return self._server.run()

    def _follow_ports(self) -> None:
        """Listen where something is to be answered, and nowhere else."""
        wanted: dict[Purpose, str] = dict.fromkeys(self._always, "the node")
        health = self._read()
        for port, one in health.ports.items():
            wanted[port] = f"{one.namespace}/{one.name}" if one.namespace else one.name
        for purpose in self._open.keys() - wanted.keys():
            self._close(purpose)
        if health.ports and health.addresses != self._addresses:
            self._addresses = health.addresses
            for purpose in [one for one in self._open if isinstance(one, int)]:
                self._close(purpose)
        for purpose in self._refused.keys() - wanted.keys():
            del self._refused[purpose]
        for purpose in [one for one in wanted if one not in self._open and one not in self._given]:
            self._try(purpose, wanted[purpose])

    def _close(self, purpose: Purpose) -> None:
        for listener in self._open.pop(purpose):
            del self._purpose[listener]
            self._server.remove(listener)
        self._notice(f"port {purpose}: closed")

    def _try(self, purpose: Purpose, name: str) -> None:
        what = f"port {purpose} of {name}" if isinstance(purpose, int) else purpose
        try:
            listeners = self._listen(purpose, self._addresses)
        except OSError as error:
            reason = error.strerror or str(error)
            if self._refused.get(purpose) != reason:
                self._refused[purpose] = reason
                self._notice(f"{what}: {reason}; trying again")
            return
        self._refused.pop(purpose, None)
        self._open[purpose] = listeners
        for listener in listeners:
            self._purpose[listener] = purpose
            self._server.add(listener)
            self._notice(f"{what}: listening on {name_of(listener, PATHS.get(purpose, '/'))}")

    def _answer(self, requests: Sequence[Request]) -> list[Response]:
        """One look at the state for all of them."""
        health, now = self._read(), time.time()
        metrics: Response | None = None
        answers = []
        for request in requests:
            purpose = self._purpose.get(request.listener)
            if purpose == METRICS:
                if request.path not in ("/metrics", "/"):
                    answers.append(_not_found())
                    continue
                metrics = metrics or self._metrics()
                answers.append(metrics)
            elif purpose == NODE:
                answers.append(self._of_node(request.path, health, now))
            else:
                service = health.ports.get(purpose) if isinstance(purpose, int) else None
                healthy = is_healthy(health, now, self._late)
                answers.append(
                    _not_found() if service is None else _response(service_answer(service, healthy))
                )
        return answers

    def _of_node(self, path: str, health: Health, now: float) -> Response:
        if path not in ("/healthz", "/livez"):
            return _not_found()
        return _response(node_answer(health, now, self._late, eligibility=path == "/healthz"))


def _response(answer: Answer) -> Response:
    return Response(answer.status, _JSON, answer.body, answer.headers)


def _not_found() -> Response:
    return Response(404, "text/plain; charset=utf-8", b"404 Not Found\n")
