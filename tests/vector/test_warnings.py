"""Warnings name the caller's line, however many layers the call passes."""

from __future__ import annotations

import contextlib
import functools
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS
from vecenv import VectorEnv
from vecenv.ding import BaseEnvManager, TicTacToeEnv
from vecenv.envs import toys

CONVERTED = "is converted to the space's float32"
PICKLED = "is pickled each time, as the space has float32"
ARMS = functools.partial(toys.SpaceEnv, None, Box(-1, 1, (2,), np.float32))
WRONG = functools.partial(toys.WrongDtype, 1, moment="step")


@contextlib.contextmanager
def warned_here(text=CONVERTED):
    """Expect a warning that names this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [warning.filename for warning in caught if text in str(warning.message)] == [__file__]


def step_in_halves(envs, actions):
    envs.step_async(actions)
    envs.step_wait()


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("step", [VectorEnv.step, VectorEnv.send, step_in_halves])
def test_warning_about_actions_names_the_callers_line(backend, step):
    with contextlib.closing(VectorEnv([ARMS] * 2, backend=backend)) as envs:
        envs.reset(seed=0)
        with warned_here(PICKLED):
            step(envs, np.zeros((2, 2)))


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("step", [VectorEnv.step, step_in_halves])
def test_warning_about_observations_names_the_callers_line(backend, step):
    with contextlib.closing(VectorEnv([WRONG] * 2, backend=backend)) as envs:
        envs.reset(seed=0)
        with warned_here():
            step(envs, np.zeros(2, np.int64))


@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
def test_warning_about_observations_in_a_manager_names_the_callers_line(manager_cls):
    own = {"wait_num": 2, "step_wait_timeout": None} if manager_cls in WITH_WORKERS else {}
    with manager_cls([WRONG] * 2, own) as manager:
        manager.launch()
        ready = manager.ready_obs
        actions = dict.fromkeys(ready, np.int64(0)) if isinstance(ready, dict) else {0: 0, 1: 0}
        with warned_here():
            manager.step(actions)


def test_warning_about_actions_below_a_gymnasium_wrapper_names_the_callers_line():
    with contextlib.closing(RecordEpisodeStatistics(VectorEnv([ARMS] * 2, backend="serial"))) as envs:
        envs.reset(seed=0)
        with warned_here(PICKLED):
            envs.step(np.zeros((2, 2)))


def test_warning_about_an_illegal_move_names_the_callers_line():
    with BaseEnvManager([TicTacToeEnv], {}) as manager:
        manager.launch()
        with warned_here("a random legal one is played instead"):
            manager.step({0: 9})
