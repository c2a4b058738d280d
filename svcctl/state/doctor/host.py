"""Doctor's lines about the process and the host: capabilities, the BPF file system, svcctl's own objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.bpf.btf import Btf
from svcctl.bpf.errors import BpfError
from svcctl.errors import SvcctlError
from svcctl.maps import enums, layouts, packet_layouts, service_layouts
from svcctl.state.doctor.line import FAIL, OK, WARN, Line
from svcctl.state.programs import object_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcctl.state.doctor.probe import Probe

NEEDED = {
    "CAP_BPF": "load programs and make maps",
    "CAP_NET_ADMIN": "attach them",
}
USEFUL = {
    "CAP_SYS_ADMIN": "enter other network namespaces, mount bpffs, look up programs by id",
    "CAP_SYS_PTRACE": "take sockets of other users' processes (register-pid)",
}
OBJECTS = ("state", "dispatch", "copy", "connect", "packet", "abi")
LAYOUTS = (*layouts.ALL, *service_layouts.ALL, *packet_layouts.ALL)


def lines(probe: Probe) -> Iterator[Line]:
    """Capabilities, bpffs, mount namespace, objects, layouts."""
    yield _capabilities(probe)
    yield _bpffs(probe)
    yield _bpffs_mode(probe)
    yield _mount_namespace(probe)
    yield _objects()
    yield _layouts()


def _capabilities(probe: Probe) -> Line:
    held = probe.capabilities()
    missing = {name: what for name, what in (NEEDED | USEFUL).items() if name not in held}
    if not missing:
        return Line("capabilities", OK, ", ".join(NEEDED | USEFUL))
    text = "; ".join(f"{name} is missing, to {what}" for name, what in missing.items())
    if not probe.is_root():
        return Line(
            "capabilities", WARN, text, "listings need only the state's group; changes need root: try sudo"
        )
    status = FAIL if missing.keys() & NEEDED.keys() else WARN
    return Line(
        "capabilities", status, text, "root without capabilities: a container or a unit that drops them?"
    )


def _bpffs(probe: Probe) -> Line:
    path = probe.place.bpffs
    root = probe.root()
    if root is None:
        return Line(
            "bpffs", FAIL, f"{path}: no such directory", "--bpffs names where a BPF file system is mounted"
        )
    if not root.is_bpffs:
        return Line("bpffs", FAIL, f"{path}: no BPF file system", "'svcctl load' mounts one")
    return Line("bpffs", OK, f"mounted on {path}")


def _bpffs_mode(probe: Probe) -> Line:
    name, path, root = "bpffs mode", probe.place.bpffs, probe.root()
    if root is None or not root.is_bpffs:
        return Line(name, WARN, "not looked at: there is none")
    text = f"{path} has mode {root.mode:04o}, owner {root.uid}"
    if root.uid != 0:
        return Line(name, FAIL, f"{text}: who owns it can replace what is in it", f"chown root {path}")
    if root.mode & 0o022:
        return Line(
            name,
            WARN,
            f"{text}: others can pin there, and make svcctl's directory first",
            f"chmod go-w {path}",
        )
    return Line(name, OK, text)


def _mount_namespace(probe: Probe) -> Line:
    name = "mount namespace"
    if probe.in_pid1_mount_namespace():
        return Line(name, OK, "the host's: what is mounted and pinned here stays")
    return Line(
        name,
        WARN,
        "not the host's: a BPF file system mounted here goes with it",
        "instead of 'ip netns exec NAME svcctl ...': svcctl --netns /run/netns/NAME ...",
    )


def _objects() -> Line:
    paths = []
    for name in OBJECTS:
        try:
            path = object_path(name)
            Btf.from_object(path)
        except SvcctlError as error:
            return Line("objects", FAIL, error.message, error.hint)
        except (BpfError, OSError) as error:
            return Line("objects", FAIL, str(error), "'make build' compiles it anew; packages carry it")
        paths.append(path)
    return Line("objects", OK, f"{', '.join(OBJECTS)} beside {paths[0]}")


def _layouts() -> Line:
    try:
        differences = layout_differences([object_path(name) for name in OBJECTS])
    except (SvcctlError, BpfError, OSError) as error:
        return Line("layouts", FAIL, f"cannot be compared: {error}", "'make build' compiles the objects anew")
    if differences:
        return Line(
            "layouts",
            FAIL,
            "; ".join(differences),
            "objects and program are of different versions: 'make build', or install the package anew",
        )
    return Line("layouts", OK, f"{len(LAYOUTS)} structs and {len(enums.ALL)} enums are those of the objects")


def layout_differences(paths: list[str]) -> list[str]:
    """Where the mirrors of svcctl.maps differ from the BTF of the objects, which must name each of them."""
    found: list[str] = []
    seen: set[str] = set()
    for path in paths:
        btf = Btf.from_object(path)
        names = set(btf.names())
        for layout in LAYOUTS:
            if layout.name in names:
                seen.add(layout.name)
                struct = btf.struct(layout.name)
                have = [(field.name, field.offset, field.size) for field in struct.fields]
                if struct.size != layout.size or have != layout.fields():
                    found.append(f"struct {layout.name} in {path} is another")
        for name, members in enums.ALL.items():
            if name in names:
                seen.add(name)
                if btf.enum(name) != members:
                    found.append(f"enum {name} in {path} is another")
    wanted = [*(layout.name for layout in LAYOUTS), *enums.ALL]
    return found + [f"{name} is in no object" for name in wanted if name not in seen]
