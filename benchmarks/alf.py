"""How the ALF front end is measured: its step against the ceiling, and slow resets with and without spare envs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks import rows
from benchmarks.rows import Effort
from vecenv.envs.toys import FixedSleepEnv
from vecenv.measurement.machine import cpu_seconds
from vecenv.measurement.measure import Mode, Window
from vecenv.measurement.target import action_batches

__all__ = ["AlfMode", "SLOW_RESET", "spare_env_gain"]

#: An env whose reset loads data: 1 ms a step and 50 ms a reset.
SLOW_RESET = functools.partial(FixedSleepEnv, 1.0, 50.0)


def make_slow(env_id: int) -> Any:
    """Make one as an ALF environment."""
    from vecenv.alf import AlfGymWrapper

    return AlfGymWrapper(SLOW_RESET(), env_id)


def spare_env_gain(num_envs: int, num_spares: int, effort: Effort) -> list[float]:
    """Return how many times more env steps per second there are with spare envs than without any.

    Both sides have a worker for each env, so that a reset delays only its own env.
    """
    return rows.ratio(
        functools.partial(AlfMode, [make_slow] * (num_envs + num_spares), num_spare_envs_for_reload=num_spares),
        functools.partial(AlfMode, [make_slow] * num_envs, "no spares", num_workers=num_envs),
        effort,
    )


class AlfMode(Mode):
    """`ParallelAlfEnvironment.step`: arrays in, time steps of arrays out. FIRST steps only reset and do not count."""

    def __init__(self, constructors: Sequence[Callable[..., Any]], name: str = "vecenv alf", **kwargs: Any) -> None:
        from vecenv.alf import ParallelAlfEnvironment

        super().__init__(name)
        self._env = ParallelAlfEnvironment(constructors, tensors=False, **kwargs)
        try:
            self.implementation = self._env.implementation
            space = spaces.Discrete(int(self._env.action_spec().maximum) + 1)
            self._actions = action_batches(space, self._env.batch_size)
            self._env.seed(0)
            self._env.reset()
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> Window:
        """Step all envs, again and again; a batch is one call."""
        step, actions, clock = self._env.step, self._actions, time.perf_counter
        steps, batches = 0, 0
        cpu, start = self._cpu_seconds(), clock()
        now, deadline = start, start + seconds
        while now < deadline:
            steps += int(np.count_nonzero(step(next(actions)).step_type))
            batches += 1
            now = clock()
        return Window(steps, batches, now - start, self._cpu_seconds() - cpu)

    def close(self) -> None:
        """End the workers."""
        self._env.close()

    def _cpu_seconds(self) -> float:
        return time.process_time() + sum(cpu_seconds(pid) for pid in self._env.worker_pids)
