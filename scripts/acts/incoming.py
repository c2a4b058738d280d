"""Act one: one nginx on a loopback port answers for a whole /24 and for every port of another address."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from acts.stage import Requests, Stage, Wrong, play

NGINX = """
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{ listen 127.0.0.1:8080; location / {{ return 200 "nginx at $server_addr port $server_port\\n"; }} }}
}}
"""


def incoming() -> None:
    """Bind, register, ask, look, upgrade under load, unload."""
    with Stage("Incoming connections: which socket gets them") as stage:
        stage.say("Load: a state directory in bpffs, one program attached to this network namespace.")
        stage.run("svcctl load", expect="attached dispatcher")

        stage.say("A real server that listens on one loopback port only.")
        pid = _server(stage)
        stage.run("curl -s http://127.0.0.1:8080/", expect="127.0.0.1" if shutil.which("nginx") else "<html")

        stage.say("This host takes packets for 192.0.2.0/24; nobody listens there.")
        stage.run("ip route add local 192.0.2.0/24 dev lo")
        stage.run("curl -s -m 3 http://192.0.2.7/", code=7)

        stage.say("Bind the /24's port 80, and all ports of one more address, to the label 'web'.")
        stage.run("svcctl bind web tcp 192.0.2.0/24 80", expect="bound web#tcp:[192.0.2.0/24]:80")
        stage.run("svcctl bind web tcp 127.0.0.77 0", expect="bound web#tcp:[127.0.0.77/32]:0")
        stage.say("A label without a socket refuses. Then the server's socket is registered under it.")
        stage.run("curl -s -m 3 http://192.0.2.7/", code=7)
        stage.run(f"svcctl register-pid {pid} web tcp 127.0.0.1 8080", expect="registered web#tcp:ipv4")

        stage.say("Now any of those addresses and ports reaches it.")
        for url in (
            "http://192.0.2.1/",
            "http://192.0.2.254/",
            "http://127.0.0.77:1234/",
            "http://127.0.0.77:65000/",
        ):
            stage.run(f"curl -s -m 3 {url} | head -n 1", expect="nginx at" if shutil.which("nginx") else "<")
        stage.run("svcctl explain 192.0.2.7:80/tcp", expect="web")

        stage.say("What there is.")
        stage.run("svcctl bindings", expect=["127.0.0.77/32", "192.0.2.0/24"])
        stage.run("svcctl status", expect="web")
        stage.run("svcctl metrics | grep -E '^svcctl_(lookups|misses)_total'", expect="svcctl_lookups_total")

        stage.say("Upgrade twenty times while requests run: no request is lost.")
        load = Requests("192.0.2.9", 80, "/", b"nginx at" if shutil.which("nginx") else b"<")
        load.start()
        time.sleep(0.3)
        stage.run("svcctl upgrade --force", expect="upgraded dispatch")
        stage.run(
            "for i in $(seq 18); do svcctl upgrade --force -q; done | tail -n 1", expect="upgraded dispatch"
        )
        stage.run("svcctl upgrade --max-destinations 2048", expect="resized sockets (16384 -> 32768 entries)")
        time.sleep(0.3)
        print(load.finish())

        stage.say("Every invariant between the maps holds. Then all is taken away again.")
        stage.run("svcctl check", expect="")
        stage.run("svcctl unload --yes", expect="removed")
        stage.run("curl -s -m 3 http://192.0.2.7/", code=7)


def _server(stage: Stage) -> int:
    """Start nginx, or Python's server where there is none; returns its pid once it listens."""
    if shutil.which("nginx"):
        config = stage.file("nginx.conf", NGINX.format(directory=stage.directory))
        child = stage.start(f"nginx -c {config} -p {stage.directory}")
    else:
        child = stage.start(f"{sys.executable} -m http.server -b 127.0.0.1 8080 -d {stage.directory}")
    for _ in range(100):
        if ":1F90 " in Path("/proc/self/net/tcp").read_text(encoding="ascii"):
            return child.pid
        if child.poll() is not None:
            raise Wrong("the server ended at once")
        time.sleep(0.05)
    raise Wrong("the server does not listen")


if __name__ == "__main__":
    raise SystemExit(play(incoming))
