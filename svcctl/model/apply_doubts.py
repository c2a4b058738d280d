"""Why pruning by an input of a cluster may be a mistake: signs that the input is not all that the cluster has.

Which those are depends on what would go, so it is told by the plan and not by who reads the input
(`model/sources/kubernetes/doubts.py`). `kubectl get` without -A prints one namespace, and says so nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from svcctl.model.desired import Desired

API_SERVICE = "default/kubernetes"
"""The Service of the API server, in small letters. Every cluster has it: the API server makes it again."""

COMMAND = "kubectl get services,endpointslices,nodes -A -o json"
_SHOWN = 3


def is_api_service(name: str) -> bool:
    """Whether a service of svcctl's is a port of the API server's."""
    return name.lower().startswith(f"{API_SERVICE}:")


def partial_input(desired: Desired, gone: Iterable[str]) -> tuple[str, ...]:
    """What makes the input doubtful and what it would have needed; none: it may well be whole.

    `gone` are names of services of its owner that it does not ask for, and that pruning would remove.
    """
    if desired.namespaces is None:
        return ()
    theirs = [name for name in gone if "/" in name]
    elsewhere = [name for name in theirs if _namespace(name) not in desired.namespaces]
    if any(is_api_service(one.name) for one in desired.services):
        if len(desired.namespaces) > 1 or not elsewhere:
            return ()
        why = f"the input is of one namespace, {next(iter(desired.namespaces))}"
        lost = elsewhere
    else:
        lost = theirs if any(map(is_api_service, theirs)) else elsewhere
        if not lost:
            return ()
        why = f"the input has no Service {API_SERVICE}, which every cluster has"
    return (f"{why}: {_counted(lost)} would go; needed is what '{COMMAND}' prints",)


def _namespace(name: str) -> str:
    return name.partition("/")[0]


def _counted(names: Sequence[str]) -> str:
    spaces = sorted(set(map(_namespace, names)))
    shown = ", ".join(spaces[:_SHOWN]) + (", ..." if len(spaces) > _SHOWN else "")
    count = f"{len(names)} services" if len(names) > 1 else "1 service"
    return f"{count} of {'namespaces' if len(spaces) > 1 else 'namespace'} {shown}"
