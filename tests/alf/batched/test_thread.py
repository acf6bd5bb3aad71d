"""ThreadEnvironment: one environment in one thread, with time limits."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

from tests.alf.comparison import assert_same, counting, toy
from vecenv import ConfigError
from vecenv.alf import AlfGymWrapper, BatchEnvironmentWrapper, ThreadEnvironment
from vecenv.alf.batched import thread
from vecenv.alf.wrappers.batch import stack
from vecenv.envs.toys import RaiseAtInit, RaiseAtStep, ToyEnv


class RecordsThreads(ToyEnv):
    """Records the thread of every call; if there is a `gate`, each step waits for it."""

    def __init__(self, gate=None, **kwargs):
        super().__init__(**kwargs)
        self.threads = [threading.get_ident()]
        self.gate = gate

    def reset(self, **kwargs):
        self.threads.append(threading.get_ident())
        return super().reset(**kwargs)

    def step(self, action):
        self.threads.append(threading.get_ident())
        if self.gate is not None:
            self.gate.wait()
        return super().step(action)

    def close(self):
        self.threads.append(threading.get_ident())


def test_thread_runs_every_call_in_one_other_thread():
    env = ThreadEnvironment(lambda: AlfGymWrapper(RecordsThreads()), tensors=False)
    env.reset()
    env.step(np.zeros(1, np.int64))
    env.call("observe")
    threads = env.threads  # a plain attribute is read without the thread
    env.close()
    assert len(threads) == 4 and len(set(threads)) == 1 and threads[0] != threading.get_ident()


def test_time_steps_equal_those_of_a_batch_of_one():
    alone = counting(1)
    with ThreadEnvironment(lambda: counting(1), tensors=False) as env:
        assert env.batched and env.batch_size == 1 and not env.is_tensor_based
        assert env.time_step_spec() == alone.time_step_spec() and env.task_names == alone.task_names
        env.seed(3)
        alone.seed(3)
        assert_same(env.reset(), stack([alone.reset()]))
        for _ in range(8):
            assert_same(env.step(np.ones(1, np.int64)), stack([alone.step(1)]))
        assert env.get_info()["steps"].shape == (1,)


def test_tensors_cross_the_thread():
    torch = pytest.importorskip("torch")
    with ThreadEnvironment(toy) as env:
        assert env.is_tensor_based
        assert env.step(torch.tensor([1])).is_first().tolist() == [True]
        step = env.step(torch.tensor([1]))
        assert step.prev_action.tolist() == [1] and step.reward.dtype == torch.float32


@pytest.mark.extended
def test_errors_keep_their_type():
    with pytest.raises(RuntimeError, match="cannot be built"):
        ThreadEnvironment(lambda: AlfGymWrapper(RaiseAtInit()))
    with pytest.raises(AssertionError, match="a single AlfEnvironment"):
        ThreadEnvironment(lambda: BatchEnvironmentWrapper([toy()]))
    with pytest.raises(AssertionError, match="a single AlfEnvironment of arrays, got 3"):
        ThreadEnvironment(lambda: 3)
    with ThreadEnvironment(lambda: AlfGymWrapper(RaiseAtStep()), tensors=False) as env:
        env.reset()
        with pytest.raises(ZeroDivisionError):
            env.step(np.zeros(1, np.int64))
        assert env.reset().is_first().all(), "it goes on"
        with pytest.raises(AttributeError, match="no_such_thing"):
            _ = env.no_such_thing


def test_close_is_idempotent_and_later_calls_raise():
    env = ThreadEnvironment(toy, tensors=False)
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_thread_environment_cannot_be_copied(duplicate):
    """Deleting a shallow copy would end the thread."""
    with ThreadEnvironment(lambda: counting(1), tensors=False, reset_timeout=20.0) as env:
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            duplicate(env)
        env.reset()


def test_hanging_step_times_out_and_close_does_not_wait():
    gate = threading.Event()
    inner = RecordsThreads(gate)
    env = ThreadEnvironment(lambda: AlfGymWrapper(inner), tensors=False, step_timeout=0.05)
    env.reset()
    with pytest.raises(TimeoutError, match=r"did not finish step within 0.05 s; raise step_timeout"):
        env.step(np.zeros(1, np.int64))
    with pytest.raises(TimeoutError, match="still running; call close"):
        env.reset()
    env.close()
    before = len(inner.threads)
    gate.set()
    env._thread.join(10)
    assert len(inner.threads) == before + 1, "the env is closed when its thread gets to it"


def test_hanging_step_without_a_limit_is_reported_with_its_stack(monkeypatch, caplog, report_after):
    monkeypatch.setattr(thread, "_POLL_SECONDS", 0.05)
    report_after(0.2)
    gate = threading.Event()
    with ThreadEnvironment(lambda: AlfGymWrapper(RecordsThreads(gate)), tensors=False) as env:
        env.reset()
        opener = threading.Timer(0.5, gate.set)
        opener.start()
        with pytest.warns(RuntimeWarning, match="thread: step has been running for 0.2 s") as seen:
            env.step(np.zeros(1, np.int64))
        opener.join()
    (text,) = [str(warning.message) for warning in seen]
    assert "Set timeouts={'step': ...}, in seconds" in text and "self.gate.wait()" in text
    assert [record.message for record in caplog.records] == ["vecenv: " + text]


@pytest.mark.parametrize("limit", [float("inf"), threading.TIMEOUT_MAX, 10**400], ids=["inf", "most", "more"])
def test_infinite_limits_mean_no_limit(limit):
    limits = {f"{name}_timeout": limit for name in ("construct", "reset", "step", "call", "close")}
    env = ThreadEnvironment(lambda: AlfGymWrapper(ToyEnv()), tensors=False, **limits)
    env.step(0)
    env.close()


@pytest.mark.parametrize("limit", [float("nan"), -1, 0, "1"], ids=repr)
def test_limit_of_wrong_type_starts_nothing(limit):
    with pytest.raises(ConfigError, match=f"step_timeout: expected seconds above 0, got {limit!r}"):
        ThreadEnvironment(lambda: AlfGymWrapper(ToyEnv()), tensors=False, step_timeout=limit)


@pytest.mark.parametrize("constructor", [None, AlfGymWrapper(ToyEnv())], ids=["None", "an env"])
def test_constructor_of_wrong_type_starts_nothing(constructor):
    with pytest.raises(ConfigError, match="^env_constructor: expected a callable, got"):
        ThreadEnvironment(constructor, construct_timeout=1.0)
