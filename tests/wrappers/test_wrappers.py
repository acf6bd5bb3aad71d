"""The common contract of all wrappers: names, construction, shapes, APIs, state."""

from __future__ import annotations

import inspect
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Ding, Plain, Scripted, numbers_env
from vecenv import ConfigError, SpaceError, wrappers
from vecenv.ding import (
    ENV_WRAPPER_REGISTRY,
    AllinObsWrapper,
    BaseEnv,
    BaseEnvTimestep,
    EvalEpisodeReturnWrapper,
    FrameStackWrapper,
    GymToGymnasiumWrapper,
    HybridEnv,
    NoopResetWrapper,
    TimeLimitWrapper,
    create_env_wrapper,
    to_ndarray,
    update_shape,
)
from vecenv.wrappers.base import EnvWrapper, own_generator

NAMES = {
    "noop_reset": "NoopResetWrapper",
    "max_and_skip": "MaxAndSkipWrapper",
    "warp_frame": "WarpFrameWrapper",
    "scaled_float_frame": "ScaledFloatFrameWrapper",
    "clip_reward": "ClipRewardWrapper",
    "action_repeat": "ActionRepeatWrapper",
    "delay_reward": "DelayRewardWrapper",
    "frame_stack": "FrameStackWrapper",
    "obs_transpose": "ObsTransposeWrapper",
    "obs_norm": "ObsNormWrapper",
    "static_obs_norm": "StaticObsNormWrapper",
    "reward_norm": "RewardNormWrapper",
    "ram": "RamWrapper",
    "episodic_life": "EpisodicLifeWrapper",
    "fire_reset": "FireResetWrapper",
    "eval_episode_return": "EvalEpisodeReturnWrapper",
    "gym_hybrid_dict_action": "GymHybridDictActionWrapper",
    "obs_plus_prev_action_reward": "ObsPlusPrevActRewWrapper",
    "time_limit": "TimeLimitWrapper",
    "flat_obs": "FlatObsWrapper",
    "transpose": "TransposeWrapper",
    "gym_to_gymnasium": "GymToGymnasiumWrapper",
    "reward_in_obs": "AllinObsWrapper",
}

ALIASES = {
    "NoopResetEnv": "NoopResetWrapper",
    "MaxAndSkipEnv": "MaxAndSkipWrapper",
    "WarpFrame": "WarpFrameWrapper",
    "ScaledFloatFrame": "ScaledFloatFrameWrapper",
    "ClipRewardEnv": "ClipRewardWrapper",
    "FrameStack": "FrameStackWrapper",
    "ObsNormEnv": "ObsNormWrapper",
    "RewardNormEnv": "RewardNormWrapper",
    "EpisodicLifeEnv": "EpisodicLifeWrapper",
    "FireResetEnv": "FireResetWrapper",
}


@pytest.mark.parametrize("name", NAMES)
def test_wrappers_are_all_registered(name):
    wrapper = ENV_WRAPPER_REGISTRY.get(name)
    assert wrapper is getattr(wrappers, NAMES[name]) and issubclass(wrapper, gymnasium.Wrapper)


@pytest.mark.parametrize("alias", ALIASES)
def test_older_names_are_aliases(alias):
    assert getattr(wrappers, alias) is getattr(wrappers, ALIASES[alias])


def test_create_by_config_leaves_the_config_alone():
    cfg = {"type": "frame_stack", "kwargs": {"n_frames": 2}, "import_names": ["vecenv.wrappers"]}
    assert create_env_wrapper(numbers_env(), cfg).n_frames == 2
    assert cfg == {"type": "frame_stack", "kwargs": {"n_frames": 2}, "import_names": ["vecenv.wrappers"]}


def test_create_of_an_unknown_type():
    with pytest.raises(KeyError, match="no_such_wrapper"):
        create_env_wrapper(numbers_env(), {"type": "no_such_wrapper"})
    with pytest.raises(ConfigError, match="type"):
        create_env_wrapper(numbers_env(), {})
    with pytest.raises(ConfigError, match="^env_wrapper_cfg: expected a dict, got None$"):
        create_env_wrapper(numbers_env(), None)
    with pytest.raises(ConfigError, match="^kwargs: expected a dict, got 5$"):
        create_env_wrapper(numbers_env(), {"type": "time_limit", "kwargs": 5})


SHAPES = [
    (["frame_stack"], (84, 84), (4, 84, 84)),
    (["frame_stack"], 5, (4, 5)),
    ([{"type": "frame_stack", "kwargs": {"n_frames": 2}}], (3,), (2, 3)),
    (["warp_frame"], (210, 160, 3), (84, 84)),
    ([{"type": "warp_frame", "kwargs": {"size": 42}}], (210, 160, 3), (42, 42)),
    (["WarpFrame", "FrameStackWrapper"], (210, 160, 3), (4, 84, 84)),
    (["obs_transpose"], (84, 80, 3), (3, 84, 80)),
    (["transpose"], (84, 3), (3, 84)),
    (["ram"], (128,), (128, 1, 1)),
    (["reward_in_obs"], (4,), {"obs": (4,), "reward": (1,)}),
    (["obs_plus_prev_action_reward"], (4,), {"obs": (4,), "prev_action": (), "prev_reward_extrinsic": (1,)}),
    ([{"type": "flat_obs", "kwargs": {"maxStrLen": 2}}], {"image": (2, 2), "mission": ()}, (60,)),
    (["scaled_float_frame", "noop_reset", "no_such_wrapper", "reward_norm"], (4,), (4,)),
]


@pytest.mark.parametrize("names, before, after", SHAPES)
def test_w42_update_shape_computes_shapes(names, before, after):
    assert update_shape(before, (), (1,), names) == (after, (), (1,))


EYES = spaces.Tuple([spaces.Box(0, 255, (20, 30, 3), np.uint8)] * 2)


@pytest.mark.parametrize(
    "names, space",
    [
        (["warp_frame", "frame_stack"], EYES),
        (["obs_transpose", "frame_stack"], EYES),
        (["frame_stack"], spaces.Dict(eyes=EYES, speed=spaces.Box(-1, 1, (2,), np.float32), gear=spaces.Discrete(3))),
        (["obs_plus_prev_action_reward", "frame_stack", "reward_in_obs"], spaces.Box(-1, 1, (2,), np.float32)),
    ],
)
def test_update_shape_computes_shapes_of_dicts_and_tuples(names, space):
    """frame_stack gave (4, 'obs', 'prev_action', ...), warp_frame one image, and obs_transpose a ValueError."""

    def shape_of(space):
        if isinstance(space, spaces.Dict):
            return {key: shape_of(part) for key, part in space.spaces.items()}
        return tuple(map(shape_of, space.spaces)) if isinstance(space, spaces.Tuple) else space.shape

    if "warp_frame" in names:
        pytest.importorskip("cv2")
    env = Scripted([None], space=space)
    for name in names:
        env = create_env_wrapper(env, {"type": name})
    assert update_shape(shape_of(space), (), (1,), names)[0] == shape_of(env.observation_space)


def test_w42_update_shape_of_hybrid_actions():
    assert update_shape((5,), ((), (2,)), (1,), ["gym_hybrid_dict_action"])[1] == {
        "type": (),
        "mask": (2,),
        "args": (2,),
    }


@pytest.mark.parametrize(
    "env_id, act_shape, cfg",
    [("CartPole-v1", 2, {}), ("CartPole-v1", (), {}), ("Pendulum-v1", 1, {"continuous": True})],
)
def test_w42_update_shape_of_lightzeros_observations(env_id, act_shape, cfg):
    env = wrappers.LightZeroEnvWrapper(gymnasium.make(env_id), {"is_train": True, **cfg})
    entry = {"type": "lightzero_env_wrapper", "kwargs": {"cfg": {"is_train": True, **cfg}}}
    shapes, *others = update_shape(env.env.observation_space.shape, act_shape, (1,), [entry])
    expected = {key: part.shape for key, part in env.observation_space.spaces.items()}
    if act_shape == ():  # it does not contain the number of actions
        expected["action_mask"] = None
    assert shapes == expected and others == [act_shape, (1,)]
    assert update_shape((4,), 2, (1,), ["LightZeroEnvWrapper"])[0]["action_mask"] == (2,)
    env.close()


def test_w42_update_shape_evaluates_nothing():
    assert update_shape((1,), (), (1,), ["__import__('os').abort()"]) == ((1,), (), (1,))


@pytest.mark.parametrize("names, before, after", [case for case in SHAPES if isinstance(case[1], tuple)])
def test_w42_update_shape_agrees_with_the_wrappers(names, before, after):
    pytest.importorskip("cv2")
    env = Scripted([np.zeros(before, np.uint8)] * 3, space=spaces.Box(0, 255, before, np.uint8))
    if "reward_norm" in names:
        names = names[:2]
    for entry in names:
        name, kwargs = (entry, {}) if isinstance(entry, str) else (entry["type"], entry["kwargs"])
        wrapper = ENV_WRAPPER_REGISTRY.get(name) if name in ENV_WRAPPER_REGISTRY else getattr(wrappers, name)
        env = wrapper(env, **kwargs)
    space = env.observation_space
    if isinstance(after, dict):
        assert {key: part.shape for key, part in space.spaces.items()} == after
    else:
        assert space.shape == after


def test_wrappers_accept_every_api():
    for inner in (Plain(length=2), Ding({"length": 2}), numbers_env(2)):
        env = EvalEpisodeReturnWrapper(inner)
        obs, info = env.reset(seed=1)
        env.step(0)
        obs, _, terminated, truncated, info = env.step(0)
        assert isinstance(obs, np.ndarray)
        assert (terminated, truncated, info["eval_episode_return"]) == (True, False, 2.0)


def test_wrappers_around_all_in_obs():
    env = EvalEpisodeReturnWrapper(AllinObsWrapper(numbers_env(1)))
    assert set(env.reset()[0]) == {"obs", "reward"}
    assert env.step(0)[4]["eval_episode_return"] == 1.0


def test_wrappers_forward_seed_and_options():
    inner = numbers_env()
    TimeLimitWrapper(FrameStackWrapper(EvalEpisodeReturnWrapper(inner)), 5).reset(seed=4, options={"a": 1})
    assert inner.seeds == [4] and inner.options == [{"a": 1}]


def test_gymnasiums_wrappers_accept_ours():
    env = gymnasium.wrappers.TimeLimit(FrameStackWrapper(numbers_env()), 2)
    env.reset(seed=1)
    env.step(0)
    assert env.step(0)[3] is True and env.get_wrapper_attr("n_frames") == 4


@pytest.mark.parametrize(
    "wrapper", [cls for _, cls in inspect.getmembers(wrappers, inspect.isclass) if issubclass(cls, EnvWrapper)]
)
def test_state_names_are_public_attributes_or_ours(wrapper):
    if wrapper.state_names and wrapper is not GymToGymnasiumWrapper:
        assert all(not name.startswith("_") for name in wrapper.state_names)


def test_state_is_a_copy_that_pickles():
    env = FrameStackWrapper(EvalEpisodeReturnWrapper(numbers_env()), 2)
    env.reset()
    env.step(0)
    state = pickle.loads(pickle.dumps(env.get_state()))
    env.step(0)
    assert [frame[0] for frame in state["frames"]] == [0.0, 1.0]
    env.set_state(state)
    assert [frame[0] for frame in env.frames] == [0.0, 1.0]
    env.step(0)
    assert [frame[0] for frame in state["frames"]] == [0.0, 1.0]
    assert env.env.get_state() == {"episode_return": 3.0}


class TestGymToGymnasium:
    def test_old_api_calls(self):
        env = GymToGymnasiumWrapper(numbers_env(1, truncate=True))
        assert env.reset().tolist() == [0.0]
        obs, reward, done, info = env.step(0)
        assert (obs.tolist(), reward, done) == ([1.0], 1.0, True)
        assert info == {"terminated": False, "truncated": True, "TimeLimit.truncated": True}

    def test_w8_termination_is_not_a_truncation(self):
        env = GymToGymnasiumWrapper(numbers_env(1))
        env.reset()
        assert env.step(0)[3] == {"terminated": True, "truncated": False, "TimeLimit.truncated": False}

    def test_seed_applies_to_the_next_reset_only(self):
        inner = numbers_env()
        env = GymToGymnasiumWrapper(inner)
        env.seed(0)
        env.reset()
        env.reset()
        assert inner.seeds == [0, None]

    @pytest.mark.parametrize("inner", [Plain(), 3, None])
    def test_other_objects_are_refused(self, inner):
        with pytest.raises(AssertionError, match=r"gymnasium\.Env"):
            GymToGymnasiumWrapper(inner)

    def test_wrappers_outside_keep_the_old_api(self):
        inner = numbers_env(40)
        old_api_env = GymToGymnasiumWrapper(inner)
        old_api_env.seed(5)
        env = FrameStackWrapper(NoopResetWrapper(old_api_env, noop_max=3), n_frames=2)
        assert isinstance(env, GymToGymnasiumWrapper) and isinstance(env.env, FrameStackWrapper)
        assert env.reset().shape == (2, 1) and len(env.step(0)) == 4
        assert env.noop_max == 3 and env.observation_space.shape == (2, 1) and inner.seeds == [5]

    def test_attributes_and_pickling(self):
        env = NoopResetWrapper(GymToGymnasiumWrapper(gymnasium.wrappers.TimeLimit(numbers_env(), 5)))
        twin = pickle.loads(pickle.dumps(env))
        assert twin.noop_max == 30 and twin.meanings[0] == "NOOP"
        with pytest.raises(AttributeError):
            _ = twin.no_such_thing

    def test_guide_env_runs(self):
        """An env class in the form of the migration guide, with the old API."""

        class GuideEnv(BaseEnv):
            def __init__(self, cfg):
                self._cfg, self._init_flag = cfg, False

            def seed(self, seed, dynamic_seed=True):
                self._seed, self._dynamic_seed = seed, dynamic_seed

            def reset(self):
                if not self._init_flag:
                    self._env = FrameStackWrapper(GymToGymnasiumWrapper(gymnasium.make("CartPole-v1")), 2)
                    self._init_flag = True
                self._env.seed(self._seed)
                self._eval_episode_return = 0.0
                return to_ndarray(self._env.reset())

            def step(self, action):
                obs, rew, done, info = self._env.step(action.item())
                self._eval_episode_return += rew
                if done:
                    info["eval_episode_return"] = self._eval_episode_return
                return BaseEnvTimestep(to_ndarray(obs), to_ndarray([rew]), done, info)

            def close(self):
                self._env.close()

        env = GuideEnv({})
        env.seed(314)
        assert env.reset().shape == (2, 4)
        timestep = env.step(np.array([1]))
        while not timestep.done:
            timestep = env.step(np.array([1]))
        assert timestep.info["eval_episode_return"] > 0 and timestep.reward.shape == (1,)
        env.close()


def test_hybrid_action_wrapper_by_name():
    env = create_env_wrapper(HybridEnv(), {"type": "gym_hybrid_dict_action"})
    assert isinstance(env.action_space, spaces.Dict)


def test_wrappers_with_one_seed_draw_different_numbers():
    generators = own_generator(7, "noop_reset"), own_generator(7, "frame_crop"), np.random.default_rng(7)
    assert len({generator.random() for generator in generators}) == 3


def test_unfit_space_error_names_the_expected_space():
    with pytest.raises(SpaceError) as error:
        create_env_wrapper(Scripted([0], space=spaces.Discrete(2)), {"type": "ram"})
    assert (error.value.expected, error.value.got) == ("Box", "Discrete")
