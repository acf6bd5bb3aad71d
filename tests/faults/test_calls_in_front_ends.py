"""Calls that change an env last in every front end: after kills, recycled workers, hung envs, and in reproducers."""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.front_ends import FRONT_ENDS, MANAGERS, FrontEnd, Rows, play
from tests.faults.test_lasting_calls import Tasks
from vecenv import VectorEnv
from vecenv.core.recovery import reproducer
from vecenv.errors import WorkerDiedError

ROUNDS = 14


def call(front_end: FrontEnd, number: int) -> None:
    """Change the envs before some rounds; an episode has nine."""
    if number in (0, 2, 3, 5, 7):
        front_end.finish_rounds(number)
        front_end.call("add", number + 1)
    if number == 0:
        front_end.call("set_task", 3)
    elif number == 5:
        front_end.call("scale")


def call_and_kill(front_end: FrontEnd, number: int, at: tuple[int, ...] = (4, 12)) -> None:
    """Make the calls of a round; in the rounds `at`, a worker is killed after the calls."""
    call(front_end, number)
    if number in at:
        front_end.kill(0)


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_calls_last_in_every_front_end(name: str, start_method: str) -> None:
    expected = play(name, [Tasks] * 2, call, ROUNDS, context=start_method)
    assert play(name, [Tasks] * 2, call_and_kill, ROUNDS, context=start_method) == expected


@pytest.mark.parametrize("at", [(0,), (5,), (9,), (7, 8, 10)], ids=str)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("VectorEnv", {"num_spare_envs": 2}),
        ("VectorEnv", {"num_workers": 1}),
        ("async", {"wait_num": 1}),
        ("async", {"wait_num": 2, "num_workers": 1}),
        ("V2", {"num_workers": 1}),
        ("ALF", {"num_workers": 1}),
        ("Tianshou", {"num_workers": 1}),
    ],
    ids=str,
)
def test_calls_last_wherever_a_worker_is_killed(name: str, options: dict[str, Any], at: tuple[int, ...]) -> None:
    expected = play(name, [Tasks] * 2, call, ROUNDS, **options)
    assert play(name, [Tasks] * 2, functools.partial(call_and_kill, at=at), ROUNDS, **options) == expected


@pytest.mark.parametrize("name", [name for name in FRONT_ENDS if name not in (*MANAGERS, "gym_vector", "shards")])
def test_calls_last_in_recycled_workers(name: str) -> None:
    with FRONT_ENDS[name]([Tasks] * 2, failures={"recycle_after": {"rss_mb": 1}}) as front_end:
        front_end.play(ROUNDS, functools.partial(call, front_end))
        num_plays = 1
        while front_end.pool_owner.statistics().recycled < 2:
            front_end.play(ROUNDS)
            num_plays += 1
    with FRONT_ENDS[name]([Tasks] * 2) as other:
        other.play(ROUNDS, functools.partial(call, other))
        for _ in range(1, num_plays):
            other.play(ROUNDS)
    assert front_end.rows == other.rows


class HangsOnce(Tasks):
    """The first step or reset hangs once that follows the third step of the env's life."""

    def __init__(self, mark: Path, moment: str, length: int = 9) -> None:
        super().__init__()
        self._mark, self._moment, self._length, self._life_steps = mark, moment, length, 0

    def _hang(self, moment: str) -> None:
        if moment == self._moment and self._life_steps >= 3 and not self._mark.exists():
            self._mark.touch()
            threading.Event().wait()

    def reset(self, **kwargs: Any) -> Any:
        self._hang("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self._hang("step")
        self._life_steps += 1
        *rest, _, info = super().step(action)
        return *rest, self.episode_steps >= self._length, info


def play_hanging(name: str, mark: Path, moment: str, **options: Any) -> Rows:
    """Play with an env that hangs and another one in its worker; return the rows."""
    env_fns = [functools.partial(HangsOnce, mark, moment, 4), functools.partial(HangsOnce, mark, "")]
    if name in MANAGERS:
        options.update(max_retry=3, retry_waiting_time=0.0)
    return play(name, env_fns, call, ROUNDS, num_workers=1, timeouts=2.0, **options)


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["step", "reset"])
@pytest.mark.parametrize("name", [name for name in FRONT_ENDS if name not in (*MANAGERS, "shards")])
def test_hung_env_and_its_neighbour_lose_nothing(name: str, moment: str, tmp_path: Path) -> None:
    """Both have been changed by calls before, and the neighbour is in the middle of an episode."""
    mark = tmp_path / "mark"
    assert play_hanging(name, mark, moment) == play_hanging(name, tmp_path, moment)
    assert mark.exists()


@pytest.mark.extended
@pytest.mark.parametrize("retry_type", ["reset", "renew"])
@pytest.mark.parametrize("name", MANAGERS)
def test_calls_last_after_a_hung_reset_in_managers(name: str, retry_type: str, tmp_path: Path) -> None:
    """The next attempt of the reset has another seed, so draws differ."""
    mark = tmp_path / "mark"
    got = play_hanging(name, mark, "reset", retry_type=retry_type)
    expected = play_hanging(name, tmp_path, "reset", retry_type=retry_type)
    assert mark.exists()
    assert got[1] == expected[1]
    assert [without_draw(*row) for row in got[0]] == [without_draw(*row) for row in expected[0]]


def without_draw(obs: Any, reward: Any, done: Any) -> Any:
    dtype, _, data = obs
    return np.frombuffer(data, dtype)[1:].tolist(), reward, done


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["step", "reset"])
def test_hung_env_with_spare_envs_costs_its_neighbours_nothing(moment: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    got = play_hanging("VectorEnv", mark, moment, num_spare_envs=2)
    assert got == play_hanging("VectorEnv", tmp_path, moment, num_spare_envs=2)
    assert mark.exists()


class DiesInStep(Tasks):
    """Ends its process in the third step of an episode if `scale` was called; in the given process it continues."""

    def __init__(self, parent: int) -> None:
        super().__init__()
        self._parent = parent

    def step(self, action: Any) -> Any:
        if self.goal and self.episode_steps == 2 and os.getpid() != self._parent:
            os._exit(3)
        return super().step(action)


def play_two_episodes(envs: Any) -> list[Any]:
    """Call methods of an env and step it; return the observations of its second episode."""
    envs.call("set_task", 3)
    envs.reset(seed=5)
    for number in range(4):
        envs.step([1])
        envs.call("add", number)
    envs.call("scale")
    obs = [envs.reset(seed=6)[0][0].tolist()]
    return obs + [envs.step([2])[0][0].tolist() for _ in range(3)]


def test_replay_of_a_reproducer_repeats_calls_of_earlier_episodes(tmp_path: Path) -> None:
    env_fn = functools.partial(DiesInStep, os.getpid())
    with VectorEnv([env_fn], backend="serial") as plain:
        expected = play_two_episodes(plain)
    failures = {"reproducer_dir": str(tmp_path), "on_repeat": "raise"}
    with VectorEnv([env_fn], failures=failures) as envs, pytest.raises(WorkerDiedError):
        play_two_episodes(envs)
    (file,) = tmp_path.iterdir()
    events = list(reproducer.load(file).run())
    assert [np.asarray(event.obs).tolist() for event in events] == expected
