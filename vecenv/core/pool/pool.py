"""Pool: the interface that all front ends stand on. They send requests here and receive batches.

    pool.start()
    pool.reset(seeds=[...])            every env owes its first observation
    batch = pool.recv()                ... and has delivered it
    pool.send(actions)                 every env owes the result of a step
    batch = pool.recv(min_count=32)    the first 32 that finish, as one contiguous run
    batch = pool.recv(env_ids=[7, 3])  these two, while others are under way
    pool.close()

Parts of a pool, in the order in which a call passes them:

    Lifecycle    takes the lock; start and close
    SpareEnvs    only with spare envs: chooses the env that serves an env id
    Requests     checks actions, resets and calls, and sends them to the hub
    Waiter       waits for rows, messages, deaths of workers and deadlines
    Engine       builds and runs envs: `SerialEngine` or `ProcessEngine`
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from ...errors import InternalError, StateError
from ...report import Report
from ...statistics import Shards, Statistics
from ..advice.facts import PoolFacts, SettingNames
from ..advice.rules import diagnose
from ..advice.sizing import SERIAL, Setting
from ..advice.times import (
    measure_load,
    read_caller,
    read_envs,
    read_threads,
    read_workers,
    read_workload,
    running_of,
)
from ..host.replay import StateSnapshotter
from ..host.saving import GetStates, SavedEnv, SaveState, restore_now
from ..host.snapshots import snapshot_if_due, snapshot_now
from ..layout.arena import ArenaPlan
from ..layout.commands import Commands, GivenState
from ..layout.counters import CountersPlan
from ..layout.flags import Autoreset, Form, Op
from ..layout.messages import Reply
from ..layout.spec import Array, Space, Spec
from ..operations.engine import Engine, EnvSpaces, OpenedEnvs
from ..operations.lifecycle import Lifecycle
from ..operations.requests import ActionLeaves, Requests
from ..operations.waiter import Waiter, check_no_counts
from ..options import Limits, PoolOptions
from ..parent.batch import Batch
from ..parent.copy_timer import CopyTimer, make_copy_timer
from ..parent.hub import Hub
from ..parent.leases import Leases
from ..processes.leased_workers import is_leased
from ..processes.worker import core_limit, usable_cores
from ..recovery.policy import COUNTS
from ..recovery.resume import Resume, make_resume, read_records, resume_of
from ..spares.envs import SpareEnvs
from ..spares.queues import SpareQueues
from ..spares.resets import SpareResets, SpareRule
from ..system.clock import check_timeout, now_ns
from ..system.signals import signals_deferred

__all__ = ["Pool"]

_Self = TypeVar("_Self", bound="Pool")
_Views = TypeVar("_Views")


class _NotOpen:
    """Stands in for the parts that only an open pool has. The lifecycle refuses calls before they come here."""

    def __getattr__(self, name: str) -> Any:
        return _not_open


def _not_open(*args: Any, **kwargs: Any) -> Any:
    raise InternalError("a call of a pool that is not open was not refused")


def _seed_of(first: int, env_id: int, seeds_per_env: int) -> int:
    """Return the drawn seed of an env, where `first` is that of env 0."""
    return first + env_id * seeds_per_env


_NOT_OPEN: Any = _NotOpen()
_NAMES = SettingNames()
_NATIVE = Form.NATIVE  # an attribute of an enum takes longer to read


class Pool:
    """Envs behind one queue of requests and one stream of batches.

    A pool belongs to the process that made it, and one thread at a time may use it. Every env owes at most one
    answer; a reset supersedes a step that has not been answered yet.

    All calls raise StateError if the pool is not started, belongs to another process, or if another call is under way,
    and ClosedError if it is closed.

    Args:
        engine: builds and runs the envs; it serves one pool.
        spares: the last `spares.num_spares` envs of the engine are spare ones, which are reset ahead; see `SpareEnvs`.
            The autoreset mode of the engine is DISABLED then, and it leases no blocks. None: envs are not reset ahead.
        mode: with `spares`, how episodes follow each other.

    Attributes:
        env_fns: one constructor per env, without spare ones.
        num_envs: how many envs, with ids 0 .. num_envs - 1, without spare ones.
        spaces: the spaces of one env that the pool compares and checks with; known after `start`. Front ends use them,
            and do not give them to the caller.
        obs_spec, action_spec: layouts of these; known after `start`.
        properties: name, metadata, spec and render_mode of env 0, as far as they pickle; known after `start`.
        implementation: 'native', or 'python' for rows without C; known after `start`.
        copy_timer: front ends copy large batches by it, for `statistics`; None if batches are small, with
            `timings=False`, and before `start`.
    """

    spaces: EnvSpaces
    obs_spec: Spec
    action_spec: Spec

    # Of an open pool; else `_NOT_OPEN`.
    _envs: OpenedEnvs
    _hub: Hub
    _requests: Requests
    _waiter: Waiter
    _rows: Requests | SpareEnvs  # takes the requests that name envs
    _receiver: Waiter | SpareEnvs  # returns the batches
    # The hot paths, put together once.
    _outstanding: Callable[[], int]
    _send: Callable[[Any, Any, Any, Any], None]
    _recv: Callable[[Any, Any, Any, Any], Batch]
    _recv_envs: Callable[[Any, Any, Any, Any], Batch]
    _step: Callable[[Any, Any, Any, Any], Batch]

    def __init__(self, engine: Engine, spares: SpareRule | None = None, mode: Autoreset = Autoreset.DISABLED) -> None:
        self._engine = engine
        num_spares = 0 if spares is None else spares.num_spares
        self.num_envs = engine.num_envs - num_spares
        self.env_fns = engine.env_fns[: self.num_envs]
        self._spares = None if spares is None else SpareResets(spares, SpareQueues(self.num_envs, num_spares))
        self._mode = mode
        self.properties: dict[str, Any] = {}
        self.implementation = "python"
        self.copy_timer: CopyTimer | None = None
        self._opened_ns = 0
        self._lifecycle = Lifecycle(engine.interrupt, engine.end_if_unclosed)
        self._call = self._lifecycle.call
        self._close_parts()

    @property
    def autoreset(self) -> Autoreset:
        """How the episodes of an env follow each other; with spare envs, the engine itself makes no autoresets."""
        return self.options.autoreset if self._spares is None else self._mode

    # ---- start and end ---------------------------------------------------------------------

    def start(self) -> None:
        """Build all envs and learn their spaces.

        Workers have `limits.construct` seconds to build their envs, and the same time to begin to serve. Constructors
        in this process have no limit.

        Raises:
            ConfigError: nothing was started: memory, processes or pickling failed.
            SpaceError: an env's spaces differ from env 0's.
            WorkerTimeoutError: a constructor took too long.
            WorkerDiedError: a worker died while it built its envs.
            Exception: the exception of a constructor, with the remote traceback as its cause.
        """
        self._lifecycle.start(self._open, self._shut_down)

    def _open(self) -> None:
        envs = self._engine.open(self._lifecycle.check_not_closing)
        waiter = Waiter(envs, self._engine, self._lifecycle, self._engine.options)
        options = self._engine.options
        checks_bounds = options.strict or options.debug
        spares = self._spares
        seed_of = _seed_of if spares is None else spares.seed_of
        requests = Requests(envs, waiter, checks_bounds=checks_bounds and spares is None, seed_of=seed_of)
        self._engine.connect(requests, waiter)
        self._envs, self._hub, self._requests, self._waiter = envs, envs.hub, requests, waiter
        self._opened_ns = now_ns()
        if spares is None:
            self._rows, self._receiver, self._outstanding = requests, waiter, envs.hub.outstanding
            self._bind(requests.send, waiter.recv, waiter.recv_envs)
        else:
            rows = SpareEnvs(spares, self._mode, envs, requests, waiter, checks_bounds=checks_bounds)
            self._rows = self._receiver = rows
            self._outstanding = rows.outstanding
            self._bind(rows.send, rows.recv, rows.recv_envs)
        self.spaces = envs.spaces
        self.obs_spec, self.action_spec = envs.spaces.obs, envs.spaces.action
        self.properties, self.implementation = envs.properties, envs.implementation
        self.copy_timer = make_copy_timer(envs.plan)
        resume = self._engine.take_resume()
        if resume is not None and resume.seeds is not None:  # else another pool sends the commands of this one
            self._continue(resume)

    @functools.cached_property
    def _callers_spaces(self) -> EnvSpaces:
        return self.spaces.copy()

    @property
    def observation_space(self) -> Space[Any]:
        """The observation space of one env; known after `start`. Changes of it have no effect on the pool."""
        return self._callers_spaces.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """The action space of one env; known after `start`. Changes of it have no effect on the pool."""
        return self._callers_spaces.action_space

    @property
    def reward_space(self) -> Any:
        """The reward space of one env, or None; known after `start`. Changes of it have no effect on the pool."""
        return self._callers_spaces.reward_space

    def _bind(self, send: Callable[..., None], recv: Callable[..., Batch], recv_envs: Callable[..., Batch]) -> None:
        """Put the hot paths together."""
        guard = self._lifecycle.guard
        self._send, self._recv, self._recv_envs = guard("send", send), guard("recv", recv), guard("recv", recv_envs)
        self._step = guard("step", send, then=recv)

    def _close_parts(self) -> None:
        """Drop all that only an open pool has, the memory in particular. Arrays that the caller has keep it mapped."""
        self._envs = self._hub = self._requests = self._waiter = self._rows = self._receiver = _NOT_OPEN
        self._outstanding = _not_open
        self._bind(_not_open, _not_open, _not_open)

    def close(self, timeout: float | None = None) -> None:
        """End all envs and workers; may be called repeatedly. It takes at most `timeout` seconds and a kill.

        It may be called from another thread: a `recv` that waits then raises ClosedError. It may also be called from a
        signal handler, or by an env of a `SerialPool`. During a call of the pool it returns at once then, and that call
        closes the pool and raises ClosedError. Views of batches that are valid, or were lent, stay readable.

        Args:
            timeout: seconds that workers have to end their operation and to close their envs; None: `limits.close`.
                With 0 they are killed, and their envs are not closed.

        Raises:
            ConfigError: `timeout` is not a number; nothing is closed.
            Exception: the exception of an env's `close`, after everything has ended.
        """
        self._lifecycle.close(timeout)

    def _shut_down(self, timeout: float | None) -> Exception | None:
        try:
            return self._engine.close(timeout)
        finally:
            if self._waiter is not _NOT_OPEN:
                self._waiter.end()
            self._close_parts()

    @property
    def num_batches(self) -> int:
        """The number of batches that were received so far; 0 unless the pool is open."""
        receiver = self._receiver
        return 0 if receiver is _NOT_OPEN else receiver.num_batches

    @property
    def closed(self) -> bool:
        """Whether the pool is closed: by `close`, or by a start that failed."""
        return self._lifecycle.is_closed

    def describe(self, env_name: str | None = None, num_envs: int | None = None) -> str:
        """Return the items of a front end's repr: the env, counts, the implementation, and whether it is closed.

        Args:
            env_name: the name of the env; None: that of env 0.
            num_envs: the number of envs; None: that of the pool.
        """
        name = env_name or self.properties.get("name", "not started")
        num_shards, num_workers = len(self._engine.shards()), len(self.worker_pids)
        if num_shards:
            num_workers = self._engine.statistics().get("num_workers", 0)
        counts = f"num_workers={num_workers}, threads_per_worker={self.options.threads_per_worker}"
        counts = f"num_shards={num_shards}, {counts}" if num_shards else counts
        where = "backend='serial'" if self._engine.runs_here else counts
        num_spares = self._engine.num_envs - self.num_envs
        spares = f", num_spare_envs={num_spares}" if num_spares else ""
        state = f"implementation={self.implementation!r}, closed={self.closed}"
        return f"{name}, num_envs={num_envs or self.num_envs}{spares}, {where}, {state}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()})"

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # ---- steps and resets --------------------------------------------------------------------

    def send(
        self,
        actions: Any,
        env_ids: Sequence[int] | Array | None = None,
        *,
        ordered: bool = True,
        form: Form = Form.NATIVE,
    ) -> None:
        """Step envs; each owes one row.

        Args:
            actions: nested like the action space, one row per env asked, in the order of `env_ids`.
            env_ids: distinct ids; None for all.
            ordered: rows come in the order of `env_ids`, as one batch, and no other env may owe an answer. False: rows
                come in the order in which envs finish.
            form: the object that an action of shape () becomes in the env.

        Raises:
            SpaceError: the actions do not fit the space; nothing was sent.
            StateError: an env owes an answer already, or was never reset (also a `gymnasium.error.ResetNeeded`);
                nothing was sent.
        """
        self._send(actions, env_ids, ordered, form)

    def send_objects(self, actions: Sequence[Any], env_ids: Sequence[int] | Array, *, ordered: bool = True) -> None:
        """Step envs with any objects as actions, which travel pickled; all else is as for `send`."""
        self._call("send", self._rows.send_objects, actions, env_ids, ordered)

    def recv(
        self,
        min_count: int | None = None,
        max_count: int | None = None,
        *,
        exact: bool = False,
        timeout: float | None = None,
        env_ids: Sequence[int] | Array | None = None,
    ) -> Batch:
        """Wait until at least `min_count` envs have answered, then return all answers that are there.

        Args:
            min_count: between 1 and the number of envs that owe an answer; None for all of these.
            max_count: most rows to return; others are kept for the next call.
            exact: return exactly `min_count` rows.
            timeout: seconds; answers that have arrived are kept.
            env_ids: wait for exactly these envs, distinct ids, and return their rows in this order. Rows of other envs
                that arrive during the wait are copied, so they count against no `depth`. The next call returns them
                first, in the order in which they finished. None: any envs. With ids, `min_count`, `max_count` and
                `exact` must not be given.

        Returns:
            A batch of views, valid until `depth - 1` later batches have been received.

        Raises:
            WorkerTimeoutError: the timeout, or an env over its limit.
            WorkerDiedError: a worker that owes an answer has died.
            StateError: fewer envs than `min_count` owe an answer, or one of `env_ids` owes none or is named twice.
            ConfigError: an argument is not a number, there is no such env, or a count is given together with `env_ids`.
            WrongTypeError: a count is a bool (also a ConfigError and a TypeError).
        """
        if env_ids is not None:
            check_no_counts(min_count, max_count, exact)
            return self._recv_envs(env_ids, timeout, None, None)
        return self._recv(min_count, max_count, exact, timeout)

    def step(self, actions: Any) -> Batch:
        """Step all envs and wait for all rows: `send` and `recv` in one call, for loops in lockstep.

        Arguments and errors are those of the two; no env may owe an answer before.

        Returns:
            All rows, in the order of env ids.
        """
        return self._step(actions, None, True, _NATIVE)

    def reset(
        self,
        env_ids: Sequence[int] | Array | None = None,
        *,
        seeds: Sequence[int | None] | None = None,
        kwargs: Sequence[dict[str, Any] | None] | None = None,
        ordered: bool = True,
        seeds_per_env: int = 1,
    ) -> None:
        """Reset envs; each owes its first observation, in a row flagged RESET.

        A step of the same env that has not been answered is superseded: its answer is dropped.

        Args:
            env_ids: distinct ids; None for all.
            seeds: one per env asked; None calls `reset(seed=None)`. Without this list, `reset` gets no `seed`. If an
                earlier reset of the env had a seed and was cancelled, the env may never have got that seed; then None
                means that seed again.
            kwargs: further arguments of each env's `reset`, such as `{'options': ...}`. `options=None` is passed only
                if the env's `reset` accepts `options`.
            ordered: as for `send`.
            seeds_per_env: number of seeds that are drawn for each env, one for each env of a batch.

        An env whose first reset has no seed gets none. If it has no generator yet, its generator is made from a seed
        that is drawn and logged here, and that `Batch.seeds` then contains. So its episodes can be repeated.

        Raises:
            ConfigError: there is no such env, or the numbers of seeds, kwargs and envs differ.
            TypeError: a seed is not a whole number.
            StateError: an env owes the answer to a reset already.
        """
        self._call("reset", self._rows.reset, env_ids, seeds, kwargs, ordered, seeds_per_env)

    def cancel(self, env_ids: Sequence[int] | Array | None = None) -> None:
        """Cancel outstanding commands: a step or reset that has not begun is not made, and a late answer is dropped.

        The state of these envs is unknown afterwards: reset them.

        Args:
            env_ids: None for all.

        Raises:
            ConfigError: there is no such env; nothing was cancelled.
        """
        self._call("cancel", self._rows.cancel, env_ids)

    def outstanding(self) -> int:
        """Return how many envs owe an answer; 0 if the pool is not open."""
        return self._outstanding() if self._lifecycle.is_open else 0

    def owes(self, env_id: int) -> Op:
        """Return the operation that an env owes the answer to: STEP, RESET or NONE; NONE if the pool is not open."""
        return self._rows.owes(env_id) if self._lifecycle.is_open else Op.NONE

    # ---- calls -------------------------------------------------------------------------------

    def call(
        self,
        function: Callable[[Any], Any],
        env_ids: Sequence[int] | Array | None = None,
        *,
        timeout: float | None = None,
        pure: bool = False,
        name: str | None = None,
    ) -> list[Any]:
        """Call a function with each env, where the env lives; return the results in the order of `env_ids`.

        A step of such an env that runs is waited for; its row stays for the next `recv`.

        Args:
            function: takes the env.
            env_ids: distinct ids; None for all.
            timeout: seconds; after that the calls are abandoned.
            pure: the function changes nothing in the env. It is not repeated after a crash then.
            name: the effect of the call lasts beyond the episode, and replaces the effect of the last call with the
                same name. It is repeated after a crash then, even if the episode began later.

        Raises:
            Exception: the exception of the function for the lowest env id, with the remote traceback as its cause; its
                notes name this env, and others that raised.
            WorkerTimeoutError, WorkerDiedError, ConfigError: as for `recv`.
        """
        count = self.num_envs if env_ids is None else len(env_ids)
        return self.call_each([function] * count, env_ids, timeout=timeout, pure=pure, name=name)

    def call_each(
        self,
        functions: Sequence[Callable[[Any], Any]],
        env_ids: Sequence[int] | Array | None = None,
        *,
        timeout: float | None = None,
        pure: bool = False,
        name: str | None = None,
    ) -> list[Any]:
        """Call one function per env asked; all else is as for `call`."""
        check_timeout("timeout", timeout)
        requests, mine = self._requests, None
        try:
            with signals_deferred():
                self.submit_calls(functions, env_ids, pure=pure, name=name)
                mine = requests.calls
            return self.collect_calls(timeout)
        except BaseException:
            if mine and requests.calls is mine:  # an exception between the two: these calls would stay under way
                self.abandon_calls()
            raise

    def submit_calls(
        self,
        functions: Sequence[Callable[[Any], Any]],
        env_ids: Sequence[int] | Array | None = None,
        *,
        pure: bool = False,
        name: str | None = None,
    ) -> None:
        """Begin calls, one function per env asked, and return at once. `collect_calls` returns their results.

        Envs in this thread (`SerialPool`) are called when a wait begins, as they are stepped then. Arguments are those
        of `call`.

        Raises:
            ConfigError: there is no such env, or the numbers of functions and envs differ.
            StateError: earlier calls have not been collected.
        """
        self._call("call", self._rows.submit_calls, functions, env_ids, pure, name)

    def collect_calls(self, timeout: float | None = None) -> list[Any]:
        """Wait for the calls of `submit_calls`; return results and raise exceptions as `call` does.

        Args:
            timeout: seconds; after that the calls are abandoned.
        """
        check_timeout("timeout", timeout)
        return self._call("call", self._collect_calls, timeout)

    def _collect_calls(self, timeout: float | None) -> list[Any]:
        requests = self._requests
        count = len(requests.calls)
        if not count:
            raise StateError("collect_calls: no calls are under way")
        try:
            return self._rows.results_of(self._waiter.wait_for_calls(count, timeout))
        finally:
            requests.abandon_calls()

    def abandon_calls(self) -> None:
        """Abandon the calls of `submit_calls`, if there are any: they still run, and their results are discarded."""
        if self._lifecycle.is_started and self._requests.calls:
            self._call("call", self._requests.abandon_calls)

    # ---- tasks of shards ---------------------------------------------------------------------

    def share(self, data: bytes) -> Any:
        """Return a handle of a value that many tasks refer to; it is sent to each shard as often as it is needed."""
        return self._call("share", self._hub.share, data)

    def submit_task(self, call: Any) -> None:
        """Begin a task in a shard, a `shards.task_calls.TaskCall`; it commands the envs of the shard by itself.

        The envs owe nothing. Steps, resets and calls wait until no task is under way.
        """
        self._call("submit_task", self._hub.submit_task, call)

    def forget_task(self, task_id: int) -> None:
        """Let shards drop a task that will not be submitted again. Any thread may call this at any time."""
        hub = self._hub
        if hub is not _NOT_OPEN:
            hub.forget_task(task_id)

    def wait_for_task(self, calls: Sequence[Any]) -> None:
        """Wait until one of these tasks has ended.

        Raises:
            Exception: an exception of a shard that is not that of a task.
        """
        self._call("wait_for_task", self._waiter.wait_for_task, calls)

    # ---- requests of another pool, of which these envs are a part ------------------------------

    def send_leaves(
        self, leaves: tuple[Array, ...], env_ids: Array | None = None, *, ordered: bool = True, form: Form = Form.NATIVE
    ) -> None:
        """Step envs with actions that another pool has checked; all else is as for `send`.

        Args:
            leaves: one array (n, *S) per action leaf, C-contiguous and of the leaf's dtype.
        """
        self._send(ActionLeaves(leaves), env_ids, ordered, form)

    def continue_from(self, step_id: int) -> None:
        """Give the next command this step_id, which exceeds those of earlier commands; see `Hub.continue_from`."""
        self._requests.continue_from(step_id)

    def send_commands(self, commands: Commands) -> None:
        """Send commands as another pool has made them: under their step_ids, and no seed is drawn here.

        Their rows come in the order in which envs finish. Calls replace earlier ones, whose results are
        dropped.

        Args:
            commands: of any operations, in the order of their step_ids; steps without a payload have their actions.

        Raises:
            StateError: an env owes an answer already; the commands before its own were sent.
        """
        self._call("send", self._requests.send_commands, commands)

    def wait_for_replies(self, timeout: float) -> None:
        """Wait until all calls under way are answered, and leave their results to `collect_calls`.

        Args:
            timeout: seconds; after that WorkerTimeoutError is raised, and the calls stay under way.
        """
        self._call("call", self._waiter.wait_for_replies, timeout)

    def relay_messages(self, receiver: Callable[[bytes], None]) -> None:
        """Pass on the messages of envs as they arrive, to the pool that they are a part of; see `Inbox.relay_to`."""
        self._waiter.inbox.relay_to(receiver)

    def add_info_key(self, name: str) -> int:
        """Give an info key the next cell of a row; return its index, or -1 if it cannot have one."""
        return self._hub.add_info_key(name)

    def count_steps(self) -> int:
        """Return how many steps the envs have made; 0 if the pool is not open."""
        if not self._lifecycle.is_open:
            return 0
        return sum(self._hub.state(slot).num_steps for slot in range(self._envs.plan.num_slots))

    @property
    def plan(self) -> ArenaPlan:
        """The layout of the rows; known after `start`."""
        return self._envs.plan

    @property
    def counters(self) -> tuple[CountersPlan, Any]:
        """The layout of the counters, and the memory that they lie in; known after `start`."""
        return self._envs.plan.counters, self._envs.counters

    def read_records(self, env_ids: Sequence[int] | Array | None = None) -> Array:
        """Return the newest records of envs, from which another pool can continue; see `recovery.resume.read_records`.

        All restore points that precede the delivered rows have reached the listener of the engine then.

        Args:
            env_ids: None for all.
        """
        found: Array = self._call("read_records", self._read_records, env_ids)
        return found

    def _read_records(self, env_ids: Sequence[int] | Array | None) -> Array:
        self._waiter.inbox.poll()
        return read_records(self._envs.plan, self._envs.memory, env_ids)

    # ---- saving ------------------------------------------------------------------------------

    def save(self) -> Resume:
        """Return the state of all envs, from which another pool continues their episodes; see `recovery.resume`.

        Steps and resets that have not been received are not waited for; the other pool makes them again.

        Raises:
            StateError: calls are under way, or the state of an env is not known, and its commands are not kept: the
                envs live in this process, or failures are raised.
        """
        resume: Resume = self._call("save", self._save)
        return resume

    def _save(self) -> Resume:
        if isinstance(self._rows, SpareEnvs) and self._engine.recovery is None:
            self._rows.finish()  # resets of spare envs are not kept
        idle = self._idle_envs(range(self._engine.num_envs))
        found = self._requests.results_of(self._call_idle([SaveState(self._engine.snapshotter)] * len(idle), idle))
        resume = self._make_resume(dict(zip(idle, found)))
        return dataclasses.replace(resume, spares=self._rows.save()) if isinstance(self._rows, SpareEnvs) else resume

    def _idle_envs(self, env_ids: Iterable[int]) -> list[int]:
        """Return the envs of the engine that owe no answer."""
        return [env_id for env_id in env_ids if self._requests.owes(env_id) == Op.NONE]

    def _call_idle(self, functions: Sequence[Callable[[Any], Any]], env_ids: Sequence[int]) -> Sequence[Reply]:
        """Call envs of the engine, and return their replies in this order."""
        if not env_ids:
            return []
        self._requests.submit_calls(functions, env_ids, True, None)
        try:
            return self._waiter.wait_for_calls(len(env_ids), None)
        finally:
            self._requests.abandon_calls()

    def _make_resume(self, saved: dict[int, Any]) -> Resume:
        requests, recovery = self._requests, self._engine.recovery
        seeds = copy.deepcopy(requests.seeds)
        if recovery is None:
            envs = self._check_saved(saved)
            jobs = requests.new_jobs(envs, Commands.listed([]))
            return resume_of(envs, jobs, seeds, requests.foreign, self._engine.snapshotter)
        records = self._read_records(None)
        env_ids = range(self._engine.num_envs)
        owed = [(env_id, *self._hub.owed(env_id)) for env_id in env_ids]
        queued = Commands.listed(
            recovery.journal.command(env_id, step_id) for env_id, op, step_id in owed if op != Op.NONE
        )
        jobs = requests.new_jobs(env_ids, queued)
        return make_resume(recovery, records, queued, jobs, seeds)

    def _check_saved(self, saved: dict[int, SavedEnv]) -> dict[int, SavedEnv]:
        """Return the envs that were reset; raise StateError if the state of one is not known."""
        if len(saved) < self._engine.num_envs:
            raise StateError("save: receive all steps and resets first: the commands of these envs are not kept")
        for env_id, env in saved.items():
            reason = env.reason
            if not reason and not env.holds_calls and env_id in self._requests.unkept:
                reason = "its state does not contain what earlier calls and set_attr have changed"
            if reason:
                raise StateError(
                    f"save: env {env_id}: {reason}. Use backend='process' with failures='recover', which keeps the "
                    "commands of each episode, or call vecenv.register_pickled_state for its class"
                )
        return {env_id: env for env_id, env in saved.items() if env.state is not None}

    def _continue(self, resume: Resume) -> None:
        """Continue a saved pool. Envs without an unanswered command are restored now, the others before it."""
        requests = self._requests
        requests.send_commands(resume.queued)
        requests.continue_from(resume.next_step_id)
        if isinstance(self._rows, SpareEnvs):
            self._rows.load(resume.spares)
        idle = self._idle_envs(resume.restore_jobs)
        replies = self._call_idle([restore_now] * len(idle), idle)
        # A mark in the next row shows an episode that was lost; the warning for callers of methods does not fit.
        requests.results_of([dataclasses.replace(reply, is_rebuilt=False) for reply in replies])

    # ---- states of single envs -----------------------------------------------------------------

    def get_states(
        self, env_ids: Sequence[int] | Array, snapshotter: StateSnapshotter
    ) -> list[tuple[SavedEnv, list[Array]]]:
        """Return the exact states of envs between two steps, ordered as `env_ids`; nothing changes.

        The last observation of each env is returned, too, as copies of its leaves.

        Args:
            env_ids: distinct ids of envs that owe no answer.
            snapshotter: captures the states.

        Raises:
            StateError: an env owes an answer or was never reset, or its state is not known.
            Exception: raised by a hook of an env, as by `call`.
        """
        return self._call("get_states", self._get_states, env_ids, snapshotter)

    def _get_states(
        self, env_ids: Sequence[int] | Array, snapshotter: StateSnapshotter
    ) -> list[tuple[SavedEnv, list[Array]]]:
        self._rows.check_idle("get_states", env_ids, is_reset=True)
        rows = np.asarray(env_ids).tolist()
        spares = self._rows if isinstance(self._rows, SpareEnvs) else None
        envs = rows if spares is None else spares.envs_of(rows)
        found: dict[int, SavedEnv] = {}
        while len(found) < len(envs):  # an env may have moved to another slot after the failure of its worker
            groups: dict[int, list[int]] = {}
            for env_id in envs:
                if env_id not in found:
                    groups.setdefault(self._slot_of(env_id), []).append(env_id)
            firsts = [group[0] for group in groups.values()]
            offsets = [tuple(env_id - group[0] for env_id in group) for group in groups.values()]
            calls = {one: GetStates(snapshotter, one) for one in set(offsets)}  # equal ones are pickled once
            replies = self._call_idle([calls[one] for one in offsets], firsts)
            for first, some in zip(firsts, self._requests.results_of(replies)):
                found.update((first + offset, saved) for offset, saved in some.items())
        observations = self._requests.last_delivered_obs(dict.fromkeys(envs, 0))
        states = [(found[env_id], observations.get(env_id, [])) for env_id in envs]
        return states if spares is None else [spares.replace_begun(row, *one) for row, one in zip(rows, states)]

    def set_states(self, states: Sequence[GivenState], env_ids: Sequence[int] | Array, *, ordered: bool = True) -> None:
        """Put states into envs; each owes one row, with the observation that belongs to the state.

        All else is as for `reset`. If the state of an env cannot be restored, its row has the exception.

        Raises:
            StateError: an env owes an answer.
        """
        self._call("set_states", self._set_states, states, env_ids, ordered)

    def _set_states(self, states: Sequence[GivenState], env_ids: Sequence[int] | Array, ordered: bool) -> None:
        self._rows.check_idle("set_states", env_ids, is_reset=False)
        self._rows.set_states(states, env_ids, ordered)

    def _slot_of(self, env_id: int) -> int:
        """Return the slot that serves an env; of envs in shards it is not known, and each is taken for one."""
        slots = self._envs.slots
        if slots is None:
            return 0 if self._engine.runs_here else env_id
        return slots.slot_of(env_id)

    # ---- recovery ----------------------------------------------------------------------------

    def take_snapshots(self) -> None:
        """Save the state of each env in the middle of its episode, where envs support that.

        For envs whose episodes do not end: after a crash they are restored from there, and earlier requests need not be
        kept. Other envs are saved when they are reset. Nothing happens if workers are not replaced, or if the last
        states are recent and there is room for the requests since then.
        """
        journal = self._envs.journal if self._lifecycle.is_started else None
        if journal is not None:
            self.call(snapshot_now if journal.is_half_full() else snapshot_if_due, pure=True)

    def restart(self, worker_id: int, new_envs: Sequence[int] | None = None) -> None:
        """Replace a worker, dead or alive, by a new one that builds the same envs.

        The commands of its envs are cancelled, together with answers that have arrived and were not received. These
        envs must be reset before they are stepped; other workers are not concerned. Calls of these envs that have not
        been answered are lost: `collect_calls` raises WorkerError for them.

        Args:
            worker_id: the worker.
            new_envs: ids of the envs that begin as new, for a pool that recovers its workers. Only their steps and
                resets are cancelled, and the new envs get the calls again that have changed the old ones. The other
                envs of the worker are restored, and answer their commands, as after its death; calls of all envs are
                answered. None: all envs begin as new.

        Raises:
            StateError: the envs live in this process, or there are spare envs, whose answers would be lost.
            Exception: as `start`, for the envs of this worker.
        """
        if self._spares is not None:
            raise StateError("restart: a pool with spare envs replaces its workers itself")
        self._call("restart", self._engine.restart, worker_id, new_envs)
        self._waiter.inbox.emit_warnings()

    def kill(self, worker_id: int) -> None:
        """End a worker that does not answer, with all that its envs have started; `close` does not wait for it then.

        Raises:
            StateError: the envs live in this process.
        """
        self._call("kill", self._engine.kill, worker_id)

    def envs_of(self, worker_id: int) -> list[int]:
        """Return the ids of the envs that a worker hosts.

        Raises:
            StateError: the envs live in this process.
        """
        return self._engine.envs_of(worker_id)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker, by worker_id; () if there are none.

        A worker that is replaced gets another id. An env that gets a worker of its own adds one behind the others.
        """
        return self._engine.worker_pids

    def has_dead_workers(self) -> bool:
        """Return whether a worker is dead and was not replaced. After `close` all are."""
        return self._engine.has_dead()

    @property
    def envs(self) -> list[Any]:
        """The results of `env_fns`, ordered by env_id; [] before `start`. After `close` these envs are closed.

        With spare envs, these are the ones that serve the env ids now. The list is the caller's own. From the first
        read on, methods and attributes that the caller sets in an env are used at once; until then the outermost
        wrappers of `gymnasium.make` are passed over.

        Raises:
            AttributeError: the envs live in worker processes.
        """
        expose = getattr(self._engine, "expose", None)
        if expose is None:
            raise AttributeError("the envs live in worker processes")
        envs: list[Any] = expose()
        if self._spares is not None and envs:
            envs = [envs[env_id] for env_id in self._spares.queues.env_of.tolist()]
        return envs

    # ---- limits, counts and memory -------------------------------------------------------------

    @property
    def options(self) -> PoolOptions:
        """Options of the pool; `set_limits` replaces them."""
        return self._engine.options

    def set_limits(self, limits: Limits) -> None:
        """Change how long operations of envs may take, including those that run now.

        Raises:
            ConfigError: a limit is not a number of seconds above 0.
        """
        self._engine.set_limits(limits)
        if self._lifecycle.is_started:
            self._waiter.watchdog.set_limits(limits)

    def statistics(self) -> Statistics:
        """Return counts and times since the start. While the pool is not open there are no times, and no steps.

        Any thread may call it at any time, also while another one uses or closes the pool: it waits for no lock. If the
        envs live on other machines, these are asked for the times, which takes up to two seconds, or ends up to 50 ms
        after another thread calls the pool; while another call is under way, the times are those of the last answer.
        """
        self._lifecycle.read_if_idle("statistics", self._engine.ask_times)
        found: dict[str, Any] = {**dict.fromkeys(COUNTS, 0), "replay_seconds": 0.0, "log_nbytes": 0}
        found.update(self._engine.statistics())
        found.setdefault("num_workers", 0)
        found.setdefault("threads_per_worker", 1)
        found.setdefault("choice", self.options.choice)
        hub, opened = self._hub, self._envs  # once: another thread may open or close the pool between two reads
        if not self._lifecycle.is_started or hub is _NOT_OPEN or opened is _NOT_OPEN:
            workers = read_workers((), (), 1, None, {}, 0)
            return Statistics(steps=0, envs=read_envs(None, ()), workers=workers, caller=read_caller(0, 0, 0), **found)
        plan, pids = opened.plan, self.worker_pids
        env_ids = [self.envs_of(worker_id) for worker_id in range(len(pids))]
        worker_of = {env_id: worker_id for worker_id, mine in enumerate(env_ids) for env_id in mine}
        timings = plan.counters.timings(opened.counters)
        envs = read_envs(timings, [worker_of.get(env_id, -1) for env_id in range(self._engine.num_envs)])
        states = [hub.state(slot) for slot in range(plan.num_slots)]
        threads = self.options.threads_per_worker
        workers = read_workers(pids, env_ids, threads, timings, running_of(states), self._opened_ns)
        caller = read_caller(*hub.waits(), 0 if self.copy_timer is None else self.copy_timer.sum_ns)
        envs, workers = self._engine.read_times() or (envs, workers)
        found["exceptions"] = int(envs.exceptions.sum())
        return Statistics(
            steps=sum(state.num_steps for state in states), envs=envs, workers=workers, caller=caller, **found
        )

    def shards(self) -> Shards:
        """Return the state and the node of every shard; [] if the envs live on this machine.

        A loss is shown once a call of this pool has noticed it.
        """
        return self._engine.shards()

    def report(self, names: SettingNames = _NAMES) -> Report:
        """Return verdicts about the speed since the start: causes of lost time, and the settings that remove them.

        Args:
            names: the settings of the front end.
        """
        statistics = self.statistics()
        return diagnose(statistics, self._read_facts(names, len(statistics.workers.pid)))

    def _read_facts(self, names: SettingNames, num_workers: int) -> PoolFacts:
        options, pids, shards = self.options, self.worker_pids, self._engine.shards()
        setting = SERIAL
        if num_workers:
            setting = Setting(num_workers, options.threads_per_worker, is_leased=is_leased(self.env_fns))
        workload, infos = None, None
        if self._lifecycle.is_started and not shards:
            envs = self._envs
            timings = envs.plan.counters.timings(envs.counters)
            if timings is not None and envs.slots is not None:
                workload = read_workload(timings, envs.slots.by_env, envs.slots.worker_of)
            if pids and not self.obs_spec.num_objects:  # every row has a message with objects
                infos = self._waiter.inbox.pickled_infos
        threads, helper_share = read_threads(pids, options.threads_per_worker)
        return PoolFacts(
            setting=setting,
            cores=usable_cores(),
            machine_cores=os.cpu_count() or 1,
            core_limit=core_limit(),
            workload=workload,
            compute_threads=threads,
            helper_share=helper_share,
            pickled_infos=infos,
            resets_in_steps=options.autoreset == Autoreset.SAME_STEP,
            num_shards=len(shards),
            callers_load=measure_load(usable_cores()) if setting == SERIAL and self._lifecycle.is_started else 0.0,
            num_spares=self._engine.num_envs - self.num_envs,
            names=names,
        )

    @property
    def memory(self) -> Array:
        """The arena as bytes, uint8 (nbytes,), read-only and page aligned, to be registered with a device.

        Batches lie in it, unless rows without C gather them elsewhere. The array keeps the memory mapped.

        Raises:
            StateError: the pool is not started.
            ClosedError: it is closed.
        """
        self._lifecycle.check_open("memory")
        memory = np.frombuffer(self._envs.memory, np.uint8)
        memory.flags.writeable = False
        return memory

    def lend(self, make_views: Callable[[Batch], _Views]) -> Leases[_Views] | None:
        """Return an object that lends blocks of batches, instead of copies; at most once per pool.

        Args:
            make_views: makes views of a batch that fills a block; called once per block. The pool keeps a reference
                until it is closed.

        Returns:
            None if the pool has no blocks for that. `options.leases` asks for some. There are none for small
            observations, for objects, in debug mode, and without C.

        Raises:
            StateError: the pool is not started, or lends already.
        """
        self._lifecycle.check_open("lend")
        return self._waiter.lend(make_views)
