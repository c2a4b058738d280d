"""`svcctl metrics`: Prometheus metrics, printed once or served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.options import argument, noun, option
from svcctl.cli.params import PORT, SECONDS
from svcctl.cli.serving import LISTEN_ADDRESS, MetricsPage, collect_metrics, listen_at, passed_sockets
from svcctl.errors import Exit, UsageProblem

if TYPE_CHECKING:
    from socket import socket

    from svcctl.cli.env import Env


@noun(
    "metrics",
    examples=(
        "svcctl metrics",
        "svcctl metrics 127.0.0.1 9100",
        "sudo -u nobody -g svcctl svcctl metrics ::1 9100",
    ),
    exits=(0, 1, 2, 3, 4, 7, 130),
)
@argument(
    "address", LISTEN_ADDRESS, "Address to listen on; :: is every IPv4 and IPv6 address.", required=False
)
@argument("port", PORT, "Port to listen on; 0: any free one.", required=False)
@option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    default="10",
    help="What a client has to send a request [10].",
)
def command(env: Env, address: str | None, port: int | None, timeout: float) -> int:
    """Print the metrics once, or serve them over HTTP at ADDRESS and PORT until stopped.

    Started by systemd with a socket, they are served there. A failed scrape is answered with status 500
    and the reason. Reads only: run it as a member of the group given to 'svcctl load --group'.
    """
    if address is not None and port is None:
        raise UsageProblem("metrics: PORT: missing", hint="usage: svcctl metrics [ADDRESS PORT]")
    if timeout <= 0:
        raise UsageProblem("metrics: --timeout: expected more than 0")
    if address is not None and env.session is not None:
        raise UsageProblem("metrics: ADDRESS: not in a batch: it serves until stopped")
    if address is not None:
        return _serve(env, [listen_at("metrics", address, port or 0)], timeout)
    passed = passed_sockets("metrics") if env.session is None else []
    if passed:
        return _serve(env, [one for one, _ in passed], timeout)
    _print(env)
    return Exit.OK


def _print(env: Env) -> None:
    import sys

    from svcctl.render import prometheus

    families = collect_metrics(env, 0)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")  # the format is UTF-8 whatever the locale
    env.emit_objects(
        "metrics", list(prometheus.objects(families)), lambda: prometheus.lines(families), name="name"
    )


def _serve(env: Env, listeners: list[socket], timeout: float) -> int:
    from signal import SIGINT

    from svcctl.host.http_server import Server
    from svcctl.host.listeners import name_of

    page = MetricsPage(env)
    server = Server(listeners, lambda requests: [page()] * len(requests), timeout=timeout)
    for one in listeners:
        env.notice(f"listening on {name_of(one)}")
    return Exit.INTERRUPTED if server.run() == SIGINT else Exit.OK
