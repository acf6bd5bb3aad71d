"""A reset without a seed reaches the env as such; generators that do not exist yet are made from drawn seeds."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.vector.comparison import assert_same
from vecenv import VectorEnv
from vecenv.core.pool.serial import SerialPool
from vecenv.envs import toys
from vecenv.envs.adapt import adapt_and_build
from vecenv.gymnasium_api.first_seeds import is_seeded_by, seed_generators

cartpole = functools.partial(gymnasium.make, "CartPole-v1")


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("order", ["one by one", "some seeded", "masked"])
def test_first_reset_reports_its_seeds(order: str, backend: str) -> None:
    mode = "Disabled" if order == "masked" else "NextStep"
    with contextlib.closing(VectorEnv([cartpole] * 3, backend=backend, autoreset_mode=mode)) as envs:
        if order == "one by one":
            for env_id in (1, 0, 2):
                envs.async_reset(env_id)
                envs.recv(1)
        elif order == "some seeded":
            envs.reset(seed=[None, 4, None])
            assert envs.seeds[1] == 4
        else:
            envs.reset(seed=[7, 8, 9])
            envs.reset(options={"reset_mask": np.array([True, False, True])})
            assert envs.seeds == (7, 8, 9)
        assert None not in envs.seeds
        assert envs.get_attr("np_random_seed") == envs.seeds
        before = envs.seeds
        envs.reset(options=None if order != "masked" else {"reset_mask": np.ones(3, np.bool_)})
        assert envs.seeds == before, "later ones go on as the generators do"


def test_first_seed_of_env_i_is_the_drawn_seed_plus_i(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vecenv")
    with contextlib.closing(VectorEnv([cartpole] * 4, backend="serial")) as envs:
        envs.async_reset([3, 1])
        envs.recv(2)
        (first,) = re.findall(r"the seed (\d+) \+ i", caplog.text)
        assert envs.seeds == (None, int(first) + 1, None, int(first) + 3)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_unseeded_run_repeats_from_its_seeds(backend: str) -> None:
    with contextlib.closing(VectorEnv([cartpole] * 2, backend=backend)) as envs:
        first = envs.reset()
        assert_same(envs.reset(seed=envs.seeds[0]), first)


# ---- the env's view --------------------------------------------------------------------------


class Keywords(toys.ToyEnv):
    """Keeps the keyword arguments of its resets. Its own default seed is 5."""

    def reset(self, *, seed: Any = 5, options: Any = None) -> Any:
        self.given = [*getattr(self, "given", []), seed]
        return super().reset(seed=seed)


class Curriculum(toys.ToyEnv):
    """Becomes harder with each reset without a seed, and starts again with one."""

    level = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.level = 0 if seed is not None else self.level + 1
        return super().reset(seed=seed)

    def observe(self) -> Any:
        return super().observe() + np.float32(self.level)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_unseeded_reset_passes_seed_none(backend: str, implementation: str) -> None:
    with (
        contextlib.closing(VectorEnv([Keywords] * 2, backend=backend)) as envs,
        contextlib.closing(SyncVectorEnv([Keywords] * 2)) as twins,
    ):
        for one in (envs, twins):
            one.reset()
            one.reset(seed=[3, None])
        assert envs.get_attr("given") == twins.get_attr("given") == ([None, 3], [None, None])


class SeedsItself(toys.ToyEnv):
    """Seeds itself in its constructor."""

    def __init__(self) -> None:
        super().__init__(3)
        self.reset(seed=11)


ENVS: dict[str, Any] = {
    "curriculum": functools.partial(Curriculum, 3),
    "seeds itself": SeedsItself,
    "toy": functools.partial(toys.ToyEnv, 3),
    "cartpole": cartpole,
}


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("first", ["seeded", "unseeded"])
@pytest.mark.parametrize("name", ENVS)
def test_streams_after_unseeded_resets_equal_sync_vector_env(
    name: str, first: str, backend: str, implementation: str
) -> None:
    if first == "unseeded" and name in ("toy", "cartpole"):
        pytest.skip("their first episode is random")
    with (
        contextlib.closing(VectorEnv([ENVS[name]] * 2, backend=backend)) as envs,
        contextlib.closing(SyncVectorEnv([ENVS[name]] * 2)) as twins,
    ):
        compare = slice(None) if name != "curriculum" or first == "seeded" else slice(0)
        for seed in ([0] if first == "seeded" else []) + [None, None]:
            ours, theirs = envs.reset(seed=seed)[0], twins.reset(seed=seed)[0]
            assert_same(ours[compare], theirs[compare])
            for _ in range(5):
                ours, theirs = envs.step(np.ones(2, np.int64)), twins.step(np.ones(2, np.int64))
                assert_same(ours[0][compare], theirs[0][compare])
                assert_same(ours[1:4], theirs[1:4])
        if name == "curriculum":
            assert envs.get_attr("level") == twins.get_attr("level")


# ---- generators ------------------------------------------------------------------------------


def ready() -> gymnasium.Env:
    env = cartpole()
    env.reset(seed=9)
    return env


def entropic() -> gymnasium.Env:
    env = cartpole()
    _ = env.unwrapped.np_random  # its seed is the system's entropy
    return env


class OwnGenerator(toys.ToyEnv):
    """Draws from a generator of its own, which it makes in its constructor from the system's entropy."""

    def __init__(self) -> None:
        super().__init__(4)
        self.rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.luck = self.rng.random()
        return super().reset(seed=seed)

    def observe(self) -> Any:
        obs = super().observe()
        obs[2] = self.luck
        return obs


def test_env_that_has_its_generator_keeps_it() -> None:
    with SerialPool([ready, cartpole], adapt=adapt_and_build) as pool:
        pool.start()
        pool.reset()
        first, second = pool.recv().seeds.tolist()
        assert first == -1 and second >= 0
        assert pool.call(lambda env: env.unwrapped.np_random_seed) == [9, second]


def test_generator_is_made_as_by_gymnasium() -> None:
    env, twin = cartpole(), cartpole()
    assert seed_generators(env, 6) and not seed_generators(env, 7)
    assert is_seeded_by(env, 6) and not is_seeded_by(env, 7) and env.unwrapped.np_random_seed == 6
    assert_same(env.reset(), twin.reset(seed=6))


def test_env_without_a_generator_gets_none() -> None:
    class Bare:
        unwrapped = property(lambda self: self)

    env = Bare()
    assert not seed_generators(env, 6) and not is_seeded_by(env, 6) and not vars(env)


def test_cancelled_first_reset_is_offered_its_seed_again() -> None:
    with contextlib.closing(VectorEnv([cartpole] * 2, backend="serial")) as envs:
        envs.async_reset()
        envs.reset()
        assert envs.get_attr("np_random_seed") == envs.seeds and None not in envs.seeds


# ---- recovery --------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(
    "env_fn",
    [cartpole, ready, entropic, OwnGenerator, SeedsItself, functools.partial(Curriculum, 4)],
    ids=["cartpole", "ready", "entropic", "own generator", "seeds itself", "curriculum"],
)
def test_unseeded_run_is_restored_bit_for_bit(env_fn: Any, mode: str, implementation: str) -> None:
    """The state of the env before its first reset is known too, whatever made its generator."""
    with contextlib.closing(VectorEnv([env_fn] * 2, num_workers=2, autoreset_mode=mode)) as envs:
        envs.reset()
        for _ in range(2):
            envs.step(np.ones(2, np.int64))
        before = envs.pool.call(generator_state, pure=True)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        assert envs.pool.call(generator_state, pure=True) == before
        envs.step(np.ones(2, np.int64))
        found = envs.statistics()
        assert (found["replayed"], found["unproven"], found["truncated"]) == (1, 0, 0)


def generator_state(env: Any) -> Any:
    return (getattr(env.unwrapped, "rng", None) or env.unwrapped.np_random).bit_generator.state


@pytest.mark.extended
def test_env_reset_individually_is_recovered() -> None:
    with contextlib.closing(VectorEnv([cartpole] * 2, num_workers=2)) as envs:
        for env_id in (1, 0):
            envs.async_reset(env_id)
            envs.recv(1)
        envs.step(np.array([0, 1]))
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        infos = envs.step(np.array([1, 0]))[4]
        assert infos["recovered"].tolist() == ["replayed", None]
