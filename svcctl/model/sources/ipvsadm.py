"""The rules of IPVS as `ipvsadm -S -n` saves them, or as people write them for `ipvsadm -R`.

Each line is a command line of ipvsadm(8). What is saved has -A and -a alone; written by hand, the commands that
change and delete are there too and are obeyed in turn. Forwarding other than -m (NAT), firewall marks, SCTP, port
0 and one-packet scheduling have no counterpart here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.bad_value import BadValue, show
from svcctl.model.constants import PROTOCOL_NUMBERS
from svcctl.model.desired import IPVSADM, Desired
from svcctl.model.service_endpoint import Frontend, format_backend, format_frontend
from svcctl.model.sources.ipvs import (
    DEFAULT_PERSISTENCE,
    Virtual,
    convert_persistence,
    convert_weight,
    number,
    read_backend,
)
from svcctl.model.sources.ipvsadm_options import COMMANDS, parse_line
from svcctl.model.sources.lost import Lost
from svcctl.model.sources.ports import parse_frontends
from svcctl.model.sources.problem import InputProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.model.desired import Notice
    from svcctl.model.service import Service
    from svcctl.model.sources.options import Options

HOST_MASKS = ("255.255.255.255", "128", "32")


def read(texts: Sequence[tuple[str, str]], options: Options) -> Desired:
    """What the files, one after the other, leave in the table. Raises InputProblem."""
    owner = options.owner or IPVSADM
    services: list[Service] = []
    notices: list[Notice] = []
    names: set[str] = set()
    for source, text in texts:
        lost = Lost(source, options)
        table = _Table(lost)
        for line, words in enumerate(text.splitlines(), 1):
            table.obey(line, words.split())
        for virtual in table.services.values():
            if virtual is not None:
                if virtual.name in names:
                    cause = f"{virtual.name} is in another file already"
                    raise InputProblem(source, cause, line=virtual.line)
                names.add(virtual.name)
                service = virtual.service(owner, lost)
                if service is not None:
                    services.append(service)
        notices += lost.notices()
    return Desired(IPVSADM, owner, tuple(services), notices=tuple(notices))


class _Table:
    """IPVS's table while the lines are obeyed. A virtual service that is None has been refused."""

    def __init__(self, lost: Lost) -> None:
        self.lost = lost
        self.services: dict[str, Virtual | None] = {}

    def obey(self, line: int, words: list[str]) -> None:
        """One line. Raises InputProblem for what ipvsadm itself would not take."""
        if words and words[0].rpartition("/")[2] in ("ipvsadm", "ipvsadm-restore"):
            words = words[1:]
        if not words or words[0].startswith("#"):
            return
        try:
            command, options = parse_line(words)
        except ValueError as problem:
            raise self.problem(line, str(problem)) from None
        if command == "clear":
            self.services.clear()
        elif command == "set":
            self.lost.tell(line, "time-outs of IPVS are not converted")
        elif command not in ("zero", "restore"):
            self._change(line, command, options)

    def problem(self, line: int, cause: str, hint: str | None = None) -> InputProblem:
        """An error of that line."""
        return InputProblem(self.lost.source, cause, line=line, hint=hint)

    def _change(self, line: int, command: str, options: dict[str, str]) -> None:
        key, frontend, refusal = self._virtual(line, options)
        if command == "add-service":
            if key in self.services:
                raise self.problem(line, f"{key} is there already")
            refusal = refusal or _refused_service(options)
            if refusal:
                self.lost.refuse(line, f"{key}: {refusal}")
                self.services[key] = None
            elif frontend is not None:
                virtual = self.services[key] = Virtual(key, line, [frontend])
                self._set(virtual, line, options)
            return
        if key not in self.services:
            raise self.problem(line, f"{key} is not there: -A makes it")
        kept = self.services[key]
        if command == "delete-service":
            del self.services[key]
        elif kept is None:
            if "server" in COMMANDS[command]:
                self.lost.refuse(line, f"a server of {key}, which is left out")
        elif command == "edit-service":
            refusal = _refused_service(options)
            if refusal:
                self.lost.refuse(line, f"{key}: {refusal}")
                self.services[key] = None
            else:
                self._set(kept, line, options)
        else:
            self._change_server(line, command, options, kept)

    def _set(self, virtual: Virtual, line: int, options: dict[str, str]) -> None:
        virtual.scheduler = options.get("scheduler", "wlc")
        virtual.affinity_seconds = 0
        if "persistent" in options:
            text = options["persistent"] or str(DEFAULT_PERSISTENCE)
            virtual.affinity_seconds = convert_persistence(text, line, self.lost)
        if "sched-flags" in options:
            self.lost.tell(line, f"the scheduler's flags {options['sched-flags']} are not converted")

    def _change_server(self, line: int, command: str, options: dict[str, str], virtual: Virtual) -> None:
        if "real-server" not in options:
            raise self.problem(line, "needs -r with the server's address")
        backend = read_backend(self._place(options["real-server"], virtual), line, self.lost)
        text = format_backend(backend)
        if command == "delete-server":
            if virtual.members.pop(backend, None) is None:
                raise self.problem(line, f"{text} is no server of {virtual.name}")
            return
        if (backend in virtual.members) != (command == "edit-server"):
            there = "is a server of {} already" if backend in virtual.members else "is no server of {}"
            raise self.problem(line, f"{text} {there.format(virtual.name)}")
        if "masquerading" not in options:
            kind = "tunnelling (-i)" if "ipip" in options else "direct routing (-g)"
            self.lost.refuse(line, f"{text}: {kind}: only -m, NAT, can be converted")
            virtual.members.pop(backend, None)
            return
        virtual.members[backend] = convert_weight(options.get("weight", "1"), backend, line, self.lost)
        for name in ("u-threshold", "l-threshold"):
            if number(options.get(name, "0"), 1 << 30, name, line, self.lost):
                self.lost.tell(line, "thresholds of connections are not converted")
                break

    def _place(self, text: str, virtual: Virtual) -> str:
        """ADDRESS:PORT of a server whose port may be left out, or be 0: the service's then."""
        host, colon, port = text.rpartition(":")
        if text.endswith("]") or not colon:
            host, port = text, "0"
        return f"{host}:{virtual.frontends[0].port if port == '0' else port}"

    def _virtual(self, line: int, options: dict[str, str]) -> tuple[str, Frontend | None, str]:
        """(what names it, its frontend, why it cannot be converted). Raises InputProblem."""
        if "fwmark-service" in options:
            return f"firewall mark {options['fwmark-service']}", None, "there is no counterpart to marks"
        if "sctp-service" in options:
            return f"{options['sctp-service']}/sctp", None, "SCTP is not served"
        name = next((each for each in PROTOCOL_NUMBERS if f"{each}-service" in options), None)
        if name is None:
            raise self.problem(line, "names no service: needs -t or -u")
        text = options[f"{name}-service"]
        if text.endswith(":0"):
            return f"{text}/{name}", None, "port 0, all ports, has no counterpart"
        try:
            frontends = parse_frontends(f"{text}/{name}")
        except BadValue as problem:
            hint = "save the table with: ipvsadm -S -n" if text[:1].isalpha() else problem.hint
            raise self.problem(line, problem.message, hint) from None
        if len(frontends) != 1:
            raise self.problem(line, f"{show(text)}: expected one port")
        return format_frontend(frontends[0]), frontends[0], ""


def _refused_service(options: dict[str, str]) -> str:
    if "ops" in options:
        return "one-packet scheduling (-o) has no counterpart"
    if "pe" in options:
        return f"the persistence engine {options['pe']} has no counterpart"
    mask = options.get("netmask")
    if mask is not None and mask not in HOST_MASKS:
        return f"persistence of whole networks (-M {mask}) has no counterpart"
    return ""
