"""Plain loops: processes that step their envs one after another and share nothing. The yardstick of every ratio.

    parent --- start time, seconds ---> each process: (step, reset if done) over its envs until time is up
    parent <-- steps, seconds, CPU seconds, or the exception of an env --- each process

One process is the plain loop; one process per core is the ceiling of the machine. A vector env without workers runs in
such a process, too, so that an env that crashes does not end the program that measures it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector.utils import create_empty_array

from vecenv.errors import EnvError, WorkerDiedError, WorkerTimeoutError, describe_exit, locate
from vecenv.measurement.target import EnvFn, action_rows
from vecenv.values.pickling import adopt_main, dump_with_main, load_with_main

__all__ = ["LoopProcesses", "LoopResult", "serve"]

# Seconds between two readings of the clock: enough to cost nothing, few enough to end on time.
_CLOCK_CHECK_SECONDS = 0.001
# Shorter rounds are not timed one by one: the clock would take its share.
_MIN_ROUND_SECONDS = 20e-6
# Seconds in which a command reaches every process, so that all start at the same moment of their common clock.
_START_DELAY = 0.005
# Seconds in which processes build their envs or answer after their time is up, and in which they end.
_REPLY_TIMEOUT, _END_TIMEOUT = 120.0, 5.0
# A loop is one thread, like a worker; threads of libraries would be measured, too.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_Step = Callable[[Any], tuple[Any, Any, bool, bool, dict[str, Any]]]


class LoopResult(NamedTuple):
    """The result of one process in one window; `round_seconds` are the seconds of each round of its envs, if known."""

    steps: int
    seconds: float
    cpu_seconds: float
    round_seconds: tuple[float, ...] = ()


class LoopProcesses:
    """Processes with a plain loop each, started once and run for many short windows.

    They are fresh interpreters in sessions of their own: they do not import the caller's main module, and Ctrl-C in
    a terminal does not reach them.
    """

    def __init__(
        self,
        shares: Sequence[Sequence[EnvFn]],
        *,
        store: bool = False,
        time_rounds: bool = False,
        make: Callable[[Sequence[EnvFn]], Any] | None = None,
        what: str = "a plain loop",
    ) -> None:
        """Start one process per share of env_fns and wait until their envs are built and reset.

        Args:
            store: write all results into batch arrays, the least that a serial vector env must do, with one array for
                observations.
            time_rounds: measure each round of the envs, unless rounds take less than 20 us.
            make: builds the loop of a process from its share; its method `run(seconds)` steps. None: a plain loop.
            what: the name of the loop in errors.

        Raises:
            EnvError: an env could not be built or reset.
            WorkerDiedError, WorkerTimeoutError: a process has ended, or did not answer.
        """
        make = make or functools.partial(_Loop, store=store, time_rounds=time_rounds)
        self._what = what
        self._is_running = False
        ids = itertools.count()
        self._env_ids = [tuple(itertools.islice(ids, len(share))) for share in shares]
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for _ in shares:
                self._start()
            for connection, share in zip(self._connections, shares):
                _send(connection, dump_with_main((make, list(share))))
            self._collect(_REPLY_TIMEOUT)
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> list[Any]:
        """Let all loops run at once for `seconds`; return their results, a `LoopResult` of each plain loop.

        It blocks until the last one has answered, and raises as the constructor does.

        After an exception, only `close` may follow.
        """
        self._is_running = True
        start = time.monotonic() + _START_DELAY
        for connection in self._connections:
            _send(connection, (start, seconds))
        results = self._collect(_START_DELAY + seconds + _REPLY_TIMEOUT)
        self._is_running = False
        return results

    def close(self) -> None:
        """End the processes: those that step envs are killed at once, those that do not end are killed after 5 s."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0 if self._is_running else _END_TIMEOUT)
            if process.poll() is None:
                process.kill()
                process.wait()
        self._connections, self._processes = [], []

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._connections.append(Connection(ours.detach()))
        with theirs:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", f"from vecenv.measurement.loops import serve; serve({theirs.fileno()})"],
                    stdin=subprocess.DEVNULL,
                    env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(sys.path)},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            )

    def _collect(self, timeout: float) -> list[Any]:
        deadline = time.monotonic() + timeout
        replies = []
        op = "step" if self._is_running else "construct"
        for worker_id, (connection, process) in enumerate(zip(self._connections, self._processes)):
            where: dict[str, Any] = {"worker_id": worker_id, "env_ids": self._env_ids[worker_id], "op": op}
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                late = WorkerTimeoutError(f"{self._what} did not answer within {timeout:.0f} s", timeout=timeout)
                raise locate(late, **where)
            try:
                reply = connection.recv()
            except (EOFError, OSError):
                raise locate(self._death_of(process), **where) from None
            if isinstance(reply, str):
                raise locate(EnvError(f"an env of {self._what} raised {reply}"), **where)
            replies.append(reply)
        return replies

    def _death_of(self, process: subprocess.Popen[bytes]) -> WorkerDiedError:
        with contextlib.suppress(subprocess.TimeoutExpired):  # its end of the link is closed, so it is about to go
            process.wait(_END_TIMEOUT)
        code = process.returncode
        return WorkerDiedError(f"the process of {self._what} died: {describe_exit(code)}", exitcode=code)


def _send(connection: Connection, message: Any) -> None:
    with contextlib.suppress(OSError):  # the process has ended, which `_collect` reports
        connection.send(message)


def serve(descriptor: int) -> None:
    """Run one of the processes: build the envs that come through the socket `descriptor`, then loop on command."""
    adopt_main()
    with contextlib.suppress(EOFError, OSError), Connection(descriptor) as connection:  # the parent closed or is gone
        loop: Any = None
        while True:
            request = connection.recv()
            reply = None
            try:
                if loop is None:
                    make, env_fns = load_with_main(request)
                    loop = make(env_fns)
                else:
                    start, seconds = request
                    time.sleep(max(0.0, start - time.monotonic()))
                    reply = loop.run(seconds)
            except BaseException as error:  # an env may raise SystemExit, too
                connection.send(f"{type(error).__name__}: {error}")
                return
            connection.send(reply)


class _Loop:
    """Step envs one after another with premade actions; the arguments are those of `LoopProcesses`."""

    def __init__(self, env_fns: Sequence[EnvFn], *, store: bool, time_rounds: bool) -> None:
        envs = [env_fn() for env_fn in env_fns]
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(1)
        for env_id, env in enumerate(envs):
            env.reset(seed=env_id)
        self._steps: list[_Step] = [env.step for env in envs]
        self._resets = [env.reset for env in envs]
        self._rows = action_rows(envs[0].action_space, len(envs))
        self._time_rounds = time_rounds
        self._step_all = self._step_and_store if store else self._step_and_drop
        if store:
            self._obs: Any = create_empty_array(envs[0].observation_space, len(envs))
            self._rewards = np.zeros(len(envs))
            self._terminated, self._truncated = np.zeros((2, len(envs)), np.bool_)

    def run(self, seconds: float) -> LoopResult:
        """Step for `seconds`; resets are separate calls and do not count."""
        clock = time.perf_counter
        is_timed = self._time_rounds
        if is_timed:
            before = clock()
            self._step_all(1)
            is_timed = clock() - before >= _MIN_ROUND_SECONDS
        round_seconds: list[float] = []
        num_rounds, rounds_per_check = 0, 1
        cpu_start, began = time.process_time(), clock()
        now, deadline = began, began + seconds
        while now < deadline:
            self._step_all(rounds_per_check)
            num_rounds += rounds_per_check
            before, now = now, clock()
            if is_timed:
                round_seconds.append(now - before)
            elif now - before < _CLOCK_CHECK_SECONDS:
                rounds_per_check *= 2
        cpu_seconds = time.process_time() - cpu_start
        return LoopResult(num_rounds * len(self._steps), now - began, cpu_seconds, tuple(round_seconds))

    def _step_and_drop(self, num_rounds: int) -> None:
        steps, resets = self._steps, self._resets
        for actions in itertools.islice(self._rows, num_rounds):
            for step, action, reset in zip(steps, actions, resets, strict=True):
                _, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    reset()

    def _step_and_store(self, num_rounds: int) -> None:
        steps, resets = self._steps, self._resets
        obs, rewards, terminated, truncated = self._obs, self._rewards, self._terminated, self._truncated
        for actions in itertools.islice(self._rows, num_rounds):
            for row, (step, action) in enumerate(zip(steps, actions, strict=True)):
                obs[row], rewards[row], is_terminated, is_truncated, _ = step(action)
                terminated[row] = is_terminated
                truncated[row] = is_truncated
                if is_terminated or is_truncated:
                    obs[row], _ = resets[row]()
