"""Recovery: what a ProcessPool does about workers that died or hang, so that nothing is lost.

    death, or limit -> reap -> what its slots had left to do, what its envs had done
                    -> a new worker on the same slots, told both -> it goes on in the old queue

The new worker repeats each env's commands before the first one that is new (`replay`). Rows that
were committed stay, rows that were claimed are void, rows that were assigned wait for their new
writer: the caller's batch comes out as if nothing had happened. Mechanism is the pool's; here
are the books: who is to blame, how often, and what it cost.
"""

from __future__ import annotations

import logging
import signal
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import WorkerDiedError, WorkerError, WorkerTimeoutError
from ..host.replay import RestoreJob
from ..layout.commands import RestorePoint
from ..layout.messages import Outcome
from ..layout.rows import Op
from ..layout.spec import Array
from ..options import Limits, PoolFailurePolicy
from ..parent.hub import SlotState
from ..system.clock import MOST_SECONDS, now_ns
from .journal import Journal
from .reproducer import FailureContext, describe

__all__ = ["COUNTS", "Queued", "Recovery", "append_message"]

_LOG = logging.getLogger("vecenv")
_NS = 1_000_000_000
#: Failures in one call of an env before it is given up: those of its own making, and those by a signal from outside,
#: which the env need not have anything to do with.
_MAX_FAILURES, _MAX_OUTSIDE_FAILURES = 2, 8
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT)
_UNPROVEN = (
    "env %d was brought back from a state that may lack something, though every answer agrees so far: its class is "
    "unknown or cannot be looked into, and what it did since its last seeded reset is too long to be repeated or not "
    "kept. `vecenv check ENV --determinism` names what is not covered"
)
#: What is counted, see `Pool.statistics`.
COUNTS = ("restarts", "recycled", "workers_added", "replayed", "unproven", "truncated", "steps_replayed")
#: Failures that no env is to blame for, over `max_restarts`, before the pool gives up.
_POOL_FACTOR = 10

#: (op, env_id, step_id, flags) of a command that a dead slot has left.
Queued = tuple[int, int, int, int]


@dataclass
class _RestoreProgress:
    """Envs that are still on their way back, for the line that says how it ended."""

    what: str
    began_ns: int
    level: int
    waiting: set[int]
    outcomes: list[Outcome] = field(default_factory=list)


class Recovery:
    """The books of one pool's failures.

    Args:
        policy: what users want.
        journal: what envs were asked.
        limits: of operations.
        reproduce: tells what an env was asked until it failed, by (env_id, op, step_id).
    """

    def __init__(
        self,
        policy: PoolFailurePolicy,
        journal: Journal,
        limits: Limits,
        reproduce: Callable[[int, int, int], FailureContext],
    ) -> None:
        self.policy = policy
        self.journal = journal
        self.limits = limits
        self._reproduce = reproduce
        self._failure_counts: Counter[tuple[int, int]] = Counter()  # by (env_id, step_id)
        self._abandoned: dict[tuple[int, int], str] = {}  # why no episode is brought back for these
        self._suspects: set[int] = set()  # of several threads' envs at work in repeated failures
        self._failure_weights: Counter[int] = Counter()  # per env: what its failures weigh; one from outside weighs 1
        self._failure_times: dict[int, deque[int]] = {}  # times of failures; -1: nobody's
        self._progress_of: dict[int, _RestoreProgress] = {}  # by env_id
        self._counts = Counter[str]()
        self._replay_seconds = 0.0
        self._restore_seconds: dict[int, float] = {}  # by env_id, of the last time

    def set_limits(self, limits: Limits) -> None:
        """Repeat operations within these limits from now on."""
        self.limits = limits

    # ---- judging ---------------------------------------------------------------------------

    def judge(
        self,
        error: WorkerError,
        exitcode: int | None,
        states: Sequence[SlotState],
        can_isolate: Callable[[int], bool] = lambda env_id: False,
    ) -> None:
        """Decide about a failed worker: whether another one is to try, and with which episodes not (see `plan`).

        Args:
            error: what would be raised without recovery.
            exitcode: of the process; None: it hangs.
            states: of its slots as it left them.
            can_isolate: tells whether an env of this worker could have one to itself.

        Raises:
            WorkerError: the policy allows no recovery. If an env is to blame, it says what that was
                asked last; if for one call, it names a reproducer file.
        """
        running = [state for state in states if state.op != Op.NONE]
        if exitcode is None and error.env_ids:  # those of other threads are within their limits
            running = [state for state in running if state.env_id in error.env_ids]
        limit = _limit_of(exitcode)
        suspects = [state.env_id for state in running]
        if len(suspects) == 1:  # of several threads' envs nobody knows which one it was
            self._failure_weights[suspects[0]] += _MAX_OUTSIDE_FAILURES // limit
        self._count_failure(running, error)
        for state in running:
            key = (state.env_id, state.step_id)
            for old in [other for other in self._failure_counts if other[0] == key[0] and other != key]:
                del self._failure_counts[old]  # that call was answered in the end
                self._abandoned.pop(old, None)
            self._failure_counts[key] += 1
            if self._failure_counts[key] < limit:
                continue
            if len(suspects) > 1 and can_isolate(state.env_id):
                self._suspects.add(state.env_id)  # alone it shows whether it is to blame
                continue
            self._suspects.clear()
            asked, file = self._add_context(error, state)
            times = f"it is the {_ordinal(self._failure_counts[key])} time in this call"
            again = ", its old episode given up" if key in self._abandoned else ""
            message = _insert(error, f"{asked}; {times}{again}{file}")
            # What kills it may be an old reset or call that is only repeated: an episode given up has none. And where
            # that has been of no use nothing else can be tried, unless another thread's env may be to blame.
            may_help = state.op == Op.STEP or state.env_id in self._progress_of
            is_untried = key not in self._abandoned or len(suspects) > 1
            if self.policy.on_repeat == "raise" or not (may_help and is_untried):
                error.args = (message, *error.args[1:])
                raise error
            # Whether an episode ends by that, or had ended before, its new worker finds out: see `note_outcome`.
            _LOG.warning("what env %d was asked is not tried again: %s", state.env_id, message)
            self._abandoned[key] = str(error).partition("\n")[0]
            self._failure_counts[key] = 0

    def env_to_isolate(self, env_ids: Sequence[int]) -> int | None:
        """Return which of the envs of a failed worker is to have the next one to itself; None: none.

        It is one that two failures have been traced to, or eight by signals from outside; or one of several that were
        at work in as many failures of the same call.
        """
        if len(env_ids) == 1:
            return None
        found = [env_id for env_id in env_ids if self._failure_weights[env_id] >= _MAX_OUTSIDE_FAILURES]
        found += [env_id for env_id in env_ids if env_id in self._suspects]
        return found[0] if found else None

    def note_worker_added(self) -> None:
        """Count a worker that was added for an env of its own."""
        self._counts["workers_added"] += 1

    def judge_start(self, error: WorkerDiedError | WorkerTimeoutError, failures: int) -> None:
        """Decide about a successor that died or hung before it served, the `failures`-th in a row: raise or try again.

        Raises:
            WorkerDiedError, WorkerTimeoutError: the policy allows no other one.
        """
        if failures >= _limit_of(error.exitcode if isinstance(error, WorkerDiedError) else None):
            raise error
        self._count_failure([], error)
        _LOG.warning("%s; another one is started", str(error))  # a kept record must not keep the pool

    def append_last_actions(self, error: WorkerError, state: SlotState) -> None:
        """Have an error that is raised at once say what its env was asked last."""
        append_message(error, self._add_context(error, state, write=False)[0])

    def _add_context(self, error: WorkerError, state: SlotState, *, write: bool = True) -> tuple[str, str]:
        """Have an error know what its env was asked last, and write the reproducer file.

        Returns:
            Both in words, for the error's text: what was asked, and where the file is or why there is none.
        """
        asked = ""
        try:
            context = self._reproduce(state.env_id, state.op, state.step_id)
            error.seed, error.actions = context.seed, context.actions
            asked = describe(context.seed, context.actions)
            if error.env_ids != (state.env_id,) and asked:  # of several that were at work the error names one
                asked = f"; env {state.env_id}: {asked}"
            elif asked:
                asked = f"; {asked}"
            if not write:
                return asked, ""
            error.reproducer = context.save(_insert(error, asked))
        except Exception as trouble:  # a full disk, say: whether the run goes on is not to depend on it
            why = " ".join(f"{type(trouble).__name__}: {trouble}".split())
            return asked, f"; no reproducer file could be written: {why}"
        return asked, f". `vecenv replay {error.reproducer}` repeats it"

    def _count_failure(self, running: Sequence[SlotState], error: WorkerError) -> None:
        """Note a failure; raise if there have been too many lately."""
        now = now_ns()
        oldest = now - int(min(self.policy.restart_window, MOST_SECONDS) * _NS)
        blamed: list[SlotState | None] = [*running] or [None]
        for state in blamed:
            who = -1 if state is None else state.env_id
            times = self._failure_times.setdefault(who, deque())
            times.append(now)
            while times[0] < oldest:
                times.popleft()
            most = self.policy.max_restarts * (_POOL_FACTOR if who == -1 else 1)
            if len(times) > most:
                whose = "no env to blame" if who == -1 else f"env {who} at work"
                asked = "" if state is None else self._add_context(error, state, write=False)[0]
                append_message(
                    error,
                    f"{asked}; {len(times)} failures within {self.policy.restart_window:g} s with {whose}, which is "
                    f"more than max_restarts={self.policy.max_restarts} allows",
                )
                raise error

    # ---- telling the new worker --------------------------------------------------------------

    def plan(
        self,
        env_ids: Sequence[int],
        queued: Sequence[Queued],
        last_delivered: Callable[[int, int], list[Array] | None],
        *,
        last_delivered_message: Callable[[int], bytes | None] = lambda env_id: None,
        fresh_seed: Callable[[int], int | None] = lambda env_id: None,
        marks_recovery: bool = True,
    ) -> dict[int, RestoreJob]:
        """Return how each env is to be brought back, by env_id.

        Args:
            env_ids: the worker's.
            queued: what its slots have left to do.
            last_delivered: newest observation that the caller has of an env, before a step_id.
            last_delivered_message: the mail with what of an env's newest observation has no column.
            fresh_seed: draws a seed for an env that begins without one of its episodes; None: it had no seed so far.
            marks_recovery: whether rows are to say that their env was recovered.
        """
        step = self.limits.step
        seconds = self.policy.recovery_timeout or max(60.0, 10 * (step or 0.0))
        left: dict[int, list[int]] = {}
        for _, env_id, step_id, _ in queued:
            left.setdefault(env_id, []).append(step_id)
        restore_jobs = {}
        for env_id in env_ids:
            waiting = left.get(env_id, [])
            history = self.journal.history(env_id, waiting)
            job = RestoreJob(
                marks_recovery=marks_recovery,
                seconds=seconds,
                last_delivered=last_delivered(env_id, min(waiting, default=0)),
            )
            job.last_delivered_message = last_delivered_message(env_id)
            job.fresh_seed = fresh_seed(env_id)
            job.persistent_calls = history.persistent_calls
            job.abandon_reason = self.abandon_reason(env_id, waiting)
            job.attempts = [] if job.abandon_reason else history.attempts
            restore_jobs[env_id] = job
        return restore_jobs

    def abandon_reason(self, env_id: int, step_ids: Sequence[int]) -> str:
        """Return why an env is not to be brought back for one of these commands; '': it is."""
        return next(
            (why for (one, step_id), why in self._abandoned.items() if one == env_id and step_id in step_ids), ""
        )

    # ---- what came of it ---------------------------------------------------------------------

    def begin_restoring(
        self, what: str, began_ns: int, restore_jobs: dict[int, RestoreJob], *, is_failure: bool = True
    ) -> None:
        """Note that these envs are on their way back."""
        progress = _RestoreProgress(what, began_ns, logging.WARNING if is_failure else logging.INFO, set(restore_jobs))
        for env_id in restore_jobs:
            self._progress_of[env_id] = progress
        self._counts["restarts" if is_failure else "recycled"] += 1

    def note_restore_point(self, env_id: int, restore_point: RestorePoint, is_answered: bool) -> None:
        """Note a point from which an env can be brought back."""
        self.journal.note_restore_point(env_id, restore_point, is_answered)

    def note_outcome(self, env_id: int, outcome: Outcome) -> None:
        """Note how an env came back; the last one of its worker ends the story with a line."""
        self._counts[outcome.kind] += 1
        self._counts["steps_replayed"] += outcome.num_steps
        self._replay_seconds += outcome.seconds
        self._restore_seconds[env_id] = outcome.seconds
        if outcome.kind == "truncated":
            _LOG.warning("env %d: its episode could not be brought back, it ends truncated: %s", env_id, outcome.reason)
        if outcome.kind == "restarted":
            _LOG.warning("env %d: its episode was over, the next one is restarted: %s", env_id, outcome.reason)
        if outcome.kind == "unproven" and self._counts["unproven"] == 1:
            _LOG.warning(_UNPROVEN, env_id)
        progress = self._progress_of.pop(env_id, None)
        if progress is None:
            return
        progress.waiting.discard(env_id)
        progress.outcomes.append(outcome)
        if not progress.waiting:
            _LOG.log(progress.level, "%s", _summary(progress))

    def restore_seconds(self, env_ids: Sequence[int]) -> float:
        """Return how long it took to bring these envs back the last time, together; 0: they have always been there."""
        return sum(self._restore_seconds.get(env_id, 0.0) for env_id in env_ids)

    def statistics(self) -> dict[str, Any]:
        """Return counts since the start; see `Pool.statistics`."""
        counts = {name: self._counts[name] for name in COUNTS}
        return {**counts, "replay_seconds": self._replay_seconds, "log_nbytes": self.journal.nbytes}


def _summary(progress: _RestoreProgress) -> str:
    seconds = (now_ns() - progress.began_ns) / _NS
    steps = sum(outcome.num_steps for outcome in progress.outcomes)
    truncated = sum(outcome.kind == "truncated" for outcome in progress.outcomes)
    restarted = sum(outcome.kind == "restarted" for outcome in progress.outcomes)
    unproven = sum(outcome.kind == "unproven" for outcome in progress.outcomes)
    end = "nothing was lost"
    if truncated or restarted or unproven:
        parts = (
            (truncated, "ended truncated"),
            (restarted, "were over, the next ones are restarted"),
            (unproven, "go on from a state that may lack something"),
        )
        end = f"of {len(progress.outcomes)} episodes " + ", ".join(f"{count} {what}" for count, what in parts if count)
    return f"{progress.what}; replaced, {steps} commands repeated, {end} ({seconds:.3g} s)"


def _insert(error: WorkerError, addition: str) -> str:
    """Return an error's text with more behind its first line; what follows is a stack."""
    first, newline, rest = str(error).partition("\n")
    return f"{first}{addition}{newline}{rest}"


def append_message(error: WorkerError, addition: str) -> None:
    """Put words behind the first line of an error's text."""
    error.args = (_insert(error, addition), *error.args[1:])


def _limit_of(exitcode: int | None) -> int:
    return _MAX_OUTSIDE_FAILURES if exitcode in _FROM_OUTSIDE else _MAX_FAILURES


def _ordinal(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count}th")
