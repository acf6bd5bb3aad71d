"""The programs that measure Ray and kill its actors, for a moment each, on the cluster of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ray_rows
from benchmarks.ray_rows import Bench
from benchmarks.ray_soak import VARIANTS, collect_under_faults
from benchmarks.rows import Effort
from benchmarks.soak import collect
from tests.integrations.ray.cluster import ROOT, SimulatedCluster

pytest.importorskip("ray", exc_type=ImportError)

pytestmark = [pytest.mark.ray, pytest.mark.extended]


def test_rows_are_measured_by_turns_over_a_cluster(cluster: SimulatedCluster) -> None:
    (readings,) = ray_rows.split_gain(Bench(cluster, Effort(2, 0.1)))
    assert len(readings) == 2 and min(readings) > 0


@pytest.mark.parametrize("name", ["steps", "collector-in-actors", "evaluate-in-actors"])
def test_collecting_while_actors_and_a_node_are_killed_loses_nothing(name: str, cluster: SimulatedCluster) -> None:
    cluster.add_node()
    variant = VARIANTS[name]
    (run,), faults = collect_under_faults(cluster, [("CartPole-v1", 8)], variant, seconds=6.0, every=2.0)
    assert faults.num_actors >= 1 and faults.num_nodes == 1 and len(cluster.nodes) == 2
    assert run.statistics["shards_replaced"] >= 1 and run.statistics["truncated"] == 0
    assert (run.digests == collect("CartPole-v1", 8, rounds=run.num_rounds, play=variant.play).digests).all()


def test_bench_measures_the_cluster_of_ray_address_and_prints_the_rule(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    file = tmp_path / "bench.json"
    command = [sys.executable, "-m", "vecenv", "bench", "--ray", "--envs", "4", "--seconds", "0.2", "--rounds", "2"]
    command += ["--skip", "gymnasium", "--skip", "async", "--json", str(file)]
    environ = {**os.environ, "RAY_ADDRESS": cluster.address}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    found = json.loads(file.read_text())
    assert found["settings"]["ray_shards"] == 2 and found["settings"]["ray_workers"] == 4
    row = found["results"][-1]
    assert row["name"] == "vecenv ray" and row["steps_per_second"] > 0 and row["cpu_seconds_per_1000_steps"] is None
    rule = done.stdout.splitlines()[-1]
    assert found["ray_rule"] == rule and "over Ray (2 shards, 4 workers): Ray adds about" in rule
