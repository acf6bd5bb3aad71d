"""VecenvVecEnv is a vector env of XuanCe that gives the results of XuanCe's SubprocVecEnv."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
from argparse import Namespace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from tests.programs import run_python
from tests.vector.comparison import assert_same
from vecenv import ConfigError, StateError
from vecenv.envs.toys import RaiseAtStep, SpaceEnv

pytest.importorskip("vecenv.integrations.xuance", exc_type=ImportError)

from xuance.environment import REGISTRY_ENV, REGISTRY_VEC_ENV, SubprocVecEnv, XuanCeEnvWrapper, make_envs

from vecenv.integrations.xuance import VecenvVecEnv

NUM_STEPS = 60


class ShortEpisodes(gymnasium.Wrapper):
    """Gives an env of Gymnasium the constructor and the attribute that XuanCe needs."""

    def __init__(self, config: Namespace, max_episode_steps: int = 7) -> None:
        super().__init__(gymnasium.make(config.env_id, max_episode_steps=max_episode_steps))
        self.env.reset(seed=config.env_seed)
        self.max_episode_steps = max_episode_steps

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return obs, info | {"first": float(obs[0])}


def config_of(vectorize: str, env_name: str = "Classic Control", env_id: str = "CartPole-v1") -> Namespace:
    return Namespace(
        env_name=env_name, env_id=env_id, env_seed=5, vectorize=vectorize, parallels=3, render_mode="rgb_array"
    )


def toy(env_fn: Any, env_seed: int | None) -> Any:
    env = XuanCeEnvWrapper(env_fn())
    env.max_episode_steps = 9
    return env


def record(envs: Any, actions: Any, kill_at: int | None = None) -> list[Any]:
    """Return the results of two resets, and of steps after each."""
    found = []
    with contextlib.closing(envs):
        for _ in range(2):
            found.append(envs.reset())
            for step, action in enumerate(actions):
                if step == kill_at:
                    os.kill(envs.vector_env.worker_pids[0], signal.SIGKILL)
                found.append(envs.step(action))
                for info in found[-1][-1]:
                    info.pop("recovered", None)
    return found


def actions_of(space: Any, count: int) -> list[Any]:
    space.seed(3)
    return [[space.sample() for _ in range(count)] for _ in range(NUM_STEPS)]


@pytest.mark.parametrize("kill_at", [None, 30])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_outputs_equal_subproc_vec_env_also_after_the_death_of_a_worker(
    env_id: str, kill_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTRY_ENV, "Short", ShortEpisodes)
    theirs = make_envs(config_of("SubprocVecEnv", "Short", env_id))
    actions = [np.stack(step) for step in actions_of(theirs.action_space, 3)]
    expected = record(theirs, actions)
    assert sum("reset_obs" in info for result in expected for info in result[-1]) > 10
    ours = make_envs(config_of("VecenvVecEnv", "Short", env_id))
    for name in ("num_envs", "observation_space", "action_space", "max_episode_steps"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert_same(record(ours, actions, kill_at), expected)


def test_first_observations_of_a_dict_space_are_nested_like_it() -> None:
    env_fn = functools.partial(toy, functools.partial(SpaceEnv, Dict(a=Box(-1, 1, (2,)), b=Discrete(3))))
    with contextlib.closing(VecenvVecEnv([env_fn] * 2, None, backend="serial")) as envs:
        obs, _ = envs.reset()
        assert {key: value.shape for key, value in obs.items()} == {"a": (2, 2), "b": (2,)}
        ended: list[Any] = []
        while not ended:
            obs, _, terminations, truncations, infos = envs.step(np.zeros(2, np.int64))
            ended = np.flatnonzero(terminations | truncations).tolist()
        assert infos[ended[0]]["reset_obs"].keys() == {"a", "b"}


def test_buffer_contains_the_last_observations_and_is_not_the_result() -> None:
    envs = make_envs(config_of("VecenvVecEnv"))
    with contextlib.closing(envs):
        obs, _ = envs.reset()
        assert_same(envs.buf_obs, obs)
        obs, *_ = envs.step(np.zeros(3, np.int64))
        assert_same(envs.buf_obs, obs)
        envs.buf_obs[0] = 0  # XuanCe's agents do so at the end of an episode
        assert (obs[0] != 0).any()


def test_frames_are_those_of_each_env() -> None:
    pytest.importorskip("pygame")
    envs = make_envs(config_of("VecenvVecEnv"))
    with contextlib.closing(envs):
        envs.reset()
        assert [frame.shape[-1] for frame in envs.render("rgb_array")] == [3, 3, 3]


def test_options_are_set_by_a_partial_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY_VEC_ENV, "Serial", functools.partial(VecenvVecEnv, backend="serial"))
    with contextlib.closing(make_envs(config_of("Serial"))) as envs:
        assert envs.vector_env.worker_pids == ()


@pytest.mark.parametrize("name", ["autoreset_mode", "copy", "no_such_option"])
def test_wrong_option_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        VecenvVecEnv([functools.partial(toy, SpaceEnv)], None, **{name: True})


def test_exception_of_an_env_is_raised_and_the_envs_live_on() -> None:
    env_fns = [functools.partial(toy, functools.partial(RaiseAtStep, at=2)), functools.partial(toy, SpaceEnv)]
    with contextlib.closing(VecenvVecEnv(env_fns, None, backend="serial")) as envs:
        envs.reset()
        actions = [env.action_space.sample() for env in envs.vector_env.envs]
        with pytest.raises(Exception, match="env 0"):
            for _ in range(3):
                envs.step(np.array(actions))
        envs.reset()


def test_wait_without_a_step_and_a_second_step_are_errors() -> None:
    with contextlib.closing(make_envs(config_of("VecenvVecEnv"))) as envs:
        envs.reset()
        with pytest.raises(StateError, match="call step_async first"):
            envs.step_wait()
        envs.step_async(np.zeros(3, np.int64))
        with pytest.raises(StateError, match="a step is under way"):
            envs.step_async(np.zeros(3, np.int64))
        envs.reset()  # it abandons the step


def test_own_class_is_unchanged() -> None:
    assert REGISTRY_VEC_ENV["SubprocVecEnv"] is SubprocVecEnv
    assert REGISTRY_VEC_ENV["VecenvVecEnv"] is VecenvVecEnv


@pytest.mark.extended
def test_trained_weights_equal_subproc_vec_env_also_after_the_death_of_a_worker(tmp_path: Path) -> None:
    """In a process of its own, since XuanCe writes logs and changes global generators."""
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": root, "SDL_AUDIODRIVER": "dummy"}
    done = run_python("-m", "tests.integrations.xuance_program", cwd=tmp_path, env=environ, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["weights"]
    assert {name: len(set(weights)) for name, weights in found.items()} == {"ppo": 1, "dqn": 1}
