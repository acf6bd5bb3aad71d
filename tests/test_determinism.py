"""The promise of determinism, as properties: an env's stream follows from its seed and actions, and from nothing else.

The number of workers, the start method, the order of answers, the front end and kills do not matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.faults.front_ends import MANAGERS, FrontEnd, row_of
from tests.faults.front_ends import play as play_with
from tests.faults.traces import Row, kill, play, recovering_pool
from vecenv.core.layout.flags import Autoreset
from vecenv.core.options import PoolOptions
from vecenv.core.pool.serial import SerialPool
from vecenv.ding import DingEnvWrapper
from vecenv.envs import toys
from vecenv.envs.adapt import adapt_and_build

NUM_ENVS = 5


def acrobot() -> Any:
    return gymnasium.make("Acrobot-v1", max_episode_steps=15)


def cart_pole() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=18)


def pong() -> Any:
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5", max_num_frames_per_episode=80)


def half_cheetah() -> Any:
    return gymnasium.make("HalfCheetah-v5", max_episode_steps=20)


QUICK: dict[str, Callable[[], Any]] = {
    "count": functools.partial(toys.CountEnv, 6),
    "global generators": functools.partial(toys.NoisyGlobal, 6),
    "spaces": functools.partial(toys.SpaceEnv, length=6),
    "CartPole": cart_pole,
    "Acrobot": acrobot,
}
SLOW: dict[str, Callable[[], Any]] = {"Pong": pong, "HalfCheetah": half_cheetah}
SEEDS = st.lists(st.integers(0, 2**31 - 1), min_size=NUM_ENVS, max_size=NUM_ENVS)
CONTEXTS = st.sampled_from(["forkserver", "fork", "spawn"])


def few(max_examples: int) -> Any:
    """A few examples, always the same ones, because each example starts processes."""
    return settings(
        max_examples=max_examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@functools.lru_cache(64)
def expected(name: str, seeds: tuple[int, ...], rounds: int, autoreset: Autoreset) -> list[list[Row]]:
    """Return the answers of the envs in this process, one after the other."""
    env_fns = [{**QUICK, **SLOW}[name]] * NUM_ENVS
    with SerialPool(env_fns, PoolOptions(autoreset=autoreset), adapt=adapt_and_build) as pool:
        return play(pool, rounds, seeds=seeds).rows


def check_pool(name: str, rounds: int, data: Any) -> None:
    seeds = tuple(data.draw(SEEDS, "seeds"))
    autoreset = data.draw(st.sampled_from([Autoreset.NEXT_STEP, Autoreset.SAME_STEP]), "autoreset")
    in_order = data.draw(st.booleans(), "in order")
    num_workers = data.draw(st.integers(1, NUM_ENVS), "workers")
    threads = data.draw(st.integers(1, 2), "threads") if name != "global generators" else 1
    kills = data.draw(st.dictionaries(st.integers(1, rounds), st.integers(0, num_workers - 1), max_size=2), "kills")

    def inject(pool: Any, number: int) -> None:
        if number in kills:
            kill(pool, kills[number])

    env_fns = [{**QUICK, **SLOW}[name]] * NUM_ENVS
    context = data.draw(CONTEXTS, "context")
    how = {"num_workers": num_workers, "threads_per_worker": threads, "context": context, "autoreset": autoreset}
    with recovering_pool(env_fns, **how) as pool:
        got = play(pool, rounds, inject, seeds=seeds, in_order=in_order)
        assert pool.statistics()["truncated"] == 0
    assert got.rows == expected(name, seeds, rounds, autoreset)


@pytest.mark.extended
@pytest.mark.parametrize("implementation", ["native", "python"])
@pytest.mark.parametrize("name", QUICK)
@few(2)
@given(data=st.data())
def test_streams_of_pools(name: str, implementation: str, monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    check_pool(name, 30, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *SLOW])
@few(25)
@given(data=st.data())
def test_streams_of_pools_at_length(name: str, data: Any) -> None:
    check_pool(name, 60, data)


# ---- front ends -----------------------------------------------------------------------------------


def streams_of(front_end: str, env_fn: Callable[[], Any], rounds: int, seed: int, **how: Any) -> Any:
    return [rows[-rounds:] for rows in play_with(front_end, [env_fn] * NUM_ENVS, rounds=rounds, seed=seed, **how)]


@functools.lru_cache(64)
def expected_of(kind: str, name: str, rounds: int, seed: int) -> Any:
    """Return the answers of one undisturbed worker; managers seed episodes differently from Gymnasium."""
    env_fn = {**QUICK, **SLOW}[name]
    return streams_of("sync" if kind == "manager" else "VectorEnv", env_fn, rounds, seed, context="fork", num_workers=1)


def check_front_end(front_end: str, name: str, rounds: int, data: Any) -> None:
    seed = data.draw(st.integers(0, 2**20), "seed")
    num_workers = data.draw(st.integers(1, NUM_ENVS), "workers")
    kills = data.draw(st.dictionaries(st.integers(1, rounds - 1), st.integers(0, num_workers - 1), max_size=2), "kills")

    def inject(player: FrontEnd, number: int) -> None:
        if number in kills:
            player.kill(kills[number])

    got = streams_of(
        front_end,
        {**QUICK, **SLOW}[name],
        rounds,
        seed,
        context=data.draw(CONTEXTS, "context"),
        num_workers=num_workers,
        before=inject,
    )
    assert got == expected_of("gymnasium" if front_end == "VectorEnv" else "manager", name, rounds, seed)


@pytest.mark.extended
@pytest.mark.parametrize("front_end", ["VectorEnv", *MANAGERS])
@few(3)
@given(data=st.data())
def test_streams_of_front_ends(front_end: str, data: Any) -> None:
    check_front_end(front_end, data.draw(st.sampled_from(list(QUICK)), "env"), 20, data)


@pytest.mark.slow
@pytest.mark.parametrize("front_end", ["VectorEnv", *MANAGERS])
@few(30)
@given(data=st.data())
def test_streams_of_front_ends_at_length(front_end: str, data: Any) -> None:
    check_front_end(front_end, data.draw(st.sampled_from([*QUICK, *SLOW]), "env"), 45, data)


def test_gymnasiums_own_vector_env_gives_the_same() -> None:
    """The same seeds and actions give the results of Gymnasium's own classes."""
    envs = gymnasium.vector.SyncVectorEnv([cart_pole] * NUM_ENVS)
    obs, _ = envs.reset(seed=4)
    theirs: list[Any] = [[] for _ in range(NUM_ENVS)]
    for number in range(40):
        obs, rewards, terminated, truncated, _ = envs.step(np.full(NUM_ENVS, number % 2))
        for env_id in range(NUM_ENVS):
            done = bool(terminated[env_id] or truncated[env_id])
            theirs[env_id].append(row_of(obs[env_id], rewards[env_id], done))
    envs.close()
    assert streams_of("VectorEnv", cart_pole, 40, 4) == theirs


@pytest.mark.extended
def test_streams_of_gym_api_envs() -> None:
    def ding() -> Any:
        return DingEnvWrapper(cfg={"env_id": "CartPole-v1", "env_wrapper": "default"})

    one = streams_of("sync", ding, 30, 4, context="fork", num_workers=1)
    killed = functools.partial(_kill_first_at, 12)
    assert streams_of("async", ding, 30, 4, num_workers=3, before=killed) == one


def _kill_first_at(when: int, player: FrontEnd, number: int) -> None:
    if number == when:
        player.kill(0)
