"""A collection that is saved between two batches, and continued, gives the batches of an undisturbed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecenv import Collector, Transitions, VectorEnv, collect
from vecenv.envs.toys import ToyEnv

MODES = ["NextStep", "SameStep", "Disabled"]
BACKENDS = [{"num_workers": 2}, {"backend": "serial"}]
#: Arguments of four calls of `collect`, one after the other; 4 envs.
CALLS: dict[str, list[dict[str, Any]]] = {
    "flat": [{"steps": 41}, {"steps": 50}, {"steps": 7}, {"steps": 60}],
    "time-major": [{"steps": 40, "time_major": True}] * 4,
    "episodes": [{"episodes": 3}, {"episodes": 2}, {"episodes": 9}, {"episodes": 1}],
    "overlap": [{"steps": 41, "overlap": True}, {"episodes": 5, "overlap": True}] * 2,
    "mixed": [{"episodes": 3}, {"steps": 21}, {"steps": 32, "time_major": True}, {"episodes": 5}],
}


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def policy(obs: Any, env_id: Any) -> Any:
    """Balance badly, so that episodes end; the answer depends on the bits of the observation."""
    return (obs[:, 2] + obs[:, 3] * (env_id % 3) > 0).astype(np.int64), {"angle": obs[:, 2]}


def columns_of(batch: Transitions) -> list[Any]:
    names = ("rewards", "terminated", "truncated", "lost", "env_id", "step", "episode", "episode_returns")
    arrays = [batch.obs, batch.next_obs, batch.actions, batch.extras["angle"], *(getattr(batch, one) for one in names)]
    return [array.tolist() for array in (*arrays, batch.episode_lengths)]


@pytest.mark.parametrize("options", BACKENDS, ids=["process", "serial"])
@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("mode", MODES)
def test_batches_continue_after_a_save(mode: str, calls: Any, options: dict[str, Any], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"autoreset_mode": mode}
    expected, states = [], []
    with VectorEnv([cartpole] * 4, **settings, **options) as envs:
        for number, call in enumerate(calls):
            expected.append(columns_of(collect(envs, policy, **call, seed=3 if number == 0 else None)))
            envs.save(tmp_path / str(number))
            states.append(envs.state_dict())
        for number in (2, 0):  # back on the same object
            envs.load_state_dict(states[number])
            found = [columns_of(collect(envs, policy, **call)) for call in calls[number + 1 :]]
            assert found == expected[number + 1 :]
    others = {"backend": "serial"} if "num_workers" in options else {"num_workers": 3}
    for number in range(3):  # every call in a program of its own
        with VectorEnv([cartpole] * 4, **settings, **others, resume=tmp_path / str(number)) as envs:
            envs.load_state_dict(envs.state_dict())  # a state that no collection has used yet is saved again
            assert columns_of(collect(envs, policy, **calls[number + 1])) == expected[number + 1]


def test_rounds_by_finish_order_continue_after_a_save(tmp_path: Path) -> None:
    """Serial envs finish in a fixed order."""
    with VectorEnv([cartpole] * 4, backend="serial") as envs:
        collector = Collector(envs, policy, batch_steps=37, min_count=2, seed=0)
        next(collector)
        envs.save(tmp_path / "state")
        expected = [columns_of(next(collector)) for _ in range(3)]
    with VectorEnv([cartpole] * 4, backend="serial", resume=tmp_path / "state") as envs:
        collector = Collector(envs, policy, batch_steps=37, min_count=2)
        assert [columns_of(next(collector)) for _ in range(3)] == expected


def test_collector_continues_after_load_state_dict_of_its_envs() -> None:
    """The state is that before the first batch, too: a collector resets the envs then."""
    with VectorEnv([cartpole] * 2, num_workers=1) as envs:
        collector = Collector(envs, policy, batch_steps=20, time_major=True)
        envs.reset(seed=5)
        first, states, expected = envs.state_dict(), [], []
        for _ in range(4):
            expected.append(columns_of(next(collector)))
            states.append(envs.state_dict())
        for number in (2, 0, 1):
            envs.load_state_dict(states[number])
            assert columns_of(next(collector)) == expected[number + 1]
        envs.load_state_dict(first)
        assert columns_of(next(collector)) == expected[0]


def test_steps_after_a_load_make_the_next_batch_begin_with_a_reset(tmp_path: Path) -> None:
    """Their episodes are not in the batches of a collection, so the progress in the file is out of date then."""
    with VectorEnv([cartpole] * 2, backend="serial") as envs:
        collect(envs, policy, steps=10, seed=0)
        envs.save(tmp_path / "state")
    with VectorEnv([cartpole] * 2, backend="serial", resume=tmp_path / "state") as envs:
        envs.step([0, 0])
        envs.save(tmp_path / "state")  # also in the next file
    with VectorEnv([cartpole] * 2, backend="serial", resume=tmp_path / "state") as envs:
        batch = collect(envs, policy, steps=2)
        assert batch.step.tolist() == [0, 0] and batch.episode.tolist() == [1, 1]


def test_progress_after_an_exception_of_the_policy_is_saved(tmp_path: Path) -> None:
    def raising(obs: Any, env_id: Any) -> Any:
        if len(rounds) == 7:
            raise ZeroDivisionError
        rounds.append(1)
        return policy(obs, env_id)

    rounds: list[int] = []
    with VectorEnv([cartpole] * 3, num_workers=1) as envs:
        with pytest.raises(ZeroDivisionError) as caught:
            collect(envs, raising, steps=60, seed=1)
        envs.save(tmp_path / "state")
        expected = columns_of(collect(envs, policy, steps=30))
    assert len(caught.value.collected) == 21  # type: ignore[attr-defined]
    with VectorEnv([cartpole] * 3, backend="serial", resume=tmp_path / "state") as envs:
        assert columns_of(collect(envs, policy, steps=30)) == expected


class WordEnv(ToyEnv):
    """An env with a part of the observation that has no fixed shape."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(place=self.observation_space, word=spaces.Text(9))

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return self._with_word(obs), info

    def step(self, action: Any) -> Any:
        obs, *others = super().step(action)
        return self._with_word(obs), *others

    def _with_word(self, obs: Any) -> Any:
        return {"place": obs, "word": "w" * int(obs.sum() % 7 + 1)}


def test_object_observations_continue_after_a_save(tmp_path: Path) -> None:
    def act(obs: Any, env_id: Any) -> Any:
        return np.array([len(word) % 2 for word in obs["word"]])

    def rows_of(batch: Transitions) -> list[Any]:
        return [batch.obs["place"].tolist(), batch.obs["word"].tolist(), batch.next_obs["word"].tolist()]

    with VectorEnv([WordEnv] * 2, num_workers=1) as envs:
        collect(envs, act, steps=11, seed=0)
        envs.save(tmp_path / "state")
        expected = rows_of(collect(envs, act, steps=20))
    with VectorEnv([WordEnv] * 2, backend="serial", resume=tmp_path / "state") as envs:
        assert rows_of(collect(envs, act, steps=20)) == expected


class Recurrent:
    """A policy with a state per env, which the program saves."""

    def __init__(self) -> None:
        self.sums: dict[int, float] = {}

    def begin(self, env_ids: Any) -> None:
        self.sums.update(dict.fromkeys(env_ids.tolist(), 0.0))

    def __call__(self, obs: Any, env_id: Any) -> Any:
        for one, row in zip(env_id.tolist(), obs):
            self.sums[one] += float(row[2])
        return np.array([int(self.sums[one] > 0) for one in env_id.tolist()]), {"angle": obs[:, 2]}


def test_policy_with_a_saved_state_continues_its_episodes(tmp_path: Path) -> None:
    """`begin` is not called for episodes that continue: it would clear the state that the program has restored."""
    old, new = Recurrent(), Recurrent()
    with VectorEnv([cartpole] * 3, num_workers=1) as envs:
        collect(envs, old, steps=31, seed=2)
        envs.save(tmp_path / "state")
        new.sums = dict(old.sums)
        expected = columns_of(collect(envs, old, steps=60))
    with VectorEnv([cartpole] * 3, backend="serial", resume=tmp_path / "state") as envs:
        assert columns_of(collect(envs, new, steps=60)) == expected
