"""Runs one command in a guest with another kernel and this machine's own file tree.

qemu interprets every instruction (TCG): it needs no virtualisation, and is 16 to 25 times slower. /dev/kvm is
not used even where there is one: nested or paravirtual ones accept a stock kernel and then hang. The cloud
kernels have virtiofs and no 9p; virtiofsd serves `/` from a read-only bind, so the guest cannot write.
"""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.matrix.kernels import Kernel

GUEST = Path(__file__).parent / "guest"
MODULES = ("virtio_pci", "virtio_console", "overlay", "virtiofs")
VIRTIOFSD = ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd")
MEMORY_MIB = 2048
PORTS = ("out", "code", "report")
# Ends our helpers with us, however we end.
BOUND = ("setpriv", "--pdeathsig", "KILL", "--")


class VmError(Exception):
    """The guest could not be started on this machine."""


class Outcome(NamedTuple):
    """What came back: `code` is None after a panic or a timeout, `console` is the kernel's log."""

    code: int | None
    output: str
    report: bytes
    console: str
    seconds: float
    trouble: str


def run(kernel: Kernel, command: Sequence[str], *, timeout_s: float, shares: Sequence[Path] = ()) -> Outcome:
    """Boot `kernel`, run `command` as root in the current directory, power off.

    The command may write /run/guest/report; its bytes come back in the outcome. `shares` are the paths it
    needs; those on another file system than `/` are shared one by one. Raises VmError.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="svcctl-vm-") as name, contextlib.ExitStack() as stack:
        scratch = Path(name)
        root_device = os.stat("/").st_dev
        separate = sorted({path.resolve() for path in shares if path.stat().st_dev != root_device})
        _initramfs(scratch, kernel, command, separate)
        arguments = _machine(kernel, scratch)
        for number, path in enumerate([Path("/"), *separate]):
            socket = stack.enter_context(_share(scratch, number, path))
            arguments += ["-chardev", f"socket,id=fs{number},path={socket}"]
            arguments += [
                "-device",
                f"vhost-user-fs-pci,chardev=fs{number},tag=share{number},queue-size=1024",
            ]
        with open(scratch / "qemu", "wb") as log:
            qemu = subprocess.Popen(
                [*BOUND, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
            trouble = ""
            try:
                qemu.wait(timeout_s)
            except subprocess.TimeoutExpired:
                trouble = f"no end within {timeout_s:.0f} s"
            finally:
                qemu.kill()
                qemu.wait()
        code = _text(scratch / "code").strip()
        if not trouble and not code.isdigit():
            trouble = f"the guest ended without an exit code; qemu: {_text(scratch / 'qemu').strip()!r}"
        return Outcome(
            code=int(code) if code.isdigit() else None,
            output=_text(scratch / "out"),
            report=(scratch / "report").read_bytes() if (scratch / "report").exists() else b"",
            console=_text(scratch / "console"),
            seconds=time.monotonic() - started,
            trouble=trouble,
        )


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _machine(kernel: Kernel, scratch: Path) -> list[str]:
    arguments = [
        "qemu-system-x86_64",
        "-M",
        "q35,memory-backend=memory",
        "-accel",
        "tcg",
        "-cpu",
        "max,la57=off",
    ]
    arguments += ["-smp", "2", "-m", str(MEMORY_MIB)]
    arguments += [
        "-object",
        f"memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on",
    ]  # virtiofs needs it
    arguments += ["-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot"]
    arguments += ["-kernel", str(kernel.directory / f"boot/vmlinuz-{kernel.release}")]
    arguments += ["-initrd", str(scratch / "initramfs"), "-serial", f"file:{scratch}/console"]
    # mitigations and kaslr off: speed. Warnings are wanted on the console, everyday messages are not. Not the
    # TSC: a guest measures its frequency while it boots, and on a busy machine is wrong by a factor.
    arguments += [
        "-append",
        "console=ttyS0 quiet loglevel=5 panic=-1 nokaslr mitigations=off tsc=unstable clocksource=hpet",
    ]
    # Files, not stdio: at end of file on stdin qemu closes the port and the guest's writes block.
    arguments += ["-device", f"virtio-serial-pci,max_ports={len(PORTS) + 1}"]
    for port in PORTS:
        arguments += ["-chardev", f"file,id={port},path={scratch}/{port}"]
        arguments += ["-device", f"virtserialport,chardev={port},name={port}"]
    return arguments


@contextlib.contextmanager
def _share(scratch: Path, number: int, path: Path) -> Iterator[Path]:
    """Serve `path`, bound read-only in a mount namespace of its own, on a socket."""
    virtiofsd = next(filter(os.path.exists, VIRTIOFSD), None)
    if virtiofsd is None:
        raise VmError("no virtiofsd: install the package qemu-system-x86 (Debian 12) or virtiofsd (later)")
    socket, bound = scratch / f"share{number}.socket", scratch / f"share{number}"
    bound.mkdir()
    # It keeps a descriptor for each file the guest knows, and may lack the right to raise its limit.
    script = 'ulimit -n "$(ulimit -Hn)"; mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" || exit'
    script += '; shift 2; exec "$@"'
    command = [*BOUND, "unshare", "-m", "--propagation", "private"]
    command += ["sh", "-c", script, "sh", str(path), str(bound)]
    command += [virtiofsd, f"--socket-path={socket}", "-o", f"source={bound}", "-o", "cache=always"]
    log = scratch / f"share{number}.log"
    with open(log, "wb") as output:
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while not socket.exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise VmError(f"virtiofsd did not start for {path}: {_text(log)}")
            time.sleep(0.02)
        yield socket
    finally:
        daemon.terminate()
        daemon.wait()


def _initramfs(scratch: Path, kernel: Kernel, command: Sequence[str], separate: Sequence[Path]) -> None:
    """Pack busybox, the modules the root file system needs in the order to insert them, and the command."""
    root = scratch / "initramfs.d"
    for name in ("bin", "dev", "proc", "sys", "host", "layer", "new", "modules", "guest"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise VmError("no busybox: install the package busybox-static")
    shutil.copy(busybox, root / "bin/busybox")
    shutil.copy(GUEST / "init", root / "init")
    (root / "init").chmod(0o755)
    shutil.copy(GUEST / "main", root / "guest/main")
    settings = {
        "KERNEL_DIRECTORY": kernel.directory,
        "RELEASE": kernel.release,
        "SHARES": " ".join(map(str, separate)),
    }
    lines = [f"{name}={shlex.quote(str(value))}" for name, value in settings.items()]
    (root / "guest/settings").write_text("\n".join(lines) + "\n")
    (root / "guest/command").write_text(f"cd {shlex.quote(os.getcwd())}\nexec {shlex.join(command)}\n")
    for number, module in enumerate(_modules(kernel)):
        (root / f"modules/{number:02}-{module.name.partition('.')[0]}.ko").write_bytes(_unpacked(module))
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    with open(scratch / "initramfs", "wb") as archive:
        subprocess.run(
            [busybox, "cpio", "-o", "-H", "newc"],
            cwd=root,
            input="\n".join(names).encode(),
            stdout=archive,
            stderr=subprocess.DEVNULL,
            check=True,
        )


def _modules(kernel: Kernel) -> list[Path]:
    """List the module files to insert, dependencies first; built-in ones are left out."""
    found: dict[Path, None] = {}
    for module in MODULES:
        command = ["modprobe", "-d", str(kernel.directory), "-S", kernel.release, "--show-depends", module]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise VmError(f"{kernel.release} has no module {module}: {done.stderr.strip()}")
        for line in done.stdout.splitlines():
            kind, _, path = line.strip().partition(" ")
            if kind == "insmod":
                found[Path(path.split()[0])] = None
    return list(found)


def _unpacked(module: Path) -> bytes:
    packed = module.read_bytes()
    if module.suffix == ".xz":
        return lzma.decompress(packed)
    if module.suffix == ".gz":
        return gzip.decompress(packed)
    if module.suffix == ".zst":
        return subprocess.run(["zstd", "-qdc"], input=packed, capture_output=True, check=True).stdout
    return packed
