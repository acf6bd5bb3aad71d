"""`Collector` against the bare loop over `send` and `recv`, and overlap against lockstep, measured alternately."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.rows import Effort, ratio
from vecenv import Collector, VectorEnv
from vecenv.envs.toys import BusyEnv
from vecenv.measurement.measure import Mode, Window
from vecenv.measurement.target import EnvFn

__all__ = ["collector_to_bare_loop", "overlap_to_lockstep"]

#: Rounds in a batch.
_NUM_ROUNDS = 64
_POLICY_SECONDS, _BUSY_US = 2e-3, 500.0


class BareLoopMode(Mode):
    """`send` and `recv` of all envs with random actions; nothing is stored."""

    def __init__(self, env_fns: Sequence[EnvFn]) -> None:
        super().__init__("bare loop")
        self._generator = np.random.default_rng(0)
        self._envs = VectorEnv(env_fns)
        self._envs.async_reset(seed=0)
        self._env_ids = self._envs.recv()[4]["env_id"]

    def run(self, seconds: float) -> Window:
        """Step all envs again and again. Rows of autoresets do not count."""
        draw, envs, env_ids, steps, batches = self._generator.integers, self._envs, self._env_ids, 0, 0
        cpu, start = time.process_time(), time.perf_counter()
        now = start
        while now - start < seconds:
            envs.send(draw(0, 2, len(env_ids)), env_ids)
            *_, infos = envs.recv()
            env_ids = infos["env_id"]
            steps += len(env_ids) - int(np.count_nonzero(infos["autoreset"]))
            batches += 1
            now = time.perf_counter()
        self._env_ids = env_ids
        return Window(steps, batches, now - start, time.process_time() - cpu)

    def close(self) -> None:
        """Close the envs."""
        self._envs.close()


class CollectorMode(Mode):
    """Batches of a `Collector`."""

    def __init__(self, env_fns: Sequence[EnvFn], policy: Any, name: str, **options: Any) -> None:
        super().__init__(name)
        self._envs = VectorEnv(env_fns)
        self._collector = Collector(self._envs, policy, batch_steps=_NUM_ROUNDS * len(env_fns), seed=0, **options)

    def run(self, seconds: float) -> Window:
        """Collect batches."""
        steps, batches = 0, 0
        cpu, start = time.process_time(), time.perf_counter()
        now = start
        while now - start < seconds:
            steps += len(next(self._collector))
            batches += 1
            now = time.perf_counter()
        return Window(steps, batches, now - start, time.process_time() - cpu)

    def close(self) -> None:
        """Close the envs."""
        self._envs.close()


def collector_to_bare_loop(env_fn: EnvFn, num_envs: int, effort: Effort) -> list[float]:
    """Return transitions per second of `Collector` with a random policy, in shares of the bare loop."""
    generator = np.random.default_rng(0)

    def policy(obs: Any, env_id: Any) -> Any:
        return generator.integers(0, 2, len(env_id))

    env_fns = [env_fn] * num_envs
    ours = functools.partial(CollectorMode, env_fns, policy, "collector")
    return ratio(ours, functools.partial(BareLoopMode, env_fns), effort)


def overlap_to_lockstep(num_envs: int, effort: Effort) -> list[float]:
    """Return how many times faster overlap is where the policy and a round of the envs take 2 ms each.

    The policy waits, as for an accelerator, 2 ms for all envs and 1 ms for half of them.
    """

    def policy(obs: Any, env_id: Any) -> Any:
        time.sleep(_POLICY_SECONDS * len(env_id) / num_envs)
        return np.zeros(len(env_id), np.int64)

    env_fns = [functools.partial(BusyEnv, busy_us=_BUSY_US)] * num_envs

    def mode(name: str, overlap: bool) -> Callable[[], Mode]:
        return functools.partial(CollectorMode, env_fns, policy, name, overlap=overlap)

    return ratio(mode("overlap", True), mode("lockstep", False), effort)
