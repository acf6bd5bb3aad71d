"""`python -m benchmarks.auto`: is the choice of `num_workers="auto"` as fast as the best setting of a grid?

For each kind of env: every setting of the grid is measured in short windows, then the best one again by turns against
the choice, in pairs A B B A. The ratio of a pair is the speed of "auto" divided by that of the best. A median of at
least 0.95 is met.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium

from vecenv import VectorEnv
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import count, seconds
from vecenv.core.processes.worker import usable_cores
from vecenv.envs.toys import BusyEnv, NullEnv

_ASKED = 0.95


class NapEnv(NullEnv):
    """Sleeps for a millisecond at each step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.001)
        return self._result


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
    "sleep-1ms": (64, NapEnv),
    "reset-50ms": (16, SlowReset),
}


def _grid(num_envs: int) -> list[tuple[int, int]]:
    """Return pairs of workers and threads per worker."""
    cores = usable_cores()
    workers = sorted({1, cores, 2 * cores, 4 * cores, num_envs // 2, num_envs})
    pairs = [(count, 1) for count in workers if 1 <= count <= num_envs]
    return pairs + [(count, -(-num_envs // count)) for count in (1, cores, 2 * cores, 4 * cores) if count < num_envs]


class _Side:
    """A vector env and its actions."""

    def __init__(self, num_envs: int, env_fn: Callable[[], Any], **options: Any) -> None:
        self.envs = VectorEnv([env_fn] * num_envs, infos="none", **options)
        self.envs.action_space.seed(0)
        self._actions = [self.envs.action_space.sample() for _ in range(16)]
        self.envs.reset(seed=0)

    def measure(self, window: float) -> float:
        """Return the env steps per second of a window of that many seconds; rows of autoresets count."""
        num, began = 0, time.perf_counter()
        while (now := time.perf_counter()) - began < window or num < 3:
            self.envs.step(self._actions[num % len(self._actions)])
            num += 1
        return num * self.envs.num_envs / (now - began)


def _measure_grid(num_envs: int, env_fn: Callable[[], Any], window: float) -> tuple[int, int]:
    """Return the fastest pair of the grid."""
    rates = {}
    for workers, threads in _grid(num_envs):
        side = _Side(num_envs, env_fn, num_workers=workers, threads_per_worker=threads)
        side.measure(window / 2)
        rates[workers, threads] = side.measure(window)
        side.envs.close()
        print(f"    {workers:>3} workers x {threads:<3} {rates[workers, threads]:>12,.0f}", flush=True)
    return max(rates, key=lambda pair: rates[pair])


def _measure(name: str, pairs: int, window: float) -> float:
    """Measure one kind; return the median ratio."""
    num_envs, env_fn = _KINDS[name]
    best = _measure_grid(num_envs, env_fn, window)
    auto = _Side(num_envs, env_fn, num_workers="auto")
    found = auto.envs.statistics()
    chosen = found["num_workers"], found["threads_per_worker"]
    other = _Side(num_envs, env_fn, num_workers=best[0], threads_per_worker=best[1])
    ratios = []
    for pair in range(pairs):
        sides = (auto, other) if pair % 2 else (other, auto)
        rates = {id(side): 0.0 for side in sides}
        for side in (*sides, *sides[::-1]):
            rates[id(side)] += side.measure(window / 2)
        ratios.append(rates[id(auto)] / rates[id(other)])
    auto.envs.close()
    other.envs.close()
    median = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    verdict = "met" if median >= _ASKED else "missed"
    print(f"{name:<12} best {best[0]} x {best[1]}, auto {chosen[0]} x {chosen[1]}: {median:.3f}", end="   ")
    print(f"({low:.3f} to {high:.3f}) {verdict}", flush=True)
    print(f"    {found['choice']}", flush=True)
    return median


def main() -> int:
    """Measure the kinds; return 1 if one of them is below 0.95."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto", description=__doc__)
    parser.add_argument(
        "--kinds", nargs="+", choices=_KINDS, default=list(_KINDS), metavar="KIND", help=" ".join(_KINDS)
    )
    parser.add_argument("--pairs", type=count, default=10, help="pairs of windows (default: %(default)s)")
    parser.add_argument("--seconds", type=seconds, default=0.6, help="length of a window (default: %(default)s)")
    options = parser.parse_args()
    medians = [_measure(name, options.pairs, options.seconds) for name in options.kinds]
    return int(min(medians) < _ASKED)


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.auto", main))
