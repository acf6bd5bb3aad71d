"""Rows of NEXT_STEP autoresets are no transitions: `infos["autoreset"]` marks them, so that collectors skip them."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import vecenv
from tests.vector.comparison import assert_same
from vecenv import BatchedVectorEnv, ConfigError, VectorEnv
from vecenv.envs.toys import ToyEnv

LENGTHS = (2, 3, 5, 4)
ENV_FNS = [functools.partial(ToyEnv, length) for length in LENGTHS]


@pytest.mark.parametrize("infos", ["all", "columns", "done", "none"])
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "views"])
def test_recv_marks_rows_of_autoresets(backend, infos, copy):
    with VectorEnv(ENV_FNS, backend=backend, infos=infos, copy=copy) as envs:
        envs.reset(seed=1)
        envs.send(np.ones(4, np.int64))
        ended = np.zeros(4, bool)
        kept = []
        for _ in range(40):
            _, rewards, terminations, truncations, found = envs.recv(2)
            env_ids = found["env_id"].copy()
            marks = found["autoreset"]
            assert marks.dtype == bool and marks.tolist() == ended[env_ids].tolist() and "_autoreset" not in found
            assert rewards.tolist() == [0.0 if is_reset else 1.0 for is_reset in marks]
            kept.append((marks, marks.copy()))
            ended[env_ids] = terminations | truncations
            envs.send(np.ones(len(env_ids), np.int64), env_ids)
        assert any(marks.any() for marks, _ in kept)
        assert all(np.array_equal(marks, copied) for marks, copied in kept), "marks are not views"


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_step_marks_rows_of_autoresets_only_if_asked(backend, mode):
    """Without marks the infos are those of SyncVectorEnv. With them, there is one key more."""
    zeros = np.zeros(4, np.int64)
    with (
        VectorEnv(ENV_FNS, backend=backend, autoreset_mode=mode) as plain,
        VectorEnv(ENV_FNS, backend=backend, autoreset_mode=mode, mark_autoreset=True) as marked,
        contextlib.closing(SyncVectorEnv(ENV_FNS, autoreset_mode=mode)) as reference,
    ):
        first = reference.reset(seed=3)
        assert_same(plain.reset(seed=3), first)
        assert_same(marked.reset(seed=3), first)
        ended = np.zeros(4, bool)
        for _ in range(12 if mode != AutoresetMode.DISABLED else 2):
            expected = reference.step(zeros)
            assert_same(plain.step(zeros), expected)
            step = marked.step(zeros)
            expected_marks = ended if mode == AutoresetMode.NEXT_STEP else np.zeros(4, bool)
            assert_same(step[4].pop("autoreset"), expected_marks)
            assert_same(step, expected)
            ended = expected[2] | expected[3]


def test_every_form_of_step_has_the_marks(backend):
    with VectorEnv([functools.partial(ToyEnv, 1)] * 3, backend=backend, mark_autoreset=True) as envs:
        envs.reset(seed=0)
        assert envs.step(np.zeros(3, np.int64))[4]["autoreset"].tolist() == [False] * 3
        envs.step_async(np.zeros(3, np.int64))
        assert envs.step_wait()[4]["autoreset"].tolist() == [True] * 3
        assert envs.step(np.zeros(2, np.int64), [2, 0])[4]["autoreset"].tolist() == [False] * 2
        infos = envs.step(np.zeros(2, np.int64), [0, 1])[4]
        assert infos["env_id"].tolist() == [0, 1] and infos["autoreset"].tolist() == [True, False]
        assert "autoreset" not in envs.reset()[1]


def test_step_of_some_envs_has_no_marks_by_default():
    with VectorEnv([functools.partial(ToyEnv, 1)] * 3, backend="serial") as envs:
        envs.reset(seed=0)
        assert "autoreset" not in envs.step(np.zeros(1, np.int64), [1])[4]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_recv_has_no_marks_in_modes_without_such_rows(mode):
    for options, expected in (({}, None), ({"mark_autoreset": True}, [False] * 2)):
        with VectorEnv([ToyEnv] * 2, backend="serial", autoreset_mode=mode, **options) as envs:
            envs.reset(seed=0)
            envs.send(np.zeros(2, np.int64))
            marks = envs.recv()[4].get("autoreset")
            assert (None if marks is None else marks.tolist()) == expected


def test_rows_of_async_reset_are_not_marked(backend):
    with VectorEnv([functools.partial(ToyEnv, 1)] * 2, backend=backend) as envs:
        envs.async_reset(seed=0)
        assert envs.recv()[4]["autoreset"].tolist() == [False] * 2
        envs.send(np.zeros(2, np.int64))
        envs.recv()
        envs.async_reset(0)  # this replaces the autoreset
        envs.send(np.zeros(1, np.int64), [1])
        infos = envs.recv()[4]
        assert dict(zip(infos["env_id"].tolist(), infos["autoreset"].tolist())) == {0: False, 1: True}


@pytest.mark.extended
def test_marks_are_those_of_an_undisturbed_run_after_a_crash():
    def play(kills: bool) -> list[list[bool]]:
        with VectorEnv(ENV_FNS, num_workers=2, mark_autoreset=True) as envs:
            envs.reset(seed=5)
            marks = []
            for number in range(20):
                if kills and number % 3 == 1:
                    os.kill(envs.worker_pids[number % 2], signal.SIGKILL)
                marks.append(envs.step(np.zeros(4, np.int64))[4]["autoreset"].tolist())
            return marks

    assert play(kills=True) == play(kills=False)


@pytest.mark.extended
def test_collector_that_skips_marked_rows_stores_transitions_only():
    """CartPole gives reward 1 for every step. Without the marks, 4 % of the rows of random play have reward 0."""
    name = vecenv.register_vec("CartPole-v1")
    for envs in (
        vecenv.make_vec("CartPole-v1", num_envs=8, mark_autoreset=True),
        gymnasium.make_vec(name, num_envs=8, mark_autoreset=True, backend="serial"),
    ):
        with contextlib.closing(envs):
            envs.reset(seed=0)
            envs.action_space.seed(0)
            stored, seen = [], []
            for _ in range(100):
                _, rewards, _, _, infos = envs.step(envs.action_space.sample())
                stored += rewards[~infos["autoreset"]].tolist()
                seen += rewards.tolist()
        assert set(stored) == {1.0} and seen.count(0.0) == len(seen) - len(stored) > 10


def test_mark_autoreset_must_be_a_flag():
    for build in (VectorEnv, BatchedVectorEnv):
        with pytest.raises(ConfigError, match="mark_autoreset"):
            build([ToyEnv], backend="serial", mark_autoreset="yes")


# ---- batches --------------------------------------------------------------------------------


def batches(mode: AutoresetMode, **options: Any) -> BatchedVectorEnv:
    batch = functools.partial(SyncVectorEnv, ENV_FNS, autoreset_mode=mode)
    return BatchedVectorEnv([batch] * 2, mark_autoreset=True, **options)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_batched_step_marks_rows_of_autoresets(backend, mode):
    zeros = np.zeros(8, np.int64)
    with batches(mode, backend=backend) as envs:
        envs.reset(seed=0)
        ended = np.zeros(8, bool)
        for _ in range(12 if mode != AutoresetMode.DISABLED else 2):
            _, rewards, terminations, truncations, infos = envs.step(zeros)
            expected = ended if mode == AutoresetMode.NEXT_STEP else np.zeros(8, bool)
            assert_same(infos["autoreset"], expected)
            assert (rewards[infos["autoreset"]] == 0).all() and (rewards[~infos["autoreset"]] == 1).all()
            ended = terminations | truncations


def test_batched_reset_takes_the_marks_of_its_envs_away():
    zeros = np.zeros(8, np.int64)
    with batches(AutoresetMode.NEXT_STEP, backend="serial") as envs:
        envs.reset(seed=0)
        for _ in range(2):
            envs.step(zeros)  # envs 0 and 4 have ended
        mask = np.zeros(8, bool)
        mask[:2] = True
        envs.reset(options={"reset_mask": mask})
        assert envs.step(zeros)[4]["autoreset"].tolist() == [False] * 4 + [True] + [False] * 3
        envs.step(zeros)
        envs.reset()
        assert not envs.step(zeros)[4]["autoreset"].any()


@pytest.mark.extended
def test_batched_rows_of_a_lost_batch_are_marked_when_it_restarts():
    zeros = np.zeros(8, np.int64)
    with batches(AutoresetMode.NEXT_STEP, failures={"max_log_bytes": 1}) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            ended = envs.step(zeros)
        ended = ended[2] | ended[3]
        assert ended[:4].tolist() == [False, True, False, False]
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        _, _, _, truncations, infos = envs.step(zeros)
        assert truncations[:4].tolist() == [True, False, True, True]
        assert infos["autoreset"][:4].tolist() == [False, True, False, False]
        infos = envs.step(zeros)[4]
        assert infos["autoreset"][:4].tolist() == [True] * 4
        assert infos["recovered"].tolist()[:4] == ["restarted"] * 4
        _, rewards, _, _, infos = envs.step(zeros)
        assert not infos["autoreset"][:4].any() and rewards[:4].tolist() == [1.0] * 4
