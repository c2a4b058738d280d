"""What the commands that serve over HTTP share: where to listen, sockets from systemd, the page of metrics."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcctl.cli.params import Type
from svcctl.errors import SvcctlError, UsageProblem

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
        text = value[1:-1] if value[:1] == "[" and value[-1:] == "]" else value
        if not _is_address(text):
            self.fail(f"{value!r}: expected an address such as 127.0.0.1 or ::1", param, ctx)
        return text


class _ListenPlace(Type):
    """`127.0.0.1:9280` or `[::1]:9280`; the value is (address, port), None for the word `none`."""

    name = "address:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Address without brackets and port, or click.BadParameter."""
        if value is None or isinstance(value, tuple):
            return value
        if value == "none":
            return None
        host, _, port = value.rpartition(":")
        bare = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
        if (":" in host) != (bare != host) or not _is_address(bare):
            self.fail(f"{value!r}: expected 127.0.0.1:9280, [::1]:9280 or none", param, ctx)
        if not (port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65536):
            self.fail(f"{value!r}: expected a port of 0-65535", param, ctx)
        return bare, int(port)


def _is_address(text: str) -> bool:
    from _socket import AF_INET, AF_INET6, inet_pton

    try:
        inet_pton(AF_INET6 if ":" in text else AF_INET, text.split("%", 1)[0])
    except (OSError, UnicodeError, ValueError):
        return False
    return True


LISTEN_ADDRESS = _ListenAddress()
LISTEN_PLACE = _ListenPlace()


def listen_at(command: str, address: str, port: int) -> socket:
    """A listening socket. Raises UsageProblem for a zone that is no interface, SvcctlError for other failures."""
    import socket

    from svcctl.host.listeners import listen

    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    try:
        return listen(address, port)
    except socket.gaierror as error:  # a zone that is no interface here
        raise UsageProblem(f"{command}: listen on {where}: {error.strerror}") from None
    except OSError as error:
        raise SvcctlError(f"{command}: listen on {where}: {error.strerror}") from None


def passed_sockets(command: str) -> list[tuple[socket, str]]:
    """The sockets of a systemd unit and their names. None were passed to us: empty, as sd_listen_fds(3) says."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    from svcctl.host.listen_fds import listen_fds
    from svcctl.host.listeners import adopt

    sockets: list[tuple[socket, str]] = []
    for fd, name in listen_fds():
        try:
            sockets.append((adopt(fd), name))
        except (OSError, ValueError) as error:
            for one, _ in sockets:
                one.close()
            raise UsageProblem(
                f"{command}: socket {name!r} from systemd (descriptor {fd}): {error}",
                hint="the socket unit needs ListenStream= and no Accept=yes",
            ) from None
    return sockets


def collect_metrics(env: Env, failures: int) -> list[Family]:
    """The metrics of the state as it is now. Raises SvcctlError and OSError."""
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


class MetricsPage:
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
            body = prometheus.text(collect_metrics(self._env, self._failures))
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
