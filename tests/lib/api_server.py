"""An API server of the tests' own: plays lists and watches of Kubernetes to the real kubectl, over plain HTTP.

It keeps objects with one resource version for all, as etcd does, pages its lists, cuts and ends watches, forgets
what is old, and fails on demand. What it answers is what Kubernetes 1.32 answers, as far as a list and a watch go.
"""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SERVICES, SLICES, NODES = "services", "endpointslices", "nodes"
PATHS = {
    "/api/v1/services": (SERVICES, "v1", "Service"),
    "/apis/discovery.k8s.io/v1/endpointslices": (SLICES, "discovery.k8s.io/v1", "EndpointSlice"),
    "/api/v1/nodes": (NODES, "v1", "Node"),
}
KINDS = {kind: name for name, _, kind in PATHS.values()}
Fault = Callable[["_Handler"], None]
_PATIENCE = 60.0


class Request:
    """One that was made: the resource, `list` or `watch`, its parameters."""

    def __init__(self, resource: str, parameters: dict[str, str]) -> None:
        self.resource = resource
        self.parameters = parameters
        self.verb = "watch" if parameters.get("watch") else "list"

    def __repr__(self) -> str:
        return f"{self.verb} {self.resource} {self.parameters}"


class ApiServer:
    """The server; `put` and `delete` change the cluster, the rest is about what goes wrong."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.version = 100
        self.oldest = 0
        self.tokens_expire = False
        self.objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {name: {} for name in KINDS.values()}
        self.log: list[tuple[int, str, str, dict[str, Any]]] = []
        self.requests: list[Request] = []
        self.faults: dict[tuple[str, str], list[Fault]] = {}
        self.generation = 0  # a watch of an earlier one is over
        self.abrupt = False
        self.closed = False
        self.watching: dict[str, int] = dict.fromkeys(KINDS.values(), 0)
        self._streams: list[int] = []  # the generation of each watch there is
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """End every request and the server."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self, directory: Path) -> Path:
        """Write one that leads here."""
        path = directory / "kubeconfig"
        path.write_text(
            f"apiVersion: v1\nkind: Config\ncurrent-context: test\n"
            f"clusters:\n- name: test\n  cluster: {{server: '{self.url}'}}\n"
            f"contexts:\n- name: test\n  context: {{cluster: test, user: test}}\n"
            f"users:\n- name: test\n  user: {{}}\n"
        )
        return path

    # The cluster

    def put(self, *items: dict[str, Any]) -> None:
        """Create or change objects."""
        with self.changed:
            for item in items:
                resource = KINDS[item["kind"]]
                made = copy.deepcopy(item)
                key = made["metadata"].get("namespace", ""), made["metadata"]["name"]
                self.version += 1
                made["metadata"]["resourceVersion"] = str(self.version)
                made["metadata"]["managedFields"] = [{"manager": "test", "time": self.version}]
                known = key in self.objects[resource]
                self.objects[resource][key] = made
                self.log.append((self.version, resource, "MODIFIED" if known else "ADDED", made))
            self.changed.notify_all()

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        """Delete an object."""
        with self.changed:
            resource = KINDS[kind]
            gone = copy.deepcopy(self.objects[resource].pop((namespace, name)))
            self.version += 1
            gone["metadata"]["resourceVersion"] = str(self.version)
            self.log.append((self.version, resource, "DELETED", gone))
            self.changed.notify_all()

    def bookmark(self, resource: str) -> None:
        """Send a bookmark with the version of now to all watches of a resource."""
        with self.changed:
            self.version += 1
            _, api, kind = next(row for row in PATHS.values() if row[0] == resource)
            item = {"kind": kind, "apiVersion": api, "metadata": {"resourceVersion": str(self.version)}}
            self.log.append((self.version, resource, "BOOKMARK", item))
            self.changed.notify_all()

    def error_event(self, resource: str, code: int, reason: str) -> None:
        """Send an ERROR to all watches of a resource, as the server does when it has to give up on one."""
        with self.changed:
            self.log.append((self.version, resource, "ERROR", status(code, reason, "the test says so")))
            self.changed.notify_all()

    # What goes wrong

    def compact(self) -> None:
        """Forget everything before now: watches from before it get 410."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.log.clear()

    def end_watches(self, *, abrupt: bool = False) -> None:
        """End all watches, as after their time or as a broken network does. They have ended when this returns."""
        with self.changed:
            self.generation += 1
            self.abrupt = abrupt
            self.changed.notify_all()
            ended = self.changed.wait_for(
                lambda: all(one == self.generation for one in self._streams), _PATIENCE
            )
            assert ended

    def fail(self, verb: str, resource: str, *faults: Fault) -> None:
        """Answer the next such requests with faults, one each."""
        with self.changed:
            self.faults.setdefault((verb, resource), []).extend(faults)

    # What was asked

    def asked(self, verb: str, resource: str) -> list[Request]:
        """Requests of a kind so far."""
        with self.changed:
            return [one for one in self.requests if (one.verb, one.resource) == (verb, resource)]

    def wait(self, true: Callable[[], object], what: str) -> None:
        """Wait until something holds."""
        end = time.monotonic() + _PATIENCE
        while not true():
            assert time.monotonic() < end, f"{what}: not within {_PATIENCE:g} s; {self.requests}"
            time.sleep(0.01)

    def wait_for_watches(self, count: int = 1) -> None:
        """Wait until each resource has been watched so often, and is."""
        for resource in KINDS.values():
            self.wait(partial(self._is_watched, resource, count), f"watch {count} of {resource}")

    def _is_watched(self, resource: str, count: int) -> bool:
        return len(self.asked("watch", resource)) >= count and self.watching[resource] > 0


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # joined by server_close()
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = _PATIENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        """A list or a watch."""
        self.close_connection = True
        url = urlsplit(self.path)
        if url.path not in PATHS:
            self.answer(discovery(url.path) or status(404, "NotFound", "the server could not find it"))
            return
        resource, api, kind = PATHS[url.path]
        request = Request(resource, {name: values[0] for name, values in parse_qs(url.query).items()})
        with self.api.changed:
            faults = self.api.faults.get((request.verb, resource))
            fault = faults.pop(0) if faults else None
            self.api.requests.append(request)
            self.api.changed.notify_all()
        if fault is not None:
            fault(self)
        elif request.verb == "watch":
            self.watch(request)
        else:
            self.list(request, api, kind)

    def answer(self, document: dict[str, Any], *, code: int = 200) -> None:
        """A JSON document; a Status with its code."""
        if document.get("kind") == "Status":
            code = document["code"]
        self.raw(json.dumps(document).encode(), code=code)

    def raw(self, data: bytes, *, code: int = 200, type: str = "application/json") -> None:
        """Any answer."""
        self.send_response(code)
        self.send_header("Content-Type", type)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def list(self, request: Request, api: str, kind: str) -> None:
        """One page."""
        limit = int(request.parameters.get("limit", "0")) or 1 << 30
        token = request.parameters.get("continue", "")
        with self.api.changed:
            if token and self.api.tokens_expire:
                self.api.tokens_expire = False
                expired = status(410, "Expired", "The provided continue parameter is too old")
            else:
                expired = None
            version = self.api.version
            rows = sorted(self.api.objects[request.resource].items())
        if expired is not None:
            self.answer(expired)
            return
        begin = int(token or 0)
        items = [_without_kind(item) for _, item in rows if _selected(item, request)]
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if begin + limit < len(items):
            metadata["continue"] = str(begin + limit)
        page: dict[str, Any] = {"kind": f"{kind}List", "apiVersion": api, "metadata": metadata}
        page["items"] = items[begin : begin + limit] or None
        self.answer(page)

    def watch(self, request: Request) -> None:
        """Events from a version on, until the time is over or the test says so."""
        api, resource = self.api, request.resource
        since = int(request.parameters["resourceVersion"])
        end = time.monotonic() + int(request.parameters["timeoutSeconds"])
        with api.changed:
            generation, at = api.generation, 0
            if since < api.oldest:
                self.begin_stream()
                self.event("ERROR", status(410, "Expired", f"too old resource version: {since}"))
                self.end_stream()
                return
            log = api.log
            while at < len(log) and log[at][0] <= since:
                at += 1
            api.watching[resource] += 1
            api._streams.append(generation)
        try:
            self.begin_stream()
            while True:
                with api.changed:
                    if log is not api.log or at > len(api.log):
                        at = 0
                    while not (api.closed or api.generation != generation or at < len(api.log)):
                        if not api.changed.wait(max(end - time.monotonic(), 0)):
                            break
                    news = [row for row in api.log[at:] if row[1] == resource]
                    at = len(api.log)
                    over = api.closed or api.generation != generation or time.monotonic() >= end
                for _, _, kind, item in news:
                    if kind == "BOOKMARK" and not request.parameters.get("allowWatchBookmarks"):
                        continue
                    if kind in ("BOOKMARK", "ERROR") or _selected(item, request):
                        self.event(kind, item)
                    if kind == "ERROR":
                        self.end_stream()
                        return
                if over:
                    if api.abrupt and not api.closed:
                        self.cut()
                    else:
                        self.end_stream()
                    return
        finally:
            with api.changed:
                api.watching[resource] -= 1
                api._streams.remove(generation)
                api.changed.notify_all()

    # Streams

    def begin_stream(self) -> None:
        """Head of an answer in chunks."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, kind: str, item: dict[str, Any]) -> None:
        """One event, a line and a chunk of its own."""
        self.chunk(json.dumps({"type": kind, "object": item}).encode() + b"\n")

    def chunk(self, data: bytes) -> None:
        """One chunk."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end_stream(self) -> None:
        """The last chunk."""
        self.wfile.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Go away in the middle."""
        self.connection.shutdown(socket.SHUT_RDWR)


def _without_kind(item: dict[str, Any]) -> dict[str, Any]:
    """Items of a typed list do not say what they are."""
    return {name: value for name, value in item.items() if name not in ("kind", "apiVersion")}


def _selected(item: dict[str, Any], request: Request) -> bool:
    """`!label` and `metadata.name=NAME` are all that is asked for."""
    selector = request.parameters.get("labelSelector", "")
    name = request.parameters.get("fieldSelector", "").removeprefix("metadata.name=")
    if name and name != item["metadata"]["name"]:
        return False
    return not (selector and selector.removeprefix("!") in item["metadata"].get("labels", {}))


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    """What the API server says of a failure."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


_GROUPS = {
    "v1": {"serviceaccounts": "ServiceAccount", "configmaps": "ConfigMap"},
    "apps/v1": {"daemonsets": "DaemonSet"},
    "rbac.authorization.k8s.io/v1": {
        "clusterroles": "ClusterRole",
        "clusterrolebindings": "ClusterRoleBinding",
    },
}


def discovery(path: str) -> dict[str, Any] | None:
    """Which kinds there are: what `kubectl apply --dry-run=client` asks before it reads a file."""
    if path == "/version":
        return {"major": "1", "minor": "32"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        names = [name.split("/") for name in _GROUPS if "/" in name]
        versions = [(group, {"groupVersion": f"{group}/{one}", "version": one}) for group, one in names]
        groups = [{"name": group, "versions": [one], "preferredVersion": one} for group, one in versions]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    kinds = _GROUPS.get(version)
    if kinds is None:
        return None
    verbs = ["create", "get", "list", "patch"]
    resources = [
        {
            "name": name,
            "singularName": "",
            "namespaced": not name.startswith("clusterrole"),
            "kind": kind,
            "verbs": verbs,
        }
        for name, kind in kinds.items()
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


# Faults


def refuse(code: int, reason: str, message: str = "the test says so") -> Fault:
    """An error with a Status."""
    return lambda handler: handler.answer(status(code, reason, message))


def page(data: bytes, *, code: int = 200, type: str = "text/html") -> Fault:
    """Any answer, such as the page of a proxy in between."""
    return lambda handler: handler.raw(data, code=code, type=type)


def cut_short(data: bytes) -> Fault:
    """The beginning of an answer; its length says that more was to come."""

    def fault(handler: _Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data) + 100))
        handler.end_headers()
        handler.wfile.write(data)
        handler.cut()

    return fault


def stream(*data: bytes, cut: bool = False) -> Fault:
    """A watch that sends these bytes and is over."""

    def fault(handler: _Handler) -> None:
        handler.begin_stream()
        for piece in data:
            handler.chunk(piece)
        if cut:
            handler.cut()
        else:
            handler.end_stream()

    return fault


def hang(handler: _Handler) -> None:
    """No answer until the client gives up or the server is closed."""
    with handler.api.changed:
        handler.api.changed.wait_for(lambda: handler.api.closed, _PATIENCE)


@contextlib.contextmanager
def api_server() -> Iterator[ApiServer]:
    """A server for the length of a block."""
    made = ApiServer()
    try:
        yield made
    finally:
        made.close()


# Objects


def service(name: str, cluster_ip: str = "10.96.0.10", port: int = 80, **spec: Any) -> dict[str, Any]:
    """A Service with one TCP port called `web`."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "ipFamilies": ["IPv4"],
            "ports": [{"name": "web", "port": port, "protocol": "TCP", "targetPort": 8080}],
            **spec,
        },
        "status": {"loadBalancer": {}},
    }


def endpoint_slice(
    owner: str, *addresses: str, name: str = "", port: int = 8080, node: str = "node-a", **more: Any
) -> dict[str, Any]:
    """An EndpointSlice of ready endpoints."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name or f"{owner}-abc",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": owner},
            **more,
        },
        "addressType": "IPv4",
        "ports": [{"name": "web", "port": port, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [address], "nodeName": node, "conditions": {"ready": True}} for address in addresses
        ],
    }


def node(name: str = "node-a", address: str = "192.0.2.10", **spec: Any) -> dict[str, Any]:
    """A Node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "zone-a"}},
        "spec": spec,
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "lastHeartbeatTime": time.time()}],
        },
    }
