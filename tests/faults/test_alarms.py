"""Signal handlers of envs that raise at a bad moment: within a payload or within a message."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.faults.traces import stopped, wait_until
from tests.inside import hub_of
from vecenv.core.layout.flags import Op
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.envs import toys

BIG = 3_000_000  # bytes, more than a ring or a socket holds
GENEROUS_TIMEOUT = 60.0


class Alarmed(toys.CountEnv):
    """Observes the last action, and returns an info of `nbytes` bytes; SIGUSR1 raises."""

    def __init__(self, heard: Path, nbytes: int = 0) -> None:
        super().__init__()
        self._heard, self._nbytes = heard, nbytes
        signal.signal(signal.SIGUSR1, self._raise)

    def _raise(self, *args: Any) -> None:
        self._heard.touch()
        raise TimeoutError("the env's alarm")

    def step(self, action: Any) -> Any:
        obs, *rest, info = super().step(0)
        number = action["number"] if isinstance(action, dict) else action
        info = {"big": b"x" * self._nbytes, "number": int(number)} if self._nbytes else info
        return np.full_like(obs, number), *rest, info


@contextmanager
def alarmed(env_fn: Any) -> Iterator[ProcessPool]:
    with ProcessPool([env_fn], PoolOptions(num_workers=1)) as pool:
        pool.start()
        pool.reset()
        pool.recv(timeout=GENEROUS_TIMEOUT)
        yield pool


def signal_once_blocked(pool: ProcessPool) -> None:
    """Send the signal while the worker waits for its parent within a step; return once its process has taken it."""
    (pid,) = pool.worker_pids
    wait_until(lambda: hub_of(pool).state(0).op == Op.STEP and is_kept_waiting(pool, pid))
    os.kill(pid, signal.SIGUSR1)
    wait_until(lambda: not is_pending(pid, signal.SIGUSR1))


def is_kept_waiting(pool: ProcessPool, pid: int) -> bool:
    sleeps = psutil.Process(pid).status() == psutil.STATUS_SLEEPING
    return sleeps and bool(hub_of(pool).state(0).blocked)


def is_pending(pid: int, signum: int) -> bool:
    (mask,) = re.findall(r"^ShdPnd:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (signum - 1) & 1)


def test_alarm_within_a_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the payload was once taken for the next one, so all later actions were wrong."""
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "native")
    heard = tmp_path / "heard"
    with alarmed(functools.partial(Alarmed, heard)) as pool:
        with stopped(pool.worker_pids):  # a running worker might read the whole payload
            pool.send_objects([{"number": 1, "big": b"x" * BIG}], [0])
        signal_once_blocked(pool)
        wait_until(heard.exists)
        with pytest.raises(TimeoutError, match="the env's alarm"):
            pool.recv(timeout=GENEROUS_TIMEOUT).raise_errors()
        for number in range(2, 6):
            pool.send_objects([{"number": number, "big": b"x" * (BIG if number == 3 else 0)}], [0])
            batch = pool.recv(timeout=GENEROUS_TIMEOUT)
            batch.raise_errors()
            assert (batch.obs == number).all()


@pytest.mark.extended
def test_alarm_within_a_message(tmp_path: Path, implementation: str) -> None:
    """The answer with the error was once read as the end of the message that it interrupted."""
    heard = tmp_path / "heard"
    with alarmed(functools.partial(Alarmed, heard, BIG)) as pool:
        pool.send(np.array([1]))
        signal_once_blocked(pool)
        if implementation == "native":  # handlers of the fallback wait until the whole message is written
            wait_until(heard.exists)
        with pytest.raises(TimeoutError, match="the env's alarm"):
            pool.recv(timeout=GENEROUS_TIMEOUT).raise_errors()
        assert heard.exists()
        for number in (0, 1):
            pool.send(np.array([number]))
            batch = pool.recv(timeout=GENEROUS_TIMEOUT)
            batch.raise_errors()
            assert batch.infos() == [{"big": b"x" * BIG, "number": number}]
