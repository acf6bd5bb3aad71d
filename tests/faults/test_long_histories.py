"""Episodes that do not end for long are restored from snapshots within them, if these are exact."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import vecenv
from tests.faults.front_ends import FRONT_ENDS, FrontEnd, Rows, play
from tests.faults.traces import end, frozen
from vecenv import VectorEnv
from vecenv.envs.state.state import SNAPSHOTTER

#: Rounds before the kill. Each step takes 2 ms, so that some snapshots are due by then.
ROUNDS = 150


class EndlessCartPole(CartPoleEnv):
    """Begins again where an episode would end. A class that vecenv does not know."""

    seconds = 0.002

    def __init__(self) -> None:
        super().__init__()
        self.num_falls = 0

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        obs, reward, is_over, _, info = super().step(int(action))
        if is_over:
            self.num_falls += 1
            self.state = self.np_random.uniform(-0.05, 0.05, 4)
            self.steps_beyond_terminated = None
        return np.float32([*obs[:3], self.num_falls]), reward, False, False, info


class PickledCartPole(EndlessCartPole):
    """Its whole state may be captured at any time."""


class OpenCartPole(PickledCartPole):
    """Has an attribute within episodes that cannot be pickled."""

    def reset(self, **kwargs: Any) -> Any:
        self.lines = (number for number in range(3))
        return super().reset(**kwargs)


class HookedCartPole(EndlessCartPole):
    """Its hook has the state between two episodes only."""

    def get_state(self) -> int:
        return self.num_falls

    def set_state(self, state: int) -> None:
        self.num_falls = state


vecenv.register_pickled_state(PickledCartPole)


def limited(make: Callable[[], Any]) -> Any:
    return gymnasium.wrappers.TimeLimit(make(), 100_000)


def kill_at_the_end(make: Callable[[], Any], rounds: int, **options: Any) -> tuple[int, Any]:
    """Kill the worker of two envs after `rounds` steps, and compare 20 more; return repeated steps and marks."""
    envs = VectorEnv([make] * 2, num_workers=1, **options)
    plain = [make() for _ in range(2)]
    for env in plain:
        env.unwrapped.seconds = 0.0
    try:
        obs, _ = envs.reset(seed=7)
        for env_id, env in enumerate(plain):
            assert frozen(obs[env_id]) == frozen(env.reset(seed=7 + env_id)[0])
        marks: Any = None
        for number in range(rounds + 20):
            if number == rounds:
                end(envs.worker_pids[0])
            actions = np.full((2, *envs.single_action_space.shape), number % 2, envs.single_action_space.dtype)
            obs, rewards, _, _, infos = envs.step(actions)
            marks = infos["recovered"].tolist() if "recovered" in infos else marks
            for env_id, env in enumerate(plain):
                expected = env.step(actions[env_id])
                assert (frozen(obs[env_id]), rewards[env_id]) == (frozen(expected[0]), expected[1])
        return int(envs.statistics()["steps_replayed"]), marks
    finally:
        envs.close()


def test_long_episode_of_pickled_env_is_not_repeated_from_its_begin(implementation: str) -> None:
    repeated, marks = kill_at_the_end(functools.partial(limited, PickledCartPole), ROUNDS)
    assert marks == ["replayed"] * 2 and repeated < 2 * ROUNDS


def pendulum() -> Any:
    return gymnasium.make("Pendulum-v1", max_episode_steps=100_000)


def test_long_episode_of_known_env_is_not_repeated_from_its_begin(implementation: str) -> None:
    repeated, marks = kill_at_the_end(pendulum, 20_000)
    assert marks == ["replayed"] * 2 and repeated < 40_000


@pytest.mark.parametrize("env", [EndlessCartPole, HookedCartPole, OpenCartPole])
def test_long_episode_without_an_exact_state_is_repeated_from_its_begin(env: type) -> None:
    repeated, marks = kill_at_the_end(functools.partial(limited, env), ROUNDS)
    assert marks == ["replayed"] * 2 and repeated >= 2 * ROUNDS


def test_worker_that_dies_again_restores_from_a_snapshot_of_its_successor() -> None:
    """The successor of the worker takes snapshots, too."""
    envs = VectorEnv([PickledCartPole], num_workers=1)
    plain = PickledCartPole()
    plain.seconds = 0.0
    try:
        envs.reset(seed=7)
        plain.reset(seed=7)
        for number in range(3 * ROUNDS):
            if number in (ROUNDS, 2 * ROUNDS):
                end(envs.worker_pids[0])
            obs = envs.step([number % 2])[0]
            assert frozen(obs[0]) == frozen(plain.step(number % 2)[0])
        assert envs.statistics()["replayed"] == 2 and envs.statistics()["steps_replayed"] < 2 * ROUNDS
    finally:
        envs.close()


@pytest.mark.extended
@pytest.mark.parametrize("name", ["sync", "async", "V2", "gym_vector", "SB3VecEnv", "ALF", "Tianshou", "shards"])
def test_long_episode_in_front_ends_is_not_repeated_from_its_begin(name: str) -> None:
    found: list[int] = []

    def before(front_end: FrontEnd, number: int) -> None:
        if number == ROUNDS:
            front_end.kill(0)
        elif number == ROUNDS + 9:
            found.append(int(front_end.pool_owner.statistics()["steps_replayed"]))

    def rows(hook: Any) -> Rows:
        return play(name, [PickledCartPole] * 2, hook, rounds=ROUNDS + 10)

    assert rows(before) == rows(None)
    assert len(found) == 1 and 0 < found[0] < ROUNDS, FRONT_ENDS[name]


def test_known_env_with_an_attribute_of_another_kind_has_no_state_within_an_episode() -> None:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=1)
    assert SNAPSHOTTER.capture(env, within_episode=True) is not None
    env.unwrapped.screen = object()
    assert SNAPSHOTTER.capture(env, within_episode=True) is None
    assert SNAPSHOTTER.capture(env) is not None


def check_continued(env: Any, twin: Any, num_steps: int) -> None:
    """Restore the state within an episode in a twin, and compare further steps of both."""
    env.reset(seed=3)
    env.action_space.seed(3)
    env.step(env.action_space.sample())
    snapshot = SNAPSHOTTER.capture(env, within_episode=True)
    assert snapshot is not None
    SNAPSHOTTER.restore(twin, snapshot.state)
    for _ in range(num_steps):
        action = env.action_space.sample()
        one, two = env.step(action), twin.step(action)
        assert [frozen(part) for part in one] == [frozen(part) for part in two]
        if one[2] or one[3]:
            assert frozen(env.reset()[0]) == frozen(twin.reset()[0])
    env.close()
    twin.close()


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Taxi-v4", "FrozenLake-v1", "Blackjack-v1"]
)
def test_state_within_an_episode_continues_it(name: str) -> None:
    check_continued(gymnasium.make(name), gymnasium.make(name), 30)


@pytest.mark.extended
def test_state_within_an_episode_of_an_atari_game_continues_it() -> None:
    gymnasium.register_envs(pytest.importorskip("ale_py", exc_type=ImportError))

    def make() -> Any:
        game = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
        return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(game), 4)

    check_continued(make(), make(), 300)
    assert SNAPSHOTTER.capture(gymnasium.make("ALE/Breakout-v5"), within_episode=True) is None  # repeats actions
