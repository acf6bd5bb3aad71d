"""State of a stack, through pickle, into a stack built anew: both go on bit for bit alike."""

from __future__ import annotations

import pickle
import random

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Ding, Plain
from vecenv import (
    ENV_WRAPPER_REGISTRY,
    AllinObsWrapper,
    BaseEnv,
    BaseEnvTimestep,
    DingEnvWrapper,
    GymToGymnasiumWrapper,
    HybridEnv,
    StateError,
    TwoAgentEnv,
    create_env_wrapper,
)
from vecenv.envs import state as state_module
from vecenv.envs.adapt import adapt
from vecenv.envs.check_data import equal
from vecenv.envs.state import capture_state, register_state_adapter, restore_state


class Walk(gymnasium.Env):
    """A random walk with lives, whose whole state its hook carries; observations are noise around where it is."""

    def __init__(self, shape=(3,), space=None, action_space=None):
        self.observation_space = space or spaces.Box(-100.0, 100.0, shape, np.float32)
        self.action_space = action_space or spaces.Discrete(4)
        self.lives, self.place, self.count = 0, 0.0, 0

    def get_action_meanings(self):
        return ["NOOP", "FIRE", "RIGHT", "LEFT"]

    def get_state(self):
        return {"lives": self.lives, "place": self.place, "count": self.count}

    def set_state(self, state):
        vars(self).update(state)

    def observe(self):
        space = self.observation_space
        if isinstance(space, spaces.Dict):  # a grid world
            return {"image": self.np_random.integers(0, 9, (2, 2), np.uint8), "mission": "go " + "ab"[self.count % 2]}
        noise = self.np_random.uniform(0.0, 9.0, space.shape) + self.place
        return np.clip(noise, space.low, space.high).astype(space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lives, self.place, self.count = 3, float(self.np_random.uniform(0, 9)), 0
        return self.observe(), {}

    def step(self, action):
        self.count += 1
        self.place += float(self.np_random.normal())
        self.lives -= bool(self.np_random.random() < 0.05)
        return self.observe(), self.place, self.lives <= 0, self.count >= 60, {}


IMAGE = spaces.Box(0, 255, (12, 12, 3), np.uint8)
GRID = spaces.Dict(image=spaces.Box(0, 9, (2, 2), np.uint8), mission=spaces.Text(20))
WRAPPED = {
    "noop_reset": (Walk, {}),
    "max_and_skip": (Walk, {"skip": 2}),
    "warp_frame": (lambda: Walk(space=IMAGE), {"size": 6}),
    "scaled_float_frame": (Walk, {}),
    "clip_reward": (Walk, {}),
    "action_repeat": (Walk, {"action_repeat": 2}),
    "delay_reward": (Walk, {"delay_reward_step": 7}),
    "frame_stack": (Walk, {"n_frames": 3}),
    "obs_transpose": (lambda: Walk(space=IMAGE), {}),
    "transpose": (lambda: Walk(space=IMAGE), {}),
    "obs_norm": (Walk, {"window": 40}),
    "static_obs_norm": (Walk, {"mean": 1.0, "std": 2.0}),
    "reward_norm": (Walk, {"reward_discount": 0.9, "window": 40}),
    "ram": (Walk, {}),
    "episodic_life": (Walk, {}),
    "fire_reset": (Walk, {}),
    "eval_episode_return": (Walk, {}),
    "gym_hybrid_dict_action": (HybridEnv, {}),
    "obs_plus_prev_action_reward": (Walk, {}),
    "time_limit": (Walk, {"max_limit": 20}),
    "flat_obs": (lambda: Walk(space=GRID), {}),
    "gym_to_gymnasium": (Walk, {}),
    "reward_in_obs": (Walk, {}),
}


def wrapped(name):
    build, kwargs = WRAPPED[name]
    return adapt(create_env_wrapper(build(), {"type": name, "kwargs": kwargs}))


def play(env, actions, steps, *, first=None):
    """Give what an env answers to `steps` actions, resetting at ends and, if told how, at the start."""
    answers = [] if first is None else [env.reset(**first)[0]]
    for _ in range(steps):
        *answer, info = env.step(actions.sample())
        answers.append([*answer, info.get("eval_episode_return")])
        if answer[2] or answer[3]:
            answers.append(env.reset()[0])
    return answers


def actions_of(env, seed=1):
    space = pickle.loads(pickle.dumps(env.action_space))
    space.seed(seed)
    return space


def test_no_wrapper_is_left_out():
    ours = {name for name in ENV_WRAPPER_REGISTRY if ENV_WRAPPER_REGISTRY.get(name).__module__.startswith("vecenv.")}
    assert ours == set(WRAPPED)


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("when", ["between episodes", "amid an episode"])
def test_every_wrapper_goes_on_in_a_fresh_stack(name, when):
    if name == "gym_hybrid_dict_action" and when == "amid an episode":
        return  # its env is a toy without a hook: between episodes its generator is all there is
    env, fresh = wrapped(name), wrapped(name)
    actions = actions_of(env)
    play(env, actions, 50, first={"seed": 5})
    first = {} if when == "between episodes" else None
    restore_state(fresh, pickle.loads(pickle.dumps(capture_state(env))))
    ahead = pickle.loads(pickle.dumps(actions))
    expected = play(env, actions, 150, first=first)
    assert equal(play(fresh, ahead, 150, first=first), expected)


def cartpole(**kwargs):
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1", **kwargs))
    env = gymnasium.wrappers.NormalizeObservation(env)
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.NormalizeReward(env), 3)


def atari(name, caller="collector"):
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    return DingEnvWrapper(cfg={"env_id": f"ALE/{name}-v5", "env_wrapper": "atari_default"}, caller=caller)


def mujoco():
    pytest.importorskip("mujoco")
    return gymnasium.make("HalfCheetah-v5", max_episode_steps=30)


class Lazy(BaseEnv):
    """As the guide has it: the env is made at the first reset, and dynamic seeds come from a generator of its own."""

    def __init__(self, cfg=None):
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._init_flag = False

    def seed(self, seed, dynamic_seed=True):
        super().seed(seed, dynamic_seed)
        self.rng = np.random.RandomState(seed)
        self.python = random.Random(seed)

    def reset(self):
        if not self._init_flag:
            self._env = gymnasium.make("CartPole-v1")
            self._init_flag = True
        return self._env.reset(seed=int(self.rng.randint(1000)) + self.python.randrange(9))[0]

    def step(self, action):
        obs, reward, terminated, truncated, info = self._env.step(int(action))
        return BaseEnvTimestep(obs, np.array([reward], np.float32), terminated or truncated, info)

    def close(self):
        self._env.close()


STACKS = {
    "gymnasium's wrappers": cartpole,
    "acrobot": lambda: gymnasium.make("Acrobot-v1", max_episode_steps=40),
    "cheetah": mujoco,
    "pong": lambda: atari("Pong"),
    "breakout": lambda: atari("Breakout"),
    "breakout, whole games": lambda: atari("Breakout", "evaluator"),
    "ding by id": lambda: DingEnvWrapper(cfg={"env_id": "CartPole-v1"}),
    "ding by object": lambda: DingEnvWrapper(gymnasium.make("CartPole-v1")),
    "lazy": Lazy,
    "old face": lambda: GymToGymnasiumWrapper(gymnasium.make("CartPole-v1")),
    "all in obs": lambda: AllinObsWrapper(gymnasium.make("CartPole-v1")),
    "two agents": TwoAgentEnv,
    "hybrid": lambda: HybridEnv(max_steps=20),
    "plain": Plain,
    "base": Ding,
}


@pytest.mark.parametrize("name", STACKS)
def test_the_second_unseeded_episode_begins_alike_in_a_fresh_stack(name):
    env, fresh = adapt(STACKS[name]()), adapt(STACKS[name]())
    env.reset(seed=3)
    actions = actions_of(env)
    for _ in range(1000):
        _, _, terminated, truncated, _ = env.step(actions.sample())
        if terminated or truncated:
            break
    else:
        pytest.fail("the first episode did not end")
    restore_state(fresh, pickle.loads(pickle.dumps(capture_state(env))))
    ahead = pickle.loads(pickle.dumps(actions))
    expected = play(env, actions, 60, first={})
    assert equal(play(fresh, ahead, 60, first={}), expected)
    env.close()
    fresh.close()


def test_amid_a_game_after_a_lost_life():
    """The reset after a lost life goes on with the same game: the emulator's state has to come along."""
    env, fresh = adapt(atari("Breakout")), adapt(atari("Breakout"))
    env.reset(seed=3)
    actions = actions_of(env)
    while not env.step(actions.sample())[2]:
        pass
    assert 0 < env.env._raw_env.unwrapped.ale.lives() < 5
    restore_state(fresh, pickle.loads(pickle.dumps(capture_state(env))))
    assert fresh.env._raw_env.unwrapped.ale.lives() == env.env._raw_env.unwrapped.ale.lives()
    ahead = pickle.loads(pickle.dumps(actions))
    assert equal(play(env, actions, 40, first={}), play(fresh, ahead, 40, first={}))


def test_an_env_never_seeded_can_be_begun_again():
    env, fresh = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")
    restore_state(fresh, capture_state(env))
    assert equal(env.reset()[0], fresh.reset()[0])


def test_samples_of_spaces_go_on_alike():
    space = spaces.Dict(a=spaces.Discrete(1000), b=spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Text(8)]))
    env, fresh = Walk(action_space=space), Walk(action_space=pickle.loads(pickle.dumps(space)))
    env.action_space.seed(1)
    env.action_space.sample()
    restore_state(fresh, capture_state(env))
    assert equal(env.action_space.sample(), fresh.action_space.sample())


def test_what_was_captured_does_not_change_afterwards():
    env = cartpole()
    env.reset(seed=1)
    state = capture_state(env)
    before = pickle.dumps(state)
    play(env, actions_of(env), 30)
    assert pickle.dumps(state) == before
    fresh = cartpole()
    restore_state(fresh, state)
    play(fresh, actions_of(fresh), 30, first={})
    assert pickle.dumps(state) == before


def test_a_recorder_goes_on_with_its_names(tmp_path):
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")

    def build():
        env = DingEnvWrapper(cfg={"env_id": "CartPole-v1"})
        env.enable_save_replay(str(tmp_path))
        return env

    env = build()
    env.reset()
    while not env.step(1).done:
        pass
    fresh = DingEnvWrapper(cfg={"env_id": "CartPole-v1"})
    restore_state(fresh, pickle.loads(pickle.dumps(capture_state(env))))
    for one in (env, fresh):
        one.reset()
        while not one.step(0).done:
            pass
        one.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2 and names[1] == names[0].replace("episode-0", "episode-1")


def test_another_stack_is_refused():
    state = capture_state(gymnasium.make("CartPole-v1"))
    with pytest.raises(StateError, match="CartPole"):
        restore_state(gymnasium.make("Acrobot-v1"), state)
    with pytest.raises(StateError, match="Walk lacks .*CountsTo"):
        restore_state(Walk(), [*capture_state(Walk()), *capture_state(CountsTo())])


class CountsTo(Walk):
    pass


class Drifting(gymnasium.Wrapper):
    """A user's wrapper, without a hook, whose bias grows from episode to episode."""

    bias = 0.0

    def reset(self, **kwargs):
        self.bias += 1.0
        obs, info = self.env.reset(**kwargs)
        return obs + np.float32(self.bias), info


def test_an_adapter_carries_what_has_no_hook(monkeypatch):
    monkeypatch.setattr(state_module, "_adapters", list(state_module._adapters))
    env, fresh = Drifting(Walk()), Drifting(Walk())
    env.reset(seed=1)
    lost = Drifting(Walk())
    restore_state(lost, capture_state(env))
    register_state_adapter(
        lambda layer: isinstance(layer, Drifting),
        lambda layer: layer.bias,
        lambda layer, bias: setattr(layer, "bias", bias),
    )
    restore_state(fresh, pickle.loads(pickle.dumps(capture_state(env))))
    expected = env.reset()[0]
    assert equal(fresh.reset()[0], expected) and not equal(lost.reset()[0], expected)
