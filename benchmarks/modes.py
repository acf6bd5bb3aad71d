"""More ways to step envs than `vecenv bench` has: DI-engine's manager, Stable-Baselines3's VecEnvs, vectorised envs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vecenv.measurement.machine import cpu_seconds, no_interrupts
from vecenv.measurement.measure import Mode, Window
from vecenv.measurement.target import NUM_BATCHES, EnvFn, action_batches, action_rows

__all__ = ["BatchedMode", "ManagerMode", "SB3VecEnvMode", "StableBaselines3Mode", "VecEnvMode", "VectorLoopMode"]


class ManagerMode(Mode):
    """`SyncSubprocessEnvManager.step`: dicts of actions in, dicts of timesteps out, resets in the same round."""

    _class_name = "SyncSubprocessEnvManager"

    def __init__(self, env_fns: Sequence[EnvFn], name: str = "vecenv manager", **cfg: Any) -> None:
        import vecenv.ding

        super().__init__(name)
        space = env_fns[0]().action_space
        self._actions = self._make_actions(space, len(env_fns))
        self._manager = getattr(vecenv.ding, self._class_name)(env_fn=list(env_fns), cfg=cfg)
        try:
            self._manager.launch()
        except BaseException:
            self.close()
            raise

    def _make_actions(self, space: Any, num_envs: int) -> Iterator[Any]:
        rows = itertools.islice(action_rows(space, num_envs), NUM_BATCHES)
        return itertools.cycle([dict(enumerate(row)) for row in rows])  # made before, as for the plain loop

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
    """`AsyncSubprocessEnvManager.step`: steps the envs that are ready and waits for half of those asked."""

    _class_name = "AsyncSubprocessEnvManager"

    def __init__(self, env_fns: Sequence[EnvFn], name: str = "vecenv async manager", **cfg: Any) -> None:
        # Hardly any collecting beyond wait_num: it would wait for everybody where envs are as quick as this.
        cfg = {"wait_num": max(1, len(env_fns) // 2), "step_wait_timeout": 1e-6, **cfg}
        super().__init__(env_fns, name, **cfg)

    def run(self, seconds: float) -> Window:
        """Step all envs that are ready; a batch is one call."""
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


class VecEnvMode(Mode):
    """`step` of a VecEnv of Stable-Baselines3, which resets in the same step."""

    def __init__(self, name: str, envs: Any, pids: Sequence[int | None]) -> None:
        super().__init__(name)
        self._envs = envs
        self._pids = [pid for pid in pids if pid]
        self._actions = action_batches(envs.action_space, envs.num_envs)
        try:
            envs.seed(0)
            envs.reset()
        except BaseException:
            self.close()
            raise

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


class StableBaselines3Mode(VecEnvMode):
    """`stable_baselines3.common.vec_env.SubprocVecEnv.step`: one process per env.

    Its workers are forked: started afresh, each of them would import torch. So it is built before other modes.
    """

    def __init__(self, env_fns: Sequence[EnvFn], name: str = "sb3 SubprocVecEnv") -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        with no_interrupts():
            envs = SubprocVecEnv(list(env_fns), start_method="fork")
        super().__init__(name, envs, [process.pid for process in envs.processes])


class SB3VecEnvMode(VecEnvMode):
    """`vecenv.integrations.sb3.SB3VecEnv.step`."""

    def __init__(self, env_fns: Sequence[EnvFn], name: str = "vecenv SB3VecEnv", **kwargs: Any) -> None:
        from vecenv.integrations.sb3 import SB3VecEnv

        envs = SB3VecEnv(list(env_fns), **kwargs)
        self.implementation = envs.vector_env.implementation
        super().__init__(name, envs, envs.vector_env.worker_pids)


class VectorLoopMode(Mode):
    """Vectorised envs in this process, stepped one after another; steps that only reset count, too."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], name: str = "vectorised loop") -> None:
        super().__init__(name)
        self._envs = [env_fn() for env_fn in env_fns]
        self._pids: tuple[int, ...] = ()
        self._begin()

    def _begin(self) -> None:
        self._actions = [action_batches(envs.single_action_space, envs.num_envs) for envs in self._envs]
        for envs in self._envs:
            envs.reset(seed=0)

    def run(self, seconds: float) -> Window:
        """Step all envs, again and again; a batch is one step of each of them."""
        pairs, clock = [(envs.step, actions) for envs, actions in zip(self._envs, self._actions)], time.perf_counter
        batches = 0
        cpu, start = self._cpu_seconds(), clock()
        now, deadline = start, start + seconds
        while now < deadline:
            for step, actions in pairs:
                step(next(actions))
            batches += 1
            now = clock()
        steps = batches * sum(envs.num_envs for envs in self._envs)
        return Window(steps, batches, now - start, self._cpu_seconds() - cpu)

    def close(self) -> None:
        """Close the envs."""
        for envs in self._envs:
            envs.close()

    def _cpu_seconds(self) -> float:
        return time.process_time() + sum(cpu_seconds(pid) for pid in self._pids)


class BatchedMode(VectorLoopMode):
    """`vecenv.BatchedVectorEnv.step` over the same envs, a worker for each."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], name: str = "vecenv batched", **kwargs: Any) -> None:
        from vecenv import BatchedVectorEnv

        envs = BatchedVectorEnv(env_fns, **kwargs)
        Mode.__init__(self, name)
        self.implementation = envs.implementation
        self._envs = [envs]
        self._pids = envs.worker_pids
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
