"""What every act needs: a private network and bpffs, commands shown before they run, answers judged."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BOLD, GREEN, RED, PLAIN = ("\x1b[1m", "\x1b[32m", "\x1b[31m", "\x1b[0m") if sys.stdout.isatty() else ("",) * 4
SVCCTL = str(Path(sys.executable).parent / "svcctl")


class Wrong(Exception):
    """An answer that is not the expected one: the act ends."""


class Stage:
    """Runs inside fresh network and mount namespaces (see scripts/demo)."""

    def __init__(self, title: str) -> None:
        self.directory = tempfile.mkdtemp(prefix="svcctl-demo-")
        self.children: list[subprocess.Popen[bytes]] = []
        print(f"\n{BOLD}== {title} =={PLAIN}")
        for command in ("mount -t bpf -o mode=0711 bpf /sys/fs/bpf", "ip link set lo up"):
            subprocess.run(command.split(), check=True)
        os.environ["PATH"] = f"{Path(SVCCTL).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self.children:
            child.terminate()
            child.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def say(self, text: str) -> None:
        """A line about what comes next."""
        print(f"\n{BOLD}# {text}{PLAIN}")

    def run(self, command: str, *, expect: str | Sequence[str] | None = None, code: int = 0) -> str:
        """Show a shell command, run it, show its output; Wrong unless it ends with `code` and prints `expect`."""
        print(f"{GREEN}${PLAIN} {command}", flush=True)
        done = subprocess.run(command, shell=True, text=True, capture_output=True, timeout=60)
        output = done.stdout + done.stderr
        print(output, end="" if output.endswith("\n") or not output else "\n", flush=True)
        if done.returncode != code:
            raise Wrong(f"{command!r} ended with {done.returncode}, expected {code}")
        for wanted in [expect] if isinstance(expect, str) else expect or ():
            if wanted not in output:
                raise Wrong(f"{command!r}: expected to see {wanted!r}")
        return done.stdout

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Show a command and start it in the background; it ends with the act."""
        print(f"{GREEN}${PLAIN} {command} &", flush=True)
        child = subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.children.append(child)
        return child

    def file(self, name: str, content: str) -> str:
        """Make a file in the act's own directory; returns its path."""
        path = Path(self.directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return str(path)


class Requests(threading.Thread):
    """Asks a URL over and over with a new connection each time, until stopped; counts answers and failures."""

    def __init__(self, host: str, port: int, path: str, expect: bytes) -> None:
        super().__init__(daemon=True)
        self.host, self.port, self.path, self.expect = host, port, path, expect
        self.answered = 0
        self.failed: list[str] = []
        self._ended = threading.Event()

    def run(self) -> None:
        """One request after the other, at most a minute."""
        import http.client

        until = time.monotonic() + 60
        while not self._ended.is_set() and time.monotonic() < until:
            try:
                connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
                connection.request("GET", self.path)
                body = connection.getresponse().read()
                connection.close()
                if self.expect not in body:
                    raise OSError(f"unexpected answer {body[:60]!r}")
                self.answered += 1
            except OSError as error:
                self.failed.append(str(error))

    def finish(self) -> str:
        """Stop and tell; Wrong if a request failed or none was made."""
        self._ended.set()
        self.join()
        if self.failed:
            raise Wrong(
                f"{len(self.failed)} of {self.answered + len(self.failed)} requests failed: {self.failed[0]}"
            )
        if not self.answered:
            raise Wrong("no request was answered")
        return f"{self.answered} requests meanwhile, 0 failed"


def play(act: object) -> int:
    """Run an act's function; exit code of the process."""
    try:
        act()  # type: ignore[operator]
    except Wrong as problem:
        print(f"{RED}{BOLD}NOT AS EXPECTED:{PLAIN} {problem}", flush=True)
        return 1
    return 0
