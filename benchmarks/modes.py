"""More ways to step envs than `vecenv bench` has: the manager of DI-engine's shape, and Stable-Baselines3."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from vecenv.cli.machine import cpu_seconds, no_interrupts
from vecenv.cli.measure import Mode, Window
from vecenv.cli.target import EnvFn, action_batches, action_rows

__all__ = ["ManagerMode", "StableBaselines3Mode"]


class ManagerMode(Mode):
    """`SyncSubprocessEnvManager.step`: dicts of actions in, dicts of timesteps out, resets in the same round."""

    _class_name = "SyncSubprocessEnvManager"

    def __init__(self, env_fns: Sequence[EnvFn], name: str = "vecenv manager", **cfg: Any) -> None:
        import vecenv

        super().__init__(name)
        space = env_fns[0]().action_space
        self._actions = self._make_actions(space, len(env_fns))
        self._manager = getattr(vecenv, self._class_name)(env_fn=list(env_fns), cfg=cfg)
        try:
            self._manager.launch()
        except BaseException:
            self.close()
            raise

    def _make_actions(self, space: Any, num_envs: int) -> Iterator[Any]:
        return (dict(enumerate(row)) for row in action_rows(space, num_envs))

    def run(self, seconds: float) -> Window:
        """Step all envs, again and again; a batch is one call."""
        step, actions, clock = self._manager.step, self._actions, time.perf_counter
        steps, batches = 0, 0
        cpu, start = self._cpu_seconds(), clock()
        now, deadline = start, start + seconds
        while now < deadline:
            steps += len(step(next(actions)))
            batches += 1
            now = clock()
        return Window(steps, batches, now - start, self._cpu_seconds() - cpu)

    def close(self) -> None:
        """Close the manager."""
        self._manager.close()

    def _cpu_seconds(self) -> float:
        return time.process_time() + sum(cpu_seconds(pid) for pid in self._manager.worker_pids)


class TreeManagerMode(ManagerMode):
    """`SubprocessEnvManagerV2.step`: one array of actions in, a list of trees out."""

    _class_name = "SubprocessEnvManagerV2"

    def __init__(self, env_fns: Sequence[EnvFn], name: str = "vecenv manager V2", **cfg: Any) -> None:
        super().__init__(env_fns, name, **cfg)

    def _make_actions(self, space: Any, num_envs: int) -> Iterator[Any]:
        return action_batches(space, num_envs)


class AsyncManagerMode(ManagerMode):
    """`AsyncSubprocessEnvManager.step`: the envs that are ready go on, half of those asked are waited for."""

    _class_name = "AsyncSubprocessEnvManager"

    def __init__(self, env_fns: Sequence[EnvFn], name: str = "vecenv async manager", **cfg: Any) -> None:
        # Hardly any collecting beyond wait_num: it would wait for everybody where envs are as quick as this.
        cfg = {"wait_num": max(1, len(env_fns) // 2), "step_wait_timeout": 1e-6, **cfg}
        super().__init__(env_fns, name, **cfg)

    def run(self, seconds: float) -> Window:
        """Step whatever is ready; a batch is one call."""
        manager, actions, clock = self._manager, self._actions, time.perf_counter
        steps, batches = 0, 0
        cpu, start = self._cpu_seconds(), clock()
        now, deadline = start, start + seconds
        while now < deadline:
            given = next(actions)
            steps += len(manager.step({env_id: given[env_id] for env_id in manager.ready_obs}))
            batches += 1
            now = clock()
        return Window(steps, batches, now - start, self._cpu_seconds() - cpu)


class StableBaselines3Mode(Mode):
    """`stable_baselines3.common.vec_env.SubprocVecEnv.step`: one process per env, resets in the same step.

    Its workers are forked: started afresh, each of them would import torch. So it is built before other modes.
    """

    def __init__(self, env_fns: Sequence[EnvFn], name: str = "sb3 SubprocVecEnv") -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        super().__init__(name)
        with no_interrupts():
            self._envs = SubprocVecEnv(list(env_fns), start_method="fork")
        self._pids = [process.pid for process in self._envs.processes]
        self._actions = action_batches(self._envs.action_space, len(env_fns))
        self._envs.reset()

    def run(self, seconds: float) -> Window:
        """Step all envs, again and again; a batch is one call."""
        step, actions, clock = self._envs.step, self._actions, time.perf_counter
        batches = 0
        cpu, start = self._cpu_seconds(), clock()
        now, deadline = start, start + seconds
        while now < deadline:
            step(next(actions))
            batches += 1
            now = clock()
        return Window(batches * self._envs.num_envs, batches, now - start, self._cpu_seconds() - cpu)

    def close(self) -> None:
        """End the processes."""
        self._envs.close()

    def _cpu_seconds(self) -> float:
        return time.process_time() + sum(cpu_seconds(pid) for pid in self._pids)
