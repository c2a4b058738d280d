"""Inputs that want to hurt whoever reads them, and a process that reads each within limits.

Run as a module it prints what became of each case, a line of JSON: the error (None: it was read), its class, the
seconds of processor time and the largest size of the process in MB. Names as arguments: only these.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable

import yaml  # noqa: F401 -- so that it is there before the forks

from svcctl.errors import UsageProblem
from svcctl.model.sources import ipvsadm, keepalived, native  # noqa: F401
from svcctl.model.sources.detect import read_inputs
from svcctl.model.sources.options import Options

MB = 1 << 20
CPU_LIMIT_S = 30
MEMORY_LIMIT_MB = 500

NATIVE = b"version: 1\nservices:\n"
SERVICE = b'{"name": "a", "frontends": ["10.0.0.1:80/tcp"], "backends": ['
JSON_NATIVE = b'{"version": 1, "services": [' + SERVICE


def _laughs(levels: int) -> bytes:
    lines = [b"a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(levels):
        name, below = chr(98 + level), chr(97 + level)
        lines.append(f"{name}: &{name} [{', '.join([f'*{below}'] * 10)}]".encode())
    return b"\n".join(lines)


def _merges() -> bytes:
    """Merge keys that double: each takes the one before twice."""
    lines = [b"a0: &a0 {k: 1}"]
    for level in range(1, 60):
        lines.append(f"a{level}: &a{level} {{<<: [*a{level - 1}, *a{level - 1}], k{level}: 1}}".encode())
    return b"\n".join(lines)


def _merged_maps() -> bytes:
    keys = ", ".join(f"k{number}: 1" for number in range(5000))
    return f"a: &a {{{keys}}}\nb:\n".encode() + b"- {<<: *a}\n" * 5000


def _addresses(count: int) -> list[str]:
    return [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(count)]


def _cluster(slices: int, endpoints: int, slice_ports: int, ports: int = 1, **spec: object) -> bytes:
    """A Service and its slices, in which each endpoint is a backend at each port."""
    given = [{"name": f"p{n}" if ports > 1 else "", "port": n} for n in range(1, ports + 1)]
    in_slices = [{"name": f"p{n}" if ports > 1 else "", "port": n} for n in range(1, slice_ports + 1)]
    addresses = _addresses(slices * endpoints)
    web = {"ports": given, "clusterIP": "10.96.0.1", **spec}
    items: list[dict[str, object]] = [{"kind": "Service", "metadata": {"name": "web"}, "spec": web}]
    items += [
        {
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "metadata": {"name": f"web-{n}", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": in_slices,
            "endpoints": [{"addresses": [each]} for each in addresses[n * endpoints : (n + 1) * endpoints]],
        }
        for n in range(slices)
    ]
    return json.dumps({"kind": "List", "items": items}).encode()


CASES: dict[str, Callable[[], bytes]] = {
    "laughs": lambda: _laughs(9),
    "laughs in a manifest": lambda: NATIVE + b"- name: a\n  frontends: *x\n  x: &x 1\n" + _laughs(9),
    "merges": _merges,
    "merged maps": _merged_maps,
    "itself": lambda: b"a: &a [*a]",
    "a merge of itself": lambda: b"a: &a {<<: *a}",
    "brackets of JSON": lambda: b"[" * (100 * MB),
    "objects of JSON": lambda: b'{"a":' * (20 * MB),
    "brackets that close": lambda: b"[" * 900 + b"]" * 900,
    "brackets in a manifest": lambda: JSON_NATIVE + b"[" * 150 + b"]" * 150 + b"]}]}",
    "brackets of YAML": lambda: b"a: " + b"[" * (100 * MB),
    "brackets of short YAML": lambda: b"a: " + b"[" * MB,
    "short lines of YAML": lambda: b"- 1\n" * (15 * MB),
    "dashes": lambda: b"- " * (50 * MB),
    "dashes of short YAML": lambda: b"- " * MB,
    "question marks": lambda: b"? " * MB,
    "indentation": lambda: b"".join(b" " * level + b"a:\n" for level in range(2000)),
    "a line of JSON": lambda: b'{"version": 1, "services": "' + b"a" * (100 * MB) + b'"}',
    "a line of escapes": lambda: b'{"version": 1, "services": "' + b"\\u0041" * (16 * MB) + b'"}',
    "a line of JSON that is cut off": lambda: b'{"version": 1, "services": "' + b"a" * (100 * MB),
    "a line of ones": lambda: b"[" + b"1," * (50 * MB) + b"1]",
    "a line of objects": lambda: b"[" + b"{}," * (33 * MB) + b"{}]",
    "a line of digits": lambda: b'{"version": ' + b"1" * (100 * MB) + b"}",
    "a line of YAML": lambda: b"version: " + b"a" * (100 * MB),
    "a line of spaces": lambda: b"version: 1" + b" " * (100 * MB),
    "a quoted line of YAML": lambda: b'version: "' + b"a" * (100 * MB) + b'"',
    "a comment": lambda: b"#" + b"a" * (100 * MB),
    "blank lines": lambda: b"\n" * (100 * MB),
    "a line for ipvsadm": lambda: b"-A -t " + b"1" * (100 * MB),
    "words for ipvsadm": lambda: b"-A " + b"-t 1 " * (4 * MB),
    "a line for keepalived": lambda: b"virtual_server " + b"1" * (100 * MB),
    "braces for keepalived": lambda: b"virtual_server a 1 " + b"{" * (100 * MB),
    "nested keepalived": lambda: b"virtual_server a 1 {\n" + b"a {\n" * 100_000,
    "repeated keys of JSON": lambda: b'{"version": 1, "version": 1, "services": []}',
    "repeated keys of large JSON": lambda: (
        JSON_NATIVE
        + b",".join(b'"10.%d.%d.1:80"' % (n >> 8 & 255, n & 255) for n in range(200_000))
        + b'], "name": "b"}]}'
    ),
    "repeated keys of YAML": lambda: b"version: 1\nservices: []\nversion: 1\n",
    "NaN for a port": lambda: b'{"version": 1, "bindings": [{"label": "a", "prefix": "::/0", "port": NaN}]}',
    "NaN in YAML": lambda: b"version: 1\nbindings: [{label: a, prefix: '::/0', port: .nan}]",
    "infinity": lambda: b'{"version": 1, "bindings": [{"label": "a", "prefix": "::/0", "port": -Infinity}]}',
    "1e999": lambda: b'{"version": 1, "bindings": [{"label": "a", "prefix": "::/0", "port": 1e999}]}',
    "1e999 in YAML": lambda: b"version: 1\nbindings: [{label: a, prefix: '::/0', port: 1e999}]",
    "a long exponent": lambda: b"version: 1e" + b"9" * 1000,
    "no UTF-8": lambda: b"version: 1\nservices: [\xff]",
    "a mark": lambda: b"\xef\xbb\xbfversion: 1\nservices: []",
    "UTF-16": lambda: "version: 1\nservices: []".encode("utf-16"),
    "a zero byte": lambda: b"version: 1\nservices: []\n\0",
    "a control character": lambda: b"version: 1\nservices: [\x07]",
    "a name with a control character": lambda: (
        b'{"version": 1, "services": [{"name": "a\\u001b[31m", "frontends": []}]}'
    ),
    "a name with a zero": lambda: b'{"version": 1, "services": [{"name": "a\\u0000", "frontends": []}]}',
    "half a surrogate": lambda: b'{"version": 1, "services": [{"name": "\\ud800", "frontends": []}]}',
    "half a surrogate for a key": lambda: b'{"version": 1, "services": [], "\\ud800": 1}',
    "cut off JSON": lambda: JSON_NATIVE,
    "cut off YAML": lambda: b"version: 1\nservices: [{name: a",
    "cut off keepalived": lambda: b"virtual_server 10.0.0.1 80 {\n  lb_algo rr\n",
    "nothing": lambda: b"",
    "spaces": lambda: b" \n\t\n",
    "null": lambda: b"null",
    "an error page": lambda: b"<!DOCTYPE html>\n<html><body>502 Bad Gateway</body></html>",
    "a complaint": lambda: b"error: You must be logged in to the server (Unauthorized)\n",
    "ranges": lambda: (
        b"version: 1\nservices:\n"
        + b"".join(
            b"- {name: s%d, frontends: ['10.0.%d.%d:1-65535/tcp']}\n" % (n, n >> 8, n & 255)
            for n in range(3000)
        )
    ),
    "many addresses of a group": lambda: (
        b"virtual_server_group g {\n" + b"2001:db8::0-ffff 80\n" * 1000 + b"}\nvirtual_server group g {\n}\n"
    ),
    "a tag of Python": lambda: b"version: !!python/object/apply:os.system ['true']\nservices: []",
    "many anchors": lambda: b"".join(b"a%d: &a%d 1\n" % (n, n) for n in range(50_000)) + b"a: *b",
    "many documents": lambda: b"---\n{}\n" * 100_000,
    "ten thousand endpoints of a slice": lambda: _cluster(1, 10_000, 1),
    "thirty thousand ports of a slice": lambda: _cluster(1, 1000, 30_000),
    "ten thousand ports of a slice": lambda: _cluster(1, 1000, 10_000),
    "a hundred ports of ten thousand endpoints": lambda: _cluster(10, 1000, 100, ports=100),
}


TOLD = ("ten thousand ports of a slice", "a hundred ports of ten thousand endpoints")
"""What an API server may well have: the Service is left out, with a warning."""


def _rss_mb() -> int:
    """The largest size so far. VmHWM and not ru_maxrss: that one is inherited from whoever started us."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) >> 10


def read(name: str) -> dict[str, object]:
    """What becomes of a case; the process ends by a signal if that takes more than CPU_LIMIT_S seconds of it."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    data = CASES[name]()
    start = time.process_time()
    message: str | None = None
    try:
        (found,) = read_inputs([("hostile", data)], Options())
        if name in TOLD and not found.services:
            message = next((each.text for each in found.notices if each.text.startswith("left out")), None)
    except UsageProblem as problem:
        message = problem.message
    return {"name": name, "message": message, "seconds": time.process_time() - start, "mb": _rss_mb()}


def main(names: list[str]) -> None:
    """Each case in a process of its own, which has all modules already."""
    for name in names or list(CASES):
        child = os.fork()
        if not child:
            try:
                print(json.dumps(read(name)), flush=True)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
