"""`python -m benchmarks.auto`: is the choice of `num_workers="auto"` as fast as the best setting of a grid?

For each kind of env: every setting of the grid is measured in short windows, then the best one alternately with
the choice, in pairs A B B A. The ratio of a pair is the speed of the choice divided by that of the best. A median of at
least 0.95 is met. The grid has workers and threads. With `--tune`, the choice is that of `vecenv.tune`, and the grid
has all that it tries: backend, workers, threads, `step` or `recv`, `copy` and `infos`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
from gymnasium.vector import SyncVectorEnv

import vecenv
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import count, seconds
from vecenv.core.advice.sizing import SERIAL, Setting
from vecenv.core.processes.worker import usable_cores
from vecenv.envs.toys import BusyEnv, FixedSleepEnv
from vecenv.measurement.measure import AsyncMode, Mode, SyncMode, VecenvSyncMode
from vecenv.tuning.candidates import Candidate, full_grid, settings

_ASKED = 0.95


class SlowReset(BusyEnv):
    """Computes for 50 us per step; an episode has 20 to 30 steps, and a reset sleeps for 50 ms."""

    _left = 0

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(0.05)
        result = super().reset(**kwargs)
        self._left = int(self.np_random.integers(20, 31))
        return result

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        self._left -= 1
        return obs, reward, self._left == 0, truncated, info


def _pong() -> Any:
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5", frameskip=4)


#: Name -> number of envs, constructor.
_KINDS: dict[str, tuple[int, Callable[[], Any]]] = {
    "cartpole": (64, functools.partial(gymnasium.make, "CartPole-v1")),
    "cheetah": (32, functools.partial(gymnasium.make, "HalfCheetah-v5")),
    "pong": (16, _pong),
    "busy-50us": (64, functools.partial(BusyEnv, 50.0)),
    "sleep-1ms": (64, FixedSleepEnv),
    "reset-50ms": (16, SlowReset),
}


@contextlib.contextmanager
def _open(num_envs: int, env_fn: Callable[[], Any], candidates: Iterable[Candidate]) -> Iterator[list[Mode]]:
    """Open the vector env of candidates that differ in their calls only; yield a mode for each."""
    first, *_ = candidates = list(candidates)
    if first.backend == "gymnasium":
        envs: Any = SyncVectorEnv([env_fn] * num_envs)
        modes: list[Mode] = [SyncMode(str(first), envs, ())]
    else:
        envs = vecenv.VectorEnv([env_fn] * num_envs, **first.options)
        modes = [
            VecenvSyncMode(str(one), envs, envs.worker_pids, is_reset=one is not first)
            if one.min_count is None
            else AsyncMode(str(one), envs, one.min_count, is_reset=one is not first)
            for one in candidates
        ]
    with contextlib.closing(envs):
        yield modes


def _measure_grid(num_envs: int, env_fn: Callable[[], Any], grid: Iterable[Candidate], window: float) -> Candidate:
    """Return the fastest candidate of the grid."""
    rates = {}
    for _, group in itertools.groupby(grid, lambda one: one.open_key):
        candidates = list(group)
        with _open(num_envs, env_fn, candidates) as modes:
            for candidate, mode in zip(candidates, modes):
                mode.run(window / 2)
                rates[candidate] = mode.run(window).rate
                print(f"    {candidate!s:<60} {rates[candidate]:>12,.0f}", flush=True)
    return max(rates, key=lambda candidate: rates[candidate])


def _choose_auto(num_envs: int, env_fn: Callable[[], Any]) -> tuple[Candidate, str]:
    """Return the choice of `num_workers="auto"` and its reason."""
    with contextlib.closing(vecenv.VectorEnv([env_fn] * num_envs, num_workers="auto")) as envs:
        envs.reset(seed=0)
        found = envs.statistics()
        setting = Setting(found["num_workers"], found["threads_per_worker"])
        return Candidate(setting, infos="none"), str(found["choice"])


def _choose_tune(num_envs: int, env_fn: Callable[[], Any]) -> tuple[Candidate, str]:
    """Return the choice of `vecenv.tune` and its text."""
    result = vecenv.tune(env_fn, num_envs)
    best, found = result.best, result.best.options
    setting = None if best.backend == "gymnasium" else SERIAL
    if best.backend == "process":
        setting = Setting(found["num_workers"], found.get("threads_per_worker", 1), found.get("num_spare_envs", 0))
    chosen = Candidate(setting, best.min_count, found.get("copy", True), found.get("infos", "all"))
    return chosen, f"{result}\n{result.elapsed:.0f} s"


def _measure(name: str, pairs: int, window: float, *, tune: bool) -> float:
    """Measure one kind; return the median ratio."""
    num_envs, env_fn = _KINDS[name]
    chosen, reason = (_choose_tune if tune else _choose_auto)(num_envs, env_fn)
    print(reason, flush=True)
    if tune:
        grid = list(full_grid(num_envs, usable_cores()))
    else:
        grid = [Candidate(setting, infos="none") for setting in settings(num_envs, usable_cores())]
    best = _measure_grid(num_envs, env_fn, grid, window)
    ratios = []
    with _open(num_envs, env_fn, [chosen]) as (own,), _open(num_envs, env_fn, [best]) as (other,):
        for mode in (own, other):
            mode.run(window / 2)
        for pair in range(pairs):
            sides = (own, other) if pair % 2 else (other, own)
            steps = {own: 0.0, other: 0.0}
            for side in (*sides, *sides[::-1]):
                steps[side] += side.run(window / 2).rate
            ratios.append(steps[own] / steps[other])
    median = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    verdict = "met" if median >= _ASKED else "missed"
    print(f"{name:<12} best {best}; chosen {chosen}: {median:.3f} ({low:.3f} to {high:.3f}) {verdict}", flush=True)
    return median


def main() -> int:
    """Measure the kinds; return 1 if one of them is below 0.95."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto", description=__doc__)
    parser.add_argument(
        "--kinds", nargs="+", choices=_KINDS, default=list(_KINDS), metavar="KIND", help=" ".join(_KINDS)
    )
    parser.add_argument("--pairs", type=count, default=10, help="pairs of windows (default: %(default)s)")
    parser.add_argument("--seconds", type=seconds, default=0.6, help="length of a window (default: %(default)s)")
    parser.add_argument("--tune", action="store_true", help="compare the choice of vecenv.tune with its full grid")
    options = parser.parse_args()
    medians = [_measure(name, options.pairs, options.seconds, tune=options.tune) for name in options.kinds]
    return int(min(medians) < _ASKED)


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.auto", main))
