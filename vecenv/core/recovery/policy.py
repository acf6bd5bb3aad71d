"""Decide how a ProcessPool recovers from workers that died or hang, without losing answers.

    death, or limit -> reap -> the commands left in its slots, and the commands that its envs have executed
                    -> a new worker on the same slots receives both -> it continues with the old queue

The new worker repeats the commands of each env before the first new one (`replay`). Committed rows stay. Claimed rows
are void. Assigned rows wait for their new writer. So the caller's batch has the same contents as without a failure. The
pool replaces the workers; this module records which env is to blame, how often, and the cost.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import WorkerDiedError, WorkerError, WorkerTimeoutError
from ...own_log import own_logger
from ..host.failure_budget import FailureBudget
from ..host.replay import RestoreJob
from ..layout.commands import CallEffect, Commands, RestorePoint
from ..layout.flags import Op
from ..layout.messages import Outcome, Reply
from ..layout.spec import Array
from ..options import Limits, PoolFailurePolicy
from ..parent.hub import SlotState
from ..system.clock import now_ns
from .failure_log import FailureLog
from .journal import Journal
from .reproducer import FailureContext, describe

__all__ = ["COUNTS", "OUTCOMES", "Recovery", "RestoreProgress", "StartFailures", "append_message"]

_LOG = own_logger()
_NS = 1_000_000_000
#: Reproducer files of a pool that are kept; older ones are removed.
_MOST_FILES = 10
#: Weights of failures: those caused by the process of an env, and those by a signal from outside, to which the env may
#: be unrelated. A command is abandoned at the sum of two of the former, eight of the latter, or one and four.
_OWN_WEIGHT, _OUTSIDE_WEIGHT, _MOST_WEIGHT = 4, 1, 8
#: Processes of one env that may end, one after the other, before that env is built.
_MAX_START_FAILURES = 4
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT)
_UNPROVEN = (
    "env %d was brought back from a state that may lack something, though every answer agrees so far: its class is "
    "unknown or has state that cannot be read, and its steps since its last seeded reset are too many to be repeated "
    "or not kept. `vecenv check ENV --determinism` names what is not covered"
)
#: Log lines by `Outcome.kind`, with the reason after them.
OUTCOMES = {
    "truncated": "its episode could not be brought back, it ends truncated",
    "restarted": "its episode was over, the next one is restarted",
    "unproven": "its rows are marked 'unproven'",
}
#: Parts of the summary of a replaced worker, by `Outcome.kind`.
_LOSSES = {
    "truncated": "ended truncated",
    "restarted": "were over, the next ones are restarted",
    "unproven": "go on from a state that may lack something, or with changed code",
}
#: Seconds that the repetition of a step takes beside the step itself.
_REPEAT_SECONDS = 15e-6
_LONG_HISTORY = (
    "%s: %d steps since the last point from which it can be restored. After a crash of its worker, their repetition is "
    "expected to take %.3g s, which is more than half of recovery_timeout (%g s). Give its class get_state() and "
    "set_state(state), call vecenv.register_state_adapter or vecenv.register_pickled_state, or reset it with seeds"
)
#: Most envs that this line names.
_MOST_NAMED = 5
#: Names of the counters; see `Pool.statistics`.
COUNTS = ("restarts", "recycled", "workers_added", "replayed", "unproven", "truncated", "steps_replayed")
#: The limit of failures that no env is to blame for, as a multiple of `max_restarts`.
_POOL_FACTOR = 10


@dataclass
class RestoreProgress:
    """Envs that are restored together, for the log line about the result.

    Attributes:
        what: the start of that line.
        done: the next word of it, such as 'replaced' for workers, or 'restored' for envs.
        waiting: the envs that are not restored yet.
        outcomes: of the others.
    """

    what: str
    done: str
    began_ns: int
    is_failure: bool
    env_ids: list[int]
    waiting: set[int]
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Whether all envs that were restored have repeated their commands with equal answers."""
        return all(outcome.kind in ("replayed", "fresh") for outcome in self.outcomes)


class StartFailures:
    """Decides whether a process that ended or hung while it built envs is started again.

    At most three further processes are started for an env, within a limit of time since its first failure.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # failures, by env_id
        self._began_ns: dict[int, int] = {}  # first failure on the monotonic clock, by env_id

    def judge(self, error: WorkerDiedError | WorkerTimeoutError, limit: float | None) -> None:
        """Count a failure of the envs that an error names; return if another process may be started.

        Args:
            error: the failure of the last process.
            limit: seconds since the first failure in which processes may be started; None: no limit.

        Raises:
            WorkerDiedError, WorkerTimeoutError: `error`, which then names the number of failures.
        """
        now, env_ids = now_ns(), error.env_ids
        self._counts.update(env_ids)
        began_ns = min(self._began_ns.setdefault(env_id, now) for env_id in env_ids)
        count = max(self._counts[env_id] for env_id in env_ids)
        if count < _MAX_START_FAILURES and (limit is None or now - began_ns < limit * _NS):
            return
        self.forget(env_ids)
        append_message(error, f"; it is the {_ordinal(count)} process in a row that failed there")
        raise error

    def forget(self, env_ids: Sequence[int]) -> None:
        """Begin to count again for these envs, for example because they are built."""
        for env_id in env_ids:
            self._counts.pop(env_id, None)
            self._began_ns.pop(env_id, None)


class Recovery:
    """The state of one pool's failures and recoveries.

    Args:
        policy: the user's options.
        journal: the commands of the envs.
        limits: time limits of operations.
        reproduce: returns the last commands of an env that failed, given (env_id, op, step_id).
        first_env_id: number of env 0 in messages.
        logs_outcomes: whether lines about restored envs are written; False if another process writes them.
    """

    def __init__(
        self,
        policy: PoolFailurePolicy,
        journal: Journal,
        limits: Limits,
        reproduce: Callable[[int, int, int], FailureContext],
        *,
        first_env_id: int = 0,
        logs_outcomes: bool = True,
    ) -> None:
        self.policy = policy
        self._logs_outcomes = logs_outcomes
        self.journal = journal
        self.limits = limits
        self._reproduce = reproduce
        self._call_failures: dict[tuple[int, int], list[int]] = {}  # weights of failures, by (env_id, step_id)
        self._repeated_calls: dict[int, tuple[int, str]] = {}  # step_id and name, by env_id
        self._abandoned: dict[tuple[int, int], str] = {}  # reasons of abandoned episodes, by (env_id, step_id)
        self._suspects: set[int] = set()  # envs that ran in several threads during repeated failures
        self._failure_weights: Counter[int] = Counter()  # sums over all failures, by env_id
        self._budget = FailureBudget(policy.max_restarts, policy.restart_window)  # env_id -1: no env is to blame
        self._progress_of: dict[int, RestoreProgress] = {}  # keys: env_id
        self._counts = Counter[str]()
        self._num_lost: Counter[int] = Counter()  # episodes that were not restored, by env_id
        self._starts = StartFailures()
        self._first_env_id = first_env_id
        self._log = FailureLog(first_env_id)
        self._files: deque[str] = deque()  # paths of the reproducer files that were written here, oldest first
        self._replay_seconds = 0.0
        self._restore_seconds: dict[int, float] = {}  # duration of the last restoring, by env_id
        self._has_warned_of_length = False
        self._judged_nbytes = 0  # size of the journal when the lengths of histories were judged last

    def set_limits(self, limits: Limits) -> None:
        """Use these time limits from now on, also for repeated operations."""
        self.limits = limits

    # ---- after a failure --------------------------------------------------------------------

    def judge(
        self,
        error: WorkerError,
        exitcode: int | None,
        states: Sequence[SlotState],
        isolable: Collection[int] = (),
    ) -> list[int]:
        """Decide whether a failed worker is replaced, and which episodes are abandoned (see `plan`).

        Args:
            error: the error to be raised without recovery.
            exitcode: exit code of the process; None if it hangs.
            states: states of its slots at the failure.
            isolable: the envs of this worker that could get a worker to themselves.

        Returns:
            The envs to isolate, so that it shows which one is to blame; see `env_to_isolate`.

        Raises:
            WorkerError: the policy allows no recovery. If an env is to blame, the text contains its last actions; if it
                failed repeatedly in one command, the text names a reproducer file.
        """
        running = [state for state in states if state.op != Op.NONE]
        if exitcode is None and error.env_ids:  # the operations of other threads are within their limits
            running = [state for state in running if state.env_id in error.env_ids]
        weight = _OUTSIDE_WEIGHT if exitcode in _FROM_OUTSIDE else _OWN_WEIGHT
        suspects = [state.env_id for state in running]
        if len(suspects) == 1:  # the cause is unknown if several threads ran envs
            self._failure_weights[suspects[0]] += weight
        self._count_failure(running, error)
        isolated: list[int] = []
        for state in running:
            key = (state.env_id, state.step_id)
            for old in [other for other in self._call_failures if other[0] == key[0] and other != key]:
                del self._call_failures[old]  # the older command was answered in the end
                self._abandoned.pop(old, None)
            weights = self._call_failures.setdefault(key, [])
            weights.append(weight)
            if sum(weights) < _MOST_WEIGHT:
                continue
            if len(suspects) > 1 and state.env_id in isolable:
                isolated.append(state.env_id)
                self._suspects.add(state.env_id)
                continue
            self._suspects.clear()
            if self.policy.on_repeat != "raise" and self._give_up_call(state.env_id, error):
                weights.clear()
                self._abandoned.pop(key, None)  # the episode can be restored without the call, perhaps
                continue
            asked, file = self._add_context(error, state)
            times = f"it is the {_ordinal(len(weights))} time in this call"
            again = ", its old episode abandoned" if key in self._abandoned else ""
            message = _insert(error, f"{asked}; {times}{again}{file}")
            # The cause may be an old reset or call that is only repeated; an abandoned episode repeats none. If that
            # did not help, there is no other remedy, unless the env of another thread may be to blame.
            may_help = state.op == Op.STEP or state.env_id in self._progress_of
            is_untried = key not in self._abandoned or len(suspects) > 1
            if self.policy.on_repeat == "raise" or not (may_help and is_untried):
                error.args = (message, *error.args[1:])
                raise error
            # The new worker finds out whether this ends an episode or whether it had already ended: see `note_outcome`.
            text = "the command of env %d is not tried again: %s"
            self._log.write([state.env_id], now_ns(), text, self._first_env_id + state.env_id, message)
            self._abandoned[key] = str(error).partition("\n")[0]
            weights.clear()
        return isolated

    def _give_up_call(self, env_id: int, error: WorkerError) -> bool:
        """Keep the call no longer that was repeated for an env when its worker failed; False if there was none."""
        step_id, name = self._repeated_calls.pop(env_id, (0, ""))
        if not (step_id and self.journal.calls.give_up(env_id, step_id, name)):
            return False
        first_line, where = str(error).partition("\n")[0], self._first_env_id + env_id
        text = "env %d: its call of %r is not repeated any more, because it ends its worker: %s"
        self._log.write([env_id], now_ns(), text, where, name, first_line)
        return True

    def env_to_isolate(self, env_ids: Sequence[int]) -> int | None:
        """Return the env of a failed worker that gets the next worker to itself, or None.

        It is an env to which two failures were traced, or eight by signals from outside. Or it is one of several envs
        that ran during the same number of failures of one command.
        """
        if len(env_ids) == 1:
            return None
        found = [env_id for env_id in env_ids if self._failure_weights[env_id] >= _MOST_WEIGHT]
        found += [env_id for env_id in env_ids if env_id in self._suspects]
        return found[0] if found else None

    def note_worker_added(self) -> None:
        """Count a worker that was added for an isolated env."""
        self._counts["workers_added"] += 1

    def judge_start(self, error: WorkerDiedError | WorkerTimeoutError, limit: float | None = None) -> None:
        """Decide whether to start another process for one that died or hung before it served; return if so.

        Args:
            error: its failure.
            limit: as for `StartFailures.judge`.

        Raises:
            WorkerDiedError, WorkerTimeoutError: the policy allows no further attempt.
        """
        self._starts.judge(error, limit)
        self.note_failed_start(error)

    def note_failed_start(self, error: WorkerDiedError | WorkerTimeoutError) -> None:
        """Count the failure of a process after which another one is started; raise it beyond `max_restarts`."""
        self._count_failure([], error)
        # Only text is logged: a log record that is kept must not keep the pool alive.
        self._log.write(error.env_ids, now_ns(), "%s", _insert(error, "; another one is started"))

    def note_built(self, env_ids: Sequence[int]) -> None:
        """Forget the failures of earlier processes of these envs, which are built now."""
        self._starts.forget(env_ids)

    def append_last_actions(self, error: WorkerError, state: SlotState) -> None:
        """Append the last actions of an env to an error that is raised at once."""
        append_message(error, self._add_context(error, state, write=False)[0])

    def _add_context(self, error: WorkerError, state: SlotState, *, write: bool = True) -> tuple[str, str]:
        """Set the seed and last actions of an env in an error, and write the reproducer file.

        Returns two texts: the seed and last actions, and the path of the file or the reason why there is none.
        """
        asked = ""
        try:
            context = self._reproduce(state.env_id, state.op, state.step_id)
            error.seed, error.actions = context.seed, context.actions
            asked = describe(context.seed, context.actions)
            if error.env_ids != (state.env_id,) and asked:  # the text must name this env if several were running
                asked = f"; env {self._first_env_id + state.env_id}: {asked}"
            elif asked:
                asked = f"; {asked}"
            if not write:
                return asked, ""
            error.reproducer = context.save(_insert(error, asked))
            self._keep_file(error.reproducer)
        except Exception as trouble:  # a full disk, for example, must not end the run
            why = " ".join(f"{type(trouble).__name__}: {trouble}".split())
            return asked, f"; no reproducer file could be written: {why}"
        return asked, f". `vecenv replay {error.reproducer}` repeats it"

    def _keep_file(self, path: str) -> None:
        """Note a reproducer file that was written, and remove the oldest one if there are too many."""
        self._files.append(path)
        if len(self._files) > _MOST_FILES:
            with contextlib.suppress(OSError):  # it was moved or removed since
                os.unlink(self._files.popleft())

    def _count_failure(self, running: Sequence[SlotState], error: WorkerError) -> None:
        """Record a failure; raise the error if there were too many within `restart_window`."""
        now = now_ns()
        at_work = [state.env_id for state in running]
        self._log.note_failure(at_work or error.env_ids, now, are_at_work=bool(at_work))
        blamed: list[SlotState | None] = [*running] or [None]
        for state in blamed:
            who = -1 if state is None else state.env_id
            count = self._budget.note(who, now)
            most = self.policy.max_restarts * (_POOL_FACTOR if who == -1 else 1)
            if count > most:
                whose = "no env to blame" if who == -1 else f"env {self._first_env_id + who} at work"
                asked = "" if state is None else self._add_context(error, state, write=False)[0]
                append_message(
                    error,
                    f"{asked}; {count} failures within {self.policy.restart_window:g} s with {whose}, which is "
                    f"more than max_restarts={self.policy.max_restarts} allows",
                )
                raise error

    # ---- before a failure --------------------------------------------------------------------

    @property
    def _seconds(self) -> float:
        """The time limit for the restoring of one env."""
        return self.policy.recovery_timeout or max(60.0, 10 * (self.limits.step or 0.0))

    def warn_of_long_histories(self, step_seconds: Callable[[], Array]) -> None:
        """Log once if the repetition of the steps of an env would probably take more than half of its time limit.

        A journal that has about the same size as in the last call is not read again.

        Args:
            step_seconds: returns the mean duration of a step of each env, float64 (num_envs,).
        """
        nbytes = self.journal.nbytes
        if self._has_warned_of_length or abs(nbytes - self._judged_nbytes) <= self._judged_nbytes // 8:
            return
        self._judged_nbytes = nbytes
        counts = self.journal.num_steps()
        expected = counts * (step_seconds() + _REPEAT_SECONDS)
        env_ids = np.flatnonzero(expected > self._seconds / 2).tolist()
        if not env_ids:
            return
        self._has_warned_of_length = True
        longest = int(expected.argmax())
        names = ", ".join(str(self._first_env_id + env_id) for env_id in env_ids[:_MOST_NAMED])
        whose = f"env{'s' * (len(env_ids) > 1)} {names}"
        whose += f" and {len(env_ids) - _MOST_NAMED} others" * (len(env_ids) > _MOST_NAMED)
        if len(env_ids) > 1:
            whose += f"; env {self._first_env_id + longest}"
        _LOG.warning(_LONG_HISTORY, whose, counts[longest], expected[longest], self._seconds)

    # ---- restoring by the new worker ---------------------------------------------------------

    def plan(
        self, jobs: dict[int, RestoreJob], queued: Commands, *, marks_recovery: bool = True
    ) -> dict[int, RestoreJob]:
        """Complete the jobs by which the new worker restores its envs, and return them.

        Args:
            jobs: by env_id; see `Requests.new_jobs`.
            queued: the commands left in its slots.
            marks_recovery: whether rows are marked when their env was recovered.
        """
        left: dict[int, list[int]] = {}
        for command in queued:
            left.setdefault(command.env_id, []).append(command.step_id)
        for env_id, job in jobs.items():
            waiting = left.get(env_id, [])
            history = self.journal.history(env_id, waiting)
            job.marks_recovery, job.seconds = marks_recovery, self._seconds
            job.num_failures = self._budget.count(env_id, now_ns())
            job.fresh_seed = self._fresh_seed(env_id, job.last_delivered)
            job.lasting_calls, job.lost_calls = history.lasting_calls, history.lost_calls
            job.abandon_reason = self.abandon_reason(env_id, waiting)
            keys = [(env_id, one) for one in waiting]
            job.reports_calls = any(self._call_failures.get(key) or key in self._abandoned for key in keys)
            self._repeated_calls.pop(env_id, None)
            job.attempts = [] if job.abandon_reason else history.attempts
        return jobs

    def _fresh_seed(self, env_id: int, last_delivered: list[Array] | None) -> int:
        """Return the seed for the next episode of an env whose present one may be lost.

        It follows from the results of the env so far, so a run with the same crashes has the same episodes again, for
        any number of workers.
        """
        digest = hashlib.blake2b(b"%d %d" % (self._first_env_id + env_id, self._num_lost[env_id]), digest_size=4)
        for column in last_delivered or ():
            digest.update(column.tobytes())
        return int.from_bytes(digest.digest(), "little") >> 1

    def abandon_reason(self, env_id: int, step_ids: Sequence[int]) -> str:
        """Return why an env is not restored before one of these commands; '' if it is."""
        return next(
            (why for (one, step_id), why in self._abandoned.items() if one == env_id and step_id in step_ids), ""
        )

    # ---- results -----------------------------------------------------------------------------

    def begin_restoring(
        self,
        what: str,
        began_ns: int,
        restore_jobs: dict[int, RestoreJob],
        *,
        count: str | None = "restarts",
        number: int = 1,
        done: str = "replaced",
    ) -> RestoreProgress:
        """Record that these envs are being restored; return the progress, which later outcomes change.

        Args:
            what, done: see `RestoreProgress`.
            began_ns: when the failure was noticed, on the monotonic clock.
            restore_jobs: the result of `plan`.
            count, number: the one of `COUNTS` that is increased, and by how much: 'restarts' after a failure. None:
                none is increased.
        """
        progress = RestoreProgress(what, done, began_ns, count == "restarts", list(restore_jobs), set(restore_jobs))
        for env_id in restore_jobs:
            if env_id in self._progress_of:  # its worker has failed before the env was restored
                self._progress_of[env_id].waiting.discard(env_id)
            self._progress_of[env_id] = progress
        if count is not None:
            self._counts[count] += number
        return progress

    def begin_loading(self, restore_jobs: dict[int, RestoreJob]) -> None:
        """Record that the envs of a saved pool are being restored."""
        what = f"{len(restore_jobs)} saved env{'s' * (len(restore_jobs) > 1)}"
        self.begin_restoring(what, now_ns(), restore_jobs, count=None, done="loaded")

    def note_report(self, reply: Reply, is_answered: bool) -> None:
        """Record the report of a worker about an env: a restore point, an outcome or the effect of a call."""
        if reply.snapshot is not None:
            self.journal.note_restore_point(reply.env_id, RestorePoint(reply.step_id, *reply.snapshot), is_answered)
        if reply.outcome is not None:
            self.note_outcome(reply.env_id, reply.outcome)
        if reply.effect is not None:
            self.journal.calls.note_effect(reply.env_id, reply.step_id, CallEffect(*reply.effect))

    def note_outcome(self, env_id: int, outcome: Outcome) -> None:
        """Record the result of restoring an env; after the last env of its worker, log a summary.

        An exception of an env counts as a failure.
        """
        if outcome.kind == "exception":
            self._budget.note(env_id, now_ns())
            return
        if outcome.kind == "calling":
            self._repeated_calls[env_id] = outcome.step_id, outcome.reason
            return
        self._counts[outcome.kind] += 1
        self._num_lost[env_id] += outcome.kind in ("truncated", "restarted")
        self._counts["steps_replayed"] += outcome.num_steps
        self._replay_seconds += outcome.seconds
        self._restore_seconds[env_id] = outcome.seconds
        if self._logs_outcomes:
            self._log_outcome(env_id, outcome)
        progress = self._progress_of.pop(env_id, None)
        if progress is None:
            return
        progress.waiting.discard(env_id)
        progress.outcomes.append(outcome)
        if progress.waiting:
            return
        if progress.is_failure:
            self._log.write(progress.env_ids, now_ns(), "%s", _summary(progress))
        else:
            _LOG.info("%s", _summary(progress))

    def _log_outcome(self, env_id: int, outcome: Outcome) -> None:
        name, text = self._first_env_id + env_id, OUTCOMES.get(outcome.kind)
        if text is not None and (outcome.reason or outcome.kind != "unproven"):
            self._log.write([env_id], now_ns(), f"env %d: {text}: %s", name, outcome.reason)
        elif text is not None and self._counts["unproven"] == 1:
            _LOG.warning(_UNPROVEN, name)

    def log_summary(self) -> None:
        """Log how often workers were replaced, and the envs to blame; nothing if none was. Called once, at the end."""
        if not self._counts["restarts"]:
            return
        parts = [f"workers were replaced {self._counts['restarts']} times"]
        parts[0] += f" ({envs})" if (envs := self._log.describe_failures()) else ""
        if self._counts["truncated"]:
            parts.append(f"{self._counts['truncated']} episodes ended truncated")
        if self._log.num_left_out:
            parts.append(f"log lines left out: {self._log.num_left_out}")
        if self._files:
            parts.append(f"the last {len(self._files)} reproducer files are kept, the newest is {self._files[-1]}")
        level = logging.WARNING if self._log.num_left_out else logging.INFO
        _LOG.log(level, "until the pool was closed, %s", "; ".join(parts))

    def restore_seconds(self, env_ids: Sequence[int]) -> float:
        """Return how long restoring these envs took together the last time, in seconds; 0 if they never were."""
        return sum(self._restore_seconds.get(env_id, 0.0) for env_id in env_ids)

    def statistics(self) -> dict[str, Any]:
        """Return the counters since the start; see `Pool.statistics`."""
        counts = {name: self._counts[name] for name in COUNTS}
        return {**counts, "replay_seconds": self._replay_seconds, "log_nbytes": self.journal.nbytes}


def _summary(progress: RestoreProgress) -> str:
    seconds = (now_ns() - progress.began_ns) / _NS
    steps = sum(outcome.num_steps for outcome in progress.outcomes)
    counts = Counter(outcome.kind for outcome in progress.outcomes)
    lost = ", ".join(f"{counts[kind]} {what}" for kind, what in _LOSSES.items() if counts[kind])
    end = f"of {len(progress.outcomes)} episodes {lost}" if lost else "nothing was lost"
    return f"{progress.what}; {progress.done}, {steps} commands repeated, {end} ({seconds:.3g} s)"


def _insert(error: WorkerError, addition: str) -> str:
    """Return the text of an error with an addition after its first line; a stack may follow that line."""
    first, newline, rest = str(error).partition("\n")
    return f"{first}{addition}{newline}{rest}"


def append_message(error: WorkerError, addition: str) -> None:
    """Append text to the first line of an error's message."""
    error.args = (_insert(error, addition), *error.args[1:])


def _ordinal(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count}th")
