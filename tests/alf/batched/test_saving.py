"""`save`, `state_dict`, `load_state_dict` and `resume=` of ALF's environments: time steps continue."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.alf.comparison import assert_same, counting, toy
from vecenv import ClosedError, ConfigError, StateError, VectorEnv
from vecenv.alf import (
    AlfEnvironmentBaseWrapper,
    AlfGymWrapper,
    BatchEnvironmentWrapper,
    CurriculumWrapper,
    ParallelAlfEnvironment,
    ThreadEnvironment,
    TimeLimit,
    create_environment,
    load,
)
from vecenv.envs.toys import ToyEnv
from vecenv.saved_state import SavedState


class Raises(ToyEnv):
    """An env whose third step of an episode raises."""

    def step(self, action: Any) -> Any:
        if self.elapsed_steps == 2:
            raise ZeroDivisionError("this step was to raise")
        return super().step(action)


class UnknownEnv(ToyEnv):
    """An env whose state is unknown, so that its steps are made again."""

    get_state = set_state = None  # type: ignore[assignment]


class Infos(ToyEnv):
    """An env that returns an info in one step only; later time steps have zeros."""

    def make_info(self) -> dict[str, Any]:
        return {"rare": 1.5} if self.elapsed_steps == 2 else {}


def unknown(env_id: int = 0) -> AlfGymWrapper:
    return AlfGymWrapper(UnknownEnv(4 + env_id), env_id)


def rare(env_id: int = 0) -> AlfGymWrapper:
    return AlfGymWrapper(Infos(9), env_id)


def raising(env_id: int = 0) -> AlfGymWrapper:
    return AlfGymWrapper(Raises(), env_id)


def limited(env_id: int = 0) -> TimeLimit:
    return TimeLimit(AlfEnvironmentBaseWrapper(toy(env_id, length=9)), 4)


def batch(env_id: int = 0) -> BatchEnvironmentWrapper:
    return BatchEnvironmentWrapper([toy(2 * env_id, 3), toy(2 * env_id + 1, 5)])


class Player:
    """Runs a random program; with a folder, it saves, loads and kills at random moments."""

    def __init__(self, make: Any, seed: int, folder: Path | None) -> None:
        self.make, self.folder = make, folder
        is_single = make is not batch  # a batch resets its own envs
        self.num_spares, self.resets_ahead = 3 * (is_single and seed == 3), (is_single and seed == 2) or None
        self.rng, self.saver = random.Random(seed), random.Random(seed)
        self.is_batched = make is batch
        self.num_saves = 0
        self.env = self.open("serial" if folder is None else 2)

    def open(self, where: Any, **options: Any) -> ParallelAlfEnvironment:
        options |= {"backend": "serial"} if where == "serial" else {"num_workers": where}
        options |= {"num_spare_envs_for_reload": self.num_spares, "reset_ahead": self.resets_ahead}
        return ParallelAlfEnvironment([self.make] * (3 + self.num_spares), tensors=False, **options)

    def disturb(self) -> None:
        draw = self.saver.random()
        if self.folder is None or draw > 0.5:
            return
        env, path = self.env, self.folder / "state"
        if draw > 0.35:
            for pid in env.worker_pids[:1]:
                with contextlib.suppress(ProcessLookupError):  # it was killed before, and is not replaced yet
                    os.kill(pid, signal.SIGKILL)
            return
        if not env.worker_pids and self.make in (unknown, rare):  # a serial env keeps no steps
            return
        self.num_saves += 1
        env.save(path)
        if draw > 0.2:
            env.seed(7)
            env.reset()
            env.load_state_dict(SavedState.read(path).as_dict())
        else:
            env.close()
            self.env = self.open(self.saver.choice([1, 3, "serial"]), resume=path)

    def play(self) -> list[Any]:
        results, count = [], 6 if self.is_batched else 3
        with self:
            for _ in range(40):
                self.disturb()
                draw, actions = self.rng.random(), np.array([self.rng.randrange(2) for _ in range(count)])
                if draw < 0.1:
                    self.env.seed(self.rng.randrange(99))
                elif draw < 0.2:
                    results.append(self.env.reset())
                else:
                    results.append(self.env.step(actions))
                self.disturb()
                results.append(self.env.current_time_step())
                results.append(self.env.seeds)
        return results

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: Any) -> None:
        self.env.close()


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        if not hasattr(one, "step_type"):
            assert one == other
            continue
        known = {key: value for key, value in one.env_info.items() if key != "recovered"}
        assert_same(one._replace(env_info=known), other)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [counting, unknown, rare, limited, batch])
def test_saved_program_has_the_results_of_an_undisturbed_one(make: Any, seed: int, tmp_path: Path) -> None:
    reference = Player(make, seed, None)
    reference.env.seed(1)
    expected = reference.play()
    player = Player(make, seed, tmp_path)
    player.env.seed(1)
    assert_equal(player.play(), expected)
    assert player.num_saves, "nothing was saved: the program shows nothing"


def play(env: Any, num_steps: int) -> list[Any]:
    action = np.ones(env.batch_size, np.int64)
    return [step for _ in range(num_steps) for step in (env.step(action), env.current_time_step())]


CREATED: dict[str, dict[str, Any]] = {
    "parallel": {"num_workers": 1},
    "thread": {"num_parallel_environments": 1, "nonparallel": True},
    "wrapped": {"backend": "serial", "batched_wrappers": [AlfEnvironmentBaseWrapper]},
    "wrapped thread": {
        "num_parallel_environments": 1,
        "nonparallel": True,
        "batched_wrappers": [lambda env: TimeLimit(env, 7)],
    },
}


def no_thread(env_name: str, env_id: int = 0) -> Any:
    return load(env_name, env_id=env_id)


no_thread.no_thread_env = True  # type: ignore[attr-defined]
CREATED["tasks"] = {
    "env_name": ["CartPole-v0", "CartPole-v1"],
    "num_workers": 1,
    "batched_wrappers": [functools.partial(CurriculumWrapper, seed=4)],
}
CREATED["no thread"] = {"num_parallel_environments": 1, "nonparallel": True, "env_load_fn": no_thread}


@pytest.mark.parametrize("name", CREATED)
@pytest.mark.parametrize("tensors", [False, True])
def test_created_environment_continues(name: str, tensors: bool, tmp_path: Path) -> None:
    if tensors:
        pytest.importorskip("torch")
    options = {"num_parallel_environments": 3, "env_name": "CartPole-v1", "seed": 3, "tensors": tensors}
    options |= CREATED[name]
    with create_environment(**options) as env:
        play(env, 12)
        env.save(tmp_path / "state")
        state, last = env.state_dict(), env.current_time_step()
        expected = play(env, 20)
        env.load_state_dict(state)
        assert_equal(play(env, 20), expected)
    with create_environment(**options, resume=tmp_path / "state") as env:
        assert_same(env.current_time_step(), last)
        assert type(env.current_time_step().reward) is type(last.reward)
        assert_equal(play(env, 20), expected)


def test_thread_environment_continues(tmp_path: Path) -> None:
    with ThreadEnvironment(limited, tensors=False) as env:
        env.seed(4)
        play(env, 4)
        env.save(tmp_path / "state")
        expected = play(env, 12)
    with ThreadEnvironment(limited, tensors=False, resume=tmp_path / "state") as env:
        assert_equal(play(env, 12), expected)
    with pytest.raises(ConfigError, match="it was saved by ThreadEnvironment, and this is ParallelAlfEnvironment"):
        ParallelAlfEnvironment([rare], backend="serial", resume=tmp_path / "state")
    with pytest.raises(ConfigError, match="it was saved with the observation_space"):
        ThreadEnvironment(functools.partial(load, "CartPole-v1"), resume=tmp_path / "state")


def test_step_that_has_failed_is_not_repeated_by_a_load() -> None:
    """After an exception the next call is a reset, also after a load."""
    with ParallelAlfEnvironment([raising, toy], tensors=False, num_workers=1) as env:
        env.seed(1)
        env.reset()
        with pytest.raises(ZeroDivisionError):
            play(env, 5)
        state = env.state_dict()
        expected = env.step(np.zeros(2, np.int64))
        env.load_state_dict(state)
        assert env.current_time_step() is None
        assert_same(env.step(np.zeros(2, np.int64)), expected)


def test_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with ParallelAlfEnvironment([toy] * 2, tensors=False, backend="serial") as env:
        env.reset()
        state = env.state_dict()
        with VectorEnv([ToyEnv] * 2, backend="serial") as envs:
            envs.reset()
            other = envs.state_dict()
        for wrong, text in (
            (other, "it was saved by VectorEnv, and this is ParallelAlfEnvironment"),
            ({**state, "data": state["data"][:-1]}, "damaged"),
            ({}, "not a saved state"),
        ):
            with pytest.raises(ConfigError, match=text):
                env.load_state_dict(wrong)
        play(env, 2)  # nothing has changed
    for constructors, text in (([toy], "it contains 2 envs"), ([cartpole] * 2, "saved with the observation_space")):
        with pytest.raises(ConfigError, match=text):
            ParallelAlfEnvironment(constructors, backend="serial", resume=state)
    with AlfEnvironmentBaseWrapper(toy()) as env, pytest.raises(ConfigError, match="and this is AlfEnvironmentBaseWra"):
        env.load_state_dict(state)


def cartpole(env_id: int = 0) -> AlfGymWrapper:
    return AlfGymWrapper(gymnasium.make("CartPole-v1"), env_id)


WITHOUT_WORKERS = [lambda make: ParallelAlfEnvironment([make], backend="serial"), ThreadEnvironment]


@pytest.mark.parametrize("env_class", WITHOUT_WORKERS, ids=["serial", "thread"])
def test_closed_environment_cannot_be_saved(env_class: Any, tmp_path: Path) -> None:
    env = env_class(toy)
    state = env.state_dict()
    env.close()
    for request in (env.state_dict, lambda: env.save(tmp_path / "state"), lambda: env.load_state_dict(state)):
        with pytest.raises(ClosedError, match="the environment is closed"):
            request()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("env_class", WITHOUT_WORKERS, ids=["serial", "thread"])
def test_unknown_state_of_an_env_without_workers_is_named(env_class: Any) -> None:
    with env_class(unknown) as env:
        env.reset()
        with pytest.raises(StateError, match="is not known.*register_pickled_state"):
            env.state_dict()
