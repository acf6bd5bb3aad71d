"""Shortcut: a step that skips wrappers gives the same results as one that does not."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from vecenv.core.host import shortcut
from vecenv.core.host.shortcut import Shortcut
from vecenv.vector import VectorEnv

needs_known_release = pytest.mark.skipif(
    not shortcut.known_steps(), reason="this release of Gymnasium has other wrappers: nothing is left out"
)


def make(limit: int = 500) -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=limit)


def warm(env: Any) -> Any:
    """Return the shortcut of an env that has made its checks and is at the start of an episode."""
    env.reset(seed=0)
    for _ in range(3):
        env.step(env.action_space.sample())
    env.reset(seed=1)
    return Shortcut.to(env)


def files_of(step: Any) -> list[str]:
    """Return the files of Gymnasium in the traceback of a wrong action, so those that a step of CartPole uses."""
    with pytest.raises(AssertionError) as caught:
        step(7)
    files = [Path(entry.path).name for entry in caught.traceback[1:]]
    return [name for name in files if name != "shortcut.py"]


class Subclass(TimeLimit):
    """A subclass of TimeLimit, which must not be skipped."""


class Tag(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A user's wrapper: adds 100 to the reward."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + 100.0, *rest


@needs_known_release
def test_shortcut_is_taken_after_reset_and_check() -> None:
    env = make()
    stand_in = Shortcut.to(env)
    stand_in.reset()
    assert "common.py" in files_of(stand_in.step), "the first step is checked"
    stand_in.step(0)
    stand_in.step(0)
    stand_in.reset()
    assert files_of(stand_in.step) == ["cartpole.py"]


@needs_known_release
@pytest.mark.parametrize("check", ["checked_step", "checked_data_reuse"])
def test_shortcut_keeps_a_checker_that_has_not_checked_yet(check: str) -> None:
    stand_in = warm(env := make())
    if not hasattr(checker := env.env.env, check):
        pytest.skip("this release of Gymnasium does not check that")
    setattr(checker, check, False)
    assert "common.py" in files_of(stand_in.step)


@needs_known_release
def test_shortcut_skips_wrappers_without_a_limit() -> None:
    stand_in = warm(OrderEnforcing(PassiveEnvChecker(make().unwrapped)))
    assert files_of(stand_in.step) == ["cartpole.py"]
    assert len(stand_in.step(0)) == 5


def test_steps_before_the_first_reset_are_refused() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        Shortcut.to(make()).step(0)


@pytest.fixture(params=["native", "python"])
def counting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with steps counted in C, and again with steps counted in Python."""
    if request.param == "python":
        monkeypatch.setattr(shortcut, "load", lambda: None)
    elif shortcut.load() is None:
        pytest.skip("the extension was not built")


@pytest.mark.usefixtures("counting")
def test_step_count_stays_in_the_limit_and_ends_episodes() -> None:
    env = make(5)
    stand_in = warm(env)
    for number in range(1, 7):
        truncated = stand_in.step(number % 2)[3]
        assert env.get_wrapper_attr("_elapsed_steps") == number
        assert truncated is (number >= 5)
    env.set_wrapper_attr("_max_episode_steps", 100)
    assert stand_in.step(0)[3] is False
    env.reset()
    assert env.get_wrapper_attr("_elapsed_steps") == 0


@pytest.mark.usefixtures("counting")
def test_step_that_raises_is_not_counted() -> None:
    env = make()
    stand_in = warm(env)
    with pytest.raises(AssertionError):
        stand_in.step(7)
    assert env.get_wrapper_attr("_elapsed_steps") == 0


def test_shortcut_keeps_subclasses_and_foreign_wrappers() -> None:
    tagged = Tag(make())
    assert Shortcut.to(tagged) is tagged
    subclass = Subclass(make(), 3)
    assert Shortcut.to(subclass) is subclass
    inside = warm(TimeLimit(Tag(make()), 3))
    assert inside.step(0)[1] == 101.0


@pytest.mark.usefixtures("counting")
def test_limits_count_both_where_there_are_two() -> None:
    stand_in = warm(TimeLimit(make(4), 2))
    assert [stand_in.step(number % 2)[3] for number in range(4)] == [False, True, True, True]


class Gives(gymnasium.Env[Any, Any]):
    """Returns its action as the result of each step."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **kwargs: Any) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return action


def counted(limit: int) -> tuple[Any, Callable[[Any], Any]]:
    """Return a TimeLimit around a `Gives` env, already reset, and the step function that a worker would use."""
    env = TimeLimit(Gives(), limit)
    env.reset()
    return env, Shortcut.to(env).step


@needs_known_release
@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("kind", [tuple, list, iter, dict.fromkeys])
def test_step_result_of_five_values_is_unpacked_as_by_the_limit(kind: Any) -> None:
    _, step = counted(2)
    values = [1, 2.0, False, None, 5]
    assert step(kind(values)) == (1, 2.0, False, None, 5)
    assert step(kind(values)) == (1, 2.0, False, True, 5)


@needs_known_release
@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("wrong", [None, 3, (), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6), [1], {}], ids=repr)
def test_step_result_of_another_form_raises_as_the_limit_does_uncounted(wrong: Any) -> None:
    env, step = counted(2)
    with pytest.raises((TypeError, ValueError)) as expected:
        env.step(wrong)
    with pytest.raises(expected.type) as caught:
        step(wrong)
    assert str(caught.value) == str(expected.value)
    assert env._elapsed_steps == 0


@needs_known_release
@pytest.mark.usefixtures("counting")
def test_limit_without_its_count_raises() -> None:
    env, step = counted(2)
    del env._elapsed_steps
    with pytest.raises(AttributeError, match="_elapsed_steps"):
        step((1, 2.0, False, False, {}))
    env._elapsed_steps = "many"  # type: ignore[assignment]
    with pytest.raises(TypeError):
        step((1, 2.0, False, False, {}))


@pytest.mark.extended
@needs_known_release
@pytest.mark.usefixtures("counting")
def test_step_does_not_keep_its_result() -> None:
    env, step = counted(1)
    obs = np.zeros(3)
    before = sys.getrefcount(obs)
    for _ in range(3):
        assert step((obs, 0.0, False, False, {}))[3] is True
        assert sys.getrefcount(obs) == before
    watched = weakref.ref(env)
    del env, step
    gc.collect()
    assert watched() is None


def test_step_replaced_in_the_object_is_used() -> None:
    env = make()
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    env.step = lambda action: "mine"  # type: ignore[method-assign]
    assert Shortcut.to(env).step(0) == "mine"


def test_step_replaced_in_a_class_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make()
    warm(env)
    monkeypatch.setattr(OrderEnforcing, "step", lambda self, action: (0, 0.5, False, False, {}))
    assert Shortcut.to(env).step(0)[1] == 0.5


def test_shortcut_is_off_in_unknown_gymnasium_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shortcut._DIGESTS, TimeLimit, {"another"})
    shortcut.known_steps.cache_clear()
    try:
        env = make()
        assert Shortcut.to(env) is env
    finally:
        shortcut.known_steps.cache_clear()


def set_reward(env: Any, reward: float) -> None:
    """Replace the outermost step, as a user may do by a call."""
    env.step = lambda action: (np.zeros(4, np.float32), reward, False, False, {})


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_call_that_replaces_the_step_takes_effect(backend: str) -> None:
    envs = VectorEnv([make] * 2, backend=backend)
    try:
        envs.reset(seed=0)
        for _ in range(30):
            assert envs.step(np.zeros(2, np.int64))[1].max() <= 1.0
        envs._pool.call(functools.partial(set_reward, reward=7.0))
        envs.step(np.zeros(2, np.int64))  # a reset, if the env's episode has ended
        assert envs.step(np.zeros(2, np.int64))[1].tolist() == [7.0, 7.0]
    finally:
        envs.close()


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_streams_are_those_of_gymnasium_over_limits_and_ends(backend: str, mode: str) -> None:
    autoreset = gymnasium.vector.AutoresetMode[mode]
    fns = [functools.partial(make, limit) for limit in (5, 17, 500)]
    ours = VectorEnv(fns, backend=backend, autoreset_mode=autoreset)
    theirs = gymnasium.vector.SyncVectorEnv(fns, autoreset_mode=autoreset)
    rng = np.random.default_rng(0)
    try:
        np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
        for _ in range(200):
            actions = rng.integers(0, 2, 3)
            for mine, other in zip(ours.step(actions)[:4], theirs.step(actions)[:4], strict=True):
                np.testing.assert_array_equal(mine, other)
        assert ours.get_attr("_elapsed_steps") == tuple(env.get_wrapper_attr("_elapsed_steps") for env in theirs.envs)
    finally:
        ours.close()
        theirs.close()
