"""Decide which workers to replace because of their age or memory, for simulators that leak.

Workers are checked between two requests, at most once a second. The successor of a worker restores its envs as after a
crash, so the caller notices only the lower memory use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import psutil

from ...own_log import own_logger
from ..layout.arena import ArenaPlan
from ..processes.worker import Worker
from ..system.clock import now_ns

__all__ = ["Recycler"]

_LOG = own_logger()
_POLL_NS = 1_000_000_000
#: Least lifetime of a worker, as a multiple of the time that restoring its envs took; its memory use does not
#: matter. If the repeated commands leak too, its successors would otherwise only restore envs.
_MIN_LIFETIME_FACTOR = 20
#: A worker whose envs always owe answers, as in asynchronous use, is replaced after this many checks.
_MAX_BUSY_POLLS = 5
_MIB = 1 << 20


class Recycler:
    """Decides which workers of one pool are due for replacement.

    Args:
        limits: 'episodes' that an env may play in one worker, and 'rss_mb', the memory that a worker may use (MiB).
        plan, memory: the arena, whose records count episodes.
        restore_seconds: returns how long restoring these envs took together the last time, in seconds.
    """

    def __init__(
        self,
        limits: Mapping[str, float],
        plan: ArenaPlan,
        memory: Any,
        restore_seconds: Callable[[Sequence[int]], float],
    ) -> None:
        self._limits = dict(limits)
        self._restore_seconds = restore_seconds
        self._started_ns: dict[int, int] = {}  # instants at which successors were started, by worker_id
        self._has_warned = False
        self._episodes = plan.records(memory)["episode"]
        self._start_episodes = np.zeros(plan.num_envs, np.int64)
        self._next_poll_ns = now_ns() + _POLL_NS
        self._busy_polls: dict[int, int] = {}

    def due(self, workers: Sequence[Worker], busy: Sequence[bool]) -> list[tuple[Worker, str]]:
        """Return the workers to replace now, each with the reason.

        Args:
            workers: all workers of the pool.
            busy: for each worker, whether its envs owe answers.
        """
        now = now_ns()
        if now < self._next_poll_ns:
            return []
        self._next_poll_ns = now + _POLL_NS
        found = []
        for worker, is_busy in zip(workers, busy):
            reason = "" if worker.is_dead else self._reason(worker)
            if not reason:
                continue
            polls = self._busy_polls[worker.worker_id] = self._busy_polls.get(worker.worker_id, 0) + 1
            if not is_busy or polls > _MAX_BUSY_POLLS:
                found.append((worker, reason))
        return found

    def note_worker_started(self, worker: Worker) -> None:
        """Restart the counts of a worker_id for its new process."""
        self._busy_polls.pop(worker.worker_id, None)
        self._started_ns[worker.worker_id] = now_ns()
        self._start_episodes[worker.env_ids] = self._episodes[worker.env_ids].max(1)

    def _reason(self, worker: Worker) -> str:
        episodes = self._limits.get("episodes")
        if episodes is not None:
            played = int((self._episodes[worker.env_ids].max(1) - self._start_episodes[worker.env_ids]).max())
            if played >= episodes:
                return f"after {played} episodes of an env"
        rss_mb = self._limits.get("rss_mb")
        if rss_mb is not None:
            try:
                used = psutil.Process(worker.pid).memory_info().rss / _MIB
            except psutil.Error:  # it has died since, which its pidfd reports
                return ""
            if used >= rss_mb and not self._is_too_young(worker, used, rss_mb):
                return f"at {used:.0f} MiB"
        return ""

    def _is_too_young(self, worker: Worker, used: float, rss_mb: float) -> bool:
        now = now_ns()
        seconds = self._restore_seconds(worker.env_ids)
        least_ns = int(_MIN_LIFETIME_FACTOR * seconds * 1e9)
        left_ns = self._started_ns.get(worker.worker_id, now - least_ns) + least_ns - now
        if left_ns <= 0:
            return False
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "%s uses %.0f MiB, more than rss_mb=%g, soon after it was replaced; restoring its envs took %.3g s, "
                "so it is kept for %.3g s. Envs that leak do so again when their commands are repeated: give them "
                "get_state() and set_state(state), or reset them with a seed now and then",
                *(worker.name, used, rss_mb, seconds, left_ns / 1e9),
            )
        return True
