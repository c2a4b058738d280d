"""Reads the file of `load-bindings`: tubectl's JSON, or what `svcctl bindings -o json` prints.

    {"schema": 1, "bindings": [{"label": "web", "protocol": "tcp", "prefix": "192.0.2.0/24", "port": 80}]}

`schema` and `protocol` may be left out; without a protocol an entry means tcp and udp. In what `svcctl export`
prints an entry may have an `owner`. Everything else that
is missing, unknown, repeated or of another type is refused, because half a file is worse than none: the
peer reads a missing prefix as `::/0`.

The outer object and the array are walked here and only the entries are given to the JSON decoder, one by
one: an error is found at the entry that has it, and a million entries never exist at once as objects. Where
nothing is wrong bindings_quick.py takes hundreds of entries at once.
"""

from __future__ import annotations

import gc
import json
import re

from svcctl.errors import UsageProblem
from svcctl.model.bad_value import BadValue, show
from svcctl.model.binding import HEADER_BITS, KEY, key_fields
from svcctl.model.bindings_quick import BOTH, QUOTES, find_end, read_piece
from svcctl.model.constants import IPV4, TCP, UDP
from svcctl.model.label import MAX_OWNER_BYTES, check_label, check_name
from svcctl.model.prefix import split_prefix

SCHEMA = 1

_KEYS = ("label", "protocol", "prefix", "port")
_PROTOCOLS: dict[str, tuple[int, ...]] = {"tcp": (TCP,), "udp": (UDP,)}
_SPACES = (" ", "\n", "\r", "\t")
_not_space = re.compile(r"[^ \t\n\r]").search
_comma = re.compile(r"[ \t\n\r]*,[ \t\n\r]*").match
_entry_at = json.JSONDecoder().raw_decode
# Objects as tuples of pairs: told apart from arrays, and repeated keys are still there. Costs a third more.
_value_at = json.JSONDecoder(object_pairs_hook=tuple).raw_decode


class FileProblem(UsageProblem):
    """A file that cannot be read as bindings. `path` says where: `$.bindings[3].port`."""

    code = "bad_file"

    def __init__(self, path: str, cause: str, *, hint: str | None = None, source: str = "") -> None:
        place = f"{source}: {path}" if source else path
        super().__init__(f"{place}: {cause}", hint=hint)
        self.path = path
        self.cause = cause
        self.source = source


def read_bindings(
    data: bytes | str, *, source: str = "", native: bool = False, owners: dict[bytes, str] | None = None
) -> dict[bytes, str]:
    """The bindings of a whole file: key of 24 bytes -> label, in the order of the file.

    `source` (the file's name) goes in front of error messages. `native`: the file may be what 'svcctl export' prints;
    its services are passed over, and the owners of its bindings put into `owners`, by key, if that is given. Raises
    FileProblem, and nothing else, for any input. Equal labels are one string. The garbage collector is off meanwhile:
    it would walk the growing result again and again.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _read_document(_decode(data), native, ({} if owners is None else owners) if native else None)
    except FileProblem as problem:
        raise FileProblem(problem.path, problem.cause, hint=problem.hint, source=source) from None
    except MemoryError:
        raise FileProblem("$", "too large for the memory of this machine", source=source) from None
    finally:
        if collecting:
            gc.enable()


def _decode(data: bytes | str) -> str:
    if isinstance(data, bytes):
        if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
            raise FileProblem("$", "starts with a byte order mark", hint="save the file as UTF-8 without one")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise FileProblem("$", f"not UTF-8 at line {line}, byte {error.start}") from None
    if data.startswith("\ufeff"):
        raise FileProblem("$", "starts with a byte order mark", hint="save the file as UTF-8 without one")
    return data


def _read_document(text: str, native: bool, owners: dict[bytes, str] | None) -> dict[bytes, str]:
    """The outer object."""
    at = _skip(text, 0)
    if at == len(text):
        raise FileProblem("$", "the file is empty")
    if text[at] != "{":
        value, _ = _read_value(text, at, "$")
        raise FileProblem("$", f'expected an object with the key "bindings", got {_shown(value)}')
    want: dict[bytes, str] | None = None
    seen: set[str] = set()
    at = _skip(text, at + 1)
    more = text[at : at + 1] != "}"
    while more:
        if text[at : at + 1] != '"':
            raise _syntax(text, at, "$", "expected a key in double quotes")
        key, at = _read_key(text, at)
        if key in seen:
            raise FileProblem("$", f"the key {show(key)} is there twice")
        seen.add(key)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise _syntax(text, at, "$", "expected ':' after a key")
        at = _skip(text, at + 1)
        if key == "bindings":
            if text[at : at + 1] != "[":
                value, _ = _read_value(text, at, "$.bindings")
                raise FileProblem("$.bindings", f"expected an array, got {_shown(value)}")
            want = {}
            at = _read_entries(text, at, want, owners)
        elif key == "schema":
            value, at = _read_value(text, at, "$.schema")
            if type(value) is not int or value != SCHEMA:
                raise FileProblem("$.schema", f"expected {SCHEMA}, got {_shown(value)}")
        elif native and key in ("services", "nodes", "node_port_addresses", "settings"):
            _, at = _read_value(text, at, f"$.{key}")
        elif native and key in ("version", "owner"):
            value, at = _read_value(text, at, f"$.{key}")
            if key == "version" and (type(value) is not int or value != 1):
                raise FileProblem("$.version", f"expected 1, got {_shown(value)}")
        else:
            raise FileProblem("$", f"unknown key {show(key)}", hint="known keys: bindings, schema")
        at = _skip(text, at)
        more = text[at : at + 1] == ","
        if more:
            at = _skip(text, at + 1)
    if text[at : at + 1] != "}":
        raise _syntax(text, at, "$", "expected ',' or '}'")
    at = _skip(text, at + 1)
    if at != len(text):
        raise _syntax(text, at, "$", "expected the end of the file after the object")
    if want is None:
        raise FileProblem("$", 'the key "bindings" is missing', hint='"bindings": [] stands for none')
    return want


def _read_entries(text: str, at: int, want: dict[bytes, str], owners: dict[bytes, str] | None) -> int:
    """Reads the array that starts at `at` into `want`; returns where it ends. The loop that must be fast."""
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        return at + 1
    labels: dict[str, str] = {}
    keys_of_entry = bytearray()
    pack = KEY.pack
    slowly_until = 0  # a piece that was not plainly right is read entry by entry
    while True:
        if at >= slowly_until:
            end, following = find_end(text, at)
            counts = read_piece(text, at, end, want, labels, owners) if end > at else None
            if counts is not None:
                keys_of_entry += counts
                at = following
                continue
            slowly_until = following if end > at else len(text)
        index = len(keys_of_entry)
        start = at
        try:
            entry, at = _entry_at(text, at)
        except (ValueError, RecursionError) as error:
            raise _from_decoder(error, text, f"$.bindings[{index}]") from None
        try:
            raw_label, prefix, port = entry["label"], entry["prefix"], entry["port"]
            keys = len(entry)
            if owners is not None and "owner" in entry:
                owner = entry["owner"]
                keys -= 1
            else:
                owner = ""
            protocols = BOTH if keys == len(_KEYS) - 1 else _PROTOCOLS[entry["protocol"]]
        except (KeyError, TypeError):
            raise _refused_entry(text, start, index, owners is not None) from None
        if (
            keys > len(_KEYS)
            or type(port) is not int
            or not 0 <= port <= 65535
            or type(raw_label) is not str
            or type(prefix) is not str
            or type(owner) is not str
            or text.count('"', start, at) != QUOTES.get(len(entry))
        ):
            fault = _entry_fault(text, start, index, owners is not None)
            if fault is not None:
                raise fault
        label = labels.get(raw_label)
        if label is None:
            label = labels[raw_label] = _checked_label(index, raw_label)
        if owner:
            owner = _checked_owner(index, owner)
        try:
            family, address, length = split_prefix(prefix)
        except BadValue as problem:
            cause = f"{problem.cause}, got {show(prefix)}"
            raise FileProblem(f"$.bindings[{index}].prefix", cause, hint=problem.hint) from None
        bits = length + (HEADER_BITS + 96 if family == IPV4 else HEADER_BITS)
        for number in protocols:
            key = pack(bits, number, family, port, address)
            if key in want:
                raise _repeated(key, index, want, keys_of_entry)
            want[key] = label
            if owner:
                assert owners is not None
                owners[key] = owner
        keys_of_entry.append(len(protocols))
        if text[at : at + 3] == ", {":  # what most writers of JSON put between two objects
            at += 2
            continue
        comma = _comma(text, at)
        if comma is None:
            at = _skip(text, at)
            if text[at : at + 1] == "]":
                return at + 1
            raise _syntax(text, at, f"$.bindings[{index}]", "expected ',' or ']' after an entry")
        at = comma.end()


def _refused_entry(text: str, start: int, index: int, owned: bool) -> FileProblem:
    """As `_entry_fault`, for what is certainly no entry."""
    return _entry_fault(text, start, index, owned) or FileProblem(f"$.bindings[{index}]", "not a binding")


def _entry_fault(text: str, start: int, index: int, owned: bool) -> FileProblem | None:
    """The first fault of the entry that starts at `start`: its keys before its values. Labels and prefixes
    are only looked at for their type. `owned`: it may have an owner."""
    known = (*_KEYS, "owner") if owned else _KEYS
    path = f"$.bindings[{index}]"
    entry, _ = _read_value(text, start, path)
    if not isinstance(entry, tuple):
        return FileProblem(path, f"expected an object, got {_shown(entry)}")
    fields: dict[str, object] = {}
    for key, value in entry:
        if key not in known:
            return FileProblem(path, f"unknown key {show(key)}", hint=f"known keys: {', '.join(known)}")
        if key in fields:
            return FileProblem(path, f"the key {show(key)} is there twice")
        fields[key] = value
    for key in ("label", "prefix", "port"):
        if key not in fields:
            return FileProblem(path, f'the key "{key}" is missing')
    for key in ("label", "prefix", *(["owner"] if "owner" in fields else [])):
        if not isinstance(fields[key], str):
            return FileProblem(f"{path}.{key}", f"expected a string, got {_shown(fields[key])}")
    if "protocol" in fields and fields["protocol"] not in ("tcp", "udp"):
        return FileProblem(f"{path}.protocol", f"expected tcp or udp, got {_shown(fields['protocol'])}")
    port = fields["port"]
    if type(port) is not int or not 0 <= port <= 65535:
        return FileProblem(f"{path}.port", f"expected 0-65535, got {_shown(port)}")
    return None


def _checked_label(index: int, label: str) -> str:
    try:
        return check_label(label)
    except BadValue as problem:
        raise FileProblem(f"$.bindings[{index}].label", f"{problem.cause}, got {show(label)}") from None


def _checked_owner(index: int, owner: str) -> str:
    try:
        return check_name("owner", owner, MAX_OWNER_BYTES)
    except BadValue as problem:
        raise FileProblem(f"$.bindings[{index}].owner", f"{problem.cause}, got {show(owner)}") from None


def _repeated(key: bytes, index: int, want: dict[bytes, str], keys_of_entry: bytearray) -> FileProblem:
    """Two entries for one key, whatever their labels: one of them is a mistake, and we cannot know which."""
    position = next(n for n, known in enumerate(want) if known == key)
    first = 0
    while first < len(keys_of_entry) and position >= keys_of_entry[first]:
        position -= keys_of_entry[first]
        first += 1
    protocol, prefix, port = key_fields(key)
    cause = f"{protocol} {prefix} port {port} is there already, in $.bindings[{first}] for {show(want[key])}"
    return FileProblem(f"$.bindings[{index}]", cause)


def _skip(text: str, at: int) -> int:
    """Where the next character that is not white space of JSON is, from `at` on."""
    if text[at : at + 1] not in _SPACES:
        return at
    found = _not_space(text, at)
    return found.start() if found else len(text)


def _read_value(text: str, at: int, path: str) -> tuple[object, int]:
    try:
        return _value_at(text, at)
    except (ValueError, RecursionError) as error:
        raise _from_decoder(error, text, path) from None


def _read_key(text: str, at: int) -> tuple[str, int]:
    """A key of the outer object; `at` is at its quote."""
    key, at = _read_value(text, at, "$")
    return str(key), at


def _from_decoder(error: Exception, text: str, path: str) -> FileProblem:
    if isinstance(error, json.JSONDecodeError):
        return _syntax(text, error.pos, path, f"not JSON: {error.msg}")
    if isinstance(error, RecursionError):
        return FileProblem(path, "nested too deep")
    # int() refuses more than sys.get_int_max_str_digits() digits.
    return FileProblem(path, "a number with too many digits")


def _syntax(text: str, at: int, path: str, cause: str) -> FileProblem:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    end = ", where the file ends" if at >= len(text) else ""
    return FileProblem(path, f"line {line}, column {column}{end}: {cause}")


def _shown(value: object) -> str:
    """A value of the file in JSON's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, float):
        return json.dumps(value)
    return show(value)
