"""How each row of `benchmarks.scaleout` is measured: every function returns one reading per repeat for each row.

Where something is compared, all sides are built first and then take turns, A B C A B C, so that each reading comes from
windows of the same round.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.plain_actors import PlainActorMode
from benchmarks.rows import Effort
from benchmarks.simulated_cluster import SimulatedCluster
from vecenv import Collector, RayOptions
from vecenv.envs.toys import BusyEnv, FixedSleepEnv, FrameEnv
from vecenv.measurement import measure
from vecenv.measurement.measure import Mode, Window
from vecenv.measurement.target import EnvFn, action_batches, registered_env
from vecenv.vector import VectorEnv

__all__ = [
    "CARTPOLE",
    "NODE_CPUS",
    "Bench",
    "added_round_time",
    "async_gain",
    "busy_ratios",
    "collector_ratio",
    "driver_cpu_us",
    "growth",
    "large_ratio",
    "node_seconds",
    "peer_ratio",
    "plain_ratio",
    "replacement_seconds",
    "split_gain",
]

#: CPUs that each simulated node claims to have: all pools of a row are open at the same time.
NODE_CPUS = 3
CARTPOLE = registered_env("CartPole-v1")
#: Steps between two deaths, so that there is something to repeat.
_ROUNDS_BETWEEN = 50

#: One reading per repeat, for each row.
Readings = tuple[list[float], ...]


class Bench:
    """A cluster, and the rows that were measured on it.

    Args:
        cluster: of nodes with `NODE_CPUS` CPUs.
        effort: of each side of a row.
    """

    def __init__(self, cluster: SimulatedCluster, effort: Effort) -> None:
        self.cluster = cluster
        self.effort = effort
        self._found: dict[Callable[[Bench], Readings], Readings] = {}

    def readings(self, measure_rows: Callable[[Bench], Readings], row: int) -> list[float]:
        """Return the readings of one row of a function, which is called once for all of its rows."""
        if measure_rows not in self._found:
            self._found[measure_rows] = measure_rows(self)
        return self._found[measure_rows][row]

    def take_turns(self, *openers: Callable[[], Mode]) -> list[dict[str, Window]]:
        """Return the window of each mode, by its name, for each repeat."""
        with contextlib.ExitStack() as stack:
            modes = []
            for opener in openers:
                modes.append(opener())
                stack.callback(modes[-1].close)
            rounds: list[dict[str, Window]] = [{} for _ in range(self.effort.repeats)]
            windows = measure.interleave(modes, self.effort.seconds, self.effort.repeats)
            for number, (name, window) in enumerate(windows):
                rounds[number // len(modes)][name] = window
        return rounds

    def require_nodes(self, count: int) -> None:
        """Add nodes up to this number."""
        while len(self.cluster.nodes) < count:
            self.cluster.add_node(NODE_CPUS)


class _Null:
    """An actor whose calls do nothing."""

    def call(self) -> None:
        """Return at once."""


class NullCallMode(Mode):
    """Calls of an actor that does nothing, one after the other."""

    def __init__(self) -> None:
        super().__init__("null call")
        import ray

        self._ray = ray
        self._actor = ray.remote(_Null).options(num_cpus=1).remote()
        ray.get(self._actor.call.remote())

    def run(self, seconds: float) -> Window:
        """Call the actor again and again; a batch is one call."""
        get, call, clock, calls = self._ray.get, self._actor.call.remote, time.perf_counter, 0
        cpu, start = time.process_time(), clock()
        while (now := clock()) < start + seconds:
            get(call())
            calls += 1
        return Window(calls, calls, now - start, time.process_time() - cpu)

    def close(self) -> None:
        """End the actor."""
        self._ray.kill(self._actor)


def _local(env_fns: Sequence[EnvFn]) -> Callable[[], Mode]:
    return functools.partial(measure.vecenv_sync, env_fns, name="local", num_workers=2)


def _sharded(
    env_fns: Sequence[EnvFn], num_shards: int, cpus: int, name: str = "", placement: str = "SPREAD"
) -> Callable[[], Mode]:
    options = RayOptions(num_shards=num_shards, cpus_per_shard=cpus, placement=placement)
    name = name or f"{num_shards} x {cpus}"
    return functools.partial(measure.vecenv_sync, env_fns, name=name, backend=options)


def _round_seconds(window: Window) -> float:
    return window.seconds / window.batches


# ---- in peace --------------------------------------------------------------------------------


def added_round_time(bench: Bench) -> Readings:
    """Return the round of 64 CartPoles with 1 and 2 shards, minus that of the process pool, in null calls."""
    env_fns = [CARTPOLE] * 64
    rounds = bench.take_turns(_local(env_fns), _sharded(env_fns, 1, 2), _sharded(env_fns, 2, 1), NullCallMode)

    def added(windows: dict[str, Window], name: str) -> float:
        more = _round_seconds(windows[name]) - _round_seconds(windows["local"])
        return more / _round_seconds(windows["null call"])

    return [added(windows, "1 x 2") for windows in rounds], [added(windows, "2 x 1") for windows in rounds]


def busy_ratios(bench: Bench) -> Readings:
    """Return the speed of 256 envs of 50 us with 1 and 2 shards, divided by that of the process pool."""
    env_fns = [functools.partial(BusyEnv, busy_us=50)] * 256
    rounds = bench.take_turns(_local(env_fns), _sharded(env_fns, 1, 2), _sharded(env_fns, 2, 1))
    return _ratios(rounds, "1 x 2", "local"), _ratios(rounds, "2 x 1", "local")


def large_ratio(bench: Bench) -> Readings:
    """Return the speed of 1024 CartPoles with 1 shard, divided by that of the process pool."""
    env_fns = [CARTPOLE] * 1024
    return (_ratios(bench.take_turns(_local(env_fns), _sharded(env_fns, 1, 2)), "1 x 2", "local"),)


def _ratios(rounds: Sequence[dict[str, Window]], name: str, other: str) -> list[float]:
    return [windows[name].rate / windows[other].rate for windows in rounds]


class _Unsplit(Mode):
    """The same mode, whose replies come as one value each."""

    def __init__(self, opener: Callable[[], Mode]) -> None:
        self._mode = opener()
        super().__init__(f"{self._mode.name}, unsplit")

    def run(self, seconds: float) -> Window:
        """Step with replies that are not split."""
        from vecenv.integrations.ray import carrier

        with mock.patch.object(carrier, "count_pieces", return_value=1):
            return self._mode.run(seconds)

    def close(self) -> None:
        """Close the envs."""
        self._mode.close()


def split_gain(bench: Bench) -> Readings:
    """Return the speed of 64 envs with frames of 28 KiB, divided by the same with replies that are not split."""
    sharded = _sharded([FrameEnv] * 64, 1, 2)
    rounds = bench.take_turns(sharded, functools.partial(_Unsplit, sharded))
    return (_ratios(rounds, "1 x 2", "1 x 2, unsplit"),)


def growth(bench: Bench) -> Readings:
    """Return the speed with 2 and 4 shards, each on a node of its own with 16 envs of 1 ms, as shares of linear."""
    bench.require_nodes(4)
    counts = (1, 2, 4)
    openers = [_sharded([FixedSleepEnv] * 16 * count, count, 1, f"{count}", "STRICT_SPREAD") for count in counts]
    rounds = bench.take_turns(*openers)
    found = [[ratio / count for ratio in _ratios(rounds, f"{count}", "1")] for count in counts[1:]]
    return found[0], found[1]


def async_gain(bench: Bench) -> Readings:
    """Return the speed of `recv(32)` of 48 envs in 3 shards, one ten times slower, divided by that of lockstep."""
    slow = functools.partial(FixedSleepEnv, 10.0)
    env_fns = [slow] * 16 + [FixedSleepEnv] * 32
    options = RayOptions(num_shards=3, cpus_per_shard=1)
    first = functools.partial(measure.vecenv_async, env_fns, wait_num=32, name="async", backend=options)
    rounds = bench.take_turns(first, _sharded(env_fns, 3, 1))
    return (_ratios(rounds, "async", "3 x 1"),)


def driver_cpu_us(bench: Bench) -> Readings:
    """Return the CPU time of the driver per env step in microseconds, for 256 CartPoles in 2 shards."""
    found = []
    with contextlib.closing(_sharded([CARTPOLE] * 256, 2, 1)()) as mode:
        mode.run(bench.effort.seconds)
        for _ in range(bench.effort.repeats):
            cpu = time.process_time()
            window = mode.run(bench.effort.seconds)
            found.append(1e6 * (time.process_time() - cpu) / window.steps)
    return (found,)


class LinearPolicy:
    """Pushes the cart to the side that a fixed linear function of the observation chooses."""

    def __init__(self) -> None:
        self._weights = np.random.default_rng(0).normal(size=4)

    def __call__(self, obs: Any, env_id: Any) -> Any:
        """Return the actions of a batch."""
        return (obs @ self._weights > 0).astype(np.int64)


class _CollectorMode(Mode):
    """Batches of a `Collector` over CartPoles, `num_steps` of each env."""

    def __init__(
        self,
        name: str,
        num_envs: int,
        num_steps: int,
        *,
        over_ray: bool,
        env_fn: EnvFn = CARTPOLE,
        num_workers: str | None = None,
    ) -> None:
        super().__init__(name)
        backend = RayOptions(num_shards=2, cpus_per_shard=1, num_workers=num_workers)
        options: dict[str, Any] = {"backend": backend} if over_ray else {"num_workers": 2}
        policy: dict[str, Any] = (
            {"where": "shards", "make_policy": LinearPolicy} if over_ray else {"policy": LinearPolicy()}
        )
        self._envs = VectorEnv([env_fn] * num_envs, **options)
        self._batches = Collector(self._envs, **policy, batch_steps=num_envs * num_steps, time_major=True, seed=0)

    def run(self, seconds: float) -> Window:
        """Collect batches."""
        steps, batches, clock = 0, 0, time.perf_counter
        cpu, start = time.process_time(), clock()
        while (now := clock()) < start + seconds:
            steps += len(next(self._batches))
            batches += 1
        return Window(steps, batches, now - start, time.process_time() - cpu)

    def close(self) -> None:
        """Close the envs."""
        self._envs.close()


def collector_ratio(num_envs: int, num_steps: int, bench: Bench) -> Readings:
    """Return transitions per second of a policy in 2 shards, divided by those of the same policy in this process."""
    mode = functools.partial(_CollectorMode, num_envs=num_envs, num_steps=num_steps)
    rounds = bench.take_turns(
        functools.partial(mode, "local", over_ray=False), functools.partial(mode, "shards", over_ray=True)
    )
    return (_ratios(rounds, "shards", "local"),)


def plain_ratio(env_fn: EnvFn, num_envs: int, num_steps: int, bench: Bench) -> Readings:
    """Return two readings of collectors in 2 shards, whose workers are chosen, next to plain actors.

    Args:
        env_fn: constructor of an env.
        num_envs: envs of a shard.
        num_steps: steps of each env in a batch.
        bench: of the row.

    Returns:
        Transitions per second divided by those of plain actors; CPU time of the driver per transition minus theirs, in
        microseconds.
    """
    ours = _shards_of_chosen_workers(env_fn, num_envs, num_steps)
    plain = functools.partial(
        *(PlainActorMode, env_fn, LinearPolicy), num_shards=2, num_envs=num_envs, num_steps=num_steps
    )
    rounds = bench.take_turns(plain, ours)

    def cpu_us(window: Window) -> float:
        return 1e6 * window.cpu_seconds / window.steps

    more = [cpu_us(windows["shards"]) - cpu_us(windows["plain actors"]) for windows in rounds]
    return _ratios(rounds, "shards", "plain actors"), more


def peer_ratio(
    peer: Callable[..., Mode], name: str, env_fn: EnvFn, num_envs: int, num_steps: int, bench: Bench
) -> Readings:
    """Return transitions per second of collectors in 2 shards, divided by those of another library's.

    Args:
        peer, name: the mode of the other library, and its name.
        env_fn, num_envs, num_steps, bench: as for `plain_ratio`.
    """
    theirs = functools.partial(peer, env_fn, num_shards=2, num_envs=num_envs, num_steps=num_steps)
    rounds = bench.take_turns(theirs, _shards_of_chosen_workers(env_fn, num_envs, num_steps))
    return (_ratios(rounds, "shards", name),)


def _shards_of_chosen_workers(env_fn: EnvFn, num_envs: int, num_steps: int) -> Callable[[], Mode]:
    return functools.partial(
        *(_CollectorMode, "shards", 2 * num_envs, num_steps), over_ray=True, env_fn=env_fn, num_workers="auto"
    )


# ---- deaths ----------------------------------------------------------------------------------


def replacement_seconds(bench: Bench) -> Readings:
    """Return the time of a step of 32 CartPoles in 2 shards whose actor was killed right before."""

    def kill(envs: VectorEnv) -> None:
        os.kill(envs.shards()[0].pid, signal.SIGKILL)

    return (_seconds_after(bench, kill, bench.effort.repeats),)


def node_seconds(bench: Bench) -> Readings:
    """Return the time of a step, and of the removal of a node right before. There is a spare node."""

    def remove(envs: VectorEnv) -> None:
        shard = envs.shards()[0]
        bench.cluster.remove_node(bench.cluster.node_of(shard.node_id))
        with contextlib.suppress(ProcessLookupError):
            os.kill(shard.pid, signal.SIGKILL)  # else it may serve until it misses its node

    return (_seconds_after(bench, remove, min(bench.effort.repeats, 3), num_nodes=3),)


def _seconds_after(bench: Bench, disturb: Callable[[VectorEnv], None], repeats: int, num_nodes: int = 2) -> list[float]:
    found = []
    options = RayOptions(num_shards=2, cpus_per_shard=1, placement="STRICT_SPREAD")
    with contextlib.closing(VectorEnv([CARTPOLE] * 32, backend=options)) as envs:
        actions = action_batches(envs.single_action_space, envs.num_envs)
        envs.reset(seed=0)
        for _ in range(repeats):
            bench.require_nodes(num_nodes)
            for _ in range(_ROUNDS_BETWEEN):
                envs.step(next(actions))
            start = time.perf_counter()
            disturb(envs)
            envs.step(next(actions))
            found.append(time.perf_counter() - start)
    return found
