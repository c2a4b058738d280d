"""Mirrors of the structs in bpf/include/svc_types.h: bytes of the pinned maps <-> named tuples.

All integers are in host byte order. tests/abi and `svcctl doctor` hold every mirror against the BTF of the
built objects, so a field changed on one side only cannot stay unnoticed.
"""

from __future__ import annotations

from struct import Struct, calcsize
from typing import Any, Generic, TypeVar

from svcctl.record import Record

SCHEMA = 2
MAGIC = 0x6C74637663767331
SOCKETS_PER_DESTINATION = 16
PROGRAM_MAPS = 32
PROGRAM_SLOTS = 64
NEXT_PROGRAMS = 32
"""Entries of `programs` from here on belong to an upgrade under way."""
WRITERS = 10
LABEL_BYTES = 255

T = TypeVar("T", bound=Record)


class Layout(Generic[T]):
    """One struct: `record` gives the field names, `codes` one struct code a field, without padding."""

    __slots__ = ("codes", "name", "record", "size", "struct")

    def __init__(self, name: str, record: type[T], codes: str) -> None:
        self.name = name
        self.record = record
        self.codes = codes.split()
        self.struct = Struct("=" + "".join(self.codes))
        self.size = self.struct.size

    def unpack(self, data: bytes) -> T:
        """The record in `data`, which must have exactly this layout's size."""
        return self.record._make(self.struct.unpack(data))

    def pack(self, value: T) -> bytes:
        """Bytes of a record. Byte fields shorter than their room are padded with zeros."""
        return self.struct.pack(*value)

    def fields(self) -> list[tuple[str, int, int]]:
        """(name, offset, size) of each field, to compare with BTF."""
        found, offset = [], 0
        names: Any = self.record._fields
        for name, code in zip(names, self.codes, strict=True):
            size = calcsize("=" + code)
            found.append((name, offset, size))
            offset += size
        return found


class Meta(Record):
    """struct svc_meta. Times are nanoseconds of CLOCK_REALTIME; texts are zero-padded UTF-8."""

    magic: int
    schema: int
    netns_inode: int
    netns_cookie: int
    generation: int
    mark_time_ns: int
    mark_pid: int
    mark_uid: int
    mark_command: bytes
    swap_phase: int
    swap_programs: int
    next_destination: int
    next_writer: int
    group: int
    mode: int
    created_ns: int
    created_by: bytes
    version: bytes
    lock_waits: int
    lock_wait_ns: int
    next_service: int
    next_backend: int
    next_block: int
    next_lane: int
    next_ranges: int
    idle_ms: bytes
    reserved: bytes


class Usage(Record):
    """struct svc_usage: entries in use and the most there may be."""

    used: int
    max: int


class Writer(Record):
    """struct svc_writer: one of the last ten commands that changed something."""

    time_ns: int
    pid: int
    uid: int
    command: bytes


class ProgramRecord(Record):
    """struct svc_program. `map_ids` holds `map_count` 32-bit ids."""

    name: bytes
    id: int
    map_count: int
    map_ids: bytes
    sha256: bytes
    version: bytes
    loaded_ns: int


class AttachmentKey(Record):
    """struct svc_attachment_key. `target`: inode of a namespace, id of a cgroup, index of an interface."""

    kind: int
    hook: int
    target: int


class Attachment(Record):
    """struct svc_attachment. `link_id` 0: recorded, not made yet; of a tc filter always. `name`: an interface's."""

    program: int
    link_id: int
    since_ns: int
    role: int
    flags: int
    name: bytes = b""


class AttachRuleKey(Record):
    """struct svc_attach_rule_key; the pattern is padded with zeros."""

    pattern: bytes


class AttachRule(Record):
    """struct svc_attach_rule."""

    role: int
    flags: int
    since_ns: int


class BindingKey(Record):
    """struct svc_binding_key: key of the trie."""

    prefixlen: int
    protocol: int
    family: int
    port: int
    address: bytes


class BindingValue(Record):
    """struct svc_binding."""

    destination: int
    prefixlen: int


class Owner(Record):
    """struct svc_owner: who asked for a binding in a desired state."""

    name: bytes


class ExactKey(Record):
    """struct svc_exact_key."""

    protocol: int
    family: int
    port: int
    address: bytes


class ExactValue(Record):
    """struct svc_exact: `check` is `exact_check` of the key."""

    destination: int
    check: int


class Ports(Record):
    """struct svc_ports: bindings of one protocol and port, by kind."""

    exact: int
    trie: int


class DestinationKey(Record):
    """struct svc_destination_key; the label is padded with zeros to 255 bytes."""

    label: bytes
    family: int
    protocol: int


class DestinationValue(Record):
    """struct svc_destination; `slots` has a bit for each slot of `sockets` a writer filled."""

    id: int
    refs: int
    slots: int
    flags: int


class DispatchStats(Record):
    """struct svc_dispatch_stats of one CPU."""

    lookups: int
    no_socket: int
    errors: int


META = Layout("svc_meta", Meta, "Q I I Q Q Q I I 64s I I I I I I Q 32s 32s Q Q I I I I I 28s 752s")
USAGE = Layout("svc_usage", Usage, "I I")
WRITER = Layout("svc_writer", Writer, "Q I I 112s")
PROGRAM = Layout("svc_program", ProgramRecord, "16s I I 128s 32s 32s Q")
ATTACHMENT_KEY = Layout("svc_attachment_key", AttachmentKey, "I I Q")
ATTACHMENT = Layout("svc_attachment", Attachment, "I I Q I I 16s")
ATTACH_RULE_KEY = Layout("svc_attach_rule_key", AttachRuleKey, "64s")
ATTACH_RULE = Layout("svc_attach_rule", AttachRule, "I I Q")
BINDING_KEY = Layout("svc_binding_key", BindingKey, "I B B H 16s")
BINDING = Layout("svc_binding", BindingValue, "I I")
OWNER = Layout("svc_owner", Owner, "64s")
EXACT_KEY = Layout("svc_exact_key", ExactKey, "B B H 16s")
EXACT = Layout("svc_exact", ExactValue, "I I")
PORTS = Layout("svc_ports", Ports, "I I")
DESTINATION_KEY = Layout("svc_destination_key", DestinationKey, "255s B B")
DESTINATION = Layout("svc_destination", DestinationValue, "I I I I")
DISPATCH_STATS = Layout("svc_dispatch_stats", DispatchStats, "Q Q Q")

ALL: tuple[Layout[Any], ...] = (
    META, USAGE, WRITER, PROGRAM, ATTACHMENT_KEY, ATTACHMENT, ATTACH_RULE_KEY, ATTACH_RULE, BINDING_KEY, BINDING,
    OWNER, EXACT_KEY, EXACT, PORTS, DESTINATION_KEY, DESTINATION, DISPATCH_STATS,
)  # fmt: skip

U32 = Struct("=I")
U64 = Struct("=Q")


def text(data: bytes) -> str:
    """Zero-padded UTF-8 as text; what is not UTF-8 is shown escaped, never an error."""
    return data.rstrip(b"\0").decode("utf-8", "backslashreplace")


def fit(value: str, room: int) -> bytes:
    """UTF-8 of `value`, cut to `room` bytes without splitting a character."""
    return value.encode("utf-8", "replace")[:room].decode("utf-8", "ignore").encode()


_CHECK_WORDS = Struct("=5I")
CHECK_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)


def exact_check(key: bytes) -> int:
    """The digest of a 20-byte `exact` key that its value carries (SVC_CHECK_n in svc_types.h)."""
    a, b, c, d, e = _CHECK_WORDS.unpack(key)
    digest: int = a * 0x9E3779B1 + b * 0x85EBCA77 + c * 0xC2B2AE3D + d * 0x27D4EB2F + e * 0x165667B1
    return digest & 0xFFFFFFFF
