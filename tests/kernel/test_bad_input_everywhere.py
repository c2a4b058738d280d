"""Bad input to every command there is: each argument and each option of its own, with words of all kinds.

tests/kernel/test_bad_input.py says of the commands for incoming connections exactly what is good and what is not.
Here a word may happen to be good; whatever it is, it is no bug, an error is one clear line, and nothing is changed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svcctl.cli.group import LazyGroup
from svcctl.cli.options import COMMON
from tests.kernel.test_bad_input import JUNK, check, like
from tests.lib.cli import all_commands
from tests.lib.outgoing import balancer
from tests.lib.pins import dump
from tests.lib.run import ok
from tests.lib.svc import svc

EXAMPLES = settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
# What is good, or nearly, somewhere: a word of one kind where another one is wanted, and each of them spoilt.
GOOD = (
    "web", "dns", "tcp", "udp", "ipv4", "ipv6", "127.0.0.1", "10.96.0.10:80/tcp", "[fd00::53]:53/udp",
    "127.0.0.1:8081", "127.0.0.1:8081,weight=3,state=down,local", "10.0.0.0/8", "fd00::/8", "80", "65535", "random",
    "maglev", "cluster", "local", "external", "load-balancer", "tunnel", "dsr", "0", "1", "251", "4294967296",
    "9223372036854775808", "1e9", "1.5", "none", "all", "active", "draining", "lo", "veth*", "host", "workload",
    "tcp-open=30", "20000-29999", "192.0.2.1,2001:db8::1", "allow", "deny", "primary", "/", "/dev/null", "exit-codes",
)  # fmt: skip
WORDS = (JUNK | like(*GOOD) | st.sampled_from(GOOD)).filter(
    lambda word: word != "-"
)  # that is standard input
STAYS = ("follow", "health", "metrics", "top")
"""Commands that stay in the foreground when nothing is wrong; their own tests have what they refuse."""
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "attach cgroup": ("CGROUP",),
    "attach dev": ("veth0",),
    "detach dev": ("veth0",),
    "backend add": ("web", "127.0.0.1:9000"),
    "backend delete": ("web", "127.0.0.1:8081"),
    "backend drain": ("web", "127.0.0.1:8081"),
    "backend set": ("web", "127.0.0.1:8081"),
    "batch": ("/dev/null",),
    "bind": ("web", "tcp", "127.0.0.1", "80"),
    "explain": ("10.96.0.10:80/tcp",),
    "load-bindings": ("/dev/null",),
    "lut": ("web",),
    "nodes add": ("other",),
    "nodes delete": ("other",),
    "register": ("web",),
    "register-pid": ("1", "web", "tcp", "127.0.0.1", "80"),
    "service add": ("new",),
    "service delete": ("web",),
    "service set": ("web",),
    "unbind": ("web", "tcp", "127.0.0.1", "80"),
    "unregister": ("web", "ipv4", "tcp"),
}
"""Good arguments, of the commands that must have some."""


def slots() -> Iterator[tuple[str, str]]:
    """(command, name of an argument or option that takes a value)."""
    for name, command in all_commands():
        if isinstance(command, LazyGroup) or name in STAYS:
            continue
        for param in command.params:
            flag = isinstance(param, click.Option) and (param.is_flag or param.count)
            if param not in COMMON and not flag and param.expose_value:
                assert param.name
                yield name, param.name


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """A state with both halves and something in each; nobody changes it. The path of the balancer's cgroup."""
    with balancer() as path:
        ok("service", "add", "web", "--frontend", "10.96.0.10:80/tcp", "--backend", "127.0.0.1:8081")
        ok("service", "add", "dns", "--frontend", "10.96.0.53:53/udp", "--algorithm", "maglev")
        subprocess.run("ip link add veth0 type veth peer name veth1".split(), check=True)
        ok("attach", "dev", "veth0", "--role", "host", "--max-flows", "100")
        ok("bind", "web", "tcp", "127.0.0.1", "80")
        yield path


def state_dir() -> str:
    return str(ok("status", "-o", "json").json["status"][0]["path"])


@pytest.mark.parametrize(("name", "slot"), list(slots()))
def test_each_value(served: str, name: str, slot: str) -> None:
    command = dict(all_commands())[name]
    path = state_dir()
    before = dump(path)
    dry = ["--dry-run"] if any("--dry-run" in param.opts for param in command.params) else []
    param = next(one for one in command.params if one.name == slot)
    good = [served if word == "CGROUP" else word for word in ARGUMENTS.get(name, ())]
    more = {"register-pid": ["--wait", "0"], "check": ["-f", "/dev/null"]}.get(name, [])

    @EXAMPLES
    @given(WORDS)
    def run(word: str) -> None:
        words = list(good)
        if isinstance(param, click.Option):
            option = (
                [f"{param.opts[-1]}={word}"] if param.opts[-1].startswith("--") else [param.opts[-1], word]
            )
            words = [*option, "--", *words]
        else:
            at = [one.name for one in command.params if isinstance(one, click.Argument)].index(slot)
            words = ["--", *words[:at], word, *words[at + 1 :]]
        ran = svc(*name.split(), *dry, *more, *words, code=None)
        assert ran.code in (*range(10), 10), ran
        if ran.code and not (ran.code == 1 and name in ("check", "diff", "doctor")):
            check(ran, tuple(range(1, 11)))

    run()
    assert dump(path) == before
