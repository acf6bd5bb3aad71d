"""Workers follow the caller's Gymnasium registry, as SyncVectorEnv's envs do: in every front end, and after a crash."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs import registration
from gymnasium.vector import SyncVectorEnv

import vecenv
from vecenv.envs.toys import ToyEnv

CONTEXTS = ["forkserver", "spawn", "fork"]
ID, STEPS = "MountainCar-v0", 12
ENTRY_POINT = "gymnasium.envs.classic_control.mountain_car:MountainCarEnv"


@pytest.fixture(autouse=True)
def registry_restored() -> Iterator[None]:
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.fixture
def short_mountain_car() -> None:
    """The built-in id, registered again with another time limit."""
    del gymnasium.registry[ID]
    gymnasium.register(ID, ENTRY_POINT, max_episode_steps=STEPS)


def episode_length(envs: Any) -> int:
    """Return the length of the first episode; close the envs."""
    actions = np.zeros(envs.num_envs, np.int64)
    try:
        envs.reset(seed=0)
        for step in range(1, 300):
            _, _, terminated, truncated, _ = envs.step(actions)
            if (terminated | truncated).any():
                return step
        return 0
    finally:
        envs.close()


def toy_steps(envs: Any) -> list[int]:
    """Return the time limit of each env; close the envs."""
    specs = envs.get_attr("spec")
    envs.close()
    return [spec.max_episode_steps for spec in specs]


# ---- front ends ----------------------------------------------------------------------------------------


def play_manager(context: str) -> int:
    cfg = {"context": context}
    make = partial(vecenv.ding.DingEnvWrapper, cfg={"env_id": ID})
    manager = vecenv.ding.create_env_manager({"type": "subprocess", **cfg}, [make])
    with manager:
        manager.launch()
        for step in range(1, 300):
            if manager.step({0: np.zeros(1, np.int64)})[0].done:
                return step
    return 0


def play_sb3(context: str) -> int:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env

    from vecenv.integrations.sb3 import SB3VecEnv

    envs = make_vec_env(ID, 2, vec_env_cls=SB3VecEnv, vec_env_kwargs={"start_method": context})
    envs.reset()
    for step in range(1, 300):
        if envs.step(np.zeros(2, np.int64))[2].any():
            envs.close()
            return step
    return 0


def play_alf(context: str) -> int:
    from vecenv import alf

    envs = alf.create_environment(ID, alf.load, num_parallel_environments=2, context=context)
    envs.reset()
    for step in range(1, 300):
        if (envs.step(np.zeros(2, np.int64)).step_type == alf.StepType.LAST).all():
            envs.close()
            return step
    return 0


FRONT_ENDS = {
    "VectorEnv": lambda context: episode_length(
        vecenv.VectorEnv([partial(gymnasium.make, ID)] * 2, num_workers=2, context=context)
    ),
    "make_vec": lambda context: episode_length(vecenv.make_vec(ID, 2, context=context)),
    "manager": play_manager,
    "SB3": play_sb3,
    "ALF": play_alf,
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_built_in_id_registered_again_has_the_callers_limit(
    front_end: str, context: str, short_mountain_car: None
) -> None:
    assert FRONT_ENDS[front_end](context) == STEPS


@pytest.mark.parametrize("context", CONTEXTS)
def test_changed_spec_of_a_built_in_id_is_used(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.registry[ID], "max_episode_steps", 9)
    monkeypatch.setitem(gymnasium.registry[ID].kwargs, "goal_velocity", 0.25)
    make = partial(gymnasium.make, ID)
    envs = vecenv.VectorEnv([make] * 2, context=context)
    assert envs.get_attr("goal_velocity") == (0.25, 0.25)
    assert episode_length(envs) == episode_length(SyncVectorEnv([make] * 2)) == 9


@pytest.mark.extended
def test_recovered_env_has_the_callers_spec(short_mountain_car: None) -> None:
    """The registry has changed again when the worker is replaced."""
    envs = vecenv.VectorEnv([partial(gymnasium.make, ID)], num_workers=1)
    envs.reset(seed=0)
    envs.step([0])
    gymnasium.registry[ID].max_episode_steps = 100
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    for _ in range(2, STEPS):
        assert not envs.step([0])[3][0]
    assert envs.step([0])[3][0]
    envs.close()


def test_id_removed_by_the_caller_is_unknown_in_workers() -> None:
    del gymnasium.registry[ID]
    with pytest.raises(gymnasium.error.UnregisteredEnv):
        vecenv.VectorEnv([partial(gymnasium.make, ID)])


# ---- imports in workers --------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that registers two ids when it is imported; the caller has not imported it."""
    (tmp_path / "registers_at_import.py").write_text(
        "import gymnasium\n"
        "if 'Kept-v0' in gymnasium.registry:\n"
        "    del gymnasium.registry['Kept-v0']\n"
        "for name in ('Kept-v0', 'Other-v0', 'New-v0'):\n"
        "    gymnasium.register(name, 'vecenv.envs.toys:ToyEnv', max_episode_steps=99)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("Kept-v0", "Other-v0"):
        gymnasium.register(name, "vecenv.envs.toys:ToyEnv", max_episode_steps=5)
    return "registers_at_import"


def import_and_make(module: str, name: str) -> Any:
    if module not in sys.modules:  # this is a worker
        __import__(module)
    return gymnasium.make(name)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(("name", "expected"), [("Kept-v0", 5), ("Other-v0", 5), ("New-v0", 99)])
def test_import_in_a_worker_keeps_the_callers_specs(name: str, expected: int, context: str, package: str) -> None:
    make = partial(import_and_make, package, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert toy_steps(vecenv.VectorEnv([make] * 2, num_workers=1, context=context)) == [expected] * 2
    assert package not in sys.modules


def register_and_make() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gymnasium.register("Kept-v0", "vecenv.envs.toys:ToyEnv", max_episode_steps=3)
    return gymnasium.make("Kept-v0")


def test_register_in_an_env_fn_changes_the_workers_spec() -> None:
    gymnasium.register("Kept-v0", "vecenv.envs.toys:ToyEnv", max_episode_steps=5)
    assert toy_steps(vecenv.VectorEnv([register_and_make])) == [3]


# ---- other settings ------------------------------------------------------------------------------------


class Negated(gymnasium.RewardWrapper[Any, Any], gymnasium.utils.RecordConstructorArgs):
    def __init__(self, env: Any) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def reward(self, reward: Any) -> Any:
        return -reward


@pytest.mark.parametrize("context", CONTEXTS)
def test_wrappers_and_namespace_of_a_spec_are_used(context: str) -> None:
    wrapper = registration.WrapperSpec("Negated", f"{__name__}:Negated", {})
    with registration.namespace("mine"):
        gymnasium.register("Car-v0", ENTRY_POINT, additional_wrappers=(wrapper,))
    envs = vecenv.VectorEnv([partial(gymnasium.make, "mine/Car-v0")], context=context)
    envs.reset(seed=0)
    assert envs.step([0])[1].tolist() == [1.0]
    envs.close()


class Settings(ToyEnv):
    def __init__(self) -> None:
        super().__init__()
        self.settings = (gymnasium.logger.min_level, registration.current_namespace)


@pytest.mark.parametrize("context", CONTEXTS)
def test_log_level_and_namespace_of_the_caller_hold_in_workers(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.logger, "min_level", gymnasium.logger.ERROR)
    with registration.namespace("mine"):
        envs = vecenv.VectorEnv([Settings], context=context)
    assert envs.get_attr("settings") == ((gymnasium.logger.ERROR, "mine"),)
    envs.close()


@pytest.mark.extended
def test_spec_that_cannot_be_sent_names_the_reason() -> None:
    lock = threading.Lock()
    del gymnasium.registry[ID]
    gymnasium.register(ID, lambda: lock and ToyEnv())
    with pytest.raises(vecenv.ConfigError, match=rf"'{ID}' cannot be sent to a worker: TypeError: cannot pickle"):
        vecenv.VectorEnv([partial(gymnasium.make, ID)])
    vecenv.VectorEnv([partial(gymnasium.make, ID)], context="fork").close()  # nothing has to be sent
