"""The contract that VectorEnv keeps over every backend, and tests of single backends."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError

from tests.contracts.vector_env_contract import STEPS, VectorEnvContract
from vecenv import ConfigError, VectorEnv, WorkerDiedError
from vecenv.core.options import Limits
from vecenv.envs.toys import CountEnv, ExitAtStep, HangAtReset, HangAtStep, RaiseAtInit, ToyEnv
from vecenv.errors import StateError


class WritesToPipe(ToyEnv):
    """Writes to a file or a pipe; a pipe blocks until it has a reader."""

    def __init__(self, pipe):
        super().__init__()
        self.pipe = pipe

    def tell(self, text):
        return self.pipe.write_text(text)

    def close(self):
        if not self.pipe.is_fifo():
            self.tell("closed")


class TestSerial(VectorEnvContract):
    backend = "serial"


class TestProcess(VectorEnvContract):
    backend = "process"

    @pytest.mark.extended
    def test_worker_count_and_worker_pids(self, open_envs):
        envs = open_envs([ToyEnv] * 5, num_workers=2)
        assert len(envs.worker_pids) == 2 and all(isinstance(pid, int) for pid in envs.worker_pids)
        assert len(open_envs([ToyEnv] * 5, max_concurrency=3).worker_pids) == 3

    def test_step_timeout(self, open_envs):
        envs = open_envs([CountEnv, HangAtStep], num_workers=2, timeouts={"close": 0.1})
        envs.reset(seed=0)
        envs.step_async([0, 0])
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.05)

    @pytest.mark.parametrize("moment", ["step", "reset"])
    def test_partial_reset_keeps_pending_steps_of_others(self, open_envs, moment):
        hang = HangAtStep if moment == "step" else functools.partial(HangAtReset, at=2)
        envs = open_envs([functools.partial(CountEnv, None), hang], num_workers=2, timeouts={"close": 0.1})
        envs.reset(seed=0)
        envs.step_async([0, 0]) if moment == "step" else envs.reset_async()
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.05) if moment == "step" else envs.reset_wait(timeout=0.05)
        with pytest.raises(AlreadyPendingCallError, match=r"envs \[1\] still owe an answer"):
            envs.reset(options={"reset_mask": np.array([True, False])})
        with pytest.raises(AlreadyPendingCallError, match=f"env 0 still owes the answer to a {moment}; .*, or reset"):
            envs.step([0, 0])

    @pytest.mark.extended
    def test_other_envs_continue_while_one_hangs(self, open_envs):
        envs = open_envs([functools.partial(CountEnv, None), HangAtStep], num_workers=2, timeouts={"close": 0.1})
        envs.reset(seed=0)
        envs.send([0, 0])
        for i in range(5):
            obs, _, _, _, infos = envs.recv(1)
            assert infos["env_id"].tolist() == [0] and obs[0, STEPS] == i + 1
            envs.send([0], [0])
        with pytest.raises(multiprocessing.TimeoutError):
            envs.recv(2, timeout=0.05)
        assert envs.recv(1)[0][0, STEPS] == 6

    @pytest.mark.extended
    def test_recv_waits_for_the_requested_batch_size_until_the_timeout(self, open_envs):
        envs = open_envs([CountEnv, HangAtStep], num_workers=2, timeouts={"close": 0.1}, batch_size=2)
        envs.reset(seed=0)
        envs.send([0, 0])
        with pytest.raises(multiprocessing.TimeoutError, match=r"fewer than 2 answers within 0.05 s"):
            envs.recv(timeout=0.05)

    def test_reset_timeout(self, open_envs):
        envs = open_envs([CountEnv, functools.partial(HangAtReset, at=2)], num_workers=2, timeouts={"close": 0.1})
        envs.reset(seed=0)
        envs.reset_async(seed=1)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.reset_wait(timeout=0.05)
        envs.reset_async(seed=2)  # the abandoned call does not block this one
        with pytest.raises(multiprocessing.TimeoutError):
            envs.reset_wait(timeout=0.05)

    def test_call_starts_at_once(self, open_envs, tmp_path):
        pipes = [tmp_path / str(i) for i in range(2)]
        for pipe in pipes:
            os.mkfifo(pipe)
        envs = open_envs([functools.partial(WritesToPipe, pipe) for pipe in pipes], num_workers=2)
        envs.call_async("tell", "now")
        assert [pipe.read_text() for pipe in pipes] == ["now"] * 2  # before any call waits for the result
        assert envs.call_wait() == (3, 3)

    @pytest.mark.extended
    def test_call_timeout(self, open_envs, tmp_path):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        envs = open_envs([functools.partial(WritesToPipe, pipe)])
        envs.call_async("tell", "late")  # waits for a reader of the pipe
        with pytest.raises(multiprocessing.TimeoutError, match="The calls are abandoned"):
            envs.call_wait(timeout=0.05)
        assert pipe.read_text() == "late"
        assert envs.get_attr("pipe") == (pipe,)  # the late reply is not returned here

    @pytest.mark.parametrize("how", [{"timeout": 0.05}, {"terminate": True}], ids=["timeout", "terminate"])
    def test_close_does_not_wait_for_a_hang(self, open_envs, how):
        envs = open_envs([HangAtStep] * 2, timeouts={"close": 300.0})
        envs.reset(seed=0)
        envs.send([0, 0])
        envs.close(**how)
        assert envs.closed and not any(os.path.exists(f"/proc/{pid}") for pid in envs.worker_pids)

    def test_close_waits_for_envs_to_be_closed(self, open_envs, tmp_path):
        envs = open_envs([functools.partial(WritesToPipe, tmp_path / "closed")], timeouts={"close": 0.001})
        envs.close(timeout=60.0)
        assert (tmp_path / "closed").read_text() == "closed"

    def test_close_has_the_limit_that_was_set_last(self, open_envs, tmp_path):
        envs = open_envs([functools.partial(WritesToPipe, tmp_path / "closed")], timeouts={"close": 0.001})
        envs.pool.set_limits(Limits(close=60.0))
        envs.close()
        assert (tmp_path / "closed").read_text() == "closed"

    @pytest.mark.extended
    def test_dead_worker_is_an_error(self, open_envs):
        envs = open_envs([CountEnv, ExitAtStep], num_workers=2, failures="raise")
        envs.reset(seed=0)
        with pytest.raises(WorkerDiedError, match="exit code 3"):
            envs.step([0, 0])

    @pytest.mark.extended
    def test_step_that_always_hangs_truncates_its_episode(self, open_envs):
        """When another worker replays it, the step timeout applies, not the timeout of the replayed reset."""
        envs = open_envs([functools.partial(CountEnv, None), HangAtStep], timeouts={"step": 1.0}, num_workers=2)
        envs.reset(seed=0)
        obs, rewards, terminations, truncations, infos = envs.step([0, 0])
        assert truncations.tolist() == [False, True] and not terminations.any() and obs[0, STEPS] == 1
        assert infos["_recovered"].tolist() == [False, True]

    @pytest.mark.extended
    def test_two_vector_envs_are_independent(self, open_envs):
        one, other = open_envs(CountEnv), open_envs(CountEnv)
        one.reset(seed=0)
        other.reset(seed=50)
        one.step([0] * 3)
        assert other.step([0] * 3)[4]["seed"].tolist() == [50, 51, 52]


def test_unknown_backend_is_refused():
    with pytest.raises(ConfigError, match="backend: expected one of"):
        VectorEnv([ToyEnv], backend="thread")


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_constructor_that_raises_is_an_error(backend):
    with pytest.raises(RuntimeError):
        VectorEnv([ToyEnv, RaiseAtInit], backend=backend)


def test_env_fn_that_does_not_pickle_is_an_error():
    import threading

    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"env_fns\[1\]"):
        VectorEnv([ToyEnv, lambda: ToyEnv(lock)])


def test_forked_child_error_names_the_parent():
    with contextlib.closing(VectorEnv([ToyEnv])) as envs:
        envs.reset(seed=0)
        envs.send([0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            told = False
            try:
                envs.reset()
            except StateError as error:
                told = not isinstance(error, AlreadyPendingCallError) and "belongs to process" in str(error)
            finally:
                os._exit(0 if told else 1)
        assert os.waitpid(pid, 0)[1] == 0
        envs.recv()


@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_start_methods_give_equal_results(context):
    with_local_class = type("Local", (CountEnv,), {})
    envs = VectorEnv([with_local_class] * 2, context=context)
    try:
        assert np.array_equal(envs.reset(seed=1)[1]["seed"], [1, 2])
    finally:
        envs.close()


# ---- the envs of the serial backend ------------------------------------------------------------


def make_serial(front_end):
    if front_end == "SB3VecEnv":
        return pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError).SB3VecEnv(
            [CountEnv] * 2, backend="serial"
        )
    return VectorEnv([CountEnv] * 2, backend="serial", observation_mode=front_end)


@pytest.mark.parametrize("front_end", ["same", "different", "SB3VecEnv"])
def test_serial_backend_has_the_envs_themselves(front_end):
    """As `SyncVectorEnv.envs` and `DummyVecEnv.envs`; programs read counters of their envs there."""
    envs = make_serial(front_end)
    envs.reset()
    assert [type(env) for env in envs.envs] == [CountEnv, CountEnv] and envs.envs[0] is not envs.envs[1]
    envs.step([0, 0])
    copied, env = envs.get_attr("unwrapped")[1], envs.envs[1]
    assert copied is not env and copied.num_steps == env.num_steps == 1  # results are copies, as those of workers
    envs.close()
    assert [type(env) for env in envs.envs] == [CountEnv, CountEnv]


def test_worker_processes_have_no_envs_attribute():
    with VectorEnv([ToyEnv], num_workers=1) as envs:
        assert not hasattr(envs, "envs")
        with pytest.raises(AttributeError, match=r"in its workers. Use call, get_attr"):
            _ = envs.envs


@pytest.mark.parametrize("replaced", ["outer", "inner"])
def test_methods_replaced_in_envs_are_called_at_once(replaced):
    """The serial backend passes over the outermost wrappers of `gymnasium.make` until `envs` is read."""
    envs = VectorEnv([functools.partial(gymnasium.make, "CartPole-v1")] * 2, backend="serial")
    envs.reset(seed=0)
    envs.step([0, 1])
    env = envs.envs[1] if replaced == "outer" else envs.envs[1].unwrapped
    step, actions = env.step, []

    def record(action):
        actions.append(action)
        return step(action)

    env.step = record
    envs.step([0, 1])
    assert actions == [1]
    envs.envs[1].unwrapped.state = np.array([9.0, 0, 0, 0])
    assert envs.step([0, 1])[2].tolist() == [False, True]
    envs.close()
