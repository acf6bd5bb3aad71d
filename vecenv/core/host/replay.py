"""Replay: in a replacement worker, brings a new env to the state that the old env had when its worker died.

    constructor -> lasting calls -> restore point (seeded reset, or a state) -> the same commands again

Each repeated reply is added to the env's digest in the same way as the original row. If the slot has a
record of the original digest, the two must be equal. Repeated replies are not published.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...gymnasium_api.replaying import replaying
from ...values.nested import copy_arrays
from ..layout import messages
from ..layout.commands import Changes, Entry, History, LastingCall, RestorePlan
from ..layout.flags import FORM_MASK, CommandFlag, Op, RowFlag
from ..layout.messages import Outcome
from ..layout.spec import Array
from ..system.clock import Deadline, now_ns
from ..system.module_files import ModuleFile, ModuleFiles, late_modules_newer_than
from .checks import function_name
from .executor import Answer, Executor
from .global_rngs import GlobalRngs
from .slot import Slot

__all__ = ["RestoreJob", "Restorer", "Snapshot", "Snapshotter", "StateSnapshotter", "compare_code"]


class Snapshot(Protocol):
    """The state of an env between two episodes, or within one, as bytes."""

    @property
    def state(self) -> bytes:
        """The state, for `Snapshotter.restore`."""

    @property
    def is_complete(self) -> bool:
        """Whether the state is known to contain every layer of the env."""

    @property
    def holds_calls(self) -> bool:
        """Whether the state contains everything that methods of the env may have changed."""


class Snapshotter(Protocol):
    """Captures and restores the states of envs for the engine; `envs.state.SNAPSHOTTER` implements it."""

    def spans_episodes(self, env: Any) -> bool:
        """Return whether the env has state that a seeded reset does not restore."""

    def is_built_alike(self, env: Any) -> bool:
        """Return whether a new env has no state, beside `np_random`, that its next construction may not repeat."""

    def capture(self, env: Any, *, within_episode: bool = False) -> Snapshot | None:
        """Return the env's state between two episodes, or within one; None if it is not possible.

        A state within an episode must be exact.
        """

    def restore(self, env: Any, state: bytes) -> None:
        """Set the state of an env that has just been built."""

    def watch(self, env: Any, *, is_deep: bool) -> Any:
        """Read the attributes of an env before a call, with the contents of their values if `is_deep`."""

    def changes(self, env: Any, watch: Any) -> Changes | None:
        """Return the attributes that have changed since `watch`; None if they are unknown or no plain data."""

    def set_attributes(self, env: Any, changes: Changes) -> None:
        """Set attributes of an env to the values that `changes` has returned."""


class StateSnapshotter(Protocol):
    """Captures the states of single envs for the caller, and puts them into envs of the same classes."""

    def layers(self, env: Any) -> tuple[str, ...]:
        """Return the names of the classes of an env and of the envs inside it, outermost first."""

    def capture_exactly(self, env: Any, *, within_episode: bool) -> bytes:
        """Return the exact state of an env, for `restore` in any env with the same classes.

        Raises:
            StateError: the state of a layer is not known; the text names its class.
            Exception: raised by a hook of the user's.
        """

    def restore(self, env: Any, state: bytes) -> None:
        """Set the state of an env."""


@dataclass
class RestoreJob(History):
    """The instructions for a new worker to restore one env, beside its history.

    Attributes:
        marks_recovery: whether the next info marks the env as recovered.
        has_changed_code: whether the new worker has loaded other code than the one that failed.
        code_since_ns: when the first workers were started; modules that are imported during the replay, and whose files
            are newer, count as changed, too.
        abandon_reason: why the episode ends here without a replay; '' if there is a replay.
        reports_calls: whether the parent is told which call is repeated, because the last worker failed in this
            command, too.
        last_delivered: the last delivered observation, one array per leaf; None if it is unknown.
        last_delivered_message: the message with the object leaves of this observation; None if they are unknown, or
            if it has none.
        fresh_seed: a seed for the generator of an env whose episode is abandoned.
        num_failures: failures of the env within the window of the failure policy.
        takes_seed: whether the env's reset was ever given a seed. If its first reset without one raises, it gets
            `fresh_seed`: some envs create their generators only with a seed.
        seconds: time limit for all attempts together.
    """

    marks_recovery: bool = True
    has_changed_code: bool = False
    code_since_ns: int = 0
    abandon_reason: str = ""
    reports_calls: bool = False
    last_delivered: list[Array] | None = None
    last_delivered_message: bytes | None = None
    fresh_seed: int = 0
    takes_seed: bool = False
    num_failures: int = 0
    seconds: float = 60.0


#: Each attempt except the last one may use this part of the time that is left.
_SHARE_OF_FIRST = 0.5
#: The lasting calls before a restore point may use this part of the time for one attempt.
_SHARE_OF_CALLS = 0.5
#: Entries and seconds of replay before its total time is estimated from them.
_LEAST_TO_JUDGE, _SECONDS_TO_JUDGE = 100, 0.5


class ReplayError(Exception):
    """The env could not be brought to the state of the original."""


class _TimeBudget:
    """Ends a replay that takes longer than `seconds`, or as soon as an estimate shows that it will."""

    def __init__(self, seconds: float, num_entries: int) -> None:
        self._seconds = seconds
        self._num_entries = num_entries
        self._began_ns = now_ns()

    def check(self, done: int) -> None:
        """Raise ReplayError if there is not enough time for the other entries. Call it before each entry.

        Args:
            done: number of entries repeated so far.
        """
        spent = (now_ns() - self._began_ns) / 1e9
        needed = spent * self._num_entries / done if done >= _LEAST_TO_JUDGE and spent > _SECONDS_TO_JUDGE else spent
        if needed > self._seconds:
            raise ReplayError(f"repeating it takes longer than recovery_timeout allows: {needed:.3g} s")


def compare_code(
    files: ModuleFiles, loaded: Mapping[str, ModuleFile], jobs: Mapping[int, RestoreJob], what: str
) -> tuple[dict[int, RestoreJob], str]:
    """Compare the modules of a successor with those that were loaded before it.

    Args:
        files: of the modules that were loaded before.
        loaded: of the modules of the successor, by name.
        jobs: of the successor, by env_id.
        what: begin of the warning.

    Returns:
        The jobs, which then mark its rows, and a warning; '' if there is nothing new to warn of.
    """
    changed = files.changed(loaded)
    about: dict[str, Any] = {"has_changed_code": bool(changed), "code_since_ns": files.began_ns}
    marked = {env_id: replace(job, **about) for env_id, job in jobs.items()}
    new = files.describe_new(changed)
    then = "Its envs run the new code, and recovered rows are marked 'unproven'"
    return marked, f"{what}, for these files have changed: {new}. {then}" if new else ""


def _changed_code(job: RestoreJob) -> str:
    """Return why an env that was restored by this job may have run other code before; '' if it has not."""
    if job.has_changed_code:
        return "its code has changed on disk"
    late = late_modules_newer_than(job.code_since_ns) if job.code_since_ns else []
    return f"files that it imports have changed since the start: {', '.join(late)}" if late else ""


class Restorer:
    """Restores the envs of one slot, one at a time, by repeating their commands.

    Args:
        executor: repeats the commands; it also builds envs again whose resets raise.
        slot: adds replies to digests.
        conform: converts an observation to the exact dtypes and shapes of its space.
        reward: converts a reward to the form of `exact_reward`.
        snapshotter: restores states; None if there are no states.
        rngs: the RNG states of the envs.
        rebuild: builds a new env for an env_id, for each attempt after the first.

    Attributes:
        starts_digest: whether the digest of the env that was restored last starts with its next reply.
    """

    def __init__(
        self,
        executor: Executor,
        slot: Slot,
        conform: Callable[[Any], Any],
        reward: Callable[[Any], Any],
        snapshotter: Snapshotter | None,
        rngs: GlobalRngs,
        rebuild: Callable[[int], Any],
    ) -> None:
        self._executor = executor
        self._slot = slot
        self._conform = conform
        self._reward = reward
        self._snapshotter = snapshotter
        self._rngs = rngs
        self._rebuild = rebuild
        self._calls: dict[int, LastingCall] = {}  # calls of the present job, by step_id
        self._reports_calls = False
        self._missing_calls = ""  # why calls before the restore point were not all repeated
        self.starts_digest = False

    def run(self, env_id: int, job: RestoreJob, before: int) -> Outcome:
        """Restore an env to its state before a command.

        The executor has the env, and whether its next step resets it.

        Args:
            env_id: the env, which is newly built, without any call since.
            job: the restore plans to try, in this order.
            before: step_id of the command for which the env must be ready.

        Returns:
            The `Outcome`. Its kind is 'truncated' if all attempts failed: then the env has only had the lasting calls,
            or also a part of the last attempt.
        """
        deadline, began_ns = Deadline(job.seconds), now_ns()
        envs, self._reports_calls = self._executor.envs, job.reports_calls
        if job.takes_seed:
            self._executor.seed_takers.add(env_id)
        self._calls = {call.step_id: call for call in job.lasting_calls if call.is_compared}
        reason = job.abandon_reason or "nothing from which the episode could be repeated was kept"
        for number, attempt in enumerate(job.attempts, 1):
            if number > 1:
                # SystemExit too: the worker continues
                with suppress(BaseException), replaying(), self._rngs.fork_guard:
                    envs[env_id].close()
                envs[env_id] = self._rebuild(env_id)
            share = 1.0 if number == len(job.attempts) else _SHARE_OF_FIRST
            left = deadline.seconds_left()
            try:
                with replaying():
                    check = self.last_record(env_id, before)
                    self._repeat(env_id, attempt, check, share * (math.inf if left is None else left))
            except ReplayError as error:
                reason = "; ".join(filter(None, (str(error), _changed_code(job))))
                continue
            spent = (now_ns() - began_ns) / 1e9
            kind = "replayed" if attempt.restore_point.is_complete else "unproven"
            if not attempt.entries and attempt.restore_point.state is None:
                kind = "fresh"
            changed = _changed_code(job)
            if changed or self._missing_calls:
                kind = "unproven"
            reason = "; ".join(filter(None, (changed, self._missing_calls)))
            return Outcome(kind, len(attempt.entries), spent, reason)
        self.starts_digest = self._executor.needs_reset = False
        with replaying():
            self._repeat_calls(env_id, job.lasting_calls, job.seconds)
        return Outcome("truncated", reason=reason)

    def last_record(self, env_id: int, before: int) -> tuple[int, int]:
        """Return (step_id, digest) of the newest recorded reply before a command; (0, 0) if there is none."""
        _, *records = self._slot.records(env_id)
        known = [(step_id, digest) for step_id, digest in records if 0 < step_id < before]
        return max(known, default=(0, 0))

    def _repeat(self, env_id: int, attempt: RestorePlan, check: tuple[int, int], seconds: float) -> None:
        """Repeat the commands of a plan."""
        restore_point, entries, lasting_calls, unproven = attempt
        answered = [step_id for step_id, _ in self._slot.records(env_id)[1:]]
        entries = [one for one in entries if not one.flags & CommandFlag.CANCELLED or one.step_id in answered]
        self._executor.fresh_seeds.pop(env_id, None)
        self._missing_calls = ""
        if lasting_calls:
            began_ns = now_ns()
            self._missing_calls = self._repeat_calls(env_id, lasting_calls, _SHARE_OF_CALLS * seconds)
            seconds -= (now_ns() - began_ns) / 1e9
        if restore_point.holds_calls:
            self._missing_calls = ""
        self._missing_calls = unproven or self._missing_calls
        budget = _TimeBudget(seconds, len(entries))
        if restore_point.state is not None:
            assert self._snapshotter is not None
            try:
                state = self._rngs.unpack_state(env_id, restore_point.state)
                with self._rngs.fork_guard:
                    self._snapshotter.restore(self._executor.envs[env_id], state)
            except Exception as error:
                raise ReplayError(f"its state could not be restored: {type(error).__name__}: {error}") from error
        is_between = restore_point.state is not None and not restore_point.is_mid_episode
        self._executor.needs_reset = is_between  # only the reset of the first command is repeated
        self.starts_digest = restore_point.state is not None and all(entry.op == Op.CALL for entry in entries)
        is_checked = check[0] == 0 or check[0] < restore_point.step_id  # no reply yet, or none since the restore point
        for number, entry in enumerate(entries):
            budget.check(number)
            if entry.op == Op.CALL:
                self._slot.touch(Op.CALL)
                if entry.payload is not None:
                    self._call(env_id, entry.payload, entry.step_id)
                else:
                    self._set_values(env_id, self._calls[entry.step_id])
                self._note_call(env_id, entry.step_id)
                continue
            self._step_or_reset(env_id, entry, is_between or bool(entry.flags & CommandFlag.NEW_DIGEST))
            is_between = False
            if entry.step_id == check[0]:
                is_checked = True
                if self._slot.records(env_id)[0] != check[1]:
                    raise ReplayError(f"its answers differ when they are repeated (checked at command {check[0]})")
        if not is_checked:
            raise ReplayError(f"its history up to command {check[0]} was not kept")

    def _step_or_reset(self, env_id: int, entry: Entry, starts_digest: bool) -> None:
        executor, num_raised = self._executor, 0
        most = 0 if executor.caught is None else executor.caught.most
        executor.begin(env_id, entry.op, entry.step_id)
        is_reset = entry.op == Op.RESET or executor.needs_reset
        self._slot.touch(Op.RESET if is_reset else Op.STEP)
        run: Callable[[], Answer] = functools.partial(executor.execute, entry.flags, entry.argument, self._given(entry))
        while True:
            try:
                answer = run()
                if answer.needs_autoreset:
                    answer = executor.autoreset(self._copied(answer))
                self._absorb(answer, starts_digest or executor.is_seeded or answer.doing == "set_states")
                return
            except ReplayError:
                raise
            except BaseException as error:  # an exception is the env's reply, as it was originally
                is_caught = isinstance(error, Exception) and executor.caught is not None
                if is_caught and num_raised == most:
                    raise ReplayError("it raises more often than the failure policy allows") from error
                num_raised += 1
                run = functools.partial(executor.answer_exception, is_caught)

    def _given(self, entry: Entry) -> Any:
        """Return the action, or the keyword arguments. The env's action row may already contain the next action."""
        if isinstance(entry.payload, tuple):
            return self._slot.action(entry.flags & FORM_MASK, entry.payload)
        return None if entry.payload is None else messages.load(entry.payload).given(entry.op)

    def _copied(self, end: Answer) -> Answer:
        """Return the end of an episode with copies: the reset may write into the same arrays."""
        obs = None if end.flags & RowFlag.REPEATS else copy_arrays(self._conform(end.obs))
        return end._replace(obs=obs, reward=copy_arrays(self._reward(end.reward)))

    def _absorb(self, answer: Answer, starts_digest: bool) -> None:
        env_id, _, step_id = self._executor.command
        obs = None if answer.flags & RowFlag.REPEATS else self._conform(answer.obs)
        values = obs, self._reward(answer.reward), answer.terminated, answer.truncated, answer.flags, answer.final_obs
        if not self._slot.add_to_digest(env_id, step_id, *values, starts_digest):
            raise ReplayError(f"its answer to command {step_id} does not fit its spaces when it is repeated")

    def _repeat_calls(self, env_id: int, calls: list[LastingCall], seconds: float) -> str:
        """Repeat the calls before a restore point; return why some are missing, '' if none is."""
        if self._executor.caught is not None:
            self._executor.caught.forget_calls(env_id)
        budget = _TimeBudget(seconds, len(calls))
        for number, call in enumerate(calls):
            try:
                budget.check(number)
                self._slot.touch(Op.CALL)
                self._note_call(env_id, call.step_id)
                if call.payload is not None:
                    self._call(env_id, call.payload, call.step_id)
                self._set_values(env_id, call)
            except ReplayError as error:
                return str(error)
        return ""

    def _set_values(self, env_id: int, call: LastingCall) -> None:
        """Set the attributes that a call has changed: it may have read state of an episode that is not there now."""
        if call.changes is None or self._snapshotter is None:
            return
        try:
            self._snapshotter.set_attributes(self._executor.envs[env_id], call.changes)
        except Exception as error:  # the env has other layers now, or its attributes cannot be set
            what = f"{type(error).__name__}: {error}"
            raise ReplayError(f"the attributes that a call has set cannot be set: {what}") from error

    def _call(self, env_id: int, payload: Any, step_id: int) -> None:
        """Repeat a call; its exceptions are ignored, because they were already its reply."""
        assert isinstance(payload, bytes)
        function = messages.load(payload).called
        if self._reports_calls:
            self._report_call(env_id, step_id, function_name(function))
        with suppress(BaseException):  # includes SystemExit
            self._executor.begin(env_id, Op.CALL, step_id)
            self._executor.execute(given=function)
        if self._reports_calls:
            self._report_call(env_id, 0, "")

    def _report_call(self, env_id: int, step_id: int, name: str) -> None:
        """Send which call is repeated now, so that the parent can give it up if it ends this process."""
        outcome = Outcome("calling", reason=name, step_id=step_id)
        self._slot.send_message(messages.dump_reply(messages.Reply(0, env_id, outcome=outcome)))

    def _note_call(self, env_id: int, step_id: int) -> None:
        """Note a repeated call for an env that is built again after an exception."""
        if self._executor.caught is not None and step_id in self._calls:
            self._executor.caught.note_call(env_id, self._calls[step_id])
