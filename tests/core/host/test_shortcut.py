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
    not shortcut.known_steps() or shortcut.load() is None,
    reason="nothing is left out: this release of Gymnasium has other wrappers, or the extension was not built",
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
@pytest.mark.parametrize("kind", [tuple, list, iter, dict.fromkeys])
def test_step_result_of_five_values_is_unpacked_as_by_the_limit(kind: Any) -> None:
    _, step = counted(2)
    values = [1, 2.0, False, None, 5]
    assert step(kind(values)) == (1, 2.0, False, None, 5)
    assert step(kind(values)) == (1, 2.0, False, True, 5)


@needs_known_release
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


class Plain(gymnasium.Env[Any, Any]):
    """Its steps have the reward 1, and `steps` counts them."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    change: Callable[[Plain], None] | None = None

    def __init__(self) -> None:
        self.steps = 0
        self.outer: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return self._step(1.0)

    def _step(self, reward: float) -> Any:
        self.steps += 1
        if self.steps == 5 and self.change is not None:
            self.change()
        return np.full(2, reward / 10, np.float32), reward, False, False, {}


class Other(Plain):
    """An env whose steps have the reward 2."""

    def step(self, action: Any) -> Any:
        return self._step(2.0)


def own_step(env: Plain) -> None:
    env.step = lambda action: env._step(3.0)  # type: ignore[method-assign]


def other_class(env: Plain) -> None:
    env.__class__ = Other


def own_step_of_the_limit(env: Plain) -> None:
    inner = env.outer.env
    env.outer.step = lambda action: (*inner.step(action)[:1], 4.0, False, False, {})


def own_step_of_the_checker(env: Plain) -> None:
    layer = env.outer.env.env
    layer.step = lambda action: (*env.step(action)[:1], 5.0, False, False, {})


def other_env_in_a_wrapper(env: Plain) -> None:
    other = Other()
    other.reset()
    env.outer.env.env.env = other


def other_wrapper(env: Plain) -> None:
    env.outer.env = Tag(env.outer.env)


def other_class_of_a_wrapper(env: Plain) -> None:
    env.outer.env.env.__class__ = Tag


def shorter_limit(env: Plain) -> None:
    env.outer._max_episode_steps = 7


def later_count(env: Plain) -> None:
    env.outer._elapsed_steps = 10


def must_be_reset(env: Plain) -> None:
    env.outer.env._has_reset = False


def step_in_the_class_of_a_wrapper(env: Plain) -> None:
    kind = type(env.outer.env)
    env.outer.env.__class__ = type(kind.__name__, (kind,), {"step": lambda self, action: self.env.step(action)})


def patched_class(env: Plain) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(Plain, "step", lambda self, action: self._step(6.0))
    _PATCHES.append(patch)


def patched_wrapper(env: Plain) -> None:
    patch = pytest.MonkeyPatch()
    original = OrderEnforcing.step

    def step(self: Any, action: Any) -> Any:
        obs, _, *rest = original(self, action)
        return obs, 7.0, *rest

    patch.setattr(OrderEnforcing, "step", step)
    _PATCHES.append(patch)


def patched_base_of_wrappers(env: Plain) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(gymnasium.Wrapper, "step", lambda self, action: (np.zeros(2, np.float32), 8.0, False, False, {}))
    _PATCHES.append(patch)


_PATCHES: list[pytest.MonkeyPatch] = []
CHANGES = [
    own_step,
    other_class,
    own_step_of_the_limit,
    own_step_of_the_checker,
    other_env_in_a_wrapper,
    other_wrapper,
    other_class_of_a_wrapper,
    shorter_limit,
    later_count,
    must_be_reset,
    step_in_the_class_of_a_wrapper,
    patched_class,
    patched_wrapper,
    patched_base_of_wrappers,
]


def make_changing(change: Callable[[Plain], None]) -> Any:
    """Return an env in the layers of `gymnasium.make`, which is changed within its fifth step."""
    inner = Plain()
    inner.change = functools.partial(change, inner)  # type: ignore[assignment]
    inner.outer = TimeLimit(OrderEnforcing(PassiveEnvChecker(inner)), 12)
    return inner.outer


def stream_of(step: Callable[[Any], Any], reset: Callable[[], Any]) -> list[Any]:
    """Return rewards, ends and errors of two episodes, the second one with the change in its fifth step."""
    found: list[Any] = []
    try:
        for _ in range(3):
            reset()
            for _ in range(4 if len(found) < 8 else 15):
                try:
                    _, reward, terminated, truncated, _ = step(1)
                    found.append((float(reward), bool(terminated), bool(truncated)))
                    if truncated:
                        break
                except gymnasium.error.ResetNeeded:
                    found.append("reset needed")
    finally:
        while _PATCHES:
            _PATCHES.pop().undo()
    return found


@pytest.mark.parametrize("change", CHANGES)
def test_step_that_is_replaced_within_a_step_is_used_from_the_next_one(change: Callable[[Plain], None]) -> None:
    plain = make_changing(change)
    expected = stream_of(lambda action: plain.step(action), plain.reset)
    stand_in = Shortcut.to(make_changing(change))
    steps: list[Any] = []

    def reset() -> None:
        stand_in.reset()
        steps[:] = [stand_in.step]  # a slot does the same

    assert stream_of(lambda action: steps[0](action), reset) == expected


@pytest.mark.parametrize("implementation", ["native", "python"])
@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("change", CHANGES)
def test_vector_env_uses_a_step_that_is_replaced_within_a_step(
    change: Callable[[Plain], None], backend: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    plain = make_changing(change)
    expected = stream_of(lambda action: plain.step(action), plain.reset)
    envs = VectorEnv(
        [functools.partial(make_changing, change)],
        backend=backend,
        autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED,
    )

    def step(action: int) -> Any:
        obs, rewards, terminated, truncated, infos = envs.step(np.array([action]))
        return obs[0], rewards[0], terminated[0], truncated[0], infos

    try:
        assert stream_of(step, envs.reset) == expected
    finally:
        envs.close()


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
        envs.pool.call(functools.partial(set_reward, reward=7.0))
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
