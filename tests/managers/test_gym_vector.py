"""The manager over vector envs: over this library's, and over others in every autoreset mode."""

from __future__ import annotations

import copy
import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vecenv.ding import EnvState, GymVectorEnvManager, create_env_manager
from vecenv.envs import toys
from vecenv.envs.toys import CountEnv
from vecenv.errors import StateError, WorkerTimeoutError
from vecenv.managers.gym_vector import row_info

ENVS = [functools.partial(CountEnv, 3), functools.partial(CountEnv, 2)]


def sync(mode):
    return lambda: SyncVectorEnv(ENVS, autoreset_mode=mode)


@pytest.fixture(params=[lambda: ENVS, *map(sync, AutoresetMode)], ids=["ours", *(mode.name for mode in AutoresetMode)])
def make(request):
    made = []

    def make(**cfg):
        manager = GymVectorEnvManager(request.param(), {"num_workers": 1, **cfg})
        made.append(manager)
        return manager

    yield make
    for manager in made:
        manager.close()


def test_gym_vector_counts_episodes_and_returns(make):
    manager = make(episode_num=2)
    manager.seed(5)
    assert manager.closed
    manager.reset()
    seen = {0: [], 1: []}
    while not manager.done:
        for env_id, obs in manager.ready_obs.items():
            seen[env_id].append(("ready", int(obs[0]), int(obs[1])))
        for env_id, timestep in manager.step(dict.fromkeys(manager.ready_obs, 0)).items():
            seen[env_id].append(("step", int(timestep.obs[0]), int(timestep.obs[1])))
            assert timestep.reward.dtype == np.float32 and timestep.reward.shape == (1,)
            assert "env_id" not in timestep.info  # the vector env decides the order of rows
            if timestep.done:
                assert timestep.info["eval_episode_return"] == [3.0, 2.0][env_id]
                assert timestep.info["terminated"] is True
    for env_id, length in ((0, 3), (1, 2)):
        expected = [
            (kind, step + (kind == "step"), episode)
            for episode in (1, 2)
            for step in range(length)
            for kind in ("ready", "step")
        ]
        assert seen[env_id] == expected
    assert manager.env_episode_count == {0: 2, 1: 2} and manager.ready_obs == {}


def test_filler_actions_leave_the_action_space_generator():
    with GymVectorEnvManager(SyncVectorEnv(ENVS)) as manager:
        manager.reset()
        manager.seed(5)
        twin = copy.deepcopy(manager.action_space)
        for _ in range(4):  # an episode ends at the second step; the action of the third one is not used
            manager.step(dict.fromkeys(manager.ready_obs, 0))
        assert [manager.action_space.sample() for _ in range(20)] == [twin.sample() for _ in range(20)]


class Lacks(CountEnv):
    """An env whose second reset reads an attribute that does not exist."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options) if self.episode == 0 else self.no_such_thing


@pytest.mark.parametrize("name", ["ready_obs", "ready_obs_id"])
def test_attribute_error_of_an_env_is_raised_by_properties(name):
    """Regression: the message was that the manager has no `ready_obs`."""
    with GymVectorEnvManager(SyncVectorEnv([functools.partial(Lacks, 1)])) as manager:
        manager.reset()
        manager.step({0: 0})
        with pytest.raises(AttributeError, match="no_such_thing"):
            getattr(manager, name)


def test_calls_in_a_wrong_order_raise_assertion_errors(make):
    manager = make()
    with pytest.raises(AssertionError):
        manager.step({0: 0})
    manager.reset()
    for call in (lambda: manager.reset([]), lambda: manager.step([]), lambda: manager.step({5: 0}), manager.launch):
        with pytest.raises(AssertionError):
            call()
    manager.close()
    manager.close()
    assert manager.closed and set(manager.env_states.values()) == {EnvState.VOID}
    for call in (lambda: manager.reset([]), lambda: manager.step([]), lambda: manager.elapsed_steps):
        with pytest.raises(AssertionError):
            call()


def test_gym_vector_attributes_come_as_a_list(make):
    manager = make()
    manager.reset()
    manager.step({0: np.array([1]), 1: np.array([1])})
    assert manager.elapsed_steps == [1, 1]
    with pytest.raises(AttributeError):
        manager.xyz  # noqa: B018
    with pytest.raises(RuntimeError):
        manager.observe  # noqa: B018


def test_step_of_some_envs_needs_our_vector_env():
    with GymVectorEnvManager(ENVS, {"num_workers": 1}) as manager:
        manager.reset()
        assert list(manager.step({1: 0})) == [1]
        assert manager.elapsed_steps == [0, 1]
    with GymVectorEnvManager(SyncVectorEnv(ENVS)) as manager:
        manager.reset()
        with pytest.raises(ValueError, match=r"\[0\]"):
            manager.step({1: 0})


def test_seed_is_forwarded_and_dynamic_seed_warns():
    with create_env_manager({"type": "gym_vector", "num_workers": 1}, ENVS) as manager:
        with pytest.warns(UserWarning, match="dynamic_seed"):
            manager.seed(7, dynamic_seed=True)
        manager.launch()
        assert manager.seed_given == [7, 8]


def test_gym_vector_with_a_gymnasium_env():
    with GymVectorEnvManager(gymnasium.make_vec("CartPole-v1", 3, "sync"), {"episode_num": 2}) as manager:
        manager.seed(0)
        manager.reset()
        while not manager.done:
            manager.step({env_id: manager.action_space.sample() for env_id in manager.ready_obs})
        assert manager.env_episode_count == {0: 2, 1: 2, 2: 2}


class SaysNumPy(CountEnv):
    """An env whose end flags, and one item of its info, are np.bool_, as comparisons of arrays return them."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, np.bool_(terminated), np.bool_(truncated), {**info, "won": np.bool_(terminated)}


@pytest.mark.parametrize("mode", [None, *AutoresetMode], ids=str)
def test_end_flags_are_python_bools(mode):
    envs = [functools.partial(SaysNumPy, 1)] * 2
    given = envs if mode is None else SyncVectorEnv(envs, autoreset_mode=mode)
    with GymVectorEnvManager(given, {"num_workers": 1} if mode is None else {}) as manager:
        manager.reset()
        for timestep in manager.step({0: 0, 1: 0}).values():
            assert timestep.done is True
            flags = [timestep.info[key] for key in ("terminated", "truncated", "TimeLimit.truncated")]
            assert [flag is expected for flag, expected in zip(flags, (True, False, False))] == [True] * 3
            assert not any(isinstance(value, np.bool_) for value in timestep.info.values())


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("way", ["ready_obs_id", "step", "random_action"])
def test_step_without_ready_obs_goes_on(num_envs, way):
    """Regression: with all episodes over there was no env to step, so no episode began."""
    with GymVectorEnvManager(SyncVectorEnv([functools.partial(CountEnv, 3)] * num_envs), {"episode_num": 3}) as manager:
        manager.reset()
        steps = 0
        for _ in range(13):
            if way == "step" and EnvState.RUN not in manager.env_states.values():
                assert manager.step({}) == {}
            actions = manager.random_action() if way == "random_action" else dict.fromkeys(manager.ready_obs_id, 0)
            steps += len(manager.step(actions))
        assert manager.done and steps == 9 * num_envs and manager.ready_obs_id == []


class TellsItsReturn(CountEnv):
    """An env whose return is not the sum of its rewards, as in a board game of two players."""

    def __init__(self, length, score=-7.0):
        super().__init__(length)
        self._score = score

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "eval_episode_return": self._score} if terminated else info


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_eval_episode_return_of_the_env_is_kept(mode):
    """Regression: it was replaced by the sum of the rewards."""
    env_fns = [functools.partial(TellsItsReturn, 2), functools.partial(CountEnv, 2)]
    envs = env_fns if mode is None else SyncVectorEnv(env_fns, autoreset_mode=mode)
    with GymVectorEnvManager(envs, {"backend": "serial"}) as manager:
        manager.reset()
        manager.step({0: 0, 1: 0})
        timesteps = manager.step({0: 0, 1: 0})
        assert [timesteps[env_id].info["eval_episode_return"] for env_id in (0, 1)] == [-7.0, 2.0]


@pytest.mark.parametrize("score", [-7.0, 3, np.float32(0.1), np.array([2.5], np.float32), "won"])
@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_eval_episode_return_keeps_its_type(mode, score):
    """Regression: numbers of Python were changed to numbers of NumPy, unlike in the other managers."""
    env_fns = [functools.partial(TellsItsReturn, 2, score=score)] * 2
    envs = env_fns if mode is None else SyncVectorEnv(env_fns, autoreset_mode=mode)
    with GymVectorEnvManager(envs, {"backend": "serial"}) as manager:
        manager.reset()
        manager.step({0: 0, 1: 0})
        for timestep in manager.step({0: 0, 1: 0}).values():
            given = timestep.info["eval_episode_return"]
            assert type(given) is type(score) and given == score


def test_row_info_leaves_out_masks_and_masked_items():
    both = np.array([True, True])
    infos = {0: np.array([5, 6]), "_0": both, "a": {1: np.array([7, 0]), "_1": np.array([True, False])}, "_a": both}
    assert row_info(infos, 0) == {0: 5, "a": {1: 7}} and row_info(infos, 1) == {0: 6, "a": {}}


@pytest.mark.extended
def test_seed_before_launch_seeds_the_action_space(make):
    """Regression: only a space that had been read was seeded, so `random_action` differed from run to run."""

    def draw():
        manager = make()
        manager.seed(3)
        manager.reset()
        return [manager.random_action() for _ in range(20)]

    assert draw() == draw()


def test_steps_raise_as_long_as_an_env_hangs():
    """A loop over `manager.done` gets no empty rounds: no env of this manager is in ERROR."""
    env_fns = [functools.partial(toys.Hangs, at=2, moment="step"), toys.ToyEnv]
    config = {"num_workers": 1, "failures": {"on_failure": "raise"}, "step_timeout": 0.5}
    with GymVectorEnvManager(env_fns, config) as manager:
        manager.launch()
        manager.step({0: 0, 1: 0})
        for expected in (WorkerTimeoutError, StateError, StateError):
            assert manager.ready_obs_id == [0, 1]
            with pytest.raises(expected):
                manager.step({0: 0, 1: 0})
