"""Programs that people use, unmodified, through a service: each believes it talks to the service's address."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.balanced import VIP, VIP6, Balanced
from tests.lib.bpf_source import clang
from tests.lib.responders import ANSWER4, ANSWER6, dns, http
from tests.lib.servers import SLOWNESS
from tests.lib.svc import svc

MAPPED = f"[::ffff:{VIP}]"
BACKENDS = ["127.0.1.1:8080", "127.0.1.2:8080", "127.0.1.3:8080"]


def run(*words: str, **how: object) -> str:
    """Output of a program that must succeed; skips the test where it is not installed."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=200 * SLOWNESS, check=False, **how  # type: ignore[call-overload]
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture
def web(balanced: Balanced) -> Iterator[dict[str, list[str]]]:
    """Three HTTP servers and one of IPv6 behind the VIPs: backend -> clients it saw."""
    with contextlib.ExitStack() as stack:
        seen = {one: stack.enter_context(http(one.partition(":")[0], 8080)) for one in BACKENDS}
        seen["::1:8080"] = stack.enter_context(http("::1", 8080))
        balanced.add("web", f"{VIP}:80/tcp", f"[{VIP6}]:80/tcp", backends=[*BACKENDS, "[::1]:8080"])
        yield seen


@pytest.fixture
def names(balanced: Balanced) -> Iterator[dict[str, list[str]]]:
    """Three DNS servers behind VIP:53: backend -> names it was asked for."""
    addresses = ["127.0.1.1", "127.0.1.2", "127.0.1.3"]
    with contextlib.ExitStack() as stack:
        asked = {one: stack.enter_context(dns(one)) for one in addresses}
        balanced.add("dns", f"{VIP}:53/udp", backends=[f"{one}:53" for one in addresses])
        yield asked


def test_curl(balanced: Balanced, web: dict[str, list[str]]) -> None:
    """60 of them are spread over all backends; what curl says of its peer is the service."""
    found: Counter[str] = Counter()
    for _ in range(60):
        body, _, peer = run("curl", "-sS", "-w", "%{remote_ip} %{remote_port}", f"http://{VIP}/").partition(
            "\n"
        )
        found[body] += 1
        assert peer == f"{VIP} 80"
    assert set(found) == set(BACKENDS)
    for address in (f"[{VIP6}]", MAPPED):
        body, _, peer = run("curl", "-sS", "-g", "-w", "%{remote_ip}", f"http://{address}/").partition("\n")
        assert body in web
        assert peer in (address.strip("[]"), VIP)
    assert balanced.reverse() == {}


def test_curl_without_a_backend(balanced: Balanced) -> None:
    balanced.add("web", f"{VIP}:80/tcp")
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    done = subprocess.run(
        ["curl", "-sS", "-m", "60", f"http://{VIP}/"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 7
    assert "connect" in done.stderr


def test_curl_keeps_its_connection(balanced: Balanced, web: dict[str, list[str]]) -> None:
    """One connection, many requests: one backend, one entry, whatever changes meanwhile."""
    urls = [f"http://{VIP}/"] * 20
    assert len(set(run("curl", "-sS", *urls).split())) == 1
    assert balanced.stats("web").connections == 1


def test_dig(names: dict[str, list[str]]) -> None:
    """Without the hook of recvmsg it would say: reply from unexpected source. (It takes no ::ffff: address itself.)"""
    for _ in range(20):
        out = run("dig", "+tries=1", "+time=20", f"@{VIP}", "www.example", "A")
        assert f"SERVER: {VIP}#53" in out
        assert ANSWER4 in out
        assert "unexpected" not in out
    assert sum(map(len, names.values())) == 20
    assert sum(bool(asked) for asked in names.values()) > 1


@pytest.fixture
def resolver(
    balanced: Balanced, tmp_path: Path, names: dict[str, list[str]], request: pytest.FixtureRequest
) -> None:
    """The system's resolver asks the service, in this world only. Indirect parameter: by which address."""
    # Without an address that is not loopback, glibc holds a family to be of no use.
    balanced.world.sh("ip address add 192.0.2.1/32 dev lo; ip address add 2001:db8::1/128 dev lo nodad")
    (tmp_path / "resolv.conf").write_text(
        f"nameserver {getattr(request, 'param', VIP)}\noptions timeout:20 attempts:1\n"
    )
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    for file in ("resolv.conf", "nsswitch.conf"):
        target = os.path.realpath(f"/etc/{file}")
        if not os.path.exists(target):
            pytest.skip(f"this machine has no {target}")
        balanced.world.sh(f"mount --bind {tmp_path}/{file} {target}")


@pytest.mark.parametrize("resolver", [VIP, f"::ffff:{VIP}"], ids=["ipv4", "mapped"], indirect=True)
def test_getent(resolver: None, names: dict[str, list[str]]) -> None:
    """glibc connects its socket and checks where answers come from."""
    assert ANSWER4 in run("getent", "ahostsv4", "www.example")
    assert ANSWER6 in run("getent", "ahostsv6", "www.example")
    assert ANSWER4 in run("getent", "ahosts", "www2.example")
    assert ANSWER6 in run("getent", "hosts", "www3.example")
    assert {"www.example", "www2.example", "www3.example"} <= {
        name for asked in names.values() for name in asked
    }


def test_asyncio(balanced: Balanced, web: dict[str, list[str]]) -> None:
    """60 connections at once, non-blocking, each with the service as its peer; both families, and mapped."""

    async def fetch(address: str) -> str:
        reader, writer = await asyncio.open_connection(address, 80)
        assert writer.get_extra_info("peername")[:2] == (address, 80)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        await writer.drain()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer.split()[-1].decode()

    async def everything() -> list[str]:
        addresses = (VIP, VIP, VIP6, VIP, f"::ffff:{VIP}")
        return await asyncio.gather(*(fetch(addresses[n % 5]) for n in range(60)))

    found = Counter(asyncio.run(everything()))
    assert set(found) == {*BACKENDS, "::1:8080"}
    assert found["::1:8080"] == 12


def test_asyncio_datagrams(balanced: Balanced, names: dict[str, list[str]]) -> None:
    """A connected datagram endpoint and one that is not."""
    question = b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\3www\7example\0\0\1\0\1"

    class Client(asyncio.DatagramProtocol):
        def __init__(self) -> None:
            self.heard: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def datagram_received(self, data: bytes, addr: object) -> None:
            self.heard.set_result(addr)

        def error_received(self, exc: Exception) -> None:
            self.heard.set_exception(exc)

    async def ask(connected: bool, address: str = VIP) -> object:
        loop = asyncio.get_running_loop()
        own = ("::" if ":" in address else "0.0.0.0", 0)
        where = {"remote_addr": (address, 53)} if connected else {"local_addr": own}
        transport, client = await loop.create_datagram_endpoint(Client, **where)  # type: ignore[arg-type]
        transport.sendto(question, None if connected else (address, 53))
        try:
            return await asyncio.wait_for(client.heard, 60)
        finally:
            transport.close()

    assert asyncio.run(ask(True)) == (VIP, 53)
    assert asyncio.run(ask(False)) == (VIP, 53)
    for connected in (True, False):
        assert asyncio.run(ask(connected, f"::ffff:{VIP}")) == (f"::ffff:{VIP}", 53, 0, 0)


def test_requests_library(balanced: Balanced, web: dict[str, list[str]]) -> None:
    pytest.importorskip("requests")
    code = (
        f"import requests\ns = requests.Session()\n"
        f"print(*[requests.get('http://{VIP}/').text.strip() for _ in range(60)])\n"
        f"print(*{{s.get('http://{VIP}/').text.strip() for _ in range(10)}})\n"
        f"print(*[requests.get('http://{MAPPED}/').text.strip() for _ in range(5)])\n"
        f"print(*[requests.get('http://[{VIP6}]/').text.strip() for _ in range(5)])"
    )
    first, second, mapped, six = run(sys.executable, "-c", code).splitlines()
    assert set(first.split()) == set(BACKENDS)
    assert len(second.split()) == 1
    assert set(mapped.split()) <= set(BACKENDS)
    assert set(six.split()) == {"::1:8080"}


def test_urllib(balanced: Balanced, web: dict[str, list[str]]) -> None:
    code = f"import urllib.request as u\nprint(*[u.urlopen('http://{VIP}/').read().decode().strip() for _ in range(60)])"
    assert set(run(sys.executable, "-c", code).split()) == set(BACKENDS)


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[str]:
    """A proxy to the service; the address where it listens."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if binary is None:
        pytest.skip("needs nginx")
    (tmp_path / "nginx.conf").write_text(f"""
        daemon off; worker_processes 1; pid {tmp_path}/pid; error_log {tmp_path}/error.log;
        events {{ worker_connections 256; }}
        http {{
            access_log off;
            client_body_temp_path {tmp_path}/b; proxy_temp_path {tmp_path}/p; fastcgi_temp_path {tmp_path}/f;
            uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;
            server {{
                listen 127.0.3.1:8000;
                location / {{
                    proxy_pass http://{VIP}:80; proxy_connect_timeout 60s;
                    add_header X-Upstream $upstream_addr;
                }}
                location /mapped {{
                    proxy_pass http://{MAPPED}:80/; proxy_connect_timeout 60s;
                    add_header X-Upstream $upstream_addr;
                }}
            }}
        }}""")
    process = subprocess.Popen(
        [binary, "-c", f"{tmp_path}/nginx.conf", "-p", str(tmp_path), "-e", f"{tmp_path}/error.log"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(int(1200 * SLOWNESS)):
            if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
                break
            assert process.poll() is None, (tmp_path / "error.log").read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        yield "127.0.3.1:8000"
    finally:
        process.terminate()
        process.wait()


def test_nginx_as_a_proxy(balanced: Balanced, web: dict[str, list[str]], nginx: str) -> None:
    """Every request is a connection to the service: they are spread, and follow a change of backends at once."""
    found = Counter(run("curl", "-sS", *[f"http://{nginx}/"] * 60).split())
    assert set(found) == set(BACKENDS)
    assert f"X-Upstream: {VIP}:80" in run("curl", "-sSi", f"http://{nginx}/")
    mapped = run("curl", "-sSi", f"http://{nginx}/mapped")
    assert f"X-Upstream: {MAPPED}:80" in mapped
    assert mapped.split()[-1] in BACKENDS
    svc("backend", "drain", "web", *BACKENDS[:2])
    assert set(run("curl", "-sS", *[f"http://{nginx}/"] * 10).split()) == {BACKENDS[2]}
    svc("backend", "drain", "web", BACKENDS[2])
    assert "502" in run("curl", "-sSi", f"http://{nginx}/")


_JAVA = """
import java.io.*; import java.net.*; import java.util.*;
class Client {
  public static void main(String[] a) throws Exception {
    for (int i = 0; i < 12; i++) {
      try (Socket s = new Socket(a[0], 80)) {
        System.out.println("peer " + s.getInetAddress().getHostAddress() + " " + s.getPort());
        s.getOutputStream().write("GET / HTTP/1.0\\r\\n\\r\\n".getBytes());
        String text = new String(s.getInputStream().readAllBytes()).trim();
        System.out.println("body " + text.substring(text.lastIndexOf('\\n') + 1));
      }
    }
    byte[] q = new byte[] {1,2,1,0,0,1,0,0,0,0,0,0,1,'w',1,'x',0,0,1,0,1};
    try (DatagramSocket d = new DatagramSocket()) {
      d.setSoTimeout(60000);
      d.send(new DatagramPacket(q, q.length, InetAddress.getByName(a[0]), 53));
      DatagramPacket r = new DatagramPacket(new byte[512], 512);
      d.receive(r);
      System.out.println("from " + r.getAddress().getHostAddress() + " " + r.getPort());
    }
    System.out.println("name " + InetAddress.getByName("www.example").getHostAddress());
  }
}
"""


@pytest.mark.timeout(300)
def test_java(
    balanced: Balanced, web: dict[str, list[str]], names: dict[str, list[str]], resolver: None, tmp_path: Path
) -> None:
    """Java's sockets are IPv6 and ask for ::ffff:VIP. T37."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        pytest.skip("needs a JDK")
    (tmp_path / "Client.java").write_text(_JAVA)
    run("javac", "-J-XX:TieredStopAtLevel=1", "-d", str(tmp_path), str(tmp_path / "Client.java"))
    out = run(
        "java", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", str(tmp_path), "Client", VIP
    ).splitlines()
    assert {line for line in out if line.startswith("peer")} == {f"peer {VIP} 80"}
    assert {line[5:] for line in out if line.startswith("body")} <= set(BACKENDS)
    assert f"from {VIP} 53" in out
    assert f"name {ANSWER4}" in out


_GO = """
package main
import ("context"; "fmt"; "io"; "net"; "net/http"; "os"; "time")
func main() {
  for i := 0; i < 12; i++ {
    r, err := http.Get("http://" + os.Args[1] + "/")
    if err != nil { panic(err) }
    b, _ := io.ReadAll(r.Body)
    fmt.Print("body ", string(b))
  }
  c, err := net.DialTimeout("tcp", os.Args[1] + ":80", 60*time.Second)
  if err != nil { panic(err) }
  fmt.Println("peer", c.RemoteAddr())
  for _, own := range []bool{true, false} {
    r := &net.Resolver{PreferGo: own}
    a, err := r.LookupIPAddr(context.Background(), "www.example")
    if err != nil { panic(err) }
    fmt.Println("name", own, a[0].IP)
  }
  // An IPv6 socket of both families: the kernel sees ::ffff:VIP.
  d, err := net.ListenPacket("udp", ":0")
  if err != nil { panic(err) }
  to, _ := net.ResolveUDPAddr("udp", os.Args[1] + ":53")
  if _, err = d.WriteTo([]byte{1,2,1,0,0,1,0,0,0,0,0,0,1,'w',1,'x',0,0,1,0,1}, to); err != nil { panic(err) }
  d.SetReadDeadline(time.Now().Add(60*time.Second))
  _, from, err := d.ReadFrom(make([]byte, 512))
  if err != nil { panic(err) }
  fmt.Println("from", from, "to", d.LocalAddr().(*net.UDPAddr).IP)
}
"""


@pytest.mark.timeout(300)
def test_go(balanced: Balanced, web: dict[str, list[str]], resolver: None, tmp_path: Path) -> None:
    """Both of Go's resolvers, its HTTP client, and what it says of its peer."""
    if shutil.which("go") is None:
        pytest.skip("needs go")
    (tmp_path / "main.go").write_text(_GO)
    env = os.environ | {
        "GOCACHE": str(tmp_path / "cache"), "HOME": str(tmp_path), "GO111MODULE": "off", "CGO_ENABLED": "1", "CC": clang(),
    }  # fmt: skip
    run("go", "build", "-o", str(tmp_path / "client"), str(tmp_path / "main.go"), env=env)
    # Without PreferGo it is libc that is asked: with cgo, and if told so.
    out = run(str(tmp_path / "client"), VIP, env=env | {"GODEBUG": "netdns=cgo"}).splitlines()
    assert f"peer {VIP}:80" in out
    assert {line[5:] for line in out if line.startswith("body")} <= set(BACKENDS)
    assert {line.split()[1] for line in out if line.startswith("name")} == {"true", "false"}
    assert {line.split()[2] for line in out if line.startswith("name")} <= {ANSWER4, ANSWER6}
    assert f"from {VIP}:53 to ::" in out
    assert len(out) == 12 + 1 + 2 + 1
