"""A follower with nothing behind it: prints a JSON line for each apply, with what it was given. Run as a process.

    python -m tests.lib.follow_program JSON

JSON: {"kubectl": [program, option ...], "times": {...}, "fail": N, "once": bool, "node": name}; `fail`: as many applies fail
first. Lines: {"apply": [names]}, {"notice": ...}, {"node": true},
{"figures": {...}}, {"ended": signal}.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from svcctl.errors import SvcctlError
from svcctl.follow.kubectl import Kubectl
from svcctl.follow.loop import Applied, Follower, Hooks
from svcctl.follow.reflector import Times
from svcctl.follow.resources import RESOURCES, only_node
from svcctl.host.netns import Netns
from svcctl.host.route_changes import RouteChanges
from svcctl.model.sync_figures import Figures


def say(**line: Any) -> None:
    print(json.dumps(line | {"at": time.monotonic()}), flush=True)


def main() -> None:
    options = json.loads(sys.argv[1])
    failures = options.get("fail", 0)

    def apply(objects: list[dict[str, Any]]) -> Applied:
        nonlocal failures
        names = sorted(
            f"{item['kind']} {item['metadata']['name']} {len(item.get('endpoints') or ())}".removesuffix(" 0")
            for item in objects
        )
        say(apply=names)
        time.sleep(options.get("takes", 0))
        if failures:
            failures -= 1
            raise SvcctlError("apply: the test says no")
        return Applied(changed=1)

    def publish(figures: Figures) -> None:
        plain = {name: value for name, value in vars(figures).items() if isinstance(value, int | float)}
        plain["up"] = [one.up for one in figures.followed]
        plain["syncs"] = sum(figures.sync_seconds.counts)
        plain["programmed"] = sum(figures.programming_seconds.counts)
        say(figures=plain)

    hooks = Hooks(
        apply, lambda: say(node=True), lambda error: str(error), publish, lambda text: say(notice=text)
    )
    program, *more = options["kubectl"]
    with Netns.open() as netns:
        changes = RouteChanges(netns)
    follower = Follower(
        Kubectl(program, tuple(more)),
        hooks,
        changes,
        resources=only_node(options["node"]) if "node" in options else RESOURCES,
        times=Times(**options.get("times", {})),
        once=options.get("once", False),
    )
    say(ended=follower.run())
    changes.close()


if __name__ == "__main__":
    main()
