"""Tells kinds of inputs apart by their content, and has each read by its reader."""

from __future__ import annotations

import gc
import re
from typing import TYPE_CHECKING

from svcctl.errors import UsageProblem
from svcctl.model.bindings_file import FileProblem, read_bindings
from svcctl.model.desired import CONSUL, IPVSADM, KEEPALIVED, KUBERNETES, NATIVE, NOMAD, TUBECTL, Desired
from svcctl.model.sources import consul, nomad, tubectl
from svcctl.model.sources.kubernetes_documents import (
    STATE_FILE,
    looks_like_state_file,
    read_kubernetes,
    read_state_files,
)
from svcctl.model.sources.problem import InputProblem, refuse_large, shown
from svcctl.model.sources.reading import decode, parse_documents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcctl.model.sources.document import Document
    from svcctl.model.sources.instances import Instances
    from svcctl.model.sources.options import Options

READ = (
    "Kubernetes objects, svcctl's own file, ipvsadm -S -n, keepalived.conf, tubectl's bindings, Consul, Nomad"
)

MAX_LINE = 1 << 16
MAX_SIZE = 16 << 20
"""Characters, of files that are made of lines."""

_REGISTRIES = {CONSUL: consul, NOMAD: nomad}

_bindings = re.compile(r'\s*\{\s*(?:"schema"\s*:\s*1\s*,\s*)?"bindings"\s*:').match
"""How a file starts that `load-bindings` reads: a million bindings must not be parsed to find out."""

_line_start = re.compile(r"[ \t\r\n]*").match
_ipvsadm = re.compile(r"(?:\S*ipvsadm(?:-restore)?[ \t]+)?(?:-[A-Za-z](?!\S*:(?:\s|$))|--[a-z])").match
"""A key of YAML may start with a dash as well, but a colon ends it."""

_ipvsadm_listing = re.compile(r"IP Virtual Server version").match
_keepalived = re.compile(
    r"(?:virtual_server(?:_group)?|global_defs|vrrp_\w+|bfd_instance|static_(?:ipaddress|routes|rules|track_group)"
    r"|linkbeat_\w+|net_namespace\w*|namespace_with_ipsets|instance|use_pid_dir|child_wait_time|SSL"
    r"|track_(?:file|process|bfd)|include\w*|config_save_dir)\b(?![ \t]*:)|[@~$][\w^]"
).match


def read_inputs(inputs: Sequence[tuple[str, bytes]], options: Options) -> list[Desired]:
    """What the inputs ask for: (name for messages, content) each, in one Desired per kind of source.

    All inputs of one kind are one: several files of Kubernetes are one set of objects. Raises UsageProblem,
    and nothing else, for whatever cannot be read.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _Inputs(inputs).read(options)
    except RecursionError:
        raise UsageProblem("read the input: nested too deep") from None
    except MemoryError:
        raise UsageProblem("read the input: too large for the memory of this machine") from None
    finally:
        if collecting:
            gc.enable()


class _Inputs:
    """The inputs by kind."""

    def __init__(self, inputs: Sequence[tuple[str, bytes]]) -> None:
        self.documents: dict[str, list[Document]] = {}
        self.texts: dict[str, list[tuple[str, str]]] = {}
        self.bindings: dict[bytes, str] | None = None
        for source, data in inputs:
            self._take(source, data)

    def read(self, options: Options) -> list[Desired]:
        """One Desired a kind."""
        found = []
        if documents := self.documents.get(KUBERNETES):
            found.append(read_kubernetes(documents, options))
        if documents := self.documents.get(STATE_FILE):
            found.append(read_state_files(documents, options))
        registries = {
            kind: reader.read(documents, options)
            for kind, reader in _REGISTRIES.items()
            if (documents := self.documents.get(kind))
        }
        if documents := self.documents.get(NATIVE):
            from svcctl.model.sources.native import read as read_native

            found.append(read_native(documents, registries, options))
        elif registries:
            raise _no_frontends(registries)
        if texts := self.texts.get(IPVSADM):
            from svcctl.model.sources.ipvsadm import read as read_ipvsadm

            found.append(read_ipvsadm(texts, options))
        if texts := self.texts.get(KEEPALIVED):
            from svcctl.model.sources.keepalived import read as read_keepalived

            found.append(read_keepalived(texts, options))
        if self.bindings is not None:
            found.append(tubectl.desired(self.bindings, options))
        return _with_node_ports(found, options)

    def _take(self, source: str, data: bytes) -> None:
        text = decode(source, data)
        kind = _line_kind(source, text)
        if kind:
            self.texts.setdefault(kind, []).append((source, text))
            return
        if _bindings(text):
            try:
                found = read_bindings(text, source=source)
            except FileProblem as problem:
                if problem.path != "$" and '"version"' not in text:
                    raise
                # YAML in braces, or svcctl's own file with its keys in another order.
            else:
                self._add_bindings(source, found)
                return
        for document in parse_documents(source, data, text):
            kind = kind_of(document)
            if kind != KUBERNETES:
                document.refuse_repeated_keys()
            if kind == TUBECTL:
                self._add_bindings(source, tubectl.read(document))
            else:
                self.documents.setdefault(kind, []).append(document)

    def _add_bindings(self, source: str, found: dict[bytes, str]) -> None:
        if self.bindings is None:
            self.bindings = found
            return
        try:
            tubectl.merge(self.bindings, found)
        except ValueError as problem:
            raise InputProblem(source, str(problem)) from None


def _with_node_ports(found: list[Desired], options: Options) -> list[Desired]:
    """With what the options say of node ports, which is for the whole state: objects of Kubernetes have it already."""
    if not options.node_port_addresses or any(each.kind in (KUBERNETES, STATE_FILE) for each in found):
        return found
    from svcctl.model.sources.kubernetes.node_ports import node_port_prefixes
    from svcctl.model.sources.kubernetes.notices import Notices

    notices = Notices()
    prefixes, unknown = node_port_prefixes(options.node_port_addresses, None, notices)
    if unknown:
        raise UsageProblem(f"--node-port-addresses: {unknown[0]}")
    for each in found:
        if each.node_port_addresses not in (None, prefixes):
            raise UsageProblem("--node-port-addresses: the input has other node_port_addresses")
    first = found[0]
    told = (*first.notices, *notices.sorted())
    return [first._replace(node_port_addresses=prefixes, notices=told), *found[1:]]


def kind_of(document: Document) -> str:
    """What a document is. Raises InputProblem for what is nothing that svcctl reads."""
    value = document.value
    if isinstance(value, list):
        return _kind_of_array(document, value)
    if not isinstance(value, dict):
        raise document.problem((), f"expected an object, got {shown(value)}", hint=f"svcctl reads {READ}")
    if "kind" in value or "apiVersion" in value:
        return KUBERNETES
    if "version" in value:
        return NATIVE
    if tubectl.looks_like(value):
        return TUBECTL
    if looks_like_state_file(value):
        return STATE_FILE
    if "services" in value or "bindings" in value:
        raise document.problem(
            (), 'the key "version" is missing', hint="svcctl's own file starts with: version: 1"
        )
    first = next((answers[0] for answers in value.values() if isinstance(answers, list) and answers), None)
    for kind, reader in _REGISTRIES.items():
        if reader.looks_like(first):
            return kind
    raise document.problem((), "is nothing that svcctl knows", hint=f"svcctl reads {READ}")


def _kind_of_array(document: Document, value: list[object]) -> str:
    if not value:
        raise document.problem((), "is an empty array: nothing says of what")
    first = value[0]
    if isinstance(first, dict) and "kind" in first:
        return KUBERNETES
    for kind, reader in _REGISTRIES.items():
        if reader.looks_like(first):
            return kind
    raise document.problem((), "is an array of nothing that svcctl knows", hint=f"svcctl reads {READ}")


def _line_kind(source: str, text: str) -> str:
    """IPVSADM or KEEPALIVED for formats made of lines, else "": by the first line that is no comment."""
    at = _first_line(text)
    if _ipvsadm(text, at):
        refuse_large(source, text, MAX_LINE, MAX_SIZE)
        return IPVSADM
    if _ipvsadm_listing(text, at):
        hint = "save the table with: ipvsadm -S -n"
        raise InputProblem(source, "is what ipvsadm -L prints, which leaves things out", hint=hint)
    if _keepalived(text, at):
        refuse_large(source, text, MAX_LINE, MAX_SIZE)
        return KEEPALIVED
    return ""


def _first_line(text: str) -> int:
    """Where the first line starts that is no comment."""
    at = 0
    while True:
        found = _line_start(text, at)
        at = found.end() if found else at
        if text[at : at + 1] not in ("#", "!"):
            return at
        at = text.find("\n", at)
        if at < 0:
            return len(text)


def _no_frontends(registries: Mapping[str, Instances]) -> InputProblem:
    kind, instances = next(iter(registries.items()))
    name = next(iter(instances.members), "NAME")
    return InputProblem(
        instances.source,
        f"{kind.capitalize()} knows backends, but no addresses for clients: needs svcctl's own file as well",
        hint=f"give one with -f, whose service says frontends and '{kind}: {name}' (see svcctl(5))",
    )
