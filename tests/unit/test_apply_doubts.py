"""An input of a cluster that may be a part of it: what pruning by it would remove makes it doubtful."""

from __future__ import annotations

import pytest

from svcctl.model.apply_doubts import partial_input
from svcctl.model.desired import KUBERNETES, Desired
from tests.lib.applying import desired, service

API = "default/kubernetes:https/tcp"
DNS = "kube-system/kube-dns:dns/udp"
WEB = "shop/web:http/tcp"
OTHER = "shop/other:http/tcp"


def cluster(*names: str, namespaces: str) -> Desired:
    wanted = [service(name, f"10.96.0.{n}:80/tcp", owner=KUBERNETES) for n, name in enumerate(names, 1)]
    return desired(*wanted, owner=KUBERNETES, kind=KUBERNETES, namespaces=frozenset(namespaces.split()))


@pytest.mark.parametrize(
    ("wanted", "gone", "words"),
    [
        # A whole cluster, in which services and whole namespaces end.
        (cluster(API, DNS, WEB, namespaces="default kube-system shop"), (), ""),
        (cluster(API, DNS, namespaces="default kube-system"), (WEB, OTHER), ""),
        (
            cluster(API, namespaces="default kube-system"),
            (DNS,),
            "",
        ),  # Services without an address are some, too
        (cluster(API, namespaces="default"), ("default/web:http/tcp",), ""),
        # kubectl get without -A: of the default namespace, or of another one.
        (cluster(API, namespaces="default"), (DNS, WEB, OTHER), "3 services of namespaces kube-system, shop"),
        (cluster(WEB, namespaces="shop"), (API, DNS), "2 services of namespaces default, kube-system"),
        (cluster(WEB, namespaces="shop"), (DNS,), "1 service of namespace kube-system would go"),
        # All namespaces, and the API server's is not there: it always is.
        (
            cluster(DNS, WEB, namespaces="default kube-system shop"),
            (API,),
            "has no Service default/kubernetes",
        ),
        (
            cluster(DNS, WEB, namespaces="kube-system shop"),
            (API, OTHER),
            "2 services of namespaces default, shop",
        ),
        # Manifests that somebody keeps in files are no cluster; what of them is missing is meant.
        (cluster(WEB, namespaces="shop"), (OTHER,), ""),
        (cluster(WEB, namespaces="shop"), ("of an own file",), ""),
        (desired(service("web", "10.0.0.1:80/tcp")), (API, DNS), ""),
    ],
)
def test_partial_input(wanted: Desired, gone: tuple[str, ...], words: str) -> None:
    found = partial_input(wanted, gone)
    assert len(found) == bool(words)
    assert words in "".join(found)
    assert (
        not words
        or "needed is what 'kubectl get services,endpointslices,nodes -A -o json' prints" in found[0]
    )
