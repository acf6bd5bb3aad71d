"""Wrappers of observations."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.inside import seed_of
from tests.scripted import Ding, Scripted, numbers_env
from vecenv import ConfigError, DependencyError, SpaceError, check_all
from vecenv.ding import (
    AllinObsWrapper,
    BaseEnvTimestep,
    DingEnvWrapper,
    EvalEpisodeReturnWrapper,
    FlatObsWrapper,
    FrameStackWrapper,
    ObsPlusPrevActRewWrapper,
    ObsTransposeWrapper,
    RamWrapper,
    ScaledFloatFrameWrapper,
    TransposeWrapper,
    WarpFrameWrapper,
)
from vecenv.envs.seeding import episode_seed


def images(shape, dtype=np.uint8, count=4):
    rng = np.random.default_rng(0)
    space = spaces.Box(0, 255, shape, dtype)
    return Scripted([rng.integers(0, 256, shape).astype(dtype) for _ in range(count)], space=space)


def check_obs(env):
    """Reset and step, and check that the space contains both observations."""
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs), obs
    stepped = env.step(env.action_space.sample())[0]
    assert env.observation_space.contains(stepped), stepped
    return obs, stepped


class TestWarpFrame:
    @pytest.fixture(autouse=True)
    def cv2(self):
        return pytest.importorskip("cv2")

    @pytest.mark.parametrize("shape", [(210, 160, 3), (210, 160, 4), (210, 160, 1), (210, 160)])
    def test_warp_frame_is_grey_and_square(self, shape):
        env = WarpFrameWrapper(images(shape))
        obs, _ = check_obs(env)
        assert obs.shape == (84, 84) and obs.dtype == np.uint8
        assert env.observation_space == spaces.Box(0, 255, (84, 84), np.uint8)

    def test_warp_frame_grey_values_and_area_resize(self):
        frame = np.zeros((4, 4, 3), np.uint8)
        frame[:2] = 100
        env = WarpFrameWrapper(Scripted([frame] * 2, space=spaces.Box(0, 255, (4, 4, 3), np.uint8)), size=2)
        assert env.reset()[0].tolist() == [[100, 100], [0, 0]]

    @pytest.mark.parametrize("shape", [(3, 40, 30), (1, 40, 30), (3, 5, 7), (5, 7, 3), (8, 8, 1)])
    def test_w38_channel_first_and_small_frames_match_the_space(self, shape):
        env = WarpFrameWrapper(images(shape), size=10)
        assert check_obs(env)[0].shape == (10, 10)

    def test_w38_channel_first_and_last_agree(self):
        last = images((12, 10, 3))
        space = spaces.Box(0, 255, (3, 12, 10), np.uint8)
        first = Scripted([obs.transpose(2, 0, 1) for obs in last.observations], space=space)
        assert np.array_equal(WarpFrameWrapper(last).reset()[0], WarpFrameWrapper(first).reset()[0])

    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
    def test_warp_frame_keeps_bounds_and_dtype(self, dtype):
        space = spaces.Box(0, 255, (20, 20, 3), dtype)
        frames = [np.full((20, 20, 3), 7, dtype) for _ in range(3)]
        obs, _ = check_obs(WarpFrameWrapper(Scripted(frames, space=space), 5))
        assert obs.dtype == dtype and np.allclose(obs, 7)

    def test_warp_frame_rounds_means_of_integers(self):
        frame = np.array([[0, 1], [1, 1]])
        env = WarpFrameWrapper(Scripted([frame], space=spaces.Box(0, 1, (2, 2), np.int64)), size=1)
        assert env.reset()[0].tolist() == [[1]]

    def test_warp_frame_keeps_tuples(self):
        part = spaces.Box(0, 255, (20, 20, 3), np.uint8)
        frame = np.zeros((20, 20, 3), np.uint8)
        env = WarpFrameWrapper(Scripted([(frame, frame)] * 3, space=spaces.Tuple([part, part])), 8)
        obs, _ = check_obs(env)
        assert isinstance(obs, tuple) and obs[1].shape == (8, 8)

    def test_warp_frame_refuses_non_images(self):
        with pytest.raises(SpaceError, match="expected an image"):
            WarpFrameWrapper(numbers_env())
        with pytest.raises(SpaceError, match="expected a Box"):
            WarpFrameWrapper(Scripted([0, 0], space=spaces.Discrete(2)))

    def test_w38_missing_opencv_is_an_error_and_does_not_end_the_process(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "cv2", None)
        with pytest.raises(DependencyError, match=r"pip install \"ale-py>=0.10\""):
            WarpFrameWrapper(images((20, 20, 3)))


class TestScaledFloatFrame:
    def test_scaled_frames_reach_one(self):
        frame = np.array([[0, 255], [51, 102]], np.uint8)
        env = ScaledFloatFrameWrapper(Scripted([frame] * 3, space=spaces.Box(0, 255, (2, 2), np.uint8)))
        obs, _ = check_obs(env)
        assert obs.dtype == np.float32 and np.allclose(obs, [[0, 1], [0.2, 0.4]])
        assert env.observation_space == spaces.Box(0.0, 1.0, (2, 2), np.float32)

    def test_scaled_frames_need_bounds(self):
        with pytest.raises(SpaceError, match="two finite bounds"):
            ScaledFloatFrameWrapper(numbers_env())


class TestFrameStack:
    def test_frame_stack_has_the_oldest_first_and_equal_frames_after_a_reset(self):
        env = FrameStackWrapper(numbers_env(), 3)
        obs, stepped = check_obs(env)
        assert obs.ravel().tolist() == [0, 0, 0] and stepped.ravel().tolist() == [0, 0, 1]
        env.step(0)
        assert env.step(0)[0].ravel().tolist() == [1, 2, 3]
        assert env.reset()[0].ravel().tolist() == [0, 0, 0]
        assert env.observation_space.shape == (3, 1)

    def test_frame_stack_returns_a_new_array_each_step(self):
        first, second = check_obs(FrameStackWrapper(numbers_env()))
        assert not np.shares_memory(first, second)

    def test_frame_stack_frames_is_the_queue(self):
        env = FrameStackWrapper(numbers_env(), 2)
        env.reset()
        assert len(env.frames) == 2 and env.n_frames == 2

    def test_frame_stack_of_dict_observations(self):
        space = spaces.Dict({"a": spaces.Box(0, 9, (2,), np.float32), "b": spaces.Discrete(4)})
        env = FrameStackWrapper(Scripted([{"a": np.zeros(2, np.float32), "b": 1}] * 3, space=space), 4)
        obs, _ = check_obs(env)
        assert obs["a"].shape == (4, 2) and obs["b"].tolist() == [1, 1, 1, 1]

    @pytest.mark.parametrize("kind", ["box", "dict", "tuple"])
    def test_frame_stack_copies_frames_written_into_one_array(self, kind):
        class Rewrites(Scripted):
            array = np.zeros(1, np.float32)

            def present(self, obs):
                self.array[:] = obs
                return {"box": self.array, "dict": {"a": self.array}, "tuple": (self.array,)}[kind]

            def reset(self, **kwargs):
                obs, info = super().reset(**kwargs)
                return self.present(obs), info

            def step(self, action):
                obs, *rest = super().step(action)
                return (self.present(obs), *rest)

        part = spaces.Box(0, 9, (1,), np.float32)
        space = {"box": part, "dict": spaces.Dict({"a": part}), "tuple": spaces.Tuple([part])}[kind]
        env = FrameStackWrapper(Rewrites([np.array([float(i)], np.float32) for i in range(5)], space=space), 3)
        env.reset()
        env.step(0)
        obs = env.step(0)[0]
        frames = {"box": lambda: obs, "dict": lambda: obs["a"], "tuple": lambda: obs[0]}[kind]()
        assert frames.ravel().tolist() == [0.0, 1.0, 2.0]

    def test_frame_stack_needs_a_frame(self):
        for count in (0, "2", 1.5):
            with pytest.raises(ConfigError, match="n_frames"):
                FrameStackWrapper(numbers_env(), count)


class TestTranspose:
    def test_transpose_image_to_channel_first(self):
        inner = images((4, 5, 3))
        obs, _ = check_obs(ObsTransposeWrapper(inner))
        assert obs.shape == (3, 4, 5) and np.array_equal(obs, inner.observations[0].transpose(2, 0, 1))

    def test_transpose_tuple_of_images_to_one_array(self):
        part = spaces.Box(0, 255, (4, 5, 3), np.uint8)
        frame = np.zeros((4, 5, 3), np.uint8)
        env = ObsTransposeWrapper(Scripted([(frame, frame)] * 3, space=spaces.Tuple([part, part])))
        assert check_obs(env)[0].shape == (2, 3, 4, 5)

    def test_transpose_refuses_unfit_observations(self):
        with pytest.raises(SpaceError):
            ObsTransposeWrapper(numbers_env())
        parts = [spaces.Box(0, 255, (4, 5, 3), np.uint8), spaces.Box(0, 255, (4, 4, 3), np.uint8)]
        with pytest.raises(SpaceError, match="one shape"):
            ObsTransposeWrapper(Scripted([0], space=spaces.Tuple(parts)))

    def test_transpose_last_axis_first(self):
        assert check_obs(TransposeWrapper(images((4, 5, 3))))[0].shape == (3, 4, 5)
        assert check_obs(TransposeWrapper(images((4, 5))))[0].shape == (5, 4)


@pytest.mark.parametrize("size", [128, 7])
def test_ram_as_image_shape(size):
    env = RamWrapper(images((size,)), render=True)
    obs, _ = check_obs(env)
    assert obs.shape == (size, 1, 1) and obs.dtype == np.float32


class TestObsPlusPrevActRew:
    def test_previous_action_and_reward_start_values(self):
        obs, _ = ObsPlusPrevActRewWrapper(numbers_env()).reset()
        assert obs["prev_action"] == -1 and obs["prev_reward_extrinsic"].tolist() == [0.0]

    def test_w40_previous_action_and_reward_are_those_just_taken(self):
        env = ObsPlusPrevActRewWrapper(numbers_env(rewards=[5.0, 6.0] + [0.0] * 9))
        env.reset()
        for action, reward in ((3, 5.0), (2, 6.0)):
            obs = env.step(action)[0]
            assert obs["prev_action"] == action == env.prev_action
            assert obs["prev_reward_extrinsic"].tolist() == [reward] == [env.prev_reward_extrinsic]

    def test_w40_reset_clears_previous_action_and_reward(self):
        env = ObsPlusPrevActRewWrapper(numbers_env())
        env.reset()
        env.step(3)
        obs, _ = env.reset()
        assert obs["prev_action"] == -1 and obs["prev_reward_extrinsic"].tolist() == [0.0]

    @pytest.mark.parametrize(
        "actions",
        [
            spaces.Discrete(3),
            spaces.Discrete(3, start=5),
            spaces.Box(0.0, 2.0, (2,), np.float32),
            spaces.Box(0.0, 2.0, (), np.float32),
            spaces.Box(0, 1, (2,), np.bool_),
            spaces.MultiDiscrete([2, 3]),
            spaces.MultiDiscrete([2, 3, 4], start=[5, 0, -7]),
            spaces.MultiBinary(3),
        ],
    )
    def test_w40_start_values_are_in_the_space(self, actions):
        env = ObsPlusPrevActRewWrapper(numbers_env(actions=actions))
        check_obs(env)
        actions.seed(0)
        env.reset()
        for _ in range(3):
            action = actions.sample()
            obs = env.step(action)[0]
            assert env.observation_space.contains(obs) and np.array_equal(obs["prev_action"], action)

    def test_previous_action_of_none_differs_from_possible_actions(self):
        actions = spaces.MultiDiscrete([2, 3, 4], start=[5, 0, -7])
        obs, _ = ObsPlusPrevActRewWrapper(numbers_env(actions=actions)).reset()
        assert obs["prev_action"].tolist() == [-1, -1, -8]

    @pytest.mark.parametrize(
        "actions, action",
        [
            (spaces.Discrete(3), np.array([2])),
            (spaces.Discrete(3), np.array(2)),
            (spaces.Box(0.0, 2.0, (1,), np.float32), 1.0),
            (spaces.MultiDiscrete([2, 3]), [1, 2]),
        ],
        ids=str,
    )
    def test_previous_action_of_another_form_is_in_the_spaces(self, actions, action):
        env = ObsPlusPrevActRewWrapper(numbers_env(actions=actions))
        env.reset()
        obs = env.step(action)[0]
        assert env.observation_space.contains(obs)
        assert obs["prev_action"].ravel().tolist() == np.ravel(action).tolist()

    @pytest.mark.parametrize("dtype, shown", [(np.uint8, np.int64), (np.uint32, np.int64), (np.uint64, np.float64)])
    def test_previous_action_of_unsigned_type_has_room_for_none(self, dtype, shown):
        actions = spaces.Box(0, np.iinfo(dtype).max, (2,), dtype)
        env = ObsPlusPrevActRewWrapper(numbers_env(actions=actions))
        obs, stepped = check_obs(env)
        assert obs["prev_action"].tolist() == [-1, -1] and stepped["prev_action"].dtype == shown
        obs = env.step(np.array([0, 255], dtype))[0]
        assert obs["prev_action"].tolist() == [0, 255]

    def test_previous_action_is_a_copy(self):
        env = ObsPlusPrevActRewWrapper(numbers_env(actions=spaces.Box(0.0, 2.0, (1,), np.float32)))
        env.reset()
        action = np.ones(1, np.float32)
        env.step(action)
        action[:] = 2
        assert env.get_state()["prev_action"].tolist() == [1.0]

    def test_previous_reward_start_is_in_the_space_and_agent_rewards_are_added(self):
        inner = numbers_env(rewards=[np.array([1.0, 2.0])] * 10)
        inner.reward_range = (1, 4)
        _, stepped = check_obs(ObsPlusPrevActRewWrapper(inner))
        assert stepped["prev_reward_extrinsic"].tolist() == [3.0]

    def test_previous_action_space_is_not_wider_than_needed(self):
        env = ObsPlusPrevActRewWrapper(numbers_env(actions=spaces.MultiDiscrete([2, 3])))
        assert env.observation_space["prev_action"] == spaces.Box(-1, np.array([1, 2]), dtype=np.int64)

    def test_previous_action_of_containers_is_refused(self):
        with pytest.raises(SpaceError):
            ObsPlusPrevActRewWrapper(numbers_env(actions=spaces.Tuple([spaces.Discrete(2)])))


class TestFlatObs:
    def grid(self, missions):
        space = spaces.Dict({"image": spaces.Box(0, 255, (2, 2, 3), np.uint8), "mission": spaces.Text(200)})
        image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
        return Scripted([{"image": image, "mission": mission} for mission in missions], space=space)

    def test_flat_obs_is_image_then_one_hot_text(self):
        env = FlatObsWrapper(self.grid(["Ab, z", "Ab, z"]), maxStrLen=10)
        obs, _ = check_obs(env)
        assert obs.shape == (12 + 280,) and obs[:12].tolist() == list(range(12))
        assert obs[12:].reshape(10, 28).argmax(axis=1)[:5].tolist() == [0, 1, 27, 26, 25]
        assert obs[12:].sum() == 5

    def test_flat_obs_text_may_change(self):
        env = FlatObsWrapper(self.grid(["a", "b"]))
        obs, stepped = check_obs(env)
        assert not np.array_equal(obs, stepped)

    def test_flat_obs_accepts_a_pair_with_info(self):
        env = FlatObsWrapper(self.grid(["a", "a"]))
        raw = env.unwrapped.observations[0]
        assert np.array_equal(env.observation((raw, {})), env.observation(raw))

    def test_flat_obs_refuses_long_text_and_other_characters(self):
        with pytest.raises(AssertionError, match="at most 3 characters"):
            FlatObsWrapper(self.grid(["abcd"]), maxStrLen=3).reset()
        with pytest.raises(ValueError, match="'!'"):
            FlatObsWrapper(self.grid(["a!"])).reset()

    def test_flat_obs_refuses_other_spaces(self):
        with pytest.raises(SpaceError):
            FlatObsWrapper(numbers_env())


def two_rewards(env):
    class Doubles(gymnasium.RewardWrapper):
        reward_space = spaces.Box(0.0, 1.0, (2,), np.float32)

        def reward(self, reward):
            return np.array([reward, reward], np.float32)

    return Doubles(env)


class TestAllinObs:
    def test_all_in_obs_around_a_base_env(self):
        env = AllinObsWrapper(Ding())
        assert env.observation_space["reward"].shape == (1,)
        obs = env.reset()
        assert env.observation_space.contains(obs) and obs["reward"].tolist() == [0.0]
        timestep = env.step(0)
        assert isinstance(timestep, BaseEnvTimestep) and timestep.obs["reward"].tolist() == [1.0]
        assert env.observation_space.contains(timestep.obs)

    def test_all_in_obs_reward_keeps_its_type(self):
        env = AllinObsWrapper(gymnasium.make("CartPole-v1"))
        first = env.reset()["reward"]
        then = env.step(0).obs["reward"]
        assert (first.dtype, first.shape) == (then.dtype, then.shape) == (np.float32, (1,))

    @pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
    def test_all_in_obs_passes_the_check(self, env_id):
        env = AllinObsWrapper(EvalEpisodeReturnWrapper(gymnasium.make(env_id, max_episode_steps=9)))
        check_all(env, spawn=False)
        env.close()

    def test_all_in_obs_reward_is_a_separate_array(self):
        env = AllinObsWrapper(numbers_env(rewards=[2.5] * 11))
        env.reset()
        timestep = env.step(np.array([1]))
        assert timestep.reward.dtype == np.float32 and timestep.reward.tolist() == [2.5]
        assert not np.shares_memory(timestep.reward, timestep.obs["reward"])
        assert env.env.actions == [1] and type(env.env.actions[0]) is int

    def test_all_in_obs_reward_spaces(self):
        inner = numbers_env(rewards=[np.array([1.5, 2.0])] * 11)
        inner.reward_space = spaces.Box(1.0, 2.0, (2,), np.float64)
        env = AllinObsWrapper(inner)
        assert env.reward_space == spaces.Box(1.0, 2.0, (2,), np.float32)
        assert env.observation_space["reward"] == spaces.Box(0.0, 2.0, (2,), np.float32)
        env.reset()
        assert env.reward_space.contains(env.step(0).reward)
        inner.reward_space = spaces.Box(1.0, 2.0, (), np.float32)
        assert AllinObsWrapper(inner).reward_space == spaces.Box(1.0, 2.0, (1,), np.float32)

    def test_all_in_obs_passes_actions_of_a_base_env_unchanged(self):
        inner = Ding()
        env = AllinObsWrapper(inner)
        env.reset()
        env.step(np.array([1]))
        assert isinstance(inner.action, np.ndarray)

    def test_all_in_obs_passes_nested_actions_in_their_form(self):
        inner = numbers_env(actions=spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]))
        env = AllinObsWrapper(inner)
        env.reset()
        env.step((np.array([1]), 2))
        assert inner.actions == [(1, 2)]

    def test_all_in_obs_vector_rewards_of_a_lazily_built_env(self):
        env = AllinObsWrapper(DingEnvWrapper(cfg={"env_id": "CartPole-v1", "env_wrapper": [two_rewards]}))
        assert env.reward_space is None
        obs = env.reset()
        assert env.reward_space.shape == (2,) and env.observation_space.contains(obs)
        assert env.step(0).reward.tolist() == [1.0, 1.0]
        env.close()

    def test_all_in_obs_passes_both_seed_values(self):
        inner = Ding()
        AllinObsWrapper(inner).seed(3, dynamic_seed=False)
        assert seed_of(inner) == (3, False)

    def test_all_in_obs_seed_of_a_gymnasium_env_by_episode(self):
        inner = numbers_env()
        env = AllinObsWrapper(inner)
        env.seed(3)
        env.reset()
        env.reset()
        env.reset(seed=9)
        assert inner.seeds == [episode_seed(3, 0), episode_seed(3, 1), 9]

    def test_all_in_obs_around_an_env_without_spaces_yet(self):
        env = AllinObsWrapper(DingEnvWrapper(cfg={"env_id": "CartPole-v1"}))
        assert env.observation_space is None
        obs = env.reset()
        assert env.observation_space.contains(obs)
        env.close()
