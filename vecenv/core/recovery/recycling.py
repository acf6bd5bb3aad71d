"""Recycling: which workers have lived long enough, for simulators that leak.

A worker is looked at between two requests, at most once a second; what it hosts goes on in its
successor as after a crash, so that nobody but the memory notices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import psutil

from ..layout.arena import ArenaPlan
from ..processes.worker import Worker
from ..system.clock import now_ns

__all__ = ["Recycler"]

_LOG = logging.getLogger("vecenv")
_POLL_NS = 1_000_000_000
#: How long a worker lives at least over the time that bringing its envs back took, however large it is: where what they
#: leak is repeated with them, its successors would do nothing else.
_MIN_LIFETIME_FACTOR = 20
#: A worker whose envs always owe answers, as in asynchronous use, is not waited for longer than this.
_MAX_BUSY_POLLS = 5
_MIB = 1 << 20


class Recycler:
    """Looks at the workers of one pool.

    Args:
        limits: 'episodes' that an env may play in one worker, 'rss_mb' that a worker may use (MiB).
        plan, memory: of the arena, whose records count episodes.
        restore_seconds: how long it took to bring these envs back the last time, together.
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
        self._started_ns: dict[int, int] = {}  # of successors
        self._has_warned = False
        self._episodes = plan.records(memory)["episode"]
        self._start_episodes = np.zeros(plan.num_envs, np.int64)
        self._next_poll_ns = now_ns() + _POLL_NS
        self._busy_polls: dict[int, int] = {}

    def due(self, workers: Sequence[Worker], busy: Sequence[bool]) -> list[tuple[Worker, str]]:
        """Return the workers to replace now, each with the reason.

        Args:
            workers: all of them.
            busy: whether envs of each owe answers.
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
        """Count from here for a new worker."""
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
            except psutil.Error:  # it has died since: its pidfd tells of that
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
                "%s has %.0f MiB, more than rss_mb=%g, soon after it was replaced; bringing its envs back took %.3g s, "
                "so it stays for %.3g s. What envs leak they leak again where all they were asked is repeated: give "
                "them get_state() and set_state(state), or reset them with a seed now and then",
                *(worker.name, used, rss_mb, seconds, left_ns / 1e9),
            )
        return True
