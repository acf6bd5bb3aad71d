"""Collectors with policies in shards: the batches are those of a policy in this process, also if shards are lost."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.collection.plain_loop import DiceEnv
from tests.collection.sharded import (
    DrawingPolicy,
    IgnoringPolicy,
    KeptPolicy,
    KillingPolicy,
    ShardedVectorEnv,
    assert_equal,
)
from tests.core.shards.model_carrier import ModelCarrier
from tests.faults.traces import end, wait_until
from vecenv import Collector, ConfigError, StateError, Transitions, VectorEnv, WorkerDiedError, collect
from vecenv.core.shards import shard_link
from vecenv.envs.toys import ToyEnv
from vecenv.errors import ClosedError

NUM_ENVS, ROUNDS = 5, 8
STEPS = NUM_ENVS * ROUNDS


def local_batches(
    count: int, make_policy: Callable[[], Any] = DrawingPolicy, weights: tuple[int, ...] = (), **options: Any
) -> list[Transitions]:
    """Return the batches of a policy in this process; batch k is made with `weights[k]`."""
    policy = make_policy()
    mode = options.pop("mode", AutoresetMode.NEXT_STEP)
    with VectorEnv([DiceEnv] * NUM_ENVS, backend="serial", autoreset_mode=mode) as envs:
        collector = Collector(envs, policy, **{"batch_steps": STEPS, "time_major": True, "seed": 3, **options})
        batches = []
        for number in range(count):
            if number < len(weights):
                policy.set_weights(weights[number])
            batches.append(next(collector))
        return batches


def collector_of(envs: VectorEnv, make_policy: Callable[[], Any] = DrawingPolicy, **options: Any) -> Collector:
    given = {"batch_steps": STEPS, "time_major": True, "seed": 3, **options}
    return Collector(envs, where="shards", make_policy=make_policy, **given)


def sharded(num_shards: int = 2, carrier: Any = None, **options: Any) -> ShardedVectorEnv:
    env_fns = options.pop("env_fns", [DiceEnv] * NUM_ENVS)
    return ShardedVectorEnv(env_fns, num_shards, ModelCarrier() if carrier is None else carrier, **options)


# ---- batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "num_shards, mode",
    [
        (2, AutoresetMode.NEXT_STEP),
        *(
            pytest.param(count, mode, marks=pytest.mark.extended)
            for count, mode in [(1, "NextStep"), (3, "SameStep"), (2, "Disabled")]
        ),
    ],
)
@pytest.mark.parametrize("overlap", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_batches_equal_those_of_a_local_policy(num_shards: int, mode: AutoresetMode, overlap: bool) -> None:
    mode = AutoresetMode(mode)
    with sharded(num_shards, autoreset_mode=mode) as envs:
        collector = collector_of(envs, overlap=overlap)
        for theirs in local_batches(3, mode=mode):
            ours = next(collector)
            assert_equal(ours, theirs)
            assert ours.version == 0 and not len(ours.renewed_envs)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_batches_of_returns_have_no_observations_and_the_same_returns(num_shards: int) -> None:
    names = "rewards", "terminated", "truncated", "lost", "env_id", "step", "episode", "episode_returns"
    with sharded(num_shards) as envs:
        collector = collector_of(envs, returns_only=True)
        for theirs in local_batches(3):
            ours = next(collector)
            assert ours.obs is ours.next_obs is ours.actions is ours.bootstrap is None and not ours.extras
            for name in names:
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.extended
def test_child_processes_make_the_same_batches_and_rows_may_be_flat() -> None:
    with ShardedVectorEnv([DiceEnv] * NUM_ENVS) as envs:
        collector = collector_of(envs, time_major=False)
        for theirs in local_batches(2):
            ours = next(collector)
            assert ours.bootstrap is None and ours.obs.shape == (STEPS, 4)
            assert ours.env_id.tolist() == list(range(NUM_ENVS)) * ROUNDS
            np.testing.assert_array_equal(ours.next_obs, theirs.next_obs.reshape(STEPS, 4))
            assert ours.episode_returns.tolist() == theirs.episode_returns.tolist()


def test_weights_are_set_once_and_used_by_whole_batches() -> None:
    weights = (0, 1, 5, 5)
    with sharded() as envs:
        collector = collector_of(envs)
        for number, theirs in enumerate(local_batches(4, weights=weights)):
            if number < 3:
                assert collector.set_weights(weights[number]) == number + 1
            ours = next(collector)
            assert_equal(ours, theirs)
            assert ours.version == min(number + 1, 3)


def test_weights_are_no_part_of_requests() -> None:
    with sharded() as envs:
        collector = collector_of(envs, make_policy=IgnoringPolicy)
        next(collector)
        before = envs.statistics()["bytes_up"]
        collector.set_weights(np.zeros(1 << 17))
        next(collector)
        assert 0 < envs.statistics()["bytes_up"] - before < 1 << 14


def test_arrays_belong_to_the_caller() -> None:
    with sharded(1) as envs:
        batch = next(collector_of(envs))
        for column in (batch.obs, batch.rewards, batch.actions, batch.extras["draw"], batch.next_obs):
            assert column.flags.writeable and column.flags.c_contiguous


# ---- other calls between batches -------------------------------------------------------------


def test_steps_between_batches_begin_with_a_reset_and_collect_goes_on() -> None:
    with sharded() as envs:
        collector = collector_of(envs)
        first = next(collector)
        envs.step(np.zeros(NUM_ENVS, np.int64))
        assert (next(collector).step[0] == 0).all(), "after a step, all envs are reset"
        last = next(collector)
        batch = collect(envs, DrawingPolicy(), steps=STEPS, time_major=True)
        running = ~(last.terminated[-1] | last.truncated[-1])
        assert running.any() and (batch.obs[0][running] == last.next_obs[-1][running]).all()
        again = next(collector)
        running = ~(batch.terminated[-1] | batch.truncated[-1])
        assert (again.step[0] == np.where(running, batch.step[-1] + 1, 0)).all()
        assert (again.episode[0] > first.episode[0]).all()


@pytest.mark.extended
def test_calls_of_envs_wait_for_rollouts_ahead() -> None:
    with sharded() as envs:
        collector = collector_of(envs, sync=False)
        next(collector)
        assert len(envs.get_attr("length")) == NUM_ENVS
        steps = [next(collector).step[0].max() for _ in range(4)]
        assert max(steps) > 0, "calls step no env"


def test_interrupted_batch_is_returned_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with sharded() as envs:
        collector = collector_of(envs)
        first, second = local_batches(2)
        assert_equal(next(collector), first)
        wait, interrupts = envs.pool.wait_for_task, iter([KeyboardInterrupt])

        def interrupted(calls: Any) -> None:
            wait(calls)
            for error in interrupts:
                raise error

        monkeypatch.setattr(envs.pool, "wait_for_task", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            next(collector)
        assert len(caught.value.collected) == 0
        assert_equal(next(collector), second)


# ---- rollouts of one shard -------------------------------------------------------------------


def test_first_finished_rollouts_are_those_of_the_sync_collector() -> None:
    with sharded(2) as envs:
        collector = collector_of(envs, sync=False)
        found: dict[int, list[Transitions]] = {0: [], 3: []}
        versions = []
        for batch in itertools.islice(collector, 8):
            found[int(batch.env_id[0, 0])].append(batch)
            versions.append(batch.version)
            collector.set_weights(0)
        assert versions == sorted(versions) and versions[0] == 0 and versions[-1] > 0
        for number, theirs in enumerate(local_batches(3)):
            for first, batches in found.items():
                ours = batches[number]
                columns = slice(first, first + ours.env_id.shape[1])
                assert ours.extras.keys() == theirs.extras.keys()
                for name in ("obs", "next_obs", "actions", "step", "episode", "env_id", "bootstrap"):
                    np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name)[:, columns])


# ---- losses ----------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_shards_lost_between_and_amid_rollouts_change_nothing(
    mode: AutoresetMode, overlap: bool, tmp_path: Path
) -> None:
    make_policy = functools.partial(KillingPolicy, str(tmp_path), ROUNDS + 5, 3)
    with ShardedVectorEnv([DiceEnv] * NUM_ENVS, autoreset_mode=mode) as envs:
        collector = collector_of(envs, make_policy, overlap=overlap)
        weights = (0, 1, 2, 3, 3)
        for number, theirs in enumerate(local_batches(5, weights=weights, mode=mode)):
            if number < 4:
                collector.set_weights(weights[number])
            if number == 3:
                end(envs.carrier.pid_of(0))
            ours = next(collector)
            assert_equal(ours, theirs)
            assert not len(ours.renewed_envs)
        assert envs.statistics()["shards_replaced"] == 2


@pytest.mark.extended
@pytest.mark.parametrize("sync", [True, False])
def test_lost_requests_replies_and_shards_change_nothing(sync: bool) -> None:
    counts = itertools.count()

    def fault(shard: int, seq: int) -> str:
        return ["", "dead before", "", "reply lost", "dead after", "", "request lost", "repeated"][next(counts) % 8]

    batches = local_batches(8)
    with sharded(2, ModelCarrier(fault)) as envs:
        collector = collector_of(envs, KeptPolicy, sync=sync)
        for theirs in batches if sync else ():
            assert_equal(next(collector), theirs)
        found = {0: 0, 3: 0}
        for _ in range(0 if sync else 8):
            ours = next(collector)
            first = int(ours.env_id[0, 0])
            theirs = batches[found[first]]
            found[first] += 1
            np.testing.assert_array_equal(ours.obs, theirs.obs[:, first : first + ours.obs.shape[1]])
            np.testing.assert_array_equal(ours.extras["draw"], theirs.extras["draw"][:, ours.env_id[0]])
        assert envs.carrier.num_started > 2


@pytest.mark.extended
def test_rollouts_go_on_from_one_that_arrived_before_its_shard_was_lost() -> None:
    with sharded(1) as envs:
        collector = collector_of(envs, KeptPolicy, sync=False)
        batches = [next(collector)]
        envs.pool.wait_for_task([one.call for one in collector._work._under_way])
        envs.carrier.lose(0)
        batches += [next(collector) for _ in range(3)]
        assert envs.carrier.num_started == 2
        for ours, theirs in zip(batches, local_batches(4), strict=True):
            assert_equal(ours, theirs)


def test_policy_without_state_begins_again_and_the_batch_marks_it() -> None:
    with sharded() as envs:
        collector = collector_of(envs)
        first = next(collector)
        envs.carrier.lose(1)
        second, third = next(collector), next(collector)
        theirs = local_batches(3)
        assert second.renewed_envs.tolist() == [3, 4] and not len(first.renewed_envs) and not len(third.renewed_envs)
        np.testing.assert_array_equal(second.obs[:, :3], theirs[1].obs[:, :3])
        np.testing.assert_array_equal(second.obs[0], theirs[1].obs[0])
        assert (second.step[0] == theirs[1].step[0]).all(), "the episodes of the envs go on"


@pytest.mark.extended
def test_shard_that_is_not_replaced_is_an_error_with_the_rollouts_of_others() -> None:
    with sharded(failures="raise") as envs:
        collector = collector_of(envs)
        next(collector)
        envs.carrier.lose(1)
        with pytest.raises(WorkerDiedError, match=r"shard 1 \(envs 3-4\) was lost") as caught:
            next(collector)
        assert set(caught.value.collected.env_id.tolist()) == {0, 1, 2} and len(caught.value.collected) == 3 * ROUNDS
        envs.pool.restart(1)
        assert (next(collector).step[0] == 0).all()


@pytest.mark.extended
def test_shard_that_is_lost_in_every_rollout_is_an_error() -> None:
    with sharded(1, failures={"max_restarts": 1}) as envs:
        collector = collector_of(envs)
        next(collector)
        envs.carrier.fault = lambda shard, seq: "dead before"
        with pytest.raises(WorkerDiedError, match="shard 0 .* was lost: .* no env to blame") as caught:
            next(collector)
        assert len(caught.value.collected) == 0


def test_long_rollout_is_not_taken_for_a_hung_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_link, "PATIENCE_SECONDS", 0.02)
    carrier = ModelCarrier()
    monkeypatch.setattr(SlowPolicy, "executed", carrier.executed)
    with sharded(1, carrier, shard_timeout=0.2) as envs:
        assert_equal(next(collector_of(envs, SlowPolicy)), local_batches(1)[0])
        assert carrier.num_started == 1 and len(carrier.executed) >= 30


class SlowPolicy(DrawingPolicy):
    """Answers once its shard, which is in this process, has executed 30 requests."""

    executed: ClassVar[list[Any]] = [None] * 30

    def __call__(self, obs: Any, env_id: np.ndarray) -> Any:
        wait_until(lambda: len(self.executed) >= 30)
        return super().__call__(obs, env_id)


# ---- errors ----------------------------------------------------------------------------------


class OddNumber(Exception):
    """Raised by a policy."""


class RaisingPolicy(DrawingPolicy):
    """Raises in its calls with these numbers, if they have env 3."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.numbers, self.num_calls = numbers, 0

    def __call__(self, obs: Any, env_id: np.ndarray) -> Any:
        self.num_calls += 3 in env_id
        if 3 in env_id and self.num_calls in self.numbers:
            raise OddNumber(self.num_calls)
        return super().__call__(obs, env_id)


def test_exception_of_a_policy_names_its_shard_and_the_next_batch_goes_on() -> None:
    with sharded(env_fns=[ToyEnv] * 4) as envs:
        collector = collector_of(envs, functools.partial(RaisingPolicy, 6), batch_steps=32)
        with pytest.raises(OddNumber, match="6") as caught:
            next(collector)
        error = caught.value
        pid = os.getpid()  # the shards are in this process
        assert error.__notes__ == [f"raised in shard 1 (envs 2-3), process {pid}"] and error.shard.pid == pid
        collected = error.collected
        assert np.bincount(collected.env_id).tolist() == [8, 8, 5, 5] and "draw" in collected.extras
        assert (collected.next_obs[:, 0] == collected.obs[:, 0] + 1).all()
        assert next(collector).step[0].tolist() == [8, 8, 5, 5]


@pytest.mark.extended
def test_exception_of_an_env_names_the_env_and_the_next_batch_begins_with_a_reset() -> None:
    with sharded(env_fns=[functools.partial(RaisingEnv, number) for number in (99, 99, 99, 5, 99)]) as envs:
        for sync in (True, False):
            collector = collector_of(envs, sync=sync)
            with pytest.raises(ZeroDivisionError) as caught:
                for _ in range(4):
                    next(collector)
            assert any("step of env 3" in note for note in caught.value.__notes__)
            assert "raised in shard 1 (envs 3-4), process" in caught.value.__notes__[-1]
            if sync:
                assert np.bincount(caught.value.collected.env_id).tolist() == [8, 8, 8, 5, 6]
            envs.call("calm")
            assert (next(collector).step[0] == 0).all()
            envs.call("calm", False)


class RaisingEnv(ToyEnv):
    """Raises in one step of each episode, unless it is calm."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.is_calm = number, False

    def calm(self, is_calm: bool = True) -> None:
        self.is_calm = is_calm

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.elapsed_steps > self.number and not self.is_calm:
            raise ZeroDivisionError("odd")
        return result


def _fail() -> Any:
    raise OddNumber("no policy today")


@pytest.mark.parametrize(
    "make_policy, error, message",
    [
        (_fail, OddNumber, "no policy today"),
        (dict, ConfigError, r"policy: expected a callable policy\(obs, env_id\), got \{\}"),
        (functools.partial(exec, "raise SystemExit(3)"), Exception, "SystemExit"),
    ],
)
def test_policy_that_cannot_be_made_is_an_error_of_each_batch(
    make_policy: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with sharded() as envs:
        collector = collector_of(envs, make_policy)
        for _ in range(2):
            with pytest.raises(error, match=message) as caught:
                next(collector)
            assert "raised in shard 0 (envs 0-2), process" in caught.value.__notes__[0]
            assert len(caught.value.collected) == 0
        assert next(collector_of(envs)).step[0].tolist() == [0] * NUM_ENVS


def plain_policy() -> Any:
    return lambda obs, env_id: np.zeros(len(env_id), np.int64)


def test_weights_for_a_policy_without_set_weights_are_an_error() -> None:
    with sharded() as envs:
        collector = collector_of(envs, plain_policy)
        assert next(collector).extras == {}
        collector.set_weights(1)
        for _ in range(2):
            with pytest.raises(ConfigError, match="a function, has no method set_weights"):
                next(collector)


def test_weights_after_close_are_refused() -> None:
    with sharded() as envs:
        collector = collector_of(envs, plain_policy)
    with pytest.raises(ClosedError, match=r"^set_weights: the vector env is closed$"):
        collector.set_weights(1)


def test_wrong_arguments_are_refused() -> None:
    lock = threading.Lock()
    with sharded(1, env_fns=[ToyEnv] * 2) as envs:
        for arguments, message in [
            ({"policy": plain_policy()}, "give make_policy=..., which makes a policy in each shard"),
            ({"make_policy": None}, "make_policy: expected a callable, got None"),
            ({"make_policy": lambda: lock}, "make_policy cannot be sent to shards: cannot pickle"),
            ({"overlap": 1}, "overlap: expected True or False"),
            ({"min_count": 1}, "where='shards': min_count is for policies in this process"),
            ({"batch_steps": 3}, "batch_steps: expected a multiple of the 2 envs"),
            ({"batch_steps": 3, "time_major": False}, "batch_steps: expected a multiple of the 2 envs"),
            ({"where": "actors"}, r"where: expected one of \('caller', 'shards'\), got 'actors'"),
            ({"sync": 1}, "sync: expected True or False"),
            ({"returns_only": 1}, "returns_only: expected True or False"),
            ({"where": "caller", "make_policy": None, "returns_only": True}, "returns_only=True needs where='shards'"),
            ({"where": "caller"}, "make_policy needs where='shards'"),
            ({"where": "caller", "make_policy": None, "sync": False}, "sync=False needs where='shards'"),
        ]:
            with pytest.raises(ConfigError, match=message):
                Collector(envs, **{"where": "shards", "make_policy": plain_policy, "batch_steps": 4, **arguments})
        collector = Collector(envs, make_policy=plain_policy, where="shards", batch_steps=4)
        with pytest.raises(ConfigError, match="weights cannot be sent to shards: cannot pickle"):
            collector.set_weights(lock)
        with pytest.raises(ConfigError, match="calls the policy in this process"):
            Collector(envs, plain_policy(), batch_steps=4).set_weights(1)
        envs.async_reset()
        with pytest.raises(StateError, match="2 envs owe the results of earlier calls"):
            next(collector)
        envs.recv()


def test_backends_without_shards_are_refused() -> None:
    message = r"needs envs with backend='ray'; for these, use Collector\(envs, policy\)"
    with VectorEnv([ToyEnv], backend="serial") as envs, pytest.raises(ConfigError, match=message):
        Collector(envs, make_policy=plain_policy, where="shards", batch_steps=4)
