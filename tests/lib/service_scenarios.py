"""What the crash tests kill of the balancer: one scenario a command, as scenarios.py has them of the dispatcher.

Services have loopback addresses and the port of the listener on every address: what is no service reaches that.
"""

from __future__ import annotations

import json

from tests.lib.inspect_state import max_entries
from tests.lib.own_cgroup import enter, make, remove
from tests.lib.scenarios import FIRST, PLAIN, SECOND, Scenario
from tests.lib.steady import Steady
from tests.lib.traffic import NOBODY

SIZES = ("--max-services", "4000", "--max-backends", "4000", "--max-sockets", "1000")
WEB, BLUE = f"127.0.0.1:{FIRST}", f"127.0.0.1:{SECOND}"
VIP, OTHER, BUSY = "127.7.0.1", "127.7.0.2", "127.7.0.10"
STEADY = 7010
KEPT = (("127.7.0.9", PLAIN, "tcp"),)
"""A service that has a backend in common with the others, and that nobody changes."""


class Services(Scenario):
    """A balancer on a cgroup that this process is in, a service that stays as it is, and one that is always used."""

    steadily = True
    steady: Steady | None = None
    questions = ((VIP, PLAIN, "tcp"), *KEPT)
    old = ["plain", "web"]
    new = ["web", "web"]

    def set_up(self) -> None:
        self.cgroup = make()
        super().set_up()
        self.run("attach", "cgroup", self.cgroup, *SIZES)
        enter(self.cgroup)
        self.run("service", "add", "kept", "--frontend", f"127.7.0.9:{PLAIN}/tcp", "--backend", WEB)

        if self.steadily:
            self.run(
                "service",
                "add",
                "busy",
                "--frontend",
                f"{BUSY}:{PLAIN}/tcp",
                "--backend",
                f"127.0.0.1:{STEADY}",
            )
            self.steady = Steady(self.cgroup, ("127.0.0.1", STEADY), (BUSY, PLAIN))

    def undisturbed(self, where: str) -> None:
        if self.steady is not None:
            self.steady.undisturbed(where)

    def settle(self) -> None:
        if self.steady is not None:
            steady, self.steady = self.steady, None
            try:
                steady.wait_for(20)
            finally:
                steady.stop()

    def close(self) -> None:
        if self.steady is not None:
            self.steady.stop()
        if self.cgroup is not None:
            remove(self.cgroup)


class ServiceAdd(Services):
    name = "service-add"

    def command(self) -> tuple[str, ...]:
        return ("service", "add", "new", "--frontend", f"{VIP}:{PLAIN}/tcp", "--backend", WEB)

    def undo(self) -> None:
        self.run("service", "delete", "new")


class ServiceAddBothFamilies(Services):
    """New lanes, blocks of two sets, a backend shared and a new one, an address counted in the settings."""

    name = "service-add-both"
    questions = ((VIP, PLAIN, "tcp"), ("127.0.0.1", 30080, "tcp"), *KEPT)
    old = ["plain", None, "web"]
    new = ["web", "web", "web"]

    def command(self) -> tuple[str, ...]:
        return (
            "service", "add", "new", "--frontend", f"{VIP}:{PLAIN}/tcp", "--frontend", "[fd00::7]:80/tcp",
            "--node-port", "30080", "--affinity", "60", "--backend", f"{WEB},local", "--backend", "[::1]:9",
        )  # fmt: skip

    def undo(self) -> None:
        self.run("service", "delete", "new")


class Changed(Services):
    """A second service, which the command changes."""

    old = ["web", "web"]
    new = [NOBODY, "web"]

    def set_up(self) -> None:
        super().set_up()
        self.run("service", "add", "new", "--frontend", f"{VIP}:{PLAIN}/tcp", "--backend", WEB)


class ServiceSetFrontends(Changed):
    name = "service-set-frontends"
    questions = ((VIP, PLAIN, "tcp"), (OTHER, PLAIN, "tcp"), *KEPT)
    old = ["web", "plain", "web"]
    new = ["plain", "web", "web"]
    again = (0, 5)

    def command(self) -> tuple[str, ...]:
        return self._swap(OTHER, VIP)

    def undo(self) -> None:
        self.run(*self._swap(VIP, OTHER))

    def _swap(self, more: str, less: str) -> tuple[str, ...]:
        return (
            "service", "set", "new", "--frontend", f"{more}:{PLAIN}/tcp", "--no-frontend", f"{less}:{PLAIN}/tcp",
        )  # fmt: skip


class ServiceSetPolicy(Changed):
    """No backend of the service is on this node."""

    name = "service-set-policy"
    new = [NOBODY, "web"]

    def command(self) -> tuple[str, ...]:
        return ("service", "set", "new", "--internal-policy", "local", "--affinity", "10")

    def undo(self) -> None:
        self.run("service", "set", "new", "--internal-policy", "cluster", "--affinity", "0")


class BackendAdd(Services):
    name = "backend-add"
    old = [NOBODY, "web"]
    new = ["blue", "web"]

    def set_up(self) -> None:
        super().set_up()
        self.run("service", "add", "new", "--frontend", f"{VIP}:{PLAIN}/tcp")

    def command(self) -> tuple[str, ...]:
        return ("backend", "add", "new", BLUE)

    def undo(self) -> None:
        self.run("backend", "delete", "new", BLUE)


class BackendSet(Changed):
    name = "backend-set"

    def command(self) -> tuple[str, ...]:
        return ("backend", "set", "new", WEB, "--weight", "0")

    def undo(self) -> None:
        self.run("backend", "set", "new", WEB, "--weight", "1")


class BackendDrain(Changed):
    name = "backend-drain"

    def command(self) -> tuple[str, ...]:
        return ("backend", "drain", "new", WEB, "--after", "3600")

    def undo(self) -> None:
        self.run("backend", "set", "new", WEB, "--state", "active")


class BackendDelete(Changed):
    """The backend is another service's, too."""

    name = "backend-delete"
    again = (0, 5)

    def command(self) -> tuple[str, ...]:
        return ("backend", "delete", "new", WEB)

    def undo(self) -> None:
        self.run("backend", "add", "new", WEB)


class ServiceDelete(Changed):
    name = "service-delete"
    new = ["plain", "web"]
    again = (0, 5)

    def command(self) -> tuple[str, ...]:
        return ("service", "delete", "new")

    def undo(self) -> None:
        self.run("service", "add", "new", "--frontend", f"{VIP}:{PLAIN}/tcp", "--backend", WEB)


class Apply(Services):
    """Services made, changed and deleted, one with source ranges and a node port; a frontend that moves; a binding."""

    name = "apply"
    questions = ((VIP, PLAIN, "tcp"), (OTHER, PLAIN, "tcp"), ("127.7.0.3", PLAIN, "tcp"), *KEPT)
    old = ["web", "web", "plain", "web"]
    new = ["blue", "plain", "web", "web"]

    def set_up(self) -> None:
        super().set_up()
        self._write(
            "old", [self._service("first", [VIP, OTHER], [WEB]), self._service("gone", ["127.7.0.4"], [WEB])]
        )
        lb = self._service("lb", ["127.7.0.5"], [BLUE]) | {"sources": ["10.0.0.0/8"], "node_port": 30080}
        lb["frontends"] = [{"address": f"127.7.0.5:{PLAIN}/tcp", "kind": "load-balancer"}]
        first = self._service("first", ["127.7.0.3", "127.7.0.6"], [WEB, "[::1]:9"])
        self._write("new", [first, self._service("second", [VIP], [BLUE]), lb], [("blue", "127.9.9.7")])
        self.undo()

    def _service(self, name: str, addresses: list[str], backends: list[str]) -> dict[str, object]:
        # By UDP, too, so that it is noted that flows are to be ended.
        frontends = [f"{address}:{PLAIN}/{kind}" for address in addresses for kind in ("tcp", "udp")]
        return {"name": name, "frontends": frontends, "backends": backends}

    def _write(
        self, name: str, services: list[dict[str, object]], bindings: list[tuple[str, str]] | None = None
    ) -> None:
        entries = [
            {"label": label, "protocol": "tcp", "prefix": at, "port": 9} for label, at in bindings or ()
        ]
        with open(f"{self.stage.scratch}/{name}", "w", encoding="ascii") as file:
            json.dump({"version": 1, "services": services, "bindings": entries}, file)

    def command(self) -> tuple[str, ...]:
        return ("apply", "-f", f"{self.stage.scratch}/new", "--prune")

    def undo(self) -> None:
        self.run("apply", "-f", f"{self.stage.scratch}/old", "--prune")


class AttachCgroup(Services):
    """The programs are loaded already; their links are made."""

    name = "attach-cgroup"
    steadily = False
    questions = KEPT
    old = ["plain"]
    new = ["web"]

    def set_up(self) -> None:
        super().set_up()
        self.undo()

    def command(self) -> tuple[str, ...]:
        assert self.cgroup is not None
        return ("attach", "cgroup", self.cgroup)

    def undo(self) -> None:
        self.run("detach", "cgroup")


class AttachCgroupFirst(Services):
    """Maps and programs are made and published in one swap."""

    name = "attach-cgroup-first"
    step = 8
    questions = KEPT
    old = new = ["plain"]

    def set_up(self) -> None:
        self.cgroup = make()
        enter(self.cgroup)
        self.undo()

    def command(self) -> tuple[str, ...]:
        assert self.cgroup is not None
        return ("attach", "cgroup", self.cgroup, *SIZES)

    def undo(self) -> None:
        self.stage.forge.run("unload", "--yes")
        self.stage.base()


class DetachCgroup(Services):
    name = "detach-cgroup"
    steadily = False
    questions = KEPT
    old = ["web"]
    new = ["plain"]

    def command(self) -> tuple[str, ...]:
        return ("detach", "cgroup")

    def undo(self) -> None:
        assert self.cgroup is not None
        self.run("attach", "cgroup", self.cgroup)


class MaglevAdd(Services):
    """A service with a table of its own."""

    name = "maglev-add"

    def command(self) -> tuple[str, ...]:
        return (
            "service", "add", "new", "--frontend", f"{VIP}:{PLAIN}/tcp", "--algorithm", "maglev", "--table-size", "251",
            "--backend", WEB,
        )  # fmt: skip

    def undo(self) -> None:
        self.run("service", "delete", "new")


class MaglevChange(Services):
    """A table takes another's place."""

    name = "maglev-change"
    old = [NOBODY, "web"]
    new = ["blue", "web"]

    def set_up(self) -> None:
        super().set_up()
        self.run(
            "service", "add", "new", "--frontend", f"{VIP}:{PLAIN}/tcp", "--algorithm", "maglev", "--stable",
            "--table-size", "251", "--backend", f"{BLUE},weight=0",
        )  # fmt: skip

    def command(self) -> tuple[str, ...]:
        return ("backend", "set", "new", BLUE, "--weight", "1")

    def undo(self) -> None:
        self.run("backend", "set", "new", BLUE, "--weight", "0")


class UpgradeBalancer(Changed):
    """Programs of both halves under one mark; maps of services made anew."""

    name = "upgrade-balancer"
    step = 8
    free = True
    new = ["web", "web"]

    def command(self) -> tuple[str, ...]:
        return ("upgrade", "--max-services", str(max_entries("services") + 1))


ALL: tuple[type[Scenario], ...] = (
    ServiceAdd,
    ServiceAddBothFamilies,
    ServiceSetFrontends,
    ServiceSetPolicy,
    BackendAdd,
    BackendSet,
    BackendDrain,
    BackendDelete,
    ServiceDelete,
    Apply,
    AttachCgroup,
    AttachCgroupFirst,
    DetachCgroup,
    MaglevAdd,
    MaglevChange,
    UpgradeBalancer,
)
