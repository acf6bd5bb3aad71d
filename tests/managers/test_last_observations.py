"""Observations of managers if an answer has no observation, or if no episode follows."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Tuple

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS, ActorEnv, actors
from vecenv.ding import AsyncSubprocessEnvManager, BaseEnvManager, EnvState, SyncSubprocessEnvManager
from vecenv.envs.toys import CountEnv, SpaceEnv

WAITS_FOR_ALL = {"wait_num": 100, "step_wait_timeout": None, "num_workers": 1}


def make(manager_cls, env_fn, **cfg):
    own = WAITS_FOR_ALL if manager_cls in WITH_WORKERS else {}
    return manager_cls(env_fn, {**own, **cfg})


def shown(manager):
    """Return the rows of `ready_obs` as lists."""
    ready = manager.ready_obs
    return [obs.tolist() for obs in (ready.values() if isinstance(ready, dict) else ready)]


# ---- abnormal timesteps ------------------------------------------------------------------------


@pytest.mark.parametrize("manager_cls", IN_PROCESS)
@pytest.mark.parametrize("num_before", [0, 2])
def test_ready_obs_after_an_abnormal_timestep_is_the_one_before(manager_cls, num_before):
    """Regression: it was zeros, which the env never returned."""
    with make(manager_cls, actors(2, length=100)) as manager:
        manager.launch()
        for _ in range(num_before):
            manager.step({0: 0, 1: 0})
        for number in range(1, 4):
            manager.step({0: "abnormal", 1: 0})
            assert shown(manager) == [[0, num_before, 1], [1, num_before + number, 1]]
        manager.step({0: 0, 1: 0})
        assert shown(manager) == [[0, num_before + 1, 1], [1, num_before + 4, 1]]


@pytest.mark.parametrize("manager_cls", IN_PROCESS)
def test_ready_obs_read_after_an_abnormal_timestep_does_not_change(manager_cls):
    with make(manager_cls, actors(1, length=100)) as manager:
        manager.launch()
        manager.step({0: 0})
        manager.step({0: "abnormal"})
        (kept,) = list(manager.ready_obs.values() if manager_cls is BaseEnvManager else manager.ready_obs)
        before = kept.copy()
        for _ in range(20):
            manager.step({0: 0})
        np.testing.assert_array_equal(kept, before)


# ---- missing observations ------------------------------------------------------------------------


class Forgets(ActorEnv):
    """An env whose reset or step returns None after the first `spared` calls."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.num_calls = 0

    def _obs(self):
        self.num_calls += 1
        return super()._obs() if self.num_calls <= self._cfg["spared"] else None


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
def test_reset_without_an_observation_raises(manager_cls):
    manager = make(manager_cls, [functools.partial(Forgets, {"spared": 0})])
    with manager, pytest.raises((ValueError, RuntimeError), match=r"expected float32 \(3,\), got None"):
        manager.launch()


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_step_without_an_observation_is_abnormal(manager_cls):
    with make(manager_cls, [functools.partial(Forgets, {"spared": 1, "length": 9})]) as manager:
        manager.launch()
        timestep = manager.step({0: 0})[0]
        assert timestep.info["abnormal"] is True and timestep.obs is None
        assert shown(manager) == ([[0, 0, 1]] if manager_cls is BaseEnvManager else []), "never a value it did not give"


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
def test_first_observations_of_a_tuple_space_do_not_change(manager_cls):
    parts = Tuple([Box(0, 1, (3,), np.float32), Box(0, 255, (2,), np.uint8)])
    with make(manager_cls, [functools.partial(SpaceEnv, parts, length=100)] * 2) as manager:
        manager.launch()
        first = manager.ready_obs[1]
        before = [part.copy() for part in first]
        for _ in range(20):
            manager.step({0: 0, 1: 0})
        assert all(map(np.array_equal, first, before))


# ---- unseeded launches -----------------------------------------------------------------------------


class TakesAnything(ActorEnv):
    """An env whose reset passes on all keywords, without a look at them."""

    def reset(self, **kw):
        self.given = dict(kw)
        return super().reset(**kw)  # has no parameter `seed`


class NamesASeed(ActorEnv):
    def reset(self, seed=None):
        self.given = {"seed": seed}
        return super().reset()


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
def test_unseeded_launch_gives_no_seed_to_a_reset_with_any_keywords(manager_cls):
    with make(manager_cls, [functools.partial(TakesAnything, {})] * 2) as manager:
        manager.launch()
        assert manager.given == [{}, {}]


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
def test_unseeded_launch_gives_no_seed_to_a_reset_with_a_seed_parameter(manager_cls):
    with make(manager_cls, [functools.partial(NamesASeed, {})] * 2) as manager:
        manager.launch()
        assert manager.given == [{"seed": None}] * 2


# ---- the end of all episodes under reset_inplace --------------------------------------------------------


@pytest.mark.parametrize("cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
@pytest.mark.parametrize("cfg", [{}, {"max_retry": 2}, {"max_retry": 2, "copy_on_get": False}], ids=str)
def test_reset_inplace_gives_the_very_last_timestep_a_final_obs(cls, cfg):
    with make(cls, [functools.partial(CountEnv, 2)] * 2, episode_num=2, reset_inplace=True, **cfg) as manager:
        manager.launch()
        ends = []
        while not manager.done:
            manager.ready_obs  # noqa: B018  # the asynchronous one waits here for its resets
            for timestep in manager.step(dict.fromkeys(manager.ready_obs, 0)).values():
                if timestep.done:
                    ends.append((timestep.obs[0], timestep.info["final_obs"][0]))
                else:
                    assert "final_obs" not in timestep.info
        assert set(manager.env_states.values()) == {EnvState.DONE}
    assert ends[-2:] == [(2.0, 2.0)] * 2, "no episode follows: the observation that ended it stands in both places"


# ---- errors of steps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy, says", [("close", "the manager is closed"), ("error", "it is in ERROR until it is")])
def test_step_error_contains_the_state_of_the_manager(policy, says):
    with BaseEnvManager(actors(2), {"on_step_error": policy}) as manager:
        manager.launch()
        with pytest.raises(RuntimeError, match=f"step of env 1 failed in 1 attempts; {says}"):
            manager.step({0: 0, 1: "error"})
        assert manager.closed == (policy == "close")


# ---- frames --------------------------------------------------------------------------------------------------


class Picture(gymnasium.Env):
    """An env that renders an array without a library."""

    metadata = {"render_modes": ["rgb_array", "depth"]}

    def __init__(self, render_mode):
        self.render_mode = render_mode

    def render(self):
        return np.full((4, 5, 3), 7, np.uint8)


class HoldsAnEnv(ActorEnv):
    """A BaseEnv as in DI-engine: its inner env is in `_env`."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self._env = Picture(cfg["render_mode"])


class RendersPlainly(ActorEnv):
    def render(self):
        return np.full((4, 5, 3), 9, np.uint8)


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
@pytest.mark.parametrize(
    "env_fn, value",
    [(functools.partial(HoldsAnEnv, {"render_mode": "rgb_array"}), 7), (functools.partial(RendersPlainly, {}), 9)],
    ids=["env inside", "plain render"],
)
def test_ready_imgs_of_envs_without_a_render_mode(manager_cls, env_fn, value):
    with make(manager_cls, [env_fn] * 2) as manager:
        manager.launch()
        images = manager.ready_imgs
        assert list(images) == [0, 1] and images[1].shape == (4, 5, 3) and (images[1] == value).all()


def test_ready_imgs_of_an_inner_env_in_another_mode_raises():
    with BaseEnvManager([functools.partial(HoldsAnEnv, {"render_mode": "depth"})]) as manager:
        manager.launch()
        with pytest.raises(RuntimeError, match="render_mode='rgb_array'"):
            manager.ready_imgs  # noqa: B018
