"""Environments of a batch that raise, hang or die: one error in time, and the batch can continue or be closed."""

from __future__ import annotations

import functools
import os

import numpy as np
import psutil
import pytest

from tests.alf.comparison import assert_same, covered, toy
from tests.faults.traces import kill
from vecenv.alf import (
    AlfEnvironmentBaseWrapper,
    AlfGymWrapper,
    BatchEnvironmentWrapper,
    MultitaskWrapper,
    ParallelAlfEnvironment,
    RandomFirstEpisodeLength,
)
from vecenv.envs.toys import (
    ExitAtInit,
    ExitAtReset,
    ExitAtStep,
    HangAtReset,
    HangAtStep,
    HangInC,
    RaiseAtInit,
    RaiseAtReset,
    RaiseAtStep,
    SegfaultAtStep,
    ToyEnv,
)
from vecenv.errors import WorkerDiedError, WorkerTimeoutError

ACTION = np.zeros(3, np.int64)
SECONDS = 0.3


def faulty(fault, env_id=0, faulty_id=1, **kwargs):
    """Give env `faulty_id` a fault and the others none."""
    return AlfGymWrapper(fault(**kwargs) if env_id == faulty_id else ToyEnv(10), env_id)


def parallel(fault, wrap=False, at=1, once=None, **options):
    make = functools.partial(faulty, fault, at=at, once=once)
    if wrap:
        make = functools.partial(covered, make=make)
    return ParallelAlfEnvironment([make] * 3, tensors=False, **options)


def play(env, steps=5):
    env.reset()
    for _ in range(steps):
        env.step(ACTION)


@pytest.mark.extended
@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("fault", "error"), [(RaiseAtStep, ZeroDivisionError), (RaiseAtReset, ValueError)])
def test_env_exception_keeps_its_type_and_the_next_step_resets(fault, error, ahead, wrap, tmp_path):
    with parallel(fault, wrap, at=2, once=tmp_path / "done", reset_ahead=ahead, backend="serial") as env:
        with pytest.raises(error) as caught:
            play(env, 15)  # the faulty env's second step, or its second reset
        assert "toy env" in str(caught.value)
        assert env.step(ACTION).is_first().all()
        assert env.step(ACTION).is_mid().all()


@pytest.mark.extended
def test_worker_traceback_is_the_cause():
    with parallel(RaiseAtStep, num_workers=2) as env:
        with pytest.raises(ZeroDivisionError) as caught:
            play(env)
        assert "in _fail_if_due" in str(caught.value.__cause__)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("fault", "says"), [(ExitAtStep, "exit code 3"), (SegfaultAtStep, "SIGSEGV"), (ExitAtReset, "exit code 3")]
)
def test_dead_worker_is_one_error_that_names_it(fault, says):
    with parallel(fault, num_workers=3, on_failure="raise") as env:
        with pytest.raises(WorkerDiedError, match=says) as caught:
            play(env)
        assert caught.value.env_ids == (1,)


@pytest.mark.extended
@pytest.mark.parametrize("fault", [HangAtStep, HangInC, HangAtReset])
@pytest.mark.parametrize("ahead", [False, True])
def test_hanging_env_times_out_and_close_does_not_wait(fault, ahead):
    """W45: the original's close waits without a limit."""
    limits = {"step_timeout": SECONDS, "reset_timeout": SECONDS, "close_timeout": SECONDS}
    env = parallel(fault, num_workers=3, reset_ahead=ahead, on_failure="raise", **limits)
    pids = env.worker_pids
    with pytest.raises(WorkerTimeoutError, match=f"within {SECONDS} s"):
        play(env)
    env.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    env.close()


@pytest.mark.extended
@pytest.mark.parametrize(("fault", "error"), [(RaiseAtInit, RuntimeError), (ExitAtInit, WorkerDiedError)])
def test_constructor_errors_keep_their_type(fault, error):
    """W45: the original fails with an AssertionError about a tuple."""
    with pytest.raises(error, match="toy env cannot be built|exit code 3"):
        parallel(fault, num_workers=2)


@pytest.mark.extended
def test_spare_env_that_dies_during_its_reset_is_an_error():
    make = functools.partial(faulty, ExitAtReset, faulty_id=3, at=1)
    options = {"num_spare_envs_for_reload": 1, "tensors": False, "on_failure": "raise"}
    with ParallelAlfEnvironment([make] * 4, **options) as env, pytest.raises(WorkerDiedError, match="env 3"):
        play(env, 11)  # the spare env is needed after ten steps


@pytest.mark.extended
def test_spare_env_that_raises_during_its_reset_is_an_error(tmp_path):
    make = functools.partial(faulty, RaiseAtReset, faulty_id=0, at=2, once=tmp_path / "done")
    with ParallelAlfEnvironment([make] * 4, num_spare_envs_for_reload=1, tensors=False) as env:
        with pytest.raises(ValueError, match="cannot reset"):
            play(env, 40)
        assert env.step(ACTION).is_first().all()


# ---- made good -------------------------------------------------------------------------------------


def drawn(make, **options):
    """Step on with random actions; return all time steps."""
    with ParallelAlfEnvironment([make] * 3, tensors=False, num_workers=2, **options) as env:
        rng = np.random.default_rng(0)
        env.seed([1, 2, 3])
        return [env.reset(), *(env.step(rng.integers(0, 2, env.batch_size)) for _ in range(60))]


def short(env_id=0, **kwargs):
    """Make envs with episodes of three steps; env 1 has the fault."""
    return faulty(ExitAtStep, env_id, length=3, **kwargs) if env_id == 1 else toy(env_id)


def cut_at_random(env_id=0, **kwargs):
    env = faulty(ExitAtStep, env_id, length=9, **kwargs) if env_id == 1 else toy(env_id, length=9)
    return RandomFirstEpisodeLength(env, 5, num_episodes=20)


def batches(env_id=0, **kwargs):
    return BatchEnvironmentWrapper([short(env_id, **kwargs), toy(length=4)])


def tasks(env_id=0, **kwargs):
    """Without a curriculum the first task is played all the time."""
    env = MultitaskWrapper([short(env_id, **kwargs), toy(length=3)], ["one", "other"], env_id)
    return OfTheFirstTask(env)


class OfTheFirstTask(AlfEnvironmentBaseWrapper):
    def action_spec(self):
        return self._env.action_spec()["action"]

    def _reset(self):
        return self._bare(self._env.reset())

    def _step(self, action):
        return self._bare(self._env.step({"task_id": 0, "action": action}))

    def _bare(self, step):
        return step._replace(prev_action=step.prev_action["action"])


@pytest.mark.extended
@pytest.mark.parametrize(
    ("make", "ahead"),
    [
        (short, False),
        (short, True),
        (functools.partial(covered, make=short), True),
        (cut_at_random, False),
        (batches, False),
        (tasks, False),
    ],
)
def test_crash_recovery_is_exact(make, ahead, tmp_path):
    once = tmp_path / "died"
    undisturbed = drawn(functools.partial(make, at=None, once=_touch(tmp_path / "never")), reset_ahead=ahead)
    found = drawn(functools.partial(make, at=40, once=once), reset_ahead=ahead)
    assert once.exists(), "it has died"
    for mine, theirs in zip(found, undisturbed, strict=True):
        assert_same(mine._replace(env_info={}), theirs._replace(env_info={}))
    assert [step for step in found if "recovered" in step.env_info], "the recovery is marked in the info"


def _touch(path):
    path.touch()
    return path


@pytest.mark.extended
def test_crash_recovery_is_exact_with_spare_envs(tmp_path):
    def run(**fault):
        make = functools.partial(short, **fault)
        with ParallelAlfEnvironment([make] * 4, num_spare_envs_for_reload=1, tensors=False) as env:
            env.seed([1, 2, 3, 4])
            return [env.reset(), *(env.step(ACTION) for _ in range(40))]

    undisturbed = run(at=None, once=_touch(tmp_path / "never"))
    for mine, theirs in zip(run(at=20, once=tmp_path / "died"), undisturbed, strict=True):
        assert_same(mine._replace(env_info={}), theirs._replace(env_info={}))
    assert (tmp_path / "died").exists()


# ---- given up --------------------------------------------------------------------------------------


class Unrepeatable(ToyEnv):
    """Draws from the system's entropy, so its episodes cannot be replayed."""

    def observe(self):
        obs = super().observe()
        obs[3] = float.fromhex(os.urandom(2).hex())
        return obs


def unrepeatable(env_id=0):
    return AlfGymWrapper(Unrepeatable(10), env_id)


def two_unrepeatable(env_id=0):
    return BatchEnvironmentWrapper([unrepeatable(), unrepeatable()])


def unrepeatable_tasks(env_id=0):
    return OfTheFirstTask(MultitaskWrapper([unrepeatable(), unrepeatable()], ["one", "other"], env_id))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("make", "ahead", "steps"),
    [
        (unrepeatable, False, 2),
        (functools.partial(covered, make=unrepeatable), False, 2),
        (functools.partial(covered, make=unrepeatable), True, 0),
        (unrepeatable_tasks, False, 0),
        (two_unrepeatable, None, 2),
        (two_unrepeatable, None, 0),
    ],
    ids=["plain", "covered", "covered, ahead", "tasks", "batches", "batches, first step"],
)
def test_unrecoverable_episode_ends_with_a_last_step(make, ahead, steps):
    """A FIRST step inside an episode would make a learner join two episodes into one."""
    with ParallelAlfEnvironment([make] * 2, tensors=False, num_workers=2, reset_ahead=ahead) as env:
        size = env.batch_size
        shown = env.reset()
        for _ in range(steps):
            shown = env.step(np.zeros(size, np.int64))
        kill(env, 1)
        lost, first = (env.step(np.ones(size, np.int64)) for _ in range(2))
    half = size // 2
    assert lost.step_type.tolist() == [1] * half + [2] * half and lost.step_type.dtype == np.int32
    assert lost.discount.tolist() == [1.0] * size and lost.reward.tolist() == [1.0] * half + [0.0] * half
    assert lost.prev_action.tolist() == [1] * size, "the action that was sent"
    assert lost.observation[half:].tolist() == shown.observation[half:].tolist(), "what was seen last"
    assert first.step_type.tolist() == [1] * half + [0] * half
    assert first.prev_action.tolist() == [1] * half + [0] * half


def test_calls_after_close_raise_an_error_that_says_why():
    env = parallel(RaiseAtStep, at=100, backend="serial")
    env.reset()
    env.close()
    for call in (env.reset, lambda: env.step(ACTION), lambda: env.call_envs_with_same_args("observation_spec")):
        with pytest.raises(RuntimeError, match="closed"):
            call()
