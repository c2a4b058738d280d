"""Types of the arguments and options of services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcctl.cli.params import Word, _Prefix, _Type

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem


class _Frontend(_Type):
    """`10.0.0.1:80/tcp`, `[2001:db8::1]:53/udp`; the value is a svcctl.model.service_endpoint.Frontend."""

    name = "frontend"
    kind = "frontend"

    def parse(self, text: str) -> Any:
        """The frontend. Raises UsageProblem."""
        from svcctl.model.service_endpoint import parse_frontend

        return parse_frontend(text)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Of `--no-frontend` only those the service has."""
        from svcctl.cli import complete

        service = _named(ctx) if param.name == "gone" else None
        return complete.items(ctx, "frontend", incomplete, service)


class _Source(_Prefix):
    """A source range that a service has."""

    kind = "source"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The service's own, as only these can be taken away."""
        from svcctl.cli import complete

        return complete.items(ctx, "source", incomplete, _named(ctx))


def _named(ctx: click.Context) -> str | None:
    """The service that a command is about."""
    # An option without its value ends click's parsing before it gives the arguments their names.
    return ctx.params.get("name") or next(iter(ctx.args), None)


class _Backend(_Type):
    """`10.1.2.3:8080`; the value is a svcctl.model.service_endpoint.Backend."""

    name = "backend"
    kind = "backend"

    def parse(self, text: str) -> Any:
        """The backend. Raises UsageProblem."""
        from svcctl.model.service_endpoint import parse_backend

        return parse_backend(text)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The service's own, as only these can be changed."""
        from svcctl.cli import complete

        return complete.items(ctx, "backend", incomplete, ctx.params.get("service"))


class _BackendSpec(_Type):
    """`10.1.2.3:8080,weight=3`; the value is a svcctl.model.service_endpoint.BackendSpec."""

    name = "backend"
    kind = "backend"

    def parse(self, text: str) -> Any:
        """The backend and what is said of it. Raises UsageProblem."""
        from svcctl.model.service_endpoint import parse_backend_spec

        return parse_backend_spec(text)


class _ServiceName(_Type):
    """1 to 255 bytes of printable UTF-8."""

    name = "service"
    kind = "service"

    def parse(self, text: str) -> str:
        """The name as it is. Raises UsageProblem."""
        from svcctl.model.service import check_service_name

        return check_service_name(text)


SERVICE = _ServiceName()
FRONTEND = _Frontend()
SOURCE = _Source()
BACKEND = _Backend()
BACKEND_SPEC = _BackendSpec()
ALGORITHM = Word("algorithm", "random", "maglev")
KIND = Word("kind", "cluster", "external", "load-balancer")
POLICY = Word("policy", "cluster", "local")
MODE = Word("mode", "tunnel", "dsr")
STATE = Word("state", "active", "draining", "down")
