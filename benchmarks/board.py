"""`python -m benchmarks.board`: games per second of self-play with one worker and with two, measured alternately.

Beside them stand plain loops that step the same boards, one alone and two at once: how much faster two processes
are on this machine while nothing has to be waited for.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import count, seconds
from vecenv.envs.adapt import adapt
from vecenv.envs.board import Connect4Env
from vecenv.examples.self_play import MODES, make_games, random_policy
from vecenv.measurement import machine, measure
from vecenv.measurement.machine import cpu_seconds
from vecenv.measurement.measure import LoopMode, Mode, Window

WORKERS = (1, 2)
GOAL = 1.7


class SelfPlayMode(Mode):
    """Random legal actions for all boards at once; the steps of its windows are games."""

    call = "step"

    def __init__(self, against: str, num_envs: int, num_workers: int) -> None:
        super().__init__(f"connect4 against {against}, {self.call}, {num_workers} worker(s)")
        self._envs = make_games("connect4", num_envs, against, num_workers)
        self._policy = random_policy(np.random.default_rng(0))
        self._obs, _ = self._envs.reset(seed=0)

    def run(self, seconds: float) -> Window:
        """Play on; a batch is one step of all boards."""
        clock = time.perf_counter
        games, batches = 0, 0
        cpu, start = self._cpu_seconds(), clock()
        now, deadline = start, start + seconds
        while now < deadline:
            self._obs, _, ended, _, _ = self._envs.step(self._policy(self._obs))
            games += int(np.count_nonzero(ended))
            batches += 1
            now = clock()
        return Window(games, batches, now - start, self._cpu_seconds() - cpu)

    def close(self) -> None:
        """End the workers."""
        self._envs.close()

    def _cpu_seconds(self) -> float:
        return time.process_time() + sum(cpu_seconds(pid) for pid in self._envs.worker_pids)


class AsyncSelfPlayMode(SelfPlayMode):
    """Self-play by `send` and `recv`: each batch has the first half of the boards that have answered."""

    call = "send/recv"

    def run(self, seconds: float) -> Window:
        """Play on; a batch is one `recv`."""
        clock = time.perf_counter
        games, batches = 0, 0
        self._envs.send(self._policy(self._obs))
        cpu, start = self._cpu_seconds(), clock()
        now, deadline = start, start + seconds
        while now < deadline:
            obs, _, ended, _, infos = self._envs.recv(self._envs.num_envs // 2)
            games += int(np.count_nonzero(ended))
            batches += 1
            self._envs.send(self._policy(obs), infos["env_id"])
            now = clock()
        window = Window(games, batches, now - start, self._cpu_seconds() - cpu)
        self._drain()
        return window

    def _drain(self) -> None:
        owed = self._envs.num_envs
        while owed:
            obs, _, _, _, infos = self._envs.recv(owed)
            owed -= len(infos["env_id"])
            for key, column in obs.items():
                self._obs[key][infos["env_id"]] = column


def random_board() -> Any:
    """Make a board that ignores its actions and plays legal ones at random."""
    return adapt(Connect4Env({"prob_random_agent": 1.0}))


def main() -> None:
    """Measure and print."""
    options = _parse()
    print(", ".join(f"{key} {value}" for key, value in machine.describe_machine().items()))
    for against in MODES:
        _measure(against, options.envs, options.seconds, options.rounds)


def _measure(against: str, num_envs: int, seconds: float, rounds: int) -> None:
    openers: list[Callable[[], Mode]] = [
        functools.partial(mode, against, num_envs, num_workers)
        for mode in (SelfPlayMode, AsyncSelfPlayMode)
        for num_workers in WORKERS
    ]
    env_fns = [random_board] * num_envs
    openers.append(lambda: LoopMode("one loop", [env_fns]))
    openers.append(lambda: LoopMode("two loops", [env_fns[::2], env_fns[1::2]]))
    windows: dict[str, list[Window]] = {}
    with contextlib.ExitStack() as stack:
        modes = []
        for opener in openers:
            modes.append(opener())
            stack.callback(modes[-1].close)
        for name, window in measure.interleave(modes, seconds / rounds, rounds):
            windows.setdefault(name, []).append(window)
    for mode in modes:
        if isinstance(mode, SelfPlayMode):
            rate = statistics.median(window.rate for window in windows[mode.name])
            print(f"{mode.name}: {rate:,.0f} games per second")
    step_1, step_2, recv_1, recv_2, loop_1, loop_2 = (windows[mode.name] for mode in modes)
    print(
        f"two workers : one = {_ratio(step_2, step_1):.2f} by step, {_ratio(recv_2, recv_1):.2f} by send/recv", end=" "
    )
    print(f"(goal {GOAL}); two loops : one = {_ratio(loop_2, loop_1):.2f}")


def _ratio(windows: list[Window], others: list[Window]) -> float:
    return statistics.median(window.rate / other.rate for window, other in zip(windows, others, strict=True))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.board", description="Measure self-play.")
    parser.add_argument("--envs", type=count, default=64, help="boards (default: %(default)s)")
    parser.add_argument("--seconds", type=seconds, default=5.0, help="time for each mode (default: %(default)s)")
    parser.add_argument("--rounds", type=count, default=9, help="windows per mode, in turns (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.board", main))
