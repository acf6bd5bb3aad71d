"""An env whose first reset has no seed gets one, whichever envs were reset before."""

from __future__ import annotations

import contextlib
import functools
import os
import signal

import gymnasium
import numpy as np
import pytest

from vecenv import VectorEnv
from vecenv.core.pool.serial import SerialPool
from vecenv.envs.adapt import adapt_and_build
from vecenv.vector.seeds import EnvSeeds

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


def test_first_seed_of_env_i_is_the_drawn_seed_plus_i() -> None:
    with contextlib.closing(VectorEnv([cartpole] * 4, backend="serial")) as envs:
        envs.async_reset([3, 1])
        envs.recv(2)
        assert envs.seeds[3] - envs.seeds[1] == 2 and envs.seeds[0] is None


def test_seed_record_reports_given_seeds_and_draws_for_first_resets_only() -> None:
    with SerialPool([cartpole] * 3, adapt=adapt_and_build) as pool:
        pool.start()
        seeds = EnvSeeds(pool)
        assert seeds.draw_missing([5, 6, 7], [2]) == [7] and seeds.last == (None,) * 3, "not sent yet"
        seeds.record([7], [2])
        first, given, later = seeds.draw_missing([None, 4, None], [0, 1, 2])
        assert isinstance(first, int) and (given, later) == (4, None)
        seeds.record([first, given, later], [0, 1, 2])
        assert seeds.last == (first, 4, 7)
        assert seeds.draw_missing([None] * 3, [1, 0]) == [None, None]


def test_env_that_has_its_generator_keeps_it() -> None:
    def ready() -> gymnasium.Env:
        env = cartpole()
        env.reset(seed=9)
        return env

    with SerialPool([ready, cartpole], adapt=adapt_and_build) as pool:
        pool.start()
        first, second = EnvSeeds(pool).draw_missing([None, None], [0, 1])
        assert first is None and isinstance(second, int)


def test_env_reset_individually_is_recovered() -> None:
    with contextlib.closing(VectorEnv([cartpole] * 2, num_workers=2)) as envs:
        for env_id in (1, 0):
            envs.async_reset(env_id)
            envs.recv(1)
        envs.step(np.array([0, 1]))
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        infos = envs.step(np.array([1, 0]))[4]
        assert infos["recovered"].tolist() == ["replayed", None]
