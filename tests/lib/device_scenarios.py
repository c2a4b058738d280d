"""What the crash tests kill of the packet path: one scenario a command, on an interface of the test's own.

What is asked is which program each side of the interface runs; it must be one that a pin owns.
"""

from __future__ import annotations

import os

from svcctl.bpf.errors import BpfError
from svcctl.bpf.link import Link, query_programs
from svcctl.bpf.program import Program
from svcctl.host import tc
from svcctl.host.netns import Netns
from svcctl.maps import catalog
from tests.lib.inspect_state import BPFFS, directories, max_entries
from tests.lib.scenarios import Scenario
from tests.lib.world import sh

SIZES = ("--max-flows", "4000", "--max-services", "64", "--max-backends", "64", "--max-sockets", "1000")
DEVICE, OTHER = "crash0", "crash1"
NONE = "none"


class Devices(Scenario):
    """A loaded packet path, and an interface."""

    step = 4
    old = [NONE, NONE]
    new = ["from_outside", "to_outside"]

    def set_up(self) -> None:
        self._link()
        super().set_up()
        self.run("attach", "dev", OTHER, "--role", "host", *SIZES)
        self.run("detach", "dev", OTHER)

    def _link(self) -> None:
        sh(f"ip link add {DEVICE} type veth peer name {OTHER}")
        with open(f"/proc/net/dev_snmp6/{DEVICE}", encoding="ascii") as lines:
            self.ifindex = int(lines.readline().split()[1])

    def close(self) -> None:
        sh(f"ip link del {DEVICE}")

    def answers(self) -> list[str | None]:
        """The name of the program at each side."""
        return [self._side("ingress", catalog.TCX_INGRESS), self._side("egress", catalog.TCX_EGRESS)]

    def _side(self, side: str, hook: int) -> str:
        found = query_programs(self.ifindex, hook)
        if not found:
            return NONE
        assert len(found) == 1, found
        assert found == _pinned(f"link_{side}_{self.ifindex}"), (found, side)
        with Program.open_id(found[0]) as program:
            return program.info.name


def _pinned(pin: str) -> list[int]:
    """Ids of the programs under the link pins of a name, in published directories and others."""
    found = []
    for name in directories():
        try:
            with Link.open_pinned(f"{BPFFS}/{name}/{pin}") as link:
                found.append(link.info.program_id)
        except BpfError as error:
            if error.errno != 2:
                raise
    return found


class AttachDev(Devices):
    name = "attach-dev"

    def command(self) -> tuple[str, ...]:
        return ("attach", "dev", DEVICE, "--role", "host")

    def undo(self) -> None:
        self.run("detach", "dev", "--all")


class AttachDevFirst(Devices):
    """Service maps, the balancer's programs, the packet path's maps and programs: two swaps, then the links."""

    name = "attach-dev-first"
    step = 40
    old = new = []  # what was made stays made, whatever is attached: each kill starts anew

    def set_up(self) -> None:
        self._link()
        self.undo()

    def command(self) -> tuple[str, ...]:
        return ("attach", "dev", DEVICE, "--role", "host", *SIZES)

    def undo(self) -> None:
        self.stage.forge.run("unload", "--yes")
        self.stage.base()

    def answers(self) -> list[str | None]:
        """Nothing; but what is attached must be owned."""
        super().answers()
        return []


class DetachDev(Devices):
    name = "detach-dev"
    old = Devices.new
    new = Devices.old

    def set_up(self) -> None:
        super().set_up()
        self.undo()

    def command(self) -> tuple[str, ...]:
        return ("detach", "dev", DEVICE)

    def undo(self) -> None:
        self.run("attach", "dev", DEVICE, "--role", "host")


class UpgradeDev(Devices):
    """Programs of three halves under one mark, and flows in larger maps."""

    name = "upgrade-dev"
    step = 40
    free = True
    old = Devices.new

    def set_up(self) -> None:
        super().set_up()
        self.run("attach", "dev", DEVICE, "--role", "host")

    def command(self) -> tuple[str, ...]:
        return ("upgrade", "--max-flows", str(max_entries("flows") // 2 + 1))


class Filters(Devices):
    """By filters on clsact, as before Linux 6.6. They have no pins: their programs have."""

    env = {"SVCCTL_TC": "clsact"}
    preload = ("pyroute2",)

    def _side(self, side: str, hook: int) -> str:
        parent = tc.INGRESS if side == "ingress" else tc.EGRESS
        with Netns.open("/proc/thread-self/ns/net") as netns:
            found = tc.filters(netns, self.ifindex, parent)
        if not found:
            return NONE
        (one,) = found
        owned = [
            number for name in directories() for pin in _program_pins(name) for number in [_program_id(pin)]
        ]
        assert one.program_id in owned, (one, owned)
        with Program.open_id(one.program_id) as program:
            return program.info.name


def _program_pins(directory: str) -> list[str]:
    path = f"{BPFFS}/{directory}"
    return [f"{path}/{name}" for name in os.listdir(path) if "prog_" in name]


def _program_id(pin: str) -> int:
    with Program.open_pinned(pin) as program:
        return program.info.id


class AttachFilter(Filters, AttachDev):
    name = "attach-dev-clsact"


class DetachFilter(Filters, DetachDev):
    name = "detach-dev-clsact"


class UpgradeFilter(Filters, UpgradeDev):
    name = "upgrade-dev-clsact"


class UnloadFilter(Filters):
    """Filters go before what would tell whose they were."""

    name = "unload-clsact"
    loaded = (True, False)
    step = 30
    old = Devices.new
    new = Devices.old

    def set_up(self) -> None:
        super().set_up()
        self.run("attach", "dev", DEVICE, "--role", "host")

    def command(self) -> tuple[str, ...]:
        return ("unload", "--yes")

    def undo(self) -> None:
        self.stage.base()
        self.run("attach", "dev", DEVICE, "--role", "host", *SIZES)


ALL: tuple[type[Scenario], ...] = (
    AttachDev,
    AttachDevFirst,
    DetachDev,
    UpgradeDev,
    AttachFilter,
    DetachFilter,
    UpgradeFilter,
    UnloadFilter,
)
