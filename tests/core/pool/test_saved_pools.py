"""`Pool.save` and engines with `resume=`: another pool continues with the rows of one that was not interrupted."""

from __future__ import annotations

import os
import pickle
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.faults.traces import end
from vecenv import StateError
from vecenv.core.layout.flags import Autoreset
from vecenv.core.options import RECOVERING, PoolFailurePolicy, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.core.shards.local_carrier import LocalCarrier
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.envs.toys import ToyEnv

SEEDS = [3, 4, 5, 6]
ACTIONS = np.random.default_rng(0).integers(0, 2, (40, 4))
RAISING = PoolFailurePolicy(on_failure="raise")
COLUMNS = ("env_id", "reward", "terminated", "truncated", "flags", "episode", "length", "seed", "return")


def make_sharded_pool(env_fns: Any, options: PoolOptions, **parts: Any) -> Pool:
    return Pool(ShardedEngine(env_fns, options, carrier=LocalCarrier(), num_shards=2, **parts))


#: Makers of pools, and whether their commands are kept.
POOLS: dict[str, tuple[Any, PoolFailurePolicy]] = {
    "shards": (make_sharded_pool, RECOVERING),
    "raising shards": (make_sharded_pool, RAISING),
    "process": (ProcessPool, RECOVERING),
    "raising": (ProcessPool, RAISING),
    "serial": (SerialPool, RAISING),
}


class UnknownEnv(gymnasium.Env[Any, Any]):
    """An env of a class whose state vecenv does not know; its episodes have 9 steps."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps, self.sum = 0, self.np_random.random()
        return self.obs(), {}

    def obs(self) -> Any:
        return np.array([self.num_steps, self.sum], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        self.sum += action * self.np_random.random()
        return self.obs(), 1.0, self.num_steps == 9, False, {}


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def make_pool(name: str, env_fn: Any, mode: Autoreset, data: bytes | None = None, **options: Any) -> Pool:
    pool_class, failures = POOLS[name]
    resume = None if data is None else pickle.loads(data)
    options = {"num_workers": 2, "autoreset": mode, "failures": failures, **options}
    pool = pool_class([env_fn] * 4, PoolOptions(**options), snapshotter=SNAPSHOTTER, resume=resume)
    pool.start()
    return pool


def continued(pool: Pool, name: str, env_fn: Any, mode: Autoreset = Autoreset.NEXT_STEP, **options: Any) -> Pool:
    """Save a pool, close it, and return another one of class `name` that continues it."""
    data = pickle.dumps(pool.save())
    pool.close()
    return make_pool(name, env_fn, mode, data, **options)


def row_of(pool: Pool, **arguments: Any) -> list[Any]:
    batch = pool.recv(**arguments)
    columns = [column[:].tolist() for column in batch.rows.columns_of(COLUMNS)]
    assert not batch.errors() and "recovered" not in str(batch.infos)
    return [np.asarray(batch.obs).tolist(), *columns]


def play(name: str, env_fn: Any, mode: Autoreset, saves: dict[int, str]) -> list[Any]:
    """Return the rows of 40 steps; before step i, another pool of class `saves[i]` continues."""
    pool = make_pool(name, env_fn, mode)
    pool.reset(seeds=SEEDS)
    rows = [row_of(pool)]
    for number, actions in enumerate(ACTIONS):
        if number in saves:
            pool = continued(pool, saves[number], env_fn, mode, num_workers=1 + number % 3)
        pool.send(actions)
        rows.append(row_of(pool))
    pool.close()
    return rows


@pytest.mark.parametrize("mode", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP])
@pytest.mark.parametrize("env_fn", [cartpole, ToyEnv, UnknownEnv])
@pytest.mark.parametrize("implementation", ["native", "python"], indirect=True)
def test_saved_pool_is_continued_by_others(env_fn: Any, mode: Autoreset, implementation: str) -> None:
    """Saves lie in the middle of episodes, right after their ends, and right after a load."""
    expected = play("serial", env_fn, mode, {})
    by_process = {0: "process", 9: "process", 10: "process", 11: "raising" if env_fn is not UnknownEnv else "serial"}
    assert play("process", env_fn, mode, by_process) == expected
    if env_fn is not UnknownEnv:
        others = {1: "serial", 10: "raising", 11: "process", 19: "serial", 20: "serial", 30: "raising"}
        assert play("serial", env_fn, mode, others) == expected


@pytest.mark.parametrize("mode", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP])
@pytest.mark.parametrize("env_fn", [cartpole, ToyEnv, UnknownEnv])
def test_saved_pool_moves_to_shards_and_back(env_fn: Any, mode: Autoreset) -> None:
    expected = play("serial", env_fn, mode, {})
    moves = {0: "shards", 9: "shards", 10: "process", 11: "shards", 20: "shards"}
    assert play("process", env_fn, mode, moves) == expected
    if env_fn is not UnknownEnv:
        others = {2: "raising shards", 9: "raising shards", 10: "serial", 19: "raising shards", 20: "shards"}
        assert play("shards", env_fn, mode, others) == expected


@pytest.mark.parametrize("env_fn", [ToyEnv, UnknownEnv])
def test_worker_of_a_resumed_pool_may_be_killed(env_fn: Any) -> None:
    expected = play("process", env_fn, Autoreset.NEXT_STEP, {})
    pool = make_pool("process", env_fn, Autoreset.NEXT_STEP)
    pool.reset(seeds=SEEDS)
    rows = [row_of(pool)]
    for number, actions in enumerate(ACTIONS):
        if number == 14:
            pool = continued(pool, "process", env_fn)
        if number in (14, 17, 22):
            os.kill(pool.worker_pids[0], signal.SIGKILL)
        pool.send(actions)
        batch = pool.recv()
        rows.append([np.asarray(batch.obs).tolist(), *(c[:].tolist() for c in batch.rows.columns_of(COLUMNS))])
        rows[-1][5] = expected[len(rows) - 1][5]  # the flag of infos, which contain the mark of a recovery
    pool.close()
    assert rows == expected


@pytest.mark.parametrize("names", [("process", "process"), ("process", "shards"), ("shards", "process")])
@pytest.mark.parametrize("env_fn", [ToyEnv, UnknownEnv])
def test_steps_without_an_answer_are_made_by_the_resumed_pool(env_fn: Any, names: tuple[str, str]) -> None:
    """Two envs have answered, one answer was received, and two envs have not begun."""
    rows = []
    for is_saved in (False, True):
        pool = make_pool(names[0], env_fn, Autoreset.NEXT_STEP)
        pool.reset(seeds=SEEDS)
        pool.recv()
        for actions in ACTIONS[:5]:
            pool.send(actions)
            pool.recv()
        pool.send(ACTIONS[5], ordered=False)
        found = row_of(pool, env_ids=[2])
        if is_saved:
            pool = continued(pool, names[1], env_fn, num_workers=1)
        assert pool.outstanding() == 3 and pool.owes(2) == 0
        mine = [found, row_of(pool, env_ids=[0, 1, 3])]
        for actions in ACTIONS[6:20]:
            pool.send(actions)
            mine.append(row_of(pool))
        pool.close()
        rows.append(mine)
    assert rows[0] == rows[1]


@pytest.mark.parametrize("env_fn", [ToyEnv, UnknownEnv])
def test_shard_of_a_resumed_pool_may_be_killed(env_fn: Any) -> None:
    expected = play("process", env_fn, Autoreset.NEXT_STEP, {})
    pool = make_pool("process", env_fn, Autoreset.NEXT_STEP)
    pool.reset(seeds=SEEDS)
    rows = [row_of(pool)]
    for number, actions in enumerate(ACTIONS):
        if number == 14:
            pool = continued(pool, "shards", env_fn, num_workers=1)
        if number in (14, 17, 22):
            end(pool.shards()[0].pid)
        pool.send(actions)
        batch = pool.recv()
        rows.append([np.asarray(batch.obs).tolist(), *(c[:].tolist() for c in batch.rows.columns_of(COLUMNS))])
        rows[-1][5] = expected[len(rows) - 1][5]  # the flag of infos, which contain the mark of a recovery
    pool.close()
    assert rows == expected


@pytest.mark.parametrize("name", POOLS)
def test_last_observations_of_a_resumed_pool_are_those_before_the_save(name: str) -> None:
    """An episode that cannot be restored ends with them."""
    pool = make_pool(name, ToyEnv, Autoreset.NEXT_STEP)
    pool.reset(seeds=SEEDS)
    last = pool.recv().obs.copy()
    for _ in range(2):
        pool = continued(pool, name, ToyEnv)
        jobs = pool.save().restore_jobs
        assert np.array_equal([jobs[env_id].last_delivered[0] for env_id in range(4)], last)
    pool.close()


def test_lasting_calls_are_made_again_in_a_resumed_pool() -> None:
    def set_length(env: Any) -> None:
        env.length = 4

    rows = []
    for is_saved in (False, True):
        pool = make_pool("process", ToyEnv, Autoreset.NEXT_STEP)
        pool.call(set_length, [1, 2])
        pool.reset(seeds=SEEDS)
        mine = [row_of(pool)]
        for number, actions in enumerate(ACTIONS):
            if number == 7 and is_saved:
                pool = continued(pool, "serial", ToyEnv)
            pool.send(actions)
            mine.append(row_of(pool))
        pool.close()
        rows.append(mine)
    assert rows[0] == rows[1]


def test_env_that_was_never_reset_is_new_in_a_resumed_pool() -> None:
    rows = []
    for is_saved in (False, True):
        pool = make_pool("process", ToyEnv, Autoreset.NEXT_STEP)
        pool.reset([0, 1], seeds=SEEDS[:2])
        pool.recv()
        if is_saved:
            pool = continued(pool, "process", ToyEnv)
        with pytest.raises(StateError, match=r"envs \[2, 3\] were never reset"):
            pool.send(ACTIONS[0])
        pool.reset([2, 3], seeds=SEEDS[2:])
        mine = [row_of(pool)]
        pool.send(ACTIONS[0])
        rows.append([*mine, row_of(pool)])
        pool.close()
    assert rows[0] == rows[1]


def test_env_whose_state_is_unknown_and_not_kept_is_refused() -> None:
    pool = make_pool("serial", UnknownEnv, Autoreset.NEXT_STEP)
    pool.reset(seeds=SEEDS)
    pool.recv()
    with pytest.raises(StateError, match="save: env 0: the state of one of its layers is not known"):
        pool.save()
    pool.send(ACTIONS[0])
    assert row_of(pool)[7] == [1, 1, 1, 1]
    pool.close()


def test_env_that_a_call_has_changed_is_refused_if_calls_are_not_kept() -> None:
    pool = make_pool("serial", cartpole, Autoreset.NEXT_STEP)
    pool.reset(seeds=SEEDS)
    pool.recv()
    pool.call(lambda env: setattr(env.unwrapped, "gravity", 5.0), [2])
    with pytest.raises(StateError, match="save: env 2: its state does not contain what earlier calls"):
        pool.save()
    pool.close()
