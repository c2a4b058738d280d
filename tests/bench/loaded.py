"""The states that are measured: svcctl loaded in this process's namespaces, filled with made-up bindings."""

from __future__ import annotations

import contextlib
import random
import subprocess
from struct import Struct
from typing import TYPE_CHECKING

from svcctl.host.socket_info import describe
from svcctl.model.binding import KEY
from svcctl.model.constants import IPV4, TCP
from svcctl.model.prefix import MAPPED, mask_address
from svcctl.state.bulk import replace_all
from svcctl.state.place import Place
from svcctl.state.session import open_reader
from svcctl.state.sockets import Offer, apply_register, plan_register
from svcctl.state.writer import open_writer
from tests.bench.processes import SVCCTL

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

PORT = 443
LABELS = 100
_U32 = Struct(">I")


class Loaded:
    """A loaded state directory."""

    def fill(self, keys: list[bytes]) -> None:
        """Make the bindings exactly these 24-byte keys, for the labels `label-0` and so on."""
        want = {key: f"label-{index % LABELS}" for index, key in enumerate(keys)}
        with open_writer(Place(), "bench") as writer:
            replace_all(writer, want)

    def register(self, listener: socket.socket) -> None:
        """Put one socket behind every label."""
        offer = Offer(listener.fileno(), describe(listener.fileno()))
        with open_writer(Place(), "bench") as writer:
            for label in range(LABELS):
                apply_register(writer, plan_register(writer, f"label-{label}", [offer]))

    @property
    def path(self) -> str:
        """The state directory."""
        with open_reader(Place()) as reader:
            return reader.path

    @property
    def generation(self) -> int:
        """meta.generation: moves with every writer that wrote."""
        with open_reader(Place()) as reader:
            return reader.generation()


@contextlib.contextmanager
def state(max_bindings: int = 1_000_000) -> Iterator[Loaded]:
    """`svcctl load`, and `svcctl unload` in the end."""
    quietly("load", "--max-bindings", str(max_bindings))
    try:
        yield Loaded()
    finally:
        quietly("unload", "--yes")


def quietly(*arguments: str) -> None:
    """Run svcctl; its notices matter only when it fails."""
    done = subprocess.run([SVCCTL, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"svcctl {' '.join(arguments)}: {done.stderr}")


def hosts(count: int, seed: int) -> list[bytes]:
    """Keys of `count` IPv4 addresses, all over the address space, on one TCP port."""
    chosen = random.Random(seed).sample(range(1 << 24, 224 << 24), count)
    return [KEY.pack(160, TCP, IPV4, PORT, MAPPED + _U32.pack(address)) for address in chosen]


def prefixes(count: int, seed: int) -> list[bytes]:
    """Keys of `count` IPv4 prefixes of 16 to 30 bits, the short ones rare as in a routing table."""
    source = random.Random(seed)
    found: dict[bytes, None] = {}
    while len(found) < count:
        length = min(30, max(16, int(source.gauss(25, 2))))
        address = MAPPED + _U32.pack(source.randrange(1 << 24, 224 << 24))
        found[KEY.pack(128 + length, TCP, IPV4, PORT, mask_address(address, 96 + length))] = None
    return list(found)


def an_address_in(key: bytes, source: random.Random) -> bytes:
    """A random address, 16 bytes, that the IPv4 binding with this key covers."""
    bits, _, _, _, address = KEY.unpack(key)
    (first,) = _U32.unpack(address[12:])
    return MAPPED + _U32.pack(first | source.getrandbits(32) & ((1 << (160 - bits)) - 1))
