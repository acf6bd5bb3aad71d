"""One suite for every pool: the contract of `Pool`, for each engine and implementation."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import math
import os
import pickle
import random
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from tests.broken_pickles import BrokenPickle, BrokenPickleInfo
from tests.faults.traces import stopped, wait_until
from tests.inside import engine_of, hub_of, opened_envs
from tests.spaces import ALL_SPACES, FIXED_SPACES
from vecenv.core.advice.sizing import SERIAL
from vecenv.core.host.replay import RestoreJob
from vecenv.core.layout.flags import Autoreset, Form, Op, RowFlag
from vecenv.core.layout.native import load
from vecenv.core.options import Limits, PoolFailurePolicy, PoolOptions
from vecenv.core.parent import watchdog
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.core.shards.local_carrier import LocalCarrier
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.core.system.clock import now_ns
from vecenv.envs import toys
from vecenv.errors import ClosedError, ConfigError, EnvError, SpaceError, StateError, WorkerTimeoutError

OpenPool = Callable[..., Pool]


def sharded_pool(env_fns: list[Any], options: PoolOptions, **parts: Any) -> Pool:
    """Make a pool of two shards, which are child processes and share the workers; for one worker, of one shard."""
    num_shards = 1 if options.num_workers == 1 else 2
    num_workers = -(-options.num_workers // 2) if isinstance(options.num_workers, int) else options.num_workers
    options = dataclasses.replace(options, num_workers=num_workers, context="fork")
    return Pool(ShardedEngine(env_fns, options, carrier=LocalCarrier(), num_shards=num_shards, **parts))


def sharded_serial_pool(env_fns: list[Any], options: PoolOptions, **parts: Any) -> Pool:
    """Make a pool of two shards, child processes that step their envs themselves; for one worker, of one shard."""
    num_shards = 1 if options.num_workers == 1 else 2
    options = dataclasses.replace(options, context="fork")
    return Pool(ShardedEngine(env_fns, options, carrier=LocalCarrier(), num_shards=num_shards, setting=SERIAL, **parts))


def _steps_in_shards(pool: Pool) -> bool:
    """Return whether the envs live in the processes of shards."""
    return bool(pool.shards()) and pool.statistics().num_workers == 0


ENGINES = [
    pytest.param((engine, implementation), id=f"{name}-{implementation}", marks=marks)
    for name, engine in (
        ("process", ProcessPool),
        ("serial", SerialPool),
        ("sharded-local", sharded_pool),
        ("sharded-serial", sharded_serial_pool),
    )
    for implementation, marks in (
        ("native", pytest.mark.skipif(load() is None, reason="the extension was not built")),
        ("python", pytest.mark.slow if name.startswith("sharded") else ()),
    )
]

WORKERS = [param for param in ENGINES if param.values[0][0] is ProcessPool]
IN_THIS_PROCESS = [param for param in ENGINES if param.values[0][0] is SerialPool]


@pytest.fixture(params=ENGINES)
def open_pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPool]:
    """Make and start pools of one engine; all are closed after the test."""
    engine, implementation = request.param
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    pools: list[Pool] = []

    def make(env_fn: Any, num_envs: int = 4, *, start: bool = True, **options: Any) -> Pool:
        env_fns = env_fn if isinstance(env_fn, list) else [env_fn] * num_envs
        pool: Pool = engine(env_fns, PoolOptions(**{"num_workers": 2, **options}))
        pools.append(pool)
        if start:
            pool.start()
        return pool

    yield make
    for pool in pools:
        pool.close()
    pools.clear()


def count(length: int = 10) -> Callable[[], gymnasium.Env[Any, Any]]:
    return functools.partial(toys.CountEnv, length)


def reset(pool: Pool, **kwargs: Any) -> Any:
    pool.reset(**kwargs)
    return pool.recv()


# ---- sending and receiving ----------------------------------------------------------------


@pytest.mark.extended
def test_ordered_rows_stand_in_request_order(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 5)
    assert reset(pool).env_ids.tolist() == [0, 1, 2, 3, 4]
    pool.send(np.zeros(3, np.int64), [4, 0, 2])
    assert pool.recv().env_ids.tolist() == [4, 0, 2]


@pytest.mark.extended
def test_step_returns_the_values_of_the_env(open_pool: OpenPool) -> None:
    pool = open_pool(toys.ToyEnv, 3)
    alone = [toys.ToyEnv() for _ in range(3)]
    first = reset(pool, seeds=[7, 8, 9])
    expected = [env.reset(seed=seed)[0] for env, seed in zip(alone, (7, 8, 9))]
    np.testing.assert_array_equal(first.obs, np.stack(expected))
    assert first.obs.dtype == np.float32 and first.seeds.tolist() == [7, 8, 9]
    for step in range(1, 8):
        actions = np.array([step % 2, 1, 0])
        pool.send(actions)
        batch = pool.recv()
        results = [env.step(action) for env, action in zip(alone, actions)]
        np.testing.assert_array_equal(batch.obs, np.stack([result[0] for result in results]))
        assert batch.rewards.tolist() == [result[1] for result in results]
        assert batch.rewards.dtype == np.float64 and batch.terminated.dtype == np.bool_
        assert batch.lengths.tolist() == [step] * 3 and batch.returns.tolist() == [float(step)] * 3
        assert batch.flags == 0 and batch.infos() == [{}, {}, {}]


@pytest.mark.extended
def test_step_sends_and_receives_at_once(open_pool: OpenPool) -> None:
    pool = open_pool(count(2), 3)
    with pytest.raises(StateError, match="step: start the pool first"):
        ProcessPool([count()]).step(np.zeros(1, np.int64))
    reset(pool)
    ends = []
    for _ in range(3):
        batch = pool.step(np.zeros(3, np.int64))
        assert batch.env_ids.tolist() == [0, 1, 2] and pool.outstanding() == 0
        ends.append(batch.terminated.tolist())
    assert ends == [[False] * 3, [True] * 3, [False] * 3]
    pool.send(np.zeros(1, np.int64), [1])
    with pytest.raises(StateError, match="1"):
        pool.step(np.zeros(3, np.int64))
    assert pool.recv().env_ids.tolist() == [1], "what was under way is not lost"


@pytest.mark.extended
def test_unordered_rows_cover_every_env_once(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 6)
    pool.reset(ordered=False)
    seen: list[int] = []
    while pool.outstanding():
        batch = pool.recv(min_count=1)
        assert 1 <= len(batch) <= 6
        seen += batch.env_ids.tolist()
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]


@pytest.mark.extended
def test_async_loop_loses_and_doubles_nothing(open_pool: OpenPool) -> None:
    pool = open_pool(count(7), 8)
    reset(pool)
    steps = np.zeros(8, np.int64)
    pool.send(np.zeros(8, np.int64), ordered=False)
    for _ in range(200):
        batch = pool.recv(min_count=3)
        ids = batch.env_ids
        assert len(set(ids.tolist())) == len(ids) >= 3
        expected = np.where(batch.row_flags & RowFlag.AUTORESET, 0, steps[ids] + 1)
        np.testing.assert_array_equal(batch.lengths, expected)
        steps[ids] = expected
        pool.send(np.zeros(len(ids), np.int64), ids, ordered=False)


@pytest.mark.extended
def test_exact_counts_leave_the_rest_for_the_next_call(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 8)
    reset(pool)
    pool.send(np.zeros(8, np.int64), ordered=False)
    sizes, seen = [], []
    for wanted in (3, 3, 2):
        batch = pool.recv(min_count=wanted, exact=True)
        sizes.append(len(batch))
        seen += batch.env_ids.tolist()
    assert sizes == [3, 3, 2] and sorted(seen) == list(range(8))


@pytest.mark.extended
@pytest.mark.parametrize("least", [1, 0, -5])
def test_max_count_is_at_least_min_count(least: int, open_pool: OpenPool) -> None:
    pool = open_pool(count(), 4)
    pool.reset(ordered=False)
    assert len(pool.recv(min_count=3, max_count=least)) == 3


def test_max_count_beyond_all_envs_is_no_limit(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 4)
    pool.reset(ordered=False)
    assert len(pool.recv(min_count=4, max_count=2**70)) == 4


@pytest.mark.parametrize("wrong", ["3", 2.5], ids=repr)
def test_max_count_that_is_not_an_integer_is_refused(wrong: Any, open_pool: OpenPool) -> None:
    pool = open_pool(count(5), 2)
    pool.reset()
    with pytest.raises(ConfigError, match="max_count: expected a whole number or None"):
        pool.recv(max_count=wrong)
    assert len(pool.recv()) == 2


@pytest.mark.extended
def test_max_count_bounds_a_batch(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 6)
    pool.reset(ordered=False)
    sizes = []
    while pool.outstanding():
        sizes.append(len(pool.recv(min_count=1, max_count=2)))
    assert max(sizes) <= 2 and sum(sizes) == 6


@pytest.mark.extended
def test_leftovers_and_new_answers_join_in_one_batch(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 6)
    reset(pool)
    pool.send(np.zeros(6, np.int64), ordered=False)
    first = pool.recv(min_count=6, max_count=6).env_ids.tolist()
    pool.send(np.zeros(6, np.int64), first, ordered=False)
    part = pool.recv(min_count=2, exact=True).env_ids.tolist()
    pool.send(np.zeros(2, np.int64), part, ordered=False)
    rest = pool.recv(min_count=6)
    assert sorted(rest.env_ids.tolist()) == list(range(6))
    assert sorted(rest.lengths.tolist()) == [2, 2, 2, 2, 3, 3]


@pytest.mark.extended
def test_view_stays_valid_for_depth_minus_one_batches(open_pool: OpenPool) -> None:
    pool = open_pool(count(100), 4, depth=3)
    reset(pool)
    kept_batches = []
    for _ in range(40):
        pool.send(np.zeros(4, np.int64))
        batch = pool.recv()
        kept_batches.append((batch, batch.obs.copy()))
        for old, obs in kept_batches[-2:]:
            np.testing.assert_array_equal(old.obs, obs)


@pytest.mark.extended
def test_debug_mode_poisons_expired_batches(open_pool: OpenPool) -> None:
    pool = open_pool(count(100), 2, depth=2, debug=True)
    first = reset(pool)
    kept = first.copy()
    assert first.is_valid()
    pool.send(np.zeros(2, np.int64))
    second = pool.recv()
    assert not first.is_valid() and second.is_valid() and kept.is_valid()
    assert np.isnan(first.rewards).all() and kept.rewards.tolist() == [0.0, 0.0]
    with pytest.raises(StateError, match="expired"):
        first.copy()


def test_views_outlive_the_pool(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2)
    obs = reset(pool).obs
    before = obs.copy()
    pool.close()
    del pool
    np.testing.assert_array_equal(obs, before)


# ---- episodes -----------------------------------------------------------------------------


@pytest.mark.extended
def test_next_step_resets_on_the_step_after_the_end(open_pool: OpenPool) -> None:
    pool = open_pool(count(3), 2, autoreset=Autoreset.NEXT_STEP)
    reset(pool, seeds=[3, 4])
    lengths, flags, terminated, sums, seeds = [], [], [], [], []
    for _ in range(5):
        pool.send(np.zeros(2, np.int64))
        batch = pool.recv()
        lengths.append(batch.lengths.tolist()[0])
        flags.append(batch.flags & RowFlag.AUTORESET)
        terminated.append(batch.terminated.tolist()[0])
        sums.append((batch.rewards.tolist()[0], batch.returns.tolist()[0]))
        seeds.append(batch.seeds.tolist()[0])
    assert lengths == [1, 2, 3, 0, 1]
    assert sums == [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (0.0, 0.0), (1.0, 1.0)]
    assert seeds == [3, 3, 3, -1, -1]
    assert [bool(flag) for flag in flags] == [False, False, False, True, False]
    assert terminated == [False, False, True, False, False]
    assert pool.recv.__self__ is pool and batch.episodes.tolist() == [1, 1]


class FailsToBegin(toys.CountEnv):
    """Raises in its second reset, or returns junk from there; `calls` are those made so far."""

    def __init__(self, how: str = "raise", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.how, self.calls = how, []

    def reset(self, **kwargs: Any) -> Any:
        self.calls.append("reset")
        if self.calls.count("reset") != 2:
            return super().reset(**kwargs)
        if self.how == "raise":
            raise ValueError("no reset today")
        return np.zeros(3, np.float32), {}  # it has another shape

    def step(self, action: Any) -> Any:
        self.calls.append("step")
        return super().step(action)


class OddKey:
    """A key of a dict that is asked about when "a" is looked up, and has no answer."""

    def __hash__(self) -> int:
        return hash("a")

    def __eq__(self, other: object) -> bool:
        raise LookupError("no such comparison")


class OddAutoreset(toys.ToyEnv):
    """Returns an observation from its second reset that cannot even be looked at."""

    def __init__(self) -> None:
        super().__init__(2)
        self.observation_space = spaces.Dict(a=spaces.Box(-np.inf, np.inf, (2,), np.float32))

    def observe(self) -> Any:
        key: Any = OddKey() if self.num_resets == 2 else "a"
        return {key: np.full(2, self.elapsed_steps, np.float32)}


def test_observation_that_raises_when_read_is_an_error_of_its_env(open_pool: OpenPool) -> None:
    pool = open_pool([OddAutoreset, OddAutoreset], num_workers=1, autoreset=Autoreset.NEXT_STEP)
    reset(pool)
    errors = []
    for _ in range(5):
        pool.send(np.zeros(2, np.int64))
        batch = pool.recv()
        errors.append({env_id: type(error) for env_id, error in batch.errors().items()})
    assert errors == [{}, {}, {0: LookupError, 1: LookupError}, {}, {}]
    assert batch.obs["a"].tolist() == [[1.0, 1.0]] * 2


@pytest.mark.extended
@pytest.mark.parametrize("how", ["raise", "junk"])
def test_autoreset_that_failed_is_retried_by_the_next_step(how: str, open_pool: OpenPool) -> None:
    pool = open_pool(functools.partial(FailsToBegin, how, length=2), 2, autoreset=Autoreset.NEXT_STEP)
    reset(pool)
    seen = []
    for _ in range(5):
        pool.send(np.zeros(2, np.int64))
        batch = pool.recv()
        seen.append((batch.flags & (RowFlag.AUTORESET | RowFlag.ERROR), int(batch.terminated[0])))
    assert seen == [(0, 0), (0, 1), (RowFlag.ERROR, 0), (RowFlag.AUTORESET, 0), (0, 0)]
    assert pool.call(_calls_of) == [["reset", "step", "step", "reset", "reset", "step"]] * 2


@pytest.mark.extended
def test_step_that_raised_within_an_episode_is_followed_by_a_step(open_pool: OpenPool) -> None:
    pool = open_pool(RaisesOnce, 1, autoreset=Autoreset.NEXT_STEP)
    reset(pool)
    flags = []
    for _ in range(3):
        pool.send(np.zeros(1, np.int64))
        flags.append(pool.recv().flags & (RowFlag.AUTORESET | RowFlag.ERROR))
    assert flags == [0, RowFlag.ERROR, 0]


class RaisesOnce(toys.CountEnv):
    """Raises in its second step only."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.elapsed_steps == 2:
            raise ValueError("a bad move")
        return result


def _calls_of(env: Any) -> list[str]:
    return list(env.unwrapped.calls)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("autoreset", "num_steps"), [(Autoreset.NEXT_STEP, 3), (Autoreset.SAME_STEP, 4)], ids=lambda value: str(value)
)
def test_statistics_count_steps_but_not_resets(autoreset: Autoreset, num_steps: int, open_pool: OpenPool) -> None:
    pool = open_pool(count(2), 3, autoreset=autoreset)
    reset(pool)
    assert pool.statistics()["steps"] == 0
    for _ in range(4):
        pool.step(np.zeros(3, np.int64))
    assert pool.statistics()["steps"] == 3 * num_steps


class Spoken(toys.ToyEnv):
    """Takes strings, which are sent as payloads, one per action; raises at "bad"."""

    def __init__(self) -> None:
        super().__init__(2)
        self.action_space = gymnasium.spaces.Text(5)

    def step(self, action: Any) -> Any:
        if action == "bad":
            raise ValueError(action)
        return super().step(0)


@pytest.mark.extended
def test_statistics_count_steps_sent_as_payloads(open_pool: OpenPool) -> None:
    pool = open_pool(Spoken, 3, autoreset=Autoreset.NEXT_STEP)
    reset(pool)
    for words in [("one", "two", "three")] * 3 + [("four", "bad", "five")]:
        pool.send(words)
        batch = pool.recv()
    assert list(batch.errors()) == [1]
    assert pool.statistics()["steps"] == 3 * 2 + 2


@pytest.mark.extended
def test_same_step_keeps_the_final_observation_of_an_env_that_reuses_its_buffer(open_pool: OpenPool) -> None:
    pool = open_pool(functools.partial(toys.AliasedObs, 3), 2, autoreset=Autoreset.SAME_STEP)
    alone = toys.ToyEnv(3)
    reset(pool, seeds=[5, 5])
    alone.reset(seed=5)
    for _ in range(3):
        pool.send(np.ones(2, np.int64))
        batch = pool.recv()
        last = alone.step(1)[0]
    assert batch.flags & RowFlag.FINAL and batch.terminated.all()
    np.testing.assert_array_equal(batch.final_obs, np.stack([last, last]))
    np.testing.assert_array_equal(batch.obs, np.stack([alone.reset()[0]] * 2))
    assert batch.lengths.tolist() == [3, 3] and batch.episodes.tolist() == [0, 0] and batch.seeds.tolist() == [5, 5]
    pool.send(np.ones(2, np.int64))
    batch = pool.recv()
    assert batch.episodes.tolist() == [1, 1] and batch.seeds.tolist() == [-1, -1]
    assert batch.returns.tolist() == [1.0, 1.0]


class Undecided(toys.ToyEnv):
    """Ends its second step, or not: one of its flags is neither true nor false."""

    def __init__(self, which: int) -> None:
        super().__init__()
        self.which = which

    def step(self, action: Any) -> Any:
        result = list(super().step(action))
        if self.elapsed_steps == 2:
            result[self.which] = np.array([False, True])
        return tuple(result)


@pytest.mark.extended
@pytest.mark.parametrize("which", [2, 3], ids=["terminated", "truncated"])
@pytest.mark.parametrize("autoreset", list(Autoreset), ids=lambda mode: mode.name)
def test_flag_without_a_truth_value_is_an_error_of_its_env(
    autoreset: Autoreset, which: int, open_pool: OpenPool
) -> None:
    pool = open_pool(functools.partial(Undecided, which), 1, autoreset=autoreset)
    reset(pool)
    errors = [pool.step(np.zeros(1, np.int64)).errors() for _ in range(3)]
    assert [list(found) for found in errors] == [[], [0], []]
    name = ("terminated", "truncated")[which - 2]
    assert type(errors[1][0]) is SpaceError and str(errors[1][0]) == f"{name}: expected a bool, got bool (2,)"


class ReusesGraph(toys.ToyEnv):
    """Shows a graph whose nodes lie in the same array all the time."""

    def __init__(self) -> None:
        super().__init__(2)
        self.observation_space = spaces.Graph(spaces.Box(-9.0, 9.0, (1,)), None)
        self.nodes = np.zeros((3, 1), np.float32)

    def observe(self) -> Any:
        self.nodes[:] = self.elapsed_steps
        return spaces.GraphInstance(self.nodes, None, None)


@pytest.mark.extended
def test_same_step_keeps_a_final_graph_of_an_env_that_reuses_its_arrays(open_pool: OpenPool) -> None:
    pool = open_pool(ReusesGraph, 1, autoreset=Autoreset.SAME_STEP)
    reset(pool)
    pool.step(np.zeros(1, np.int64))
    batch = pool.step(np.zeros(1, np.int64))
    assert (batch.obs[0].nodes == 0).all() and (batch.final_obs[0].nodes == 2).all()


class ReusesReward(toys.ToyEnv):
    """Gives reward and end in the same arrays all the time; its `odd` observations are lists."""

    def __init__(self, shape: tuple[int, ...], odd: str) -> None:
        super().__init__(2)
        self.reward_space = spaces.Box(-9.0, 9.0, shape, np.float64)
        self.reward, self.is_over, self.odd = np.zeros(shape), np.zeros((), np.bool_), odd

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        self.reward[...], self.is_over[...] = 0, False
        return (obs.tolist() if self.odd == "first" else obs), info

    def step(self, action: Any) -> Any:
        obs, _, terminated, _, info = super().step(action)
        self.reward[...], self.is_over[...] = self.elapsed_steps, terminated
        return (obs.tolist() if self.odd == "last" else obs), self.reward, self.is_over, False, info


@pytest.mark.extended
@pytest.mark.parametrize("odd", ["no", "first", "last"])
@pytest.mark.parametrize("shape", [(), (2,)], ids=["number", "vector"])
def test_same_step_keeps_the_final_info_of_an_env_that_reuses_its_arrays(
    shape: tuple[int, ...], odd: str, open_pool: OpenPool
) -> None:
    pool = open_pool(functools.partial(ReusesReward, shape, odd), 1, autoreset=Autoreset.SAME_STEP)
    reset(pool)
    for reward, is_over in ((1.0, False), (2.0, True), (1.0, False)):
        batch = pool.step(np.zeros(1, np.int64))
        batch.raise_errors()
        np.testing.assert_array_equal(batch.rewards, np.full((1, *shape), reward))
        assert batch.terminated.item() == is_over
        assert batch.obs[0, 0] == (0.0 if is_over else reward), "the number of steps"
        assert not is_over or batch.final_obs[0, 0] == reward


@pytest.mark.extended
@pytest.mark.parametrize("truncate", [False, True], ids=["terminated", "truncated"])
@pytest.mark.parametrize("autoreset", list(Autoreset), ids=lambda mode: mode.name)
def test_row_that_ends_an_episode_contains_its_length_and_time(
    autoreset: Autoreset, truncate: bool, open_pool: OpenPool
) -> None:
    pool = open_pool(functools.partial(toys.ToyEnv, 2, truncate=truncate), 1, autoreset=autoreset)
    began = now_ns()
    reset(pool)
    for _ in range(2):
        length = 0
        while length != 2:
            before = now_ns()
            batch = pool.step(np.zeros(1, np.int64))
            length = batch.lengths.item()
        assert 0 < batch.seconds.item() <= (now_ns() - began) / 1e9
        began = before  # the start of the call in which a new one begins at the earliest
        if autoreset == Autoreset.DISABLED:
            reset(pool)


@pytest.mark.extended
def test_disabled_leaves_resets_to_the_caller(open_pool: OpenPool) -> None:
    pool = open_pool(count(2), 2, autoreset=Autoreset.DISABLED)
    reset(pool)
    for _ in range(2):
        pool.send(np.zeros(2, np.int64))
        batch = pool.recv()
    assert batch.terminated.all()
    pool.reset([1])
    again = pool.recv()
    assert again.env_ids.tolist() == [1] and again.flags & RowFlag.RESET and again.lengths.tolist() == [0]


@pytest.mark.extended
@pytest.mark.parametrize("autoreset", list(Autoreset), ids=lambda mode: mode.name)
def test_object_actions_end_episodes(autoreset: Autoreset, open_pool: OpenPool) -> None:
    pool = open_pool(count(2), 1, autoreset=autoreset)
    seen: list[list[tuple[int, int, bool]]] = []
    for send in (lambda: pool.send(np.zeros(1, np.int64)), lambda: pool.send_objects([np.int64(0)], [0])):
        reset(pool)
        seen.append([])
        for _ in range(7):
            send()
            batch = pool.recv()
            flags = batch.row_flags.item() & (RowFlag.AUTORESET | RowFlag.FINAL)
            seen[-1].append((flags, batch.lengths.item(), batch.terminated.item()))
    assert seen[0] == seen[1]
    begins, ends = RowFlag.AUTORESET, RowFlag.FINAL
    flags = {Autoreset.NEXT_STEP: [0, 0, begins] * 3, Autoreset.SAME_STEP: [0, ends] * 4, Autoreset.DISABLED: [0] * 7}
    assert [row[0] for row in seen[0]] == flags[autoreset][:7]


@pytest.mark.extended
@pytest.mark.parametrize(("seed", "shown"), [(2**63 - 1, 2**63 - 1), (2**63, -1)], ids=["fits", "too large"])
def test_seed_that_does_not_fit_its_column_is_used(seed: int, shown: int, open_pool: OpenPool) -> None:
    pool = open_pool(count(), 1)
    batch = reset(pool, seeds=[seed])
    batch.raise_errors()
    assert batch.seeds.tolist() == [shown]
    assert pool.call(lambda env: env.unwrapped.np_random_seed) == [seed]


class StepsAnew(toys.CountEnv):
    """Has another function as its step in each episode; its reward is the number of the episode."""

    num_begun = 0

    def reset(self, **kwargs: Any) -> Any:
        self.num_begun += 1
        self.step = functools.partial(self._step, float(self.num_begun))  # type: ignore[method-assign]
        return super().reset(**kwargs)

    def _step(self, reward: float, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, reward, *rest


@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP], ids=lambda mode: mode.name)
def test_step_method_replaced_by_a_reset_is_used(autoreset: Autoreset, open_pool: OpenPool) -> None:
    pool = open_pool(functools.partial(StepsAnew, 2), 1, autoreset=autoreset)
    reset(pool)
    rewards = [pool.step(np.zeros(1, np.int64)).rewards.item() for _ in range(6)]
    assert rewards == ([1, 1, 0, 2, 2, 0] if autoreset == Autoreset.NEXT_STEP else [1, 1, 2, 2, 3, 3])


@pytest.mark.extended
def test_reset_takes_seeds_and_arguments_per_env(open_pool: OpenPool) -> None:
    pool = open_pool(toys.ToyEnv, 3)
    big = 2**70
    batch = reset(pool, seeds=[None, 11, big], kwargs=[{"options": {"a": 1}}, None, None])
    drawn = pool.call(lambda env: env.unwrapped.np_random_seed, [0])
    assert batch.seeds.tolist()[:2] == [*drawn, 11], "an env without a generator gets a drawn seed"
    np.testing.assert_array_equal(batch.obs[1], toys.ToyEnv().reset(seed=11)[0])
    np.testing.assert_array_equal(batch.obs[2], toys.ToyEnv().reset(seed=big)[0])


# ---- spaces -------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("space", ALL_SPACES.values(), ids=ALL_SPACES)
def test_spaces_of_every_kind_travel_as_observation_and_action(space: spaces.Space[Any], open_pool: OpenPool) -> None:
    env_fn = functools.partial(toys.SpaceEnv, space, space)
    pool = open_pool(env_fn, 2)
    alone = [env_fn() for _ in range(2)]
    batch = reset(pool, seeds=[1, 2])
    same_batch(space, batch.obs, [env.reset(seed=seed)[0] for env, seed in zip(alone, (1, 2))])
    actions = batch_space(space, 2)
    actions.seed(3)
    for _ in range(3):
        sample = actions.sample()
        pool.send(sample)
        batch = pool.recv()
        batch.raise_errors()
        same_batch(space, batch.obs, [env.step(part)[0] for env, part in zip(alone, iterate(actions, sample))])


def same_batch(space: spaces.Space[Any], batch: Any, rows: list[Any]) -> None:
    from gymnasium.utils.env_checker import data_equivalence

    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            same_batch(part, batch[key], [row[key] for row in rows])
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            same_batch(part, batch[i], [row[i] for row in rows])
    elif isinstance(batch, tuple):
        assert data_equivalence(batch, tuple(rows))
    else:
        assert batch.dtype == space.dtype
        np.testing.assert_array_equal(batch, np.stack([np.asarray(row) for row in rows]))


@pytest.mark.extended
@pytest.mark.parametrize("space", FIXED_SPACES.values(), ids=FIXED_SPACES)
def test_actions_are_separate_objects(space: spaces.Space[Any], open_pool: OpenPool) -> None:
    pool = open_pool(functools.partial(toys.KeepsAction, space), 2)
    reset(pool)
    actions = batch_space(space, 2)
    sent = []
    for _ in range(3):
        sent.append(actions.sample())
        pool.send(sent[-1])
        pool.recv().raise_errors()
    kept = pool.call(lambda env: env.kept)
    for env_id in range(2):
        for step, sample in enumerate(sent):
            same_object(kept[env_id][step], list(iterate(actions, sample))[env_id])


@pytest.mark.extended
def test_actions_sent_as_objects_are_copied(open_pool: OpenPool) -> None:
    """`KeepsAction` raises if an action that it was given changes or shares memory with a later one."""
    pool = open_pool(toys.KeepsAction, 2)
    reset(pool)
    action = {"array": np.zeros(2), "list": [0], "pair": (np.ones(1), "x")}
    for number in range(4):
        pool.send_objects([action, action], [0, 1])
        action["array"][:] = action["list"][0] = number + 1  # before the envs of this process are stepped
        pool.recv().raise_errors()
    for kept in pool.call(lambda env: env.kept):
        assert [one["list"] for one in kept] == [[0], [1], [2], [3]]


@pytest.mark.extended
def test_options_of_a_reset_are_copied(open_pool: OpenPool) -> None:
    """`KeepsOptions` raises if options that it was given change."""
    pool = open_pool(toys.KeepsOptions, 2)
    options = {"array": np.zeros(2), "list": [0]}
    for number in range(3):
        pool.reset(kwargs=[{"options": options}] * 2)
        options["array"][:] = options["list"][0] = number + 1
        pool.recv().raise_errors()
        pool.send(np.zeros(2, np.int64))
        pool.recv().raise_errors()
    for kept in pool.call(lambda env: env.kept):
        assert [one["list"] for one in kept] == [[0], [1], [2]]
        assert not any(np.shares_memory(one["array"], options["array"]) for one in kept)


@pytest.mark.extended
@pytest.mark.parametrize("autoreset", list(Autoreset))
def test_infos_are_copied(autoreset: Autoreset, open_pool: OpenPool) -> None:
    """`KeepsInfo` raises if an info that it has returned changes."""
    pool = open_pool(functools.partial(toys.KeepsInfo, length=2), 2, autoreset=autoreset)
    reset(pool)
    for _ in range(6):
        pool.send(np.zeros(2, np.int64))
        batch = pool.recv()
        batch.raise_errors()
        for info in (*batch.infos(), *(batch.final_infos() if batch.flags & RowFlag.FINAL else ())):
            if info:
                info["array"][:] = info["nested"]["array"][:] = -1
                info["nested"]["list"].append(-1)
        if autoreset == Autoreset.DISABLED and batch.terminated.all():
            reset(pool)


def same_object(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            same_object(ours[key], theirs[key])
    elif isinstance(theirs, tuple):
        for one, other in zip(ours, theirs):
            same_object(one, other)
    else:
        assert ours.dtype == theirs.dtype and np.shape(ours) == np.shape(theirs)
        np.testing.assert_array_equal(ours, theirs)
        if isinstance(theirs, np.ndarray):
            assert ours.flags.writeable == theirs.flags.writeable


@pytest.mark.extended
@pytest.mark.parametrize(
    ("form", "kind", "shape"),
    [
        (Form.INT, int, None),
        (Form.VECTOR, np.ndarray, (1,)),
        (Form.ARRAY0, np.ndarray, ()),
        (Form.NATIVE, np.int64, ()),
    ],
)
def test_discrete_action_forms(form: Form, kind: type, shape: tuple[int, ...] | None, open_pool: OpenPool) -> None:
    pool = open_pool(functools.partial(toys.KeepsAction, spaces.Discrete(5)), 1)
    reset(pool)
    pool.send(np.array([3]), form=form)
    pool.recv().raise_errors()
    action = pool.call(lambda env: env.kept[-1])[0]
    assert type(action) is kind and int(np.asarray(action).reshape(())) == 3
    assert shape is None or np.shape(action) == shape


@pytest.mark.extended
def test_actions_are_converted_once_warned(open_pool: OpenPool) -> None:
    pool = open_pool(count(50), 2)
    reset(pool)
    with pytest.warns(UserWarning, match="action: uint64 is converted to the space's int64"):
        pool.send(np.zeros(2, np.uint64))
    pool.recv()
    pool.send(np.zeros(2, np.uint64))  # warned once: an error here if it warned again
    pool.recv()
    pool.send(np.zeros(2, np.int32))  # its values stay the same, so there is nothing to warn of
    pool.recv()
    pool.send([1, 0])
    pool.recv()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("actions", "text"),
    [
        (np.zeros(3, np.int64), r"action: expected int64 \(2,\), got int64 \(3,\); write one row per env, 2 in all$"),
        (np.zeros(2, np.float64), r"got float64 \(2,\); convert it with .astype\(np.int64\)$"),
        (np.zeros((2, 1), np.int64), r"got int64 \(2, 1\); remove the last axis with \[..., 0\]$"),
        ("ab", "action"),
        (None, "action"),
    ],
)
def test_wrong_actions_are_refused_and_nothing_is_sent(actions: Any, text: str, open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2)
    reset(pool)
    with pytest.raises(SpaceError, match=text):
        pool.send(actions)
    assert pool.outstanding() == 0
    pool.send(np.zeros(2, np.int64))
    assert pool.recv().lengths.tolist() == [1, 1]


@pytest.mark.extended
def test_strict_refuses_another_dtype(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2, strict=True)
    reset(pool)
    with pytest.raises(SpaceError, match="expected int64"):
        pool.send(np.zeros(2, np.int32))


@pytest.mark.extended
def test_observation_of_the_same_kind_is_converted_with_one_warning(open_pool: OpenPool) -> None:
    pool = open_pool(functools.partial(toys.WrongDtype, None), 2)
    reset(pool)
    pool.send(np.zeros(2, np.int64))
    with pytest.warns(UserWarning, match="obs: float64 is converted to the space's float32"):
        batch = pool.recv()
    for _ in range(3):  # warned once: an error here if it warned again
        pool.send(np.zeros(2, np.int64))
        batch = pool.recv()
        batch.raise_errors()
    assert batch.obs.dtype == np.float32


@pytest.mark.extended
def test_observation_of_the_wrong_shape_names_leaf_and_env(open_pool: OpenPool) -> None:
    pool = open_pool([count(), functools.partial(toys.WrongShape, 2)], 2)
    reset(pool)
    pool.send(np.zeros(2, np.int64))
    pool.recv().raise_errors()
    pool.send(np.zeros(2, np.int64))
    errors = pool.recv().errors()
    assert list(errors) == [1]
    assert isinstance(errors[1], SpaceError) and "obs: expected float32 (4,)" in str(errors[1])


# ---- infos --------------------------------------------------------------------------------


class InfoEnv(toys.ToyEnv):
    """Gives a different info at each step, by a script."""

    def __init__(self, script: list[Any]) -> None:
        super().__init__(None)
        self.script = script

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = self.script[(self.elapsed_steps - 1) % len(self.script)]
        return obs, reward, terminated, truncated, copy.deepcopy(info)


SCRIPT = [
    {"score": 1, "speed": 0.5},
    {"score": 2, "speed": 1.5, "lives": np.int32(3)},
    {},
    {"flag": True, "np": np.float32(0.25), "score": 2**40},
    {"score": 2.5},
    {"score": "text"},
    {"array": np.arange(3)},
    {"nested": {"a": 1}},
    {"huge": 2**80, 5: "int key"},
    {"flag": np.True_, "score": -1},
]


class _Marked(np.ndarray):
    """An array of a class of its own."""


def _as_odd_arrays(values: Any) -> list[Any]:
    """Return the same float32 values (2, 3) as arrays that lie and are called differently."""
    plain = np.array(values, np.float32)
    read_only = plain.copy()
    read_only.flags.writeable = False
    wide = np.zeros((4, 6), np.float32)
    wide[::2, ::2] = plain
    flipped = plain[::-1, ::-1].copy()[::-1, ::-1]
    swapped = plain.astype(">f4")
    return [plain, np.asfortranarray(plain), read_only, wide[::2, ::2], flipped, plain.view(_Marked), swapped, plain]


class OddArrays(toys.ToyEnv):
    """Observes 100 * step + 0..5, each time as an array of another kind."""

    def __init__(self) -> None:
        super().__init__(None)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2, 3), np.float32)

    def _look(self, step: int) -> Any:
        kinds = _as_odd_arrays(100 * step + np.arange(6).reshape(2, 3))
        return kinds[step % len(kinds)]

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return self._look(0), {}

    def step(self, action: Any) -> Any:
        return self._look(self.elapsed_steps + 1), *super().step(action)[1:]


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:obs")
def test_array_values_arrive_with_any_memory_layout(open_pool: OpenPool) -> None:
    pool = open_pool(OddArrays, 2)
    reset(pool)
    for step in range(1, 20):
        expected = 100 * step + np.arange(6).reshape(2, 3)
        np.testing.assert_array_equal(pool.step(np.zeros(2, np.int64)).obs, np.stack([expected, expected]))


@pytest.mark.extended
def test_scalars_of_every_type_arrive_unchanged_repeatedly(open_pool: OpenPool) -> None:
    types = [np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64, np.bool_]
    script = [{kind.__name__: kind(value) for kind in types} for value in (0, 1, 100)]
    pool = open_pool(functools.partial(InfoEnv, script), 2)
    reset(pool)
    for step in range(9):
        for info in pool.step(np.zeros(2, np.int64)).infos():
            assert info == script[step % 3] and [type(value) for value in info.values()] == types


@pytest.mark.extended
def test_infos_arrive_unchanged(open_pool: OpenPool) -> None:
    pool = open_pool(functools.partial(InfoEnv, SCRIPT), 3)
    reset(pool)
    for step in range(3 * len(SCRIPT)):
        pool.send(np.zeros(3, np.int64))
        batch = pool.recv()
        batch.raise_errors()
        wanted = SCRIPT[step % len(SCRIPT)]
        for info in batch.infos():
            assert info.keys() == wanted.keys()
            for key, value in wanted.items():
                assert type(info[key]) is type(value)
                np.testing.assert_equal(info[key], value)


@pytest.mark.extended
def test_huge_infos_pass_whole(open_pool: OpenPool) -> None:
    pool = open_pool(functools.partial(toys.HugeInfo, 3 << 20), 4)
    reset(pool)
    for _ in range(2):
        pool.send(np.zeros(4, np.int64))
        batch = pool.recv()
        batch.raise_errors()
        assert [len(info["blob"]) for info in batch.infos()] == [3 << 20] * 4


@pytest.mark.extended
def test_huge_options_pass_whole(open_pool: OpenPool) -> None:
    pool = open_pool(OptionsEnv, 4)
    options = [{"options": {"blob": bytes([i]) * (1 << 20)}} for i in range(4)]
    reset(pool, kwargs=options)
    sizes = pool.call(lambda env: (len(env.options["blob"]), env.options["blob"][0]))
    assert sizes == [(1 << 20, i) for i in range(4)]


class OptionsEnv(toys.ToyEnv):
    """Keeps the options of its last reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.options = options
        return super().reset(seed=seed, options=options)


# ---- errors of envs -----------------------------------------------------------------------


@pytest.mark.extended
def test_exception_arrives_with_its_class_and_other_envs_continue(open_pool: OpenPool) -> None:
    pool = open_pool([count(), functools.partial(toys.RaiseAtStep, 2), count()])
    reset(pool)
    pool.send(np.zeros(3, np.int64))
    pool.recv().raise_errors()
    pool.send(np.zeros(3, np.int64))
    batch = pool.recv()
    assert batch.env_ids.tolist() == [0, 1, 2] and batch.lengths.tolist()[::2] == [2, 2]
    with pytest.raises(ZeroDivisionError) as caught:
        batch.raise_errors()
    assert "faults.py" in str(caught.value.__cause__)
    pool.reset([1])
    pool.recv().raise_errors()


@pytest.mark.extended
def test_step_that_raised_is_not_counted_in_its_episode(open_pool: OpenPool) -> None:
    pool = open_pool(RaisesOnce, 1)
    reset(pool)
    batches = [pool.step(np.zeros(1, np.int64)).copy() for _ in range(3)]
    assert [batch.lengths.item() for batch in batches] == [1, 1, 2]
    assert [batch.returns.item() for batch in batches] == [1.0, 1.0, 2.0]


@pytest.mark.extended
def test_envs_that_fail_in_one_step_are_all_reported(open_pool: OpenPool) -> None:
    pool = open_pool(functools.partial(toys.RaiseAtStep, 1), 3)
    reset(pool)
    pool.send(np.zeros(3, np.int64))
    batch = pool.recv()
    assert sorted(batch.errors()) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError) as caught:
        batch.raise_errors()
    assert any("env 2" in note for note in caught.value.__notes__)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("fault", "error"),
    [(toys.RaiseWeirdError, toys.WeirdError), (toys.RaiseUnpicklableError, toys.UnpicklableError)],
)
def test_exception_that_pickle_refuses_arrives_as_its_own_class(fault: Any, error: Any, open_pool: OpenPool) -> None:
    pool = open_pool(functools.partial(fault, 1), 1)
    reset(pool)
    pool.send(np.zeros(1, np.int64))
    errors = pool.recv().errors()
    assert type(errors[0]) is error and str(errors[0]).startswith("toy env")
    assert getattr(errors[0], "code", 7) == 7
    assert "faults.py" in str(errors[0].__cause__)


@pytest.mark.extended
def test_info_that_cannot_be_pickled_is_an_error_of_its_env_in_a_worker(open_pool: OpenPool) -> None:
    pool = open_pool([functools.partial(toys.UnpicklableInfo, 1), count()])
    reset(pool)
    pool.send(np.zeros(2, np.int64))
    batch = pool.recv()
    if not isinstance(pool, SerialPool):
        assert list(batch.errors()) == [0]
        with pytest.raises(TypeError, match="^info/lock: .*cannot pickle '_thread.lock' object"):
            batch.raise_errors()
    else:
        assert not batch.errors() and isinstance(batch.infos()[0]["lock"], type(threading.Lock()))


@pytest.mark.extended
@pytest.mark.parametrize("open_pool", WORKERS, indirect=True)
def test_info_that_cannot_be_unpickled_is_an_error_of_its_env(open_pool: OpenPool) -> None:
    pool = open_pool([count(), BrokenPickleInfo, count()])
    reset(pool)
    for round_ in range(4):
        pool.send(np.zeros(3, np.int64))
        batch = pool.recv()
        assert batch.lengths.tolist() == [round_ + 1] * 3
        assert list(batch.errors()) == ([1] if round_ == 1 else [])
        assert (batch.row_flags & RowFlag.ERROR != 0).tolist() == [False, round_ == 1, False]
        assert batch.infos()[2]["steps"] == round_ + 1
        if round_ == 1:
            with pytest.raises(EnvError, match="answer of env 1 .*LookupError: nothing of that kind") as caught:
                batch.raise_errors()
            assert "_refuse_to_be_made" in str(caught.value.__cause__)


@pytest.mark.extended
@pytest.mark.parametrize("open_pool", WORKERS, indirect=True)
def test_call_result_that_cannot_be_unpickled_is_an_error_of_its_env(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2)
    reset(pool)
    with pytest.raises(EnvError, match="answer of env 1 .*LookupError") as caught:
        pool.call_each([_length_of, _give_unreadable])
    assert caught.value.env_ids == (1,)
    assert pool.call(_length_of) == [10, 10]


def _length_of(env: Any) -> Any:
    return env.unwrapped.length


def _give_unreadable(env: Any) -> Any:
    return BrokenPickle()


@pytest.mark.parametrize("open_pool", IN_THIS_PROCESS, indirect=True)
def test_call_in_this_process_copies_function_and_value_but_shares_locks(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2)
    values = [1]

    def function(env: Any) -> Any:
        values.append(env.unwrapped.length)
        return values, threading.current_thread(), env

    (found, thread, env), (other, _, _) = pool.call(function)
    assert found == other == [1, 10] and found is not other and values == [1]
    assert thread is threading.current_thread() and env.unwrapped.length == 10 and env not in pool.envs


@pytest.mark.parametrize("open_pool", IN_THIS_PROCESS, indirect=True)
def test_pool_in_this_process_refers_to_an_action_only_until_its_step(open_pool: OpenPool) -> None:
    class Action:
        def __call__(self) -> None:
            """Callables are not copied."""

    pool = open_pool(count(), 1)
    reset(pool)
    action = Action()
    reference = weakref.ref(action)
    pool.send_objects([action], [0])
    pool.recv().raise_errors()
    del action
    assert reference() is None


def test_reset_that_raises_is_reported_with_its_row(open_pool: OpenPool) -> None:
    pool = open_pool([count(), functools.partial(toys.RaiseAtReset, 1)])
    pool.reset()
    assert list(pool.recv().errors()) == [1]


class RaisesInClose(toys.CountEnv):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def close(self) -> None:
        raise ValueError(self.text)


@pytest.mark.parametrize("threads", [1, 2])
def test_close_raises_the_first_of_several_errors(threads: int, open_pool: OpenPool) -> None:
    env_fns = [functools.partial(RaisesInClose, f"of env {env_id}") for env_id in range(2)]
    pool = open_pool(env_fns, num_workers=1, threads_per_worker=threads)
    with pytest.raises(ValueError, match="of env 0") as caught:
        pool.close()
    where = "" if isinstance(pool, SerialPool) or _steps_in_shards(pool) else " in worker 0"
    assert caught.value.__notes__ == [f"raised by close of env 0{where}"]


class Unspeakable(Exception):
    """Its repr fails."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class RaisesTheUnspeakable(toys.CountEnv):
    """Raises it at its second step, and when it is closed."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if result[0][0] > 1:
            raise Unspeakable
        return result

    def close(self) -> None:
        raise Unspeakable


def test_error_without_a_text_is_reported_and_its_worker_lives(open_pool: OpenPool) -> None:
    pool = open_pool([count(), RaisesTheUnspeakable], num_workers=1)
    reset(pool)
    actions = np.zeros(2, np.int64)
    assert not pool.step(actions).errors()
    error = pool.step(actions).errors()[1]
    assert isinstance(error, EnvError) and error.env_ids == (1,) and "Unspeakable" in str(error)
    assert not reset(pool).errors()
    if isinstance(pool, SerialPool):  # errors of its envs need not travel
        with pytest.raises(Unspeakable):
            pool.close()
    else:
        with pytest.raises(EnvError, match="close of env 1 raised"):
            pool.close()


def test_constructor_that_raises_closes_everything(open_pool: OpenPool) -> None:
    pool = open_pool([count(), toys.RaiseAtInit], start=False)
    with pytest.raises(Exception, match=r".+") as caught:
        pool.start()
    assert not isinstance(caught.value, StateError) and pool.closed


# ---- state --------------------------------------------------------------------------------


@pytest.mark.extended
def test_envs_accept_one_operation_at_a_time(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 3)
    pool.reset(ordered=False)
    with pytest.raises(StateError, match="env 0 still owes the answer to a reset; receive it first, or reset the env$"):
        pool.send(np.zeros(3, np.int64), ordered=False)
    with pytest.raises(StateError, match="env 1 still owes the answer to a reset; receive it first$"):
        pool.reset([1], ordered=False)
    pool.recv()
    with pytest.raises(StateError, match="named twice"):
        pool.send(np.zeros(2, np.int64), [1, 1], ordered=False)
    assert pool.outstanding() == 0


@pytest.mark.extended
def test_ordered_requests_exclude_others(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 3)
    reset(pool)
    pool.send(np.zeros(1, np.int64), [0], ordered=False)
    with pytest.raises(StateError, match="ordered"):
        pool.send(np.zeros(2, np.int64), [1, 2])
    pool.recv()
    pool.send(np.zeros(2, np.int64), [1, 2])
    assert pool.recv().env_ids.tolist() == [1, 2]


@pytest.mark.extended
def test_reset_supersedes_a_step(open_pool: OpenPool) -> None:
    pool = open_pool(count(50), 3)
    reset(pool)
    for _ in range(20):
        pool.send(np.zeros(3, np.int64), ordered=False)
        pool.reset([1], ordered=False)
        rows: dict[int, int] = {}
        while pool.outstanding():
            batch = pool.recv(min_count=1)
            rows.update(zip(batch.env_ids.tolist(), batch.lengths.tolist()))
        assert set(rows) == {0, 1, 2} and rows[1] == 0


@pytest.mark.extended
def test_ordered_reset_supersedes_all_steps(open_pool: OpenPool) -> None:
    pool = open_pool(count(50), 3)
    reset(pool)
    for _ in range(20):
        pool.send(np.zeros(3, np.int64))
        batch = reset(pool)
        assert batch.env_ids.tolist() == [0, 1, 2] and batch.lengths.tolist() == [0, 0, 0]


@pytest.mark.parametrize("env_ids", [[3], [-1], [], [0.5], "ab"])
def test_wrong_ids_are_refused(env_ids: Any, open_pool: OpenPool) -> None:
    pool = open_pool(count(), 3)
    reset(pool)
    with pytest.raises(ConfigError, match="env_id"):
        pool.send(np.zeros(len(env_ids), np.int64), env_ids)


@pytest.mark.extended
def test_reset_of_an_unknown_env_is_refused_by_pools_that_recover(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 3, failures=PoolFailurePolicy(on_failure="recover"))
    with pytest.raises(ConfigError, match=r"reset: env_id 3 is not in 0\.\.2"):
        pool.reset([3])


@pytest.mark.extended
@pytest.mark.parametrize("env_ids", [[3], [-1], [0, 3], [0.5]])
def test_wrong_ids_cancel_nothing(env_ids: Any, open_pool: OpenPool) -> None:
    pool = open_pool(count(), 3)
    pool.reset()
    with pytest.raises(ConfigError, match="env_id"):
        pool.cancel(env_ids)
    assert pool.outstanding() == 3
    assert pool.recv().env_ids.tolist() == [0, 1, 2]


@pytest.mark.extended
@pytest.mark.parametrize("key", ["seeds", "kwargs"])
@pytest.mark.parametrize("number", [2, 4])
def test_resets_need_one_seed_and_one_set_of_arguments_per_env(key: str, number: int, open_pool: OpenPool) -> None:
    pool = open_pool(count(), 3)
    value: Any = 7 if key == "seeds" else {}
    with pytest.raises(ConfigError, match=f"{key}: expected 3, one per env asked, got {number}"):
        pool.reset(**{key: [value] * number})
    with pytest.raises(ConfigError, match=f"{key}: expected 1"):
        pool.reset([1], **{key: [value] * number})
    assert pool.outstanding() == 0
    reset(pool, **{key: [value] * 3}).raise_errors()


@pytest.mark.extended
def test_seeds_are_integers(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 3)
    with pytest.raises(TypeError, match="integer"):
        pool.reset(seeds=[1.7, 2, 3])
    assert reset(pool, seeds=np.array([4, 5, 6], np.uint8)).seeds.tolist() == [4, 5, 6]


@pytest.mark.extended
def test_calls_need_one_function_per_env(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 3)
    reset(pool)
    with pytest.raises(ConfigError, match="functions: expected 3, one per env asked, got 1"):
        pool.call_each([_length_of])
    assert pool.call(_length_of) == [10] * 3


def test_step_ids_may_begin_at_any_number(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2)
    hub = hub_of(pool)
    hub.continue_from(2**40)
    pool.reset(seeds=[1, 2])
    assert pool.recv().step_ids.tolist() == [2**40, 2**40 + 1]
    with pytest.raises(ValueError, match="decrease"):
        hub.continue_from(2**40 + 1)
    hub.continue_from(2**50)
    pool.send(np.zeros(2, np.int64))
    assert pool.recv().step_ids.tolist() == [2**50, 2**50 + 1]


@pytest.mark.extended
def test_recv_refuses_a_count_that_cannot_arrive(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 3)
    with pytest.raises(StateError, match="no env owes an answer"):
        pool.recv()
    pool.reset()
    with pytest.raises(StateError, match=r"min_count 4 is not in 1\.\.3"):
        pool.recv(min_count=4)
    pool.recv()


@pytest.mark.extended
def test_use_before_start_and_after_close(open_pool: OpenPool) -> None:
    pool = open_pool(count(), start=False)
    with pytest.raises(StateError, match="start the pool first"):
        pool.reset()
    pool.start()
    with pytest.raises(StateError, match="started already"):
        pool.start()
    pool.close()
    pool.close()
    for use in (pool.reset, pool.recv, pool.start, lambda: pool.send([0] * 4), lambda: pool.call(str)):
        with pytest.raises(ClosedError):
            use()


@pytest.mark.extended
def test_call_from_another_thread_is_refused_while_one_waits(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2)
    caught: list[BaseException] = []

    def intrude() -> None:
        try:
            pool.recv()
        except BaseException as error:
            caught.append(error)

    with pool._lifecycle._lock:  # a call that waits has it
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
    assert isinstance(caught[0], StateError) and "thread" in str(caught[0])


@pytest.mark.extended
def test_forked_child_cannot_use_the_pool_and_its_exit_changes_nothing(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2)
    reset(pool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            pool.reset()
        except StateError:
            code = 0
        finally:
            pool.close()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    pool.send(np.zeros(2, np.int64))
    assert pool.recv().lengths.tolist() == [1, 1]


def test_pools_do_not_pickle(open_pool: OpenPool) -> None:
    with pytest.raises(TypeError):
        pickle.dumps(open_pool(count(), 1))


# ---- calls --------------------------------------------------------------------------------


@pytest.mark.extended
def test_calls_collected_later(open_pool: OpenPool) -> None:
    pool = open_pool(count(None), 3)
    reset(pool)
    pool.submit_calls([lambda env: env.num_resets] * 2, [2, 0])
    pool.send([0] * 3)  # calls and rows do not disturb each other
    assert pool.recv().lengths.tolist() == [1, 1, 1]
    with pytest.raises(StateError, match="call collect_calls first"):
        pool.submit_calls([str] * 3)
    assert pool.collect_calls() == [1, 1]
    with pytest.raises(StateError, match="no calls are under way"):
        pool.collect_calls()
    pool.submit_calls([lambda env: env.no_such] * 3)
    with pytest.raises(AttributeError):
        pool.collect_calls()
    assert pool.call(lambda env: env.num_steps) == [1, 1, 1]


@pytest.mark.extended
def test_calls_run_where_the_envs_are(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 4)
    reset(pool)
    assert pool.call(lambda env: env.num_resets) == [1, 1, 1, 1]
    assert pool.call(lambda env: env.num_resets, [2, 0]) == [1, 1]
    with pytest.raises(AttributeError, match="no_such") as caught:
        pool.call(lambda env: env.no_such)
    assert caught.value.__cause__ is not None
    assert pool.call(lambda env: env.num_steps) == [0] * 4


@pytest.mark.extended
def test_call_waits_for_the_running_step_whose_row_stays(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 3)
    reset(pool)
    pool.send(np.zeros(3, np.int64))
    assert pool.call(lambda env: env.elapsed_steps) in ([1, 1, 1], [0, 0, 0])
    assert pool.recv().lengths.tolist() == [1, 1, 1]


@pytest.mark.native
@pytest.mark.skipif(load() is None, reason="the extension was not built")
@pytest.mark.parametrize("engine", [SerialPool, ProcessPool])
def test_calls_beyond_the_queue_are_all_refused(engine: Any) -> None:
    """The fallback has no limit: its queue is a list."""
    with engine([count(None)] * 2, PoolOptions(num_workers=2)) as pool:
        pool.start()
        reset(pool)
        with pytest.raises(StateError, match="call: too many calls of env 1 are waiting; wait for their answers first"):
            pool.submit_calls([lambda env: env.step(0)] * 100, [1] * 100)
        assert pool.call(lambda env: env.num_steps) == [0, 0]  # the first call was not made either


@pytest.mark.extended
@pytest.mark.native
@pytest.mark.skipif(load() is None, reason="the extension was not built")
@pytest.mark.parametrize("ordered", [False, True])
def test_cancelled_requests_that_pile_up_are_refused(ordered: bool) -> None:
    """They pile up at a worker that is stopped: in its queue, and where they were given rows, in the ring."""
    match = "all batch buffers are in use" if ordered else "queue of env 0's worker is full of commands that were canc"
    with ProcessPool([count(None)] * 2, PoolOptions(num_workers=2)) as pool:
        pool.start()
        reset(pool)
        with stopped([pool.worker_pids[0]]):
            with pytest.raises(StateError, match=f"send: .*{match}.*; restart"):
                for _ in range(1000):
                    pool.send([0], [0], ordered=ordered)
                    pool.cancel([0])
            if not ordered:
                pool.send([0], [1], ordered=False)  # the other one is not concerned
                assert pool.recv().lengths.tolist() == [1]
        wait_until(lambda: hub_of(pool).pending(0)[0] == Op.NONE)  # it drops cancelled commands
        reset(pool)
        assert pool.call(lambda env: env.num_resets)[1] == 2
        pool.send([0, 0])
        assert pool.recv().lengths.tolist() == [1, 1]


# ---- spaces and bad input -----------------------------------------------------------------


OTHER_SPACES = {
    "observation_space": functools.partial(toys.SpaceEnv, spaces.Box(0, 1, (2,), np.float32)),
    "action_space": functools.partial(toys.SpaceEnv, None, spaces.Discrete(7)),
}


@pytest.mark.extended
@pytest.mark.parametrize(("name", "other"), OTHER_SPACES.items(), ids=OTHER_SPACES)
def test_envs_with_other_spaces_are_refused(name: str, other: Any, open_pool: OpenPool) -> None:
    for odd in (1, 3):
        env_fns: list[Any] = [toys.ToyEnv] * 4
        env_fns[odd] = other
        pool = open_pool(env_fns, start=False)
        with pytest.raises(SpaceError, match=f"env {odd}: {name}") as caught:
            pool.start()
        assert caught.value.path == name


@pytest.mark.extended
def test_first_env_with_other_spaces_is_named(open_pool: OpenPool) -> None:
    pool = open_pool([toys.ToyEnv, *OTHER_SPACES.values()], num_workers=1, start=False)
    with pytest.raises(SpaceError, match="env 1: observation_space"):
        pool.start()


@pytest.mark.parametrize(
    ("env_fns", "options", "text"),
    [
        ([], {}, "empty"),
        ([3], {}, r"env_fns\[0\]: expected a function"),
        (5, {}, "expected a list"),
        ([toys.ToyEnv], {"num_workers": 0}, "num_workers"),
        ([toys.ToyEnv], {"depth": 1}, "depth"),
        ([toys.ToyEnv], {"threads_per_worker": 0}, "threads_per_worker"),
        ([toys.ToyEnv], {"context": "thread"}, "context: expected one of"),
        ([toys.ToyEnv], {"build": "threads"}, "build: expected one of"),
        ([toys.ToyEnv], {"infos": "all"}, "infos: expected one of .*, got 'all'"),
        ([toys.ToyEnv], {"spin": -1.0}, "spin"),
        ([toys.ToyEnv], {"strict": "no"}, "strict: expected True or False"),
    ],
)
@pytest.mark.parametrize("engine", [SerialPool, ProcessPool])
def test_constructor_refuses_bad_arguments(engine: Any, env_fns: Any, options: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        engine(env_fns, PoolOptions(**options))


@pytest.mark.extended
@pytest.mark.parametrize("env_id", [-1, 3, 99])
def test_unknown_env_is_named_while_steps_are_outstanding(env_id: int, open_pool: OpenPool) -> None:
    pool = open_pool([toys.ToyEnv] * 3)
    reset(pool)
    pool.send(np.zeros(3, np.int64))
    for ask in (pool.reset, pool.cancel):
        with pytest.raises(ConfigError, match=f"env_id {env_id} is not in 0..2"):
            ask([env_id])
    assert pool.recv().env_ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("engine", [SerialPool, ProcessPool])
def test_options_may_have_numpy_types(engine: Any) -> None:
    failures = PoolFailurePolicy(max_restarts=np.int64(3), recover_hangs=np.True_)
    options = PoolOptions(num_workers=np.int64(1), depth=np.int8(4), debug=np.False_, failures=failures)
    with engine([toys.ToyEnv], options) as pool:
        assert (pool.options.num_workers, pool.options.depth, pool.options.failures.max_restarts) == (1, 4, 3)
        assert type(pool.options.depth) is int and pool.options.debug is False


@pytest.mark.extended
def test_global_generators_of_the_caller_are_untouched(open_pool: OpenPool) -> None:
    random.seed(3)
    np.random.seed(4)
    before = random.getstate(), np.random.get_state()[1].tolist()
    pool = open_pool(count(), 2)
    reset(pool)
    pool.close()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.extended
@pytest.mark.parametrize("open_pool", WORKERS, indirect=True)
def test_closed_pool_frees_its_memory_without_a_garbage_collection(open_pool: OpenPool) -> None:
    gc.disable()
    try:
        pool = open_pool(toys.ToyEnv, 2)
        reset(pool, seeds=[0, 1])
        memory = weakref.ref(opened_envs(pool).memory)
        pool.close()
        assert memory() is None
    finally:
        gc.enable()


@pytest.mark.extended
def test_close_from_another_thread_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive that would wait for ever gets ClosedError; the pool is closed when it is out."""
    pool = ProcessPool([functools.partial(toys.HangAtStep, 1)], PoolOptions(limits=Limits(close=0.2)))
    pool.start()
    pool.reset()
    pool.recv()
    pool.send(np.zeros(1, np.int64))
    closer = threading.Thread(target=pool.close)

    def close_soon(*args: Any) -> Any:
        monkeypatch.undo()
        closer.start()
        return hub_of(pool).recv(*args)

    monkeypatch.setattr(hub_of(pool), "recv", close_soon)
    with pytest.raises(ClosedError):
        pool.recv()
    closer.join()
    assert pool.closed


ENDLESS = [pytest.param(value, id=f"{value:g}") for value in (math.inf, threading.TIMEOUT_MAX, 1e9)]


@pytest.mark.extended
@pytest.mark.parametrize("limit", ENDLESS)
def test_limit_of_infinity_is_no_limit(limit: float, open_pool: OpenPool) -> None:
    limits = Limits(construct=limit, reset=limit, step=limit, call=limit, close=limit)
    policy = PoolFailurePolicy(on_failure="recover", recovery_timeout=limit, restart_window=limit)
    pool = open_pool(count(), 2, limits=limits, failures=policy)
    pool.reset()
    assert len(pool.recv(timeout=limit)) == 2
    pool.send(np.zeros(2, np.int64))
    assert pool.recv().lengths.tolist() == [1, 1]
    assert pool.call(lambda env: env.num_steps, timeout=limit) == [1, 1]
    if isinstance(pool, ProcessPool):
        os.kill(pool.worker_pids[0], signal.SIGKILL)
    batch = pool.step(np.zeros(2, np.int64))
    assert batch.lengths.tolist() == [2, 2] and not batch.truncated.any()
    if isinstance(pool, ProcessPool):
        assert pool.statistics()["replay_seconds"] < 60
    pool.close()


@pytest.mark.extended
@pytest.mark.parametrize("limit", ENDLESS)
def test_close_with_a_limit_of_infinity(limit: float, open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2)
    pool.close(limit)
    assert pool.closed


@pytest.mark.extended
def test_timeout_in_the_past_counts_as_zero(open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2)
    pool.reset()
    with contextlib.suppress(WorkerTimeoutError):  # unless the answers are there already
        pool.recv(timeout=-math.inf)
    pool.close(-math.inf)
    assert pool.closed


@pytest.mark.extended
@pytest.mark.parametrize("timeout", [math.nan, "1"])
def test_timeout_that_is_not_a_number_changes_nothing(timeout: Any, open_pool: OpenPool) -> None:
    pool = open_pool(count(), 2)
    pool.reset()
    pool.submit_calls([lambda env: env.num_resets] * 2)
    for wait in (pool.collect_calls, pool.close, lambda timeout: pool.recv(timeout=timeout)):
        with pytest.raises(ConfigError, match=f"timeout: expected seconds or None, got {timeout!r}"):
            wait(timeout)
    with pytest.raises(ConfigError, match="timeout"):
        pool.call(str, timeout=timeout)
    assert len(pool.recv()) == 2 and pool.collect_calls() == [1, 1] and not pool.closed


@pytest.mark.parametrize("asks", ["step", "call"])
def test_limit_set_later_is_polled_as_often(asks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, the pool slept on as it does without limits, and a limit of a moment took ten seconds."""
    monkeypatch.setattr(watchdog, "_LAZY_POLL_NS", 60 * 10**9)
    with ProcessPool([functools.partial(toys.HangAtStep, 1)], PoolOptions()) as pool:
        pool.start()
        reset(pool)
        pool.set_limits(Limits(step=0.1, call=0.1))
        began = now_ns()
        with pytest.raises(WorkerTimeoutError, match=f"did not finish {asks} of env 0"):
            pool.step(np.zeros(1, np.int64)) if asks == "step" else pool.call(lambda env: env.step(0))
        assert now_ns() - began < 30 * 10**9
        pool.close(0)


@pytest.mark.parametrize("engine", [SerialPool, ProcessPool])
def test_limits_may_be_set_before_the_start_and_after_the_end(engine: type[Pool]) -> None:
    pool = engine([functools.partial(toys.HangAtStep, 1)], PoolOptions())
    with pytest.raises(ConfigError, match="step"):
        pool.set_limits(Limits(step=-1.0))
    assert pool.options.limits == Limits()
    pool.set_limits(Limits(step=0.1))
    with pool:
        pool.start()
        if engine is ProcessPool:
            reset(pool)
            with pytest.raises(WorkerTimeoutError, match="did not finish step"):
                pool.step(np.zeros(1, np.int64))
        pool.close(0)
        pool.set_limits(Limits())


@pytest.mark.extended
def test_limit_set_later_gives_recoveries_the_same_time() -> None:
    options = PoolOptions(num_workers=1, failures=PoolFailurePolicy(on_failure="recover"))
    with ProcessPool([toys.CountEnv], options) as pool:
        pool.start()
        pool.set_limits(Limits(step=100.0))
        assert engine_of(pool).recovery is not None
        assert engine_of(pool).recovery.plan({0: RestoreJob()}, [])[0].seconds == 1000.0


@pytest.mark.extended
def test_threads_of_one_worker_let_sleeping_envs_overlap() -> None:
    """Sixteen envs in one worker, each of which sleeps until all are asleep."""
    pool = ProcessPool([Meets] * 16, PoolOptions(num_workers=1, threads_per_worker=16))
    with pool:
        pool.start()
        pool.reset()
        pool.recv()
        for _ in range(3):
            pool.send(np.zeros(16, np.int64))
            pool.recv().raise_errors()
        assert len(pool.worker_pids) == 1


class Meets(toys.NullEnv):
    """Waits in each step for fifteen others of its process."""

    meeting = threading.Barrier(16, timeout=30.0)

    def step(self, action: Any) -> Any:
        self.meeting.wait()
        return super().step(action)


def sleeps_in_wait(pid: int) -> bool:
    """Return whether a process sleeps in a wait of a pool, by the kernel's function if that is visible."""
    place = Path(f"/proc/{pid}/wchan").read_text()
    if place in ("", "0"):
        return psutil.Process(pid).status() == psutil.STATUS_SLEEPING
    return "poll" in place


STOPPED_PARENT = """
import os, signal, sys, time, numpy as np
from vecenv.core.options import Limits, PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.envs import toys

moment, limits = sys.argv[1], Limits(**eval(sys.argv[2]))

class Stops(toys.CountEnv):
    def __init__(self):
        super().__init__()
        self.reach("construct")
    def step(self, action):
        self.reach("step")
        return super().step(action)
    def look(self):
        self.reach("call")
    def close(self):
        self.reach("close")
        os.write(1, b"closed\\n")
    def reach(self, here, moment=moment):
        if here == moment:
            os.write(1, b"waiting %d\\n" % os.getpid())
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.3)

pool = ProcessPool([Stops], PoolOptions(limits=limits, worker_output="all"))
pool.start(); pool.reset(); pool.recv()
timeout = None if limits.has_any() else 1.0
pool.send(np.zeros(1, np.int64))
pool.recv(timeout=timeout)
pool.call(Stops.look, timeout=timeout)
pool.close()
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("moment", "limits"),
    [
        ("construct", {"construct": 1.0}), ("step", {"step": 1.0}), ("call", {"call": 1.0}), ("close", {"close": 1.0}),
        ("step", {}), ("call", {}),
    ],
)  # fmt: skip
def test_stopped_parent_does_not_blame_its_workers(moment: str, limits: dict[str, float]) -> None:
    """Both stopped for longer than the limit, the callers' own included: on waking it is extended by the gap."""
    import subprocess
    import sys

    program = [sys.executable, "-c", STOPPED_PARENT, moment, repr(limits)]
    parent = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline().split()[1])
    while not sleeps_in_wait(parent.pid):
        os.sched_yield()  # it looks at its deadlines before it sleeps, and so knows later how long it was away
    os.kill(parent.pid, signal.SIGSTOP)
    threading.Event().wait(1.3)  # the test depends on the length of the stop
    os.kill(parent.pid, signal.SIGCONT)
    threading.Event().wait(0.2)  # the parent checks its workers before this one continues
    os.kill(worker, signal.SIGCONT)
    out, _ = parent.communicate(timeout=30)
    assert (out, parent.returncode) == ("closed\n", 0)


def test_answers_to_calls_that_come_while_the_journal_is_pruned_are_kept() -> None:
    """The answer of a call was once lost while restore points were gathered before a prune."""
    options = PoolOptions(num_workers=1, failures=PoolFailurePolicy(on_failure="recover"))
    with ProcessPool([toys.CountEnv], options) as pool:
        pool.start()
        gather = engine_of(pool).journal.gather_restore_points

        def late_gather() -> None:
            hub_of(pool).wait(now_ns() + 10**9)  # the answer is there then
            gather()

        engine_of(pool).journal.gather_restore_points = late_gather
        for _ in range(8):  # one of these requests is followed by a prune
            assert pool.call(lambda env: 7, timeout=20.0) == [7]
