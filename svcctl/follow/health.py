"""The health server: which ports it listens on, and what is answered at each. Reads the state, never writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svcctl.host.http_server import Response, Server
from svcctl.model.health import Health, is_healthy, node_answer, service_answer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from svcctl.host.http_server import Request
    from svcctl.model.health import Answer

NODE, METRICS = "node", "metrics"
"""What a listening socket is for that is there all the time; a number: the health-check port of a service."""

_JSON = "application/json"


class HealthServer:
    """Serves until SIGTERM or SIGINT.

    `read` looks at the state: a Health, or the last one again when nothing has changed; it must not raise.
    `listen` makes the sockets of a health-check port, and may raise OSError. `given` says what sockets that are
    there from the start are for. `metrics` makes the page for those that are for METRICS.
    """

    def __init__(
        self,
        read: Callable[[], Health],
        listen: Callable[[int], list[socket.socket]],
        given: Sequence[tuple[socket.socket, str | int]],
        *,
        metrics: Callable[[], Response],
        notice: Callable[[str], None],
        late: float,
        timeout: float,
    ) -> None:
        self._read = read
        self._listen = listen
        self._metrics = metrics
        self._notice = notice
        self._late = late
        self._purpose: dict[socket.socket, str | int] = dict(given)
        self._fixed = {purpose for _, purpose in given}
        self._open: dict[int, list[socket.socket]] = {}
        self._refused: dict[int, str] = {}
        self._server = Server(
            list(self._purpose), self._answer, paths=None, timeout=timeout, tick=self._follow_ports
        )

    def run(self) -> int:
        """Serve; returns the number of the signal that ended it."""
        return self._server.run()

    def _follow_ports(self) -> None:
        """Listen where services have a health-check port, and nowhere else."""
        wanted = self._read().ports
        for port in self._open.keys() - wanted.keys():
            for listener in self._open.pop(port):
                del self._purpose[listener]
                self._server.remove(listener)
            self._notice(f"health: port {port}: closed")
        for port in self._refused.keys() - wanted.keys():
            del self._refused[port]
        for port in sorted(wanted.keys() - self._open.keys() - self._fixed):
            one = wanted[port]
            name = f"{one.namespace}/{one.name}" if one.namespace else one.name
            try:
                listeners = self._listen(port)
            except OSError as error:
                reason = error.strerror or str(error)
                if self._refused.get(port) != reason:
                    self._refused[port] = reason
                    self._notice(f"health: port {port} of {name}: {reason}; trying again")
                continue
            self._refused.pop(port, None)
            self._open[port] = listeners
            for listener in listeners:
                self._purpose[listener] = port
                self._server.add(listener)
            self._notice(f"health: port {port}: answering for {name}")

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
