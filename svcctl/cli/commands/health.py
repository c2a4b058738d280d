"""`svcctl health`: answers health checks of services and of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import noun, option
from svcctl.cli.params import SECONDS
from svcctl.cli.serving import LISTEN_ADDRESS, LISTEN_PLACE, MetricsPage, passed_sockets
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
    exits=(0, 2, 130),
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
    help="Where health-check ports of services are answered; may be repeated [where node ports are].",
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
    this node has a ready endpoint of the service, else with 503. Ports are opened and closed as services change, on all
    addresses or, without --address, on those to which 'svcctl apply --node-port-addresses' limits node ports.
    /healthz is 503 when the node does not serve what it should, or when its Node is about to be removed from the
    cluster; /livez does not look at the latter. A node does not serve what it should when nothing is loaded, when a
    program is no longer attached, or when a change has been waiting for longer than --late.

    A port that somebody else still has is tried again every second. Sockets from systemd are used instead of
    own ones: one named 'healthz' or 'metrics' for that, any other for the service whose health-check port it
    has. Reads only: run it as a member of the group given to 'svcctl load --group'.
    """
    from signal import SIGINT

    from svcctl.cli.access import place
    from svcctl.follow.health import METRICS, NODE, PATHS, HealthServer
    from svcctl.host.listeners import name_of
    from svcctl.state.health_reader import HealthReader

    if env.session is not None:
        raise UsageProblem("health: not in a batch: it serves until stopped")
    if timeout <= 0:
        raise UsageProblem("health: --timeout: expected more than 0")
    places = {name: where for name, where in ((NODE, healthz), (METRICS, metrics)) if where is not None}
    given = [(one, _purpose(one, name)) for one, name in passed_sockets("health")]
    for one, purpose in given:
        env.notice(f"{purpose}: listening on {name_of(one, PATHS.get(purpose, '/'))}")
    server = HealthServer(
        HealthReader(place(env)),
        lambda purpose, limits: _listen(
            places.get(purpose) if isinstance(purpose, str) else purpose, addresses or limits
        ),
        list(places),
        given,
        metrics=MetricsPage(env),
        notice=env.notice,
        late=late,
        timeout=timeout,
    )
    return Exit.INTERRUPTED if server.run() == SIGINT else Exit.OK


def _purpose(passed: socket, name: str) -> str | int:
    """What a socket from systemd is for: by its name, else by its port."""
    from svcctl.follow.health import PATHS

    if name in PATHS:
        return name
    where = passed.getsockname()
    return where[1] if isinstance(where, tuple) else name


def _listen(where: tuple[str, int] | int | None, addresses: Sequence[str] | None) -> list[socket]:
    """Sockets of a place, or of a port on the addresses named; None: one for all. Raises OSError."""
    import errno

    from svcctl.host.listeners import listen

    every = ("::",) if addresses is None else addresses
    pairs = [where] if isinstance(where, tuple) else [(one, where or 0) for one in every]
    made: list[socket] = []
    try:
        for address, port in pairs:
            try:
                made.append(listen(address, port))
            except OSError as error:
                if address != "::" or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                made.append(listen("0.0.0.0", port))  # a host without IPv6
    except BaseException:
        for one in made:
            one.close()
        raise
    return made
