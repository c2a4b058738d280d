"""`svcctl metrics`: Prometheus metrics, printed once or served."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.cli.options import argument, noun, option
from svcctl.cli.params import PORT, SECONDS, Type
from svcctl.errors import Exit, SvcctlError, UsageProblem

if TYPE_CHECKING:
    from socket import socket
    from typing import Any

    import click

    from svcctl.cli.env import Env
    from svcctl.host.http_server import Response
    from svcctl.render.prometheus import Family


class _ListenAddress(Type):
    """A numeric address of this host, IPv6 with or without brackets, with a zone where it needs one."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The address without brackets, or click.BadParameter."""
        from _socket import AF_INET, AF_INET6, inet_pton

        text = value[1:-1] if value[:1] == "[" and value[-1:] == "]" else value
        try:
            inet_pton(AF_INET6 if ":" in text else AF_INET, text.split("%", 1)[0])
        except (OSError, UnicodeError, ValueError):
            self.fail(f"{value!r}: expected an address such as 127.0.0.1 or ::1", param, ctx)
        return text


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
    "address", _ListenAddress(), "Address to listen on; :: is every IPv4 and IPv6 address.", required=False
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
        return _serve(env, [_listen(address, port or 0)], timeout)
    passed = _passed_sockets() if env.session is None else []
    if passed:
        return _serve(env, passed, timeout)
    _print(env)
    return Exit.OK


def _print(env: Env) -> None:
    import sys

    from svcctl.render import prometheus

    families = _collect(env, 0)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")  # the format is UTF-8 whatever the locale
    env.emit_objects(
        "metrics", list(prometheus.objects(families)), lambda: prometheus.lines(families), name="name"
    )


def _collect(env: Env, failures: int) -> list[Family]:
    from svcctl import __version__
    from svcctl.bpf.lib import libbpf_version
    from svcctl.cli.access import held, place
    from svcctl.render.prometheus import families
    from svcctl.state.collect import collect, read_snapshot

    shared = held(env)
    snapshot = read_snapshot(shared) if shared is not None else collect(place(env))
    build = {
        "version": __version__,
        "libbpf": ".".join(map(str, libbpf_version())),
        "kernel": os.uname().release,
    }
    return families(snapshot, build, failures)


def _listen(address: str, port: int) -> socket:
    import socket

    from svcctl.host.http_server import listen

    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    try:
        return listen(address, port)
    except socket.gaierror as error:  # a zone that is no interface here
        raise UsageProblem(f"metrics: listen on {where}: {error.strerror}") from None
    except OSError as error:
        raise SvcctlError(f"metrics: listen on {where}: {error.strerror}") from None


def _passed_sockets() -> list[socket]:
    """The sockets of a systemd unit. None were passed to us: an empty list, as sd_listen_fds(3) says."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    from svcctl.host.http_server import adopt
    from svcctl.host.listen_fds import listen_fds

    sockets = []
    for fd, name in listen_fds():
        try:
            sockets.append(adopt(fd))
        except (OSError, ValueError) as error:
            for one in sockets:
                one.close()
            raise UsageProblem(
                f"metrics: socket {name!r} from systemd (descriptor {fd}): {error}",
                hint="the socket unit needs ListenStream= and no Accept=yes",
            ) from None
    return sockets


class _Page:
    """Makes the page anew for each turn of the server: pins are opened, read and closed again."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._failures = 0
        self._last = ""

    def __call__(self) -> Response:
        """The metrics; or status 500 and why, never an empty success."""
        from svcctl.host.http_server import Response
        from svcctl.render import prometheus

        try:
            body = prometheus.text(_collect(self._env, self._failures))
        except Exception as error:  # an exporter outlives whatever one scrape meets
            self._failures += 1
            return Response(
                500, "text/plain; charset=utf-8", self._reason(error).encode("utf-8", "backslashreplace")
            )
        if self._last:
            self._env.notice("metrics: collecting works again")
            self._last = ""
        return Response(200, prometheus.CONTENT_TYPE, body)

    def _reason(self, error: Exception) -> str:
        """What the client is told; said on stderr as well, once for each change."""
        from svcctl.cli.problems import describe

        problem = describe(error)
        if problem.message != self._last:
            self._last = problem.message
            self._env.warn(f"metrics: collection failed: {problem.message}")
            if problem.log and (self._env.verbosity >= 2 or problem.code == "bug"):
                self._env.notice(problem.log.rstrip("\n"))
        return f"{problem.message}\n" + (f"hint: {problem.hint}\n" if problem.hint else "")


def _serve(env: Env, listeners: list[socket], timeout: float) -> int:
    from signal import SIGINT

    from svcctl.host.http_server import Server, name_of

    server = Server(listeners, _Page(env), timeout=timeout)
    for one in listeners:
        env.notice(f"listening on {name_of(one)}")
    return Exit.INTERRUPTED if server.run() == SIGINT else Exit.OK
