"""Distributed collectors of other libraries, beside those in shards: RLlib's env runners and TorchRL's RayCollector.

Both take random actions, so that no policy costs them time.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from vecenv.measurement.measure import Mode, Window
from vecenv.measurement.target import EnvFn

__all__ = ["RLlibRunnersMode", "TorchRLCollectorMode"]


class _PeerMode(Mode):
    """Batches of `num_steps` steps of each of `num_shards` x `num_envs` envs."""

    def __init__(self, name: str, num_shards: int, num_envs: int, num_steps: int) -> None:
        super().__init__(name)
        self._batch_steps = num_shards * num_envs * num_steps
        self._start(num_shards, num_envs, num_steps)
        self.run(0.0)

    def _start(self, num_shards: int, num_envs: int, num_steps: int) -> None:
        raise NotImplementedError

    def _collect(self) -> None:
        raise NotImplementedError

    def run(self, seconds: float) -> Window:
        """Collect batches."""
        batches, clock = 0, time.perf_counter
        cpu, start = time.process_time(), clock()
        while (now := clock()) < start + seconds or not batches:
            self._collect()
            batches += 1
        return Window(batches * self._batch_steps, batches, now - start, time.process_time() - cpu)


class RLlibRunnersMode(_PeerMode):
    """`sample` of remote `SingleAgentEnvRunner`, each with a `SyncVectorEnv` of RLlib's own.

    Args:
        env_fn: constructor of an env.
        sizes: `num_shards`, `num_envs` and `num_steps`.
    """

    def __init__(self, env_fn: EnvFn, **sizes: int) -> None:
        self._env_fn = env_fn
        super().__init__("RLlib", **sizes)

    def _start(self, num_shards: int, num_envs: int, num_steps: int) -> None:
        import ray
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
        from ray.tune import register_env

        env_fn = self._env_fn
        register_env("vecenv-benchmark", lambda context: env_fn())
        config = PPOConfig().environment("vecenv-benchmark")
        config.env_runners(gym_env_vectorize_mode="sync", num_envs_per_env_runner=num_envs)
        runner = ray.remote(SingleAgentEnvRunner).options(num_cpus=1)
        self._ray, self._num_steps = ray, num_envs * num_steps
        self._runners = [runner.remote(config=config) for _ in range(num_shards)]

    def _collect(self) -> None:
        sample = [one.sample.remote(num_timesteps=self._num_steps, random_actions=True) for one in self._runners]
        self._ray.get(sample)

    def close(self) -> None:
        """End the runners."""
        for one in self._runners:
            self._ray.kill(one)


class TorchRLCollectorMode(_PeerMode):
    """Batches of TorchRL's `RayCollector`, each of whose collectors wraps a `SyncVectorEnv`.

    Args:
        env_fn: constructor of an env.
        sizes: as for `RLlibRunnersMode`.
    """

    def __init__(self, env_fn: EnvFn, **sizes: int) -> None:
        self._env_fn = env_fn
        super().__init__("TorchRL", **sizes)

    def _start(self, num_shards: int, num_envs: int, num_steps: int) -> None:
        from torchrl.collectors.distributed import RayCollector

        make = functools.partial(_make_torchrl_envs, [self._env_fn] * num_envs)
        self._collector = RayCollector(
            [make] * num_shards,
            None,
            frames_per_batch=self._batch_steps,
            total_frames=1 << 40,
            sync=True,
            remote_configs={"num_cpus": 1, "num_gpus": 0, "memory": 1 << 20},
        )
        self._batches = iter(self._collector)

    def _collect(self) -> None:
        next(self._batches)

    def close(self) -> None:
        """End the collectors."""
        self._collector.shutdown(shutdown_ray=False)


def _make_torchrl_envs(env_fns: Sequence[EnvFn]) -> Any:
    from gymnasium.vector import SyncVectorEnv
    from torchrl.envs import GymWrapper

    envs = SyncVectorEnv(env_fns, autoreset_mode="Disabled")
    return GymWrapper(envs, categorical_action_encoding=True)
