"""Replays are checked: any difference between an answer and its repetition is found."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.faults.traces import kill, play, recovering_pool, wait_until
from vecenv.core.host.executor import Executor
from vecenv.core.host.global_rngs import GlobalRngs
from vecenv.core.host.replay import Restorer
from vecenv.core.layout.flags import Autoreset
from vecenv.envs.toys import ToyEnv
from vecenv.gymnasium_api.replaying import REPLAYING, is_replaying, replaying

pytestmark = pytest.mark.usefixtures("implementation")

SIZE = 100_000  # far more than a digest reads completely


class Differs(ToyEnv):
    """Gives another answer in one call, but only in a replay."""

    def __init__(self, what: str, at: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.what, self.at = what, at
        self.observation_space = spaces.Dict(
            a=spaces.Box(-np.inf, np.inf, (2,), np.float64),
            b=spaces.Tuple((spaces.Discrete(9), spaces.MultiBinary(3))),
            large=spaces.Box(0, 255, (SIZE,), np.uint8),
        )

    def differs(self, what: str) -> bool:
        return self.what == what and self.elapsed_steps == self.at and REPLAYING in os.environ

    def observe(self) -> Any:
        draw = self.np_random.random()
        obs = {
            "a": np.array([draw, self.elapsed_steps]),
            "b": (self.elapsed_steps % 9, np.array([0, 1, 0], np.int8)),
            "large": np.full(SIZE, int(draw * 255), np.uint8),
        }
        if self.differs("float"):
            obs["a"] = np.nextafter(obs["a"], 2)
        if self.differs("integer"):
            obs["b"] = (8, obs["b"][1])
        if self.differs("bit"):
            obs["b"] = (obs["b"][0], np.array([0, 1, 1], np.int8))
        if self.differs("large"):
            obs["large"] = obs["large"] ^ 1
        if self.differs("one byte of the large one"):
            obs["large"][777] ^= 1
        return obs

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.differs("reward"):
            reward = float(np.nextafter(reward, 2))
        if self.differs("terminated"):
            terminated = True
        if self.differs("truncated"):
            truncated = True
        if self.differs("error"):
            raise ValueError("only now")
        return obs, reward, terminated, truncated, info


def marks_after(env_fns: Sequence[Callable[[], Any]], rounds: int, when: int, **options: Any) -> list[list[str]]:
    """Kill the worker of all these envs once; return the recovery marks in their infos."""

    def inject(pool: Any, number: int) -> None:
        if number == when:
            kill(pool, 0)

    with recovering_pool(env_fns, num_workers=1, **options) as pool:
        got = play(pool, rounds, before=inject)
        assert pool.statistics()["restarts"] == 1
    return [[mark for _, mark in marks] for marks in got.marks]


LOST, FOUND = ["truncated", "restarted"], ["replayed"]
WHAT = ("float", "integer", "bit", "large", "reward", "terminated", "truncated", "error")
WHAT_OF_RESETS = ("float", "integer", "bit", "large", "one byte of the large one")


@pytest.mark.extended
def test_difference_in_a_step_is_found() -> None:
    env_fns = [functools.partial(Differs, what, 3) for what in (*WHAT, "nothing")]
    assert marks_after(env_fns, 7, 6) == [LOST] * len(WHAT) + [FOUND]


@pytest.mark.extended
def test_difference_in_a_reset_is_found() -> None:
    env_fns = [functools.partial(Differs, what, 0) for what in (*WHAT_OF_RESETS, "nothing")]
    assert marks_after(env_fns, 7, 6) == [LOST] * len(WHAT_OF_RESETS) + [FOUND]


@pytest.mark.extended
@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP])
def test_difference_in_an_earlier_episode_is_found(autoreset: Autoreset) -> None:
    """It is found if the replay reaches that episode."""
    env_fn = functools.partial(Differs, "float", 2, length=3)
    (marks,) = marks_after([env_fn], 2, 2, autoreset=autoreset)
    assert marks == FOUND, "the step that would differ is yet to come"
    (marks,) = marks_after([env_fn], 3, 3, autoreset=autoreset)
    assert "truncated" in marks


@pytest.mark.extended
def test_difference_is_not_found_in_an_equal_replay() -> None:
    assert marks_after([functools.partial(Differs, "nothing", 3)], 25, 24) == [FOUND]


class FailsToBegin(ToyEnv):
    """Raises in its second reset, an autoreset, and then continues."""

    def reset(self, **kwargs: Any) -> Any:
        if self.num_resets == 1:
            self.num_resets += 1
            raise ValueError("second")
        return super().reset(**kwargs)


@pytest.mark.extended
@pytest.mark.parametrize("when", [4, 5, 6])
def test_autoreset_that_raised_is_retried_in_a_replay(when: int) -> None:
    assert marks_after([functools.partial(FailsToBegin, length=2)], 7, when) == [FOUND]


def test_answers_are_compared_at_the_newest_one_before_the_command() -> None:
    """A worker may die after it recorded an answer and before it wrote the row. The command is then run again."""
    records: list[Any] = [(0, 0), (0, 0)]
    slot: Any = SimpleNamespace(records=lambda env_id: (99, *records))
    rngs = GlobalRngs()
    restorer = Restorer(Executor({}, Autoreset.NEXT_STEP, rngs), slot, np.asarray, float, None, rngs, lambda _: None)
    assert restorer.last_record(0, 5) == (0, 0)
    records[:] = (5, 50), (4, 40)
    assert restorer.last_record(0, 5) == (4, 40) and restorer.last_record(0, 6) == (5, 50)


def test_mark_in_the_environment_is_removed_after_a_replay() -> None:
    with pytest.raises(KeyError), replaying():
        assert os.environ[REPLAYING] == "1" and is_replaying()
        raise KeyError
    assert REPLAYING not in os.environ and not is_replaying()


def test_mark_is_separate_for_each_thread() -> None:
    """The environment variable is set while any thread replays."""
    begun, go = threading.Event(), threading.Event()

    def repeat() -> None:
        with replaying():
            begun.set()
            go.wait()

    other = threading.Thread(target=repeat)
    other.start()
    begun.wait()
    try:
        assert not is_replaying() and os.environ[REPLAYING] == "1"
        with replaying():
            assert is_replaying()
            with replaying():
                pass
            assert is_replaying()
        assert not is_replaying() and os.environ[REPLAYING] == "1"
    finally:
        go.set()
        other.join()
    assert REPLAYING not in os.environ


class ReportsMark(ToyEnv):
    """Env 0 stays in the replay of a step until env 1 has made a new step.

    Env 1 reports in its info whether the environment variable was set then.
    """

    def __init__(self, folder: Path, env_id: int) -> None:
        super().__init__(length=50)
        self.folder, self.env_id = folder, env_id

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.env_id == 0 and is_replaying():
            assert REPLAYING in os.environ
            (self.folder / "repeats").touch()
            wait_until((self.folder / "marked").exists)
        elif self.env_id == 1 and not is_replaying() and (self.folder / "repeats").exists():
            result[4]["marked"] = float(REPLAYING in os.environ)
            (self.folder / "marked").touch()
        return result


@pytest.mark.extended
def test_env_does_not_replay_while_one_in_another_thread_does(tmp_path: Path) -> None:
    env_fns = [functools.partial(ReportsMark, tmp_path, env_id) for env_id in range(2)]
    with recovering_pool(env_fns, num_workers=1, threads_per_worker=2) as pool:
        play(pool, 1)
        kill(pool, 0)
        pool.send(np.zeros(2, np.int64), ordered=False)
        marked = []
        while pool.outstanding():  # env 1's first step may end before env 0 begins its replay
            batch = pool.recv(min_count=1)
            batch.raise_errors()
            marked += [info["marked"] for info in batch.infos() if "marked" in info]
            if 1 in batch.env_ids.tolist() and not marked:
                pool.send(np.zeros(1, np.int64), [1], ordered=False)
        assert marked == [1.0]
