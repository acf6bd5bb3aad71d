"""`python -m benchmarks.recovery`: the cost of recovery, without and with crashes.

    cost        env steps per second with recovery over those without, in interleaved pairs of windows
    death       from SIGKILL of an idle worker until the pool has noticed it
    hang        from the limit of a step that hangs until its worker is killed
    episode     `step` that finds its worker dead: 64 CartPoles, 400 steps into their episodes
    simulators  the same for 32 HalfCheetahs, 1000 steps into theirs

Medians; `recovery off` in the first means `failures="raise"`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import logging
import os
import select
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from vecenv.cli.exit_codes import run_command
from vecenv.envs import toys
from vecenv.measurement.target import action_batches, registered_env
from vecenv.vector import VectorEnv

_MS = 1000.0


def cost(pairs: int, seconds: float) -> tuple[float, float, float]:
    """Return the median ratio of the pairs, and its quartiles."""
    ratios = []
    with contextlib.ExitStack() as stack:
        modes = []
        for on_failure in ("recover", "raise"):
            envs = stack.enter_context(contextlib.closing(_make("CartPole-v1", 64, failures=on_failure)))
            envs.reset(seed=0)
            modes.append((envs, action_batches(envs.single_action_space, 64)))
        for pair in range(pairs):
            order = modes if pair % 2 else modes[::-1]
            rate = {id(mode[0]): _rate(*mode, seconds) for mode in order}
            ratios.append(rate[id(modes[0][0])] / rate[id(modes[1][0])])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def _make(env_name: str, num_envs: int, **kwargs: Any) -> VectorEnv:
    return VectorEnv([registered_env(env_name, quiet=True)] * num_envs, **kwargs)


def _rate(envs: VectorEnv, actions: Any, seconds: float) -> float:
    envs.step(next(actions))  # the workers wake up
    gc.collect()
    start = time.perf_counter()
    rounds = 0
    while time.perf_counter() - start < seconds:
        envs.step(next(actions))
        rounds += 1
    return rounds / (time.perf_counter() - start)


def death(times: int) -> float:
    """Return the median of milliseconds from a kill until the pidfd says so and the process is reaped."""
    found = []
    with contextlib.closing(_make("CartPole-v1", 2, num_workers=2)) as envs:
        envs.reset(seed=0)
        for _ in range(times):
            worker: Any = envs._pool._engine._group.workers[0]  # type: ignore[attr-defined]
            start = time.perf_counter()
            os.kill(worker.pid, signal.SIGKILL)
            select.select([worker.pidfd], [], [])
            found.append(time.perf_counter() - start)
            envs.step(np.zeros(2, np.int64))
    return statistics.median(found) * _MS


def hang(times: int, limit: float) -> float:
    """Return the median of milliseconds beyond the limit until a hang in C has ended in an error."""
    found = []
    for _ in range(times):
        fns: list[Callable[[], Any]] = [toys.CountEnv, functools.partial(toys.HangInC, 1)]
        envs = VectorEnv(fns, num_workers=2, failures="raise", timeouts={"step": limit, "close": 0.1})
        with contextlib.closing(envs):
            envs.reset(seed=0)
            start = time.perf_counter()
            with contextlib.suppress(TimeoutError):
                envs.step(np.zeros(2, np.int64))
            found.append(time.perf_counter() - start - limit)
    return statistics.median(found) * _MS


def come_back(env_name: str, num_envs: int, steps: int, times: int) -> tuple[float, int]:
    """Return the median of seconds that a `step` takes whose worker is dead, and how many steps are repeated."""
    found, repeated = [], 0
    with contextlib.closing(_make(env_name, num_envs)) as envs:
        actions = action_batches(envs.single_action_space, num_envs)
        for _ in range(times):
            envs.reset(seed=0)
            for _ in range(steps):
                envs.step(next(actions))
            before = envs.statistics()["steps_replayed"]
            os.kill(envs.worker_pids[0], signal.SIGKILL)
            start = time.perf_counter()
            envs.step(next(actions))
            found.append(time.perf_counter() - start)
            repeated = envs.statistics()["steps_replayed"] - before
    return statistics.median(found), repeated


def main() -> None:
    """Print a line per number, with the value that it should have."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description="What recovery costs.")
    parser.add_argument("--pairs", type=int, default=30, help="pairs of windows for the cost (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a window (default: %(default)s)")
    parser.add_argument("--times", type=int, default=9, help="repetitions of the others (default: %(default)s)")
    options = parser.parse_args()
    if options.pairs < 2 or options.times < 1 or options.seconds <= 0:
        parser.error("--pairs must be at least 2, --times at least 1, and --seconds positive")
    logging.getLogger("vecenv").setLevel(logging.ERROR)
    middle, low, high = cost(options.pairs, options.seconds)
    print(
        f"cost        {1 - middle:+.1%} of CartPole, 64 envs (quartiles {1 - high:+.1%} to {1 - low:+.1%}); at most 5%"
    )
    print(f"death       heard after {death(options.times):.2f} ms; under 5 ms")
    print(f"hang        limit + {hang(options.times, 0.1):.1f} ms; under 10 ms", flush=True)
    seconds, steps = come_back("CartPole-v1", 64, 400, options.times)
    print(f"episode     {seconds:.3f} s for {steps:,} steps of 32 envs; under 0.3 s for one episode of 400")
    with contextlib.suppress(gymnasium.error.DependencyNotInstalled):
        seconds, steps = come_back("HalfCheetah-v5", 32, 999, max(1, options.times // 3))
        print(f"simulators  {seconds:.2f} s for {steps:,} steps of 16 envs")


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.recovery", main))
