"""`restart` beside calls that were posted and not waited for: never a wait without end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import play, recovering_pool, wait_until
from tests.inside import hub_of, waiter_of
from vecenv.core.layout.flags import Op
from vecenv.envs import toys
from vecenv.errors import WorkerError


def hang(env: Any) -> None:
    threading.Event().wait()


def pid_of(env: Any) -> int:
    return os.getpid()


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["recover", "raise"])
@pytest.mark.parametrize("function", [hang, lambda env: b"x" * 10_000_000], ids=["hangs", "blocked"])
def test_calls_lost_by_a_restart_are_reported(function: Callable[[Any], Any], policy: str, implementation: str) -> None:
    with recovering_pool([toys.CountEnv] * 4, on_failure=policy) as pool:
        play(pool, 2)
        pool.submit_calls([pid_of, pid_of, function, pid_of])
        wait_until(lambda: hub_of(pool).state(1)[:2] == (Op.CALL, 2))
        pool.restart(1)
        with pytest.raises(WorkerError, match=r"worker 1 \(envs 2-3\) was restarted before .* of env 2 came") as caught:
            pool.collect_calls()
        assert caught.value.env_ids == (2,) and "env 3 raised WorkerError" in str(caught.value.__notes__)
        assert pool.call(pid_of) == [pool.worker_pids[0]] * 2 + [pool.worker_pids[1]] * 2
        pool.reset([2, 3], seeds=[1, 2])
        pool.recv().raise_errors()
        pool.send(np.zeros(4, np.int64))
        assert pool.recv().lengths.tolist() == [3, 3, 1, 1]


def test_calls_of_other_workers_and_answers_that_are_in_are_kept(implementation: str) -> None:
    with recovering_pool([toys.CountEnv] * 4) as pool:
        play(pool, 2)
        before = pool.worker_pids
        pool.submit_calls([pid_of] * 2, [0, 1])
        pool.restart(1)
        assert pool.collect_calls() == [before[0]] * 2
        pool.submit_calls([pid_of] * 2, [2, 3])
        pool.send(np.zeros(2, np.int64), [0, 1])
        pool.recv()
        inbox = waiter_of(pool).inbox
        wait_until(lambda: inbox.poll() or inbox.has_all_calls() or hub_of(pool).wait(0) is None)
        pids = pool.worker_pids
        pool.restart(1)
        assert pool.collect_calls() == [pids[1]] * 2
