"""The programs' hash of flows is the one of the model: every node has to come to the same slot."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from svcctl.bpf.object import Object
from svcctl.model.flow_hash import cookie_hash, flow_hash, slot_of
from svcctl.model.maglev import SIZES
from tests.lib.bpf_source import compile_program

FLOW = struct.Struct("=16s16sHHIQIIQQ")


def test_program_and_model_agree(tmp_path: Path) -> None:
    """2,000 flows: hash, slot, and the hash of a cookie."""
    chosen = random.Random(7)
    with Object.open(compile_program("flow_hash", tmp_path)) as loaded:
        loaded.load()
        with loaded.program("hash_flow") as program, loaded.map("flows") as flows:
            for _ in range(2_000):
                client, frontend = chosen.randbytes(16), chosen.randbytes(16)
                ports = chosen.randrange(65_536), chosen.randrange(65_536)
                protocol, size = chosen.choice((6, 17)), chosen.choice(SIZES)
                cookie = chosen.getrandbits(chosen.choice((8, 32, 64)))
                flows.update(bytes(4), FLOW.pack(client, frontend, *ports, protocol, cookie, size, 0, 0, 0))
                program.test_run(data=bytes(64))
                value = flows.lookup(bytes(4))
                assert value is not None
                *_, slot, found, of_cookie = FLOW.unpack(value)
                assert found == flow_hash(client, frontend, *ports, protocol)
                assert slot == slot_of(found, size) < size
                assert of_cookie == cookie_hash(cookie)
