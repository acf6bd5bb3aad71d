"""A simulated cluster for the tests of this folder, and their leak guard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.traces import wait_until
from tests.integrations.ray.cluster import SimulatedCluster, find_leftovers, simulated_cluster, wait_until_free


@pytest.fixture(scope="package")
def cluster() -> Iterator[SimulatedCluster]:
    """A head without CPUs and two nodes; this process is connected to it."""
    with simulated_cluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def leak_guard(cluster: SimulatedCluster) -> Iterator[None]:
    """Fail a test that leaves an actor, a placement group, a process of a pool or an object in the cluster.

    This replaces the guard of all other tests: Ray keeps processes, threads and descriptors of its own.
    """
    yield
    left: list[str] = []

    def is_clean() -> bool:
        left[:] = find_leftovers()
        return not left

    try:
        wait_until(is_clean, 15.0)
        wait_until_free(cluster)
    except AssertionError:
        pytest.fail(f"left behind: {'; '.join(left) or 'reserved CPUs'}", pytrace=False)
