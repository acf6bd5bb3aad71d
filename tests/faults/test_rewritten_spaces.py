"""A program may rewrite the spaces that it was given; steps, recoveries and later parts of vecenv do not change."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tests.collection.sharded import ShardedVectorEnv
from tests.faults.traces import kill
from tests.vector.comparison import assert_same
from vecenv import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BatchedVectorEnv,
    GymVectorEnvManager,
    SyncSubprocessEnvManager,
    VectorEnv,
    collect,
    evaluate,
)
from vecenv.alf import AlfGymWrapper, ParallelAlfEnvironment
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


def rewrite_all(envs: Any) -> None:
    rewrite(envs.observation_space, envs.action_space)
    if isinstance(envs, gymnasium.vector.VectorEnv):
        rewrite(envs.single_observation_space, envs.single_action_space)
    if isinstance(envs, EnvManager):
        rewrite(envs.reward_space)


# ---- front ends: each returns the rows of the same steps -----------------------------------------

Face = Callable[..., list[Any]]


def kill_one(envs: Any) -> None:
    if hasattr(envs, "carrier"):
        os.kill(envs.carrier.pid_of(0), signal.SIGKILL)
    else:
        kill(envs.pool, 0)


def play_gymnasium(envs: Any, change: Any, kills: Sequence[int]) -> list[Any]:
    change(envs)
    with contextlib.closing(envs):
        rows = [envs.reset(seed=0)[0]]
        for t, actions in enumerate(ACTIONS):
            if t in kills:
                kill_one(envs)
            rows.append(envs.step(actions)[:4])
    return rows


def vector_env(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    envs = VectorEnv([env] * NUM_ENVS, **options)
    return play_gymnasium(envs, change, kills)


def same_step(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    return vector_env(env, change, kills, autoreset_mode=AutoresetMode.SAME_STEP, debug=True, **options)


def differing_spaces(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    return vector_env(env, change, kills, observation_mode="different", **options)


def spare_envs(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    return vector_env(env, change, kills, num_spare_envs=NUM_ENVS, strict=True, **options)


def batched(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    envs = BatchedVectorEnv([lambda: SyncVectorEnv([env] * 2)] * 2, **options)
    return play_gymnasium(envs, change, kills)


def sharded(env: Any, change: Any, kills: Sequence[int], backend: str, **options: Any) -> list[Any]:
    envs = ShardedVectorEnv([env] * NUM_ENVS, **options)
    return play_gymnasium(envs, change, kills)


def sb3(env: Any, change: Any, kills: Sequence[int], normalizes: bool = False, **options: Any) -> list[Any]:
    pytest.importorskip("stable_baselines3", exc_type=ImportError)
    from stable_baselines3.common.vec_env import VecNormalize

    from vecenv.integrations.sb3 import SB3VecEnv

    with contextlib.closing(SB3VecEnv([env] * NUM_ENVS, **options)) as envs:
        change(envs)
        stepped: Any = VecNormalize(envs, norm_obs_keys=["image"]) if normalizes else envs
        envs.seed(0)
        rows = [stepped.reset()]
        for t, actions in enumerate(ACTIONS):
            if t in kills:
                kill_one(envs.vector_env)
            obs, rewards, dones, infos = stepped.step(actions)
            rows.append((obs, rewards, dones, [info.get("terminal_observation") for info in infos]))
    return rows


def normalized(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    return sb3(env, lambda envs: None, kills, normalizes=True, **options)


def tianshou(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    pytest.importorskip("tianshou", exc_type=ImportError)
    from vecenv.integrations.tianshou import VecenvVectorEnv

    with contextlib.closing(VecenvVectorEnv([env] * NUM_ENVS, **options)) as envs:
        change(envs.vector_env)
        for space in (*envs.get_env_attr("observation_space"), *envs.get_env_attr("action_space")):
            rewrite(space)
        rows: list[Any] = [list(envs.reset(seed=0)[0])]
        for t, actions in enumerate(ACTIONS):
            if t in kills:
                kill_one(envs.vector_env)
            obs, rewards, _, truncated, _ = envs.step(actions)
            rows.append((list(obs), rewards))
            if truncated.any():
                rows.append(list(envs.reset(np.flatnonzero(truncated))[0]))
    return rows


def torchrl(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    pytest.importorskip("torchrl", exc_type=ImportError)
    import torch

    from vecenv.integrations.torchrl import VecenvEnv

    with contextlib.closing(VecenvEnv([env] * NUM_ENVS, **options)) as envs:
        change(envs.vector_env)
        envs.set_seed(0)
        tensors, rows = envs.reset(), []
        for t, actions in enumerate(ACTIONS):
            if t in kills:
                kill_one(envs.vector_env)
            tensors["action"] = torch.from_numpy(actions)
            stepped, tensors = envs.step_and_maybe_reset(tensors)
            rows.append(
                {".".join(np.atleast_1d(key)): value.numpy() for key, value in stepped["next"].items(True, True)}
            )
    return rows


def alf(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:

    def make(env_id: int = 0) -> Any:
        return AlfGymWrapper(env(), env_id)

    envs = ParallelAlfEnvironment([make] * NUM_ENVS, tensors=False, **options)
    with contextlib.closing(envs):
        if change is not change_nothing and env is Camera:
            envs.observation_spec().clear()
        envs.seed(0)
        rows: list[Any] = [envs.reset().observation]
        for t, actions in enumerate(ACTIONS):
            if t in kills:
                kill(envs._pool, 0)
            timestep = envs.step(actions)
            rows.append((timestep.observation, timestep.reward, timestep.step_type))
    return rows


def manager(cls: Any, env: Any, change: Any, kills: Sequence[int], backend: str, **options: Any) -> list[Any]:
    with cls([env] * NUM_ENVS, {"episode_num": 100, "retry_type": "renew", **options}) as envs:
        change(envs)  # spaces of the reference env
        assert Camera.action_space.shape == (2,), "the class was changed"
        envs.seed(0)
        envs.launch()
        change(envs)
        rows: dict[int, list[Any]] = {env_id: [] for env_id in range(NUM_ENVS)}
        left = list(kills) if backend == "process" else []
        while min(map(len, rows.values())) < NUM_STEPS:
            if left and len(rows[0]) >= left[0]:
                left.pop(0)
                kill(envs._launch.pool, 0)
            ready = envs.ready_obs_id
            timesteps = envs.step({env_id: ACTIONS[len(rows[env_id]) % NUM_STEPS][env_id] for env_id in ready})
            for env_id, timestep in timesteps.items():
                rows[env_id].append(timestep[:3])
    return [rows[env_id][:NUM_STEPS] for env_id in rows]


def sync_manager(*args: Any, backend: str, **options: Any) -> list[Any]:
    cls = BaseEnvManager if backend == "serial" else SyncSubprocessEnvManager
    return manager(cls, *args, backend=backend, **options)


def async_manager(*args: Any, **options: Any) -> list[Any]:
    return manager(AsyncSubprocessEnvManager, *args, **options)


def gym_vector_manager(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    vector_env = VectorEnv([env] * NUM_ENVS, **options)
    with GymVectorEnvManager(vector_env, {"episode_num": 100}) as envs:
        change(envs)
        change(vector_env)
        envs.seed(0)
        envs.launch()
        rows: list[Any] = [envs.ready_obs]
        for t, actions in enumerate(ACTIONS[:4]):
            if t in kills:
                kill_one(vector_env)
            timesteps = envs.step(dict(enumerate(actions)))
            rows.append([(timestep.obs, timestep.reward, timestep.done) for timestep in timesteps.values()])
    return rows


class KillingPolicy:
    def __init__(self, envs: VectorEnv, kills: Sequence[int]) -> None:
        self.envs, self.kills, self.calls = envs, kills, 0

    def __call__(self, obs: Any, env_id: Any) -> Any:
        if self.calls in self.kills:
            kill_one(self.envs)
        self.calls += 1
        return ACTIONS[self.calls % NUM_STEPS][env_id]


def collected(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    with VectorEnv([env] * NUM_ENVS, **options) as envs:
        change(envs)
        batch = collect(envs, KillingPolicy(envs, kills), steps=NUM_STEPS * NUM_ENVS, seed=0)
        return [batch.obs, batch.actions, batch.rewards]


def evaluated(env: Any, change: Any, kills: Sequence[int], **options: Any) -> list[Any]:
    with VectorEnv([env] * NUM_ENVS, **options) as envs:
        change(envs)
        return [evaluate(envs, KillingPolicy(envs, kills), seeds=range(8)).returns]


FACES = [
    vector_env,
    same_step,
    differing_spaces,
    spare_envs,
    batched,
    sharded,
    sb3,
    normalized,
    tianshou,
    torchrl,
    alf,
    sync_manager,
    async_manager,
    gym_vector_manager,
    collected,
    evaluated,
]


# VecNormalize replaces the entries of a Dict space only.
CASES = [(face, env) for face in FACES for env in (Camera, Pose) if (face, env) != (normalized, Pose)]


def change_nothing(envs: Any) -> None:
    """Leave the spaces as they are."""


@pytest.fixture(autouse=True)
def whole_class() -> Iterator[None]:
    """Check that no test has changed the spaces of the env classes."""
    yield
    assert Camera.observation_space["pose"].shape == Pose.observation_space.shape == (3,)
    assert Pose.observation_space.dtype == np.float64 and Camera.action_space.high.tolist() == [1, 1]


@pytest.mark.parametrize(("face", "env"), CASES)
def test_rewritten_spaces_change_no_row_after_a_killed_worker(face: Face, env: Any) -> None:
    options = {"num_workers": 2, "backend": "process", "context": "forkserver"}
    if face is sharded:
        options["num_workers"] = 1
    assert_same(face(env, rewrite_all, KILLS, **options), face(env, change_nothing, (), **options), "rows")


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("face", [vector_env, batched, sync_manager])
def test_rewritten_spaces_change_no_row_with_any_start_method(face: Face, context: str) -> None:
    options = {"num_workers": 2, "backend": "process", "context": context}
    assert_same(face(Camera, rewrite_all, KILLS, **options), face(Camera, change_nothing, (), **options), "rows")


@pytest.mark.parametrize(("face", "env"), [case for case in CASES if case[0] not in (sharded, async_manager)])
def test_rewritten_spaces_change_no_row_in_one_process(face: Face, env: Any) -> None:
    expected = face(env, change_nothing, (), backend="serial")
    assert_same(face(env, rewrite_all, (), backend="serial"), expected, "rows")


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_rewritten_action_space_does_not_change_which_actions_are_refused(backend: str) -> None:
    with VectorEnv([Pose] * 2, backend=backend, strict=True) as envs:
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
