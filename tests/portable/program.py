"""A program with a pool of each front end; its rows are those of envs in the program itself. See `test_portable`.

Arguments: the start method, '' for the default; the implementation that pools must choose; a folder for marks.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from vecenv import VectorEnv, WorkerTimeoutError
from vecenv.alf import create_environment
from vecenv.core.layout.native import implementation as chosen
from vecenv.ding import BaseEnvManager, SyncSubprocessEnvManager
from vecenv.envs import toys

NUM_ENVS, NUM_STEPS = 4, 30


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


ENV_FNS = [cartpole] * NUM_ENVS
ACTIONS = np.random.default_rng(0).integers(0, 2, (NUM_STEPS, NUM_ENVS))


def rows_of_steps(env_fns: list[Any], *, kill_at: int | None = None, **options: Any) -> tuple[list[Any], set[str]]:
    """Return the arrays of a reset and of steps, and the recovery marks; a worker is killed before step `kill_at`."""
    marks: set[str] = set()
    with VectorEnv(env_fns, **options) as envs:
        rows: list[Any] = [envs.reset(seed=3)[0].copy()]
        for number, actions in enumerate(ACTIONS):
            if number == kill_at:
                os.kill(envs.worker_pids[0], signal.SIGKILL)
            *arrays, infos = envs.step(actions)
            rows += [array.copy() for array in arrays]
            marks |= set(infos.get("recovered", [None])) - {None}
        pids = envs.worker_pids
    assert not any(map(psutil.pid_exists, pids))
    return rows, marks


def rows_of_receives(**options: Any) -> list[Any]:
    """Return the observation and the reward of each env after each step, received in any order."""
    with VectorEnv(ENV_FNS, **options) as envs:
        envs.reset(seed=3)
        rows = []
        for actions in ACTIONS:
            envs.send(actions)
            found: dict[int, Any] = {}
            while len(found) < NUM_ENVS:
                obs, rewards, *_, infos = envs.recv(1)
                found |= {i: (*obs[k], rewards[k]) for k, i in enumerate(infos["env_id"].tolist())}
            rows.append(np.array([found[i] for i in range(NUM_ENVS)]))
    return rows


def rows_of_manager(manager_class: Any, **cfg: Any) -> list[Any]:
    with contextlib.closing(manager_class(ENV_FNS, {"auto_reset": True, **cfg})) as manager:
        manager.seed(3)
        manager.launch()
        rows = []
        for actions in ACTIONS:
            timesteps = manager.step({i: int(actions[i]) for i in manager.ready_obs})
            rows += [np.append(timesteps[i].obs, timesteps[i].reward) for i in sorted(timesteps)]
    return rows


def rows_of_sb3(**options: Any) -> list[Any]:
    from vecenv.integrations.sb3 import SB3VecEnv

    with contextlib.closing(SB3VecEnv(ENV_FNS, **options)) as envs:
        envs.seed(3)
        rows = [envs.reset()]
        for actions in ACTIONS:
            rows += envs.step(actions)[:3]
    return rows


def rows_of_alf(**options: Any) -> list[Any]:
    with create_environment("CartPole-v1", num_parallel_environments=NUM_ENVS, tensors=False, seed=3, **options) as env:
        rows = [env.reset().observation]
        for actions in ACTIONS:
            timestep = env.step(actions)
            rows += [timestep.observation, timestep.reward, timestep.step_type]
    return rows


def check_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other, strict=True)


def check_hang(folder: Path, options: dict[str, Any]) -> None:
    """An env that hangs once is restored; one that hangs always raises the error with its stack."""
    once = functools.partial(toys.HangAtStep, at=7, once=folder / "hang")
    expected, _ = rows_of_steps([functools.partial(toys.HangAtStep, at=1000)] * NUM_ENVS, backend="serial")
    found, marks = rows_of_steps([once] * NUM_ENVS, timeouts=0.5, **options)
    check_equal(found, expected)
    assert marks == {"replayed"}, marks
    with VectorEnv([toys.HangAtStep], timeouts=0.5, failures="raise", **options) as envs:
        envs.reset()
        with pytest.raises(WorkerTimeoutError, match=r"did not finish step(.|\n)*toys/faults\.py"):
            envs.step([0])


def check_tree(options: dict[str, Any]) -> None:
    """The program that an env has started ends with its worker."""
    with VectorEnv([functools.partial(toys.SpawnsChild, tidy=False)], failures="raise", **options) as envs:
        envs.reset()
        envs.step([0])
        [worker] = map(psutil.Process, envs.worker_pids)
        [helper] = worker.children()
    helper.wait(30.0)


def check_steps(options: dict[str, Any], implementation: str) -> None:
    """The steps of a pool are those of serial envs, also if one of its workers is killed."""
    assert chosen() == implementation
    expected, _ = rows_of_steps(ENV_FNS, backend="serial")
    check_equal(rows_of_steps(ENV_FNS, **options)[0], expected)
    found, marks = rows_of_steps(ENV_FNS, kill_at=20, **options)
    check_equal(found, expected)
    assert marks == {"replayed"}, marks


def check_saves(folder: Path, options: dict[str, Any]) -> None:
    """A pool, serial envs and a pool continue each other within their episodes."""
    expected, _ = rows_of_steps(ENV_FNS, backend="serial")
    found: list[Any] = []
    for number, part in enumerate(np.split(ACTIONS, 3)):
        where = {"backend": "serial"} if number == 1 else options
        with VectorEnv(ENV_FNS, resume=folder / "state" if number else None, **where) as envs:
            found += [] if number else [envs.reset(seed=3)[0].copy()]
            for actions in part:
                found += [array.copy() for array in envs.step(actions)[:4]]
            envs.save(folder / "state")
    check_equal(found, expected)


def held() -> tuple[int, list[str]]:
    """Return the number of open descriptors of this process, and its names in /dev/shm."""
    gc.collect()  # an exception kept by pytest.raises holds frames, and the frames hold the memory of pools
    return psutil.Process().num_fds(), [name for name in os.listdir("/dev/shm") if f"-{os.getpid()}-" in name]


def main(context: str, implementation: str, folder: Path) -> None:
    options: dict[str, Any] = {"num_workers": 2, **({"context": context} if context else {})}
    check_steps(options, implementation)
    before = held()  # fork servers and the resource tracker run
    check_equal(rows_of_receives(**options), rows_of_receives(backend="serial"))
    check_hang(folder, options)
    check_tree(options)
    check_saves(folder, options)
    options["num_workers"] = 1
    check_equal(rows_of_manager(SyncSubprocessEnvManager, **options), rows_of_manager(BaseEnvManager))
    check_equal(rows_of_alf(**options), rows_of_alf(backend="serial"))
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        pass
    else:
        check_equal(rows_of_sb3(**options), rows_of_sb3(backend="serial"))
    assert held() == before
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
