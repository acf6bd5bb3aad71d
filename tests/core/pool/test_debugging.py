"""Debuggers and `input` within envs: errors of workers name the remedy; `VECENV_DEBUG=1` makes pools serial."""

from __future__ import annotations

import contextlib
import io
import os
import pdb
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vecenv import VectorEnv, evaluate
from vecenv.alf import AlfGymWrapper, ParallelAlfEnvironment
from vecenv.ding import AsyncSubprocessEnvManager
from vecenv.envs.toys import CountEnv
from vecenv.errors import ConfigError


class ReadsTerminal(CountEnv):
    """Reads from the terminal in a step. Its reward is the id of its process.

    Args:
        read: reads.
    """

    def __init__(self, read: Callable[[], object]) -> None:
        super().__init__(length=3)
        self.read = read

    def step(self, action: Any) -> Any:
        self.read()
        obs, _, *others = super().step(action)
        return obs, float(os.getpid()), *others


class CallsInput(ReadsTerminal):
    def __init__(self) -> None:
        super().__init__(input)


class CallsDebugger(ReadsTerminal):
    def __init__(self) -> None:
        super().__init__(pdb.set_trace)


@pytest.mark.parametrize("env_class", [CallsInput, CallsDebugger])
def test_error_of_input_in_worker_names_remedy(env_class: Any) -> None:
    with contextlib.closing(VectorEnv([env_class] * 2, num_workers=1)) as envs:
        envs.reset(seed=1)
        with pytest.raises((EOFError, Exception)) as caught:
            envs.step(np.zeros(2, np.int64))
    assert type(caught.value).__name__ in ("EOFError", "BdbQuit")
    assert any("backend='serial'" in note and "VECENV_DEBUG=1" in note for note in caught.value.__notes__)


def play_vector_env() -> float:
    with contextlib.closing(VectorEnv([CallsInput] * 2, num_workers=2, timeouts={"step": 0.001})) as envs:
        envs.reset(seed=1)
        return float(envs.step(np.zeros(2, np.int64))[1][0])


def play_spare_env() -> float:
    with contextlib.closing(VectorEnv([CallsInput] * 2, num_workers=2, num_spare_envs=1)) as envs:
        envs.reset(seed=1)
        return float(envs.step(np.zeros(2, np.int64))[1][0])


def play_manager() -> float:
    manager = AsyncSubprocessEnvManager([CallsInput] * 2, {"num_workers": 2, "step_timeout": 0.001})
    manager.launch()
    try:
        return float(manager.step(dict.fromkeys(manager.ready_obs, 0))[0].reward[0])
    finally:
        manager.close()


def play_alf() -> float:
    with ParallelAlfEnvironment([lambda env_id: AlfGymWrapper(CallsInput())] * 2, tensors=False) as env:
        env.reset()
        return float(env.step(np.zeros(2, np.int64)).reward[0])


def play_evaluation() -> float:
    result = evaluate(CallsInput, lambda obs, env_ids: np.zeros(len(obs), np.int64), seeds=[1, 2], num_envs=2)
    return float(result.returns[0]) / 3


@pytest.mark.parametrize("play", [play_vector_env, play_spare_env, play_manager, play_alf, play_evaluation])
def test_debug_variable_makes_pools_serial(play: Callable[[], float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECENV_DEBUG", "1")
    monkeypatch.setattr("sys.stdin", io.StringIO("a line\n" * 50))
    assert play() == os.getpid()


def test_unknown_value_of_debug_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECENV_DEBUG", "yes")
    with pytest.raises(ConfigError, match="expected 0 or 1"):
        VectorEnv([CountEnv])
