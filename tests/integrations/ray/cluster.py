"""The simulated cluster of the tests: two nodes between tests, and programs that connect to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.simulated_cluster import SimulatedCluster, find_leftovers, simulated_cluster, title_of
from tests.faults.traces import wait_until

__all__ = [
    "ROOT",
    "SimulatedCluster",
    "find_leftovers",
    "reserve",
    "run_program",
    "simulated_cluster",
    "title_of",
    "wait_until_free",
]

ROOT = Path(__file__).parents[3]


def wait_until_free(cluster: SimulatedCluster) -> None:
    """Wait until there are two nodes, no CPU of which is reserved, for the next test."""
    import ray

    while len(cluster.nodes) < 2:  # a test has failed
        cluster.add_node()
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 2 * len(cluster.nodes))


def reserve(bundles: list[dict[str, float]], **options: Any) -> Any:
    """Return a placement group whose bundles are reserved.

    If Ray removes a group while it looks for nodes, the resources of one bundle may stay reserved.
    """
    import ray

    group = ray.util.placement_group(bundles, **options)
    ray.get(group.ready(), timeout=60)
    return group


def run_program(cluster: SimulatedCluster, program: str, returncode: int = 0) -> str:
    """Run a program that connects to the cluster, by `ray.init()` or by ADDRESS; return its output."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_ADDRESS": cluster.address}
    source = program.replace("ADDRESS", repr(cluster.address))
    command = [sys.executable, "-W", "ignore", "-c", source]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == returncode, done.stderr
    return done.stdout
