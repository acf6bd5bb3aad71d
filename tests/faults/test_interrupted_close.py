"""Ctrl-C in `close`: the shared memory is given back at once, and not when Python collects cycles."""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.memory_maps import segments
from vecenv import BatchedVectorEnv, VectorEnv
from vecenv.ding import SyncSubprocessEnvManager
from vecenv.envs.toys import CountEnv


class InterruptsClose(CountEnv):
    """Interrupts a program when it is closed, and never returns."""

    def __init__(self, program: int) -> None:
        super().__init__(10)
        self.program = program

    def close(self) -> None:
        os.kill(self.program, signal.SIGINT)
        signal.pause()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Turn Python's collector of cycles off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _make(face: str, context: str) -> Any:
    env_fn = functools.partial(InterruptsClose, os.getpid())
    if face == "manager":
        manager = SyncSubprocessEnvManager([env_fn] * 2, {"num_workers": 2, "context": context})
        manager.launch()
        return manager
    envs: Any
    if face == "BatchedVectorEnv":
        batch = functools.partial(_batch, env_fn)
        envs = BatchedVectorEnv([batch] * 2, num_workers=2, context=context)
    else:
        envs = VectorEnv([env_fn] * 2, num_workers=2, context=context)
    envs.reset(seed=0)
    return envs


def _batch(env_fn: Any) -> Any:
    return VectorEnv([env_fn], backend="serial")


def _close(envs: Any) -> bool:
    """Close envs twice; return whether the first time was interrupted."""
    try:
        envs.close()
    except KeyboardInterrupt:
        envs.close()
        return True
    return False


@pytest.mark.parametrize("face", ["VectorEnv", "BatchedVectorEnv", "manager"])
def test_interrupted_close_frees_the_memory_at_once(face: str, start_method: str, no_collector: None) -> None:
    before = segments()
    envs = _make(face, start_method)
    assert segments() > before
    assert _close(envs)
    assert segments() == before
