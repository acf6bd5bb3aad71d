"""Save a pool, and continue in another one: the contract of each engine whose envs can be saved."""

from __future__ import annotations

import functools
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.contracts.test_pool import ENGINES, sharded_pool
from vecenv.core.layout.flags import Autoreset, Op
from vecenv.core.options import RECOVERING, PoolFailurePolicy, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.core.recovery.resume import Resume
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.envs.toys import ToyEnv
from vecenv.errors import ClosedError, StateError
from vecenv.vector.branches import Branches

OpenPool = Callable[..., Pool]

ACTIONS = np.random.default_rng(0).integers(0, 2, (30, 3))
COLUMNS = ("env_id", "reward", "terminated", "truncated", "flags", "episode", "length", "seed", "return")


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


@pytest.fixture(params=ENGINES)
def open_pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPool]:
    """Make pools of three envs, of one engine or of `engine`; all are closed after the test."""
    own_engine, implementation = request.param
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    pools: list[Pool] = []

    def make(env_fn: Any = ToyEnv, resume: Resume | None = None, engine: Any = None, **options: Any) -> Pool:
        engine = engine or own_engine
        failures = PoolFailurePolicy(on_failure="raise") if engine is SerialPool else RECOVERING
        options = {"num_workers": 2, "failures": failures, "autoreset": Autoreset.NEXT_STEP, **options}
        pool: Pool = engine([env_fn] * 3, PoolOptions(**options), snapshotter=SNAPSHOTTER, resume=resume)
        pools.append(pool)
        pool.start()
        return pool

    yield make
    for pool in pools:
        pool.close()
    pools.clear()


def saved(pool: Pool) -> Resume:
    resume: Resume = pickle.loads(pickle.dumps(pool.save()))
    return resume


def row_of(pool: Pool, **arguments: Any) -> list[Any]:
    batch = pool.recv(**arguments)
    return [np.asarray(batch.obs).tolist(), *(column[:].tolist() for column in batch.rows.columns_of(COLUMNS))]


def rows_of_reset(pool: Pool, **arguments: Any) -> list[Any]:
    pool.reset(**arguments)
    return row_of(pool)


def rows_of_steps(pool: Pool, actions: Any) -> list[Any]:
    """Return the rows of steps; in mode DISABLED, envs whose episodes have ended are reset after each step."""
    rows = []
    for one in actions:
        pool.send(one)
        rows.append(row_of(pool))
        ended = [env_id for env_id, *ends in zip(*(rows[-1][i] for i in (1, 3, 4))) if any(ends)]
        if ended and pool.options.autoreset == Autoreset.DISABLED:
            rows.append(rows_of_reset(pool, env_ids=ended))
    return rows


@pytest.mark.extended
@pytest.mark.parametrize("other", [ProcessPool, SerialPool, sharded_pool])
@pytest.mark.parametrize("mode", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP, Autoreset.DISABLED])
@pytest.mark.parametrize("env_fn", [ToyEnv, cartpole])
def test_saved_pool_and_its_continuation_have_the_same_rows(
    env_fn: Any, mode: Autoreset, other: Any, open_pool: OpenPool
) -> None:
    """A save changes nothing, so both pools are compared with one that was not saved."""
    pool, undisturbed = open_pool(env_fn, autoreset=mode), open_pool(env_fn, autoreset=mode)
    seeds = {"seeds": [3, 4, 5]}
    assert rows_of_reset(pool, **seeds) == rows_of_reset(undisturbed, **seeds)
    assert rows_of_steps(pool, ACTIONS[:13]) == rows_of_steps(undisturbed, ACTIONS[:13])
    resume = saved(pool)
    expected = [*rows_of_steps(undisturbed, ACTIONS[13:]), rows_of_reset(undisturbed)]
    for one in (pool, open_pool(env_fn, resume, other, autoreset=mode, num_workers=1)):
        assert [*rows_of_steps(one, ACTIONS[13:]), rows_of_reset(one)] == expected


@pytest.mark.extended
def test_one_state_is_continued_by_many_pools(open_pool: OpenPool) -> None:
    pool = open_pool()
    rows_of_reset(pool, seeds=[3, 4, 5])
    rows_of_steps(pool, ACTIONS[:5])
    resume = pool.save()
    data = pickle.dumps(resume)
    first, second = (rows_of_steps(open_pool(resume=one), ACTIONS[5:]) for one in (resume, pickle.loads(data)))
    assert first == second == rows_of_steps(pool, ACTIONS[5:])


@pytest.mark.extended
def test_continuation_that_is_saved_at_once_is_continued(open_pool: OpenPool) -> None:
    pool = open_pool()
    rows_of_reset(pool, seeds=[3, 4, 5])
    rows_of_steps(pool, ACTIONS[:5])
    last = open_pool(resume=saved(open_pool(resume=saved(pool))))
    assert rows_of_steps(last, ACTIONS[5:]) == rows_of_steps(pool, ACTIONS[5:])


@pytest.mark.extended
def test_pool_that_was_never_reset_is_saved_as_new(open_pool: OpenPool) -> None:
    pool = open_pool()
    other = open_pool(resume=saved(pool))
    with pytest.raises(StateError, match="never reset"):
        other.send(ACTIONS[0])
    assert rows_of_reset(other, seeds=[3, 4, 5]) == rows_of_reset(pool, seeds=[3, 4, 5])


@pytest.mark.extended
def test_step_without_an_answer_is_saved_by_two_pools_in_turn(open_pool: OpenPool) -> None:
    first = open_pool(engine=ProcessPool)
    rows_of_reset(first, seeds=[3, 4, 5])
    rows_of_steps(first, ACTIONS[:5])
    first.send(ACTIONS[5][:1], [0])
    second = open_pool(resume=saved(first))
    third = second
    if not isinstance(second, SerialPool):
        third = open_pool(resume=saved(second), engine=SerialPool)
    assert row_of(third) == row_of(first)
    assert rows_of_steps(open_pool(resume=saved(third)), ACTIONS[6:]) == rows_of_steps(first, ACTIONS[6:])


def length_of(env: Any) -> int:
    length: int = env.unwrapped.length
    return length


@pytest.mark.extended
def test_state_that_is_put_into_an_env_during_a_save_lasts(open_pool: OpenPool) -> None:
    """Its attributes are those of the state, also after a later reset and the death of its worker."""
    pool, donor = open_pool(), open_pool(functools.partial(ToyEnv, 9))
    rows_of_reset(donor, seeds=[3, 4, 5])
    rows_of_reset(pool, seeds=[6, 7, 8])
    donor.send(ACTIONS[0])
    expected = row_of(donor)[0]
    Branches(pool).put(Branches(donor).get(np.arange(3), None, None), np.arange(3), ordered=True)
    if isinstance(pool, SerialPool):
        with pytest.raises(StateError, match="receive all steps and resets first"):
            pool.save()
        return
    other = open_pool(resume=saved(pool), engine=ProcessPool)
    assert row_of(other, env_ids=[0, 1, 2])[0] == row_of(pool, env_ids=[0, 1, 2])[0] == expected
    rows_of_reset(other, seeds=[3, 4, 5])
    rows_of_steps(other, ACTIONS[:1])
    for pid in other.worker_pids:
        os.kill(pid, signal.SIGKILL)
    assert other.call(length_of) == [9, 9, 9]


@pytest.mark.extended
@pytest.mark.parametrize("request_of", ["steps", "resets"])
def test_requests_without_an_answer_are_saved_or_refused(request_of: str, open_pool: OpenPool) -> None:
    pool = open_pool()
    rows_of_reset(pool, seeds=[3, 4, 5])
    rows_of_steps(pool, ACTIONS[:4])
    pool.send(ACTIONS[4]) if request_of == "steps" else pool.reset()
    if not isinstance(pool, SerialPool):
        other = open_pool(resume=saved(pool))
        assert other.outstanding() == 3 and other.owes(1) == (Op.STEP if request_of == "steps" else Op.RESET)
        assert row_of(other, env_ids=[2, 0, 1]) == row_of(pool, env_ids=[2, 0, 1])  # else in the order of their ends
        assert rows_of_steps(other, ACTIONS[5:]) == rows_of_steps(pool, ACTIONS[5:])
    else:
        with pytest.raises(StateError, match="receive all steps and resets first"):
            pool.save()
        row_of(pool)


@pytest.mark.extended
def test_save_at_a_wrong_moment_is_refused(open_pool: OpenPool) -> None:
    pool = open_pool()
    rows_of_reset(pool)
    pool.submit_calls([repr] * 3)
    with pytest.raises(StateError):
        pool.save()
    assert len(pool.collect_calls()) == 3
    pool.close()
    with pytest.raises(ClosedError):
        pool.save()
