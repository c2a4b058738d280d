"""What the quick tests cover, against what the objects use: a line for each program and hook, map type, helper.

A quick test says what it runs: `@pytest.mark.covers("dispatch: sk_lookup", "dispatch: helper sk_assign")`. What an
object uses and no such test names fails tests/abi/test_quick_coverage.py, so nothing new goes to the other kernels
unseen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from svcctl.bpf.object import MapSpec
from tests.lib.elf import Program

# enum bpf_map_type and the helpers' numbers of linux/bpf.h, as far as they are used.
MAP_TYPES = {
    1: "hash", 2: "array", 3: "prog_array", 5: "percpu_hash", 6: "percpu_array", 9: "lru_hash", 11: "lpm_trie",
    12: "array_of_maps", 13: "hash_of_maps", 15: "sockmap", 18: "sockhash",
}  # fmt: skip
HELPERS = {
    1: "map_lookup_elem", 2: "map_update_elem", 3: "map_delete_elem", 5: "ktime_get_ns", 6: "trace_printk",
    7: "get_prandom_u32", 8: "get_smp_processor_id", 9: "skb_store_bytes", 11: "l4_csum_replace", 12: "tail_call",
    23: "redirect", 26: "skb_load_bytes", 28: "csum_diff", 32: "skb_change_type", 38: "skb_change_tail",
    39: "skb_pull_data", 46: "get_socket_cookie", 50: "skb_adjust_room", 69: "fib_lookup", 86: "sk_release",
    93: "spin_lock", 94: "spin_unlock", 97: "skb_ecn_set_ce", 122: "get_netns_cookie", 124: "sk_assign",
    152: "redirect_neigh", 155: "redirect_peer", 187: "set_retval",
}  # fmt: skip
STEPS = frozenset({"load", "upgrade", "kill"})
"""What every half must be taken through as well, in every kernel."""

LEFT_IN = frozenset({"icmp_tunnel: helper tail_call", "icmp_tunnel: map prog_array"})
"""What clang 14 leaves in, behind a condition that never holds, and later ones leave out: nothing can run it."""


def used(program: Program, maps: dict[str, MapSpec]) -> set[str]:
    """The lines of one program."""
    found = {f"{program.name}: {program.hook}"}
    for name in program.maps & maps.keys():
        kind = maps[name].type
        found.add(f"{program.name}: map {MAP_TYPES.get(kind, kind)}")
    found |= {f"{program.name}: helper {HELPERS.get(number, number)}" for number in program.helpers}
    return found


def claimed(directory: Path) -> dict[str, list[str]]:
    """Line -> the quick tests below a directory that claim it, from their decorators."""
    found: dict[str, list[str]] = {}
    for path in sorted(directory.rglob("test_*.py")):
        for function, decorators in _functions(ast.parse(path.read_text())):
            marks = dict(_marks(decorators))
            if "quick" in marks:
                for line in marks.get("covers", ()):
                    found.setdefault(line, []).append(f"{path.name}::{function}")
    return found


def _functions(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, node.decorator_list


def _marks(decorators: Iterable[ast.expr]) -> Iterator[tuple[str, list[str]]]:
    for decorator in decorators:
        call = decorator if isinstance(decorator, ast.Call) else None
        target = call.func if call else decorator
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "pytest.mark":
            words = call.args if call else []
            yield target.attr, [str(word.value) for word in words if isinstance(word, ast.Constant)]
