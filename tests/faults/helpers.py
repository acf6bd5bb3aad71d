"""Envs that start helper processes, and every front end that steps them, for tests of the ends of these processes."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.collection.sharded import ShardedVectorEnv
from tests.faults.front_ends import FRONT_END_CLASSES
from tests.faults.traces import wait_until
from vecenv import BatchedVectorEnv, VectorEnv, collect, evaluate
from vecenv.alf import AlfGymWrapper, ParallelAlfEnvironment

#: Called before each step, with the number of the step.
Hook = Callable[[int], object]
#: (two env factories, start method, hook, further options) -> the answers of the envs.
Face = Callable[[list[Any], str, Hook], Any]
_STEPS = 9


class WithHelpers(gymnasium.Env[Any, Any]):
    """Starts a helper that ends at once, and one in a session of its own, which writes until it is ended.

    Args:
        folder: each new env notes its worker and its helper in a file of its number there.
    """

    observation_space, action_space = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, folder: str, number: int) -> None:
        subprocess.run(["true"], check=True)
        self.helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open(os.path.join(folder, str(number)), "a") as file:
            file.write(f"{os.getpid()} {self.helper.pid}\n")
        self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.num_steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        reward = float(self.np_random.random()) + action
        return np.full(1, self.num_steps, np.float32), reward, self.num_steps == 4, False, {}

    def close(self) -> None:
        self.helper.kill()
        self.helper.wait()


class Helpers:
    """The two envs of a face, their workers and their helpers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env_fns = [functools.partial(WithHelpers, str(folder), number) for number in range(2)]

    def _pids(self, number: int) -> list[tuple[int, int]]:
        lines = (self.folder / str(number)).read_text().splitlines()
        return [(int(worker), int(helper)) for worker, helper in map(str.split, lines)]

    def end_helper(self, number: int, at: int = -1) -> None:
        """End a helper of an env, and wait until the thread that relays its output has ended.

        Args:
            number: of the env.
            at: which one of its helpers, in their order.
        """
        before = _relays()
        end(self._pids(number)[at][1])
        if at == -1 and before:  # with shards, the threads are in their processes
            wait_until(lambda: len(_relays()) < len(before))

    def kill_worker(self, number: int) -> None:
        """Kill the worker of an env."""
        end(self._pids(number)[-1][0])

    def end_all(self) -> None:
        """End every helper that is left."""
        for number in range(2):
            for _, helper in self._pids(number) if (self.folder / str(number)).exists() else ():
                end(helper)

    def disturb(self, step: int) -> None:
        """End helpers before, during and after the death of their worker; a `Hook`."""
        if step == 1:
            self.end_helper(0)
            self.kill_worker(0)
        elif step == 3:
            self.kill_worker(1)  # its helper outlives it
        elif step == 5:
            self.end_helper(1, 0)
            self.kill_worker(0)
            end(self._pids(0)[-1][1])  # perhaps before its worker is found dead
        elif step == 7:
            self.end_helper(1)  # its worker ends with the pool


def _relays() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "vecenv output"]


def end(pid: int) -> None:
    """Kill a process, and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [])
        finally:
            os.close(pidfd)


# ---- faces ---------------------------------------------------------------------------------------


def _front_end(name: str, env_fns: list[Any], start: str, hook: Hook, **options: Any) -> Any:
    face = FRONT_END_CLASSES[name](
        env_fns, start, options, rounds=_STEPS, call_after=None, before=lambda pids, number: hook(number)
    )
    face.open()
    try:
        face.play()
    finally:
        face.close()
    return face.rows


def _step(envs: Any, hook: Hook, action: Any) -> Any:
    rows = []
    for number in range(_STEPS):
        hook(number)
        rows.append([np.asarray(part).tolist() for part in envs.step(action)[:3]])
    return rows


def _vector_env(make: Any, env_fns: list[Any], start: str, hook: Hook, **options: Any) -> Any:
    with contextlib.closing(make(env_fns, **{"num_workers": 2, "context": start, **options})) as envs:
        envs.reset(seed=3)
        return _step(envs, hook, np.zeros(2, np.int64))


def _batched(env_fns: list[Any], start: str, hook: Hook, **options: Any) -> Any:
    make = [functools.partial(gymnasium.vector.SyncVectorEnv, [env_fn]) for env_fn in env_fns]
    return _vector_env(BatchedVectorEnv, make, start, hook, **options)


def _sb3(env_fns: list[Any], start: str, hook: Hook, **options: Any) -> Any:
    module = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    with contextlib.closing(module.SB3VecEnv(env_fns, start, num_workers=2, **options)) as envs:
        envs.seed(3)
        envs.reset()
        return _step(envs, hook, np.zeros(2, np.int64))


def _alf(env_fns: list[Any], start: str, hook: Hook, **options: Any) -> Any:
    make = [functools.partial(_alf_env, env_fn) for env_fn in env_fns]
    rows = []
    with ParallelAlfEnvironment(make, tensors=False, num_workers=2, context=start, **options) as env:
        env.seed(3)
        env.reset()
        for number in range(_STEPS):
            hook(number)
            step = env.step(np.zeros(2, np.int64))
            rows.append((step.observation.tolist(), step.reward.tolist()))
    return rows


def _alf_env(env_fn: Any, env_id: int = 0) -> Any:
    return AlfGymWrapper(env_fn(), env_id)


class _HookedPolicy:
    def __init__(self, hook: Hook) -> None:
        self.hook, self.num_calls = hook, 0

    def __call__(self, obs: Any, env_id: Any) -> Any:
        self.hook(self.num_calls)
        self.num_calls += 1
        return np.zeros(len(env_id), np.int64)


def _collect(env_fns: list[Any], start: str, hook: Hook, **options: Any) -> Any:
    with VectorEnv(env_fns, num_workers=2, context=start, **options) as envs:
        found = collect(envs, _HookedPolicy(hook), steps=2 * _STEPS, seed=3)
    return found.obs.tolist(), found.rewards.tolist()


def _evaluate(env_fns: list[Any], start: str, hook: Hook, **options: Any) -> Any:
    with VectorEnv(env_fns, num_workers=2, context=start, **options) as envs:
        return evaluate(envs, _HookedPolicy(hook), seeds=range(6)).returns.tolist()


def _tianshou(env_fns: list[Any], start: str, hook: Hook, **options: Any) -> Any:
    module = pytest.importorskip("vecenv.integrations.tianshou", exc_type=ImportError)
    return _vector_env(module.VecenvVectorEnv, env_fns, start, hook, **options)


def _torchrl(env_fns: list[Any], start: str, hook: Hook, **options: Any) -> Any:
    module = pytest.importorskip("vecenv.integrations.torchrl", exc_type=ImportError)
    with contextlib.closing(module.VecenvEnv(env_fns, num_workers=2, context=start, **options)) as env:
        env.set_seed(3)
        policy = _TensorPolicy(env, hook)
        found = env.rollout(_STEPS, policy, break_when_any_done=False)
    return found["next", "reward"].tolist()


class _TensorPolicy:
    def __init__(self, env: Any, hook: Hook) -> None:
        self.env, self.hook, self.num_calls = env, hook, 0

    def __call__(self, tensordict: Any) -> Any:
        self.hook(self.num_calls)
        self.num_calls += 1
        return tensordict.set("action", self.env.full_action_spec["action"].zero())


def _shards(env_fns: list[Any], start: str, hook: Hook, **options: Any) -> Any:
    return _vector_env(ShardedVectorEnv, env_fns, start, hook, **{"num_workers": 1, **options})


FACES: dict[str, Face] = {
    "VectorEnv": functools.partial(_vector_env, VectorEnv),
    "sync": functools.partial(_front_end, "sync"),
    "async": functools.partial(_front_end, "async"),
    "V2": functools.partial(_front_end, "V2"),
    "BatchedVectorEnv": _batched,
    "SB3VecEnv": _sb3,
    "ALF": _alf,
    "collect": _collect,
    "evaluate": _evaluate,
    "Tianshou": _tianshou,
    "TorchRL": _torchrl,
    "shards": _shards,
}
