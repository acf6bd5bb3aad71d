"""Resume: a pool continues the episodes of another pool whose workers are lost."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.core.recovery.lost_pools import lose
from tests.faults.traces import Actions, Traces, kill, wait_until
from tests.inside import engine_of, opened_envs, waiter_of
from tests.spaces import FIXED_SPACES
from vecenv.core.layout.commands import Commands, Effect, RestorePoint
from vecenv.core.layout.flags import Autoreset, CommandFlag, Op
from vecenv.core.layout.messages import Payload, Reply, dump
from vecenv.core.layout.native import load
from vecenv.core.options import PoolFailurePolicy, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.batched import adapt_batched
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.envs.toys import CountEnv, KeepsAction, NoisyGlobal, SpaceEnv, ToyEnv
from vecenv.errors import StateError, WorkerDiedError

NEEDS_C = pytest.mark.skipif(load() is None, reason="the extension was not built")
IMPLEMENTATIONS = [pytest.param("native", marks=NEEDS_C), pytest.param("python", marks=pytest.mark.extended)]
RECOVERING = PoolFailurePolicy(on_failure="recover")

OpenPool = Callable[..., Any]


@pytest.fixture
def open_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPool]:
    """Make and start pools of worker processes that recover; all are closed after the test."""
    pools: list[Pool] = []

    def make(env_fns: list[Any], implementation: str | None = None, **others: Any) -> ProcessPool:
        if implementation is not None:
            monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
        names = [name for name in others if name in PoolOptions.__dataclass_fields__]
        options = {"num_workers": 2, "failures": RECOVERING, **{name: others.pop(name) for name in names}}
        pool = ProcessPool(
            env_fns, PoolOptions(**options), **{"adapt": adapt_and_build, "snapshotter": SNAPSHOTTER, **others}
        )
        pools.append(pool)
        pool.start()
        if "resume" in others:
            pool.send_commands(others["resume"].queued)
            pool.continue_from(others["resume"].next_step_id)
        return pool

    yield make
    for pool in pools:
        pool.close()


class Run:
    """The answers of one stream of requests, which several pools may serve one after the other.

    Attributes:
        traces: all answers by env.
        step_ids: of the answers, by env.
        seconds: durations of the episodes that have ended.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.num_envs = pool.num_envs
        self.actions = Actions(pool.action_space, pool.num_envs)
        self.traces = Traces([[] for _ in range(pool.num_envs)], [[] for _ in range(pool.num_envs)])
        self.step_ids: list[list[int]] = [[] for _ in range(pool.num_envs)]
        self.seconds: list[float] = []

    def reset(self, seeds: list[int]) -> None:
        self.pool.reset(seeds=seeds)
        self.receive()

    def receive(self) -> None:
        batch = self.pool.recv()
        for env_id, step_id in zip(self.traces.take(batch), batch.step_ids.tolist()):
            self.step_ids[env_id].append(step_id)
        ended = batch.terminated | batch.truncated
        self.seconds += batch.rows.column("seconds")[ended].tolist()

    def send(self, env_ids: list[int]) -> None:
        self.pool.send(self.actions.next(env_ids), env_ids, ordered=False)

    def step(self, rounds: int) -> None:
        for _ in range(rounds):
            self.send(list(range(self.num_envs)))
            self.receive()


def mark(env: Any, value: int) -> int:
    """Change an env for longer than an episode."""
    env.unwrapped.action_sum_offset = getattr(env.unwrapped, "action_sum_offset", 0) + value
    return int(env.unwrapped.action_sum_offset)


class Marked(CountEnv):
    """Its observations contain the sum of the marks that it was given."""

    action_sum_offset = 0

    def observe(self) -> Any:
        obs = super().observe()
        obs[2] += self.action_sum_offset
        return obs


ENVS = [
    functools.partial(CountEnv, 5),
    functools.partial(CountEnv, 7, truncate=True),
    functools.partial(Marked, 6),
    functools.partial(NoisyGlobal, 4),
    functools.partial(ToyEnv, None),
]


def begin(run: Run) -> None:
    """Begin episodes, and get into the middle of the second or third one of most envs."""
    run.reset([11, 12, 13, 14, 15])
    run.pool.call(functools.partial(mark, value=3), [2], name="mark")
    run.step(8)


def ask(run: Run) -> None:
    """Leave steps, a reset with a seed and a call without an answer."""
    run.send([0, 3, 4])
    run.pool.reset([1], seeds=[99], kwargs=[{"options": {"level": 1}}], ordered=False)
    run.pool.submit_calls([functools.partial(mark, value=4)], [2], name="mark")
    run.send([2])


def finish(run: Run) -> list[Any]:
    results = run.pool.collect_calls()
    run.receive()
    run.step(9)
    return results


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "mode",
    [Autoreset.NEXT_STEP, pytest.param(Autoreset.SAME_STEP, marks=pytest.mark.extended)],
    ids=lambda mode: mode.name,
)
def test_resumed_pool_gives_the_same_rows(open_pool: OpenPool, implementation: str, mode: Autoreset) -> None:
    options = {"autoreset": mode, "final_obs": mode == Autoreset.SAME_STEP}
    with SerialPool(ENVS, PoolOptions(**options), adapt=adapt_and_build) as pool:  # type: ignore[arg-type]
        pool.start()
        through = Run(pool)
        begin(through)
        ask(through)
        assert finish(through) == [7]
    began = time.monotonic()
    run = Run(open_pool(ENVS, implementation, **options))
    begin(run)
    for worker_id in range(2):
        kill(run.pool, worker_id)
    ask(run)  # the workers are dead, so no request is answered
    run.pool = open_pool(ENVS, implementation, resume=lose(run.pool), num_workers=3, **options)
    assert run.pool.outstanding() == 5
    assert finish(run) == [7]
    assert run.traces.rows == through.traces.rows and run.step_ids == through.step_ids
    assert all(0 < seconds <= time.monotonic() - began for seconds in run.seconds) and len(run.seconds) > 9
    assert all(marks and {kind for _, kind in marks} <= {"replayed", "unproven"} for marks in run.traces.marks)


@pytest.mark.extended
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_resumed_pool_continues_digests(open_pool: OpenPool, implementation: str) -> None:
    envs = [functools.partial(CountEnv, length) for length in (3, 5, None)]
    records = []
    for is_lost in (False, True):
        run = Run(open_pool(envs, implementation, snapshotter=None))
        run.reset([1, 2, 3])
        run.step(7)
        if is_lost:
            run.pool = open_pool(envs, implementation, snapshotter=None, resume=lose(run.pool))
        run.step(4)
        found = opened_envs(run.pool).plan.records(opened_envs(run.pool).memory)
        newest = found[np.arange(3), found["step_id"].argmax(axis=1)]
        records.append(
            [newest[name].tolist() for name in ("step_id", "digest", "episode", "length", "seed", "is_over")]
        )
    assert records[0] == records[1]


@pytest.mark.extended
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_resumed_pool_restores_its_own_workers(open_pool: OpenPool, implementation: str) -> None:
    """The second pool may lose workers before and after their envs are restored, and may be lost itself."""
    with SerialPool(ENVS, adapt=adapt_and_build) as pool:
        pool.start()
        through = Run(pool)
        begin(through)
        ask(through)
        finish(through)
        through.step(6)
    run = Run(open_pool(ENVS, implementation))
    begin(run)
    for worker_id in range(2):
        kill(run.pool, worker_id)
    ask(run)
    run.pool = open_pool(ENVS, implementation, resume=lose(run.pool))
    run.pool = open_pool(ENVS, implementation, resume=lose(run.pool))
    kill(run.pool, 0)
    finish(run)
    kill(run.pool, 1)
    run.step(3)
    run.pool = open_pool(ENVS, implementation, resume=lose(run.pool))
    run.step(3)
    assert run.traces.rows == through.traces.rows and run.step_ids == through.step_ids


@pytest.mark.extended
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rows_that_were_not_received_are_given_again(open_pool: OpenPool, implementation: str) -> None:
    envs = [functools.partial(CountEnv, 4)] * 3
    with SerialPool(envs, adapt=adapt_and_build) as pool:
        pool.start()
        through = Run(pool)
        through.reset([1, 2, 3])
        through.step(9)
    run = Run(open_pool(envs, implementation))
    run.reset([1, 2, 3])
    run.step(4)
    run.send([0, 1, 2])
    records = opened_envs(run.pool).plan.records(opened_envs(run.pool).memory)
    wait_until(lambda: bool((records["step_id"].max(axis=1) > 15).all()))  # all have answered
    run.pool = open_pool(envs, implementation, resume=lose(run.pool))
    run.receive()
    run.step(4)
    assert run.traces.rows == through.traces.rows and run.step_ids == through.step_ids


@pytest.mark.extended
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_resumed_batched_envs(open_pool: OpenPool, implementation: str) -> None:
    inner = [functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=6)] * 2
    envs = [functools.partial(SyncVectorEnv, inner)] * 2
    with SerialPool(envs, adapt=adapt_batched) as pool:
        pool.start()
        through = Run(pool)
        through.reset([1, 2])
        through.step(12)
    run = Run(open_pool(envs, implementation, adapt=adapt_batched))
    run.reset([1, 2])
    run.step(8)
    for worker_id in range(2):
        kill(run.pool, worker_id)
    run.send([0, 1])
    run.pool = open_pool(envs, implementation, adapt=adapt_batched, resume=lose(run.pool))
    run.receive()
    run.step(3)
    assert run.traces.rows == through.traces.rows and run.step_ids == through.step_ids


@pytest.mark.extended
def test_resumed_actions_with_payload(open_pool: OpenPool) -> None:
    envs = [functools.partial(KeepsAction, length=5)] * 2
    pool = open_pool(envs)
    pool.reset(seeds=[1, 2])
    pool.recv()
    pool.send_objects([1, np.int64(0)], [0, 1])
    pool.recv()
    for worker_id in range(2):
        kill(pool, worker_id)
    pool.send_objects([np.int64(1), 1], [0, 1])
    pool = open_pool(envs, resume=lose(pool))
    batch = pool.recv()
    order = batch.env_ids.tolist()
    types = [batch.infos()[order.index(env_id)]["action_type"] for env_id in (0, 1)]
    assert types == ["int64", "int"]
    assert [batch.obs[order.index(env_id)][:2].tolist() for env_id in (0, 1)] == [[2, 2], [2, 1]]


@pytest.mark.extended
def test_pool_lost_before_its_first_reset(open_pool: OpenPool) -> None:
    pool = open_pool(ENVS)
    pool.call(functools.partial(mark, value=5), [2], name="mark")
    pool = open_pool(ENVS, resume=lose(pool))
    with pytest.raises(StateError, match="never reset"):
        pool.send(np.zeros(5, np.int64))
    pool.reset(seeds=range(5))
    batch = pool.recv()
    assert batch.obs[2, 2] == 2 + 5 and batch.step_ids.tolist() == [2, 3, 4, 5, 6]
    assert [info.get("recovered") for info in batch.infos()] == [None, None, "replayed", None, None]


@pytest.mark.extended
def test_episode_without_history_ends_truncated(open_pool: OpenPool) -> None:
    policy = PoolFailurePolicy(on_failure="recover", max_log_bytes=1)
    pool = open_pool(ENVS[:2], failures=policy)
    pool.reset(seeds=[1, 2])
    pool.recv()
    pool.send(np.zeros(2, np.int64))
    last = pool.recv().obs.copy()
    pool = open_pool(ENVS[:2], resume=lose(pool))
    pool.send(np.zeros(2, np.int64))
    batch = pool.recv()
    assert batch.truncated.all() and np.array_equal(batch.obs, last)
    assert [info["recovered"] for info in batch.infos()] == ["truncated"] * 2
    kill(pool, 0)
    pool.send(np.zeros(2, np.int64))
    batch = pool.recv()
    assert batch.is_autoreset.all() and [info["recovered"] for info in batch.infos()] == ["restarted"] * 2


# ---- a part of the envs of another pool ----------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_first_env_id_decides_global_random_values(open_pool: OpenPool, implementation: str) -> None:
    envs = [functools.partial(NoisyGlobal, 4)] * 5
    with SerialPool(envs, adapt=adapt_and_build) as pool:
        pool.start()
        through = Run(pool)
        through.reset([1, 2, 3, 4, 5])
        through.step(9)
    run = Run(open_pool(envs[2:], implementation, first_env_id=2))
    run.actions.spaces = Actions(run.pool.action_space, 5).spaces[2:]
    run.reset([3, 4, 5])
    run.step(5)
    kill(run.pool, 1)
    run.step(4)
    assert run.traces.rows == through.traces.rows[2:]


@pytest.mark.extended
def test_first_env_id_in_messages(open_pool: OpenPool) -> None:
    pool = open_pool(ENVS[:3], failures=PoolFailurePolicy(), first_env_id=40)
    pool.reset(seeds=[1, 2, 3])
    pool.recv()
    kill(pool, 0)
    pool.send(np.zeros(3, np.int64))
    with pytest.raises(WorkerDiedError, match=r"worker 0 \(envs 40-41\) died during step of env 40") as caught:
        pool.recv()
    assert caught.value.env_ids == (0,)


class Reports:
    """A listener that keeps all reports."""

    def __init__(self) -> None:
        self.points: list[tuple[int, RestorePoint]] = []
        self.outcomes: list[tuple[int, str]] = []

    def __call__(self, reply: Reply, is_answered: bool) -> None:
        if reply.snapshot is not None:
            self.points.append((reply.env_id, RestorePoint(reply.step_id, *reply.snapshot)))
        if reply.outcome is not None:
            self.outcomes.append((reply.env_id, reply.outcome.kind))


@pytest.mark.extended
def test_listener_receives_restore_points_and_outcomes(open_pool: OpenPool) -> None:
    reports = Reports()
    pool = open_pool([functools.partial(NoisyGlobal, 4)] * 2, listener=reports)
    pool.reset()
    pool.recv()
    for _ in range(6):
        pool.send(np.zeros(2, np.int64))
        pool.recv()
    waiter_of(pool).inbox.poll()
    assert [env_id for env_id, _ in reports.points].count(0) >= 1 and not reports.outcomes
    env_id, newest = reports.points[-1]
    assert engine_of(pool).journal.history(env_id, ()).attempts[0].restore_point == newest and newest.state
    kill(pool, 0)
    pool.send(np.zeros(2, np.int64))
    pool.recv()
    assert [env_id for env_id, _ in reports.outcomes] == [0]


@pytest.mark.extended
def test_commands_of_another_pool_draw_no_seeds(open_pool: OpenPool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pool = open_pool([CountEnv] * 2)
    ids = np.arange(2)
    resets = Commands.of(Op.RESET, ids)
    resets.number(1)
    pool.send_commands(resets)
    assert pool.recv().seeds.tolist() == [-1, -1] and "seed" not in caplog.text
    pool.send_leaves((np.array([1, 0]),))
    assert pool.recv().step_ids.tolist() == [3, 4]
    pool.continue_from(11)
    pool.send_leaves((np.array([1]),), np.array([1]), ordered=False)
    resets = Commands.of(Op.RESET, ids, flags=CommandFlag.SEED, arguments=[7, 8], effects=Effect.SEEDS)
    resets.table["step_id"] = [14, 22]
    pool.send_commands(resets)
    batch = pool.recv(env_ids=[0, 1])
    assert batch.seeds.tolist() == [7, 8] and batch.step_ids.tolist() == [14, 22]
    payload = dump(Payload(function=functools.partial(mark, value=2)))
    calls = Commands.of(Op.CALL, ids[1:], effects=Effect.LASTS, key="mark", payloads=[payload])
    calls.number(23)
    pool.send_commands(calls)
    assert pool.collect_calls() == [2]
    kill(pool, 0)
    pool.send_leaves((np.array([1, 1]),))
    assert pool.recv().obs[:, 2].tolist() == [7, 8]
    assert [call.name for call in engine_of(pool).journal.history(1, ()).lasting_calls] == ["mark"]


@pytest.mark.extended
def test_leaves_of_nested_actions(open_pool: OpenPool) -> None:
    space = FIXED_SPACES["dict_nested"]
    envs = [functools.partial(SpaceEnv, space, space)] * 2
    pool = open_pool(envs)
    pool.reset(seeds=[1, 2])
    pool.recv()
    actions = Actions(space, 2).next([0, 1])
    pool.send_leaves(pool.action_spec.flatten_batch(actions, 2))
    assert pool.recv().rewards.tolist() == [1, 1]
