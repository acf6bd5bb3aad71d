"""Pool: the waist of vecenv. Everything above sends operations and receives batches here.

    pool.start()
    pool.reset(seeds=[...])            every env owes its first observation
    batch = pool.recv()                ... and has delivered it
    pool.send(actions)                 every env owes the result of a step
    batch = pool.recv(min_count=32)    the first 32 to finish, as one contiguous run
    pool.close()

This class holds what all pools share: who owes what, validation, deadlines, mail. Where
envs live is for `SerialPool` and `ProcessPool`.
"""

from __future__ import annotations

import dataclasses
import secrets
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from ..errors import ClosedError, ConfigError, SpaceError, StateError, WorkerTimeoutError
from . import mail
from .arena import ArenaPlan
from .batch import Batch, raise_first
from .clock import NEVER_NS, Deadline, now_ns
from .hub import Event, Hub, Refusal
from .inbox import Inbox
from .journal import Journal
from .life import Life, this_process
from .mail import Answer, Letter, unpack_error
from .options import Limits, PoolOptions, check_env_fns, check_options
from .recovery import Recovery
from .replay import Keeper
from .rows import Autoreset, CommandFlag, Form, Op, RowFlag, Rows
from .spec import Array, Leaf, Space, Spec, split_batch
from .watchdog import Watchdog
from .worker import reward_shape_of

__all__ = ["Pool"]

#: Longest sleep of a wait while parts of a letter are still to be written.
_LETTER_LOOK_NS = 1_000_000
_NO_ANSWERS: dict[int, Answer] = {}


class Pool(Life):
    """Envs behind one queue of operations and one stream of batches.

    A pool belongs to one thread at a time and to the process that made it. Every env owes at
    most one answer; a reset supersedes a step whose answer is still out.

    Attributes:
        num_envs: how many envs, with ids 0 .. num_envs - 1.
        observation_space, action_space, reward_space: of one env; known after `start`.
        properties: metadata, spec and render_mode of env 0, as far as they pickle.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    reward_space: Any

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        options: PoolOptions | None = None,
        *,
        adapt: Callable[[Any], Any] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        """Check and remember; builds nothing.

        Args:
            env_fns: one constructor per env.
            options: how to work.
            adapt: makes whatever a constructor returns speak Gymnasium's calls.
            keeper: looks into envs for what they carry from one episode to the next, so that a
                worker's death can be made good from there; None: from seeded resets only.
        """
        super().__init__()
        self.options = options or PoolOptions()
        self.env_fns = check_env_fns(env_fns)
        self.num_envs = len(self.env_fns)
        check_options(self.options)
        self._adapt = adapt or _identity
        self._keeper = keeper
        self._recovery: Recovery | None = None
        self._journal: Journal | None = None
        self._unseeded = np.ones(self.num_envs, np.bool_)  # envs never reset so far
        self._call_letters: dict[int, bytes] = {}  # of calls under way
        self._held: deque[Batch] = deque()
        self._called: frozenset[int] = frozenset()  # envs that a call under way asks
        self._ids = np.arange(self.num_envs, dtype=np.int64)
        self._is_debug = self.options.debug
        self._attention = False  # set while a plain receive will not do: letters, dead workers
        self.properties: dict[str, Any] = {}
        self.implementation = "python"

    # ---- what engines provide ----------------------------------------------------------

    _hub: Hub
    _plan: ArenaPlan
    #: the mapping that the arena lies in
    _memory: Any
    #: whether envs run in the thread that receives
    _works_here = False
    #: dtype and shape of all envs' actions where they are one array
    _plain_dtype: np.dtype[Any] | None = None
    _plain_shape: tuple[int, ...] = ()

    @abstractmethod
    def _start(self) -> None:
        """Build the envs and the arena; set _hub, _plan, _memory and the spaces."""

    def _forget(self) -> None:
        """Let go of the arena; what the caller still looks at keeps it mapped."""
        for name in ("_hub", "_inbox", "_watchdog", "_memory"):
            self.__dict__.pop(name, None)
        self._held.clear()

    @abstractmethod
    def _work(self) -> None:
        """Give the envs a chance to run before a wait (they run here if in this process)."""

    @abstractmethod
    def _hear(self, descriptor: int) -> None:
        """Deal with a descriptor that became readable: raises if a worker died."""

    @abstractmethod
    def _check_alive(self) -> None:
        """Raise if an env owes an answer that can never come."""

    @abstractmethod
    def _has_dead(self) -> bool:
        """Tell whether a worker is dead, so that waits must ask whose answers can still come."""

    @abstractmethod
    def place(self, slot: int) -> str:
        """Name a slot's worker in messages."""

    @abstractmethod
    def worker_of(self, slot: int) -> int | None:
        """Return a slot's worker_id, None where there are no workers."""

    @property
    @abstractmethod
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker, by worker_id; empty when there are none."""

    @property
    def memory(self) -> Array:
        """The arena as bytes, uint8 (nbytes,), read-only and page aligned, for who registers it with a device.

        Batches lie in it, unless the Python implementation puts them together elsewhere. The array keeps the
        mapping alive.

        Raises:
            StateError: the pool is not started.
            ClosedError: it is closed.
        """
        if self._open_in is not this_process[0]:
            self._explain("memory")
        memory = np.frombuffer(self._memory, np.uint8)
        memory.flags.writeable = False
        return memory

    def _go(self) -> None:
        self._start()
        num_slots = self._plan.num_slots
        self._inbox = Inbox(self._hub, num_slots, self._recovery)
        if self._journal is not None:
            self._journal.gather_starts = self._inbox.drain
        self._watchdog = Watchdog(self._hub, num_slots, self.options.limits, self, self._inbox)
        self._look_ns = self._watchdog.look_ns
        self._infos = self._inbox.infos

    # ---- sending -------------------------------------------------------------------------

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
            actions: nested like the action space, one row per env asked, in request order.
            env_ids: distinct ids; None for all.
            ordered: rows will stand in request order, as one batch; nothing else may be
                outstanding. False: rows come in the order that envs finish.
            form: what an action of shape () becomes in the env.

        Raises:
            SpaceError: the actions do not fit the space; nothing was sent.
            StateError: an env owes an answer already.
        """
        if self._open_in is not this_process[0] or not self._lock.acquire(False):
            self._explain("send")
        try:
            if (
                env_ids is None
                and type(actions) is np.ndarray
                and actions.dtype == self._plain_dtype
                and actions.shape == self._plain_shape
                and actions.flags.c_contiguous
            ):  # what collectors send, without a second look
                refusal = self._hub.send((actions,), None, ordered, form)
                if self._journal is not None and refusal is None:
                    self._journal.note_steps((actions,), None, form)
            else:
                ids = self._check_ids(env_ids)
                if self.action_spec.num_objects:
                    self._send_letters(actions, self._ids if ids is None else ids, ordered)
                    return
                leaves = self.action_spec.flatten_batch(actions, self.num_envs if ids is None else len(ids))
                refusal = self._hub.send(leaves, ids, ordered, form)
                if self._journal is not None and refusal is None:
                    self._journal.note_steps(leaves, ids, form)
            if refusal is not None:
                self._refuse("send", refusal)
        finally:
            self._lock.release()

    def send_objects(self, actions: Sequence[Any], env_ids: Sequence[int] | Array, *, ordered: bool = True) -> None:
        """Step envs with these very objects as actions; they travel pickled."""
        self._enter("send")
        try:
            ids = self._check_ids(env_ids)
            self._send_each(actions, self._ids if ids is None else ids, ordered)
        finally:
            self._lock.release()

    def _send_letters(self, actions: Any, ids: Array, ordered: bool) -> None:
        self._send_each(split_batch(self.action_space, actions, len(ids)), ids, ordered)

    def _send_each(self, actions: Sequence[Any], ids: Array, ordered: bool) -> None:
        if len(actions) != len(ids):
            raise SpaceError(f"actions: expected {len(ids)}, one per env, got {len(actions)}", path="actions")
        letters = [mail.dump(Letter(action=action)) for action in actions]
        self._command("send", Op.STEP, ids, np.zeros(len(ids), np.int64), CommandFlag(0), letters, ordered)

    def reset(
        self,
        env_ids: Sequence[int] | Array | None = None,
        *,
        seeds: Sequence[int | None] | None = None,
        kwargs: Sequence[dict[str, Any] | None] | None = None,
        ordered: bool = True,
        draw_seeds: bool = True,
    ) -> None:
        """Reset envs; each owes its first observation, in a row flagged RESET.

        A step of the same env that is still out is superseded: its answer is dropped.

        Args:
            env_ids: distinct ids; None for all.
            seeds: one per env asked, None for unseeded.
            kwargs: further arguments of each env's `reset`, such as `{'options': ...}`.
            ordered: as for `send`.
            draw_seeds: give an env that is reset for the first time a seed if it has none, so
                that what follows can be repeated; only where workers are replaced.
        """
        self._enter("reset")
        try:
            chosen = self._check_ids(env_ids)
            ids = self._ids if chosen is None else chosen
            overtaken = self._owed_by(ids)
            if draw_seeds:
                seeds = self._draw_seeds(ids, seeds, kwargs)
            numbers = np.zeros(len(ids), np.int64)
            flags = np.zeros(len(ids), np.uint8)
            letters: list[bytes | None] = [None] * len(ids)
            seeded = [False] * len(ids)
            for i in range(len(ids)):
                seed = None if seeds is None else seeds[i]
                extra = {} if kwargs is None else dict(kwargs[i] or {})
                if seed is not None and 0 <= seed < 2**63:
                    numbers[i], flags[i] = seed, CommandFlag.SEED
                elif seed is not None:
                    extra["seed"] = seed
                if overtaken and self._journal is not None:
                    flags[i] |= CommandFlag.STATE
                if extra:
                    letters[i] = mail.dump(Letter(kwargs=extra))
                    seed = extra.get("seed", seed)
                seeded[i] = seed is not None
            self._command("reset", Op.RESET, ids, numbers, flags, letters, ordered, seeded=seeded)
            self._unseeded[ids] = False
            for step_id in overtaken:
                self._inbox.forget(step_id)
        finally:
            self._lock.release()

    def _draw_seeds(self, ids: Array, seeds: Any, kwargs: Any) -> Any:
        """Give the first reset of an env a seed of ours where it has none: then it can be repeated."""
        if self._journal is None or not self._unseeded[ids % self.num_envs].any():
            return seeds
        drawn = [None] * len(ids) if seeds is None else list(seeds)
        for i, env_id in enumerate((ids % self.num_envs).tolist()):
            has_own = drawn[i] is not None or (kwargs is not None and "seed" in (kwargs[i] or {}))
            if self._unseeded[env_id] and not has_own:
                drawn[i] = secrets.randbits(31)
        return drawn

    def _owed_by(self, ids: Array) -> list[int]:
        """Return the step_ids that these envs owe; ids out of range are refused later."""
        if not self._hub.outstanding():
            return []
        return [self._hub.owed(i)[1] for i in ids.tolist() if 0 <= i < self.num_envs and self._hub.owed(i)[1]]

    def _command(
        self,
        what: str,
        op: Op,
        ids: Array,
        numbers: Array,
        flags: Array | CommandFlag,
        letters: Sequence[bytes | None],
        ordered: bool,
        *,
        seeded: Sequence[bool] = (),
        names: Sequence[str | None] = (),
    ) -> int:
        bits = flags if isinstance(flags, np.ndarray) else np.full(len(ids), int(flags), np.uint8)
        bits = bits | np.array([CommandFlag.LETTER if letter else 0 for letter in letters], np.uint8)
        result = self._hub.command(op, ids, numbers, bits, letters, ordered)
        if isinstance(result, Refusal):
            self._refuse(what, result)
        self._attention = self._attention or any(letters)
        if self._journal is not None:
            count = len(ids)
            self._journal.note_commands(
                op,
                result,
                ids.tolist(),
                numbers.tolist(),
                bits.tolist(),
                letters,
                names or [None] * count,
                seeded or [False] * count,
            )
        return result

    def _refuse(self, what: str, refusal: Refusal) -> NoReturn:
        env_id = refusal.env_id
        if refusal.reason == "bad_env":
            raise ConfigError(f"{what}: env_id {env_id} is not in 0..{self.num_envs - 1}")
        if refusal.reason == "busy":
            op = Op(self._hub.owed(env_id)[0])
            if op == Op.NONE and what == "call":
                raise StateError(f"{what}: too many calls of env {env_id} are waiting; wait for their answers first")
            if op == Op.NONE:
                raise StateError(f"{what}: env {env_id} was named twice")
            raise StateError(f"{what}: env {env_id} still owes the answer to a {op.name.lower()}; receive it first")
        if refusal.reason == "mixed":
            raise StateError(
                f"{what}: {self._hub.outstanding()} envs still owe answers, and an ordered request must have the pool "
                "to itself; receive them first, or send with ordered=False"
            )
        raise StateError(f"{what}: late writers hold all blocks of the ring; restart the workers that do not answer")

    def _check_ids(self, env_ids: Sequence[int] | Array | None) -> Array | None:
        if env_ids is None:
            return None
        ids = np.ascontiguousarray(env_ids)
        if ids.ndim != 1 or not len(ids) or (ids.dtype != np.int64 and ids.dtype.kind not in "iu"):
            raise ConfigError(f"env_ids: expected a non-empty list of integers, got {env_ids!r}")
        return ids if ids.dtype == np.int64 else ids.astype(np.int64)

    # ---- receiving -----------------------------------------------------------------------

    def cancel(self, env_ids: Sequence[int] | Array | None = None) -> None:
        """Forget what envs owe; answers that come late are dropped. Their state is unknown: reset them."""
        self._enter("cancel")
        try:
            chosen = self._check_ids(env_ids)
            for env_id in (self._ids if chosen is None else chosen).tolist():
                self._inbox.forget(self._hub.owed(env_id)[1])
                self._hub.cancel(env_id)
        finally:
            self._lock.release()

    def outstanding(self) -> int:
        """Return how many envs owe an answer."""
        return self._hub.outstanding() if self._open_in is not None else 0

    def recv(
        self,
        min_count: int | None = None,
        max_count: int | None = None,
        *,
        exact: bool = False,
        timeout: float | None = None,
    ) -> Batch:
        """Wait until at least `min_count` envs have answered, then return all that have.

        Args:
            min_count: between 1 and the number of envs that owe an answer; None for all.
            max_count: leave what is beyond for the next call.
            exact: return exactly min_count rows.
            timeout: seconds that the caller is willing to wait; answers already here are kept.

        Returns:
            A batch of views, valid until `depth - 1` later batches have been received.

        Raises:
            WorkerTimeoutError: the caller's timeout, or an env over its limit.
            WorkerDiedError: a worker that owes an answer has exited.
            StateError: fewer envs than min_count owe an answer.
        """
        if self._open_in is not this_process[0] or not self._lock.acquire(False):
            self._explain("recv")
        try:
            owed = self._hub.outstanding()
            least = owed if min_count is None else min_count
            if not 1 <= least <= owed:
                raise StateError(f"recv: min_count {least} is not in 1..{owed}, the number of envs that owe an answer")
            most = least if exact else max(least, max_count or self.num_envs)
            if self._works_here:
                self._work()
            if timeout is None and not self._attention:
                got = self._hub.recv(least, most, -self._look_ns)
                if not isinstance(got, Event):
                    rows, flags = got
                    if flags or self._is_debug:
                        return self._make_batch(rows, flags)
                    return Batch(rows, 0, self.obs_spec, self._infos, _NO_ANSWERS)
                self._handle(got)
            rows, flags = self._wait_for_rows(least, most, timeout)
            return self._make_batch(rows, flags)
        finally:
            self._lock.release()

    def _wait_for_rows(self, least: int, most: int, timeout: float | None) -> tuple[Rows, int]:
        deadline = Deadline(timeout)
        self._check_alive()
        next_look = NEVER_NS
        while True:
            self._work()
            tick = min(next_look, now_ns() + self._look(), deadline.at_ns)
            got = self._hub.recv(least, most, tick)
            if not isinstance(got, Event):
                return got
            self._handle(got)
            if got.kind == "timeout":
                self._watchdog.notice_gap(tick, deadline)
                if deadline.is_over():
                    self._raise_patience(least, timeout)
                next_look = self._judge()

    def _judge(self) -> int:
        """Look who is over a limit; return when to look again."""
        try:
            return self._watchdog.check()
        except WorkerTimeoutError as error:
            self._overdue(error)
            return now_ns() + self._look_ns

    def _overdue(self, error: WorkerTimeoutError) -> None:
        """Deal with an operation over its limit: raise, or make it good."""
        raise error

    def _look(self) -> int:
        """Return how long a wait may sleep before it looks around; writes letters on the way."""
        if self._hub.pump():
            return _LETTER_LOOK_NS
        self._attention = self._has_dead()
        return self._look_ns

    def _handle(self, event: Event) -> None:
        """Deal with what ended a wait, deadlines apart."""
        if self._closing:
            raise ClosedError("the pool was closed while it waited")
        self._inbox.drain()
        if event.kind == "descriptor":
            self._hear(event.descriptor)
        elif event.kind == "no_block":
            raise StateError("late writers hold all blocks of the ring; restart the workers that are stopped")

    def _raise_patience(self, least: int, timeout: float | None) -> NoReturn:
        raise WorkerTimeoutError(
            f"fewer than {least} answers within {timeout} s; {self._watchdog.describe()}. "
            "What has been sent stays outstanding: receive again, or reset the envs",
            timeout=timeout,
        )

    def _make_batch(self, rows: Rows, flags: int) -> Batch:
        answers = _NO_ANSWERS
        if flags & RowFlag.MAIL:
            answers = self._inbox.take_rows(rows)
        batch = Batch(rows, flags, self.obs_spec, self._infos, answers)
        if self._is_debug:
            self._held.append(batch)
            if len(self._held) > self.options.depth - 1:
                self._held.popleft().expire()
        return batch

    def statistics(self) -> dict[str, Any]:
        """Return counts since the start.

        Returns:
            steps: env steps made; restarts: workers replaced; replayed, truncated: episodes brought
            back or given up after a crash; steps_replayed, replay_seconds: what that took;
            log_nbytes: memory kept for it.
        """
        counts = {"restarts": 0, "replayed": 0, "truncated": 0, "steps_replayed": 0}
        found: dict[str, Any] = {**counts, "replay_seconds": 0.0, "log_nbytes": 0}
        if self._recovery is not None:
            found.update(self._recovery.statistics())
        slots = range(self._plan.num_slots) if self._open_in is not None else ()
        found["steps"] = sum(self._hub.state(slot).num_steps for slot in slots)
        return found

    def set_limits(self, limits: Limits) -> None:
        """Change how long operations of envs may take, those under way included."""
        self.options = dataclasses.replace(self.options, limits=limits)
        self._watchdog.set_limits(limits)
        if self._recovery is not None:
            self._recovery.limits = limits

    # ---- calls ---------------------------------------------------------------------------

    def call(
        self,
        function: Callable[[Any], Any],
        env_ids: Sequence[int] | Array | None = None,
        *,
        timeout: float | None = None,
        pure: bool = False,
        name: str | None = None,
    ) -> list[Any]:
        """Run a function of the env where each env lives; return its results in request order.

        Waits for running steps of these envs; their rows stay for the next `recv`.

        Args:
            function: called with the env.
            env_ids: distinct ids; None for all.
            timeout: seconds that the caller is willing to wait.
            pure: it changes nothing in the env; then it is not repeated after a crash.
            name: its effect lasts beyond the episode, and replaces that of the last call of this
                name: then it is repeated even if the episode began later.

        Raises:
            Exception: what the function raised for the lowest env, remote traceback chained; notes
                name the env, and the others that raised.
            WorkerTimeoutError, WorkerDiedError: as `recv`.
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
        """As `call`, with a function of its own for each env."""
        self.post(functions, env_ids, pure=pure, name=name)
        return self.wait_calls(timeout)

    def post(
        self,
        functions: Sequence[Callable[[Any], Any]],
        env_ids: Sequence[int] | Array | None = None,
        *,
        pure: bool = False,
        name: str | None = None,
    ) -> None:
        """Begin calls, one function for each env asked, and return at once; `wait_calls` gives their results.

        Envs in this thread (`SerialPool`) are called when something waits, as they are stepped.
        `pure` and `name` are as for `call`.

        Raises:
            StateError: earlier calls have not been waited for.
        """
        self._enter("call")
        try:
            if self._called:
                raise StateError("call: earlier calls have not been waited for; call wait_calls first")
            chosen = self._check_ids(env_ids)
            ids = self._ids if chosen is None else chosen
            pickles = {key: mail.dump(Letter(function=one)) for key, one in {id(one): one for one in functions}.items()}
            letters = [pickles[id(function)] for function in functions]
            numbers = np.zeros(len(ids), np.int64)
            names = ["" if pure else name] * len(ids)
            first = self._command("call", Op.CALL, ids, numbers, CommandFlag(0), letters, False, names=names)
            self._called = frozenset(ids.tolist())
            self._call_letters = dict(zip(range(first, first + len(ids)), letters))
            self._inbox.expect_calls(range(first, first + len(ids)))
        finally:
            self._lock.release()

    def wait_calls(self, timeout: float | None = None) -> list[Any]:
        """Wait for the calls that `post` began; return and raise as `call` does.

        Args:
            timeout: seconds; then the calls are given up and their results dropped.
        """
        self._enter("call")
        try:
            if not self._called:
                raise StateError("wait_calls: no calls are under way")
            try:
                return self._collect_calls(len(self._called), timeout)
            finally:
                self._inbox.forget_calls()
                self._called = frozenset()
                self._call_letters = {}
        finally:
            self._lock.release()

    def _collect_calls(self, count: int, timeout: float | None) -> list[Any]:
        deadline = Deadline(timeout)
        next_look = NEVER_NS
        while True:
            self._work()
            self._inbox.drain()
            if self._inbox.has_all_calls():
                break
            self._check_alive()
            tick = min(next_look, now_ns() + self._look(), deadline.at_ns)
            event = self._hub.wait(tick)
            self._handle(event)
            if event.kind == "timeout":
                self._watchdog.notice_gap(tick, deadline)
                if deadline.is_over():
                    self._raise_patience(count, timeout)
                next_look = self._judge()
        answers = self._inbox.take_calls()
        for answer in answers:
            if answer.error is not None and self._journal is not None:
                self._journal.forget_call(answer.env_id, answer.step_id)
        errors: dict[int, Exception] = {}
        for answer in answers:
            if answer.error is not None:
                where = {"env_ids": (answer.env_id,), "op": "call", "step_id": answer.step_id}
                errors[answer.env_id] = unpack_error(answer.error, **where)
        if errors:
            raise_first(errors)
        return [answer.value for answer in answers]

    # ---- spaces --------------------------------------------------------------------------

    def _adopt_spaces(self, observation_space: Any, action_space: Any, reward_space: Any) -> None:
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            if not isinstance(space, Space):
                raise SpaceError(f"{name}: expected a gymnasium Space, got {type(space).__name__}", path=name)
        self.observation_space = observation_space
        self.action_space = action_space
        self.reward_space = reward_space
        strict = self.options.strict
        self.obs_spec = Spec(observation_space, "obs", strict=strict)
        self.action_spec = Spec(action_space, "action", strict=strict)
        if isinstance(self.action_spec.root, Leaf):
            self._plain_dtype = self.action_spec.root.dtype
            self._plain_shape = (self.num_envs, *self.action_spec.root.shape)

    def _make_plan(self, num_slots: int, envs_per_slot: int) -> ArenaPlan:
        return ArenaPlan(
            num_envs=self.num_envs,
            num_slots=num_slots,
            obs=self.obs_spec,
            action=self.action_spec,
            reward_shape=reward_shape_of(self.reward_space),
            depth=self.options.depth,
            has_final=self.options.final_obs or self.options.autoreset == Autoreset.SAME_STEP,
            envs_per_slot=envs_per_slot,
        )


def _identity(env: Any) -> Any:
    return env
