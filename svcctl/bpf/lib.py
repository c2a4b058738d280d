"""The libbpf shared library: one table of prototypes, loaded on first use, and one check of results.

libbpf 1.x answers failure in two ways: a negative errno, or NULL with errno set. `check` knows both.
"""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from errno import ENOENT, ENOSYS
from struct import calcsize, pack
from typing import TYPE_CHECKING

from svcctl.bpf.errors import BpfError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIBRARY = "libbpf.so.1"

# name -> (result, arguments, first libbpf version that has it). Pointers of every kind are c_void_p: it takes
# bytes, arrays, byref() and None alike.
PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "bpf_btf_get_fd_by_id": (c_int, (c_uint32,), "0.0.1"),
    "bpf_link_create": (c_int, (c_int, c_int, c_int, c_void_p), "0.0.8"),
    "bpf_link_detach": (c_int, (c_int,), "0.1"),
    "bpf_link_get_fd_by_id": (c_int, (c_uint32,), "0.0.9"),
    "bpf_link_get_next_id": (c_int, (c_uint32, c_void_p), "0.0.9"),
    "bpf_link_update": (c_int, (c_int, c_int, c_void_p), "0.0.8"),
    "bpf_map__is_internal": (c_bool, (c_void_p,), "0.0.3"),
    "bpf_map__fd": (c_int, (c_void_p,), "0.0.1"),
    "bpf_map__key_size": (c_uint32, (c_void_p,), "0.1"),
    "bpf_map__map_flags": (c_uint32, (c_void_p,), "0.1"),
    "bpf_map__max_entries": (c_uint32, (c_void_p,), "0.1"),
    "bpf_map__name": (c_char_p, (c_void_p,), "0.0.1"),
    "bpf_map__reuse_fd": (c_int, (c_void_p, c_int), "0.0.1"),
    "bpf_map__set_max_entries": (c_int, (c_void_p, c_uint32), "0.1"),
    "bpf_map__type": (c_int, (c_void_p,), "0.1"),
    "bpf_map__value_size": (c_uint32, (c_void_p,), "0.1"),
    "bpf_map_create": (c_int, (c_int, c_char_p, c_uint32, c_uint32, c_uint32, c_void_p), "0.6"),
    "bpf_map_delete_batch": (c_int, (c_int, c_void_p, c_void_p, c_void_p), "0.0.7"),
    "bpf_map_delete_elem": (c_int, (c_int, c_void_p), "0.0.1"),
    "bpf_map_freeze": (c_int, (c_int,), "0.0.3"),
    "bpf_map_get_fd_by_id": (c_int, (c_uint32,), "0.0.1"),
    "bpf_map_get_next_key": (c_int, (c_int, c_void_p, c_void_p), "0.0.1"),
    "bpf_map_lookup_and_delete_elem": (c_int, (c_int, c_void_p, c_void_p), "0.0.1"),
    "bpf_map_lookup_batch": (c_int, (c_int,) + (c_void_p,) * 6, "0.0.7"),
    "bpf_map_lookup_elem_flags": (c_int, (c_int, c_void_p, c_void_p, c_uint64), "0.0.2"),
    "bpf_map_update_batch": (c_int, (c_int, c_void_p, c_void_p, c_void_p, c_void_p), "0.0.7"),
    "bpf_map_update_elem": (c_int, (c_int, c_void_p, c_void_p, c_uint64), "0.0.1"),
    "bpf_obj_get_info_by_fd": (c_int, (c_int, c_void_p, c_void_p), "0.0.1"),
    "bpf_obj_get_opts": (c_int, (c_char_p, c_void_p), "1.0"),
    "bpf_obj_pin": (c_int, (c_int, c_char_p), "0.0.1"),
    "bpf_object__close": (None, (c_void_p,), "0.0.1"),
    "bpf_object__load": (c_int, (c_void_p,), "0.0.1"),
    "bpf_object__next_map": (c_void_p, (c_void_p, c_void_p), "0.6"),
    "bpf_object__next_program": (c_void_p, (c_void_p, c_void_p), "0.6"),
    "bpf_object__open_file": (c_void_p, (c_char_p, c_void_p), "0.0.6"),
    "bpf_prog_get_fd_by_id": (c_int, (c_uint32,), "0.0.1"),
    "bpf_prog_load": (c_int, (c_int, c_char_p, c_char_p, c_void_p, c_size_t, c_void_p), "0.6"),
    "bpf_prog_query": (c_int, (c_int, c_int, c_uint32, c_void_p, c_void_p, c_void_p), "0.0.1"),
    "bpf_prog_test_run_opts": (c_int, (c_int, c_void_p), "0.2"),
    "bpf_program__fd": (c_int, (c_void_p,), "0.0.1"),
    "bpf_program__name": (c_char_p, (c_void_p,), "0.0.7"),
    "bpf_program__section_name": (c_char_p, (c_void_p,), "0.2"),
    "bpf_program__set_autoload": (c_int, (c_void_p, c_bool), "0.1"),
    "libbpf_num_possible_cpus": (c_int, (), "0.0.4"),
    "libbpf_probe_bpf_map_type": (c_int, (c_int, c_void_p), "0.7"),
    "libbpf_probe_bpf_prog_type": (c_int, (c_int, c_void_p), "0.7"),
    "libbpf_set_print": (c_void_p, (c_void_p,), "0.0.1"),
    "libbpf_version_string": (c_char_p, (), "0.6"),
}

# The loaded library and its functions: the only state this package keeps.
_library: ctypes.CDLL | None = None
_functions: dict[str, Callable[..., Any]] = {}


def require(name: str) -> Callable[..., Any]:
    """The libbpf function `name`, typed. Raises `Unsupported` when it, or libbpf itself, is missing."""
    try:
        return _functions[name]
    except KeyError:
        return _bind(name)


def _bind(name: str) -> Callable[..., Any]:
    library = _load()
    result, arguments, since = PROTOTYPES[name]
    try:
        function = library[name]
    except AttributeError:
        raise Unsupported(
            ENOSYS,
            "call",
            name,
            feature=name,
            since=since,
            reason=f"this libbpf lacks it, added in {since}",
        ) from None
    function.restype = result
    function.argtypes = arguments
    _functions[name] = function
    return function


def _load() -> ctypes.CDLL:
    global _library
    if _library is None:
        try:
            _library = ctypes.CDLL(LIBRARY, use_errno=True)
        except OSError as problem:
            raise Unsupported(
                ENOENT, "load", LIBRARY, feature="libbpf", since="1.1", reason=str(problem)
            ) from problem
        # libbpf warns on stderr by itself; NULL makes it silent. What it says about objects is collected
        # by messages.py and put into the error.
        require("libbpf_set_print")(None)
    return _library


def libbpf_version() -> tuple[int, ...]:
    """Version of the loaded library, for example (1, 1, 2)."""
    text: str = require("libbpf_version_string")().decode()
    return tuple(int(part) for part in text.lstrip("v").split("-")[0].split("."))


def check(result: int | None, operation: str, subject: str) -> int:
    """`result` of a libbpf call unless it means failure: a negative errno, or NULL with errno set."""
    if result is None:
        raise BpfError(ctypes.get_errno(), operation, subject)
    if result < 0:
        raise BpfError(-result, operation, subject)
    return result


def opts(layout: str, *fields: int) -> bytes:
    """A libbpf `*_opts` struct: its own size first, which tells libbpf how much of it we know, then `fields`.

    `layout` is in the words of the struct module, native sizes and alignment; pointers are `P`.
    """
    layout = f"N{layout}0P"
    return pack(layout, calcsize(layout), *fields)
