"""Random programs on vector envs, with workers killed at random moments, give the results of an undisturbed run."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.vector.comparison import assert_same
from vecenv import BatchedVectorEnv, VectorEnv
from vecenv.envs.toys import ToyEnv

NUM_ENVS, BATCH_SIZE = 6, 2
MODES = list(AutoresetMode)
PROGRAMS = pytest.mark.parametrize("is_batched", [False, True], ids=["single", "batched"])


class GainEnv(ToyEnv):
    """Its rewards contain the attribute `gain`; its observations contain the number of `poke` calls."""

    gain, pokes = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.pokes = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        obs[1] += 100 * self.pokes
        return obs, reward + self.gain, *rest

    def make_info(self) -> dict[str, Any]:
        return (
            {"gain": self.gain} if self.elapsed_steps % 2 else {"pokes": self.pokes, "text": "x" * self.elapsed_steps}
        )

    def poke(self) -> int:
        self.pokes += 1
        return self.pokes


def make(is_batched: bool, mode: AutoresetMode, **kwargs: Any) -> Any:
    env_fns = [functools.partial(GainEnv, 2 + env_id) for env_id in range(NUM_ENVS)]
    if not is_batched:
        return VectorEnv(env_fns, autoreset_mode=mode, **kwargs)
    parts = [env_fns[i : i + BATCH_SIZE] for i in range(0, NUM_ENVS, BATCH_SIZE)]
    return BatchedVectorEnv([functools.partial(SyncVectorEnv, part, autoreset_mode=mode) for part in parts], **kwargs)


def run(envs: Any, seed: int, num_requests: int, killer: random.Random | None = None) -> list[Any]:
    """Run the program of this seed and return its results; `killer` kills workers between and during requests."""

    def kill_a_worker() -> None:
        if killer is not None and killer.random() < 0.1:
            with contextlib.suppress(ProcessLookupError):  # an earlier kill ended it, and the pool has not noticed yet
                os.kill(killer.choice(envs.worker_pids), signal.SIGKILL)

    rng = random.Random(seed)
    found: list[Any] = [envs.reset(seed=rng.randrange(1000))]
    ended = np.zeros(NUM_ENVS, np.bool_)
    for _ in range(num_requests):
        kind, mask = rng.random(), np.array([rng.random() < 0.4 for _ in range(NUM_ENVS)])
        seeds = [rng.randrange(1000) if rng.random() < 0.5 else None for _ in range(NUM_ENVS)]
        actions, gains = np.array([rng.randrange(2) for _ in range(NUM_ENVS)]), [rng.random() for _ in range(NUM_ENVS)]
        kill_a_worker()
        if ended.any() or (kind < 0.1 and mask.any()):
            mask |= ended
            found.append(envs.reset(seed=seeds, options={"reset_mask": mask}))
            ended &= ~mask
        elif kind < 0.2:
            found.append(envs.reset(seed=seeds))
        elif kind < 0.3:
            found.append(envs.call("poke"))
        elif kind < 0.4:
            envs.set_attr("gain", gains)
        else:
            envs.step_async(actions)
            kill_a_worker()
            found.append(envs.step_wait())
            if envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED:
                ended = found[-1][2] | found[-1][3]
    found.append(envs.get_attr("gain"))
    for part in found:
        if isinstance(part[-1], dict):
            for key in ("recovered", "_recovered"):
                part[-1].pop(key, None)
    return found


def check(seed: int, num_requests: int, is_batched: bool) -> None:
    mode = MODES[seed % len(MODES)]
    with contextlib.closing(make(is_batched, mode, backend="serial")) as envs:
        expected = run(envs, seed, num_requests)
    failures = {"max_restarts": 1000}
    with contextlib.closing(make(is_batched, mode, num_workers=1 + seed % 3, failures=failures)) as envs:
        found = run(envs, seed, num_requests, random.Random(seed))
        assert envs.statistics()["restarts"] > 0, "no kill hit: the program shows nothing"
    assert_same(found, expected, f"seed {seed}")


@PROGRAMS
@pytest.mark.parametrize("seed", range(3))
def test_fuzz_programs_equal_gymnasium(seed: int, is_batched: bool, implementation: str) -> None:
    check(seed, 40, is_batched)


@pytest.mark.slow
@PROGRAMS
@pytest.mark.parametrize("seed", range(100, 124))
def test_fuzz_many_programs_equal_gymnasium(seed: int, is_batched: bool, implementation: str) -> None:
    check(seed, 100, is_batched)
