"""A fork server for svcctl commands: each runs in a process of its own, without the 80 ms of a new interpreter.

The server imports everything once and then forks a process for each command line, if wanted with strace
attached from before its first instruction. Fault injection needs thousands of these.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.lib.cli import ROOT, clean_environment

_SERVER = r"""
import errno, grp, hashlib, importlib, json, os, pkgutil, select, subprocess, sys

def load_everything():
    import svcctl
    for found in pkgutil.walk_packages(svcctl.__path__, "svcctl."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    for name in sys.argv[1:]:
        importlib.import_module(name)

def child(request, wait_fd, out, err):
    from svcctl.cli.main import main
    os.dup2(request["stdin"], 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["svcctl", *request["args"]]
    code = 70
    try:
        exec(request["setup"], {})
        if wait_fd is not None:
            gate = select.poll()
            gate.register(wait_fd, select.POLLHUP)
            gate.poll()
        code = main()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)

def start(request, out, err):
    traced = bool(request["strace"])
    gate = os.pipe() if traced else (None, None)
    pid = os.fork()
    if pid == 0:
        if traced:
            os.close(gate[1])
        child(request, gate[0], out, err)
    if not traced:
        return pid, None
    os.close(gate[0])
    tracer = subprocess.Popen(["strace", *request["strace"], "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    line = tracer.stderr.readline()
    os.close(gate[1])
    return pid, (tracer, line)

def text(fd):
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    return data.decode("utf-8", "replace")

def serve():
    load_everything()
    for number in (2, 15):
        import signal
        signal.signal(number, signal.SIG_DFL)
    running = {}
    reply = os.fdopen(os.dup(1), "w")
    null = os.open("/dev/null", os.O_RDWR)
    requests = os.fdopen(os.dup(0), "r")
    os.dup2(null, 0)
    os.dup2(null, 1)
    print(json.dumps("ready"), file=reply, flush=True)
    for line in requests:
        request = json.loads(line)
        if "wait" in request:
            pid = request["wait"]
            tracer, out, err = running.pop(pid)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said = ""
            if tracer:
                said = tracer[1] + tracer[0].stderr.read()
                tracer[0].wait()
                tracer[0].stderr.close()
            answer = {"code": code, "out": text(out), "err": text(err), "strace": said}
        else:
            out, err = os.memfd_create("out"), os.memfd_create("err")
            request["stdin"] = null
            pid, tracer = start(request, out, err)
            running[pid] = tracer, out, err
            answer = pid
        print(json.dumps(answer), file=reply, flush=True)

serve()
"""


class Done(NamedTuple):
    """How a command ended: exit code (negative: the signal), stdout, stderr, what strace said on its stderr."""

    code: int
    out: str
    err: str
    strace: str

    @property
    def all(self) -> str:
        """Everything it wrote, for messages."""
        return f"exit {self.code}\n{self.out}{self.err}"


class Forge:
    """The running server. `setup` is Python that each process runs before its command (patches, for example)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.setup = ""
        self.env: dict[str, str] = {}

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the fork server has died"
        return json.loads(line)

    def start(self, *args: str, strace: tuple[str, ...] = (), setup: str | None = None) -> int:
        """Start a command; its pid. `strace`: options of the strace to attach. Every start needs a `wait`."""
        request = {
            "args": args,
            "strace": strace,
            "setup": self.setup if setup is None else setup,
            "env": {**clean_environment(), **self.env},
        }
        pid: int = self._ask(request)
        return pid

    def wait(self, pid: int) -> Done:
        """Wait for a started command's end."""
        return Done(**self._ask({"wait": pid}))

    def run(self, *args: str, strace: tuple[str, ...] = (), setup: str | None = None) -> Done:
        """Run a command to its end."""
        return self.wait(self.start(*args, strace=strace, setup=setup))

    def ok(self, *args: str) -> Done:
        """Run a command that must end with 0."""
        done = self.run(*args)
        assert done.code == 0, f"svcctl {' '.join(args)}: {done.all}"
        return done


@contextlib.contextmanager
def forge(*preload: str) -> Iterator[Forge]:
    """Start a server in the calling thread's namespaces; it imports `preload` besides all of svcctl."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, *preload],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline()) == "ready"
        yield Forge(process)
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def own_objects() -> dict[str, str]:
    """The variable that names another directory of objects, if this run has one."""
    value = os.environ.get("SVCCTL_OBJECTS")
    return {"SVCCTL_OBJECTS": value} if value else {}
