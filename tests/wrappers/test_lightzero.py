"""LightZero's wrappers: dict observations with correct spaces, and discretised actions that reach both bounds."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import numbers_env
from vecenv import ConfigError, NoneSpace, SpaceError, StateError
from vecenv.ding import (
    ActionDiscretizationEnvWrapper,
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvManagerV2,
    GymVectorEnvManager,
    LightZeroEnvWrapper,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
    create_env_wrapper,
    get_wrappered_env,
)

CFG = {"is_train": True, "env_id": "any"}


def box_env(low, high, **box):
    return numbers_env(actions=spaces.Box(np.array(low, np.float32), np.array(high, np.float32), **box))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0"])
def test_spaces_are_right_from_the_start_and_contain_every_step(env_id):
    """Weakness 53: the space became a Dict only at the first reset and did not contain a mask of None."""
    env = LightZeroEnvWrapper(gymnasium.make(env_id, max_episode_steps=20), CFG)
    space = env.observation_space
    assert set(space.spaces) == {"observation", "action_mask", "to_play"}
    assert (space["action_mask"] == NoneSpace()) == (env_id == "Pendulum-v1")
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    assert space.contains(obs) and env.observation_space is space
    total, ended = 0.0, False
    while not ended:
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        ended = terminated or truncated
        total += float(reward)
        assert space.contains(obs) and obs["to_play"] == -1
        assert ("eval_episode_return" in info) == ended
    assert type(info["eval_episode_return"]) is float and info["eval_episode_return"] == pytest.approx(total)
    env.reset()
    if env_id == "CartPole-v1":
        assert env.step(0)[1] == 1.0 and env.get_state() == {"episode_return": 1.0}


def test_masks_are_new_arrays():
    env = LightZeroEnvWrapper(gymnasium.make("CartPole-v1"), CFG)
    (one, _), (two, _) = env.reset(), env.reset()
    assert one["action_mask"].dtype == np.int8 and one["action_mask"].tolist() == [1, 1]
    assert not np.shares_memory(one["action_mask"], two["action_mask"])
    assert env.legal_actions.tolist() == [0, 1]


def test_actions_count_from_zero_whatever_the_start_of_the_space():
    inner = numbers_env(actions=spaces.Discrete(3, start=5))
    env = LightZeroEnvWrapper(inner, CFG)
    env.reset()
    assert env.action_space == spaces.Discrete(3) and env.legal_actions.tolist() == [0, 1, 2]
    for action in (0, np.int64(1), np.array([2])):
        env.step(action)
    assert inner.actions == [5, 6, 7] and inner.actions[2].shape == (1,)


def test_env_made_by_its_id_lists_its_legal_actions():
    cfg = {**CFG, "continuous": True, "manually_discretization": True, "each_dim_disc_size": 5}
    env = get_wrappered_env(cfg, "Pendulum-v1")()
    assert env.legal_actions.tolist() == [0, 1, 2, 3, 4]
    env.close()
    with pytest.raises(StateError, match="closed"):
        _ = env.legal_actions


def test_unfit_envs_and_options_are_refused():
    cartpole, pendulum = gymnasium.make("CartPole-v1"), gymnasium.make("Pendulum-v1")
    with pytest.raises(AssertionError, match="is_train"):
        LightZeroEnvWrapper(cartpole, {"env_id": "CartPole-v1"})
    with pytest.raises(ConfigError, match="continuous"):
        LightZeroEnvWrapper(cartpole, {**CFG, "continuous": True})
    with pytest.raises(SpaceError, match="MultiBinary"):
        LightZeroEnvWrapper(numbers_env(actions=spaces.MultiBinary(3)), CFG)
    with pytest.raises(SpaceError, match="listed"):
        _ = LightZeroEnvWrapper(pendulum, {**CFG, "continuous": True}).legal_actions
    with pytest.raises(SpaceError, match="bounded"):
        ActionDiscretizationEnvWrapper(box_env([-np.inf], [1.0]), {"each_dim_disc_size": 3})
    with pytest.raises(SpaceError, match="Box"):
        ActionDiscretizationEnvWrapper(cartpole, {"each_dim_disc_size": 3})
    for bins in (0, None, 2.0, True):
        with pytest.raises(ConfigError, match="each_dim_disc_size"):
            ActionDiscretizationEnvWrapper(pendulum, {"each_dim_disc_size": bins})
    with pytest.raises(ConfigError, match="1,000,000"):
        ActionDiscretizationEnvWrapper(box_env([0.0] * 8, [1.0] * 8), {"each_dim_disc_size": 6})


@pytest.mark.parametrize("bins", [1, 2, 3, 5])
def test_discrete_actions_reach_both_bounds(bins):
    """Weakness 54: the values never reached +1 and ignored the Box."""
    low, high = [-2.0, 0.0], [2.0, 10.0]
    inner = box_env(low, high)
    env = ActionDiscretizationEnvWrapper(inner, {"each_dim_disc_size": bins})
    assert env.action_space == spaces.Discrete(bins**2)
    actions = [env.action(index) for index in range(bins**2)]
    assert len({tuple(action.tolist()) for action in actions}) == bins**2
    assert all(action.dtype == np.float32 and inner.action_space.contains(action) for action in actions)
    assert sorted({float(action[1]) for action in actions}) == pytest.approx(
        [5.0] if bins == 1 else np.linspace(0.0, 10.0, bins).tolist()
    )
    if bins > 1:
        assert actions[0].tolist() == low and actions[-1].tolist() == high
        assert actions[1].tolist() == pytest.approx([-2.0, 10.0 / (bins - 1)])  # the last dimension changes fastest
    env.reset()
    for index in (bins**2 - 1, np.int64(0), np.array([0])):
        env.step(index)
    assert [action.tolist() for action in inner.actions] == [actions[-1].tolist(), *[actions[0].tolist()] * 2]
    for wrong in (-1, bins**2):
        with pytest.raises(SpaceError, match="action"):
            env.action(wrong)


def test_box_actions_of_any_shape_and_extreme_bounds():
    limit = float(np.finfo(np.float32).max)
    env = ActionDiscretizationEnvWrapper(box_env([[-limit], [0.0]], [[limit], [1.0]]), {"each_dim_disc_size": 3})
    assert [env.action(k).tolist() for k in (0, 4, 8)] == [[[-limit], [0.0]], [[0.0], [0.5]], [[limit], [1.0]]]


def test_lightzero_wrappers_are_registered():
    pendulum = gymnasium.make("Pendulum-v1")
    cfg = {**CFG, "each_dim_disc_size": 4}
    env = create_env_wrapper(pendulum, {"type": "action_discretization_env_wrapper", "kwargs": {"cfg": cfg}})
    env = create_env_wrapper(env, {"type": "lightzero_env_wrapper", "kwargs": {"cfg": cfg}})
    assert env.observation_space["action_mask"].shape == (4,) and not env.continuous


MANAGERS = [
    (BaseEnvManager, {}),
    (BaseEnvManagerV2, {}),
    (SyncSubprocessEnvManager, {"num_workers": 2}),
    (SubprocessEnvManagerV2, {"num_workers": 2}),
    (AsyncSubprocessEnvManager, {"num_workers": 2, "wait_num": 3, "step_wait_timeout": None}),
    (GymVectorEnvManager, {"num_workers": 2}),
]


@pytest.mark.parametrize("discretises", [False, True])
@pytest.mark.parametrize("manager_cls, cfg", MANAGERS, ids=lambda value: getattr(value, "__name__", ""))
def test_lightzero_wrappers_run_in_every_manager(manager_cls, cfg, discretises):
    wrapper_cfg = {**CFG, "continuous": True, "manually_discretization": discretises, "each_dim_disc_size": 5}
    env_fns = [get_wrappered_env(wrapper_cfg, "Pendulum-v1")] * 3
    with manager_cls(env_fns, cfg) as manager:
        manager.seed(0)
        manager.launch()
        space = manager.observation_space
        assert space["action_mask"] == (spaces.Box(0, 1, (5,), np.int8) if discretises else NoneSpace())
        for _ in range(5):
            ready, shown = manager.ready_obs_id, manager.ready_obs
            assert len(ready) == 3 and shown is not None
            action = np.int64(4) if discretises else np.array([2.0], np.float32)
            timesteps = manager.step(dict.fromkeys(ready, action))
            for timestep in timesteps.values() if isinstance(timesteps, dict) else timesteps:
                obs = timestep.obs
                assert obs["observation"].shape == (3,) and int(obs["to_play"]) == -1
                if discretises:
                    assert np.asarray(obs["action_mask"]).tolist() == [1] * 5
                else:
                    assert obs["action_mask"] is None
                assert np.asarray(timestep.reward).shape == (1,)


@pytest.mark.parametrize("is_reset", [False, True])
def test_clone_has_the_same_class_and_legal_actions(is_reset):
    env = get_wrappered_env({"is_train": True}, "CartPole-v1")()
    env.seed(3, False)
    first = env.reset()["observation"] if is_reset else None
    twin = env.clone()
    assert type(twin) is type(env) and twin is not env
    twin.seed(3, False)
    obs = twin.reset()
    assert obs["action_mask"].tolist() == [1, 1] and list(twin.legal_actions) == [0, 1]
    assert first is None or np.array_equal(obs["observation"], first)
    twin.close()
    env.close()
