"""Operations without a limit that take long: each is one warning with the Python stack of its worker."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import recovering_pool
from vecenv.core.options import Limits, PoolFailurePolicy, PoolOptions
from vecenv.core.parent import watchdog
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessPool
from vecenv.core.system.clock import now_ns
from vecenv.envs import toys
from vecenv.errors import WorkerTimeoutError

REPORT_SECONDS = 0.3


class WaitsOnce(toys.FaultEnv):
    """Wait in a function with a name of its own, three times as long as the first report takes."""

    moments = ("step", "reset", "call")

    def fail(self) -> None:
        self.wait_for_a_server()

    def wait_for_a_server(self) -> None:
        threading.Event().wait(3 * REPORT_SECONDS)


@pytest.fixture(autouse=True)
def is_reported_soon(monkeypatch: pytest.MonkeyPatch, report_after: Callable[[float], None]) -> None:
    """Report operations once, and soon."""
    report_after(REPORT_SECONDS)
    monkeypatch.setattr(watchdog, "_LAZY_POLL_NS", 50_000_000)


def warnings_of(work: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        work()
    return seen


def play(pool: Pool, moment: str) -> None:
    """Reset, step and call all envs; env 1 waits at the first `moment`."""
    pool.reset()
    pool.recv().raise_errors()
    pool.step(np.zeros(2, np.int64)).raise_errors()
    pool.call(toys.FaultEnv.poke)


@pytest.mark.parametrize("moment", ["step", "reset", "call"])
@pytest.mark.parametrize(
    ("on_failure", "effect"), [("recover", "is then replaced"), ("raise", "then raises TimeoutError")]
)
def test_hang_without_a_limit_is_one_warning_and_one_log_entry(
    moment: str, on_failure: str, effect: str, implementation: str, caplog: pytest.LogCaptureFixture
) -> None:
    env_fns = [functools.partial(WaitsOnce, 1, moment=moment) if env_id else toys.FaultEnv for env_id in range(2)]
    failures = PoolFailurePolicy(on_failure=on_failure)
    with ProcessPool(env_fns, PoolOptions(num_workers=2, failures=failures)) as pool:
        pool.start()
        (warning,) = warnings_of(lambda: play(pool, moment))
    text = str(warning.message)
    first, *stack = text.split("\n")
    assert warning.category is RuntimeWarning and warning.filename == __file__
    assert re.fullmatch(
        rf"worker 1 \(env 1\): {moment} of env 1 \(command \d+\) has been running for 0\.[3-9] s and has no limit\. "
        rf"Set timeouts=\{{'{moment}': \.\.\.\}}, in seconds: a .* {effect}",
        first,
    )
    assert any("in wait_for_a_server" in line for line in stack)
    assert [record.message for record in caplog.records if record.message.startswith("vecenv: worker 1")] == [
        "vecenv: " + text
    ]


@pytest.mark.extended
def test_hang_is_reported_while_other_envs_answer() -> None:
    """An asynchronous program never waits for the env that hangs, so nothing else would show the hang."""
    env_fns = [functools.partial(toys.Hangs, 1), *[toys.FaultEnv] * 3]
    with ProcessPool(env_fns, PoolOptions(num_workers=4, limits=Limits(close=0.1))) as pool:
        pool.start()
        pool.reset()
        pool.recv().raise_errors()

        def play_others() -> None:
            end_ns = now_ns() + int(3e9 * REPORT_SECONDS)
            pool.send(np.zeros(4, np.int64), ordered=False)
            while now_ns() < end_ns:
                batch = pool.recv(1)
                threading.Event().wait(0.005)  # the next rows are there before they are asked for
                pool.send(np.zeros(len(batch), np.int64), batch.env_ids, ordered=False)

        (warning,) = warnings_of(play_others)
    assert str(warning.message).startswith("worker 0 (env 0): step of env 0")


def play_until_env_0_answers(pool: Pool, timeout: float | None, pause: float) -> None:
    """Step all envs, and then step all but env 0 again and again; rows are there before they are asked for."""
    pool.start()
    pool.reset()
    pool.recv().raise_errors()
    pool.send(np.zeros(4, np.int64), ordered=False)
    while True:
        batch = pool.recv(1, timeout=timeout)
        if 0 in batch.env_ids:
            return
        threading.Event().wait(pause)
        pool.send(np.zeros(len(batch), np.int64), batch.env_ids, ordered=False)


@pytest.mark.extended
@pytest.mark.parametrize("pause", [0.0, 0.005, 0.1])
@pytest.mark.parametrize("timeout", [None, 10.0])
@pytest.mark.parametrize("on_failure", ["recover", "raise"])
def test_limit_holds_while_other_envs_answer(
    on_failure: str, timeout: float | None, pause: float, tmp_path: Path
) -> None:
    """Once only receives that had to wait looked at the limits; an asynchronous program lost an env that hung."""
    env_fns = [functools.partial(toys.Hangs, 1, once=tmp_path / "hung"), *[toys.FaultEnv] * 3]
    with recovering_pool(env_fns, num_workers=4, limits=Limits(step=0.3, close=0.1), on_failure=on_failure) as pool:
        if on_failure == "recover":
            play_until_env_0_answers(pool, timeout, pause)
        else:
            with pytest.raises(WorkerTimeoutError, match=r"worker 0 .*did not finish step of env 0"):
                play_until_env_0_answers(pool, timeout, pause)


STOPPED_TOGETHER = """
import os, sys, time, warnings
import numpy as np
from vecenv.core.parent import reports, watchdog
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.envs import toys

reports._REPORT_SECONDS = (1.0, 600.0)
watchdog._LAZY_POLL_NS = 50_000_000
warnings.simplefilter("error")

class Slow(toys.ToyEnv):
    def step(self, action):
        os.write(1, b"stepping %d\\n" % os.getpid())
        time.sleep(0.5)
        return super().step(action)

with ProcessPool([Slow], PoolOptions()) as pool:
    pool.start()
    pool.reset()
    pool.recv()
    pool.step(np.zeros(1, np.int64))
"""


@pytest.mark.extended
def test_stop_of_parent_and_workers_is_not_reported() -> None:
    """A suspended container: on waking, an operation of half a second looks as old as the suspension."""
    parent = subprocess.Popen([sys.executable, "-c", STOPPED_TOGETHER], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline().split()[1])
    threading.Event().wait(0.1)  # the parent must wait
    for pid in (worker, parent.pid):
        os.kill(pid, signal.SIGSTOP)
    threading.Event().wait(2.0)
    os.kill(parent.pid, signal.SIGCONT)
    threading.Event().wait(0.2)  # the parent looks at the clock first
    os.kill(worker, signal.SIGCONT)
    _, stderr = parent.communicate(timeout=30)
    assert (parent.returncode, stderr) == (0, b"")
