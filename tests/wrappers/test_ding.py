"""DingEnvWrapper and the lists of default wrappers."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.inside import config_of, seed_of
from tests.scripted import Plain, Scripted, numbers_env
from vecenv import ConfigError, DependencyError, StateError
from vecenv.ding import (
    AllinObsWrapper,
    DingEnvWrapper,
    EpisodicLifeWrapper,
    GymToGymnasiumWrapper,
    TimeLimitWrapper,
    get_default_wrappers,
)
from vecenv.envs.seeding import episode_seed

CARTPOLE = {"env_id": "CartPole-v1"}


@pytest.fixture
def cartpole():
    env = DingEnvWrapper(cfg=CARTPOLE)
    yield env
    env.close()


def play(env, steps=1000):
    for _ in range(steps):
        timestep = env.step(env.random_action())
        if timestep.done:
            return timestep
    raise AssertionError("no end")


def test_spaces_without_env_come_with_the_first_reset(cartpole):
    assert cartpole.observation_space is cartpole.action_space is cartpole.reward_space is None
    cartpole.reset()
    assert cartpole.observation_space.shape == (4,) and cartpole.action_space.n == 2
    assert cartpole.reward_space.shape == (1,)


def test_spaces_of_a_given_env_are_known_at_once():
    env = DingEnvWrapper(numbers_env())
    assert env.observation_space.shape == (1,)


class NoRenderMode(Scripted):
    """Its constructor has no render_mode, like that of envs that render nothing."""

    def __init__(self):
        super().__init__([np.zeros(1, np.float32)] * 2)


@pytest.mark.parametrize("cfg", [{}, {"render_mode": None}], ids=str)
def test_env_without_render_mode_argument_is_built(cfg):
    gymnasium.register("NoRenderMode-v0", NoRenderMode)
    try:
        env = DingEnvWrapper(cfg={"env_id": "NoRenderMode-v0", **cfg})
        assert env.reset().shape == (1,)
        env.close()
    finally:
        del gymnasium.registry["NoRenderMode-v0"]


def test_missing_env_and_env_id_is_a_config_error():
    with pytest.raises(ConfigError, match="env_id"):
        DingEnvWrapper(cfg={})


@pytest.mark.parametrize("make", [lambda: gymnasium.make("CartPole-v1"), lambda: None])
def test_data_are_arrays_of_the_declared_forms(make):
    env = DingEnvWrapper(make(), cfg=CARTPOLE)
    env.seed(1)
    obs = env.reset()
    assert obs.dtype == np.float32 and env.observation_space.contains(obs)
    timestep = env.step(env.random_action())
    assert timestep.obs.dtype == np.float32
    assert timestep.reward.dtype == np.float32 and timestep.reward.shape == (1,)
    last = timestep if timestep.done else play(env)
    assert last.done is True and type(last.info["eval_episode_return"]) is float
    env.close()


def test_old_gym_env_is_accepted():
    env = DingEnvWrapper(Plain(length=2, timeout=True))
    assert env.reset().shape == (1,)
    env.step(0)
    last = env.step(0)
    assert last.info["TimeLimit.truncated"] is True and last.info["eval_episode_return"] == 2.0


def test_old_api_adapter_is_removed():
    env = DingEnvWrapper(GymToGymnasiumWrapper(numbers_env(2)))
    env.reset()
    env.step(0)
    assert env.step(0).info["eval_episode_return"] == 2.0


def test_w8_time_limit_is_in_info():
    env = DingEnvWrapper(gymnasium.wrappers.TimeLimit(numbers_env(10), 2))
    env.reset()
    env.step(0)
    last = env.step(0)
    assert last.done is True
    assert (last.info["terminated"], last.info["truncated"], last.info["TimeLimit.truncated"]) == (False, True, True)


@pytest.mark.parametrize("is_gymnasium", [True, False])
def test_w9_gymnasium_env_by_id_needs_no_reward_range(is_gymnasium):
    env = DingEnvWrapper(cfg=CARTPOLE, is_gymnasium=is_gymnasium)
    env.reset()
    assert env.reward_space == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    env.close()


def test_reward_space_by_range_clip_and_declaration():
    ranged = numbers_env()
    ranged.reward_range = (-20, 5)
    assert DingEnvWrapper(ranged).reward_space == spaces.Box(-20, 5, (1,), np.float32)
    assert DingEnvWrapper(ranged, {"rew_clip": True}).reward_space == spaces.Box(-10, 5, (1,), np.float32)
    ranged.reward_range = (-30, -20)
    assert DingEnvWrapper(ranged, {"rew_clip": True}).reward_space == spaces.Box(-10, -10, (1,), np.float32)
    declared = numbers_env()
    declared.reward_space = spaces.Box(0.0, 1.0, (2,), np.float64)
    assert DingEnvWrapper(declared).reward_space == spaces.Box(0.0, 1.0, (2,), np.float32)


def test_w4_float64_space_is_declared_float32_and_the_original_unchanged():
    inner = numbers_env(space=spaces.Box(-1.0, 1.0, (1,), np.float64))
    env = DingEnvWrapper(inner)
    assert env.observation_space.dtype == np.float32
    assert inner.observation_space.dtype == np.float64 == inner.observation_space.low.dtype


@pytest.mark.parametrize("action", [1, np.int32(1), np.array([1], np.int32), np.array(1), np.array([1])])
def test_w5_integer_actions_of_every_type_reach_the_env_as_int(action):
    inner = numbers_env()
    env = DingEnvWrapper(inner)
    env.reset()
    env.step(action)
    assert inner.actions == [1] and type(inner.actions[0]) is int


def test_act_scale_maps_onto_the_bounds():
    inner = numbers_env(actions=spaces.Box(-2.0, 4.0, (1,), np.float32))
    env = DingEnvWrapper(inner, {"act_scale": True})
    env.reset()
    for action in (-1.0, 1.0, 7.0):
        env.step(np.array([action], np.float32))
    assert [float(action[0]) for action in inner.actions] == [-2.0, 4.0, 4.0]


def test_rew_clip_has_a_floor_only():
    env = DingEnvWrapper(numbers_env(rewards=[-50.0, 50.0] + [0.0] * 9), {"rew_clip": True})
    env.reset()
    assert env.step(0).reward.tolist() == [-10.0] and env.step(0).reward.tolist() == [50.0]


def test_vector_rewards_keep_their_shape():
    env = DingEnvWrapper(numbers_env(rewards=[np.array([1.0, 2.0])] * 11))
    env.reset()
    assert env.step(0).reward.tolist() == [1.0, 2.0]


def test_observations_and_vector_rewards_are_copies():
    class Rewrites(Scripted):
        obs, pay = np.zeros(1, np.float32), np.zeros(2, np.float32)

        def step(self, action):
            _, _, *rest = super().step(action)
            self.obs[:] = self.pay[:] = self.step_count
            return (self.obs, self.pay, *rest)

    env = DingEnvWrapper(Rewrites([np.zeros(1, np.float32)] * 5))
    env.reset()
    steps = [env.step(0) for _ in range(3)]
    assert [step.obs.tolist() for step in steps] == [[1.0], [2.0], [3.0]]
    assert [step.reward.tolist() for step in steps] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_seeds_static_dynamic_and_none():
    inner = numbers_env()
    env = DingEnvWrapper(inner)
    env.reset()
    env.seed(5)
    env.reset()
    env.reset()
    env.seed(5, dynamic_seed=False)
    env.reset()
    env.reset()
    assert inner.seeds == [None, episode_seed(5, 0), episode_seed(5, 1), 5, 5]
    assert seed_of(env)[0] == 5


def test_seed_at_reset_lasts_one_episode():
    inner = numbers_env()
    env = DingEnvWrapper(inner)
    env.seed(5, dynamic_seed=False)
    env.reset(seed=9, options={"a": 1})
    env.reset()
    assert inner.seeds == [9, 5] and inner.options == [{"a": 1}, None]


def test_seed_api_false_never_seeds():
    inner = numbers_env()
    env = DingEnvWrapper(inner, seed_api=False)
    env.seed(5)
    env.reset()
    assert inner.seeds == [None]


def test_w2_resets_leave_numpys_global_generator_alone(cartpole):
    state = np.random.get_state()
    cartpole.seed(3)
    cartpole.reset()
    cartpole.step(0)
    after = np.random.get_state()
    assert after[2] == state[2] and np.array_equal(after[1], state[1])


def test_w2_two_envs_do_not_share_a_stream():
    first, second, alone = (DingEnvWrapper(cfg=CARTPOLE) for _ in range(3))
    for env in (first, second, alone):
        env.seed(3)
    mixed = [(first.reset().tolist(), second.reset().tolist())[0] for _ in range(4)]
    assert mixed == [alone.reset().tolist() for _ in range(4)]
    [env.close() for env in (first, second, alone)]


def test_static_episodes_are_equal_and_dynamic_ones_differ(cartpole):
    cartpole.seed(3, dynamic_seed=False)
    assert np.array_equal(cartpole.reset(), cartpole.reset())
    cartpole.seed(3)
    assert not np.array_equal(cartpole.reset(), cartpole.reset())


def test_actions_are_reproducible_under_a_seed(cartpole):
    runs = []
    for _ in range(2):
        cartpole.seed(3)
        cartpole.reset()
        runs.append([int(cartpole.random_action()[0]) for _ in range(20)])
    assert runs[0] == runs[1]


def test_actions_of_unseeded_envs_are_equal():
    envs = DingEnvWrapper(numbers_env()), DingEnvWrapper(numbers_env())
    first, second = ([int(env.random_action()[0]) for _ in range(20)] for env in envs)
    assert first == second


def test_state_contains_the_seed():
    env, twin = DingEnvWrapper(numbers_env()), DingEnvWrapper(numbers_env())
    env.seed(3, dynamic_seed=False)
    twin.set_state(env.get_state())
    assert seed_of(twin) == (3, False)  # managers and programs read these attributes


def test_w6_reset_after_close_rebuilds_the_env(cartpole):
    first = cartpole.reset()
    cartpole.close()
    cartpole.close()
    assert cartpole.reset().shape == first.shape


def test_close_never_raises(caplog):
    class Clings(Plain):
        def close(self):
            raise RuntimeError("it does not let go")

    env = DingEnvWrapper(Clings())
    env.reset()
    env.close()
    (record,) = caplog.records
    assert "the env is dropped anyway" in record.getMessage() and record.exc_info[0] is RuntimeError
    env.close()
    with pytest.raises(StateError, match="closed"):
        env.reset()


def test_w6_reset_after_close_without_env_id_is_a_clear_error():
    env = DingEnvWrapper(numbers_env())
    env.close()
    with pytest.raises(StateError, match="closed, and an env given as an object"):
        env.reset()


def test_step_before_reset_is_a_state_error(cartpole):
    with pytest.raises(StateError, match="before a reset"):
        cartpole.step(0)
    with pytest.raises(StateError, match="before"):
        cartpole.random_action()
    with pytest.raises(StateError, match="before"):
        cartpole.render()


def test_random_action_forms():
    assert DingEnvWrapper(numbers_env()).random_action().dtype == np.int64
    box = DingEnvWrapper(numbers_env(actions=spaces.Box(-1, 1, (2,))))
    assert box.random_action().shape == (2,)
    parts = spaces.Dict({"a": spaces.Discrete(2)})
    assert DingEnvWrapper(numbers_env(actions=parts)).random_action()["a"].shape == (1,)
    with pytest.raises(TypeError):
        DingEnvWrapper(numbers_env(actions=spaces.Tuple([spaces.Discrete(2)]))).random_action()


def test_wrappers_by_config_and_callable_in_order():
    wrappers = [{"type": "time_limit", "kwargs": {"max_limit": 3}}, lambda env: TimeLimitWrapper(env, 2)]
    env = DingEnvWrapper(numbers_env(), {"env_wrapper": wrappers})
    env.reset()
    env.step(0)
    assert env.step(0).info["time_count"] == 2


def test_wrapper_with_the_old_api_may_be_outermost():
    env = DingEnvWrapper(numbers_env(2), {"env_wrapper": [AllinObsWrapper]})
    assert set(env.reset()) == {"obs", "reward"}
    env.step(0)
    assert env.step(0).done is True


def test_wrapper_of_wrong_type_is_a_config_error():
    with pytest.raises(ConfigError, match="env_wrapper"):
        DingEnvWrapper(numbers_env(), {"env_wrapper": [3]})


def test_w7_clone_shares_nothing():
    env = DingEnvWrapper(gymnasium.make("CartPole-v1"))
    twin = env.clone()
    env.seed(1, False)
    twin.seed(1, False)
    assert np.array_equal(env.reset(), twin.reset())
    built, other = (one._raw_env.unwrapped for one in (env, twin))
    assert built is not other
    env.step(1)
    assert built.state is not other.state


def test_w7_clone_of_an_uncopyable_env_is_an_error():
    inner = numbers_env()
    inner.stream = (number for number in range(3))
    with pytest.raises(StateError, match="cannot clone"):
        DingEnvWrapper(inner).clone()


def length_of(env):
    env.reset()
    for step in range(1000):
        if env.step(step % 2).done:
            return step + 1
    raise AssertionError("no end")


def given_cartpole(steps=5, **kwargs):
    return DingEnvWrapper(gymnasium.make("CartPole-v1", max_episode_steps=steps, **kwargs), cfg=CARTPOLE)


def test_env_given_with_an_env_id_is_cloned():
    env = given_cartpole()
    assert (length_of(env), length_of(env.clone()), length_of(env.clone().clone())) == (5, 5, 5)


def test_env_given_with_an_env_id_is_never_rebuilt():
    env = given_cartpole()
    env.close()
    with pytest.raises(StateError, match="closed"):
        env.reset()
    with pytest.raises(StateError, match="cannot clone"):
        env.clone()


# Gymnasium 1.1's RecordVideo raises in __del__ if its constructor has refused the env.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function RecordVideo.__del__:pytest.PytestUnraisableExceptionWarning"
)
def test_replay_of_an_env_given_with_an_env_id_needs_its_render_mode(tmp_path):
    env = given_cartpole()
    env.enable_save_replay(str(tmp_path))
    for _ in range(2):
        with pytest.raises(ConfigError, match="render_mode"):
            env.reset()
    env.close()
    assert not any(tmp_path.iterdir())


def test_clone_of_a_closed_wrapper_without_an_env_id_is_a_state_error():
    env = DingEnvWrapper(numbers_env())
    env.close()
    with pytest.raises(StateError, match="cannot clone"):
        env.clone()


def caller_of(env):
    """Return whether an env collects or evaluates, which decides its wrappers."""
    return env._caller


def test_clone_by_env_id_takes_the_caller():
    env = DingEnvWrapper(cfg={**CARTPOLE, "act_scale": True, "is_train": False})
    assert [caller_of(env.clone()), caller_of(env.clone("evaluator"))] == ["collector", "evaluator"]
    assert config_of(env.clone()).act_scale is True


def test_is_train_false_makes_an_evaluator():
    assert caller_of(DingEnvWrapper(cfg={**CARTPOLE, "is_train": False})) == "evaluator"


def test_w10_unknown_caller_is_refused():
    with pytest.raises(ConfigError, match="banana"):
        DingEnvWrapper(cfg=CARTPOLE, caller="banana")
    with pytest.raises(ValueError, match="banana"):
        get_default_wrappers("default", caller="banana")


def test_w10_evaluation_plays_whole_games():
    evaluator = [w["type"] for w in get_default_wrappers("atari_default", "Pong", "evaluator")]
    assert "episodic_life" not in evaluator and "clip_reward" not in evaluator


def test_default_lists():
    names = [w["type"] for w in get_default_wrappers("atari_default", "PongNoFrameskip-v4")]
    assert names == [
        "noop_reset",
        "max_and_skip",
        "episodic_life",
        "fire_reset",
        "warp_frame",
        "scaled_float_frame",
        "clip_reward",
        "frame_stack",
        "eval_episode_return",
    ]
    assert "fire_reset" not in [w["type"] for w in get_default_wrappers("atari_default", "Freeway")]
    for name in ("default", "mujoco_default"):
        assert get_default_wrappers(name) == [{"type": "eval_episode_return"}]
    assert get_default_wrappers("gym_hybrid_default")[0] == {"type": "gym_hybrid_dict_action"}
    with pytest.raises(NotImplementedError, match="no_such"):
        get_default_wrappers("no_such")


def test_default_lists_are_fresh():
    get_default_wrappers("atari_default")[0]["kwargs"]["noop_max"] = 1
    assert get_default_wrappers("atari_default")[0]["kwargs"] == {"noop_max": 30}


def test_seed_starts_a_full_game_during_lives():
    class Lives(Scripted):
        lives = 2

        def step(self, action):
            result = super().step(action)
            self.lives = 1 if self.step_count >= 2 else 2
            return result

    inner = Lives([np.zeros(1, np.float32)] * 9)
    env = DingEnvWrapper(inner, {"env_wrapper": [EpisodicLifeWrapper]})
    env.reset()
    env.step(0)
    assert env.step(0).done is True
    env.reset()
    assert len(inner.seeds) == 1
    env.seed(4, False)
    env.reset()
    assert inner.seeds == [None, 4]
    env.step(0)
    assert env.step(0).done is True
    env.reset(seed=6)
    assert inner.seeds == [None, 4, 6]


def test_misspelt_key_warns():
    with pytest.warns(UserWarning, match="did you mean 'act_scale'"):
        DingEnvWrapper(cfg={**CARTPOLE, "act_scales": True})


def test_unknown_env_id_raises_gymnasiums_error():
    with pytest.raises(gymnasium.error.UnregisteredEnv):
        DingEnvWrapper(cfg={"env_id": "NoSuchEnv-v0"}).reset()


def test_repr_names_the_env():
    assert repr(DingEnvWrapper(cfg=CARTPOLE)) == str(DingEnvWrapper(cfg=CARTPOLE)) == "DingEnvWrapper(CartPole-v1)"
    assert repr(DingEnvWrapper(numbers_env())) == "DingEnvWrapper(Scripted)"


@pytest.mark.extended
@pytest.mark.parametrize("caller, obs_type", [("collector", np.float32), ("evaluator", np.float32)])
def test_pong_with_the_atari_wrappers(caller, obs_type):
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    env = DingEnvWrapper(cfg={"env_id": "PongNoFrameskip-v4", "env_wrapper": "atari_default"}, caller=caller)
    env.seed(0, dynamic_seed=False)
    runs = []
    for _ in range(2):
        obs = env.reset()
        runs.append([obs] + [env.step(2 + k % 2).obs for k in range(10)])
        env.seed(0, dynamic_seed=False)
    assert obs.shape == (4, 84, 84) and obs.dtype == obs_type and env.observation_space.contains(obs)
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))
    env.close()


@pytest.mark.extended
def test_half_cheetah(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # the simulator writes a log into the working directory
    env = DingEnvWrapper(cfg={"env_id": "HalfCheetah-v5", "env_wrapper": "mujoco_default", "act_scale": True})
    env.seed(0)
    assert env.reset().dtype == np.float32
    assert env.observation_space.dtype == np.float32
    last = play(env, 1000)
    assert last.info["truncated"] is True and type(last.info["eval_episode_return"]) is float
    env.close()


def test_pendulum():
    env = DingEnvWrapper(gymnasium.make("Pendulum-v1"), {"act_scale": True, "rew_clip": True})
    env.reset()
    timestep = env.step(np.array([1.0], np.float32))
    assert -10 <= timestep.reward[0] <= 0
    env.close()


def test_missing_ale_py_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for name in [name for name in gymnasium.registry if name.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, name)
    with pytest.raises(DependencyError, match=r'pip install "ale-py>=0.10"'):
        DingEnvWrapper(cfg={"env_id": "ALE/Pong-v5"}).reset()
    with pytest.raises(gymnasium.error.UnregisteredEnv):
        DingEnvWrapper(cfg={"env_id": "NoSuchGame-v5"}).reset()


class Extended(DingEnvWrapper):
    """A user's subclass, which a clone keeps."""


@pytest.mark.parametrize("cfg", [CARTPOLE, None], ids=["env_id", "env"])
def test_clone_has_the_class_of_the_original(cfg):
    env = Extended(cfg=cfg) if cfg else Extended(gymnasium.make("CartPole-v1"))
    assert type(env.clone()) is Extended
