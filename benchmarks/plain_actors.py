"""Plain actors of Ray, the yardstick for collectors in shards: Gymnasium's `SyncVectorEnv` and a policy in each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from vecenv.measurement.measure import Mode, Window
from vecenv.measurement.target import EnvFn

__all__ = ["PlainActorMode"]


class _PlainActor:
    """Steps its envs with its policy, as programs write it; `rollout` returns columns of shape (T, n, *S)."""

    def __init__(self, env_fns: Sequence[EnvFn], make_policy: Callable[[], Any], seed: int) -> None:
        self._envs = gymnasium.vector.SyncVectorEnv(list(env_fns))
        self._policy, self._ids = make_policy(), np.arange(len(env_fns))
        self._obs, _ = self._envs.reset(seed=seed)

    def rollout(self, num_steps: int) -> list[Any]:
        """Step all envs this number of times; return obs, actions, rewards, terminated, truncated and last obs."""
        space, num_envs = self._envs.single_observation_space, len(self._ids)
        obs = np.empty((num_steps, num_envs, *space.shape), space.dtype)
        actions = np.empty((num_steps, num_envs), np.int64)
        rewards = np.empty((num_steps, num_envs))
        terminated, truncated = np.empty((2, num_steps, num_envs), bool)
        for t in range(num_steps):
            obs[t], actions[t] = self._obs, self._policy(self._obs, self._ids)
            self._obs, rewards[t], terminated[t], truncated[t], _ = self._envs.step(actions[t])
        return [obs, actions, rewards, terminated, truncated, self._obs[None]]


class PlainActorMode(Mode):
    """Batches of `num_shards` plain actors with `num_envs` envs each, `num_steps` of each env, in lockstep.

    Args:
        env_fn: constructor of an env.
        make_policy: constructor of the policy of an actor.
    """

    def __init__(
        self, env_fn: EnvFn, make_policy: Callable[[], Any], *, num_shards: int, num_envs: int, num_steps: int
    ) -> None:
        super().__init__("plain actors")
        import ray

        self._ray, self._num_steps, self._num_envs = ray, num_steps, num_shards * num_envs
        actor = ray.remote(_PlainActor).options(num_cpus=1)
        self._actors = [actor.remote([env_fn] * num_envs, make_policy, seed) for seed in range(num_shards)]
        self.run(0.0)

    def run(self, seconds: float) -> Window:
        """Collect batches: the columns of all actors go into one array each."""
        batches, clock, ray = 0, time.perf_counter, self._ray
        cpu, start = time.process_time(), clock()
        while (now := clock()) < start + seconds or not batches:
            parts = ray.get([actor.rollout.remote(self._num_steps) for actor in self._actors])
            batch = [np.concatenate(columns, 1) for columns in zip(*parts)]
            assert len(batch) == len(parts[0])
            batches += 1
        return Window(batches * self._num_steps * self._num_envs, batches, now - start, time.process_time() - cpu)

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)
