"""Requests: steps, resets and calls on their way to the workers.

    arguments -> checked -> payloads -> hub -> journal

A payload contains values without a column: options of a reset, actions without layout, functions.
"""

from __future__ import annotations

import itertools
import operator
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium.error import ResetNeeded

from ...errors import ConfigError, SpaceError, StateError, add_notes, warn_caller
from ...own_log import own_logger
from ..fallback.values import load_action
from ..host.replay import RestoreJob
from ..layout import messages
from ..layout.bounds import Bounds
from ..layout.commands import GIVEN_STATE, Command, Commands, Effect, GivenState
from ..layout.flags import FORM_MASK, CommandFlag, Form, Op
from ..layout.messages import Payload, Reply, describe_place, pack_error, unpack_error
from ..layout.spec import Array, Leaf, split_batch
from ..parent.batch import raise_first
from ..parent.hub import Refusal, SlotState
from ..recovery.journal import has_reset
from ..recovery.reset_seeds import ResetSeeds
from ..recovery.resume import Resume
from ..system.signals import signals_deferred
from .engine import OpenedEnvs
from .waiter import Waiter, env_id_array

__all__ = ["ActionLeaves", "Requests", "ResetNeededError", "check_count", "refuse_busy_env", "refuse_ordered"]

_LOG = own_logger(__name__)
_REBUILT = (
    "call: env {} answered after it was built again: its worker died, and its episode could not be restored. Earlier "
    "calls were repeated. The mark `recovered` of its next row shows the lost episode"
)
#: Drawn seeds are below this limit, which some simulators require.
_DRAWN_LIMIT = 2**31
#: No observation, and no message.
_NO_OBS = None, None
#: Larger seeds do not fit into a command; they travel in its payload.
_MANY_SEEDS = 2**63


class ResetNeededError(StateError, ResetNeeded):
    """An env was stepped before its first reset."""


class ActionLeaves(tuple[Array, ...]):
    """Actions as `Hub.send` takes them: one C-contiguous array (n, *S) of the leaf's dtype per action leaf."""


class Requests:
    """The requests of one open pool: sends them, and keeps the outstanding ones.

    Methods named as methods of `Pool` have their contract.

    Args:
        envs: where commands go.
        waiter: receives the answers; it is notified of payloads, which may have to be sent in pieces while it waits.
        checks_bounds: refuse actions outside their space.
        seed_of: seed_of(first, env_id, seeds_per_env) is the drawn seed of an env, where `first` is that of env 0.

    Attributes:
        calls: step_ids of the calls under way, by env_id; each submission has an object of its own.
        seeds: of the resets so far.
        unkept: envs with calls that may have changed them and that no journal keeps.
        foreign: envs with a state of `set_states` that no journal keeps.
    """

    def __init__(
        self, envs: OpenedEnvs, waiter: Waiter, *, checks_bounds: bool = False, seed_of: Callable[[int, int, int], int]
    ) -> None:
        self._hub = envs.hub
        self._journal = envs.journal
        self._before_request = envs.before_request
        self._dump_payload = envs.dump_payload
        self._waiter = waiter
        self._seed_of = seed_of
        self._inbox = waiter.inbox
        self._space = envs.spaces.action_space
        self._spec = envs.spaces.action
        self._plan, self._memory = envs.plan, envs.memory
        self._num_envs = envs.plan.num_envs
        self._ids = np.arange(self._num_envs, dtype=np.int64)
        # dtype and shape of actions that are one array; else a shape that no array has
        self._plain_dtype: np.dtype[Any] | None = None
        self._plain_row: tuple[int, ...] = (-1,)
        if isinstance(self._spec.root, Leaf):
            self._plain_dtype, self._plain_row = self._spec.root.dtype, self._spec.root.shape
        self._plain_shape = (self._num_envs, *self._plain_row)
        self._has_object_steps = False  # whether any action was sent as a payload
        self._is_new = np.ones(self._num_envs, np.bool_)  # envs that were never reset
        self._bounds = Bounds(self._space) if checks_bounds else None
        self._checks_steps = True  # while an env was never reset, or if there are bounds
        self.seeds = ResetSeeds.of_new_envs(self._num_envs)
        self.calls: Mapping[int, int] = {}
        self.unkept: set[int] = set()
        self.foreign: set[int] = set()
        # The last observations that another pool has delivered, and their messages, as `RestoreJob` has them.
        self._saved_obs: dict[int, tuple[list[Array] | None, bytes | None]] = {}

    def _call_before_request(self) -> None:
        """Call the function of the engine, which may replace workers."""
        if self._before_request is not None and not self._before_request():
            self._before_request = None

    # ---- steps -----------------------------------------------------------------------------

    def send(self, actions: Any, env_ids: Sequence[int] | Array | None, ordered: bool, form: Form) -> None:
        if self._before_request is not None:
            self._call_before_request()
        ids = None if env_ids is None else env_id_array(env_ids)
        if (
            type(actions) is np.ndarray
            and (actions.dtype is self._plain_dtype or actions.dtype == self._plain_dtype)
            and actions.shape == (self._plain_shape if ids is None else (len(ids), *self._plain_row))
            and actions.flags.c_contiguous
        ):  # the usual case, without further checks
            leaves: tuple[Array, ...] = (actions,)
            is_rounded = False
        else:
            some = self._ids if ids is None else ids
            is_flat = type(actions) is ActionLeaves
            if self._spec.num_objects and not is_flat:
                self._check_and_send_payloads(split_batch(self._space, actions, len(some)), some, ordered)
                return
            is_rounded = not is_flat and self._would_round(actions, len(some))
            leaves = actions if is_flat else self._spec.flatten_batch(actions, len(some))
        if self._checks_steps:
            self._check_reset(ids)
            if self._bounds is not None:
                self._bounds.check_columns(leaves, self._ids if ids is None else ids)
        if is_rounded:
            self._send_payloads(split_batch(self._space, actions, len(some)), some, ordered)
            return
        try:
            outcome = self._hub.send(leaves, ids, ordered, form)
            if outcome is None and self._journal is not None:
                page = self._journal.note_steps(leaves, ids, form)
                if page is not None:
                    self._hub.record_in(page.columns, page.words)
        except BaseException:  # also an exception of a signal handler after everything was sent
            if self._journal is not None:
                first = 0 if ids is None else int(ids[0]) % self._num_envs
                self._journal.note_interrupted(self._hub.owed(first)[1], leaves, ids, form)
            raise
        if outcome is not None and outcome is not True:
            self._refuse("send", Refusal(*outcome))

    def _would_round(self, actions: Any, count: int) -> bool:
        """Return whether the columns cannot hold the floats of these actions exactly."""
        if self._plain_dtype is not None and getattr(actions, "dtype", None) == self._plain_dtype:
            return False
        return self._spec.would_round(actions, count)

    def send_objects(self, actions: Sequence[Any], env_ids: Sequence[int] | Array, ordered: bool) -> None:
        if self._before_request is not None:
            self._call_before_request()
        self._check_and_send_payloads(actions, self._chosen(env_ids), ordered)

    def _check_and_send_payloads(self, actions: Sequence[Any], ids: Array, ordered: bool) -> None:
        if len(actions) != len(ids):
            raise SpaceError(f"actions: expected {len(ids)}, one per env, got {len(actions)}", path="actions")
        if self._checks_steps:
            self._check_reset(ids)
            if self._bounds is not None:
                self._bounds.check_objects(actions, ids)
        self._send_payloads(actions, ids, ordered)

    def _send_payloads(self, actions: Sequence[Any], ids: Array, ordered: bool) -> None:
        payloads = [self._dump_payload(Payload(action=action)) for action in actions]
        self._has_object_steps = True
        with signals_deferred():
            self._command("send", Commands.of(Op.STEP, ids, payloads=payloads), ordered)

    def _check_reset(self, env_ids: Array | None) -> None:
        """Raise ResetNeededError if one of these envs (None: all) was never reset. The hub checks their range later."""
        ids = self._ids if env_ids is None else env_ids
        new = ids[self._is_new[ids % self._num_envs]].tolist()
        if new:
            envs = f"env {new[0]} was" if len(new) == 1 else f"envs {new} were"
            raise ResetNeededError(f"step: {envs} never reset; call reset first")

    # ---- resets ----------------------------------------------------------------------------

    def reset(
        self,
        env_ids: Sequence[int] | Array | None,
        seeds: Sequence[int | None] | None,
        kwargs: Sequence[dict[str, Any] | None] | None,
        ordered: bool,
        seeds_per_env: int,
    ) -> None:
        if self._before_request is not None:
            self._call_before_request()
        ids = self._chosen(env_ids)
        superseded = self._owed_by(ids)
        check_count("reset", "seeds", seeds, len(ids))
        check_count("reset", "kwargs", kwargs, len(ids))
        if seeds is not None:
            seeds = [None if seed is None else operator.index(seed) for seed in seeds]
        numbers, flags = [0] * len(ids), [0] * len(ids)
        payloads: list[bytes | None] = [None] * len(ids)
        used: list[Any] = []
        offered: set[int] = set()
        for i, env_id in enumerate(ids.tolist()):
            seed = None if seeds is None else seeds[i]
            extra = {} if kwargs is None else dict(kwargs[i] or {})
            if "options" in extra and extra["options"] is None:
                del extra["options"]
                flags[i] = CommandFlag.OPTIONS
            if seed is None and (not extra or (seeds is not None and "seed" not in extra)):
                seed = self.seeds.cancelled.get(env_id)
            if isinstance(seed, int) and 0 <= seed < _MANY_SEEDS:
                numbers[i] = seed
                flags[i] |= CommandFlag.SEED
            elif seed is not None:
                extra["seed"] = seed
            elif extra.get("seed") is None:
                if seeds is not None and "seed" not in extra:
                    numbers[i] = -1
                    flags[i] |= CommandFlag.SEED
                if self.seeds.may_lack_generator[env_id % self._num_envs]:
                    numbers[i] = self._draw_seed(env_id, seeds_per_env)
                    flags[i] |= CommandFlag.DRAWN
                    offered.add(env_id)
            if self._journal is not None and (superseded or self._journal.has_cancelled(env_id % self._num_envs)):
                flags[i] |= CommandFlag.SNAPSHOT
            if extra:
                payloads[i] = self._dump_payload(Payload(kwargs=extra))
                seed = extra.get("seed", seed)
            used.append(seed)
        effects = [Effect.ONCE if seed is None else Effect.SEEDS for seed in used]
        commands = Commands.of(Op.RESET, ids, flags=flags, arguments=numbers, effects=effects, payloads=payloads)
        with signals_deferred():
            self._command("reset", commands, ordered, superseded)
            self.seeds.offered = (self.seeds.offered - set(ids.tolist())) | offered
            for env_id, seed in zip(ids.tolist(), used):
                self.seeds.cancelled.pop(env_id, None)
                self.seeds.last[env_id] = seed

    def set_states(self, states: Sequence[GivenState], env_ids: Sequence[int] | Array | None, ordered: bool) -> None:
        if self._before_request is not None:
            self._call_before_request()
        ids = self._chosen(env_ids)
        superseded = self._owed_by(ids)
        check_count("set_states", "states", states, len(ids))
        by_id = {id(state): state for state in states}
        payload_of = {number: self._dump_payload(Payload(state=state)) for number, state in by_id.items()}
        payloads = [payload_of[id(state)] for state in states]
        commands = Commands.of(Op.RESET, ids, effects=Effect.SEEDS, key=GIVEN_STATE, payloads=payloads)
        with signals_deferred():
            self._command("set_states", commands, ordered, superseded)
            if self._journal is None:
                self.foreign.update(ids.tolist())
            self.seeds.offered = self.seeds.offered - set(ids.tolist())
            for env_id in ids.tolist():
                self.seeds.cancelled.pop(env_id, None)
                self.seeds.last[env_id] = None

    def _draw_seed(self, env_id: int, seeds_per_env: int) -> int:
        """Return the drawn seed for an env's first reset; draw and log that of env 0 if there is none yet."""
        if self.seeds.first_drawn is None:
            self.seeds.first_drawn = secrets.randbelow(_DRAWN_LIMIT - self._num_envs * seeds_per_env)
            _LOG.info(
                "first reset without a seed: if the generator of env i does not exist yet, it gets the seed %d + i",
                self.seeds.first_drawn,
            )
        return self._seed_of(self.seeds.first_drawn, env_id, seeds_per_env)

    def owes(self, env_id: int) -> Op:
        return Op(self._hub.owed(env_id)[0])

    def _owed_by(self, ids: Array) -> list[int]:
        """Return the step_ids that these envs owe answers to; the hub refuses ids out of range later."""
        if not self._hub.outstanding():
            return []
        return [self._hub.owed(i)[1] for i in ids.tolist() if 0 <= i < self._num_envs and self._hub.owed(i)[1]]

    def check_idle(self, what: str, env_ids: Sequence[int] | Array, *, is_reset: bool) -> None:
        """Raise StateError if one of these envs owes an answer, or was never reset although `is_reset`."""
        for env_id in env_ids:
            op = self.owes(int(env_id))
            if op != Op.NONE:
                refuse_busy_env(what, int(env_id), op)
            if is_reset and self._is_new[env_id]:
                raise ResetNeededError(f"{what}: env {env_id} was never reset; call reset first")

    def cancel(self, env_ids: Sequence[int] | Array | None) -> None:
        ids = self._chosen(env_ids).tolist()
        for env_id in ids:
            if not 0 <= env_id < self._num_envs:
                self._refuse("cancel", Refusal("bad_env", env_id))
        with signals_deferred():
            for env_id in ids:
                self._cancel_one(env_id, *self._hub.owed(env_id))

    def _cancel_one(self, env_id: int, op: int, step_id: int) -> None:
        if op == Op.NONE:
            return
        self._inbox.forget(step_id)
        self._hub.cancel(env_id)
        if op == Op.RESET and self.seeds.last.get(env_id) is not None:
            self.seeds.cancelled[env_id] = self.seeds.last[env_id]
        if op == Op.RESET and env_id in self.seeds.offered:  # the env may never have got that seed
            self.seeds.may_lack_generator[env_id] = True
        if self._journal is not None:
            self._journal.note_cancelled(env_id, step_id)

    # ---- calls -----------------------------------------------------------------------------

    def submit_calls(
        self, functions: Sequence[Any], env_ids: Sequence[int] | Array | None, pure: bool, name: str | None
    ) -> None:
        if self.calls:
            raise StateError("call: earlier calls have not been waited for; call collect_calls first")
        ids = self._chosen(env_ids)
        check_count("call", "functions", functions, len(ids))
        effect = Effect.NONE if pure else Effect.ONCE if name is None else Effect.LASTS
        by_id = {id(function): function for function in functions}
        payload_of = {
            number: self._dump_payload(Payload(function=function, name="" if pure else name))
            for number, function in by_id.items()
        }
        payloads = [payload_of[id(function)] for function in functions]
        flags = CommandFlag.WATCH if effect == Effect.ONCE else 0
        calls = Commands.of(Op.CALL, ids, flags=flags, effects=effect, key=name, payloads=payloads)
        try:
            with signals_deferred():
                self._command("call", calls, False)
        except BaseException:  # a deferred signal handler raised: the caller does not know that the calls have begun
            self.abandon_calls()
            raise

    def results_of(self, replies: Sequence[Reply]) -> list[Any]:
        """Return the values of calls, in request order; raise the exception of the lowest env instead if there are any.

        Args:
            replies: to all calls under way.
        """
        errors: dict[int, Exception] = {}
        rebuilt = [reply.env_id for reply in replies if reply.is_rebuilt]
        if rebuilt:
            warn_caller(_REBUILT.format(", ".join(map(str, rebuilt))), RuntimeWarning)
        for reply in replies:
            if reply.error is None:
                continue
            env_ids, worker_id = (reply.env_id,), reply.worker_id
            where: dict[str, Any] = {"env_ids": env_ids, "op": "call", "step_id": reply.step_id, "worker_id": worker_id}
            errors[reply.env_id] = unpack_error(reply.error, **where)
            if reply.request is not None:
                add_notes(errors[reply.env_id], [describe_place(where)])
        if errors:
            raise_first(errors)
        return [reply.value for reply in replies]

    def abandon_calls(self) -> None:
        """Forget the calls under way: they still run, and their results are discarded."""
        with signals_deferred():
            self._inbox.forget_calls()
            self.calls = {}

    # ---- commands of envs --------------------------------------------------------------------

    def last_request(self, state: SlotState) -> tuple[int | None, tuple[Any, ...]]:
        """Return the seed of an env's episode and the actions of the command under way, as far as they are known.

        For engines without a journal.

        Args:
            state: of the slot that serves the env.

        Returns:
            The seed, None if there was none or it is unknown; and the action of a step, else ().
        """
        if state.op == Op.RESET:
            return self.seeds.last.get(state.env_id), ()
        actions: tuple[Any, ...] = ()
        if state.op == Op.STEP and not self._has_object_steps:
            rows = [column[state.env_id : state.env_id + 1].copy() for column in self._plan.actions(self._memory)]
            actions = (load_action(self._spec.root, rows, 0, Form.NATIVE),)
        return self._hub.last_delivered_seed(state.env_id, state.step_id), actions

    def payload_of(self, command: Command) -> bytes | None:
        """Return the payload of a command that was sent, to send it again; None if it had none.

        For engines with a journal and a listener, which keep the payloads.
        """
        if not command.flags & CommandFlag.PAYLOAD:
            return None
        if command.op == Op.CALL:
            payload: bytes = self._inbox.unanswered_calls[command.step_id].payload
            return payload
        assert self._journal is not None
        # If the payload is not kept any more, a later command of the env supersedes this one: any payload will do.
        return self._journal.payload(command.env_id, command.step_id) or messages.dump(Payload())

    def new_jobs(self, env_ids: Iterable[int], queued: Commands) -> dict[int, RestoreJob]:
        """Return jobs to restore envs, by env_id, for `Recovery.plan` to complete.

        A job has the last observation that was delivered before the first queued command of its env, with the message
        of its values that have no column, and whether a reset of the env was ever given a seed.

        Args:
            env_ids: of the jobs, in their order.
            queued: the commands that will be executed again, also those of other envs.
        """
        first = queued.first_by_env()
        before = {env_id: first[env_id].step_id if env_id in first else 0 for env_id in env_ids}
        last_delivered = self.last_delivered_obs(before)
        last_message = self._inbox.last_delivered_message
        return {
            env_id: RestoreJob(
                last_delivered=last_delivered.get(env_id),
                last_delivered_message=last_message(env_id) or self._saved_obs.get(env_id, _NO_OBS)[1],
                takes_seed=bool(self.seeds.is_seeded[env_id]),
            )
            for env_id in before
        }

    def last_delivered_obs(self, before: Mapping[int, int]) -> dict[int, list[Array]]:
        """Return copies of the newest observations of envs, see `Hub`; also those that another pool has delivered."""
        found = self._hub.last_delivered_obs(before)
        for env_id in before.keys() - found.keys():
            obs = self._saved_obs.get(env_id, _NO_OBS)[0]
            if obs is not None:
                found[env_id] = [leaf.copy() for leaf in obs]
        return found

    def fail_calls(self, env_ids: Collection[int], error_of: Callable[[int, int], Exception]) -> None:
        """Answer the calls of envs that are built again with an error: no other answer will come.

        `error_of` returns the error of an env and the step_id of its call.
        """
        for env_id in env_ids:
            step_id = self.calls.get(env_id)
            if step_id is not None and self._inbox.awaits_call(step_id):
                error = pack_error(error_of(env_id, step_id))
                self._inbox.reply_to_call(Reply(step_id, env_id, error=error))
        self._inbox.forget_calls_of(env_ids)

    def forget_envs(self, env_ids: Collection[int], *, keeps_calls: bool = False) -> None:
        """Cancel the outstanding commands of these envs, and treat the envs as new: they have been rebuilt.

        `keeps_calls`: whether the new envs get the calls of the old ones.
        """
        for env_id in env_ids:
            self._inbox.forget(self._hub.owed(env_id)[1])
            self._hub.cancel(env_id)
            self._is_new[env_id] = self._checks_steps = self.seeds.may_lack_generator[env_id] = True
            self._saved_obs.pop(env_id, None)
            if self._journal is not None:
                self._journal.forget(env_id, keeps_calls=keeps_calls)
        self.seeds.first_drawn = None  # the same seeds would repeat episodes

    # ---- requests of another pool ------------------------------------------------------------

    def continue_from(self, step_id: int) -> None:
        self._hub.continue_from(step_id)
        if self._journal is not None:
            self._journal.continue_from(step_id)

    def send_commands(self, commands: Commands) -> None:
        if self._before_request is not None:
            self._call_before_request()
        step_ids, ops = commands.table["step_id"], commands.table["op"]
        calls = commands.table[ops == Op.CALL]
        has_leaves = np.array([isinstance(payload, tuple) for payload in commands.payloads], np.bool_)
        is_first = np.diff(step_ids, prepend=-1) != 1
        is_first[1:] |= (ops[1:] != ops[:-1]) | has_leaves[1:] | has_leaves[:-1]
        with signals_deferred():
            for start, stop in itertools.pairwise([*np.flatnonzero(is_first).tolist(), len(ops)]):
                self.continue_from(int(step_ids[start]))
                self._send_part(commands.select(slice(start, stop)), calls["step_id"].tolist())
            if len(calls):
                self.calls = dict(zip(calls["env_id"].tolist(), calls["step_id"].tolist()))

    def _send_part(self, commands: Commands, awaited: Collection[int]) -> None:
        """Send one step with its actions, or commands of one operation; `awaited` as for `_command`."""
        command = next(iter(commands))
        if isinstance(command.payload, tuple):
            leaves = ActionLeaves(
                np.frombuffer(data, leaf.dtype).reshape(1, *leaf.shape)
                for data, leaf in zip(command.payload, self._spec.leaves)
            )
            self.send(leaves, commands.env_ids, False, Form(command.flags & FORM_MASK))
            return
        self._has_object_steps |= command.op == Op.STEP
        superseded = self._owed_by(commands.env_ids) if command.op == Op.RESET else []
        self._command(Op(commands.op).name.lower(), commands, False, superseded, awaited)

    def _note_reset(self, env_ids: Array, is_seeded: Array) -> None:
        if self._checks_steps:
            self._is_new[env_ids] = False
            self._checks_steps = self._bounds is not None or bool(self._is_new.any())
        self.seeds.may_lack_generator[env_ids] = False
        self.seeds.is_seeded[env_ids] |= is_seeded

    def resume(self, resume: Resume) -> None:
        """Treat the envs that were reset in another pool as reset; called once, before any request."""
        if resume.seeds is not None:
            self.seeds = resume.seeds
        jobs = resume.restore_jobs
        self._saved_obs = {env_id: (job.last_delivered, job.last_delivered_message) for env_id, job in jobs.items()}
        if self._journal is None:
            for env_id, job in jobs.items():
                for call in job.lasting_calls:
                    (self.foreign if call.name == GIVEN_STATE else self.unkept).add(env_id)
        env_ids = [env_id for env_id, job in jobs.items() if has_reset(job)]
        takes_seed = [jobs[env_id].takes_seed for env_id in env_ids]
        self._note_reset(np.array(env_ids, np.int64), np.array(takes_seed, np.bool_))

    # ---- sending ---------------------------------------------------------------------------

    def _command(
        self,
        what: str,
        commands: Commands,
        ordered: bool,
        superseded: Sequence[int] = (),
        awaited: Collection[int] | None = None,
    ) -> None:
        """Send commands of one operation.

        Args:
            what: the operation in errors.
            superseded: step_ids of the commands that they supersede.
            awaited: step_ids of all calls whose answers are collected together; None: of these calls.

        The caller defers signal handlers: a command that was sent must get its payload, and be noted.
        """
        refusal = self._hub.command(commands, ordered)
        if refusal is not None:
            self._refuse(what, refusal)
        op, table = commands.op, commands.table
        if any(commands.payloads):
            self._waiter.request_check()
        if op == Op.CALL:  # before anything below takes messages: the answer may have arrived
            self._inbox.register_calls(commands, awaited)
            self.calls = dict(zip(table["env_id"].tolist(), table["step_id"].tolist()))
            if self._journal is None:
                self.unkept.update(table["env_id"][table["effect"] != Effect.NONE].tolist())
        if self._journal is not None:
            self._journal.note_commands(commands)
        if op == Op.RESET:
            self._note_reset(commands.env_ids, table["effect"] == Effect.SEEDS)
        for step_id in superseded:
            self._inbox.forget(step_id)

    def _refuse(self, what: str, refusal: Refusal) -> NoReturn:
        env_id = refusal.env_id
        if refusal.reason == "bad_env":
            raise ConfigError(f"{what}: env_id {env_id} is not in 0..{self._num_envs - 1}")
        if refusal.reason == "busy":
            op = Op(self._hub.owed(env_id)[0])
            if op == Op.NONE and what == "call":
                raise StateError(f"{what}: too many calls of env {env_id} are waiting; wait for their answers first")
            if op == Op.NONE:
                raise StateError(f"{what}: env {env_id} was named twice")
            refuse_busy_env(what, env_id, op)
        if refusal.reason == "mixed":
            refuse_ordered(what, self._hub.outstanding())
        if refusal.reason == "no_room":
            raise StateError(
                f"{what}: the queue of env {env_id}'s worker is full of commands that were cancelled, and it does not "
                "drop them; restart it"
            )
        raise StateError(
            f"{what}: all batch buffers are in use by rows that workers have not finished; "
            "restart the stopped workers with pool.restart(worker_id)"
        )

    def _chosen(self, env_ids: Sequence[int] | Array | None) -> Array:
        """Return the env ids that a request names, int64 (count,); None names all."""
        return self._ids if env_ids is None else env_id_array(env_ids)


def refuse_busy_env(what: str, env_id: int, owed: Op) -> NoReturn:
    """Raise StateError: an env owes the answer to an operation, and gets no other one."""
    remedy = "receive it first" if what in ("reset", "get_states") else "receive it first, or reset the env"
    raise StateError(f"{what}: env {env_id} still owes the answer to a {owed.name.lower()}; {remedy}")


def refuse_ordered(what: str, num_outstanding: int) -> NoReturn:
    """Raise StateError: other envs owe answers, and the request is ordered."""
    raise StateError(
        f"{what}: {num_outstanding} envs still owe answers, and an ordered request must have the pool to itself; "
        "receive them first, or send with ordered=False"
    )


def check_count(what: str, name: str, values: Sequence[Any] | None, count: int) -> None:
    """Raise ConfigError unless there is one value per env asked."""
    if values is not None and len(values) != count:
        raise ConfigError(f"{what}: {name}: expected {count}, one per env asked, got {len(values)}", key=name)
