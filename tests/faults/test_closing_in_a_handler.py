"""Signal handlers run in the middle of a call and may close its pool, which SIGTERM handlers often do."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import kill, recovering_pool
from tests.inside import pool_of
from vecenv import VectorEnv
from vecenv.core.options import PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
)
from vecenv.envs import toys
from vecenv.errors import ClosedError, StateError
from vecenv.vector.results import Results

BOSS = os.getpid()


class Calls(toys.CountEnv):
    """Sends SIGTERM to the program in one operation; hangs there if it runs in another process."""

    def __init__(self, moment: str, boss: int, log: Path | None = None) -> None:
        super().__init__(50)
        self.moment, self.boss, self.log = moment, boss, log
        self.inject("construct")

    def reset(self, **kwargs: Any) -> Any:
        self.inject("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write("step\n")
        self.inject("step")
        return super().step(action)

    def poke(self) -> None:
        self.inject("call")

    def inject(self, moment: str) -> None:
        if moment == self.moment:
            os.kill(self.boss, signal.SIGTERM)
            if os.getpid() != self.boss:
                threading.Event().wait()


def poke(env: Any) -> None:
    env.poke()


@contextmanager
def on_sigterm(handler: Callable[[], object]) -> Iterator[list[str]]:
    """Call `handler` at the first SIGTERM; the list grows by one entry each time.

    Two workers may send it at almost the same time. An exception of a second handler would interrupt the close itself.
    """
    called: list[str] = []

    def handle(*_: object) -> None:
        called.append("called")
        if len(called) == 1:
            handler()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield called
    finally:
        signal.signal(signal.SIGTERM, before)


def make_pool(engine: type[Pool], moment: str, log: Path | None = None) -> Pool:
    return engine([functools.partial(Calls, moment, BOSS, log)] * 4, PoolOptions(num_workers=2))


def use(pool: Pool, moment: str, timeout: float | None) -> None:
    if moment == "construct":
        pool.start()
    pool.reset()
    pool.recv(timeout=timeout)
    if moment == "call":
        pool.call(poke, timeout=timeout)
    if timeout is None:
        pool.step(np.zeros(4, np.int64))
    pool.send(np.zeros(4, np.int64))
    pool.recv(timeout=timeout)


@pytest.mark.parametrize(("end", "timeout"), [("returns", None), ("exits", 30.0)])
@pytest.mark.parametrize("moment", ["construct", "reset", "step", "call"])
@pytest.mark.parametrize("engine", [ProcessPool, SerialPool])
def test_handler_closes_the_pool_that_it_interrupts(
    engine: type[Pool], moment: str, timeout: float | None, end: str, implementation: str
) -> None:
    pool = make_pool(engine, moment)
    if moment != "construct":
        pool.start()

    def handler() -> None:
        pool.close(0)
        if end == "exits":
            sys.exit(3)

    with on_sigterm(handler) as called, pytest.raises(ClosedError if end == "returns" else SystemExit):
        use(pool, moment, timeout)
    assert called and pool.closed
    for again in (pool.start, pool.reset, pool.recv, lambda: pool.call(str)):
        with pytest.raises(ClosedError):
            again()
    pool.close()


def test_envs_in_this_process_stop_when_a_handler_closes(implementation: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    pool = make_pool(SerialPool, "step", log)
    pool.start()
    pool.reset()
    pool.recv()
    with on_sigterm(pool.close), pytest.raises(ClosedError):
        pool.step(np.zeros(4, np.int64))
    assert log.read_text() == "step\n"


@pytest.mark.extended
def test_handler_must_not_use_the_pool(implementation: str) -> None:
    pool = make_pool(ProcessPool, "step")
    caught: list[Exception] = []

    def handler() -> None:
        try:
            pool.recv()
        except StateError as error:
            caught.append(error)
        pool.close(0)

    pool.start()
    pool.reset()
    pool.recv()
    with on_sigterm(handler), pytest.raises(ClosedError):
        pool.step(np.zeros(4, np.int64))
    assert "is under way in this thread; during a call, as in a signal handler, the pool may be" in str(caught[0])


@pytest.mark.extended
def test_handler_closes_the_pool_while_a_worker_is_replaced(implementation: str, tmp_path: Path) -> None:
    file = tmp_path / "later"

    def make() -> Any:
        return Calls("construct" if file.exists() else "never", BOSS)

    with recovering_pool([make] * 4) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        file.touch()
        kill(pool, 0)
        with on_sigterm(lambda: pool.close(0)), pytest.raises(ClosedError):
            pool.step(np.zeros(4, np.int64))
        assert pool.closed


def test_close_error_of_an_env_in_a_handler_is_raised_at_the_end() -> None:
    class Grumbles(Calls):
        def close(self) -> None:
            raise ValueError("not now")

    pool = SerialPool([functools.partial(Grumbles, "step", BOSS)] * 2)
    pool.start()
    pool.reset()
    pool.recv()
    with on_sigterm(pool.close), pytest.raises(ValueError, match="not now"):
        pool.step(np.zeros(2, np.int64))
    assert pool.closed
    with pytest.raises(ClosedError):
        pool.recv()


# ---- front ends -----------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("end", ["returns", "exits"])
@pytest.mark.parametrize("backend", ["process", "serial"])
def test_handler_closes_a_vector_env(backend: str, end: str) -> None:
    envs = VectorEnv(
        [functools.partial(Calls, "step", BOSS)] * 4, num_workers=2, backend=backend, timeouts={"close": 0.01}
    )

    def handler() -> None:
        envs.close()
        if end == "exits":
            sys.exit(3)

    envs.reset(seed=0)
    with on_sigterm(handler), pytest.raises(ClosedError if end == "returns" else SystemExit):
        envs.step(np.zeros(4, np.int64))
    assert envs.closed and envs.pool.closed
    envs.close()


@pytest.mark.parametrize("moment", ["construct", "reset", "step"])
@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
def test_handler_closes_a_manager(manager_cls: Any, moment: str) -> None:
    manager = manager_cls([functools.partial(Calls, moment, BOSS)] * 4, {"close_timeout": 0.01})
    # The signal may come when all answers are there: then they are returned, and the next call raises.
    with on_sigterm(manager.close), pytest.raises(ClosedError):
        manager.launch()
        manager.step(dict.fromkeys(manager.ready_obs, 0))
        manager.step({})
    assert manager.closed and {state.name for state in manager.env_states.values()} == {"VOID"}
    manager.close()


@pytest.mark.parametrize("name", ["send", "recv"])
@pytest.mark.parametrize(
    "manager_cls", [BaseEnvManager, SyncSubprocessEnvManager, AsyncSubprocessEnvManager, SubprocessEnvManagerV2]
)
def test_manager_that_is_closed_in_the_middle_of_a_step_raises_closed_error(
    manager_cls: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler ran between the request and the wait for its answers, and the step raised an AttributeError."""
    manager = manager_cls([functools.partial(toys.CountEnv, 1)] * 4, {"num_workers": 2})
    manager.launch()
    pool, actions = pool_of(manager), dict.fromkeys(range(4), 0)
    method = getattr(pool, name)

    def call_and_be_interrupted(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGTERM)
        return result

    monkeypatch.setattr(pool, name, call_and_be_interrupted)
    with on_sigterm(manager.close) as called, pytest.raises(ClosedError):
        for _ in range(2):
            manager.step(actions)
    assert called and manager.closed


@pytest.mark.extended
@pytest.mark.parametrize("backend", ["process", "serial"])
def test_handler_closes_a_vector_env_at_any_moment(backend: str) -> None:
    """At any moment of the program: every later call raises ClosedError, and nothing hangs."""
    rng = random.Random(7)
    for _ in range(15):
        envs = VectorEnv([toys.CountEnv] * 4, num_workers=2, backend=backend)
        with on_sigterm(envs.close) as called:
            main = threading.get_ident()
            timer = threading.Timer(rng.random() * 0.05, signal.pthread_kill, (main, signal.SIGTERM))
            timer.start()
            with pytest.raises(ClosedError):
                while True:
                    envs.reset()
                    envs.step(np.zeros(4, np.int64))
                    envs.call("num_steps")
                    envs.send(np.zeros(4, np.int64))
                    envs.recv()
            timer.join()
        assert called and envs.pool.closed


def test_handler_that_closes_while_rows_are_delivered_makes_recv_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """An assertion failed: the env ids of the rows were gone."""
    with VectorEnv([toys.CountEnv] * 2, backend="serial") as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(2, np.int64))
        deliver = Results.deliver_marked

        def deliver_and_close(results: Results, batch: Any) -> Any:
            step = deliver(results, batch)
            os.kill(os.getpid(), signal.SIGTERM)
            return step

        monkeypatch.setattr(Results, "deliver_marked", deliver_and_close)
        with on_sigterm(envs.close), pytest.raises(ClosedError, match="closed the vector env during this call"):
            envs.recv()


@pytest.mark.extended
def test_sigterm_handler_that_closes_and_exits_ends_the_program(start_method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys, warnings
            import numpy as np
            import vecenv
            from vecenv.envs import toys
            if {start_method!r} == "fork":
                warnings.simplefilter("ignore")
            warnings.filterwarnings("ignore", "Calling `close` while waiting")  # the signal may come before `step_wait`
            limits = vecenv.Timeouts(close=0.1)
            envs = vecenv.VectorEnv([toys.HangAtStep] * 2, num_workers=2, context={start_method!r}, timeouts=limits)
            def end(*_):
                envs.close()
                print("closed", flush=True)
                sys.exit(3)
            signal.signal(signal.SIGTERM, end)
            envs.reset(seed=0)
            envs.step_async(np.zeros(2, np.int64))
            while not all(envs.pool._hub.state(slot).op for slot in range(2)):
                os.sched_yield()  # a worker that is not at its step yet closes its env, which may take longer
            print(*envs.worker_pids, flush=True)
            envs.step_wait()
            """
        )
    )
    command = [sys.executable, "-W", "error", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        program.terminate()
        out, err = program.communicate(timeout=60)
    assert (program.returncode, out, err) == (3, "closed\n", "")
    assert len(pids) == 2 and not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
