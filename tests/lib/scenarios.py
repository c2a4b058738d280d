"""What the crash tests kill: one scenario a command, with the traffic it changes and the way back.

Every scenario starts from the same small state and can be run any number of times: `undo` leads back to it
from whatever a dead command, its repair and the same command run again have made.
"""

from __future__ import annotations

import json
import os

from tests.lib.forge import Forge
from tests.lib.inspect_state import max_entries
from tests.lib.traffic import Traffic

PLAIN = 7000  # an ordinary listener on every address: who gets what nobody bound
FIRST, SECOND = 7001, 7002  # the sockets behind the labels
UDP = 7003
SMALL = ("--max-bindings", "1000", "--max-destinations", "1024")

Answers = list[str | None]


class Stage:
    """The world of a scenario: processes from `forge`, sockets of `traffic`, files in `scratch`."""

    def __init__(self, forge: Forge, traffic: Traffic, scratch: str) -> None:
        self.forge = forge
        self.traffic = traffic
        self.scratch = scratch
        self.plain = traffic.listen("plain", "0.0.0.0", PLAIN)
        traffic.listen("plain6", "::1", PLAIN)
        traffic.listen("web", "127.0.0.1", FIRST)
        traffic.listen("blue", "127.0.0.1", SECOND)
        traffic.listen("web6", "::1", FIRST)
        traffic.listen("dns", "127.0.0.1", UDP, udp=True)

    def register(self, label: str, address: str, port: int, protocol: str = "tcp") -> None:
        """Register one of this process's own sockets."""
        self.forge.ok("register-pid", str(os.getpid()), label, protocol, address, str(port))

    def base(self) -> None:
        """Load, and register two labels; `spare` has bindings only."""
        run = self.forge.ok
        run("load", *SMALL)
        self.register("web", "127.0.0.1", FIRST)
        self.register("blue", "127.0.0.1", SECOND)
        run("bind", "spare", "tcp", "127.9.9.8", "9")


class Scenario:
    """One command. `questions` are (address, port, protocol); `old` and `new` their answers before and after.

    `whole`: all answers are the old ones or all are the new ones. `loaded`: whether there is state before,
    and after.
    """

    name = ""
    whole = False
    free = False  # running it again needs no undoing
    loaded = (True, True)
    attached = (1, 1)  # programs at the hook, before and after
    following: tuple[tuple[str, ...], ...] = (
        ("bind", "spare", "tcp", "127.9.9.9", "9"),
        ("unbind", "spare", "tcp", "127.9.9.9", "9"),
    )
    """The next writer, and others that undo what it does."""
    step = 1  # by default only each so many-th point, others the next day: where a run takes a second
    setup = ""  # Python run before the command, in its process
    preload: tuple[str, ...] = ()  # modules that the fork server imports
    env: dict[str, str] = {}  # variables of every command
    cgroup: str | None = None  # where a balancer may be attached
    again = (0,)  # exit codes of the same command run once more
    questions: tuple[tuple[str, int, str], ...] = ()
    old: Answers = []
    new: Answers = []

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.run = stage.forge.ok

    def set_up(self) -> None:
        """Make the state before the first run."""
        self.stage.base()

    def command(self) -> tuple[str, ...]:
        """The command line to kill."""
        raise NotImplementedError

    def undo(self) -> None:
        """Lead back to the state of `set_up` from that after a complete run."""

    def undisturbed(self, where: str) -> None:
        """What goes on all the time has gone on."""

    def settle(self) -> None:
        """End what goes on all the time, while there is still state."""

    def close(self) -> None:
        """Give back what `set_up` took, but for the state."""

    def answers(self) -> Answers:
        """Who answers each question now."""
        return [
            self.stage.traffic.ask(where, port, udp=kind == "udp") for where, port, kind in self.questions
        ]


class Load(Scenario):
    name = "load"
    loaded = (False, True)
    questions = (("127.0.0.1", PLAIN, "tcp"), ("127.0.0.5", PLAIN, "tcp"))
    old = new = ["plain", "plain"]

    def set_up(self) -> None:
        pass

    def command(self) -> tuple[str, ...]:
        return ("load", *SMALL)

    def undo(self) -> None:
        self.run("unload", "--yes")


class BindNew(Scenario):
    """A binding of a label that has none, so that its destination is made: an id the label keeps or gives back."""

    name = "bind"
    questions = (("127.1.0.1", PLAIN, "tcp"), ("127.1.0.2", PLAIN, "tcp"))
    old = ["plain", "plain"]
    new = [None, "plain"]

    def command(self) -> tuple[str, ...]:
        return ("bind", "fresh", "tcp", "127.1.0.1", str(PLAIN))

    def undo(self) -> None:
        self.run("unbind", "fresh", "tcp", "127.1.0.1", str(PLAIN))


class BindPrefix(Scenario):
    """A prefix, in the trie, of a label that has sockets."""

    name = "bind-prefix"
    questions = (("127.1.0.1", PLAIN, "tcp"), ("127.1.1.1", PLAIN, "tcp"))
    old = ["plain", "plain"]
    new = ["web", "plain"]

    def command(self) -> tuple[str, ...]:
        return ("bind", "web", "tcp", "127.1.0.0/24", "0")

    def undo(self) -> None:
        self.run("unbind", "web", "tcp", "127.1.0.0/24", "0")


class BindReplace(Scenario):
    name = "bind-replace"
    questions = (("127.1.0.1", PLAIN, "tcp"),)
    old = ["web"]
    new = ["blue"]

    def set_up(self) -> None:
        super().set_up()
        self.run("bind", "web", "tcp", "127.1.0.1", str(PLAIN))

    def command(self) -> tuple[str, ...]:
        return ("bind", "blue", "tcp", "127.1.0.1", str(PLAIN), "--replace")

    def undo(self) -> None:
        self.run("bind", "web", "tcp", "127.1.0.1", str(PLAIN), "--replace")


class BindReusedId(Scenario):
    """All ids were handed out once: the new label gets one that is made as new first."""

    name = "bind-reused-id"
    questions = BindNew.questions
    old = BindNew.old
    new = BindNew.new

    def set_up(self) -> None:
        run = self.run
        run("load", "--max-bindings", "1000", "--max-destinations", "3")
        self.stage.register("web", "127.0.0.1", FIRST)
        run("bind", "spare", "tcp", "127.9.9.8", "9")
        run("bind", "gone", "tcp", "127.9.9.7", "9")
        self.stage.register("gone", "127.0.0.1", SECOND)
        run("unbind", "gone", "tcp", "127.9.9.7", "9")
        run("unregister", "gone", "ipv4", "tcp")

    def command(self) -> tuple[str, ...]:
        return ("bind", "fresh", "tcp", "127.1.0.1", str(PLAIN))

    def undo(self) -> None:
        self.run("unbind", "fresh", "tcp", "127.1.0.1", str(PLAIN))


class Unbind(Scenario):
    name = "unbind"
    questions = (("127.1.0.1", PLAIN, "tcp"),)
    old = [None]
    new = ["plain"]
    again = (0, 5)

    def set_up(self) -> None:
        super().set_up()
        self.undo()

    def command(self) -> tuple[str, ...]:
        return ("unbind", "fresh", "tcp", "127.1.0.1", str(PLAIN))

    def undo(self) -> None:
        self.run("bind", "fresh", "tcp", "127.1.0.1", str(PLAIN))


class LoadBindings(Scenario):
    """Added, replaced and removed bindings, of both kinds and of labels that come and go."""

    name = "load-bindings"
    questions = tuple((f"127.2.{n}.1", PLAIN, "tcp") for n in range(6))
    old = ["web", "web", "plain", None, "blue", "web"]
    new = ["web", "blue", "blue", "plain", None, "plain"]

    def set_up(self) -> None:
        super().set_up()
        self._write("old", {0: "web", 1: "web", 3: "going", 4: "blue", 5: "web"})
        self._write("new", {0: "web", 1: "blue", 2: "blue", 4: "coming"})
        self.undo()

    def _write(self, name: str, bound: dict[int, str]) -> None:
        bindings = [
            {
                "label": label,
                "prefix": f"127.2.{n}.{'1/32' if n % 2 else '0/24'}",
                "port": PLAIN,
                "protocol": "tcp",
            }
            for n, label in bound.items()
        ]
        bindings.append({"label": "spare", "prefix": "127.9.9.8/32", "port": 9, "protocol": "tcp"})
        with open(f"{self.stage.scratch}/{name}", "w") as file:
            json.dump({"bindings": bindings}, file)

    def command(self) -> tuple[str, ...]:
        return ("load-bindings", f"{self.stage.scratch}/new")

    def undo(self) -> None:
        self.run("load-bindings", f"{self.stage.scratch}/old")


class LoadBindingsBulk(LoadBindings):
    """The same as one swap of whole maps, which it is above 10,000 changes."""

    name = "load-bindings-bulk"
    whole = True
    setup = "import svcctl.state.bulk; svcctl.state.bulk.THRESHOLD = 3"


class RegisterPid(Scenario):
    """A socket in the place of an earlier one, as after a restart."""

    name = "register-pid"
    questions = (("127.1.0.1", PLAIN, "tcp"),)
    old = ["web"]
    new = ["blue"]

    def set_up(self) -> None:
        super().set_up()
        self.run("bind", "web", "tcp", "127.1.0.1", str(PLAIN))

    def command(self) -> tuple[str, ...]:
        return ("register-pid", str(os.getpid()), "web", "tcp", "127.0.0.1", str(SECOND))

    def undo(self) -> None:
        self.stage.register("web", "127.0.0.1", FIRST)


class RegisterPidFirst(Scenario):
    """The first socket of a label that nothing is known of."""

    name = "register-pid-first"
    questions = (("127.1.0.1", PLAIN, "tcp"),)
    old = new = ["plain"]

    def command(self) -> tuple[str, ...]:
        return ("register-pid", str(os.getpid()), "fresh", "tcp", "127.0.0.1", str(SECOND))

    def undo(self) -> None:
        self.run("unregister", "fresh", "ipv4", "tcp")


class Unregister(Scenario):
    name = "unregister"
    questions = (("127.1.0.1", PLAIN, "tcp"),)
    old = ["web"]
    new = [None]
    again = (0, 5)

    def set_up(self) -> None:
        super().set_up()
        self.run("bind", "web", "tcp", "127.1.0.1", str(PLAIN))

    def command(self) -> tuple[str, ...]:
        return ("unregister", "web", "ipv4", "tcp")

    def undo(self) -> None:
        self.stage.register("web", "127.0.0.1", FIRST)


class Upgrade(Scenario):
    """All kinds of traffic, none of which may be refused or go astray at any point."""

    name = "upgrade"
    free = True
    questions = (
        ("127.1.0.1", PLAIN, "tcp"),
        ("127.1.1.1", PLAIN, "tcp"),
        ("::1", PLAIN, "tcp"),
        ("127.1.0.1", 53, "udp"),
        ("127.1.2.1", PLAIN, "tcp"),
        ("127.1.3.1", PLAIN, "tcp"),
    )
    old = new = ["web", "blue", "web6", "dns", None, "plain"]

    def set_up(self) -> None:
        super().set_up()
        run, stage = self.run, self.stage
        stage.register("web", "::1", FIRST)
        stage.register("dns", "127.0.0.1", UDP, "udp")
        run("bind", "web", "tcp", "127.1.0.1", str(PLAIN))
        run("bind", "blue", "tcp", "127.1.1.0/24", "0")
        run("bind", "web", "tcp", "::1", str(PLAIN))
        run("bind", "dns", "udp", "127.1.0.0/16", "53")
        run("bind", "nobody", "tcp", "127.1.2.1", str(PLAIN))

    def command(self) -> tuple[str, ...]:
        return ("upgrade", "--force")


class UpgradeResize(Upgrade):
    """Larger by one than it is, so that there is nothing to undo."""

    name = "upgrade-resize"

    def command(self) -> tuple[str, ...]:
        return ("upgrade", "--max-destinations", str(max_entries("destinations") + 1))


class AttachNetns(Scenario):
    """The dispatcher's maps, program and link, on state that has none yet."""

    name = "attach-netns"
    attached = (0, 1)
    following = (("upgrade", "--force"),)
    questions = (("127.1.0.1", PLAIN, "tcp"),)
    old = new = ["plain"]

    def set_up(self) -> None:
        self.run("load", "--no-dispatcher")

    def command(self) -> tuple[str, ...]:
        return ("attach", "netns", *SMALL)

    def undo(self) -> None:
        self.run("unload", "--yes")
        self.set_up()


class DetachNetns(Scenario):
    name = "detach-netns"
    attached = (1, 0)
    questions = (("127.1.0.1", PLAIN, "tcp"),)
    old = ["web"]
    new = ["plain"]

    def set_up(self) -> None:
        super().set_up()
        self.run("bind", "web", "tcp", "127.1.0.1", str(PLAIN))

    def command(self) -> tuple[str, ...]:
        return ("detach", "netns")

    def undo(self) -> None:
        self.run("attach", "netns")


class Unload(Upgrade):
    name = "unload"
    free = False
    loaded = (True, False)
    new = ["plain", "plain", "plain6", None, "plain", "plain"]

    def command(self) -> tuple[str, ...]:
        return ("unload", "--yes")

    def undo(self) -> None:
        self.set_up()


ALL: tuple[type[Scenario], ...] = (
    Load,
    BindNew,
    BindPrefix,
    BindReplace,
    BindReusedId,
    Unbind,
    LoadBindings,
    LoadBindingsBulk,
    RegisterPid,
    RegisterPidFirst,
    Unregister,
    AttachNetns,
    DetachNetns,
    Upgrade,
    UpgradeResize,
    Unload,
)
