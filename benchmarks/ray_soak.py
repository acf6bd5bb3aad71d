"""`python -m benchmarks.ray_soak`: collect over Ray while actors and a node are killed; show that nothing was lost.

A simulated cluster has a head without CPUs, two nodes and a spare one. All kinds of envs are collected at the same
time, each kind in two shards. Every five seconds a random actor is killed with SIGKILL, also while it replaces another
one. After half of the time a node is removed. Then each kind is collected again in worker processes on this machine,
with the same seeds and actions. Every env's stream of observations, rewards and flags must be the same, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from benchmarks.simulated_cluster import SimulatedCluster, find_leftovers, pool_processes, simulated_cluster
from benchmarks.soak import Run, collect, env_and_count
from vecenv import RayOptions
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import natural, seconds
from vecenv.errors import require
from vecenv.measurement.target import check_env, registered_env

__all__ = ["Faults", "collect_under_faults"]

_DEFAULTS = ("CartPole-v1:256", "HalfCheetah-v5:32")
_SHARDS = RayOptions(num_shards=2, cpus_per_shard=1)
_NODE_CPUS = 2
#: How long the remains of killed actors and of the removed node may take to disappear, in seconds.
_EXIT_GRACE_SECONDS = 20.0
#: Pause between two looks whether all envs are built, or whether everything has ended.
_POLL_SECONDS = 0.1
#: Kinds of remains, as `find_leftovers` names them.
_KINDS = {"process": "processes", "actor": "actors", "placement group": "placement groups", "object": "store objects"}


class Faults(NamedTuple):
    """The numbers of actors that were killed, and of nodes that were removed."""

    num_actors: int
    num_nodes: int


def collect_under_faults(
    cluster: SimulatedCluster, envs: Sequence[tuple[str, int]], *, seconds: float, every: float, seed: int = 0
) -> tuple[list[Run], Faults]:
    """Collect all kinds of envs at the same time; kill actors and remove a node.

    Args:
        cluster: has room for two shards of each kind, also after one of its nodes has gone.
        envs: name and number of each kind.
        seconds: how long.
        every: seconds between two kills of an actor. A node is removed after half of the time.
        seed: of the choice.
    """
    end = threading.Event()
    began = [threading.Event() for _ in envs]

    def is_stopped(kind: int) -> bool:
        began[kind].set()
        return end.is_set()

    with ThreadPoolExecutor(len(envs)) as executor:
        try:
            runs = [
                executor.submit(
                    *(collect, env_name, num_envs),
                    seconds=seconds,
                    is_stopped=functools.partial(is_stopped, kind),
                    backend=_SHARDS,
                )
                for kind, (env_name, num_envs) in enumerate(envs)
            ]
            while not all(one.is_set() for one in began) and not _is_over(runs, _POLL_SECONDS):
                pass
            faults = _inject(cluster, runs, seconds=seconds, every=every, chance=random.Random(seed))
            return [run.result() for run in runs], faults
        finally:
            end.set()


def _is_over(runs: Sequence[Future[Run]], timeout: float) -> bool:
    """Wait, at most for a time; return whether a run has failed or all have ended."""
    done, pending = wait(runs, max(timeout, 0.0), FIRST_EXCEPTION)
    return not pending or any(run.exception() for run in done)


def _inject(
    cluster: SimulatedCluster, runs: Sequence[Future[Run]], *, seconds: float, every: float, chance: random.Random
) -> Faults:
    """Kill actors and a node until the time is over, or until a run has failed."""
    start = time.monotonic()
    next_kill, removal = start + every, start + seconds / 2
    num_actors = num_nodes = 0
    while (now := time.monotonic()) < start + seconds:
        if now >= next_kill:
            next_kill += every
            num_actors += _kill_actor(chance)
        if now >= removal:
            removal = float("inf")
            cluster.remove_node(cluster.node_of(chance.choice(_nodes_with_actors())))
            num_nodes += 1
        if _is_over(runs, min(next_kill, removal, start + seconds) - time.monotonic()):
            break
    return Faults(num_actors, num_nodes)


def _kill_actor(chance: random.Random) -> bool:
    """Kill an actor, unless there is none at the moment."""
    pids = sorted(pid for pid, title in pool_processes() if title.startswith("ray::ShardActor"))
    if not pids:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(pids), signal.SIGKILL)
        return True
    return False


def _nodes_with_actors() -> list[str]:
    from ray._private import state

    return sorted({one["Address"]["NodeID"] for one in state.actors().values() if one["State"] == "ALIVE"})


def main() -> int:
    """Run, print a line per kind of envs and the sums; exit code 1 if anything was lost, differs or is left.

    Raises:
        ConfigError: an env is unknown, or needs a package that is not installed.
        DependencyError: Ray is not installed.
    """
    options = _parse()
    require("ray", "ray")
    envs = options.env or [env_and_count(text) for text in _DEFAULTS]
    for env_name, _ in envs:
        check_env(registered_env(env_name), env_name)
    logging.getLogger("vecenv").setLevel(logging.ERROR)  # a line per kill would hide the result
    # Ray prints the end of a dead node's log to standard output.
    with contextlib.redirect_stdout(sys.stderr), simulated_cluster(num_nodes=3, num_cpus=_NODE_CPUS) as cluster:
        runs, faults = collect_under_faults(
            cluster, envs, seconds=options.seconds, every=options.every, seed=options.seed
        )
        left = _await_end()
    differing = 0
    for (env_name, num_envs), run in zip(envs, runs):
        reference = collect(env_name, num_envs, rounds=run.num_rounds)
        wrong = int((run.digests != reference.digests).sum())
        found = run.statistics
        print(
            f"{env_name}: {num_envs} envs, {run.num_rounds * num_envs:,} transitions, "
            f"{found['shards_replaced']} shards replaced, {found['replayed']} envs brought back, "
            f"{found['steps_replayed']:,} steps repeated, {wrong} streams differ",
            flush=True,
        )
        differing += wrong
    lost = sum(run.statistics["truncated"] for run in runs)
    counts = {name: sum(one.startswith(kind) for one in left) for kind, name in _KINDS.items()}
    numbers: dict[str, Any] = {
        "actors killed": faults.num_actors,
        "nodes removed": faults.num_nodes,
        "shards replaced": sum(run.statistics["shards_replaced"] for run in runs),
        "transitions collected": f"{sum(run.num_rounds * count for run, (_, count) in zip(runs, envs)):,}",
        "transitions lost": lost,
        "streams that differ": differing,
        **{f"{name} left": count for name, count in counts.items()},
    }
    for name, number in numbers.items():
        print(f"{name:<30} {number}")
    return 1 if lost or differing or left else 0


def _await_end() -> list[str]:
    """Return the remains of all pools that are still there after a grace period."""
    until = time.monotonic() + _EXIT_GRACE_SECONDS
    while (left := [*find_leftovers(), *_objects_in_stores()]) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    return left


def _objects_in_stores() -> list[str]:
    """Describe the memory that objects occupy in the stores of all nodes."""
    import ray

    name = "object_store_memory"
    used = ray.cluster_resources().get(name, 0) - ray.available_resources().get(name, 0)
    return [f"objects of {used:.0f} bytes in stores"] if used > 0 else []


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ray_soak", description="Kill actors and a node of a Ray cluster, count what is lost."
    )
    add = parser.add_argument
    add("--seconds", type=seconds, default=120.0, help="time to collect (default: %(default)s)")
    add("--every", type=seconds, default=5.0, help="seconds between kills (default: %(default)s)")
    add("--env", type=env_and_count, action="append", metavar="ID:N", help=f"at most two (default: {[*_DEFAULTS]})")
    add("--seed", type=natural, default=0, help="of the choice of actors and of the node (default: %(default)s)")
    options = parser.parse_args()
    if len(options.env or ()) > _NODE_CPUS:
        parser.error(f"--env: at most {_NODE_CPUS} kinds, since each one needs a CPU of two nodes")
    return options


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.ray_soak", main))
