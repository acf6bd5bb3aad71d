"""`python -m benchmarks.ray_soak`: use envs over Ray while processes and a node are killed; show that nothing was lost.

A simulated cluster has a head without CPUs, two nodes and a spare one. All kinds of envs are used at the same time,
each kind in two shards. Every five seconds a random actor is killed with SIGKILL, also while it replaces another one;
and in the middle between two of these kills a random worker process of a shard, if there are any. After half of the
time a node is removed. Then each kind is used again in worker processes on this machine, with the same seeds, actions
and policies. Every stream of observations, rewards and flags must be the same, bit for bit.

That is done for each row of `VARIANTS`: the program steps the envs, a `Collector` or `evaluate` has a policy in each
shard, and a shard steps its envs in workers or in the actor itself.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np

from benchmarks.simulated_cluster import SimulatedCluster, find_leftovers, pool_processes, simulated_cluster
from benchmarks.soak import Round, Run, collect, env_and_count, step_rounds, update_digests
from vecenv import Collector, RayOptions, VectorEnv, evaluate
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import natural, seconds
from vecenv.errors import require
from vecenv.measurement.target import NUM_BATCHES, action_batches, check_env, registered_env, take_rows

__all__ = ["VARIANTS", "Faults", "Variant", "collect_under_faults"]

_DEFAULTS = ("CartPole-v1:256", "HalfCheetah-v5:32")
_NUM_NODES, _NODE_CPUS = 3, 2
#: Steps of each env in a batch of a collector, and episodes of each env in an evaluation.
_BATCH_STEPS, _EPISODES = 32, 4
#: How long the remains of killed actors and of the removed node may take to disappear, in seconds.
_EXIT_GRACE_SECONDS = 20.0
#: Pause between two looks whether all envs are built, or whether everything has ended.
_POLL_SECONDS = 0.1
#: First word of each kind of remains, as `find_leftovers` names them.
_LEFT = {
    "processes left": "process",
    "actors left": "actor",
    "placement groups left": "placement group",
    "store objects left": "object",
}
#: First words in the command lines of the processes that are killed.
_ACTOR, _WORKER = "ray::ShardActor", "vecenv worker"


# ---- uses of the envs --------------------------------------------------------------------------


class _Policy:
    """Chooses actions by the observation, the number of steps in the episode, and the weights.

    Args:
        space: of the actions.
    """

    def __init__(self, space: Any) -> None:
        self._space, self._actions = space, next(action_batches(space, NUM_BATCHES))
        self._steps: dict[int, int] = {}
        self._weights = 0

    def begin(self, env_ids: Any) -> None:
        """Note that these envs begin an episode."""
        self._steps.update(dict.fromkeys(env_ids.tolist(), 0))

    def __call__(self, obs: Any, env_id: Any) -> Any:
        """Return the actions of a batch; each one depends on its row alone."""
        for env in env_id.tolist():
            self._steps[env] += 1
        digests = np.array([self._steps[env] for env in env_id.tolist()], np.uint64)
        chosen = (update_digests(digests, obs) >> np.uint64(32)) + np.uint64(self._weights)
        return take_rows(self._space, self._actions, (chosen % np.uint64(NUM_BATCHES)).astype(np.int64))

    def set_weights(self, weights: int) -> None:
        """Use another number."""
        self._weights = weights

    def get_state(self) -> Any:
        """Return the state from which a successor of the shard continues."""
        return self._steps, self._weights

    def set_state(self, state: Any) -> None:
        """Continue from the state of another policy."""
        self._steps, self._weights = state


def _place_policy(envs: VectorEnv) -> dict[str, Any]:
    """Return the arguments for a policy in each shard, or in this process if there are none."""
    make_policy = functools.partial(_Policy, envs.single_action_space)
    return {"where": "shards", "make_policy": make_policy} if envs.shards() else {"policy": make_policy()}


def _collector_rounds(envs: VectorEnv) -> Iterator[Round]:
    """Collect batches, each one with other weights; a stream is that of an env."""
    policy = _place_policy(envs)
    batches = Collector(envs, batch_steps=envs.num_envs * _BATCH_STEPS, time_major=True, seed=0, **policy)
    for weights in itertools.count():
        policy.get("policy", batches).set_weights(weights)
        batch = next(batches)
        columns = batch.obs, batch.next_obs, batch.actions, batch.rewards, batch.terminated, batch.truncated, batch.lost
        yield len(batch), [np.swapaxes(column, 0, 1) for column in columns]


def _evaluation_rounds(envs: VectorEnv) -> Iterator[Round]:
    """Evaluate with other seeds in each round; a stream is that of a row of the result."""
    count = envs.num_envs * _EPISODES
    for first in itertools.count(0, count):
        found = evaluate(envs, seeds=range(first, first + count), **_place_policy(envs))
        columns = found.seeds, found.returns, found.lengths, found.terminated, found.truncated
        yield int(found.lengths.sum()), columns


class Variant(NamedTuple):
    """A way to use envs over Ray.

    Attributes:
        play: see `benchmarks.soak.collect`.
        options: of `VectorEnv`.
    """

    play: Callable[[VectorEnv], Iterator[Round]]
    options: dict[str, Any]


_IN_WORKERS: dict[str, Any] = {"backend": RayOptions(num_shards=2, cpus_per_shard=1)}
#: Cheap envs are stepped in the actor. With the default window, a shard that is lost again gets workers.
_IN_ACTORS: dict[str, Any] = {
    "backend": RayOptions(num_shards=2, cpus_per_shard=1, num_workers="auto"),
    "failures": {"restart_window": 1e-3},
}
VARIANTS = {
    "steps": Variant(step_rounds, _IN_WORKERS),
    "collector": Variant(_collector_rounds, _IN_WORKERS),
    "evaluate": Variant(_evaluation_rounds, _IN_WORKERS),
    "steps-in-actors": Variant(step_rounds, _IN_ACTORS),
    "collector-in-actors": Variant(_collector_rounds, _IN_ACTORS),
    "evaluate-in-actors": Variant(_evaluation_rounds, _IN_ACTORS),
}


# ---- faults ------------------------------------------------------------------------------------


class Faults(NamedTuple):
    """The numbers of actors and of workers that were killed, and of nodes that were removed."""

    num_actors: int
    num_workers: int
    num_nodes: int


def collect_under_faults(
    cluster: SimulatedCluster,
    envs: Sequence[tuple[str, int]],
    variant: Variant,
    *,
    seconds: float,
    every: float,
    seed: int = 0,
) -> tuple[list[Run], Faults]:
    """Use all kinds of envs at the same time; kill actors and workers, and remove a node.

    Args:
        cluster: has room for two shards of each kind, also after one of its nodes has gone.
        envs: name and number of each kind.
        variant: how to use them.
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
                    play=variant.play,
                    **variant.options,
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
    """Kill actors and workers in turn, and a node, until the time is over or a run has failed."""
    start = time.monotonic()
    next_kill, removal = start + every, start + seconds / 2
    counts = {_ACTOR: 0, _WORKER: 0}
    titles = itertools.cycle(counts)
    num_nodes = 0
    while (now := time.monotonic()) < start + seconds:
        if now >= next_kill:
            next_kill += every / 2
            title = next(titles)
            counts[title] += _kill(title, chance)
        if now >= removal:
            removal = float("inf")
            cluster.remove_node(cluster.node_of(chance.choice(_nodes_with_actors())))
            num_nodes += 1
        if _is_over(runs, min(next_kill, removal, start + seconds) - time.monotonic()):
            break
    return Faults(counts[_ACTOR], counts[_WORKER], num_nodes)


def _kill(title: str, chance: random.Random) -> bool:
    """Kill a process of this kind, unless there is none at the moment."""
    pids = sorted(pid for pid, found in pool_processes() if found.startswith(title))
    if not pids:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(pids), signal.SIGKILL)
        return True
    return False


def _nodes_with_actors() -> list[str]:
    from ray._private import state

    return sorted({one["Address"]["NodeID"] for one in state.actors().values() if one["State"] == "ALIVE"})


# ---- the program -------------------------------------------------------------------------------


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
    sums: Counter[str] = Counter()
    out = sys.stdout
    # Ray prints the end of a dead node's log to standard output.
    with contextlib.redirect_stdout(sys.stderr), simulated_cluster(num_nodes=0) as cluster:
        for name in options.variant or VARIANTS:
            while len(cluster.nodes) < _NUM_NODES:
                cluster.add_node(_NODE_CPUS)
            how = {"seconds": options.seconds, "every": options.every, "seed": options.seed}
            lines, counts = _run(cluster, envs, name, **how)
            print(*lines, sep="\n", file=out, flush=True)
            sums.update(counts)
    for name, number in sums.items():
        print(f"{name:<30} {number:,}")
    return 1 if any(sums[name] for name in ("episodes lost", "streams that differ", *_LEFT)) else 0


def _run(
    cluster: SimulatedCluster, envs: Sequence[tuple[str, int]], name: str, **options: Any
) -> tuple[list[str], dict[str, int]]:
    """Use the envs in one way, over Ray and on this machine; return a line per kind, and the numbers of all kinds."""
    variant = VARIANTS[name]
    runs, faults = collect_under_faults(cluster, envs, variant, **options)
    left = _await_end()
    lines, differing = [], 0
    for (env_name, num_envs), run in zip(envs, runs):
        reference = collect(env_name, num_envs, rounds=run.num_rounds, play=variant.play)
        wrong = int((run.digests != reference.digests).sum())
        found = run.statistics
        lines.append(
            f"{name}, {env_name}: {num_envs} envs, {run.num_transitions:,} transitions, "
            f"{found['shards_replaced']} shards replaced, {found['num_workers']} workers at the end, "
            f"{found['replayed']} envs brought back, {found['steps_replayed']:,} steps repeated, "
            f"{wrong} of {len(run.digests)} streams differ"
        )
        differing += wrong
    counts = {
        "actors killed": faults.num_actors,
        "workers killed": faults.num_workers,
        "nodes removed": faults.num_nodes,
        "shards replaced": sum(run.statistics["shards_replaced"] for run in runs),
        "transitions collected": sum(run.num_transitions for run in runs),
        "episodes lost": sum(run.statistics["truncated"] for run in runs),
        "streams that differ": differing,
        **{name: sum(one.startswith(start) for one in left) for name, start in _LEFT.items()},
    }
    return lines, counts


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
    add("--seconds", type=seconds, default=60.0, help="for each variant (default: %(default)s)")
    add("--every", type=seconds, default=5.0, help="seconds between kills of actors (default: %(default)s)")
    add("--variant", choices=VARIANTS, action="append", help="repeatable (default: all)")
    add("--env", type=env_and_count, action="append", metavar="ID:N", help=f"at most two (default: {[*_DEFAULTS]})")
    add("--seed", type=natural, default=0, help="of the choice of victims (default: %(default)s)")
    options = parser.parse_args()
    if len(options.env or ()) > _NODE_CPUS:
        parser.error(f"--env: at most {_NODE_CPUS} kinds, since each one needs a CPU of two nodes")
    return options


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.ray_soak", main))
