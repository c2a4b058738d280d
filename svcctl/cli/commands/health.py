"""`svcctl health`: answers health checks of services and of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import noun, option
from svcctl.cli.params import SECONDS
from svcctl.cli.serving import LISTEN_ADDRESS, LISTEN_PLACE, MetricsPage, listen_at, passed_sockets
from svcctl.errors import Exit, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from socket import socket

    from svcctl.cli.env import Env

_DEFAULT = "[::]:10256"


@noun(
    "health",
    examples=(
        "svcctl health",
        "svcctl health --address 192.0.2.10 --metrics 127.0.0.1:9280",
        "sudo -u nobody -g svcctl svcctl health --healthz none",
    ),
    exits=(0, 1, 2, 4, 130),
)
@option(
    "--healthz",
    type=LISTEN_PLACE,
    metavar="ADDRESS:PORT",
    default=_DEFAULT,
    help=f"Where /healthz and /livez are answered; none: nowhere [{_DEFAULT}].",
)
@option(
    "--address",
    "addresses",
    type=LISTEN_ADDRESS,
    metavar="ADDRESS",
    multiple=True,
    help="Where health-check ports of services are answered; may be repeated [all addresses].",
)
@option(
    "--metrics",
    type=LISTEN_PLACE,
    metavar="ADDRESS:PORT",
    default="none",
    help="Serve 'svcctl metrics' there too.",
)
@option(
    "--late",
    type=SECONDS,
    metavar="SECONDS",
    default="60",
    help="How long a change may wait to be applied before the node counts as unhealthy [60].",
)
@option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    default="10",
    help="What a client has to send a request [10].",
)
def command(
    env: Env,
    healthz: tuple[str, int] | None,
    addresses: tuple[str, ...],
    metrics: tuple[str, int] | None,
    late: float,
    timeout: float,
) -> int:
    """Answer the health-check ports of services, and /healthz and /livez of the node, until stopped.

    The health-check port of a service (healthCheckNodePort of Kubernetes) answers any path with status 200 while
    this node has a ready endpoint of the service, else with 503. Ports are opened and closed as services change.
    /healthz is 503 when the node does not serve what it should, or when its Node is about to be removed from the
    cluster; /livez does not look at the latter. A node does not serve what it should when nothing is loaded, when a
    program is no longer attached, or when a change has been waiting for longer than --late.

    Sockets from systemd are used instead of those of --healthz and --metrics: one named 'healthz' or 'metrics'
    for that, any other for the service whose health-check port it has. Reads only: run it as a member of the
    group given to 'svcctl load --group'.
    """
    from signal import SIGINT

    from svcctl.cli.access import place
    from svcctl.follow.health import METRICS, NODE, HealthServer
    from svcctl.state.health_reader import HealthReader

    if env.session is not None:
        raise UsageProblem("health: not in a batch: it serves until stopped")
    if timeout <= 0:
        raise UsageProblem("health: --timeout: expected more than 0")
    given = _passed(passed_sockets("health"))
    try:
        for where, purpose in ((healthz, NODE), (metrics, METRICS)):
            if where is not None and all(known != purpose for _, known in given):
                given.append((listen_at("health", *where), purpose))
    except BaseException:
        for one, _ in given:
            one.close()
        raise
    server = HealthServer(
        HealthReader(place(env)),
        lambda port: _listen(addresses, port),
        given,
        metrics=MetricsPage(env),
        notice=env.notice,
        late=late,
        timeout=timeout,
    )
    _say(env, given)
    return Exit.INTERRUPTED if server.run() == SIGINT else Exit.OK


def _passed(sockets: Sequence[tuple[socket, str]]) -> list[tuple[socket, str | int]]:
    """What each socket from systemd is for."""
    from svcctl.follow.health import METRICS, NODE

    names = {"healthz": NODE, "metrics": METRICS}
    given: list[tuple[socket, str | int]] = []
    for one, name in sockets:
        where = one.getsockname()
        port = where[1] if isinstance(where, tuple) else 0
        given.append((one, names.get(name, NODE if port in (0, 10256) else port)))
    return given


def _listen(addresses: Sequence[str], port: int) -> list[socket]:
    """Sockets of a health-check port: on the addresses named, or one for all. Raises OSError."""
    import errno

    from svcctl.host.listeners import listen

    if not addresses:
        try:
            return [listen("::", port)]
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
            return [listen("0.0.0.0", port)]  # a host without IPv6
    made: list[socket] = []
    try:
        for address in addresses:
            made.append(listen(address, port))
    except BaseException:
        for one in made:
            one.close()
        raise
    return made


def _say(env: Env, given: Sequence[tuple[socket, str | int]]) -> None:
    from svcctl.follow.health import METRICS, NODE
    from svcctl.host.listeners import name_of

    paths = {NODE: "/healthz", METRICS: "/metrics"}
    for one, purpose in given:
        path = paths.get(purpose, "/") if isinstance(purpose, str) else "/"
        env.notice(f"listening on {name_of(one, path)}")
