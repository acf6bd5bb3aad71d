"""Build the envs of one worker, each in the thread that will serve it.

    build='parallel'    all threads build at the same time; the global random generators are not swapped
    build='serial'      one env after the other, each with global random generators of its own

With one thread both are the same. A parallel construction ends early when an env draws from the global generators in
its constructor, or seeds them: the envs under construction at that moment are closed, and they and all later ones are
built serially. The random values of such an env are therefore those of a serial construction.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, add_notes
from ..host.global_rngs import GlobalRngs
from ..system.clock import now_ns
from ..system.process_settings import ProcessSettings
from ..system.stack_dump import note_pause, note_phase
from ..system.tokens import Tokens

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["Builder", "EnvThread", "build_env", "call_worker_init", "check_distinct"]


def build_env(env_fn: Callable[[], Any], adapt: Callable[[Any], Any], env_rngs: AbstractContextManager[Any]) -> Any:
    """Build one env, with the global random generators that `env_rngs` swaps in."""
    with env_rngs:
        return adapt(env_fn())


def call_worker_init(worker_init: Callable[[], object] | None) -> None:
    """Call the function that prepares a worker for its envs, if there is one."""
    if worker_init is not None:
        try:
            worker_init()
        except BaseException as error:  # the parent raises it, even SystemExit
            add_notes(error, ["raised by worker_init, which the worker calls before it builds envs"])
            raise


def check_distinct(envs: Mapping[int, Any], first_env_id: int = 0) -> None:
    """Raise ConfigError if two envs are one object: they would undo each other's resets.

    Args:
        envs: results of constructors, by env_id.
        first_env_id: is added to these ids in the error.
    """
    owners: dict[int, tuple[int, Any]] = {}  # values have the objects, so that each id belongs to one of them
    for env_id, env in sorted(envs.items()):
        inner = getattr(env, "unwrapped", None)
        inner = env if inner is None else inner
        other, _ = owners.setdefault(id(inner), (env_id, inner))
        if other != env_id:
            raise ConfigError(
                f"env_fns: those of envs {first_env_id + other} and {first_env_id + env_id} returned the same env. A "
                "constructor has to build a new env at each call: `lambda: gymnasium.make(...)`, not `lambda: env`",
                key="env_fns",
            )


class EnvThread:
    """The one thread that runs every operation of some envs, from construction to close.

    Thread 0 of a worker is its main thread, which many libraries require.

    Args:
        number: of the thread.
        settings: to apply in a new thread.
    """

    def __init__(self, number: int, settings: ProcessSettings) -> None:
        self._executor: Executor | None = None
        if number:
            from concurrent.futures import ThreadPoolExecutor  # it imports logging, which few workers need

            self._executor = ThreadPoolExecutor(1, f"slot {number}", settings.apply_to_thread)

    def submit(self, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
        """Start a call; return a function that waits for its result.

        In the main thread, the call runs only when that function is called.
        """
        if self._executor is None:
            return functools.partial(function, *args)
        return self._executor.submit(function, *args).result

    def end(self) -> None:
        """Wait for the end of the thread, unless it is the main one; it then refers to no env."""
        if self._executor is not None:
            self._executor.shutdown()


class Builder:
    """Builds the envs of a worker.

    Args:
        threads: the threads of the worker.
        env_ids: the ids of the envs that each thread builds, in this order.
        env_fns: env factories by env_id.
        adapt: adapts the result of a factory to the interface of Gymnasium.
        rngs: the RNG states of the envs.
        tokens: one is taken for each env but the first, and without one no further env is built, for the parent has
            given the others to other workers; None: all envs are built. Only a worker with one thread has tokens.

    Attributes:
        envs: the envs that are built, by env_id.
        times: wall time and CPU time of each constructor in nanoseconds, by env_id.
        errors: exceptions of constructors, by env_id.
    """

    def __init__(
        self,
        threads: Sequence[EnvThread],
        env_ids: Sequence[Sequence[int]],
        env_fns: Mapping[int, Callable[[], Any]],
        adapt: Callable[[Any], Any],
        rngs: GlobalRngs,
        tokens: Tokens | None = None,
    ) -> None:
        self.envs: dict[int, Any] = {}
        self.times: dict[int, tuple[int, int]] = {}
        self.errors: dict[int, BaseException] = {}
        self._threads = threads
        self._env_ids = env_ids
        self._env_fns = env_fns
        self._adapt = adapt
        self._rngs = rngs
        self._tokens = tokens
        self._built: dict[int, Any] = {}  # results of constructors
        self._lock = threading.Lock()  # guards the attributes below, and those above in a parallel construction
        self._under_construction: set[int] = set()
        self._suspects: set[int] = set()  # envs one of which has drawn from the global generators

    def build(self, *, serially: bool) -> None:
        """Build the envs, or end at the first exceptions of constructors.

        Constructors that run in other threads then are completed before.
        """
        if not serially and len(self._threads) > 1:
            calls = [thread.submit(self._build_share, number) for number, thread in enumerate(self._threads)]
            for wait in calls:  # the main thread's call first, which runs only now
                wait()
            self._close_suspects()
        if not self.errors:
            self._build_serially()
        if not self.errors:
            check_distinct(self._built, self._rngs.first_env_id)

    def _build_share(self, thread: int) -> None:
        """Build the envs of one thread, until a constructor in any thread raises or draws."""
        num_done = 0
        for env_id in self._env_ids[thread]:
            with self._lock:
                if self.errors or self._suspects:
                    break
                self._under_construction.add(env_id)
            note_phase("construct", env_id, thread=thread, num_done=num_done)
            env, error = None, None
            try:
                env = self._build_timed(env_id, self._rngs.fork_guard)
            except BaseException as raised:  # the parent raises it, even SystemExit of a constructor
                error = raised
            with self._lock:
                if self._rngs.restore_neutral():
                    self._suspects |= self._under_construction
                self._under_construction.remove(env_id)
                if error is None:
                    self.envs[env_id] = env
                    num_done += 1
                else:
                    self.errors[env_id] = error
        note_pause(thread=thread, num_done=num_done)

    def _build_timed(self, env_id: int, env_rngs: AbstractContextManager[Any]) -> Any:
        began_ns, began_cpu_ns = now_ns(), time.thread_time_ns()

        def keep_and_adapt(env: Any) -> Any:
            self._built[env_id] = env
            return self._adapt(env)

        env = build_env(self._env_fns[env_id], keep_and_adapt, env_rngs)
        self.times[env_id] = now_ns() - began_ns, time.thread_time_ns() - began_cpu_ns
        return env

    def _close_suspects(self) -> None:
        """Close the envs that are built again because one of them has drawn from the global generators."""
        for thread, env_ids in zip(self._threads, self._env_ids):
            for env_id in self._suspects.intersection(env_ids, self.envs):
                try:
                    thread.submit(self._close, self.envs.pop(env_id))()
                except BaseException as error:
                    name = f"env {self._rngs.first_env_id + env_id}"
                    add_notes(error, [f"raised by close of {name}, which has to be built again without threads"])
                    self.errors[env_id] = error

    def _close(self, env: Any) -> None:
        with self._rngs.fork_guard:
            env.close()

    def _build_serially(self) -> None:
        """Build the envs that are missing, one after the other."""
        for number, (thread, env_ids) in enumerate(zip(self._threads, self._env_ids)):
            for num_done, env_id in enumerate(env_ids):
                if env_id in self.envs:
                    continue
                if num_done and self._tokens is not None and not self._tokens.take():
                    break
                note_phase("construct", env_id, thread=number, num_done=num_done)
                try:
                    self.envs[env_id] = thread.submit(self._build_timed, env_id, self._rngs.of(env_id))()
                except BaseException as error:  # the parent raises it
                    self.errors[env_id] = error
                    return
            note_pause(thread=number, num_done=sum(env_id in self.envs for env_id in env_ids))
