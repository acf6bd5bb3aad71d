"""Rewards with several numbers, which an env or a layer under it declares by `reward_space`.

They arrive whole: from bare and from wrapped envs, in every mode, in episode statistics, and after a death.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from tests.vector.two_goals import TwoGoals, limited, sums
from vecenv import BatchedVectorEnv, ConfigError, SpaceError, VectorEnv
from vecenv.ding import BaseEnvManager, SyncSubprocessEnvManager
from vecenv.envs.toys import ToyEnv
from vecenv.gymnasium_api.reward_spaces import find_reward_space

NUM_ENVS = 3
MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)


class Doubled(gymnasium.RewardWrapper[Any, Any]):
    """Doubles rewards, and counts its calls."""

    num_calls = 0

    def reward(self, reward: Any) -> Any:
        self.num_calls += 1
        return 2 * reward


class OneOfThem(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Makes one number of the rewards, and declares that."""

    reward_space = spaces.Box(-10, 10, (), np.float32)

    def step(self, action: Any) -> Any:
        obs, reward, *others = self.env.step(action)
        return obs, reward[1], *others


class Undeclared(OneOfThem):
    """Does so without a declaration."""

    @property
    def reward_space(self) -> Any:  # type: ignore[override]
        raise AttributeError("reward_space")


def weighted(env: Any = None) -> Any:
    def weigh(reward: SupportsFloat) -> SupportsFloat:
        return np.array([1.0, 2.0]) @ reward

    return gymnasium.wrappers.TransformReward(TwoGoals() if env is None else env, weigh)


def doubled() -> Any:
    return Doubled(TwoGoals())


def one_of_them() -> Any:
    return gymnasium.wrappers.TimeLimit(OneOfThem(TwoGoals()), 9)


def kill(envs: Any, worker_id: int = 0) -> None:
    os.kill(envs.worker_pids[worker_id], signal.SIGKILL)


# ---- which space counts ----------------------------------------------------------------------

FORMS: dict[str, tuple[Callable[[], Any], Any]] = {
    "bare": (TwoGoals, [1.0, -2.0]),
    "wrapped twice": (limited, [1.0, -2.0]),
    "doubled by a RewardWrapper": (doubled, [2.0, -4.0]),
    "weighted by a RewardWrapper": (weighted, -3.0),
    "its own reward_space": (one_of_them, -2.0),
}


@pytest.mark.parametrize(("env_fn", "expected"), FORMS.values(), ids=FORMS)
def test_rewards_through_wrappers_have_the_declared_form(env_fn: Any, expected: Any, backend: str) -> None:
    with VectorEnv([env_fn] * 2, backend=backend) as envs:
        envs.reset(seed=0)
        assert envs.step([0, 0])[1].tolist() == [expected] * 2
        shape = np.shape(expected)
        assert (None if envs.reward_space is None else envs.reward_space.shape) == (shape or None)


def test_reward_wrapper_is_not_called_to_find_its_form() -> None:
    env = doubled()
    assert find_reward_space(env).shape == (2,)
    assert env.num_calls == 0


def test_undeclared_number_of_rewards_is_an_error_with_the_remedy(backend: str) -> None:
    with VectorEnv([functools.partial(Undeclared, TwoGoals())] if backend == "serial" else [undeclared]) as envs:
        envs.reset(seed=0)
        with pytest.raises(SpaceError, match=r"reward: expected shape \(2,\), got shape \(\); .*`reward_space`"):
            envs.step([0])


def undeclared() -> Any:
    return Undeclared(TwoGoals())


# ---- episode statistics ----------------------------------------------------------------------


def play(envs: Any, num_rounds: int, kills: tuple[int, ...] = ()) -> list[Any]:
    """Return the statistics of all steps that end episodes, with the number of the step."""
    found = []
    for number in range(num_rounds):
        if number in kills:
            kill(envs)
        _, _, terminated, truncated, infos = envs.step(np.zeros(NUM_ENVS, np.int64))
        done = terminated | truncated
        if "episode" in infos:
            episode = infos["episode"]
            assert infos["_episode"].tolist() == done.tolist()
            found.append((number, episode["r"].tolist(), episode["l"].tolist()))
        if done.any() and envs.autoreset_mode == AutoresetMode.DISABLED:
            envs.reset(options={"reset_mask": done})
    return found


def lengths(mode: AutoresetMode) -> list[Any]:
    fns = [functools.partial(limited, length) for length in (2, 3, 5)]
    return [fns, 2 if mode == AutoresetMode.NEXT_STEP else 1]


@MODES
def test_episode_statistics_sum_each_number(mode: AutoresetMode, backend: str) -> None:
    env_fns, _ = lengths(mode)
    with VectorEnv(env_fns, episode_statistics=True, backend=backend, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        found = play(envs, 12)
    assert len(found) > 4
    for _, returns, ended_lengths in found:
        assert returns == [sums(length) if length else [0.0, 0.0] for length in ended_lengths]


@MODES
def test_episode_statistics_stay_whole_after_deaths(mode: AutoresetMode) -> None:
    env_fns, _ = lengths(mode)
    with VectorEnv(env_fns, episode_statistics=True, autoreset_mode=mode, num_workers=1) as envs:
        envs.reset(seed=0)
        found = play(envs, 12, kills=(1, 4, 5))
        assert envs.statistics()["restarts"] == 3
    with VectorEnv(env_fns, episode_statistics=True, autoreset_mode=mode, backend="serial") as envs:
        envs.reset(seed=0)
        assert found == play(envs, 12)


@MODES
def test_episode_statistics_of_envs_received_one_by_one(mode: AutoresetMode, backend: str) -> None:
    env_fns, _ = lengths(mode)
    with VectorEnv(env_fns, episode_statistics=True, backend=backend, autoreset_mode=mode) as envs:
        envs.async_reset(seed=0)
        num_ended = 0
        for _ in range(40):
            *_, terminated, truncated, infos = envs.recv(1)
            env_ids, done = infos["env_id"], terminated | truncated
            for row in np.flatnonzero(done).tolist():
                num_ended += 1
                length = (2, 3, 5)[env_ids[row]]
                assert infos["episode"]["r"][row].tolist() == sums(length)
            resets = env_ids[done] if mode == AutoresetMode.DISABLED else env_ids[:0]
            if len(resets):
                envs.async_reset(resets)
            stepping = env_ids[~np.isin(env_ids, resets)]
            if len(stepping):
                envs.send(np.zeros(len(stepping), np.int64), stepping)
        assert num_ended >= 5
        envs.recv(timeout=30)


def test_episode_statistics_begin_again_after_a_reset_in_the_middle(backend: str) -> None:
    with VectorEnv([limited] * NUM_ENVS, episode_statistics=True, backend=backend) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(NUM_ENVS, np.int64))
        envs.reset(env_id=[1])
        assert play(envs, 3) == [
            (1, [sums(), [0.0, 0.0], sums()], [3, 0, 3]),
            (2, [[0.0, 0.0], sums(), [0.0, 0.0]], [0, 3, 0]),
        ]


class RaisesAtTwo(TwoGoals):
    """Raises at its second step, without a change of its state."""

    has_raised = False

    def step(self, action: Any) -> Any:
        if self.t == 1 and action == 1 and not self.has_raised:
            self.has_raised = True
            raise ValueError("at two")
        return super().step(action)


def test_episode_statistics_leave_out_steps_that_raised(backend: str) -> None:
    with VectorEnv([RaisesAtTwo, TwoGoals], episode_statistics=True, backend=backend) as envs:
        envs.reset(seed=0)
        envs.step([1, 1])
        with pytest.raises(ValueError, match="at two"):
            envs.step([1, 1])
        infos = envs.step([1, 1])[4]
        assert infos["episode"]["r"].tolist() == [[0.0, 0.0], sums()]
        assert envs.step([1, 1])[4]["episode"]["r"].tolist() == [sums(), [0.0, 0.0]]


def test_episode_statistics_with_spare_envs(backend: str) -> None:
    options: dict[str, Any] = {"episode_statistics": True, "backend": backend, "num_spare_envs": 2}
    for mode in AutoresetMode:
        with VectorEnv([limited] * NUM_ENVS, autoreset_mode=mode, **options) as envs:
            envs.reset(seed=0)
            found = play(envs, 12)
            assert len(found) >= 3
            assert all(returns == [sums()] * NUM_ENVS for _, returns, _ in found)


# ---- vector envs in workers ------------------------------------------------------------------


def make_pair() -> Any:
    return VectorEnv([limited] * 2, backend="serial")


def test_batched_vector_env_keeps_all_numbers(backend: str) -> None:
    with BatchedVectorEnv([make_pair] * 2, backend=backend) as envs:
        assert envs.reward_space.shape == (2,)
        envs.reset(seed=0)
        for t in (1.0, 2.0):
            assert envs.step(np.zeros(4, np.int64))[1].tolist() == [[t, -2 * t]] * 4
        if backend == "process":
            kill(envs)
        assert envs.step(np.zeros(4, np.int64))[1].tolist() == [[3.0, -6.0]] * 4


@pytest.mark.parametrize("manager_class", [BaseEnvManager, SyncSubprocessEnvManager])
@pytest.mark.parametrize("env_fn", [TwoGoals, limited])
def test_managers_return_all_numbers_of_wrapped_envs(manager_class: Any, env_fn: Any) -> None:
    manager = manager_class([env_fn] * 2)
    manager.launch()
    try:
        assert manager.reward_space.shape == (2,)
        for t in (1.0, 2.0):
            timesteps = manager.step({0: np.array(0), 1: np.array(0)})
            assert [timesteps[i].reward.tolist() for i in range(2)] == [[t, -2 * t]] * 2
    finally:
        manager.close()


def test_sb3_vec_env_refuses_rewards_of_several_numbers() -> None:
    sb3 = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    with pytest.raises(ConfigError, match=r"SB3VecEnv: expected rewards of one number, got shape \(2,\)"):
        sb3.SB3VecEnv([TwoGoals] * 2)
    with VectorEnv([TwoGoals], autoreset_mode="SameStep", backend="serial") as envs:
        with pytest.raises(ConfigError, match="expected rewards of one number"):
            sb3.SB3VecEnv(envs)
        envs.reset()  # it stays open
    with_number = sb3.SB3VecEnv([weighted] * 2)
    try:
        with_number.reset()
        with_number.step_async(np.zeros(2, np.int64))
        assert with_number.step_wait()[1].tolist() == [-3.0, -3.0]
    finally:
        with_number.close()


class NoRewardEnv(ToyEnv):
    """Gives None, alone or as one of two numbers, where a reward is expected."""

    def __init__(self, num_rewards: int) -> None:
        super().__init__()
        self.reward: Any = None if num_rewards == 1 else [1.0, None]
        if num_rewards > 1:
            self.reward_space = spaces.Box(-1, 1, (num_rewards,))

    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return (obs, self.reward, *others)


@pytest.mark.parametrize("num_rewards", [1, 2])
@pytest.mark.parametrize("backend", ["process", "serial"])
def test_none_is_refused_as_a_reward(backend: str, num_rewards: int, implementation: str) -> None:
    """NumPy reads None as NaN, so that the step went on in silence."""
    with VectorEnv([functools.partial(NoRewardEnv, num_rewards)] * 2, backend=backend) as envs:
        envs.reset(seed=0)
        with pytest.raises(SpaceError, match="reward: expected a number, got None"):
            envs.step(np.zeros(2, np.int64))
