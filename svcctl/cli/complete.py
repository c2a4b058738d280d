"""Candidates for the shell's completion, from the live state where there is one.

A key press must never fail, wait, change anything or print to stderr: any exception means no candidates, and
at most 1000 are given. The values come from `svcctl.cli.live.candidates(kind, env)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.cli.env import Env

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click
    from click.shell_completion import CompletionItem

LIMIT = 1000
_NETNS_DIRECTORY = "/run/netns"


def items(ctx: click.Context, kind: str, incomplete: str, service: str | None = None) -> list[CompletionItem]:
    """Candidates of a kind (label, prefix, port, address, netns, file, directory) that go on `incomplete`.

    `service`: only frontends or backends of that one.
    """
    from click.shell_completion import CompletionItem

    if kind in ("file", "directory"):
        return [CompletionItem(incomplete, type="file" if kind == "file" else "dir")]
    try:
        if kind == "netns":
            found = [CompletionItem(path) for path in _netns_paths() if path.startswith(incomplete)]
            return found or [CompletionItem(incomplete, type="file")]
        result: list[CompletionItem] = []
        of = () if service is None else (service,)
        for value in _provider(kind, env_of(ctx), *of):
            if value.startswith(incomplete):
                result.append(CompletionItem(value))
                if len(result) == LIMIT:
                    break
        return result
    except Exception:
        return []


def complete_labels(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `shell_complete=` of a parameter that takes a label but is not of type LABEL."""
    return items(ctx, "label", incomplete)


def complete_prefixes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `shell_complete=` of a parameter that takes a bound prefix."""
    return items(ctx, "prefix", incomplete)


def env_of(ctx: click.Context) -> Env:
    """The Env that the words before the cursor make: namespace and bpffs given there count."""
    chain = []
    one: click.Context | None = ctx
    while one is not None:
        chain.append(one)
        one = one.parent
    env = Env()
    for part in reversed(chain):
        env.apply(dict(part.params))
    return env


def _provider(kind: str, env: Env, *of: str) -> Iterable[str]:
    from importlib import import_module

    values: Iterable[str] = import_module("svcctl.cli.live").candidates(kind, env, *of)
    return values


def _netns_paths() -> list[str]:
    import os

    try:
        names = sorted(os.listdir(_NETNS_DIRECTORY))
    except OSError:
        return []
    return [f"{_NETNS_DIRECTORY}/{name}" for name in names]
