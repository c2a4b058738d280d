"""The manifests of deploy/kubernetes: kubectl reads them, and they fit svcctl and each other."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from svcctl import __version__
from svcctl.cli.env import Env
from svcctl.cli.root import root
from svcctl.follow.resources import RESOURCES
from tests.lib.api_server import api_server
from tests.lib.cli import ROOT
from tests.lib.following import KUBECTL

if TYPE_CHECKING:
    from pathlib import Path

DIRECTORY = ROOT / "deploy" / "kubernetes"
FILES = sorted(one for one in DIRECTORY.glob("*.yaml") if one.name != "kustomization.yaml")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")


def documents() -> dict[str, dict[str, Any]]:
    """All objects by kind."""
    found = [one for path in FILES for one in yaml.safe_load_all(path.read_text())]
    assert len({one["kind"] for one in found}) == len(found)
    return {one["kind"]: one for one in found}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = documents()["DaemonSet"]["spec"]["template"]["spec"]
    return spec


NEWER = {"appArmorProfile": (1, 30)}
"""Fields that came to Kubernetes later than Debian's oldest kubectl, and with which version."""


def containers() -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in (*pod()["initContainers"], *pod()["containers"])}


def kubectl(*words: str) -> str:
    assert KUBECTL is not None
    done = subprocess.run([KUBECTL, *words], text=True, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_kubectl
def test_kubectl_would_apply_them(tmp_path: Path) -> None:
    with api_server() as api:
        said = kubectl(
            "--kubeconfig",
            str(api.kubeconfig(tmp_path)),
            "--cache-dir",
            str(tmp_path),
            "apply",
            "--dry-run=client",
            "--validate=false",
            "-k",
            str(DIRECTORY),
        )
    assert sorted(said.splitlines()) == [
        "clusterrole.rbac.authorization.k8s.io/svcctl created (dry run)",
        "clusterrolebinding.rbac.authorization.k8s.io/svcctl created (dry run)",
        "configmap/svcctl created (dry run)",
        "daemonset.apps/svcctl created (dry run)",
        "serviceaccount/svcctl created (dry run)",
    ]


@needs_kubectl
def test_kubectl_knows_every_field_of_the_daemon_set(tmp_path: Path) -> None:
    """Read into the types of this kubectl and printed again: a field it does not know would be missing."""
    path = DIRECTORY / "daemonset.yaml"
    unknown = [
        where
        for where in lost(documents()["DaemonSet"], typed(path))
        if version() >= NEWER.get(where.rpartition(".")[2], (0, 0))
    ]
    assert unknown == ["$.spec.template.spec.containers[0].image"]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(path.read_text().replace("readOnlyRootFilesystem", "readonlyRootFileSystem"))
    assert [
        where for where in lost(yaml.safe_load(wrong.read_text()), typed(wrong)) if "readonly" in where
    ] == [
        f"$.spec.template.spec.{which}.securityContext.readonlyRootFileSystem"
        for which in ("containers[0]", "containers[1]")
    ]


def version() -> tuple[int, int]:
    """That of this kubectl."""
    told = json.loads(kubectl("version", "--client", "-o", "json"))["clientVersion"]
    return int(told["major"]), int(told["minor"].rstrip("+"))


def typed(path: Path) -> Any:
    """What kubectl makes of a file; it prints it only when it changes something."""
    words = ("set", "image", "--local", "-o", "json", "-f", str(path), "follow=another")
    return json.loads(kubectl("--kubeconfig=/dev/null", *words))


def lost(ours: Any, printed: Any, path: str = "$") -> list[str]:
    """Where something of ours is not, or is another thing."""
    if isinstance(ours, dict):
        if not isinstance(printed, dict):
            return [path]
        return [
            where
            for name, value in ours.items()
            for where in lost(value, printed.get(name), f"{path}.{name}")
        ]
    if isinstance(ours, list):
        if not isinstance(printed, list) or len(ours) != len(printed):
            return [path]
        return [
            where
            for number, (one, other) in enumerate(zip(ours, printed, strict=True))
            for where in lost(one, other, f"{path}[{number}]")
        ]
    return [] if ours == printed else [path]


def test_they_ask_for_no_right_more_than_is_used() -> None:
    rules = documents()["ClusterRole"]["rules"]
    granted = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    groups = {one.name: one.api_version.rpartition("/")[0] for one in RESOURCES}
    assert granted == {(groups[one.name], one.name, verb) for one in RESOURCES for verb in ("list", "watch")}
    assert "Role" not in documents()


def test_names_fit() -> None:
    found = documents()
    (subject,) = found["ClusterRoleBinding"]["subjects"]
    account = found["ServiceAccount"]["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert found["ClusterRoleBinding"]["roleRef"]["name"] == found["ClusterRole"]["metadata"]["name"]
    assert pod()["serviceAccountName"] == account["name"]
    assert {one["metadata"].get("namespace", "kube-system") for one in found.values()} == {"kube-system"}
    listed = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == [one.name for one in FILES]


def test_volumes_fit() -> None:
    volumes = {one["name"]: one for one in pod()["volumes"]}
    mounted = {mount["name"] for one in containers().values() for mount in one["volumeMounts"]}
    assert mounted == set(volumes)
    for one in containers().values():
        mounts = {mount["mountPath"] for mount in one["volumeMounts"]}
        assert "/sys/fs/bpf" in mounts
        # Nobody but the follower has the token.
        assert ("/var/run/secrets/svcctl" in mounts) == (one["name"] == "follow")


def test_the_kubeconfig_leads_to_what_is_mounted() -> None:
    config = yaml.safe_load(documents()["ConfigMap"]["data"]["kubeconfig"])
    paths = {
        config["users"][0]["user"]["tokenFile"],
        config["clusters"][0]["cluster"]["certificate-authority"],
    }
    (mount,) = [one for one in containers()["follow"]["volumeMounts"] if one["name"] == "token"]
    (volume,) = [one for one in pod()["volumes"] if one["name"] == "token"]
    names = {"token" if "serviceAccountToken" in one else "ca.crt" for one in volume["projected"]["sources"]}
    assert paths == {f"{mount['mountPath']}/{name}" for name in names}
    assert "--kubeconfig=/etc/svcctl/kubeconfig" in containers()["follow"]["args"]


def command_lines() -> list[list[str]]:
    """Every command line of svcctl in the pod."""
    lines = []
    for one in containers().values():
        if one["command"][0] == "svcctl":
            lines.append([*one["command"][1:], *one["args"]])
        else:
            lines += [
                shlex.split(line.partition(" || ")[0])[1:]
                for line in one["args"][0].splitlines()
                if line.startswith("svcctl ")
            ]
    return lines


@pytest.mark.parametrize("words", command_lines(), ids=lambda words: words[0])
def test_every_command_line_can_be_parsed(words: list[str]) -> None:
    context = root.make_context("svcctl", list(words), obj=Env({}))
    while words:
        _, command, rest = context.command.resolve_command(context, list(words))  # type: ignore[attr-defined]
        context = command.make_context(words[0], list(rest), parent=context)
        words = list(rest) if hasattr(command, "resolve_command") else []


def test_one_image_of_this_version_with_what_it_needs() -> None:
    images = {one["image"] for one in containers().values()}
    version = re.match(r"\d+\.\d+\.\d+", __version__)
    assert version is not None
    assert images == {f"svcctl:{version[0]}"}
    containerfile = (DIRECTORY / "Containerfile").read_text()
    assert f"-t {images.pop()} " in containerfile
    for package in ("kubernetes-client", "python3-yaml"):
        assert package in containerfile


def test_only_the_init_container_is_privileged() -> None:
    assert [name for name, one in containers().items() if one["securityContext"].get("privileged")] == [
        "load"
    ]
    health = containers()["health"]["securityContext"]
    assert health["capabilities"] == {"drop": ["ALL"]}
    assert health["runAsNonRoot"] is True
    (script,) = containers()["load"]["args"]
    assert f"--group {health['runAsGroup']}\n" in script
