"""Receive the rows of particular envs while others are under way: the contract of every pool, and random programs."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contracts.test_pool import ENGINES, WORKERS
from tests.faults.traces import kill, recovering_pool
from tests.inside import hub_of
from vecenv.core.layout.flags import Autoreset, RowFlag
from vecenv.core.layout.native import load
from vecenv.core.options import Limits, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.serial import SerialPool
from vecenv.envs import toys
from vecenv.envs.adapt import adapt_and_build
from vecenv.errors import ConfigError, StateError, WorkerDiedError, WorkerTimeoutError, WrongTypeError

OpenPool = Callable[..., Pool]


def open_pools(params: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPool]:
    engine, implementation = params
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    pools: list[Pool] = []

    def make(env_fns: list[Callable[[], Any]], **options: Any) -> Pool:
        pool: Pool = engine(env_fns, PoolOptions(**options))
        pools.append(pool)
        pool.start()
        pool.reset(seeds=range(len(env_fns)))
        pool.recv()
        return pool

    yield make
    for pool in pools:
        pool.close()
    pools.clear()


@pytest.fixture(params=ENGINES)
def open_pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPool]:
    """Make pools of one engine whose envs have been reset; all are closed after the test."""
    yield from open_pools(request.param, monkeypatch)


@pytest.fixture(params=WORKERS)
def open_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPool]:
    """Open pools with worker processes."""
    yield from open_pools(request.param, monkeypatch)


class GateEnv(toys.CountEnv):
    """Waits in a step with action 1 until a byte is in its FIFO."""

    def __init__(self, gate: Path) -> None:
        super().__init__(1000)
        self.gate = gate

    def step(self, action: Any) -> Any:
        if action == 1:
            with self.gate.open("rb", 0) as gate:
                gate.read(1)
        return super().step(action)


def make_gate(path: Path) -> Path:
    os.mkfifo(path)
    return path


def open_gate(path: Path) -> None:
    """Let one step of the env pass; returns once the env is in that step."""
    with path.open("wb", 0) as gate:
        gate.write(b"x")


def count_envs(num_envs: int, length: int = 1000) -> list[Callable[[], Any]]:
    return [functools.partial(toys.CountEnv, length)] * num_envs


def send(pool: Pool, env_ids: list[int], action: int = 0) -> None:
    pool.send(np.full(len(env_ids), action), env_ids, ordered=False)


# ---- rows ------------------------------------------------------------------------------------


@pytest.mark.extended
def test_rows_of_given_envs_come_in_the_given_order(open_pool: OpenPool) -> None:
    pool = open_pool(count_envs(6), num_workers=2)
    send(pool, [0, 1, 2, 3, 4, 5])
    batch = pool.recv(env_ids=[4, 0, 3])
    assert batch.env_ids.tolist() == [4, 0, 3] and batch.lengths.tolist() == [1, 1, 1]
    assert batch.obs[:, 2].tolist() == [4.0, 0.0, 3.0], "the observation contains the seed"
    assert pool.outstanding() == 3
    assert sorted(pool.recv().env_ids.tolist()) == [1, 2, 5]


def test_other_rows_come_first_in_finish_order_and_count_against_no_depth(open_pool: OpenPool) -> None:
    """There are more rows of other envs, each in a block of its own, than a pool has blocks."""
    num_envs = 40
    pool = open_pool(count_envs(num_envs), num_workers=1, depth=2)
    order = [7, *range(1, 7), *range(8, num_envs)]
    for number, env_id in enumerate(order):
        send(pool, [env_id, 0])  # one worker, in this order
        batch = pool.recv(env_ids=[0])
        assert batch.env_ids.tolist() == [0] and batch.lengths.tolist() == [number + 1]
    assert pool.recv(min_count=5, exact=True).env_ids.tolist() == order[:5]
    send(pool, [0])
    rest = pool.recv()
    assert rest.env_ids.tolist() == [*order[5:], 0] and rest.obs[:, 2].tolist() == [*order[5:], 0]


def test_views_of_given_envs_stay_valid_while_others_are_deferred(open_pool: OpenPool) -> None:
    pool = open_pool(count_envs(4), num_workers=1, depth=3)
    kept = []
    for _ in range(30):
        send(pool, [env_id for env_id in range(4) if not pool.owes(env_id)])
        batch = pool.recv(env_ids=[2])
        kept.append((batch, batch.obs.copy()))
        for old, obs in kept[-2:]:
            np.testing.assert_array_equal(old.obs, obs)


@pytest.mark.extended
def test_row_of_an_ordered_request_is_taken_out_of_it(open_pool: OpenPool) -> None:
    pool = open_pool(count_envs(4), num_workers=2)
    pool.send(np.zeros(4, np.int64))
    assert pool.recv(env_ids=[2]).env_ids.tolist() == [2]
    send(pool, [2])
    assert pool.recv(min_count=3).env_ids.tolist()[:3] == [0, 1, 3]


def test_deferred_row_is_dropped_by_a_reset_of_its_env(open_pool: OpenPool) -> None:
    pool = open_pool(count_envs(5), num_workers=1)
    send(pool, [3, 1, 2, 0])
    assert pool.recv(env_ids=[0]).env_ids.tolist() == [0]
    pool.reset([1], seeds=[9], ordered=False)
    batch = pool.recv(env_ids=[1])
    assert batch.flags & RowFlag.RESET and batch.seeds.tolist() == [9]
    pool.cancel([3])
    assert pool.recv().env_ids.tolist() == [2]


def test_exception_of_another_env_stays_in_its_row(open_pool: OpenPool) -> None:
    env_fns = [functools.partial(toys.CountEnv, 9), functools.partial(toys.RaiseAtStep, 1)]
    pool = open_pool(env_fns, num_workers=1)
    send(pool, [1, 0])
    batch = pool.recv(env_ids=[0])
    assert batch.errors() == {}
    assert list(pool.recv().errors()) == [1]


@pytest.mark.extended
def test_infos_of_deferred_rows_arrive_with_them(open_pool: OpenPool) -> None:
    pool = open_pool([toys.KeepsInfo] * 3, num_workers=1)
    for number in range(1, 4):
        send(pool, [2, 1, 0])
        assert [info["number"] for info in pool.recv(env_ids=[0]).infos()] == [number]
        batch = pool.recv()
        assert batch.env_ids.tolist() == [2, 1]
        assert [(info["number"], info["nested"]["list"]) for info in batch.infos()] == [(number, [number])] * 2


def test_same_step_rows_keep_their_final_observations(open_pool: OpenPool) -> None:
    pool = open_pool(count_envs(3, length=1), num_workers=1, autoreset=Autoreset.SAME_STEP)
    send(pool, [2, 1, 0])
    assert pool.recv(env_ids=[0]).final_obs[:, 2].tolist() == [0.0]
    batch = pool.recv()
    assert batch.final_obs[:, [0, 2]].tolist() == [[1.0, 2.0], [1.0, 1.0]] and batch.obs[:, 0].tolist() == [0.0, 0.0]


# ---- waits ------------------------------------------------------------------------------------


@pytest.mark.extended
def test_rows_are_received_while_another_env_is_in_its_step(open_workers: OpenPool, tmp_path: Path) -> None:
    gates = [make_gate(tmp_path / str(env_id)) for env_id in range(4)]
    pool = open_workers([functools.partial(GateEnv, gate) for gate in gates], num_workers=2, depth=2)
    send(pool, [3], action=1)
    for number in range(1, 31):  # more batches than there are blocks
        send(pool, [1, 0])
        batch = pool.recv(env_ids=[0, 1])
        assert batch.env_ids.tolist() == [0, 1] and batch.lengths.tolist() == [number] * 2
    with pytest.raises(WorkerTimeoutError, match=r"^not all answers of the envs \[3\] within 0.05 s"):
        pool.recv(env_ids=[3], timeout=0.05)
    open_gate(gates[3])
    assert pool.recv(env_ids=[3]).lengths.tolist() == [1]
    assert pool.outstanding() == 0


@pytest.mark.extended
def test_timeout_loses_no_row(open_workers: OpenPool, tmp_path: Path) -> None:
    gates = [make_gate(tmp_path / str(env_id)) for env_id in range(4)]
    pool = open_workers([functools.partial(GateEnv, gate) for gate in gates], num_workers=2)
    for _ in range(3):
        send(pool, [1, 0, 2])  # worker 0 has envs 0 and 1
        send(pool, [3], action=1)
        for _ in range(3):
            with pytest.raises(WorkerTimeoutError, match="not all answers"):
                pool.recv(env_ids=[0, 3], timeout=0.02)
        assert pool.outstanding() == 4
        open_gate(gates[3])
        assert pool.recv(env_ids=[3, 0]).env_ids.tolist() == [3, 0]
        assert sorted(pool.recv().env_ids.tolist()) == [1, 2]


@pytest.mark.extended
def test_timeout_of_an_ordered_request_loses_no_row(open_workers: OpenPool, tmp_path: Path) -> None:
    gates = [make_gate(tmp_path / str(env_id)) for env_id in range(4)]
    pool = open_workers([functools.partial(GateEnv, gate) for gate in gates], num_workers=4)
    pool.send(np.array([0, 1, 0, 0]))
    assert pool.recv(env_ids=[3]).env_ids.tolist() == [3]
    with pytest.raises(WorkerTimeoutError, match="not all answers"):
        pool.recv(env_ids=[0, 1], timeout=0.02)
    assert pool.recv(env_ids=[2, 0]).env_ids.tolist() == [2, 0]
    open_gate(gates[1])
    assert pool.recv().env_ids.tolist() == [1]


@pytest.mark.extended
def test_death_of_an_awaited_worker_is_raised_and_loses_no_other_row(open_workers: OpenPool, tmp_path: Path) -> None:
    gates = [make_gate(tmp_path / str(env_id)) for env_id in range(2)]
    pool = open_workers([functools.partial(GateEnv, gate) for gate in gates], num_workers=2)
    send(pool, [1], action=1)
    send(pool, [0])
    kill(pool, 1)  # type: ignore[arg-type]
    with pytest.raises(WorkerDiedError):
        pool.recv(env_ids=[1])
    pool.restart(1)
    assert pool.recv(env_ids=[0]).lengths.tolist() == [1]


@pytest.mark.extended
def test_hang_of_an_awaited_env_is_recovered(implementation: str, tmp_path: Path) -> None:
    hangs = functools.partial(toys.Hangs, 2, length=None, once=tmp_path / "hung")
    with recovering_pool([functools.partial(toys.CountEnv, 9), hangs], limits=Limits(step=1.0)) as pool:
        pool.start()
        pool.reset(seeds=[0, 1])
        pool.recv(timeout=60)
        for length in (1, 2):
            send(pool, [0, 1])
            assert pool.recv(env_ids=[1], timeout=60).lengths.tolist() == [length]
            assert pool.recv(timeout=60).env_ids.tolist() == [0]
        assert (tmp_path / "hung").exists() and pool.statistics()["restarts"] == 1


# ---- wrong arguments ----------------------------------------------------------------------------


@pytest.mark.extended
def test_wrong_requests_for_rows_are_refused(open_pool: OpenPool) -> None:
    pool = open_pool(count_envs(3), num_workers=1)
    send(pool, [0, 1])
    with pytest.raises(StateError, match=r"recv: the envs \[2\] owe no answer; send actions to them or reset them"):
        pool.recv(env_ids=[0, 2])
    with pytest.raises(StateError, match="recv: env 1 was named twice"):
        pool.recv(env_ids=[1, 0, 1])
    with pytest.raises(ConfigError, match=r"recv: env_id 3 is not in 0\.\.2"):
        pool.recv(env_ids=[3])
    for wrong in ([], [0.5], [True]):
        with pytest.raises(ConfigError, match="env_ids: expected a non-empty list of integers"):
            pool.recv(env_ids=wrong)
    counts: list[dict[str, Any]] = [{"min_count": 1}, {"max_count": 1}, {"exact": True}]
    for count in counts:
        with pytest.raises(ConfigError, match="recv: env_ids excludes min_count, max_count and exact"):
            pool.recv(env_ids=[0], **count)
    for name in ("min_count", "max_count"):
        with pytest.raises(WrongTypeError, match=f"{name}: expected a whole number or None, got True") as caught:
            pool.recv(**{name: True})
        assert isinstance(caught.value, TypeError) and isinstance(caught.value, ConfigError)
    assert sorted(pool.recv().env_ids.tolist()) == [0, 1], "nothing was lost"


# ---- random programs ----------------------------------------------------------------------------

NUM_ENVS, NUM_WORKERS = 5, 2
ENV_IDS = st.lists(st.integers(0, NUM_ENVS - 1), min_size=1, max_size=NUM_ENVS, unique=True)
REQUESTS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), ENV_IDS, st.integers(0, 1)),
        st.tuples(st.just("reset"), ENV_IDS, st.integers(0, 1000)),
        st.tuples(st.just("recv_envs"), ENV_IDS, st.just(0)),
        st.tuples(st.just("recv"), ENV_IDS, st.integers(1, NUM_ENVS)),
        st.tuples(st.just("kill"), ENV_IDS, st.integers(0, NUM_WORKERS - 1)),
    ),
    min_size=5,
    max_size=40,
)


class TextEnv(toys.ToyEnv):
    """Its infos contain a text, so they travel as messages."""

    def make_info(self) -> dict[str, Any]:
        return {"text": "x" * self.elapsed_steps}


class PlainLoop:
    """The envs in a plain loop: carries out a command when its answer has been delivered, and compares the two."""

    def __init__(self) -> None:
        self.envs: list[gymnasium.Env[Any, Any]] = [TextEnv(2 + env_id) for env_id in range(NUM_ENVS)]
        self.is_over = [False] * NUM_ENVS
        self.owed: dict[int, tuple[str, int]] = {}

    def check(self, batch: Any) -> None:
        obs, infos = batch.obs, batch.infos()
        for row, env_id in enumerate(batch.env_ids.tolist()):
            op, value = self.owed.pop(env_id)  # a KeyError: an answer to nothing, or a second answer
            env, reward, ended = self.envs[env_id], 0.0, False
            if op == "reset":
                expected, info = env.reset(seed=value)
            elif self.is_over[env_id]:
                expected, info = env.reset()
            else:
                expected, reward, ended, _, info = env.step(value)  # type: ignore[assignment]
            self.is_over[env_id] = ended
            infos[row].pop("recovered", None)
            np.testing.assert_array_equal(obs[row], expected)
            assert (batch.rewards[row], batch.terminated[row], infos[row]) == (reward, ended, info)


def run_program(pool: Pool, requests: list[tuple[str, list[int], int]], has_workers: bool) -> None:
    loop = PlainLoop()
    for name, env_ids, value in [("reset", list(range(NUM_ENVS)), 0), *requests]:
        if name == "step" and (free := [env_id for env_id in env_ids if env_id not in loop.owed]):
            send(pool, free, value)
            loop.owed.update((env_id, ("step", value)) for env_id in free)
        elif name == "reset":  # it supersedes a step, not a reset
            chosen = [env_id for env_id in env_ids if loop.owed.get(env_id, ("step",))[0] == "step"]
            if chosen:
                pool.reset(chosen, seeds=[value + env_id for env_id in chosen], ordered=False)
                loop.owed.update((env_id, ("reset", value + env_id)) for env_id in chosen)
        elif name == "recv_envs" and (asked := [env_id for env_id in env_ids if env_id in loop.owed]):
            batch = pool.recv(env_ids=asked, timeout=60)
            assert batch.env_ids.tolist() == asked
            loop.check(batch)
        elif name == "recv" and loop.owed:
            least = min(value, len(loop.owed))
            batch = pool.recv(least, timeout=60)
            assert len(batch) >= least
            loop.check(batch)
        elif name == "kill" and has_workers:
            with contextlib.suppress(ProcessLookupError):  # an earlier kill of this worker was not noticed yet
                kill(pool, value)  # type: ignore[arg-type]
        assert pool.outstanding() == len(loop.owed)
    if loop.owed:
        loop.check(pool.recv(timeout=60))
    assert not loop.owed


def check_programs(pool: Pool, *, count: int, has_workers: bool) -> None:
    @settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(REQUESTS)
    def check(requests: list[tuple[str, list[int], int]]) -> None:
        run_program(pool, requests, has_workers)

    with pool:
        pool.start()
        check()
        assert not has_workers or pool.statistics()["restarts"] > 0, "no kill hit: the programs show nothing"


ENV_FNS = [functools.partial(TextEnv, 2 + env_id) for env_id in range(NUM_ENVS)]


@pytest.mark.extended
def test_random_programs_equal_a_plain_loop(implementation: str) -> None:
    check_programs(SerialPool(ENV_FNS, adapt=adapt_and_build), count=100, has_workers=False)


@pytest.mark.extended
@pytest.mark.parametrize("depth", [2, 4])
def test_random_programs_with_kills_equal_a_plain_loop(
    depth: int, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = recovering_pool(ENV_FNS, num_workers=NUM_WORKERS, depth=depth, max_restarts=10_000)
    check_programs(pool, count=25, has_workers=True)


@pytest.mark.skipif(load() is None, reason="the extension was not built")
def test_hub_refuses_requests_for_rows_that_would_never_end() -> None:
    with SerialPool(count_envs(3)) as pool:
        pool.start()
        pool.reset(ordered=False)
        for ids, text in (([3], "env 3 has no"), ([0, 0], "env 0 is named twice"), ([], "at least|1 to num_envs")):
            with pytest.raises(ValueError, match=text):
                hub_of(pool).recv_envs(np.array(ids, np.int64), 0)
        with pytest.raises(ValueError, match="must be int64"):
            hub_of(pool).recv_envs(np.array([0], np.int32), 0)
