"""Threads that envs leave running when they are closed."""

from __future__ import annotations

import atexit
import functools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from vecenv import VectorEnv
from vecenv.envs import toys

GENEROUS_TIMEOUT = 60.0


class LeavesThread(toys.CountEnv):
    """Starts a thread that ends a while after `close`."""

    def __init__(self, folder: Path, lasts: float) -> None:
        super().__init__()
        self._is_closed = threading.Event()
        self._folder, self._lasts = folder, lasts
        atexit.register((folder / "exit handler").touch)
        threading.Thread(target=self._run).start()

    def _run(self) -> None:
        self._is_closed.wait()
        time.sleep(self._lasts)  # the work that is under way
        (self._folder / "thread").touch()

    def close(self) -> None:
        self._is_closed.set()
        super().close()


class KeepsThread(toys.CountEnv):
    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=self.wait_for_ever).start()

    def wait_for_ever(self) -> None:
        threading.Event().wait()


def close_after_a_step(env_fn: Any, start_method: str, close_timeout: float) -> None:
    with VectorEnv([env_fn], num_workers=1, context=start_method, timeouts={"close": close_timeout}) as envs:
        envs.reset(seed=0)
        envs.step([0])


def test_thread_that_is_about_to_end_is_waited_for(start_method: str, tmp_path: Path) -> None:
    close_after_a_step(functools.partial(LeavesThread, tmp_path, 0.2), start_method, GENEROUS_TIMEOUT)
    assert (tmp_path / "thread").exists()
    assert (tmp_path / "exit handler").exists() or start_method != "spawn"  # Python runs none with the others


@pytest.mark.extended
@pytest.mark.usefixtures("patient_stacks")
def test_worker_with_an_endless_thread_is_not_reported_as_closing_envs(
    start_method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="vecenv"):
        close_after_a_step(KeepsThread, start_method, 1.0)
    (record,) = caplog.records
    text = record.getMessage()
    assert "worker 0 (env 0) did not end when its envs had closed within 1 s; it is killed" in text
    assert "wait_for_ever" in text, "the thread that keeps it is shown"
