"""`python -m benchmarks.soak`: collect while workers are killed at random, then show that nothing was lost.

Each env is collected twice with the same seeds and actions: while a random worker is killed with SIGKILL every
half second, and in peace. Every env's stream of observations, rewards and flags of the first run must be that of
the second, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import count, seconds
from vecenv.measurement.target import action_batches, check_env, registered_env
from vecenv.vector import VectorEnv

__all__ = ["Round", "Run", "collect", "env_and_count", "step_rounds", "update_digests"]

#: The number of transitions of a round, and its arrays, with one row per stream.
Round = tuple[int, Sequence[Any]]

_PRIME = np.uint64(0x9E3779B97F4A7C15)
#: How long processes that were killed a moment ago may take to disappear, in seconds.
_EXIT_GRACE_SECONDS = 2.0


@dataclass
class Run:
    """The result of one collection: one digest per stream over all its rows."""

    num_rounds: int
    num_transitions: int
    digests: Any
    num_kills: int
    statistics: dict[str, Any]


def collect(
    env_name: str,
    num_envs: int,
    *,
    seconds: float | None = None,
    rounds: int | None = None,
    kill_every: float | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    play: Callable[[VectorEnv], Iterator[Round]] | None = None,
    **options: Any,
) -> Run:
    """Use envs with the same seeds and actions as in every other call.

    Args:
        env_name, num_envs: the envs.
        seconds, rounds: for so long, or so often.
        kill_every: seconds after which a random worker is killed. None: never.
        is_stopped: called before each round; returns whether to end early.
        play: yields rounds, which are always the same ones. None: `step_rounds`.
        options: of `VectorEnv`.
    """
    chance = random.Random(0)
    digests: Any = np.uint64(0)
    num_kills = num_rounds = num_transitions = 0
    env_fns = [registered_env(env_name, quiet=True)] * num_envs
    with contextlib.closing(VectorEnv(env_fns, **options)) as envs:
        played = (play or step_rounds)(envs)
        start = time.perf_counter()
        next_kill = start + kill_every if kill_every else np.inf
        while num_rounds != rounds and (seconds is None or time.perf_counter() - start < seconds) and not is_stopped():
            if time.perf_counter() >= next_kill:
                next_kill += kill_every or np.inf
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(envs.worker_pids), signal.SIGKILL)
                    num_kills += 1
            count, columns = next(played)
            for column in columns:
                digests = update_digests(digests, column)
            num_rounds += 1
            num_transitions += count
        statistics = envs.statistics()
    return Run(num_rounds, num_transitions, digests, num_kills, statistics)


def step_rounds(envs: VectorEnv) -> Iterator[Round]:
    """Step all envs in lockstep; a stream is that of an env."""
    first = envs.reset(seed=0)[:1]
    for actions in action_batches(envs.single_action_space, envs.num_envs):
        yield envs.num_envs, (*first, *envs.step(actions)[:4])
        first = ()


def update_digests(digests: Any, values: Any) -> Any:
    """Return digests, uint64 (n,), of which each one has taken in its row of values, (n, *S)."""
    rows = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8).astype(np.uint64)
    weights = np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * _PRIME
    return (digests ^ (rows * weights).sum(1)) * _PRIME + np.uint64(1)


def _segments() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def main() -> int:
    """Run, print a line per env and the sums; exit code 1 if anything was lost, differs or is left.

    Raises:
        ConfigError: an env is unknown, or needs a package that is not installed.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Kill workers, count what is lost.")
    add = parser.add_argument
    add("--seconds", type=seconds, default=60.0, help="in all, shared by the envs (default: %(default)s)")
    add("--every", type=seconds, default=0.5, help="seconds between kills (default: %(default)s)")
    defaults = ["CartPole-v1:64", "HalfCheetah-v5:32"]
    add("--env", type=env_and_count, action="append", metavar="ID:N", help=f"repeatable (default: {defaults})")
    add("--workers", type=count, help="worker processes (default: one per usable core)")
    options = parser.parse_args()
    envs = options.env or [env_and_count(text) for text in defaults]
    logging.getLogger("vecenv").setLevel(logging.ERROR)  # a line per kill would hide the result
    before = _segments()
    kills = recoveries = lost = differing = transitions = 0
    for env_name, _ in envs:
        check_env(registered_env(env_name), env_name)  # a missing package is reported before the first run
    for env_name, num_envs in envs:
        with_kills = collect(
            env_name,
            num_envs,
            seconds=options.seconds / len(envs),
            kill_every=options.every,
            num_workers=options.workers,
        )
        reference = collect(env_name, num_envs, rounds=with_kills.num_rounds, num_workers=options.workers)
        wrong = int((with_kills.digests != reference.digests).sum())
        found = with_kills.statistics
        print(
            f"{env_name}: {num_envs} envs, {with_kills.num_transitions:,} transitions, "
            f"{with_kills.num_kills} kills, {found['replayed']} envs brought back, "
            f"{found['steps_replayed']:,} steps repeated, {wrong} streams differ",
            flush=True,
        )
        kills += with_kills.num_kills
        recoveries += found["restarts"]
        lost += found["truncated"]
        differing += wrong
        transitions += with_kills.num_transitions
    children = [child for child in psutil.Process().children(recursive=True) if not _is_helper(child)]
    _, left = psutil.wait_procs(children, timeout=_EXIT_GRACE_SECONDS)
    segments = _segments() - before
    print(f"kills                          {kills}")
    print(f"recoveries                     {recoveries}")
    print(f"transitions collected          {transitions:,}")
    print(f"transitions lost               {lost}")
    print(f"streams that differ            {differing}")
    print(f"processes left                 {len(left)}")
    print(f"segments left                  {len(segments)}")
    return 1 if lost or differing or left or segments else 0


def env_and_count(text: str) -> tuple[str, int]:
    """Read ID:N, the name of an env and how many of it; 32 without N."""
    env_name, colon, number = text.partition(":")
    return env_name, count(number) if colon else 32


def _is_helper(process: psutil.Process) -> bool:
    """Whether this is the fork server or the resource tracker, which live as long as this process."""
    with contextlib.suppress(psutil.Error):
        line = " ".join(process.cmdline())
        return "fork_server" in line or "resource_tracker" in line
    return True


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.soak", main))
