"""How ALF's face is measured: its step against the ceiling, and slow resets with and without spare envs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.cli.machine import cpu_seconds
from vecenv.cli.measure import Mode, Window
from vecenv.cli.target import action_batches

__all__ = ["AlfMode"]


class AlfMode(Mode):
    """`ParallelAlfEnvironment.step`: arrays in, time steps of arrays out. FIRST steps only reset and do not count."""

    def __init__(self, constructors: Sequence[Callable[..., Any]], name: str = "vecenv alf", **kwargs: Any) -> None:
        from vecenv import ParallelAlfEnvironment

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
