"""What a test session must not leave behind: orphaned processes, mounts, pins, cgroups, network namespaces."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
# The file systems that svcctl and its tests mount; others come and go without us.
OURS = frozenset({"bpf", "nsfs", "cgroup2"})
_watcher: int | None = None
_numbers = itertools.count()


def adopt_orphans() -> None:
    """Fork: the child goes on as the session, the parent only waits, and inherits what the child orphans.

    So a server that a test forgot is found at the end (`processes`), and one that ends is reaped at once as
    init would do: a zombie would look alive to the tests. The parent ends with the child's exit code.
    """
    global _watcher
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    watcher = os.getpid()
    session = os.fork()
    if session == 0:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        _watcher = watcher
        os.environ["TEST_SESSION"] = str(os.getpid())
        # A background job of a shell has these ignored, and so would everything that a test starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        return
    for number in (signal.SIGINT, signal.SIGQUIT):  # the terminal sends them to the child as well
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(session, received))
    while True:
        pid, status = os.wait()
        if pid == session:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def processes() -> list[str]:
    """Describe each process that is a child of this session, or was orphaned by it or its workers, and still runs.

    One that is about to end gets a moment for it.
    """
    for _ in range(600):
        found = _processes()
        if not found:
            break
        time.sleep(0.1)
    return found


def _processes() -> list[str]:
    parents = {os.getpid(), _watcher}
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat, open(f"/proc/{name}/cmdline") as command:
                state, parent = stat.read().rpartition(")")[2].split()[:2]
                line = command.read().replace("\0", " ").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) in parents and int(name) != os.getpid() and state != "Z":
            found.append(f"process {name}: {line}")
    return found


def leavings() -> frozenset[str]:
    """Return one line for each mount of ours, object pinned in bpffs, cgroup, and named network namespace."""
    found = []
    scratch = tempfile.gettempdir().rstrip("/") + "/svcctl-"
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            fields = line.split()
            kind, where = fields[fields.index("-") + 1], fields[4]
            if kind in OURS or where.startswith(scratch):
                found.append(f"mount {where} ({kind})")
            if kind == "cgroup2":
                found += [f"cgroup {where}/{name}" for name in os.listdir(where) if _is_left(name)]
            if kind == "bpf":
                found += [
                    f"pinned {path}/{name}" for path, dirs, files in os.walk(where) for name in dirs + files
                ]
    for directory in ("/run/netns", "/run/svcctl"):
        if os.path.isdir(directory):
            found += [f"left {directory}/{name}" for name in os.listdir(directory)]
    return frozenset(found)


def _is_left(cgroup: str) -> bool:
    """Whether a test of this session made it (`cgroup_name`): at the end of the session none is wanted any more."""
    parts = cgroup.split("-")
    return len(parts) == 5 and parts[0] == "svcctl" and parts[2] == _session()


def _session() -> str:
    """The process that this session began with; its workers have it from their environment."""
    return os.environ.setdefault("TEST_SESSION", str(os.getpid()))


def cgroup_name(kind: str) -> str:
    """A name for a cgroup that nobody else has: svcctl-KIND-SESSION-PROCESS-NUMBER."""
    return f"svcctl-{kind}-{_session()}-{os.getpid()}-{next(_numbers)}"
