"""Host: executes the commands of one slot on its envs, and writes the replies into rows.

On the data path it stands between the slot and the envs. The slot itself makes plain steps and autoresets
and writes their rows in C (without C: only steps); it calls back only if a snapshot is due. The host handles
resets, calls, actions with a payload, values that need conversion or a message, and exceptions. Worker
processes and `SerialEngine` use this same class.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import InternalError, StateError, WorkerTimeoutError, add_notes
from ...values.nested import copy_arrays, copy_objects, writable_copy
from ..layout import messages
from ..layout.arena import ArenaPlan
from ..layout.commands import GIVEN_STATE, Changes, GivenState, LastingCall
from ..layout.flags import Autoreset, CommandFlag, Op, RowFlag
from ..layout.info_cells import Infos, fitting, is_wanted
from ..layout.messages import Outcome
from ..layout.spec import Spec
from ..system.stack_dump import note_phase
from .call_effects import CallEffects
from .caught import CaughtExceptions, UnbuiltEnv, describe
from .checks import exact_reward, holds_int, shorten, type_name, zero_reward
from .executor import Answer, Executor
from .global_rngs import FirstCallsEnv, GlobalRngs, RngSwappingEnv
from .replay import RestoreJob, Restorer, Snapshotter
from .saving import GetStates, SavedEnv, SaveState, get_state, save_env
from .shortcut import Shortcut
from .slot import IDLE, RAISED, RESULT, STEP_BEGINS, STEP_WITH_SNAPSHOT, STOP, Slot
from .snapshots import Snapshots, snapshot_if_due, snapshot_now

__all__ = ["CloseHere", "Host", "close_all"]

#: Limit of seeds that fit the column; larger ones are used too, but reported as unknown.
_MANY_SEEDS = 2**63

#: Values of info["recovered"] for an episode that could not be restored, and for the episode after it.
TRUNCATED, RESTARTED = "truncated", "restarted"

_THREADED_DRAW = (
    "envs draw from the global random generators while several threads of their worker step envs at once: their "
    "random values depend on each other. Draw from self.np_random, or use threads_per_worker=1"
)


@dataclass(frozen=True)
class CloseHere:
    """Requests the close of an env that is about to move to another worker; the host handles this call.

    Attributes:
        pid: the worker. Its successor, which may get the same command, keeps the env.
    """

    pid: int

    def __call__(self, env: Any) -> bool:
        """Raise InternalError: no env is called."""
        raise InternalError("a request to close an env has reached it")


class Host:
    """The envs of one slot.

    Args:
        slot: source of commands, destination of rows.
        envs: env_id -> env with Gymnasium's methods.
        plan: layout of the arena, with the observation spec and the reward's shape.
        autoreset: mode of the reset at the end of an episode.
        rngs: the RNG states of these envs.
        infos: which infos are sent.
        is_callers: whether this is the caller's own process, where a KeyboardInterrupt is the caller's Ctrl-C.
        dump_reply: pickles replies, or copies them in the caller's own process; see `messages`.

    Attributes:
        failed_to_close: the first env whose `close` raised.
        called: the envs that calls may have changed.
    """

    def __init__(
        self,
        slot: Slot,
        envs: dict[int, Any],
        plan: ArenaPlan,
        autoreset: Autoreset,
        rngs: GlobalRngs,
        infos: Infos = Infos.ALL,
        *,
        is_callers: bool = False,
        dump_reply: Callable[[messages.Reply], Any] = messages.dump_reply,
    ) -> None:
        self._slot = slot
        self._envs = envs
        self._plan = plan
        self._obs: Spec = plan.obs
        self._reward = functools.partial(exact_reward, plan.reward_shape)
        self._autoreset = autoreset
        self._infos = infos
        self._is_callers = is_callers
        self._dump_reply = dump_reply
        self.failed_to_close: int | None = None
        self.called: set[int] = set()
        self._interrupted: int | None = None  # the env whose command was interrupted by Ctrl-C
        self._is_ending = False  # a signal handler closed the pool during a command; it may also call `sys.exit`
        zeros = zero_reward(plan.reward_shape)
        self._executor = Executor(envs, autoreset, rngs, zeros, slot.touch, self._call_lazily)
        self._snapshots: Snapshots | None = None
        self._effects: CallEffects | None = None
        self._effect: tuple[str, Changes | None, bool, bool] | None = None  # the fields of its `CallEffect`
        self._restore_jobs: dict[int, RestoreJob] = {}  # jobs of the envs that are still to restore
        self._restorer: Restorer | None = None
        self._marks: dict[int, dict[str, str]] = {}  # "recovered" and "error" of the next info, by env_id
        self._abandoned: dict[int, Any] = {}  # last delivered observations of abandoned episodes, by env_id
        self._last_objects: dict[int, list[Any]] = {}  # object leaves of the last observation, by env_id
        self._warnings: list[tuple[str, str]] = []
        self._obs.warn = lambda path, text: self._warnings.append((path, text))
        self._rngs = rngs
        for env_id in envs:
            self._register_env(env_id)
        self._loads_windows = rngs.is_active
        self._watch_generators()
        rngs.on_torch, rngs.called_env = self._register_all, self._called_env

    def keep_records(self, snapshotter: Snapshotter | None) -> None:
        """Keep records and snapshots of the envs from now on, so that they can be restored after a crash.

        Args:
            snapshotter: captures states; None: a restore point is only a reset with a seed.
        """
        self._snapshots = self._executor.snapshots = Snapshots(
            self._slot, snapshotter, self._rngs, lambda *warning: self._warnings.append(warning)
        )
        self._effects = CallEffects(snapshotter, self._rngs)
        self._keep_digests()

    def _keep_digests(self) -> None:
        plan = self._plan
        final_offset = min(plan.final_offsets, default=plan.words["block_stride"])
        self._slot.keep_records(final_offset, self._take_snapshot)

    def catch_exceptions(self, caught: CaughtExceptions, snapshotter: Snapshotter | None) -> None:
        """End the episode of an env that raises, instead of replying with its exception; called before `restore`.

        Args:
            caught: decides which exceptions, and builds envs again.
            snapshotter: compares envs before and after calls; None: the effects of calls are unknown.
        """
        self._executor.caught = caught
        self._effects = CallEffects(snapshotter, self._rngs)

    def restore(
        self,
        restore_jobs: dict[int, RestoreJob],
        rebuild: Callable[[int], Any],
        snapshotter: Snapshotter | None,
    ) -> None:
        """Restore each of these envs to its former state, right before its first command is executed.

        Args:
            restore_jobs: env_id -> the ways to restore this env; entries of other slots' envs are ignored.
            rebuild: builds a new env for an env_id, for a second attempt.
            snapshotter: restores states; None if there are no states.
        """
        self._restorer = Restorer(
            self._executor, self._slot, self._obs.conform, self._reward, snapshotter, self._rngs, rebuild
        )
        self._restore_jobs = {env_id: restore_jobs[env_id] for env_id in self._envs if env_id in restore_jobs}
        self.called.update(self._restore_jobs)  # the calls of the former process are repeated
        if self._snapshots is None and any(plan.entries for job in restore_jobs.values() for plan in job.attempts):
            self._keep_digests()  # repeated answers are compared with the digests of the original ones
        for env_id in self._restore_jobs:  # the slot passes their next commands to the host, plain steps too
            self._slot.host(env_id, None)

    def serve(self) -> int:
        """Execute commands until the slot stops or, if it does not wait, is idle. Blocks.

        Exceptions that an env raises are sent as its reply. So are those of signal handlers that run during a command.

        Returns:
            STOP or IDLE.

        Raises:
            KeyboardInterrupt: in the caller's own process only; the command is cancelled.
            SystemExit: in the caller's own process only, while the pool is being closed.
            BaseException: the exception of a signal handler that ran between two commands.
        """
        if self._loads_windows != self._rngs.is_active:
            self._loads_windows = self._rngs.is_active
            self._watch_generators()
        while True:
            try:
                kind, env_id, op, step_id, argument, flags, result = self._slot.serve()
                if kind in (STOP, IDLE):
                    return kind
                self._executor.begin(env_id, op, step_id)
                self._handle(kind, argument, flags, result)
            except BaseException as error:  # any exception of an env is its reply, SystemExit too
                self._answer_exception(error)
            self._executor.given, self._effect = (), None

    def _answer_exception(self, error: BaseException) -> None:
        """Reply to the current command after an exception; raise those that are not replies."""
        while True:
            command = self._slot.current()
            if command is None:  # a signal handler raised it between two commands
                raise error
            env_id, op, _ = command
            if self._is_callers and self._is_of_caller(error):
                self._slot.finish()
                self._interrupted = env_id
                raise error
            if command != self._executor.command:  # a signal handler or a replay raised it
                self._executor.begin(*command)
            if not self._is_caught(env_id, op, error):
                self._answer_error(op, error)
                return
            mark = {"recovered": TRUNCATED} if self._executor.doing == "step" else {}
            self._marks[env_id] = {**mark, "error": describe(error)}
            try:
                self._answer(self._executor.answer_exception, True)
                return
            except BaseException as another:  # raised by the reset or the constructor
                error = another

    def _is_caught(self, env_id: int, op: int, error: BaseException) -> bool:
        """Return whether an exception ends the env's episode instead of reaching the caller; count it."""
        caught = self._executor.caught
        if caught is None or op == Op.CALL or not isinstance(error, Exception):
            return False
        if self._executor.doing == "set_states":
            return False
        if self._is_callers and isinstance(error, WorkerTimeoutError):  # raised by the timer: a hang is no exception
            return False
        is_caught = caught.accept(env_id, error, *self._describe_request())
        if is_caught and self._snapshots is not None:  # the parent counts it, too
            outcome = Outcome("exception", reason=describe(error))
            self._send(messages.Reply(self._executor.command[2], env_id, outcome=outcome))
        return is_caught

    def _send(self, reply: messages.Reply) -> None:
        self._slot.send_message(messages.dump_reply(reply))

    def _is_of_caller(self, error: BaseException) -> bool:
        """Return whether an exception probably came from a signal handler of the caller, not from the env."""
        return isinstance(error, KeyboardInterrupt) or (self._is_ending and isinstance(error, SystemExit))

    def stop(self) -> None:
        """Have `serve` return after the command under way; any thread may call this."""
        self._slot.stop()

    def end(self) -> None:
        """Record that the pool is closed during a command: `serve` then raises a SystemExit to the caller."""
        self._is_ending = True

    def take_interrupted(self) -> int | None:
        """Return the env whose command a KeyboardInterrupt cancelled, and clear it; None if there is none."""
        env_id, self._interrupted = self._interrupted, None
        return env_id

    def close(self) -> None:
        """Close every env, also if some of them raise; then raise the first such error."""
        envs = dict(self._envs)
        self._envs.clear()
        close_all(functools.partial(self._close, env_id, env) for env_id, env in envs.items())

    def _close(self, env_id: int, env: Any) -> None:
        note_phase("close", env_id)
        try:
            env = self._restored_for_close(env_id, env)
            self._rngs.call_swapped(env_id, env.close)
        except BaseException as error:
            if self._is_callers:
                add_notes(error, [messages.describe_place({"env_ids": [env_id], "op": "close"})])
            if self.failed_to_close is None:
                self.failed_to_close = env_id
            raise

    def _restored_for_close(self, env_id: int, env: Any) -> Any:
        """Restore an env before its `close` if its worker was recycled: it may have to finish a file, such as a video.

        After a failure, and if there is nothing to restore, return the env unchanged.
        """
        job = self._restore_jobs.pop(env_id, None)
        if self._restorer is None or job is None or job.marks_recovery:  # after a failure, close at once
            return env
        self._envs[env_id], after_all = env, 2**63 - 1
        self._restorer.run(env_id, job, after_all)
        return self._envs.pop(env_id)

    # ---- commands ---------------------------------------------------------------------

    def _handle(self, kind: int, argument: int, flags: int, result: Any) -> None:
        executor = self._executor
        env_id, op, step_id = executor.command
        if kind in (RESULT, RAISED):
            answer = executor.continue_step(argument, result, kind == RAISED)
            if answer.needs_autoreset:
                self._answer(lambda: answer)
            else:
                self._publish(answer)
            return
        data = self._slot.take_payload() if flags & CommandFlag.PAYLOAD else None
        if result is not None:  # superseded or cancelled before it began: it needs no reply
            self._slot.finish()
            return
        payload: Any = None if data is None else messages.load(data)
        executor.needs_reset = op == Op.STEP and argument == STEP_BEGINS
        self._restore_if_due(env_id)
        if op == Op.CALL:  # a call does not end an episode
            self._answer_call(payload, data, flags)
            return
        if env_id in self._abandoned:
            last_obs = self._abandoned.pop(env_id)
            if op == Op.STEP:
                self._marks[env_id] = {"recovered": TRUNCATED}
                self._answer(executor.truncate, last_obs)
                return
        given = None if payload is None else payload.given(op)
        if isinstance(given, GivenState):
            self._marks.pop(env_id, None)  # it belongs to the state that is replaced
            if executor.caught is not None:
                executor.caught.note_call(env_id, LastingCall(step_id, data, name=GIVEN_STATE))
            self._answer(self._set_state, given)
            return
        if op == Op.RESET or executor.needs_reset:
            self._answer(executor.execute, flags, argument, given)
            return
        if argument == STEP_WITH_SNAPSHOT and self._snapshots is not None:
            self._snapshots.between_steps(env_id, step_id, self._envs[env_id], forced=True)
        self._answer(self._step, self._slot.action() if payload is None else given)

    def _step(self, action: Any) -> Answer:
        answer = self._executor.execute(given=action)
        self._slot.count_step()
        return answer

    def _set_state(self, given: GivenState) -> Answer:
        answer = self._executor.execute(given=given)
        self._slot.set_counters(self._executor.command[0], given.length, given.episode_return, given.age_ns)
        return answer

    def _take_snapshot(self, env_id: int, step_id: int) -> bool:
        """Take a snapshot before an autoreset of the slot; return whether the host must reply: there are warnings."""
        if self._snapshots is not None:
            self._snapshots.before_reset(env_id, step_id, self._envs[env_id], seeded=False)
        return bool(self._warnings)

    def _answer(self, run: Callable[..., Answer], *arguments: Any) -> None:
        """Run the current command, or a part of it, and write the answer into its row."""
        try:
            answer = run(*arguments)
            if answer.needs_autoreset:
                answer = self._executor.autoreset(self._copied(answer))
        finally:
            if self._executor.doing != "step":  # a reset may have replaced the inner env and its generators
                self._register_env(self._executor.command[0])
        self._publish(answer)

    def _copied(self, end: Answer) -> Answer:
        """Return the end of an episode as it is sent, and as copies: the reset may write into the same arrays."""
        info = self._select_info(end.info, is_end=True)
        if not end.flags & RowFlag.REPEATS:
            self._check_has_obs(end.obs)
        obs = copy_objects(end.obs) if self._obs.num_objects else copy_arrays(end.obs)
        env_id = self._executor.command[0]
        if self._marks.get(env_id, {}).get("recovered") == TRUNCATED:
            info = {**info, **self._marks.pop(env_id)}
        return end._replace(obs=obs, reward=copy_arrays(self._reward(end.reward)), info=copy_arrays(info))

    def _answer_call(self, payload: messages.Payload, data: Any, flags: int) -> None:
        env_id, _, step_id = self._executor.command
        function = payload.function
        assert function is not None
        if isinstance(function, GetStates):
            self._slot.send_message(self._dump_reply(self._get_states(function)))
            self._slot.finish()
            return
        if isinstance(function, CloseHere | SaveState):
            value: Any = None
            if isinstance(function, CloseHere):
                value = function.pid == os.getpid() and self._close_here(env_id)
            elif self._snapshots is not None:
                self._snapshots.between_steps(env_id, step_id, self._envs[env_id], forced=True)
            else:
                value = save_env(env_id, self._envs[env_id], self._slot, self._rngs, function.snapshotter)
            self._slot.send_message(self._dump_reply(messages.Reply(step_id, env_id, value=value)))
            self._slot.finish()
            return
        if function in (snapshot_if_due, snapshot_now) and self._snapshots is not None:
            self._snapshots.between_steps(env_id, step_id, self._envs[env_id], forced=function is snapshot_now)
        env, effects = self._envs[env_id], self._effects if flags & CommandFlag.WATCH else None
        if effects is not None:
            effects.begin(env_id, env, function)
        try:
            value = self._executor.execute(given=function).obs
        finally:
            if effects is not None:
                self._effect = effects.end(env_id, env)[:]  # without its class, it is pickled in less time
            self._note_call(env_id, payload.name, data)
        self._register_env(env_id)  # the call may have replaced the inner env, as a reset may
        reply = messages.Reply(step_id, env_id, value=value, effect=self._effect)
        reply.is_rebuilt = env_id in self._abandoned
        self._slot.send_message(self._dump_reply(reply))
        self._slot.finish()

    def _note_call(self, env_id: int, name: str | None, data: Any) -> None:
        """Note a call, unless it has changed nothing, also for an env that is built again after an exception."""
        changes = None if self._effect is None else self._effect[1]
        if name == "" or changes == {}:
            return
        self.called.add(env_id)
        caught, step_id = self._executor.caught, self._executor.command[2]
        if caught is not None:
            caught.note_call(env_id, LastingCall(step_id, data, name=name, changes=changes))

    def _get_states(self, asked: GetStates) -> messages.Reply:
        """Return the reply to a call for the states of envs: their states, or the exception of one of them."""
        called, _, step_id = self._executor.command
        found: dict[int, SavedEnv] = {}
        for offset in asked.offsets:
            env_id = called + offset
            if env_id not in self._envs:
                continue
            self._restore_if_due(env_id)
            try:
                if env_id in self._abandoned or env_id in self._executor.fresh_seeds:
                    raise StateError("its episode was lost by a failure; step or reset it first")
                saved = get_state(env_id, self._envs[env_id], self._slot, self._rngs, asked.snapshotter)
            except Exception as error:
                request = ("get_states", "")
                return messages.Reply(step_id, env_id, error=messages.pack_error(error), request=request)
            found[offset] = saved._replace(objects=self._last_objects.get(env_id))
        return messages.Reply(step_id, called, value=found)

    def _close_here(self, env_id: int) -> bool:
        """Close an env and drop all references to it; return False if its next answer would need this worker."""
        if env_id in self._marks or env_id in self._abandoned or env_id in self._executor.fresh_seeds:
            return False
        env = self._envs.pop(env_id)
        self._slot.host(env_id, CloseHere(0))  # it gets no command any more
        self._rngs.call_swapped(env_id, env.close)
        return True

    # ---- restoring --------------------------------------------------------------------

    def _restore_if_due(self, env_id: int) -> None:
        """Restore an env that has a job, before the current command."""
        if env_id in self._restore_jobs:
            executor = self._executor
            command = executor.command
            self._restore_env(env_id, command[2])
            executor.begin(*command)
            self._slot.touch(command[1])  # the new command has its own time limit, without the replay

    def _restore_env(self, env_id: int, step_id: int) -> None:
        """Restore an env to its state before this command; if that fails, its episode is abandoned.

        The next episode of an abandoned env starts from a new env, so it differs from the one without the failure.
        """
        restorer, executor, job = self._restorer, self._executor, self._restore_jobs.pop(env_id)
        assert restorer is not None
        try:
            outcome = restorer.run(env_id, job, step_id)
        except Exception as error:  # raised by a constructor
            if executor.caught is not None:
                self._envs[env_id] = UnbuiltEnv(error)
                self._register_env(env_id)
            raise
        is_abandoned = outcome.kind == "truncated"
        if job.last_delivered_message is not None:
            self._last_objects[env_id] = messages.load_reply(job.last_delivered_message).objects or []
        last_id, _ = restorer.last_record(env_id, step_id)
        was_over = self._slot.resume(env_id, last_id, executor.needs_reset or is_abandoned)
        if restorer.starts_digest:
            self._slot.start_digest(env_id)
        if is_abandoned:
            executor.fresh_seeds[env_id] = job.fresh_seed
            self._rngs.begin_anew(env_id, job.fresh_seed)
            if was_over:  # the end of the episode was already delivered, so nothing is lost
                outcome = replace(outcome, kind=RESTARTED)
            else:
                self._marks[env_id] = {"recovered": TRUNCATED}
            if was_over and self._autoreset == Autoreset.NEXT_STEP:
                executor.needs_reset = True
            else:
                last = job.last_delivered or [np.zeros(leaf.shape, leaf.dtype) for leaf in self._obs.leaves]
                objects = self._last_objects.get(env_id) or [None] * self._obs.num_objects
                self._abandoned[env_id] = self._obs.batch(
                    lambda leaf: last[leaf.index], lambda node: objects[node.index]
                )
        elif outcome.kind == "unproven" or (job.marks_recovery and outcome.kind == "replayed"):
            self._marks[env_id] = {"recovered": outcome.kind}
        self._register_env(env_id)
        if self._snapshots is not None and outcome.kind != "fresh":
            self._snapshots.resume(env_id, self._envs[env_id], is_newly_built=is_abandoned)
        self._send(messages.Reply(step_id, env_id, outcome=outcome))

    # ---- global random generators: see `global_rngs` for the rules ------------------------

    def _register_env(self, env_id: int) -> None:
        """Pass to the slot the object to step: the env, or its RNG-swapping or shortcut replacement.

        The host makes the next step of an env whose row gets a mark, and ends abandoned episodes.
        """
        env = self._envs[env_id]
        env_rngs = self._rngs.of(env_id)
        window = None if env_rngs.is_swapped else env_rngs.window
        if env_rngs.has_drawn:
            callee: Any = RngSwappingEnv(env, env_rngs)
        elif env_rngs.is_swapped:
            callee = FirstCallsEnv(env, functools.partial(self._call_lazily, env_id))
        else:
            callee = Shortcut.to(env)
        if env_id in self._marks or env_id in self._abandoned or env_id in self._executor.fresh_seeds:
            self._slot.host(env_id, None)
        else:
            self._slot.host(env_id, callee.step if isinstance(callee, Shortcut) else None, callee, window)

    def _register_all(self) -> None:
        """Pass the present generators and windows of all envs to the slot."""
        self._watch_generators()
        for env_id in self._envs.keys() - self._restore_jobs.keys():  # the others after their restoration
            self._register_env(env_id)

    def _called_env(self) -> int | None:
        current = self._slot.current()
        return None if current is None else current[0]

    def _watch_generators(self) -> None:
        """Have the slot notice draws and, while this process's generators are swapped, load the windows of envs."""
        words = *self._rngs.watched_words, *self._rngs.fork_guard.watched_words
        windows = self._rngs.generators.window_addresses if self._loads_windows else ()
        self._slot.watch(words, self._note_draw, windows)

    def _call_lazily(self, env_id: int, call: Callable[..., Any], *args: Any) -> Any:
        """Step or autoreset an env with the RNG rules of the slot; register it again when they change for it."""
        env_rngs = self._rngs.of(env_id)
        before = env_rngs.has_drawn, env_rngs.is_swapped
        try:
            return self._rngs.call_lazily(env_id, call, *args)
        finally:
            if (env_rngs.has_drawn, env_rngs.is_swapped) != before:
                self._register_env(env_id)

    def _note_draw(self, env_id: int, error: BaseException | None) -> None:
        self._rngs.fork_guard.check(error)
        if self._rngs.is_threaded:
            self._slot.watch(self._rngs.fork_guard.watched_words, self._note_draw)
            self._send(messages.Reply(0, env_id, warnings=[("global generators", _THREADED_DRAW)]))
        else:
            self._rngs.note_draw(env_id)
            self._register_env(env_id)

    # ---- rows -------------------------------------------------------------------------

    def _publish(self, answer: Answer) -> None:
        env_id, _, step_id = self._executor.command
        _, obs, reward, terminated, truncated, info, flags, final_obs, final_info, seed, is_rebuilt, _ = answer
        if flags & (RowFlag.RESET | RowFlag.AUTORESET):
            is_number = isinstance(seed, int | np.integer) and 0 <= seed < _MANY_SEEDS
            self._slot.set_seed(env_id, int(seed) if is_number else -1)
        repeats = bool(flags & RowFlag.REPEATS)  # then the parent fills in the observation
        if not repeats:
            self._check_has_obs(obs)
        is_final = bool(flags & RowFlag.FINAL)  # then `info` comes from the reset
        if final_obs is not None and holds_int(final_obs):
            flags |= RowFlag.FINAL_INTS
        info = self._select_info(info, is_end=(terminated or truncated) and not is_final)
        ends = terminated, truncated
        has_text = bool(final_info) and "recovered" in final_info
        mark = self._marks.pop(env_id, {})
        if mark:
            self._register_env(env_id)
        if is_rebuilt or mark:
            restarted = {"recovered": RESTARTED} if is_rebuilt else {}
            info = {**info, **restarted, **mark}
            has_text = True
        has_cells = not self._obs.num_objects and not has_text  # the slot would omit text with Infos.COLUMNS
        is_plain = has_cells and not self._warnings
        if is_plain and self._slot.publish(obs, reward, *ends, info, flags, final_obs, final_info):
            return
        # A value needs conversion or a message. Convert all values here, once.
        exact_obs = None if repeats else self._obs.conform(obs)
        exact_final = None if final_obs is None else self._obs.conform(final_obs)
        reward_given = self._reward(reward)
        is_plain = has_cells and not self._warnings
        if is_plain and self._slot.publish(exact_obs, reward_given, *ends, info, flags, exact_final, final_info):
            return
        reply = messages.Reply(
            step_id, env_id, info=writable_copy(info), final_info=writable_copy(final_info), warnings=self._warnings[:]
        )
        self._warnings.clear()
        if self._obs.num_objects:
            last = self._last_objects.get(env_id)
            reply.objects = last if repeats else writable_copy(self._obs.objects(obs))
            reply.final_objects = last if flags & RowFlag.FINAL_REPEATS else None
            if final_obs is not None:
                reply.final_objects = writable_copy(self._obs.objects(final_obs))
            self._last_objects[env_id] = reply.objects or []
        self._slot.send_message(self._dump_reply(reply))
        flags |= RowFlag.MESSAGE
        written = self._slot.publish(exact_obs, reward_given, *ends, None, flags, exact_final)
        assert written, "a row of conforming values was refused"

    def _check_has_obs(self, obs: Any) -> None:
        """Raise SpaceError if the observation is None; the slot would write a row without an observation."""
        if obs is None:
            self._obs.conform(obs)  # raises, unless None is valid in this space

    def _answer_error(self, op: int, error: BaseException) -> None:
        env_id, _, step_id = self._executor.command
        reply = messages.Reply(step_id, env_id, error=messages.pack_error(error), request=self._describe_request())
        if op == Op.CALL:
            reply.effect, reply.is_rebuilt = self._effect, env_id in self._abandoned
        else:
            reply.objects = self._last_objects.get(env_id)
        self._slot.send_message(self._dump_reply(reply))
        if op == Op.CALL:
            self._slot.finish()
        else:
            answer = self._executor.answer_exception(False)
            flags = RowFlag.MESSAGE | answer.flags
            self._slot.publish(None, answer.reward, False, False, None, flags, None)

    def _describe_request(self) -> tuple[str, str]:
        """Return the operation of the env and its action or seed, for the note of an exception."""
        doing, given = self._executor.doing, self._executor.given
        if doing == "step":
            return doing, f"action {shorten(given[0] if given else self._slot.action())}"
        return doing, f"seed {given[0]}" if doing == "reset" and given else ""

    def _select_info(self, info: Any, is_end: bool) -> dict[str, Any]:
        """Return the part of an info that is sent; `is_end`: whether its step ends an episode."""
        if not isinstance(info, dict):
            raise TypeError(f"info must be a dict, got {type_name(info)}")
        if not is_wanted(self._infos, is_end):
            return {}
        return fitting(info) if self._infos == Infos.COLUMNS else info


def close_all(closes: Iterable[Callable[[], object]]) -> None:
    """Call all of these functions, also if some raise; then raise the first such error."""
    first: BaseException | None = None
    for close in closes:
        try:
            close()
        except BaseException as error:  # close the others first; raised below
            first = first or error
    if first is not None:
        raise first
