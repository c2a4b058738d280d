"""What the crash tests kill of what is said of nodes: one scenario a command.

What is asked is what the programs read: the node behind an address and behind a pod prefix, and settings of tunnels.
"""

from __future__ import annotations

from svcctl.maps import enums, layouts
from svcctl.model.prefix import parse_prefix
from svcctl.state import nodes
from svcctl.state.packet_settings import read_config
from svcctl.state.place import Place
from svcctl.state.session import State, open_reader
from svcctl.state.tunnel_settings import no_dsr
from tests.lib.device_scenarios import SIZES
from tests.lib.scenarios import Scenario

NODE = ("nodes", "add", "b", "--address", "192.0.2.12", "--pod-prefix", "10.244.2.0/24")
OTHER = ("nodes", "add", "b", "--address", "192.0.2.13", "--pod-prefix", "10.244.3.0/24")
KEYS = ("192.0.2.12", "192.0.2.13", "10.244.2.0/24", "10.244.3.0/24")


class Nodes(Scenario):
    """A packet path, and at times a node."""

    step = 4

    def set_up(self) -> None:
        super().set_up()
        # A name that matches nothing is a rule, and makes the maps with these sizes.
        self.run("attach", "dev", "nothing*", "--role", "workload", *SIZES)
        self.run("load", "--node-address", "192.0.2.11")

    def answers(self) -> list[str | None]:
        """Whose each address is; never one of a node that is not there."""
        with open_reader(Place()) as state:
            return [self._owner(state, key) for key in KEYS]

    def _owner(self, state: State, key: str) -> str | None:
        data = state.map("node_addresses").lookup(nodes.key_of(parse_prefix(key)))
        if data is None:
            return None
        number = layouts.U32.unpack(data)[0] >> enums.NODE_SHIFT
        value = state.map("nodes").lookup(layouts.U32.pack(number))
        assert value is not None, f"{key} leads to node {number}, which is not there"
        return nodes.names(state)[number]


class NodesAdd(Nodes):
    name = "nodes-add"
    old = [None, None, None, None]
    new = ["b", None, "b", None]

    def command(self) -> tuple[str, ...]:
        return NODE

    def undo(self) -> None:
        self.run("nodes", "delete", "b")


class NodesChange(Nodes):
    name = "nodes-change"
    old = NodesAdd.new
    new = [None, "b", None, "b"]

    def set_up(self) -> None:
        super().set_up()
        self.undo()

    def command(self) -> tuple[str, ...]:
        return OTHER

    def undo(self) -> None:
        self.run(*NODE)


class NodesDelete(Nodes):
    name = "nodes-delete"
    old = NodesAdd.new
    new = NodesAdd.old
    again = (0, 5)

    def set_up(self) -> None:
        super().set_up()
        self.undo()

    def command(self) -> tuple[str, ...]:
        return ("nodes", "delete", "b")

    def undo(self) -> None:
        self.run(*NODE)


class Settings(Nodes):
    """Clients without DSR, whose set is either there whole or not at all, and the port of tunnels."""

    name = "load-settings"
    old = ["4789", "198.51.100.0/24"]
    new = ["4790", "203.0.113.0/24 2001:db8:9::/48"]

    def set_up(self) -> None:
        super().set_up()
        self.undo()

    def answers(self) -> list[str | None]:
        """The port, and the prefixes."""
        with open_reader(Place()) as state:
            config = read_config(state)
            return [str(config.tunnel_port), " ".join(map(str, no_dsr(state, config)))]

    def command(self) -> tuple[str, ...]:
        return (
            "load", "--tunnel-port", "4790", "--no-dsr", "203.0.113.0/24", "--no-dsr", "2001:db8:9::/48",
        )  # fmt: skip

    def undo(self) -> None:
        self.run("load", "--tunnel-port", "4789", "--no-dsr", "198.51.100.0/24")


ALL = (NodesAdd, NodesChange, NodesDelete, Settings)
