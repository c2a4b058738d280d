"""Act two: a service address that exists nowhere, balanced over real servers in the socket calls."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from acts.stage import Stage, Wrong, play

SERVICE = "10.96.0.10"
RESOLVER = "10.96.0.53"
WEB = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = (sys.argv[3] + "\\n").encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Answer).serve_forever()
"""
# Answers every question for an A record with 192.0.2.53.
DNS = """
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], int(sys.argv[2])))
while True:
    q, peer = s.recvfrom(2048)
    end = q.index(0, 12) + 5
    head = q[:2] + struct.pack(">HHHHH", 0x8180, 1, 1, 0, 0)
    s.sendto(head + q[12:end] + b"\\xc0\\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes((192, 0, 2, 53)), peer)
"""


def outgoing() -> None:
    """Attach to a cgroup, add services, spread, stick, drain, kill, resolve."""
    with Stage("Outgoing connections: which backend they go to") as stage:
        cgroup = _cgroup()
        try:
            _act(stage, cgroup)
        finally:
            _leave(cgroup)


def _act(stage: Stage, cgroup: Path) -> None:
    stage.say("Load the state, and attach the connect balancer to a cgroup of its own.")
    stage.run("svcctl load --no-dispatcher", expect="created")
    stage.run(f"svcctl attach cgroup {cgroup}", expect="attached connect4")
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    stage.say("Three web servers and a name server on loopback addresses.")
    web = stage.file("web.py", WEB)
    servers = []
    for number in (1, 2, 3):
        servers.append(stage.start(f"{sys.executable} {web} 127.0.1.{number} 8080 backend-{number}"))
    stage.start(f"{sys.executable} {stage.file('dns.py', DNS)} 127.0.1.53 5353")
    for number in (1, 2, 3):
        _wait_for(f"127.0.1.{number}", 8080)

    stage.say(f"A service on {SERVICE}, an address no interface has. One backend counts twice.")
    stage.run(
        f"svcctl service add web --frontend {SERVICE}:80/tcp --backend 127.0.1.1:8080"
        " --backend 127.0.1.2:8080 --backend 127.0.1.3:8080,weight=2",
        expect="added service web",
    )
    stage.run(
        f"curl -s -m 3 http://{SERVICE}/ -w 'the peer is %{{remote_ip}}:%{{remote_port}}\\n'",
        expect=f"{SERVICE}:80",
    )
    spread = _ask(300)
    print(f"300 requests: {dict(sorted(spread.items()))}")
    if set(spread) != {"backend-1", "backend-2", "backend-3"} or spread["backend-3"] < spread["backend-1"]:
        raise Wrong("the requests are not spread by weight")
    stage.run("svcctl services", expect="web")
    stage.run("svcctl nat", expect="=50%")

    stage.say("With affinity a client stays where it is.")
    stage.run("svcctl service set web --affinity 60", expect="affinity")
    stuck = _ask(50)
    print(f"50 requests: {dict(stuck)}")
    if len(stuck) != 1:
        raise Wrong("affinity does not hold")
    stage.run("svcctl service set web --affinity 0", expect="affinity")

    stage.say("Drain one backend, take another away that dies, while requests run: none fails.")
    stage.run("svcctl backend drain web 127.0.1.1:8080", expect="draining")
    stage.run("svcctl backend delete web 127.0.1.2:8080", expect="deleted backend 127.0.1.2:8080")
    servers[1].terminate()
    left = _ask(100)
    print(f"100 requests: {dict(left)}")
    if set(left) != {"backend-3"}:
        raise Wrong("requests went to a backend that was taken away")
    stage.say("Without any backend the service refuses at once, and counts.")
    stage.run("svcctl backend delete web 127.0.1.3:8080 127.0.1.1:8080", expect="deleted")
    stage.run(f"curl -s -m 3 http://{SERVICE}/", code=7)
    stage.run("svcctl metrics | grep svcctl_service", expect="no_backend")

    stage.say("UDP: the answer seems to come from the service's address, or the resolver would not take it.")
    stage.run(
        f"svcctl service add dns --frontend {RESOLVER}:53/udp --backend 127.0.1.53:5353",
        expect="added service dns",
    )
    stage.run(
        f"dig +time=3 +tries=1 @{RESOLVER} www.example.org A", expect=["192.0.2.53", f"SERVER: {RESOLVER}#53"]
    )
    stage.say("Every invariant holds. Then all is taken away again.")
    stage.run("svcctl check", expect="no problems")
    stage.run("svcctl unload --yes", expect="removed")


def _cgroup() -> Path:
    """A new cgroup in the cgroup2 hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            made = Path(left.split()[4], f"svcctl-demo-{os.getpid()}")
            made.mkdir()
            return made
    subprocess.run(
        ["mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"], check=True
    )  # in this act's own mounts
    return _cgroup()


def _leave(cgroup: Path) -> None:
    """Move what is left in the cgroup to its parent and remove it."""
    for _ in range(50):
        for pid in (cgroup / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (cgroup.parent / "cgroup.procs").write_text(pid)
        try:
            cgroup.rmdir()
            return
        except OSError:
            time.sleep(0.1)


def _wait_for(host: str, port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection((host, port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise Wrong(f"{host}:{port} does not answer")


def _ask(count: int) -> Counter[str]:
    """`count` requests to the service, each on a new connection; who answered how often."""
    answers: Counter[str] = Counter()
    for _ in range(count):
        with socket.create_connection((SERVICE, 80), 5) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            data = b""
            while part := client.recv(4096):
                data += part
        answers[data.rsplit(b"\r\n\r\n", 1)[-1].decode().strip()] += 1
    return answers


if __name__ == "__main__":
    raise SystemExit(play(outgoing))
