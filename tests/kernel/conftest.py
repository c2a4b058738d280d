"""What most kernel tests start from: a loaded dispatcher and a server process beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lib.balanced import SMALL, Balanced
from tests.lib.balanced import balanced as balanced_world
from tests.lib.cluster import Cluster
from tests.lib.cluster import cluster as new_cluster
from tests.lib.servers import Server
from tests.lib.svc import svc
from tests.lib.world import World


@pytest.fixture
def loaded(world: World) -> World:
    """A world with the dispatcher attached. Small maps, for speed."""
    svc("load", "--max-bindings", 10_000, "--max-destinations", 64)
    return world


@pytest.fixture
def server(world: World) -> Iterator[Server]:
    """A server process in the world."""
    with Server() as process:
        yield process


@pytest.fixture
def balanced(world: World) -> Iterator[Balanced]:
    """A world with the balancer on a cgroup that this process is in. Small maps, for speed."""
    with balanced_world(world, *SMALL) as made:
        yield made


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    """Three pods and a state for services; the test attaches the packet path."""
    with new_cluster(world) as made:
        yield made
