"""Settings of the program's process: workers have them, in all threads, under every start method and in shards."""

from __future__ import annotations

import contextlib
import decimal
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.core.shards.local_pools import LocalPool
from vecenv import VectorEnv
from vecenv.envs.toys import CountEnv

OPTIONS: dict[str, dict[str, Any]] = {
    "forkserver": {"context": "forkserver"},
    "spawn": {"context": "spawn"},
    "fork": {"context": "fork"},
    "threads": {"threads_per_worker": 2},
}


def settings_of(env: Any = None) -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    dtype = "" if torch is None else str(torch.get_default_dtype())
    return sys.getrecursionlimit(), np.geterr()["over"], decimal.getcontext().prec, dtype


class Settings(CountEnv):
    """Keeps the settings that its constructor and its last step have found."""

    def __init__(self) -> None:
        super().__init__()
        self.found = [settings_of()]

    def step(self, action: Any) -> Any:
        self.found[1:] = [settings_of()]
        return super().step(action)

    def settings(self) -> list[tuple[Any, ...]]:
        return self.found


@pytest.fixture
def changed() -> Iterator[tuple[Any, ...]]:
    """Change the settings of this process, and return them."""
    limit, torch = sys.getrecursionlimit(), sys.modules.get("torch")
    dtype = None if torch is None else torch.get_default_dtype()
    try:
        with np.errstate(over="raise"), decimal.localcontext() as context:
            sys.setrecursionlimit(limit + 1234)
            context.prec = 7
            if torch is not None:
                torch.set_default_dtype(torch.float64)
            yield settings_of()
    finally:
        sys.setrecursionlimit(limit)
        if torch is not None:
            torch.set_default_dtype(dtype)


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_workers_have_the_settings_of_the_program(options: dict[str, Any], changed: tuple[Any, ...]) -> None:
    with contextlib.closing(VectorEnv([Settings] * 4, num_workers=2, **options)) as envs:
        envs.reset(seed=1)
        for _ in range(2):
            envs.step(np.zeros(4, np.int64))
            assert envs.call("settings") == ([changed, changed],) * 4
            os.kill(envs.worker_pids[0], signal.SIGKILL)


@pytest.mark.extended
def test_shards_have_the_settings_of_the_program(changed: tuple[Any, ...]) -> None:
    pool = LocalPool([Settings] * 4)
    pool.start()
    try:
        pool.reset(seeds=range(4))
        pool.recv().raise_errors()
        assert [found[0] for found in pool.call(lambda env: env.unwrapped.settings())] == [changed] * 4
    finally:
        pool.close()
