"""`python -m benchmarks.memory`: how much parent and workers grow between step 100,000 and step 1,100,000.

A step is one call of `VectorEnv.step`, of all envs; memory is resident memory, shared pages included.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
from typing import Any

import gymnasium
import psutil

from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import count
from vecenv.measurement.target import action_batches, check_env, registered_env
from vecenv.vector import VectorEnv

_MIB = 1 << 20
_FIRST, _LAST = 100_000, 1_100_000


def growth(
    env_name: str = "CartPole-v1", num_envs: int = 8, first: int = _FIRST, last: int = _LAST, **kwargs: Any
) -> dict[str, float]:
    """Return the growth in MiB of 'parent' and of each 'worker i' between steps `first` and `last`."""
    with contextlib.closing(VectorEnv([functools.partial(gymnasium.make, env_name)] * num_envs, **kwargs)) as envs:
        actions = action_batches(envs.single_action_space, num_envs)
        pids = {"parent": os.getpid()} | {f"worker {i}": pid for i, pid in enumerate(envs.worker_pids)}
        envs.reset(seed=0)
        before: dict[str, int] = {}
        for step in range(1, last + 1):
            envs.step(next(actions))
            if step == first:
                before = _rss(pids)
        after = _rss(pids)
    return {name: (after[name] - before[name]) / _MIB for name in pids}


def _rss(pids: dict[str, int]) -> dict[str, int]:
    return {name: psutil.Process(pid).memory_info().rss for name, pid in pids.items()}


def main() -> None:
    """Print one line per process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description="Show that memory does not grow.")
    parser.add_argument("--env", default="CartPole-v1", help="registered env (default: %(default)s)")
    parser.add_argument("--envs", type=count, default=8, help="number of envs (default: %(default)s)")
    parser.add_argument("--workers", type=count, help="worker processes (default: one per usable core)")
    parser.add_argument("--from-step", type=count, default=_FIRST, help="first reading (default: %(default)s)")
    parser.add_argument("--to-step", type=count, default=_LAST, help="second reading (default: %(default)s)")
    options = parser.parse_args()
    if options.from_step > options.to_step:
        parser.error("--from-step must not be above --to-step")
    check_env(registered_env(options.env), options.env)
    for name, mib in growth(
        options.env, options.envs, options.from_step, options.to_step, num_workers=options.workers
    ).items():
        print(f"{name}: {mib:+.2f} MiB between step {options.from_step:,} and {options.to_step:,}")


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.memory", main))
