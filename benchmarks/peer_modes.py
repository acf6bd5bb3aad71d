"""The vector envs of other libraries, and the front ends of vecenv: how each steps the same envs.

All step in lockstep, one action per env and call, except for the rows that end in "half": their batches have the
first half of the envs that answer. Ended episodes are reset in the way that the library means: by itself, or by a call
for the envs concerned. Steps that only reset an env do not count.

`peer_process` runs each mode in a process of its own; a library is imported there only.
"""

from __future__ import annotations

import abc
import functools
import importlib
import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.modes import ManagerMode, SB3VecEnvMode, StableBaselines3Mode, VecEnvMode
from vecenv.measurement import measure
from vecenv.measurement.machine import no_interrupts, usable_cores
from vecenv.measurement.measure import Mode, SyncMode, Window
from vecenv.measurement.target import NUM_BATCHES, EnvFn, action_batches, action_rows

__all__ = ["PEERS", "Peer", "Task"]


class Task(NamedTuple):
    """The envs to step.

    Attributes:
        title: as shown in tables.
        env_fn: builds one env.
        num_envs: how many.
        envpool_id: the id of the same env in EnvPool, '' if it has none.
    """

    title: str
    env_fn: EnvFn
    num_envs: int
    envpool_id: str = ""

    @property
    def env_fns(self) -> list[EnvFn]:
        """One constructor per env."""
        return [self.env_fn] * self.num_envs


class Peer(NamedTuple):
    """A way to step envs.

    Attributes:
        name: as shown in tables.
        module: the module that must be installed.
        install: the command that installs it.
        build: makes the mode of a task.
    """

    name: str
    module: str
    install: str
    build: Callable[[Task], Mode]

    def is_for(self, task: Task) -> bool:
        """Return whether the library has the envs of the task."""
        return "envpool" not in self.name.lower() or bool(task.envpool_id)


# ---- modes ---------------------------------------------------------------------------------------


class _TurnMode(Mode):
    """Base: a batch is one round, which steps all envs and resets those whose episode has ended."""

    def run(self, seconds: float) -> Window:
        """Take turns. The process measures the CPU time."""
        take_turn, clock = self._take_turn, time.perf_counter
        steps, batches, start = 0, 0, clock()
        now, deadline = start, start + seconds
        while now < deadline:
            steps += take_turn()
            batches += 1
            now = clock()
        return Window(steps, batches, now - start, 0.0)

    @abc.abstractmethod
    def _take_turn(self) -> int:
        """Step the envs; return how many have made a step."""


class TianshouMode(_TurnMode):
    """`BaseVectorEnv.step`, then `reset` for the envs that have ended, as Tianshou's Collector does."""

    def __init__(self, task: Task, name: str, kind: str, module: str = "tianshou.env") -> None:
        super().__init__(name)
        with no_interrupts():
            self._envs = getattr(importlib.import_module(module), kind)(task.env_fns)
        self._actions = action_batches(self._envs.action_space[0], task.num_envs)
        self._num_envs = task.num_envs
        self._envs.reset()

    def _take_turn(self) -> int:
        _, _, terminated, truncated, _ = self._envs.step(next(self._actions))
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            self._envs.reset(ended)
        return self._num_envs

    def close(self) -> None:
        """End the processes."""
        self._envs.close()


class TorchRLMode(_TurnMode):
    """`step_and_maybe_reset` of an env of TorchRL that contains all envs; `make` builds it."""

    def __init__(self, task: Task, name: str, make: Callable[[Task], Any]) -> None:
        import torch

        super().__init__(name)
        space = task.env_fn().action_space
        rows = itertools.islice(action_batches(space, task.num_envs), NUM_BATCHES)
        self._actions = itertools.cycle([torch.as_tensor(row) for row in rows])
        self._num_envs = task.num_envs
        with no_interrupts():
            self._envs = make(task)
            self._data = self._envs.reset()

    def _take_turn(self) -> int:
        self._data["action"] = next(self._actions)
        _, self._data = self._envs.step_and_maybe_reset(self._data)
        return self._num_envs

    def close(self) -> None:
        """End the processes."""
        self._envs.close()


def _torchrl_batched(task: Task, kind: str, **kwargs: Any) -> Any:
    import torchrl.envs

    env_fns = [functools.partial(_torchrl_env, task.env_fn)] * task.num_envs
    return getattr(torchrl.envs, kind)(task.num_envs, env_fns, **kwargs)


def _torchrl_wrapped(task: Task, kind: str, **kwargs: Any) -> Any:
    import gymnasium.vector
    from torchrl.envs import GymWrapper

    envs = getattr(gymnasium.vector, kind)(task.env_fns, autoreset_mode="Disabled", **kwargs)
    return GymWrapper(envs, categorical_action_encoding=True)


def _torchrl_vecenv(task: Task) -> Any:
    from vecenv.integrations.torchrl import VecenvEnv

    return VecenvEnv(task.env_fns, categorical_action_encoding=True)


def _torchrl_env(env_fn: EnvFn) -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(env_fn(), categorical_action_encoding=True)


class DingMode(_TurnMode):
    """`step` of DI-engine's managers: the envs that are ready, {env_id: action} in, {env_id: timestep} out."""

    def __init__(self, task: Task, name: str, kind: str, module: str = "ding.envs.env_manager") -> None:
        from easydict import EasyDict

        super().__init__(name)
        rows = itertools.islice(action_rows(task.env_fn().action_space, task.num_envs), NUM_BATCHES)
        self._actions = itertools.cycle([[np.asarray(action) for action in row] for row in rows])
        manager = getattr(importlib.import_module(module), kind)
        cfg = EasyDict({**manager.default_config(), "episode_num": float("inf")})
        with no_interrupts():
            self._manager = manager([functools.partial(_DingEnv, task.env_fn)] * task.num_envs, cfg)
            self._manager.launch()

    def _take_turn(self) -> int:
        given = next(self._actions)
        return len(self._manager.step({env_id: given[env_id] for env_id in self._manager.ready_obs}))

    def close(self) -> None:
        """End the processes."""
        self._manager.close()


class _Timestep(NamedTuple):
    obs: Any
    reward: Any
    done: bool
    info: dict[str, Any]


class _DingEnv:
    """A Gymnasium env with the interface of DI-engine, and hardly any work of its own."""

    def __init__(self, env_fn: EnvFn) -> None:
        self._env = env_fn()
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self.reward_space = None

    def reset(self) -> Any:
        return self._env.reset()[0]

    def step(self, action: Any) -> _Timestep:
        obs, reward, terminated, truncated, info = self._env.step(action)
        return _Timestep(obs, reward, terminated or truncated, info)

    def close(self) -> None:
        self._env.close()


class RLlibMode(_TurnMode):
    """`sample` of a `SingleAgentEnvRunner` with random actions: a round is 32 steps of each env, with RLlib's own work.

    Args:
        task: the envs.
        name: of the mode.
        vectorize_mode: "sync", "async", or "vector_entry_point" for the envs of vecenv.
    """

    _STEPS_PER_TURN = 32

    def __init__(self, task: Task, name: str, vectorize_mode: str) -> None:
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
        from ray.tune import register_env

        super().__init__(name)
        env_id = "vecenv-benchmark"
        if vectorize_mode == "vector_entry_point":
            from vecenv.integrations.rllib import register

            register(env_id, _WithoutContext(task.env_fn))
        else:
            register_env(env_id, _WithoutContext(task.env_fn))
        config = PPOConfig().environment(env_id)
        config.env_runners(gym_env_vectorize_mode=vectorize_mode, num_envs_per_env_runner=task.num_envs)
        with no_interrupts():
            self._runner = SingleAgentEnvRunner(config=config)
        self._num_steps = self._STEPS_PER_TURN * task.num_envs

    def _take_turn(self) -> int:
        self._runner.sample(num_timesteps=self._num_steps, random_actions=True)
        return self._num_steps

    def close(self) -> None:
        """End the processes."""
        self._runner.stop()


class _WithoutContext:
    """A creator of RLlib, which does not read its context."""

    def __init__(self, env_fn: EnvFn) -> None:
        self._env_fn = env_fn

    def __call__(self, context: Any) -> Any:
        return self._env_fn()


class _Puffer:
    """PufferLib's vector env with the names of Gymnasium's; it resets in the step after an end, too."""

    def __init__(self, task: Task, backend: Any, **kwargs: Any) -> None:
        import pufferlib.emulation
        import pufferlib.vector

        creator = functools.partial(_puffer_env, task.env_fn)
        self._envs = pufferlib.vector.make(creator, backend=backend, num_envs=task.num_envs, **kwargs)
        self.num_envs = task.num_envs
        self.single_action_space = task.env_fn().action_space
        self.step = self._envs.step

    def reset(self, seed: int) -> None:
        self._envs.reset(seed)

    def close(self) -> None:
        self._envs.close()


def _puffer_env(env_fn: EnvFn, buf: Any = None, seed: int = 0) -> Any:
    from pufferlib.emulation import GymnasiumPufferEnv

    return GymnasiumPufferEnv(env_creator=env_fn, buf=buf, seed=seed)


class _EnvPool:
    """EnvPool with the names of Gymnasium's; it has one thread per core, and envs in C++. Or vecenv's module for it."""

    def __init__(self, task: Task, module: str = "envpool") -> None:
        make = importlib.import_module(module).make_gymnasium
        self._envs = make(task.envpool_id, num_envs=task.num_envs, num_threads=usable_cores())
        self.num_envs = task.num_envs
        self.single_action_space = self._envs.action_space
        self.step = self._envs.step

    def reset(self, seed: int) -> None:
        self._envs.reset()

    def close(self) -> None:
        self._envs.close()


# ---- the table of peers --------------------------------------------------------------------------


def _gymnasium_sync(task: Task) -> Mode:
    from gymnasium.vector import SyncVectorEnv

    return SyncMode("gymnasium sync", SyncVectorEnv(task.env_fns), [])


def _sb3_dummy(task: Task) -> Mode:
    from stable_baselines3.common.vec_env import DummyVecEnv

    return VecEnvMode("sb3 DummyVecEnv", DummyVecEnv(task.env_fns), [])


def _puffer(name: str, backend: Any, task: Task, **kwargs: Any) -> Mode:
    return SyncMode(name, _Puffer(task, backend, **kwargs), [])


def _puffer_vecenv(task: Task) -> Mode:
    from vecenv.integrations.pufferlib import VecenvBackend

    return _puffer("vecenv VecenvBackend", VecenvBackend, task)


def _puffer_processes(task: Task) -> Mode:
    # The processes spin, and so does the caller: one of the cores is left to it.
    workers = max(count for count in range(1, max(2, usable_cores())) if task.num_envs % count == 0)
    return _puffer("pufferlib Multiprocessing", "Multiprocessing", task, num_workers=workers, overwork=True)


def _alf(task: Task) -> Mode:
    from benchmarks.alf import AlfMode

    return AlfMode([functools.partial(_alf_env, task.env_fn)] * task.num_envs, "vecenv ParallelAlfEnvironment")


def _alf_env(env_fn: EnvFn, env_id: int) -> Any:
    from vecenv.alf import AlfGymWrapper

    return AlfGymWrapper(env_fn(), env_id)


def _vecenv_half(task: Task) -> Mode:
    return measure.vecenv_async(task.env_fns, wait_num=max(1, task.num_envs // 2))


def _vecenv_serial(task: Task) -> Mode:
    return measure.vecenv_sync(task.env_fns, backend="serial")


def _vecenv_auto(task: Task) -> Mode:
    return measure.vecenv_sync(task.env_fns, backend="auto", name="vecenv VectorEnv, auto")


def _vecenv_envpool(task: Task) -> Mode:
    return SyncMode("vecenv make of EnvPool", _EnvPool(task, "vecenv.integrations.envpool"), [])


_PIP = "pip install"
_GYMNASIUM, _SB3, _PUFFER = f"{_PIP} gymnasium", f"{_PIP} stable-baselines3", f"{_PIP} --no-deps pufferlib-core"
_TIANSHOU, _TORCHRL, _RLLIB = f"{_PIP} tianshou", f"{_PIP} torchrl", f'{_PIP} "ray[rllib]"'
_DING = f"{_PIP} --no-deps DI-engine (benchmarks/README.md has the rest)"


def _tianshou(kind: str) -> Peer:
    name = f"tianshou {kind}"
    return Peer(name, "tianshou", _TIANSHOU, functools.partial(TianshouMode, name=name, kind=kind))


def _vecenv_tianshou(task: Task) -> Mode:
    return TianshouMode(task, "vecenv VecenvVectorEnv", "VecenvVectorEnv", "vecenv.integrations.tianshou")


def _torchrl(name: str, make: Callable[..., Any], **kwargs: Any) -> Peer:
    build = functools.partial(TorchRLMode, name=name, make=functools.partial(make, **kwargs))
    return Peer(name, "torchrl", _TORCHRL, build)


def _rllib(vectorize_mode: str, name: str = "") -> Peer:
    name = name or f"rllib {vectorize_mode}"
    return Peer(name, "ray", _RLLIB, functools.partial(RLlibMode, name=name, vectorize_mode=vectorize_mode))


def _vecenv_ding(task: Task) -> Mode:
    return DingMode(task, "vecenv manager in DI-engine", "SyncSubprocessEnvManager", "vecenv")


def _ding(kind: str) -> Peer:
    name = f"ding {kind}"
    return Peer(name, "ding", _DING, functools.partial(DingMode, name=name, kind=kind))


#: All peers, in the order of the table. Where processes can be forked, they are: their start is quick.
PEERS = (
    Peer("gymnasium sync", "gymnasium", _GYMNASIUM, _gymnasium_sync),
    Peer("gymnasium async", "gymnasium", _GYMNASIUM, lambda task: measure.gymnasium_async(task.env_fns)),
    Peer("sb3 DummyVecEnv", "stable_baselines3", _SB3, _sb3_dummy),
    Peer("sb3 SubprocVecEnv", "stable_baselines3", _SB3, lambda task: StableBaselines3Mode(task.env_fns)),
    Peer("pufferlib Serial", "pufferlib", _PUFFER, lambda task: _puffer("pufferlib Serial", "Serial", task)),
    Peer("pufferlib Multiprocessing", "pufferlib", _PUFFER, _puffer_processes),
    *map(_tianshou, ("DummyVectorEnv", "SubprocVectorEnv", "ShmemVectorEnv")),
    _torchrl("torchrl SerialEnv", _torchrl_batched, kind="SerialEnv"),
    _torchrl("torchrl ParallelEnv", _torchrl_batched, kind="ParallelEnv", mp_start_method="fork"),
    _torchrl("torchrl GymWrapper(SyncVectorEnv)", _torchrl_wrapped, kind="SyncVectorEnv"),
    _torchrl("torchrl GymWrapper(AsyncVectorEnv)", _torchrl_wrapped, kind="AsyncVectorEnv", context="fork"),
    *map(_rllib, ("sync", "async")),
    *map(_ding, ("BaseEnvManager", "SyncSubprocessEnvManager")),
    Peer("envpool, envs in C++", "envpool", f"{_PIP} envpool", lambda task: SyncMode("envpool", _EnvPool(task), [])),
    Peer("vecenv VectorEnv", "vecenv", "", lambda task: measure.vecenv_sync(task.env_fns, name="vecenv VectorEnv")),
    Peer("vecenv VectorEnv, recv of half", "vecenv", "", _vecenv_half),
    Peer("vecenv VectorEnv, serial", "vecenv", "", _vecenv_serial),
    Peer("vecenv VectorEnv, auto", "vecenv", "", _vecenv_auto),
    Peer("vecenv SB3VecEnv", "stable_baselines3", _SB3, lambda task: SB3VecEnvMode(task.env_fns)),
    Peer("vecenv VecenvVectorEnv", "tianshou", _TIANSHOU, _vecenv_tianshou),
    _torchrl("vecenv VecenvEnv", _torchrl_vecenv),
    Peer("vecenv VecenvBackend", "pufferlib", _PUFFER, _puffer_vecenv),
    _rllib("vector_entry_point", "vecenv in RLlib"),
    Peer("vecenv make of EnvPool", "vecenv", "", _vecenv_envpool),
    Peer("vecenv manager in DI-engine", "ding", _DING, _vecenv_ding),
    Peer("vecenv manager", "vecenv", "", lambda task: ManagerMode(task.env_fns)),
    Peer("vecenv ParallelAlfEnvironment", "vecenv", "", _alf),
)
