"""A program may rewrite the spaces that it was given; steps, recoveries and later parts of vecenv do not change."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from tests.faults.front_ends import FRONT_ENDS, SB3, FrontEnd, Rows, Tianshou, TorchRL
from tests.vector.comparison import assert_same
from vecenv import VectorEnv
from vecenv.alf import ParallelAlfEnvironment
from vecenv.core.layout.spec import copy_spaces
from vecenv.errors import SpaceError
from vecenv.managers.manager import EnvManager

NUM_ENVS, NUM_STEPS, KILLS = 4, 9, (2, 6)
ACTIONS = np.linspace(-1, 1, NUM_STEPS * NUM_ENVS * 2, dtype=np.float32).reshape(NUM_STEPS, NUM_ENVS, 2)


class Camera(gymnasium.Env):
    """An env with nested observations; rewards and observations depend on seeds and actions."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (4, 4, 1), np.uint8), "pose": spaces.Box(-5, 5, (3,), np.float64)}
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def _obs(self):
        image = self.np_random.integers(0, 255, (4, 4, 1), np.uint8)
        return {"image": image, "pose": self.np_random.normal(size=3) + self.total}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.total = 0, 0.0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        self.total += float(action.sum()) / 3
        return self._obs(), self.total, False, self.t >= 4, {}


class Pose(Camera):
    """The same with one array as observation, whose float64 values no float32 holds."""

    observation_space = spaces.Box(-5, 5, (3,), np.float64)

    def _obs(self):
        return super()._obs()["pose"]


def rewrite(*rewritten: Any) -> None:
    """Change everything in spaces: CleanRL sets dtypes, and VecNormalize replaces entries."""
    for space in rewritten:
        if isinstance(space, spaces.Dict):
            rewrite(*space.spaces.values())
            for key in space.spaces:
                space.spaces[key] = spaces.Box(-10, 10, (7,), np.float16)
        elif isinstance(space, spaces.Tuple):
            rewrite(*space.spaces)
            space.spaces = ()
        else:
            space.low[:], space.high[:] = 0, 0.25
            space.dtype = np.dtype(np.float16)
            space._shape = (9, 9)


# ---- front ends ----------------------------------------------------------------------------------


class Normalized(SB3):
    """Steps a VecNormalize around the vector env."""

    def open(self) -> None:
        super().open()
        from stable_baselines3.common.vec_env import VecNormalize

        self.envs = VecNormalize(self.envs, norm_obs_keys=["image"])

    @property
    def pool_owner(self) -> Any:
        return self.envs.venv.vector_env


def rewrite_all(front_end: FrontEnd) -> None:
    """Rewrite every space that the front end hands out."""
    envs = front_end.envs
    if isinstance(envs, ParallelAlfEnvironment):
        if isinstance(envs.observation_spec(), dict):
            envs.observation_spec().clear()
    elif isinstance(front_end, Tianshou):
        rewrite(*envs.get_env_attr("observation_space"), *envs.get_env_attr("action_space"))
    elif isinstance(envs, EnvManager):
        rewrite(envs.observation_space, envs.action_space, envs.reward_space)
    elif not isinstance(front_end, Normalized | TorchRL):
        rewrite(envs.observation_space, envs.action_space)
    if isinstance(vector_env := front_end.pool_owner, gymnasium.vector.VectorEnv):
        rewrite(vector_env.observation_space, vector_env.action_space)
        rewrite(vector_env.single_observation_space, vector_env.single_action_space)


def play_rewritten(name: str, env: Any, *, kills: bool = True, **options: Any) -> Rows:
    """Play with spaces that are rewritten before and after the first reset, and with killed workers."""
    with CLASSES[name]([env] * NUM_ENVS, seed=0, **options) as front_end:
        assert front_end.action_space.shape == (2,)
        rewrite_all(front_end)

        def disturb(number: int) -> None:
            if number == 0:
                rewrite_all(front_end)
            elif number in KILLS and kills:
                front_end.kill(0)

        front_end.play(NUM_STEPS, disturb)
    return front_end.rows


def play_plainly(name: str, env: Any, **options: Any) -> Rows:
    with CLASSES[name]([env] * NUM_ENVS, seed=0, **options) as front_end:
        front_end.play(NUM_STEPS)
    return front_end.rows


CLASSES = {**FRONT_ENDS, "VecNormalize": Normalized}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in CLASSES if name != "V2"),  # its trees are not those of Dict observations
    ("VectorEnv", {"autoreset_mode": AutoresetMode.SAME_STEP, "checks": "debug"}),
    ("VectorEnv", {"observation_mode": "different"}),
    ("VectorEnv", {"num_spare_envs": NUM_ENVS, "checks": "strict"}),
]
# VecNormalize replaces the entries of a Dict space only.
CASES = [(*case, env) for case in OPTIONS for env in (Camera, Pose) if (case[0], env) != ("VecNormalize", Pose)]


@pytest.fixture(autouse=True)
def whole_class() -> Iterator[None]:
    """Check that no test has changed the spaces of the env classes."""
    yield
    assert Camera.observation_space["pose"].shape == Pose.observation_space.shape == (3,)
    assert Pose.observation_space.dtype == np.float64 and Camera.action_space.high.tolist() == [1, 1]


@pytest.mark.parametrize(("name", "options", "env"), CASES)
def test_rewritten_spaces_change_no_row_after_a_killed_worker(name: str, options: dict[str, Any], env: Any) -> None:
    assert play_rewritten(name, env, **options) == play_plainly(name, env, **options)


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("name", ["VectorEnv", "BatchedVectorEnv", "sync"])
def test_rewritten_spaces_change_no_row_with_any_start_method(name: str, context: str) -> None:
    assert play_rewritten(name, Camera, context=context) == play_plainly(name, Camera, context=context)


@pytest.mark.parametrize(("name", "options", "env"), [case for case in CASES if case[0] not in ("async", "shards")])
def test_rewritten_spaces_change_no_row_in_one_process(name: str, options: dict[str, Any], env: Any) -> None:
    expected = play_plainly(name, env, backend="serial", **options)
    assert play_rewritten(name, env, kills=False, backend="serial", **options) == expected


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_rewritten_action_space_does_not_change_which_actions_are_refused(backend: str) -> None:
    with VectorEnv([Pose] * 2, backend=backend, checks="strict") as envs:
        envs.reset(seed=0)
        envs.single_action_space.high[:] = envs.action_space.high[:] = 9
        with pytest.raises(SpaceError, match="action: env 0: expected a member of Box"):
            envs.step(np.full((2, 2), 2, np.float32))
        envs.step(np.ones((2, 2), np.float32))


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_samples_of_the_spaces_equal_those_of_async_vector_env(backend: str) -> None:
    """The generators of the single and the batched space are those that Gymnasium gives."""

    class Seeded(Pose):
        def __init__(self) -> None:
            self.action_space = spaces.Box(-1, 1, (2,), np.float32, seed=3)
            self.observation_space = spaces.Box(-1, 1, (3,), np.float64, seed=4)

    names = ("single_action_space", "action_space", "single_observation_space", "observation_space")
    with (
        contextlib.closing(AsyncVectorEnv([Seeded] * 2, shared_memory=False)) as theirs,
        VectorEnv([Seeded] * 2, backend=backend) as ours,
    ):
        for seed in (None, 5):
            for name in names:
                one, other = getattr(ours, name), getattr(theirs, name)
                assert one == other and type(one) is type(other)
                if seed is not None:
                    assert one.seed(seed) == other.seed(seed)
                assert_same(one.sample(), other.sample(), name)
    with VectorEnv([Pose] * 2, backend=backend) as envs:  # without a generator: one is drawn for both
        assert_same(envs.single_action_space.sample(), envs.action_space.sample()[0], "first sample")


def test_samples_of_the_action_space_do_not_change_the_serial_envs() -> None:
    class Sampling(Pose):
        def __init__(self) -> None:
            self.action_space = spaces.Box(-1, 1, (2,), np.float32, seed=3)

        def step(self, action: Any) -> Any:
            return np.zeros(3), float(self.action_space.sample()[0]), False, False, {}

    rewards = []
    for count in (0, 3):
        with VectorEnv([Sampling], backend="serial") as envs:
            envs.reset(seed=0)
            for _ in range(count):
                envs.single_action_space.sample()
            rewards.append(envs.step(ACTIONS[0][:1])[1].tolist())
    assert rewards[0] == rewards[1]


class Limits(spaces.Box):
    """A space of the program, with a part that is not of Gymnasium."""

    def __init__(self, part: Any) -> None:
        super().__init__(-1, 1, (2,), np.float32, seed=1)
        self.part = part


def test_copies_of_spaces_keep_classes_parts_and_generators() -> None:
    shared = Limits([1])
    space, other = spaces.Dict({"a": shared, "b": spaces.Text(3)}), spaces.Tuple([shared, spaces.Discrete(3, start=1)])
    copied, second = copy_spaces(space, other)
    assert copied == space and second == other and type(copied["a"]) is Limits
    assert copied["a"] is second[0] is not shared and copied["a"].part == [1] and copied["a"].part is not shared.part
    assert_same(copied["a"].sample(), shared.sample(), "sample")


def test_space_that_cannot_be_copied_is_shared() -> None:
    locked, box = Limits(threading.Lock()), Limits(None)
    copied, other = copy_spaces(locked, box)
    assert copied is locked and other is not box and other == box
