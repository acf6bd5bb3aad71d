"""Envs in the form of the migration guide, written for this project: each builds an old Gym env lazily."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
from easydict import EasyDict

from vecenv.ding import (
    ENV_REGISTRY,
    BaseEnv,
    BaseEnvTimestep,
    ClipRewardEnv,
    EpisodicLifeEnv,
    FireResetEnv,
    FrameStack,
    GymToGymnasiumWrapper,
    MaxAndSkipEnv,
    NoopResetEnv,
    RecordVideo,
    ScaledFloatFrame,
    WarpFrame,
    affine_transform,
    deep_merge_dicts,
    to_ndarray,
)


def make_old_env(env_id, **kwargs):
    """Replace the old `gym.make`."""
    if env_id.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
    return GymToGymnasiumWrapper(gym.make(env_id, render_mode="rgb_array", **kwargs))


class GuideEnv(BaseEnv):
    """The base of the guide's envs: lazy, with old Gym's seeds, a score and a replay folder."""

    def __init__(self, cfg):
        self._cfg = cfg
        self._init_flag = False
        self._replay_path = None

    def _make_env(self):
        raise NotImplementedError

    def seed(self, seed, dynamic_seed=True):
        self._seed = seed
        self._dynamic_seed = dynamic_seed
        np.random.seed(self._seed)

    def reset(self):
        if not self._init_flag:
            self._env = self._make_env()
            if self._replay_path is not None:
                self._env = RecordVideo(
                    self._env,
                    video_folder=self._replay_path,
                    episode_trigger=lambda episode_id: True,
                    name_prefix=f"rl-video-{id(self)}",
                )
            self._init_flag = True
        if hasattr(self, "_seed") and hasattr(self, "_dynamic_seed") and self._dynamic_seed:
            self._env.seed(self._seed + 100 * np.random.randint(1, 1000))
        elif hasattr(self, "_seed"):
            self._env.seed(self._seed)
        obs = to_ndarray(self._env.reset(), np.float32)
        self._eval_episode_return = 0.0
        return obs

    def step(self, action):
        assert isinstance(action, np.ndarray), type(action)
        obs, rew, done, info = self._env.step(self._to_env(action))
        self._eval_episode_return += float(rew)
        if done:
            info["eval_episode_return"] = self._eval_episode_return
        return BaseEnvTimestep(to_ndarray(obs, np.float32), to_ndarray([rew], np.float32), done, info)

    def _to_env(self, action):
        return action.item()

    def close(self):
        if self._init_flag:
            self._env.close()
        self._init_flag = False

    def enable_save_replay(self, replay_path=None):
        self._replay_path = "./video" if replay_path is None else replay_path

    def random_action(self):
        action = self.action_space.sample()
        if isinstance(action, np.ndarray):
            return action
        if isinstance(action, (int, np.integer)):
            return to_ndarray([action], dtype=np.int64)
        if isinstance(action, dict):
            return to_ndarray(action)
        raise TypeError(f"an action of {type(action)}")

    @classmethod
    def default_config(cls):
        cfg = EasyDict(copy.deepcopy(cls.config))
        cfg.cfg_type = cls.__name__ + "Dict"
        return cfg

    @property
    def observation_space(self):
        return self._env.observation_space if self._init_flag else None

    @property
    def action_space(self):
        return self._env.action_space if self._init_flag else None

    @property
    def reward_space(self):
        return gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


@ENV_REGISTRY.register("ported_atari")
class AtariEnv(GuideEnv):
    """Pong with the usual frames; lives and clipped rewards in training only."""

    config = dict(env_id="ALE/Pong-v5", frame_stack=4, is_train=True, max_episode_steps=400)

    def __init__(self, cfg):
        super().__init__(deep_merge_dicts(self.config, cfg))

    def _make_env(self):
        env = make_old_env(self._cfg.env_id, frameskip=1, max_episode_steps=self._cfg.max_episode_steps)
        env = NoopResetEnv(env, noop_max=30)
        env = MaxAndSkipEnv(env, skip=4)
        if self._cfg.is_train:
            env = EpisodicLifeEnv(env)
        env = FireResetEnv(env)
        env = WarpFrame(env)
        env = ScaledFloatFrame(env)
        if self._cfg.is_train:
            env = ClipRewardEnv(env)
        return FrameStack(env, self._cfg.frame_stack)

    @staticmethod
    def create_collector_env_cfg(cfg):
        collector_env_num = cfg.pop("collector_env_num")
        cfg = copy.deepcopy(cfg)
        cfg.is_train = True
        return [cfg for _ in range(collector_env_num)]

    @staticmethod
    def create_evaluator_env_cfg(cfg):
        evaluator_env_num = cfg.pop("evaluator_env_num")
        cfg = copy.deepcopy(cfg)
        cfg.is_train = False
        return [cfg for _ in range(evaluator_env_num)]


@ENV_REGISTRY.register("ported_mujoco")
class MujocoEnv(GuideEnv):
    """HalfCheetah; actions are scaled from [-1, 1] on request."""

    config = dict(env_id="HalfCheetah-v5", use_act_scale=False, delay_reward_step=0)

    def __init__(self, cfg):
        super().__init__(deep_merge_dicts(self.config, cfg))

    def _make_env(self):
        return make_old_env(self._cfg.env_id, max_episode_steps=20)

    def _to_env(self, action):
        if self._cfg.use_act_scale:
            space = self._env.action_space
            return affine_transform(action, min_val=space.low, max_val=space.high)
        return action

    @property
    def observation_space(self):
        if not self._init_flag:
            return None
        return gym.spaces.Box(-np.inf, np.inf, self._env.observation_space.shape, np.float32)


@ENV_REGISTRY.register("ported_cartpole")
class CartpoleEnv(GuideEnv):
    """Its spaces are known from the start."""

    config = dict(replay_path=None)

    def __init__(self, cfg=None):
        super().__init__(deep_merge_dicts(self.config, cfg or {}))
        high = np.array([4.8, np.inf, 0.42, np.inf], np.float32)
        self._observation_space = gym.spaces.Box(-high, high, dtype=np.float32)
        self._action_space = gym.spaces.Discrete(2)
        self._reward_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)

    def _make_env(self):
        return make_old_env("CartPole-v1")

    observation_space = property(lambda self: self._observation_space)
    action_space = property(lambda self: self._action_space)
    reward_space = property(lambda self: self._reward_space)


class OlderCartpoleEnv(CartpoleEnv):
    """The form of the guide's older edition: the score has another name."""

    def step(self, action):
        timestep = super().step(action)
        if timestep.done:
            timestep.info["final_eval_reward"] = timestep.info.pop("eval_episode_return")
        return timestep
