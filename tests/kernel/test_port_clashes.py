"""New node ports that are somebody's on this node: told by whichever command makes them, and once."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.lib.balanced import VIP, Balanced
from tests.lib.svc import svc
from tests.unit.kubernetes_objects import endpoint_slice, node, service


def test_node_ports_that_are_in_somebodys_way(balanced: Balanced, tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 30080)),
        socket.create_server(("::", 30081), family=socket.AF_INET6),
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
        socket.socket(type=socket.SOCK_DGRAM) as client,
    ):
        datagrams.bind(("0.0.0.0", 30053))
        client.bind(("127.0.0.1", 40000))
        listening = {
            30080: "node port 30080/tcp is in the way of the listener on 127.0.0.1 (uid 0)",
            30081: "node port 30081/tcp is in the way of the listener on :: (uid 0)",
            30053: "node port 30053/udp is in the way of the listener on 0.0.0.0 (uid 0)",
        }
        given_out = "node port 40000/udp is in net.ipv4.ip_local_port_range, 32768-60999"
        ports = [
            {"name": f"p{number}", "port": number, "nodePort": number, "protocol": protocol}
            for number, protocol in (
                (30080, "TCP"),
                (30081, "TCP"),
                (30053, "UDP"),
                (40000, "UDP"),
                (30082, "TCP"),
            )
        ]
        file = tmp_path / "objects.json"
        objects = [node("node-a"), service(type="NodePort", ports=ports), endpoint_slice("10.244.1.1")]
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        words = ("apply", "-f", file, "--node", "node-a", "--prune")
        for more in (("--dry-run",), ()):
            err = svc(*words, *more).err
            assert err.count("in the way of") == 3, err
            assert all(text in err for text in (*listening.values(), given_out))
            assert "30082/tcp" not in err
        assert "in the way" not in svc(*words).err  # it is as it was
        svc("service", "add", "hand", "--frontend", f"{VIP}:80/tcp", "--backend", "10.244.1.1:80")
        assert "in the way" not in svc("service", "set", "hand", "--node-port", 30083).err
        with socket.create_server(("127.0.0.1", 30084)):
            assert "30084/tcp is in the way of" in svc("service", "set", "hand", "--node-port", 30084).err
        assert "60000/tcp is in net.ipv4" in svc("service", "set", "hand", "--node-port", 60000).err
        assert svc("service", "set", "hand", "--affinity", 5).err == ""


def test_many_are_counted(balanced: Balanced, tmp_path: Path) -> None:
    ports = [{"name": f"p{number}", "port": number, "nodePort": number} for number in range(40000, 40010)]
    file = tmp_path / "objects.json"
    objects = [service(type="NodePort", ports=ports), endpoint_slice("10.244.1.1")]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    err = svc("apply", "-f", file, "--node", "node-a").err
    assert "node ports 40000/tcp, 40001/tcp, 40002/tcp and 7 more are in net.ipv4.ip_local_port_range" in err
