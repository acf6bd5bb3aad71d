"""ShardedEngine: the stream of every env equals that of a SerialPool, also if requests and shards are lost."""

from __future__ import annotations

import functools
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.shards.model_carrier import FAULTS, Fault, ModelCarrier, no_fault
from tests.inside import hub_of
from tests.test_determinism import few
from vecenv.core.advice.sizing import SERIAL, Setting
from vecenv.core.layout.flags import Autoreset, Op, RowFlag
from vecenv.core.options import PoolFailurePolicy, PoolOptions
from vecenv.core.parent.batch import Batch
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.serial import SerialPool
from vecenv.core.shards import shard_link
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.envs import toys
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.errors import StateError, WorkerDiedError
from vecenv.gymnasium_api.registrations import pickle_registrations, registered

NUM_ENVS = 5
MakePools = Callable[..., "Pools"]


class Pools:
    """A pool of shards in this process, and a SerialPool that gets the same requests."""

    def __init__(
        self,
        carrier: ModelCarrier,
        num_shards: int,
        *,
        length: int = 4,
        shard_timeout: float = 30.0,
        replace_timeout: float = 30.0,
        setting: Setting | None = None,
        **options: Any,
    ) -> None:
        env_fns = [functools.partial(toys.ToyEnv, length)] * 3 + [functools.partial(toys.NoisyGlobal, length)] * 2
        self.carrier = carrier
        given = PoolOptions(**{"num_workers": 1, "context": "fork", **options})
        self.engine = ShardedEngine(
            env_fns,
            given,
            carrier=carrier,
            num_shards=num_shards,
            adapt=adapt_and_build,
            snapshotter=SNAPSHOTTER,
            shard_timeout=shard_timeout,
            replace_timeout=replace_timeout,
            setting=setting,
        )
        self.ours, self.theirs = Pool(self.engine), SerialPool(env_fns, given, adapt=adapt_and_build)
        self.ours.start()
        self.theirs.start()

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()

    def both(self, request: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Send the same request to both pools; return both results."""
        return [getattr(pool, request)(*args, **kwargs) for pool in (self.ours, self.theirs)]

    def recv(self, min_count: int | None = None, env_ids: Sequence[int] | None = None) -> Batch:
        """Receive rows, and compare them with those of the SerialPool."""
        batch = self.ours.recv(min_count, env_ids=env_ids)
        assert_same(batch, self.theirs.recv(env_ids=batch.env_ids))
        if self.engine.options.failures.recovers:
            records = hub_of(self.ours).store.records
            assert records["step_id"][batch.env_ids, 0].tolist() == batch.step_ids.tolist(), "the numbers in shards"
        return batch

    def finish(self) -> None:
        while self.ours.outstanding():
            self.recv()


def assert_same(ours: Batch, theirs: Batch) -> None:
    names = (
        "env_ids",
        "step_ids",
        "obs",
        "rewards",
        "terminated",
        "truncated",
        "episodes",
        "lengths",
        "returns",
        "seeds",
    )
    for name in names:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
    kept = RowFlag.RESET | RowFlag.AUTORESET | RowFlag.FINAL | RowFlag.ERROR
    assert (ours.row_flags & kept).tolist() == (theirs.row_flags & kept).tolist()
    if ours.flags & RowFlag.FINAL:
        final = (ours.row_flags & RowFlag.FINAL) != 0
        np.testing.assert_array_equal(ours.final_obs[final], theirs.final_obs[final])
    infos = [{key: value for key, value in info.items() if key != "recovered"} for info in ours.infos()]
    assert infos == theirs.infos()


@pytest.fixture
def make_pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakePools]:
    """Make pools; shards change the registry of their process, which is this one here."""
    monkeypatch.setattr(shard_link, "_FIRST_PAUSE_NS", 1_000_000)
    made: list[Pools] = []

    def make(
        num_shards: int = 2,
        fault: Fault = no_fault,
        *,
        on_failure: str = "recover",
        restart_window: float = 60.0,
        **kw: Any,
    ) -> Pools:
        failures = PoolFailurePolicy(on_failure=on_failure, max_restarts=1000, restart_window=restart_window)
        made.append(Pools(ModelCarrier(fault), num_shards, failures=failures, **kw))
        return made[-1]

    with registered(pickle_registrations()):
        yield make
        for pools in made:
            pools.close()


# ---- requests that are lost, repeated or delayed -------------------------------------------------


def play(pools: Pools, num_rounds: int) -> None:
    """Reset, step in lockstep and asynchronously, and call."""
    rng = random.Random(0)
    pools.both("reset", seeds=range(NUM_ENVS))
    pools.recv()
    for _ in range(num_rounds):
        actions = np.array([rng.randrange(2) for _ in range(NUM_ENVS)])
        pools.both("send", actions)
        pools.recv()
        ids = rng.sample(range(NUM_ENVS), 3)
        pools.both("send", actions[:3], ids, ordered=False)
        pools.recv(1)
        pools.both("call", _add_to_sum, ids)
        ours, theirs = pools.both("call", _elapsed_steps, pure=True)
        assert ours == theirs
        pools.finish()


def _add_to_sum(env: Any) -> None:
    env.unwrapped.action_sum += 0.5


def _elapsed_steps(env: Any) -> int:
    return int(env.unwrapped.elapsed_steps)


@pytest.mark.parametrize("name", FAULTS)
def test_stream_is_the_same_with_a_fault_in_every_fourth_request(name: str, make_pools: MakePools) -> None:
    counts = {0: 0, 1: 0}

    def fault(shard: int, seq: int) -> str:
        counts[shard] += 1
        return name if counts[shard] % 4 == 3 else ""

    pools = make_pools(fault=fault)
    play(pools, 4)
    is_death = name.startswith("dead")
    assert (pools.carrier.num_started > 2) == is_death
    if name in ("reply lost", "repeated", "late"):
        assert len(pools.carrier.executed) > len(set(pools.carrier.executed)), "no request came twice"
    assert pools.ours.statistics()["steps"] >= pools.theirs.statistics()["steps"]
    if not is_death:
        assert pools.ours.statistics()["steps"] == pools.theirs.statistics()["steps"]


@pytest.mark.extended
def test_every_fault_at_random_leaves_the_stream_as_it_is(make_pools: MakePools) -> None:
    rng = random.Random(7)
    pools = make_pools(3, lambda shard, seq: rng.choice(FAULTS) if rng.random() < 0.2 else "")
    play(pools, 5)
    assert pools.carrier.num_started > 3


# ---- random programs -------------------------------------------------------------------------------

IDS = st.lists(st.integers(0, NUM_ENVS - 1), min_size=1, unique=True)
KINDS = st.sampled_from([*["step"] * 3, *["recv"] * 2, "recv envs", "reset", "call", *["lose"] * 2, *FAULTS])
#: Seconds within which a second loss gives a shard without workers one: never, or always.
WINDOWS = st.sampled_from([1e-9, 1e-9, 60.0])
PROGRAMS = st.lists(st.tuples(KINDS, IDS, st.integers(0, 100)), min_size=10, max_size=25)


def run(pools: Pools, program: list[tuple[str, list[int], int]], num_shards: int, *, is_sync: bool) -> None:
    """Send the requests of a program; a fault concerns the next request to its shard."""
    ours, faults = pools.ours, dict[int, str]()
    pools.carrier.fault = lambda shard, seq: faults.pop(shard, "")
    for kind, ids, number in program:
        idle = [env_id for env_id in ids if ours.owes(env_id) == Op.NONE]
        owing = [env_id for env_id in ids if env_id not in idle]
        if is_sync:
            pools.finish()
            idle = ids
        if kind == "lose":
            pools.carrier.lose(number % num_shards)
        elif kind in FAULTS:
            faults[number % num_shards] = kind
        elif kind == "recv" and ours.outstanding():
            pools.recv(1 + number % ours.outstanding())
        elif kind == "recv envs" and not is_sync and owing:
            pools.recv(env_ids=owing)
        elif kind == "call":
            pools.both("call", _add_to_sum, ids)
        elif kind == "step" and idle:
            actions = np.array([(number >> i) & 1 for i in range(len(idle))])
            pools.both("send", actions, idle, ordered=is_sync)
        elif kind == "reset" and idle:
            seeds = [number + i if number % 2 else None for i in range(len(idle))]
            pools.both("reset", idle, seeds=seeds, ordered=is_sync)
    pools.finish()


def check_program(make_pools: MakePools, setting: Setting | None, data: st.DataObject) -> int:
    """Run a program with pools of its own; return how often a shard was replaced."""
    num_shards = data.draw(st.integers(1, 4), "shards")
    is_sync = data.draw(st.booleans(), "lockstep")
    autoreset = data.draw(st.sampled_from([Autoreset.NEXT_STEP, Autoreset.SAME_STEP]), "autoreset")
    window = data.draw(WINDOWS, "window")
    program = data.draw(PROGRAMS, "program")
    pools = make_pools(num_shards, setting=setting, autoreset=autoreset, restart_window=window)
    try:
        pools.both("reset", seeds=range(NUM_ENVS))
        pools.recv()
        run(pools, program, num_shards, is_sync=is_sync)
        counts = pools.ours.statistics()
    finally:
        pools.close()
    assert counts["truncated"] == 0
    return int(counts["shards_replaced"])


@pytest.mark.extended
@pytest.mark.parametrize("setting", [pytest.param(None, id="worker"), pytest.param(SERIAL, id="no worker")])
def test_random_programs_with_losses_give_the_stream_of_a_serial_pool(
    setting: Setting | None, implementation: str, make_pools: MakePools
) -> None:
    num_replaced = 0

    @few(6)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal num_replaced
        num_replaced += check_program(make_pools, setting, data)

    check()
    assert num_replaced > 0


# ---- losses that are not recovered -------------------------------------------------------------------


def test_loss_without_recovery_is_raised_until_the_shard_is_restarted(make_pools: MakePools) -> None:
    pools = make_pools(on_failure="raise")
    ours = pools.ours
    ours.reset(seeds=range(NUM_ENVS))
    ours.recv()
    ours.send(np.zeros(NUM_ENVS, np.int64), ordered=False)
    pools.carrier.lose(1)
    for _ in range(2):
        with pytest.raises(WorkerDiedError, match=r"shard 1 \(envs 3-4\) was lost: killed by the test") as caught:
            ours.recv()
        assert (caught.value.worker_id, caught.value.env_ids, caught.value.exitcode) == (1, (3, 4), -9)
    assert ours.has_dead_workers()
    ours.cancel([3, 4])
    assert ours.recv().lengths.tolist() == [1, 1, 1], "the other shard goes on"
    ours.restart(1)
    assert not ours.has_dead_workers() and ours.outstanding() == 0
    with pytest.raises(StateError, match="never reset"):
        ours.step(np.zeros(NUM_ENVS, np.int64))
    ours.reset([3, 4], seeds=[1, 2])
    ours.recv()
    assert ours.step(np.zeros(NUM_ENVS, np.int64)).lengths.tolist() == [2, 2, 2, 1, 1]


@pytest.mark.extended
def test_death_of_a_worker_in_a_shard_is_raised_and_a_restart_of_the_shard_mends_it(make_pools: MakePools) -> None:
    pools = make_pools(on_failure="raise")
    ours = pools.ours
    ours.reset(seeds=range(NUM_ENVS))
    ours.recv()
    (pid,) = pools.carrier.worker_pids(1)
    os.kill(pid, signal.SIGKILL)
    ours.send(np.zeros(NUM_ENVS, np.int64))
    for _ in range(2):
        with pytest.raises(WorkerDiedError, match=r"worker 0 \(envs 3-4\) died during .* of env 3") as caught:
            ours.recv()
        assert caught.value.worker_id == 1 and set(caught.value.env_ids) <= {3, 4}
        assert "raised in shard 1" in caught.value.__notes__
    ours.restart(1)
    assert ours.recv().env_ids.tolist() == [0, 1, 2]
    ours.reset([3, 4], seeds=[3, 4])
    assert ours.recv().lengths.tolist() == [0, 0]


@pytest.mark.extended
@pytest.mark.parametrize("name", ["silent", "request lost"])
def test_shard_without_replies_is_replaced_after_its_timeout(name: str, make_pools: MakePools) -> None:
    pools = make_pools(shard_timeout=0.3)
    carrier = pools.carrier
    carrier.fault = lambda shard, seq: name if shard == 1 and seq >= 3 and carrier.num_started == 2 else ""
    play(pools, 1)
    assert carrier.num_started == 3


@pytest.mark.extended
def test_shard_without_replies_is_an_error_without_recovery(make_pools: MakePools) -> None:
    pools = make_pools(on_failure="raise", shard_timeout=0.3)
    pools.ours.reset(seeds=range(NUM_ENVS))
    pools.ours.recv()
    pools.carrier.fault = lambda shard, seq: "silent" if shard == 0 else ""
    pools.ours.send(np.zeros(NUM_ENVS, np.int64))
    with pytest.raises(WorkerDiedError, match=r"shard 0 \(envs 0-2\) was lost: no reply came for 0.3 s"):
        pools.ours.recv()


@pytest.mark.extended
def test_shard_that_finds_no_place_is_given_up_and_the_other_one_goes_on(make_pools: MakePools) -> None:
    pools = make_pools(replace_timeout=0.2)
    ours = pools.ours
    ours.reset(seeds=range(NUM_ENVS))
    ours.recv()
    pools.carrier.missing = "2 CPUs; the nodes have 0"
    pools.carrier.lose(1)
    ours.send(np.zeros(NUM_ENVS, np.int64), ordered=False)
    assert len(ours.recv(3)) == 3
    with pytest.raises(WorkerDiedError, match=r"shard 1 .* found no place within 0.2 s; it waits for 2 CPUs"):
        ours.recv()
    pools.carrier.missing = ""
    ours.restart(1)
    ours.reset([3, 4], seeds=[3, 4])
    assert ours.recv().obs[:, 0].tolist() == [0.0, 0.0]
