"""Why an input may be an outage of its source rather than a wish (traps S1 to S3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcctl.model.apply_doubts import COMMAND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcctl.model.desired import Node
    from svcctl.model.sources.kubernetes.intake import Intake


def blockers(intake: Intake, nodes: Sequence[Node], node: str, *, asked_for_own: bool) -> tuple[str, ...]:
    """Each says what is wrong and what it would have needed; none: the input can be applied.

    `asked_for_own`: of the nodes only ours was asked for, so that without any there is none of that name.
    kubectl goes on after a kind of object that it may not list and says so only on stderr, so a whole kind
    that is missing is a reason. Every cluster has a Service (default/kubernetes) and a slice for it.
    """
    found = list(intake.gaps)
    if not intake.any_objects:
        if not found:
            found.append(f"the input has no objects; needed is what '{COMMAND}' prints")
        return tuple(found)
    if intake.services and not intake.any_slices:
        count = f"{len(intake.services)} Services" if len(intake.services) > 1 else "1 Service"
        found.append(
            f"{count} and not one EndpointSlice: every backend would go; needed are the EndpointSlices, too"
        )
    if not intake.services:
        found.append(
            "no Service: each that is there would go; needed are the Services, of which every cluster has one"
        )
    if (nodes or asked_for_own) and not any(each.own for each in nodes):
        names = ", ".join(sorted(each.name for each in nodes)[:3]) + (", ..." if len(nodes) > 3 else "")
        others = f" (there are {names})" if names else ""
        which = f"is called {node}" if node else "has our name, which is not known (--node)"
        found.append(f"no Node {which}{others}: nothing would be local; needed is this node's, or its name")
    return tuple(found)
