"""ThreadEnvironment: one environment in its own thread, for evaluation and play; it uses no pool."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent import futures
from typing import Any, ClassVar, NoReturn

from vecenv.alf.base.actions import rows_of
from vecenv.alf.base.environment import AlfEnvironment
from vecenv.alf.base.tensors import to_tensors, wants_tensors
from vecenv.alf.base.timestep import TimeStep
from vecenv.alf.wrappers.base import AlfEnvironmentBaseWrapper
from vecenv.alf.wrappers.batch import StepStack
from vecenv.core.options import Limits, resolve
from vecenv.core.parent.reports import ReportSchedule, report
from vecenv.errors import ClosedError, ConfigError, WorkerTimeoutError, locate
from vecenv.options import UNSET, TimeoutsLike, read_timeouts
from vecenv.saved_state import SavedState, StateLike
from vecenv.values.checks import check_callable

#: A wait without a limit wakes up this often to count the time of the operation.
_POLL_SECONDS = 1.0


class ThreadEnvironment(AlfEnvironmentBaseWrapper):
    """One environment that is built, stepped and closed in its own thread, as a batch of one.

    Its other methods also run in that thread; plain attributes are read directly. A thread cannot be killed: after a
    WorkerTimeoutError the operation continues in the thread, and only `close` may be called.

    Example:
        >>> from vecenv.alf import load
        >>> with ThreadEnvironment(lambda: load("CartPole-v1"), tensors=False) as env:
        ...     step = env.reset()
        >>> step.observation.shape, step.env_id.tolist()
        ((1, 4), [0])
    """

    state_names: ClassVar[tuple[str, ...]] = ("_stack",)
    batched = True
    batch_size = 1

    def __init__(
        self,
        env_constructor: Callable[[], Any],
        *,
        tensors: bool | None = None,
        timeouts: TimeoutsLike = None,
        construct_timeout: float | None = UNSET,
        reset_timeout: float | None = UNSET,
        step_timeout: float | None = UNSET,
        call_timeout: float | None = UNSET,
        close_timeout: float | None = UNSET,
        resume: StateLike | None = None,
    ) -> None:
        """Build the environment in a new thread.

        Args:
            env_constructor: returns a single `AlfEnvironment` of arrays.
            tensors, timeouts: as for `ParallelAlfEnvironment`.
            construct_timeout, reset_timeout, step_timeout, call_timeout, close_timeout: the fields of `timeouts` one by
                one, in seconds. Here None means no limit.
            resume: a file of `save`, or the result of `state_dict`, where the environment continues. Generators of the
                program, such as that of `numpy.random`, are not part of it. None (default): the environment is new.

        Raises:
            ConfigError: the environment is batched or tensor based (an AssertionError too), the constructor cannot be
                called, a limit is not a number above 0, or it is given twice; or `resume` does not fit.
            WorkerTimeoutError: the constructor took too long.
            Exception: raised by the constructor.
        """
        self._tensors = wants_tensors(tensors)
        limits = read_timeouts(
            timeouts,
            step_timeout=step_timeout,
            reset_timeout=reset_timeout,
            construct_timeout=construct_timeout,
            call_timeout=call_timeout,
            close_timeout=close_timeout,
        )
        self._timeouts: dict[str, float | None] = dataclasses.asdict(resolve(limits, Limits()))
        check_callable("env_constructor", env_constructor)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed = False
        self._is_late = False
        # Not of an executor: at the end of the program that would wait for an operation that hangs.
        self._thread = threading.Thread(target=_serve, args=(self._requests,), name="vecenv-alf-env", daemon=True)
        self._thread.start()
        try:
            self._env: Any = self._run("construct", env_constructor)
            if not isinstance(self._env, AlfEnvironment) or self._env.batched or self._env.is_tensor_based:
                raise ConfigError(
                    f"env_constructor: expected a single AlfEnvironment of arrays, got {self._env!r}",
                    key="env_constructor",
                )
            self._stack = StepStack(self._env.env_info_spec(), 1)
            if resume is not None:
                self.load_state_dict(SavedState.read(resume).as_dict())
        except BaseException:
            built = getattr(self, "_env", None)
            self._end(built if hasattr(built, "close") else None)
            raise

    def _run(self, what: str, function: Callable[[], Any]) -> Any:
        """Call a function in the thread and return its result; `what` is the field of `timeouts` that limits it."""
        if self._closed:
            raise ClosedError(f"{what}: the environment is closed")
        if self._is_late:
            late = WorkerTimeoutError(f"{what}: an earlier operation is still running; call close()")
            raise locate(late, env_ids=(0,), op=what)
        future: futures.Future[Any] = futures.Future()
        self._requests.put((future, function))
        try:
            self._wait(future, what)
        finally:
            self._is_late = not future.done()
        return future.result()

    def _wait(self, future: futures.Future[Any], what: str) -> None:
        """Wait for the thread; without a limit, report an operation that takes long."""
        timeout = self._timeouts[what]
        schedule = ReportSchedule()
        while True:
            with contextlib.suppress(futures.TimeoutError):
                future.exception(_POLL_SECONDS if timeout is None else timeout)
                return
            if timeout is not None:
                late = f"the environment's thread did not finish {what} within {timeout} s; raise {what}_timeout"
                raise locate(WorkerTimeoutError(late, timeout=timeout), env_ids=(0,), op=what)
            if schedule.is_due(int(_POLL_SECONDS * 1e9)):
                frame = sys._current_frames().get(self._thread.ident or 0)
                stack = "".join(traceback.format_stack(frame)).rstrip()
                report(
                    f"the environment's thread: {what} has been running for {schedule.counted_ns / 1e9:.1f} s and "
                    f"has no limit. Set timeouts={{{what!r}: ...}}, in seconds: "
                    f"a longer operation then raises TimeoutError\n"
                    f"{stack}"
                )

    # ---- episodes ------------------------------------------------------------------------------

    def _reset(self) -> TimeStep:
        return self._out(self._run("reset", self._env.reset))

    def _step(self, action: Any) -> TimeStep:
        row = rows_of(self._env.action_spec(), action, 1)[0]
        return self._out(self._run("step", lambda: self._env.step(row)))

    def _out(self, time_step: TimeStep) -> TimeStep:
        batch = self._stack.batch([time_step])
        return to_tensors(batch) if self._tensors else batch

    # ---- further -------------------------------------------------------------------------------

    is_tensor_based = property(operator.attrgetter("_tensors"))
    get_info = AlfEnvironment.get_info

    def seed(self, seed: int) -> Any:
        return self.call("seed", seed)

    def render(self, mode: str = "rgb_array") -> Any:
        return self.call("render", mode)

    def sync_progress(self) -> None:
        self.call("sync_progress")

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment in its thread; wait for the result, at most `call_timeout` seconds.

        Raises:
            WorkerTimeoutError: the method took too long.
            ClosedError: the environment is closed.
            Exception: raised by the method.
        """
        return self._run("call", lambda: getattr(self._env, name)(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"ThreadEnvironment has no attribute {name!r}")
        value = getattr(self._env, name)
        if not callable(value):
            return value
        return lambda *args, **kwargs: self.call(name, *args, **kwargs)

    # ---- end -----------------------------------------------------------------------------------

    def _save_state(self, what: str) -> SavedState:
        if self._closed:
            raise ClosedError(f"{what}: the environment is closed")
        inner: SavedState = self._run("call", lambda: self._env._save_state(what))
        return inner.around(type(self).__name__, self.get_state())

    def _load_state(self, saved: SavedState) -> None:
        self._run("call", lambda: super(ThreadEnvironment, self)._load_state(saved))

    def close(self) -> None:
        """Close the environment and end the thread; may be called again.

        Waits at most `close_timeout` seconds each for both. If an earlier operation timed out, this method does not
        wait: the thread closes the environment and ends after that operation.

        Raises:
            WorkerTimeoutError: the environment's `close` took too long.
            Exception: raised by the environment's `close`.
        """
        self._end(self._env)

    def _end(self, env: Any) -> None:
        if self._closed:
            return
        if sys is None or sys.is_finalizing():  # called by `__del__`: the thread no longer runs and cannot reply
            self._closed = True
            return
        try:
            if env is not None and self._is_late:
                self._requests.put((futures.Future(), env.close))
            elif env is not None:
                self._run("close", env.close)
        finally:
            self._closed = True
            self._requests.put(None)
            if not self._is_late:
                self._thread.join(self._timeouts["close"])

    def __del__(self) -> None:
        if "_thread" in self.__dict__ and not self._closed:
            with contextlib.suppress(Exception):  # the interpreter may be shutting down
                self.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError("a ThreadEnvironment cannot be pickled or copied; build one from its env_constructor")


def _serve(requests: Any) -> None:
    """Run the thread: call the function of each (future, function) from `requests`, until None comes."""
    for future, function in iter(requests.get, None):
        try:
            future.set_result(function())
        except BaseException as error:  # the caller raises it in its own thread
            future.set_exception(error)
        del future, function
