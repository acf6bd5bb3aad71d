"""Wrong arguments and answers are refused; an exception during a run has the collected transitions."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.collection.plain_loop import DiceEnv, assert_plain
from tests.collection.sharded import ShardedVectorEnv
from tests.faults.traces import wait_until
from vecenv import BatchedVectorEnv, Collector, ConfigError, SpaceError, StateError, VectorEnv, collect
from vecenv.envs.toys import ToyEnv

MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
ORDERS = pytest.mark.parametrize(
    "how", [{}, {"overlap": True}, {"min_count": 2}], ids=["lockstep", "overlap", "finish"]
)


def zeros(obs: Any, env_id: np.ndarray) -> Any:
    return np.zeros(len(env_id), np.int64)


def dice(num_envs: int = 4, **options: Any) -> VectorEnv:
    return VectorEnv([DiceEnv] * num_envs, **{"backend": "serial", **options})


# ---- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "expected either steps or episodes, got steps=None, episodes=None"),
        ({"steps": 4, "episodes": 1}, "expected either steps or episodes, got steps=4, episodes=1"),
        ({"steps": 0}, "steps: expected a whole number of at least 1, got 0"),
        ({"steps": 2.5}, "steps: expected a whole number of at least 1, got 2.5"),
        ({"episodes": -1}, "episodes: expected a whole number of at least 1, got -1"),
        ({"steps": 6, "time_major": True}, "steps: expected a multiple of the 4 envs"),
        ({"episodes": 6, "time_major": True}, "time-major batches have `steps`"),
        ({"steps": 6, "min_count": 5}, "min_count: there are 4 envs, got 5"),
        ({"steps": 6, "min_count": 2, "overlap": True}, "overlap has fixed groups"),
        ({"steps": 6, "overlap": "yes"}, "overlap: expected True or False, got 'yes'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str):
    with dice() as envs, pytest.raises(ConfigError, match=message):
        collect(envs, zeros, **arguments)


def test_collector_checks_its_arguments_at_once():
    with dice() as envs:
        with pytest.raises(ConfigError, match="batch_steps: expected a multiple of the 4 envs"):
            Collector(envs, zeros, batch_steps=7, time_major=True)
        with pytest.raises(ConfigError, match="Collector: policy: expected a callable"):
            Collector(envs, None, batch_steps=7)


@pytest.mark.parametrize("build", [SyncVectorEnv, functools.partial(BatchedVectorEnv, backend="serial")])
def test_other_vector_envs_are_refused(build: Any):
    env_fn = ToyEnv if build is SyncVectorEnv else functools.partial(SyncVectorEnv, [ToyEnv] * 2)
    envs = build([env_fn])
    with pytest.raises(ConfigError, match="collect: envs: expected a vecenv.VectorEnv, got "):
        collect(envs, zeros, steps=4)
    envs.close()


def test_closed_envs_and_outstanding_sends_are_refused():
    envs = dice()
    envs.reset(seed=0)
    envs.send(np.zeros(2, np.int64), [0, 1])
    with pytest.raises(StateError, match="collect: 2 envs owe the results of earlier calls; receive them first"):
        collect(envs, zeros, steps=4)
    envs.recv()
    assert collect(envs, zeros, steps=4).step.tolist() == [0] * 4
    envs.step_async(np.zeros(4, np.int64))
    with pytest.raises((StateError, AlreadyPendingCallError)):
        collect(envs, zeros, steps=4)
    envs.step_wait()
    envs.close()
    with pytest.raises(ClosedEnvironmentError, match="Collector: the vector env is closed"):
        next(Collector(envs, zeros, batch_steps=4))


# ---- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer, message",
    [
        (lambda count: np.zeros(count - 1, np.int64), r"actions of the policy: expected int64 \(4,\), got int64"),
        (lambda count: np.zeros((count, 2)), r"actions of the policy: expected int64 \(4,\), got float64 \(4, 2\)"),
        (lambda count: (np.zeros(count, np.int64), {"v": np.zeros(2)}), "'v': expected an array with 4 rows"),
    ],
)
def test_wrong_answers_are_refused(answer: Any, message: str):
    with dice() as envs, pytest.raises(SpaceError, match=message):
        collect(envs, lambda obs, env_id: answer(len(env_id)), steps=8)


def test_extras_must_stay_the_same():
    answers: list[dict[str, Any]] = [{"v": np.zeros(1)}, {"v": np.zeros((1, 2))}, {"w": np.zeros(1)}, {"v": ["text"]}]
    for second, message in zip(answers[1:], [r"float64 \(2,\)", r"expected \['v'\], got \['w'\]", "<U4"]):
        left = [answers[0], second]
        with dice(1) as envs, pytest.raises(SpaceError, match=message):
            collect(envs, lambda obs, env_id, left=left: ([0], left.pop(0)), steps=2)


# ---- exceptions during a run -------------------------------------------------------------------


class FailsOnce:
    """Raises in its answer number `moment`."""

    def __init__(self, moment: int, error: BaseException) -> None:
        self.moment = moment
        self.error = error
        self.calls = 0
        self.rows = 0

    def __call__(self, obs: Any, env_id: np.ndarray) -> Any:
        self.calls += 1
        if self.calls == self.moment:
            raise self.error
        self.rows += len(env_id)
        return (obs[:, 3] * 100).astype(np.int64) % 2


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("moment", [1, 2, 9, 10])
@ORDERS
@MODES
def test_policy_that_raises_loses_nothing(mode: AutoresetMode, how: Any, moment: int, error: type[BaseException]):
    policy = FailsOnce(moment, error())
    with dice(autoreset_mode=mode) as envs:
        with pytest.raises(error) as caught:
            collect(envs, policy, steps=400, seed=5, **how)
        collected = caught.value.collected
        assert len(collected) == policy.rows, "each answer that was given is a transition"
        batches = [collected, collect(envs, policy, steps=50, **how)]
        batches.append(collect(envs, policy, steps=40, time_major=True))
    assert_plain([batch for batch in batches if len(batch)], [DiceEnv] * 4, 5)


@MODES
def test_time_major_batch_that_is_interrupted_is_collected_flat(mode: AutoresetMode):
    policy = FailsOnce(7, ZeroDivisionError("no"))
    with dice(autoreset_mode=mode) as envs:
        with pytest.raises(ZeroDivisionError) as caught:
            collect(envs, policy, steps=400, time_major=True, seed=5)
        collected = caught.value.collected
        assert collected.rewards.shape == (policy.rows,)
        assert_plain([collected, collect(envs, policy, steps=40, time_major=True)], [DiceEnv] * 4, 5)


def test_wrong_answer_during_a_run_loses_nothing():
    calls = []

    def policy(obs: Any, env_id: np.ndarray) -> Any:
        calls.append(len(env_id))
        return zeros(obs, env_id)[len(calls) == 5 :]

    with dice() as envs:
        with pytest.raises(SpaceError) as caught:
            collect(envs, policy, steps=100, seed=5)
        batches = [caught.value.collected, collect(envs, policy, steps=100)]
    assert len(batches[0]) == sum(calls[:4])
    assert_plain(batches, [DiceEnv] * 4, 5)


class Estimates(FailsOnce):
    def __call__(self, obs: Any, env_id: np.ndarray) -> Any:
        return zeros(obs, env_id)

    def bootstrap(self, obs: Any, env_id: np.ndarray) -> Any:
        self.calls += 1
        if self.calls == self.moment:
            raise self.error
        return obs[:, 0]


@pytest.mark.parametrize("moment", [1, 3])
@MODES
def test_bootstrap_that_raises_loses_nothing(mode: AutoresetMode, moment: int):
    with dice(autoreset_mode=mode) as envs:
        with pytest.raises(ZeroDivisionError) as caught:
            next(Collector(envs, Estimates(moment, ZeroDivisionError("no")), batch_steps=400, time_major=True, seed=5))
        assert_plain([caught.value.collected, collect(envs, zeros, steps=40)], [DiceEnv] * 4, 5)


@pytest.mark.parametrize("backend", ["serial", "process"])
@ORDERS
def test_exception_of_an_env_has_the_complete_transitions(backend: str, how: Any):
    class RaisesOnce(ToyEnv):
        def step(self, action: Any) -> Any:
            if self.num_steps == 5 and self.num_resets == 1:
                raise ZeroDivisionError("a bug of the env")
            return super().step(action)

    env_fns = [ToyEnv, RaisesOnce, ToyEnv]
    with VectorEnv(env_fns, backend=backend) as envs:
        with pytest.raises(ZeroDivisionError) as caught:
            collect(envs, zeros, steps=300, seed=0, **how)
        collected = caught.value.collected
        counts = np.bincount(collected.env_id)
        assert counts[1] == 5 and (counts.min() >= 5 or "min_count" in how), "others may be behind in finish order"
        assert (collected.next_obs[:, 0] == collected.obs[:, 0] + 1).all()
        after = collect(envs, zeros, steps=6)
        assert after.step.tolist() == [0, 0, 0, 1, 1, 1], "all envs were reset"


def test_interrupt_between_two_rounds_loses_nothing():
    """Ctrl-C while results are under way takes effect when they are stored."""

    class Interrupted(ToyEnv):
        def step(self, action: Any) -> Any:
            if self.num_steps == 20:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    rows = []

    def policy(obs: Any, env_id: np.ndarray) -> Any:
        rows.append(len(env_id))
        return zeros(obs, env_id)

    env_fns = [functools.partial(Interrupted, 7)] + [functools.partial(ToyEnv, 4)] * 2
    handler = signal.getsignal(signal.SIGINT)
    with VectorEnv(env_fns, backend="serial") as envs:
        with pytest.raises(KeyboardInterrupt) as caught:
            collect(envs, policy, steps=500, seed=2)
        collected = caught.value.collected
        assert 40 < len(collected) == sum(rows) < 80
        batches = [collected, collect(envs, policy, steps=30)]
    assert signal.getsignal(signal.SIGINT) is handler
    assert_plain(batches, [functools.partial(ToyEnv, 7)] + [functools.partial(ToyEnv, 4)] * 2, 2)


def test_interrupt_in_the_last_round_keeps_the_batch():
    class Interrupted(ToyEnv):
        def step(self, action: Any) -> Any:
            if self.num_steps == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    with VectorEnv([Interrupted] * 1, backend="serial") as envs:
        with pytest.raises(KeyboardInterrupt) as caught:
            collect(envs, zeros, steps=5, seed=2)
        assert caught.value.collected.step.tolist() == [0, 1, 2, 3, 4]


def test_interrupt_before_an_exception_of_an_env_is_not_lost():
    class Fails(ToyEnv):
        def step(self, action: Any) -> Any:
            if self.num_steps == 4:
                os.kill(os.getpid(), signal.SIGINT)
                raise ZeroDivisionError("a bug of the env")
            return super().step(action)

    with VectorEnv([Fails], backend="serial") as envs:
        with pytest.raises(KeyboardInterrupt) as caught:
            collect(envs, zeros, steps=5, seed=2)
        assert isinstance(caught.value.__context__, ZeroDivisionError)
        assert caught.value.collected.step.tolist() == [0, 1, 2, 3]


def test_second_interrupt_takes_effect_at_once():
    class Hangs(ToyEnv):
        def step(self, action: Any) -> Any:
            if self.num_steps == 4 and self.num_resets == 1:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                raise AssertionError("the second one was delayed, too")
            return super().step(action)

    with VectorEnv([Hangs], backend="serial") as envs:
        with pytest.raises(KeyboardInterrupt) as caught:
            collect(envs, zeros, steps=50, seed=2)
        assert len(caught.value.collected) == 4
        assert collect(envs, zeros, steps=2).step.tolist() == [0, 1], "the env was reset"


class InterruptsReset(ToyEnv):
    """Interrupts the program in its first reset, and waits there until a file exists."""

    def __init__(self, program: int, file: Path) -> None:
        super().__init__(4)
        self.program, self.file = program, file

    def reset(self, **kwargs: Any) -> Any:
        if not self.file.exists():
            os.kill(self.program, signal.SIGINT)
            wait_until(self.file.exists)
        return super().reset(**kwargs)


@pytest.mark.parametrize("make", [VectorEnv, ShardedVectorEnv])
def test_collector_goes_on_after_an_interrupt_in_its_first_batch(make: Any, tmp_path: Path) -> None:
    """The reset that Ctrl-C has interrupted is outstanding; the next batch begins with the same seeds."""
    env_fns: list[Any] = [functools.partial(ToyEnv, 4)] * 3
    interrupting = functools.partial(InterruptsReset, os.getpid(), tmp_path / "reset")
    with make([interrupting, *env_fns[1:]], num_workers=1) as envs:
        collector = Collector(envs, zeros, batch_steps=30, seed=2)
        with pytest.raises(KeyboardInterrupt):
            next(collector)
        (tmp_path / "reset").touch()
        assert_plain([next(collector), next(collector)], env_fns, 2)


def test_reset_that_is_refused_leaves_outstanding_steps_alone() -> None:
    with VectorEnv([ToyEnv] * 2, backend="serial") as envs:
        with pytest.raises(ValueError, match="seed"):
            collect(envs, zeros, steps=4, seed=[1, 2, 3])
        envs.reset(seed=0)
        envs.step_async([0, 0])
        with pytest.raises(StateError, match="owe the results"):
            collect(envs, zeros, steps=4)
        envs.step_wait()
