"""Random programs on a pool, with workers killed at random moments: every env's answers are those of a quiet run.

A program is a list of requests: steps of some envs, in columns or by payload, resets with seeds and
options, calls with and without other requests beside them, receives. The answers of an env
must depend on its own requests alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import Row, Traces, recovering_pool
from vecenv.core.layout.flags import Autoreset
from vecenv.core.layout.native import load
from vecenv.core.options import PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.serial import SerialPool
from vecenv.envs import toys
from vecenv.envs.adapt import adapt_and_build

NUM_ENVS = 6


class Poked(toys.ToyEnv):
    """Observes its number of pokes in this episode, the options of its reset, and an attribute that persists."""

    pokes, gain, size = 0, 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.pokes = 0
        self.size = len(options["blob"]) if options else 0
        return super().reset(seed=seed, options=options)

    def observe(self) -> Any:
        obs = super().observe()
        obs[0] = 1000.0 * self.pokes + self.gain
        obs[3] += self.size
        return obs

    def poke(self) -> int:
        self.pokes += 1
        return self.pokes


class SetGain:
    """Sets the attribute; a class, so that it travels by reference."""

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def __call__(self, env: Any) -> None:
        env.unwrapped.gain = self.gain


def poke(env: Any) -> int:
    value: int = env.unwrapped.poke()
    return value


def run(pool: Pool, seed: int, num_requests: int, killer: random.Random | None) -> tuple[list[list[Row]], list[Any]]:
    """Run the program of this seed; `killer` kills workers between requests."""
    rng = random.Random(seed)
    traces = Traces([[] for _ in range(NUM_ENVS)], [[] for _ in range(NUM_ENVS)])
    values: list[Any] = []
    pool.start()
    everyone = list(range(NUM_ENVS))
    pool.reset(seeds=[rng.randrange(1 << 31) for _ in everyone])
    traces.take(pool.recv())
    owing: set[int] = set()
    has_posted = False
    for _ in range(num_requests):
        kind, by_letter = rng.random(), rng.random() < 0.25
        some = rng.sample(everyone, rng.randint(1, NUM_ENVS))
        if killer is not None and killer.random() < 0.06:
            with contextlib.suppress(ProcessLookupError):  # killed earlier, and not noticed yet
                os.kill(pool.worker_pids[killer.randrange(len(pool.worker_pids))], signal.SIGKILL)
        if kind < 0.5:
            actions = {env_id: rng.randrange(2) for env_id in everyone}
            ids = [env_id for env_id in some if env_id not in owing]
            if ids and by_letter:
                pool.send_objects([actions[env_id] for env_id in ids], ids, ordered=False)
            elif ids:
                pool.send(np.array([actions[env_id] for env_id in ids]), ids, ordered=False)
            owing.update(ids)
        elif kind < 0.6:
            seeds = {env_id: rng.randrange(1 << 31) for env_id in everyone}
            ids = [env_id for env_id in some if env_id not in owing]
            kwargs = {"options": {"blob": b"x" * rng.choice([10, 3000, 90_000])}} if by_letter else None
            unseeded = rng.random() < 0.5
            if ids:
                chosen = [None if unseeded else seeds[env_id] for env_id in ids]
                pool.reset(ids, seeds=chosen, kwargs=[kwargs] * len(ids), ordered=False)
                owing.update(ids)
        elif kind < 0.75:
            if has_posted:
                values.append(pool.collect_calls(60))
            else:
                pool.submit_calls([poke] * len(some), some)
            has_posted = not has_posted
        elif kind < 0.8 and not has_posted:
            gain = float(rng.randrange(100))
            pool.call(SetGain(gain), some, name="gain")
        elif owing:
            for env_id in traces.take(pool.recv(timeout=60)):
                owing.remove(env_id)
    if has_posted:
        values.append(pool.collect_calls(60))
    if owing:
        traces.take(pool.recv(timeout=60))
    return traces.rows, values


def check(seed: int, num_requests: int, *, num_workers: int, **options: Any) -> None:
    env_fns = [functools.partial(Poked, 3 + env_id) for env_id in range(NUM_ENVS)]
    autoreset = Autoreset(seed % 2 + 1)
    with SerialPool(env_fns, PoolOptions(autoreset=autoreset), adapt=adapt_and_build) as quiet:
        expected = run(quiet, seed, num_requests, None)
    with recovering_pool(env_fns, num_workers=num_workers, autoreset=autoreset, max_restarts=1000, **options) as pool:
        got = run(pool, seed, num_requests, random.Random(seed))
        counts = pool.statistics()
    assert got == expected
    assert counts["truncated"] == 0 and counts["restarts"] > 0, "no kill hit: the program shows nothing"


@pytest.mark.parametrize("implementation", ["native", "python"])
@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed: int, implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if implementation == "native" and load() is None:
        pytest.skip("the extension was not built")
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    check(seed, 120, num_workers=1 + seed)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["native", "python"])
@pytest.mark.parametrize("seed", range(100, 112))
def test_many_random_programs(seed: int, implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    check(seed, 300, num_workers=1 + seed % 6, threads_per_worker=1 + seed % 2)
