"""Reproducers: a file that repeats one env's episode as it was, in this process."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.faults.tapes import mortal, play, undisturbed
from vecenv import VectorEnv
from vecenv.core import reproducer
from vecenv.core.reproducer import Event, load, write
from vecenv.core.rows import Autoreset
from vecenv.envs import toys


def file_of(pool: Any, env_id: int = 0) -> str:
    """Have a running pool write what it knows of an env."""
    path: str = pool._reproduce(env_id, 999, "because")
    return path


def events_of(path: str, **how: Any) -> list[Event]:
    return list(load(path).run(**how))


@pytest.mark.parametrize("autoreset", list(Autoreset), ids=lambda mode: mode.name)
def test_an_episode_is_repeated_as_it_was(autoreset: Autoreset, tmp_path: Any) -> None:
    env_fn = functools.partial(toys.CountEnv, 4)
    rounds = 3 if autoreset == Autoreset.DISABLED else 11
    expected = undisturbed([env_fn] * 2, rounds, autoreset=autoreset).rows[1]
    with mortal([env_fn] * 2, autoreset=autoreset, reproducer_dir=str(tmp_path)) as pool:
        play(pool, rounds)
        events = events_of(file_of(pool, 1))
    assert events[0].op == "reset" or autoreset != Autoreset.DISABLED
    observed = [event.obs.tobytes() for event in events]
    wanted = [obs[2] for row in expected for obs in ((row.final_obs, row.obs) if row.final_obs else (row.obs,))]
    assert observed == wanted[-len(observed) :] and len(observed) >= 3
    assert {event.op for event in events} <= {"reset", "step", "autoreset"}
    assert all(event.reward == (event.op == "step") for event in events)
    assert sum(event.terminated for event in events) <= 3


def test_it_stops_before_a_step(tmp_path: Any) -> None:
    with mortal([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 6)
        path = file_of(pool)
    everything = events_of(path)
    assert len(everything) == 7
    part = events_of(path, until=everything[4].step_id)
    assert [event.step_id for event in part] == [event.step_id for event in everything[:4]]


def test_calls_and_attributes_are_part_of_it(tmp_path: Any) -> None:
    env = VectorEnv([functools.partial(toys.Raises, None, moment="close", once=str(tmp_path))], num_workers=1)
    env.reset(seed=3)
    env.set_attr("length", 2)
    assert env.call("poke", "hello") == ("hello",)
    for _ in range(4):
        env.step(np.zeros(1, np.int64))
    path = file_of(env._pool)
    env.close()
    events = events_of(path)
    assert "hello" in [event.obs for event in events if event.op == "call"]
    assert sum(event.terminated for event in events) >= 1, "the attribute that was set makes episodes short"


def test_actions_of_any_space(tmp_path: Any) -> None:
    action = spaces.Dict(a=spaces.Box(-1.0, 1.0, (2,)), b=spaces.Tuple((spaces.Discrete(3), spaces.Text(3))))
    for space in (action, action["a"]):
        with mortal([functools.partial(toys.KeepsAction, space)], reproducer_dir=str(tmp_path)) as pool:
            got = play(pool, 5)
            path = file_of(pool)
        told = [dict(event.info) for event in events_of(path)]
        assert len(told) == len(got.rows[0]) == 6
        assert all(info["action_type"] == ("dict" if space is action else "ndarray") for info in told[1:])


def test_an_env_draws_what_it_drew_and_the_process_keeps_its_own_generators(tmp_path: Any) -> None:
    expected = undisturbed([toys.NoisyGlobal] * 2, 6).rows
    with mortal([toys.NoisyGlobal] * 2, reproducer_dir=str(tmp_path)) as pool:
        play(pool, 6)
        path = file_of(pool, 1)
    np.random.seed(0)
    before = np.random.get_state()[1].tobytes()
    assert [event.obs.tobytes() for event in events_of(path)] == [row.obs[2] for row in expected[1]]
    assert np.random.get_state()[1].tobytes() == before


def test_lambdas_travel_by_value(tmp_path: Any) -> None:
    secret = 7
    with mortal([lambda: toys.CountEnv(secret)], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 2)
        path = file_of(pool)
    assert len(events_of(path)) == 3
    episode = load(path)
    assert (episode.env_id, episode.step_id, episode.why) == (0, 999, "because")
    assert set(episode.versions) == {"python", "numpy"}


def test_the_name_of_a_file_tells_whose_it_is(tmp_path: Any) -> None:
    with mortal([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 1)
        first, second = file_of(pool), file_of(pool)
    assert first != second and "env0-step999-" in first and first.endswith(".vecenv-episode")


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps(5), pickle.dumps((1, 2, 3))])
def test_other_files_are_refused(content: bytes, tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not an episode"):
        load(path)


def test_files_of_other_versions_are_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with mortal([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        play(pool, 1)
        episode = load(file_of(pool))
    monkeypatch.setattr(reproducer, "_FORMAT", 99)
    path = write(episode, str(tmp_path))
    monkeypatch.undo()
    with pytest.raises(ValueError, match="another version"):
        load(path)
