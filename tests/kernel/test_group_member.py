"""What a member of the state's group may do without capabilities, what it may not, and that others see nothing.

Everything that is refused is tried in a child that has become uid 65534 for good, on every pin there is. Below
Linux 5.19 the member keeps CAP_BPF: without it no map can be read there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import platform
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml

import svcctl
from svcctl.bpf.errors import BpfError
from svcctl.bpf.lib import check, opts, require
from svcctl.bpf.link import Link, iter_links
from svcctl.bpf.map import Map
from svcctl.bpf.program import Program
from svcctl.cli.main import main
from svcctl.host.capability import sysctl
from svcctl.maps import catalog, layouts
from svcctl.state.collect import collect
from svcctl.state.place import Place
from tests.lib import stranger
from tests.lib.child import child, needs_root
from tests.lib.cli import is_written, process
from tests.lib.outgoing import cgroup
from tests.lib.stranger import GROUP, NEEDS_CAP_BPF, STRANGERS, as_stranger
from tests.lib.world import world as new_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lib.world import World

ALLOWED = "allowed"
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET = 0x10000000, 0x00020000, 0x40000000
PR_SET_DUMPABLE = 4
F_RDONLY, F_WRONLY = 1 << 3, 1 << 4
SYS_BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
# struct bpf_sk_lookup: family AF_INET, protocol TCP; nothing is bound to what the rest says.
CONTEXT = struct.pack("=Q2I56x", 0, 2, 6)
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module")
def loaded() -> Iterator[World]:
    """State with bindings, a socket and a destination without one, loaded for GROUP. Nobody changes it."""
    needs_root()
    serve = "keep.append(socket.create_server(('127.0.0.1', 8080)))"
    with new_world() as world, cgroup() as path, child(serve) as server:
        world.sh("ip link add group0 type veth peer name group1")
        for words in (
            ("load", "--group", str(GROUP)),
            (
                "attach",
                "cgroup",
                path,
                "--max-services",
                "100",
                "--max-backends",
                "100",
                "--max-sockets",
                "100",
            ),
            ("attach", "dev", "group0", "--role", "host", "--max-flows", "1000"),
            ("service", "add", "web", "--frontend", "10.96.0.1:80/tcp", "--backend", "127.0.0.1:8080"),
            ("bind", "web", "tcp", "127.0.0.1", "80"),
            ("bind", "web", "tcp", "127.1.0.0/16", "0"),
            ("bind", "dns", "udp", "::1", "53"),
            ("register-pid", str(server.pid), "web", "tcp", "127.0.0.1", "8080"),
        ):
            assert main(list(words)) == 0
        yield world


@pytest.fixture(scope="module")
def everybodys() -> Iterator[list[str]]:
    """`svcctl` as a command that any uid may run, wherever the checkout lies and whatever its modes are."""
    directory = tempfile.mkdtemp(prefix="svcctl-test-")
    try:
        for package in (svcctl, click, yaml):
            assert package.__file__
            source = Path(package.__file__).parent
            # With its __pycache__, or each run compiles; what another process is writing there has a number at its end.
            unfinished = shutil.ignore_patterns("*.pyc.*")
            shutil.copytree(source, f"{directory}/{source.name}", ignore=unfinished)
        extra = sys.modules.get("typing_extensions")
        if extra is not None and extra.__file__:
            shutil.copy(extra.__file__, directory)
        subprocess.run(["chmod", "-R", "a+rX", directory], check=True)
        code = f"import sys; sys.path.insert(0, {directory!r}); from svcctl.cli.main import main; sys.exit(main())"
        yield [os.path.realpath(sys.executable), "-I", "-c", code]
    finally:
        shutil.rmtree(directory)


def run(command: list[str], gid: int) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs svcctl as uid 65534 with a group."""

    def runner(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words],
            text=True,
            capture_output=True,
            check=False,
            cwd="/",
            preexec_fn=lambda: stranger.drop(gid, cap_bpf=NEEDS_CAP_BPF and gid == GROUP),
        )

    return runner


READING = (
    ("status",), ("attachments",), ("services",), ("frontends",), ("backends",), ("nat",), ("bindings",), ("nodes",),
    ("destinations",), ("conntrack",), ("affinity",), ("reverse",), ("doctor",), ("metrics",), ("export",),
    ("explain", "10.96.0.1:80/tcp"), ("explain", "10.96.0.1:80/tcp", "--from", "10.2.3.4"),
    ("explain", "127.0.0.1:81/tcp"), ("gc", "--dry-run"),
)  # fmt: skip


def test_from_another_namespace(loaded: World, everybodys: list[str]) -> None:
    """`--netns` of a namespace that a member cannot enter: what is in maps is shown, what is not is said."""
    runner, says = run(everybodys, GROUP), {}
    with tempfile.TemporaryDirectory(prefix="svcctl-test-") as directory, contextlib.ExitStack() as stack:
        os.chmod(directory, 0o755)
        where = Path(directory, "netns")
        where.touch()
        loaded.sh(f"mount --bind /proc/self/ns/net {where}")
        stack.callback(loaded.sh, f"umount {where}")
        problems: list[BaseException] = []

        def elsewhere() -> None:
            try:
                if _libc.unshare(CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "unshare")
                for words in READING:
                    done = runner(*words, "--netns", str(where))
                    assert done.returncode == 0, (words, done.stderr)
                    says[words] = done.stdout, done.stderr
            except BaseException as problem:
                problems.append(problem)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert not problems, problems
    assert "group0" in says["attachments",][0]
    assert "CAP_SYS_ADMIN" in says["explain", "127.0.0.1:81/tcp"][0]
    assert "not told what packets meet" in says["explain", "10.96.0.1:80/tcp", "--from", "10.2.3.4"][1]
    assert "not looked at: interfaces" in says["gc", "--dry-run"][1]
    members = json.loads(says["export",][0])["services"][0]["backends"]
    assert [one["local"] for one in members] == [False]
    assert "not looked at: addresses" in says["export",][1]


def outcome(attempt: Callable[..., Any], *args: Any) -> str:
    """ALLOWED, or the name of the errno it was refused with."""
    try:
        got = attempt(*args)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    if isinstance(got, Map | Program | Link):
        got.close()
    return ALLOWED


def outcomes(**attempts: tuple[Any, ...]) -> dict[str, str]:
    """`outcome` of each (function, arguments...), by name."""
    return {name: outcome(*attempt) for name, attempt in attempts.items()}


def libc(function: str, *words: object) -> int:
    result = int(getattr(_libc, function)(*words))
    if result < 0:
        raise OSError(ctypes.get_errno(), function)
    return result


MOUNT_BPFFS = (libc, "mount", b"bpf", b"/mnt", b"bpf", 0, None)


# What a member may do.

READERS = (
    ("bindings",),
    ("bindings", "-o", "json"),
    ("destinations", "-o", "json"),
    ("attachments", "-o", "json"),
    ("status", "-o", "json"),
    ("status",),
    ("export",),
    ("explain", "127.0.0.1:80/tcp", "-o", "json"),
    ("explain", "127.1.9.9:80/tcp", "-o", "json"),
    ("metrics",),
    ("services", "-o", "json"),
    ("frontends",),
    ("backends", "web"),
    ("nat", "-o", "yaml"),
    ("explain", "10.96.0.1:80/tcp", "-o", "json"),
    ("conntrack", "-o", "json"),
)


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_member_reads_what_root_reads(loaded: World, everybodys: list[str], words: tuple[str, ...]) -> None:
    if not is_written(f"svcctl.cli.commands.{words[0]}"):
        pytest.skip(f"{words[0]} is not written yet")
    mine = run(everybodys, GROUP)(*words)
    roots = subprocess.run([*everybodys, *words], text=True, capture_output=True, check=False, cwd="/")
    assert (mine.returncode, mine.stderr) == (0, "")
    assert roots.returncode == 0
    # Only root may ask whether a link is alive and whether there are programs of others; the rest is the same.
    if words[0] == "explain":
        assert json.loads(mine.stdout)["explain"] == [
            {key: value for key, value in one.items() if key != "foreign"}
            for one in json.loads(roots.stdout)["explain"]
        ]
    elif words[0] not in ("status", "attachments"):
        assert mine.stdout == roots.stdout
    assert "web" in mine.stdout or words[0] in ("attachments", "conntrack")


@pytest.mark.parametrize(
    "words",
    [
        ("bind", "web", "tcp", "127.0.0.2", "80", "--dry-run"),
        ("unbind", "web", "tcp", "127.0.0.1", "80", "--dry-run"),
        ("service", "add", "other", "--frontend", "10.96.0.2:80/tcp", "--dry-run"),
        ("backend", "drain", "web", "127.0.0.1:8080", "--after", "9", "--dry-run"),
        ("upgrade", "--dry-run"),
        ("upgrade", "--max-bindings", "2000", "--dry-run"),
        ("attach", "dev", "group0", "--role", "host", "--dry-run"),
        ("detach", "dev", "group0", "--dry-run"),
        ("conntrack", "flush", "--all", "--dry-run"),
    ],
    ids=" ".join,
)
def test_a_member_may_plan(loaded: World, everybodys: list[str], words: tuple[str, ...]) -> None:
    done = run(everybodys, GROUP)(*words)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_member_plans_gc_as_far_as_it_can_see(loaded: World, everybodys: list[str]) -> None:
    done = run(everybodys, GROUP)("gc", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "not looked at: leftovers and dead states" in done.stderr


@pytest.mark.quick
def test_a_member_can_collect(loaded: World) -> None:
    def work() -> list[object]:
        found = collect(Place())
        return [[one.label for one in found.destinations], found.consistent, found.attachments[0].up]

    assert as_stranger(work, cap_bpf=NEEDS_CAP_BPF) == [["dns", "web"], True, True]


# What a member may not do.


def pins(world: World) -> tuple[list[str], list[str], list[str]]:
    """Paths of map, program and link pins."""
    names = sorted(os.listdir(world.state_dir))
    maps = [f"{world.state_dir}/{name}" for name in names if name in catalog.MAPS]
    programs = [f"{world.state_dir}/{name}" for name in names if name.startswith("prog_")]
    links = [f"{world.state_dir}/{name}" for name in names if name.startswith("link_")]
    assert len(maps) == len(catalog.MAPS)
    assert programs
    assert links
    assert len(maps) + len(programs) + len(links) == len(names)
    return maps, programs, links


@pytest.mark.quick
def test_no_map_opens_for_writing(loaded: World) -> None:
    maps, _, _ = pins(loaded)

    def work() -> dict[str, dict[str, str]]:
        return {
            path: outcomes(
                read_write=(Map.open_pinned, path),
                write_only=(obj_get, path, F_WRONLY),
                read_only=(Map.open_pinned, path, True),
            )
            for path in maps
        }

    for path, got in as_stranger(work, cap_bpf=NEEDS_CAP_BPF).items():
        assert got == {"read_write": "EACCES", "write_only": "EACCES", "read_only": ALLOWED}, path


def obj_get(path: str, flags: int) -> None:
    """BPF_OBJ_GET with any flags."""
    os.close(check(require("bpf_obj_get_opts")(os.fsencode(path), opts("I", flags)), "open", path))


@pytest.mark.quick
def test_no_write_through_a_read_only_descriptor(loaded: World) -> None:
    maps, _, _ = pins(loaded)

    def work() -> dict[str, dict[str, str]]:
        found = {}
        for path in maps:
            with Map.open_pinned(path, read_only=True) as opened:
                key, value = bytes(opened.key_bytes), bytes(opened.value_bytes)
                found[path] = outcomes(
                    update=(opened.update, key, value),
                    update_many=(opened.update_many, key * 2, value * 2, 2),
                    delete=(opened.delete, key),
                    delete_many=(opened.delete_many, key * 2, 2),
                    take=(opened.lookup_and_delete, key),
                    freeze=(opened.freeze,),
                    by_id=(Map.open_id, opened.info.id),
                    again=(Map.open_pinned, f"/proc/self/fd/{opened.fd}"),
                )
        return found

    for path, got in as_stranger(work, cap_bpf=NEEDS_CAP_BPF).items():
        if NEEDS_CAP_BPF:
            got.pop("freeze")  # kernels that want CAP_BPF for it do not look at the descriptor
        # A map type without an operation says so before, or after, the right is looked at.
        assert ALLOWED not in got.values(), (path, got)
        assert got["update"] == got["by_id"] == "EPERM", (path, got)


@pytest.mark.quick
def test_no_program_and_no_link_opens_at_all(loaded: World) -> None:
    _, programs, links = pins(loaded)

    def work() -> dict[str, str]:
        found = {}
        for path in programs + links:
            for flags in (0, F_RDONLY, F_WRONLY):
                found[f"{path} {flags}"] = outcome(obj_get, path, flags)
        return found

    got = as_stranger(work, cap_bpf=NEEDS_CAP_BPF)
    # A link has no read-only and no write-only way in, not for root either.
    assert set(got.values()) <= {"EACCES", "EINVAL"}
    assert all(value == "EACCES" for name, value in got.items() if "/prog_" in name or name.endswith(" 0"))


@pytest.mark.quick
def test_no_program_runs(loaded: World) -> None:
    """BPF_PROG_TEST_RUN needs a descriptor: not from a pin, not from the ids that `programs` tells."""
    _, programs, _ = pins(loaded)
    (pin,) = (path for path in programs if path.endswith("/prog_dispatch"))
    with Program.open_pinned(pin) as root:
        number = root.info.id
        assert root.test_run(ctx_in=CONTEXT).retval == 1  # with a descriptor it could be run
    link_id = next(one.id for one in iter_links() if one.program_id == number)

    def work() -> dict[str, str]:
        with Map.open_pinned(f"{loaded.state_dir}/programs", read_only=True) as records:
            told = layouts.PROGRAM.unpack(records.lookup(bytes(4)) or b"").id
            found = outcomes(
                by_pin=(Program.open_pinned, pin, True),
                by_told_id=(Program.open_id, told),
                by_id=(Program.open_id, number),
                link_by_id=(Link.open_id, link_id),
                map_is_no_program=(run_descriptor, records.fd),
                walk=(list, iter_links()),
            )
        if SYS_BPF and not NEEDS_CAP_BPF and sysctl("kernel.unprivileged_bpf_disabled") != "0":
            found["load_own"] = outcome(load_program)
        return found

    got = as_stranger(work, cap_bpf=NEEDS_CAP_BPF)
    assert got.pop("by_pin") == "EACCES"
    assert got.pop("map_is_no_program") == "EINVAL"
    assert set(got.values()) == {"EPERM"}, got


def run_descriptor(fd: int) -> None:
    """BPF_PROG_TEST_RUN on any descriptor."""
    settings = opts("2P2I2P3Ii4I", *([0] * 14))
    check(require("bpf_prog_test_run_opts")(fd, settings), "test run", f"descriptor {fd}")


def load_program() -> None:
    """BPF_PROG_LOAD of `return 0` as a socket filter: with a program of one's own a map could be written."""
    code = ctypes.create_string_buffer(bytes([0xB7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0]))
    text = ctypes.create_string_buffer(b"GPL")
    words = (
        1,
        2,
        ctypes.addressof(code),
        ctypes.addressof(text),
    )  # BPF_PROG_TYPE_SOCKET_FILTER, 2 instructions
    attributes = ctypes.create_string_buffer(128)
    struct.pack_into("=2I2Q", attributes, 0, *words)
    libc("syscall", SYS_BPF, 5, attributes, 128)


@pytest.mark.quick
def test_no_second_pin_anywhere(loaded: World) -> None:
    """A pin of one's own could be opened for writing: so there must be no bpffs directory to put it in."""
    maps, _, _ = pins(loaded)
    directories = [path for path, _, _ in os.walk(loaded.bpffs)]
    assert len(directories) == 2

    def work() -> dict[str, str]:
        found = {}
        with Map.open_pinned(f"{loaded.state_dir}/ports", read_only=True) as opened:
            for directory in directories:
                found[directory] = outcome(opened.pin, f"{directory}/again")
                found[f"{directory} mkdir"] = outcome(os.mkdir, f"{directory}/mine")
                found[f"{directory} chmod"] = outcome(os.chmod, directory, 0o777)
            for path in maps:
                found[f"{path} chmod"] = outcome(os.chmod, path, 0o666)
                found[f"{path} unlink"] = outcome(os.unlink, path)
                found[f"{path} link"] = outcome(os.link, path, f"{loaded.bpffs}/mine")
                found[f"{path} rename"] = outcome(os.rename, path, f"{loaded.bpffs}/mine")
        return found

    got = as_stranger(work, cap_bpf=NEEDS_CAP_BPF)
    assert set(got.values()) <= {"EACCES", "EPERM"}, got
    assert {stat.S_IMODE(os.lstat(path).st_mode) for path in maps} == {0o640}


@pytest.mark.quick
def test_no_bpffs_of_ones_own(loaded: World) -> None:
    """Not in a user namespace either, where one has all capabilities."""

    def work() -> dict[str, str]:
        _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after any exec: else /proc/self/uid_map is root's
        with Map.open_pinned(f"{loaded.state_dir}/ports", read_only=True) as opened:
            found = outcomes(mount=MOUNT_BPFFS)
            try:
                libc("unshare", CLONE_NEWUSER | CLONE_NEWNS)
                Path("/proc/self/uid_map").write_text(f"0 {stranger.UID} 1")
            except OSError:
                return found  # no user namespaces for everybody on this host
            found.update(
                outcomes(
                    mount_inside=MOUNT_BPFFS,
                    pin_inside=(opened.pin, f"{loaded.bpffs}/again"),
                    write_inside=(Map.open_pinned, f"{loaded.state_dir}/ports"),
                    by_id_inside=(Map.open_id, opened.info.id),
                )
            )
        return found

    got = as_stranger(work, cap_bpf=NEEDS_CAP_BPF)
    assert set(got.values()) <= {"EACCES", "EPERM"}, got


@pytest.mark.quick
def test_no_lock(loaded: World) -> None:
    """A reader that could lock the directory could hold every writer up, for good."""

    def work() -> dict[str, str]:
        found = {}
        for path in (loaded.state_dir, loaded.bpffs):
            found[f"{path} list"] = outcome(os.listdir, path)
            for name, flags in (("read", os.O_RDONLY), ("path", os.O_PATH)):
                for kind, operation in (("exclusive", fcntl.LOCK_EX), ("shared", fcntl.LOCK_SH)):
                    found[f"{path} {name} {kind}"] = outcome(lock, path, flags, operation)
        return found

    got = as_stranger(work, cap_bpf=NEEDS_CAP_BPF)
    # Through O_PATH the directory can be named, but not locked.
    assert {value for name, value in got.items() if " path " in name} == {"EBADF"}
    assert {value for name, value in got.items() if " path " not in name} == {"EACCES"}


def lock(path: str, flags: int, operation: int) -> None:
    fd = os.open(path, flags | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    finally:
        os.close(fd)


@pytest.mark.quick
@pytest.mark.parametrize("gid", [GROUP, STRANGERS])
def test_nobody_takes_the_name_before_load(world: World, gid: int) -> None:
    name = world.state_dir

    def work() -> dict[str, str]:
        return outcomes(
            mkdir=(os.mkdir, name),
            symlink=(os.symlink, "/tmp", name),
            temporary=(os.mkdir, f"{world.bpffs}/svcctl_tmp_1_1"),
        )

    assert set(as_stranger(work, gid).values()) == {"EACCES"}
    done = process("load", "--group", str(GROUP))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", ["1777", "0777", "0731", "0770"])
def test_a_root_that_strangers_can_write_is_refused(world: World, mode: str) -> None:
    os.chmod(world.bpffs, int(mode, 8))
    done = process("load", "--group", str(GROUP))
    assert done.returncode == 4
    assert world.bpffs in done.stderr
    assert not os.path.exists(world.state_dir)


def test_a_closed_root_is_made_searchable_and_no_more(world: World) -> None:
    os.chmod(world.bpffs, 0o700)
    done = process("load", "--group", str(GROUP))
    assert done.returncode == 0, done.stderr
    assert "searchable" in done.stderr
    assert stat.S_IMODE(os.stat(world.bpffs).st_mode) == 0o711


# Others.


@pytest.mark.quick
def test_others_see_nothing(loaded: World) -> None:
    maps, programs, links = pins(loaded)

    def work() -> dict[str, str]:
        found = outcomes(list=(os.listdir, loaded.state_dir), root=(os.listdir, loaded.bpffs))
        for path in maps + programs + links:
            found[f"{path} stat"] = outcome(os.stat, path)
            found[f"{path} get"] = outcome(obj_get, path, F_RDONLY)
        found["unknown"] = outcome(os.stat, f"{loaded.state_dir}/no_such_pin")
        return found

    refusals = {"EACCES", "EPERM"} if NEEDS_CAP_BPF else {"EACCES"}  # there bpf(2) itself says EPERM first
    assert set(as_stranger(work, STRANGERS).values()) <= refusals


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_others_are_told_so(loaded: World, everybodys: list[str], words: tuple[str, ...]) -> None:
    if not is_written(f"svcctl.cli.commands.{words[0]}"):
        pytest.skip(f"{words[0]} is not written yet")
    done = run(everybodys, STRANGERS)(*words)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "--group" in done.stderr


WRITERS = (
    ("bind", "mine", "tcp", "127.0.0.9", "80"),
    ("unbind", "web", "tcp", "127.0.0.1", "80"),
    ("unregister", "web", "ipv4", "tcp"),
    ("service", "add", "mine", "--frontend", "10.96.0.2:80/tcp"),
    ("service", "delete", "web"),
    ("backend", "delete", "web", "127.0.0.1:8080", "--terminate"),
    ("detach", "cgroup"),
    ("gc",),
    ("unload", "--yes"),
    ("upgrade",),
    ("load",),
)


@pytest.mark.parametrize("gid", [GROUP, STRANGERS])
@pytest.mark.parametrize("words", WRITERS, ids=" ".join)
def test_writing_is_for_root(loaded: World, everybodys: list[str], words: tuple[str, ...], gid: int) -> None:
    before = process("export" if is_written("svcctl.cli.commands.export") else "bindings").stdout
    done = run(everybodys, gid)(*words)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert process("export" if is_written("svcctl.cli.commands.export") else "bindings").stdout == before


def test_outcome_tells() -> None:
    assert outcome(lambda: None) == ALLOWED

    def refused() -> None:
        raise BpfError(errno.EPERM, "open", "x")

    assert outcome(refused) == "EPERM"
