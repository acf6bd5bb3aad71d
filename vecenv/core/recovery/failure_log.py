"""Log the failures of envs, and count them for the summary; lines about an env that often fails are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from ...own_log import own_logger
from ..host.failure_budget import FailureBudget

__all__ = ["FailureLog"]

_LOG = own_logger()
#: Failures within a minute after which lines about an env are left out.
_MOST_FAILURES, _WINDOW_SECONDS = 3, 60.0
#: Most envs that the summary names.
_MOST_NAMED = 5


class FailureLog:
    """The log lines about failures of the envs of one pool.

    Args:
        first_env_id: number of env 0 in these lines.
    """

    def __init__(self, first_env_id: int = 0) -> None:
        self._first_env_id = first_env_id
        self._newest = FailureBudget(_MOST_FAILURES, _WINDOW_SECONDS)
        self._failures: Counter[int] = Counter()  # failures while the env was at work, by env_id
        self._left_out: Counter[int] = Counter()  # lines that were left out since its last line, by env_id
        self.num_left_out = 0

    def note_failure(self, env_ids: Collection[int], now: int, *, are_at_work: bool) -> None:
        """Count a failure of these envs, at a time of the monotonic clock; log a line at the fourth one in a minute.

        Args:
            are_at_work: whether the envs were at work, and not only in a worker that failed while it was idle.
        """
        before = [env_id for env_id in env_ids if self._is_frequent(env_id, now)]
        for env_id in env_ids:
            self._newest.note(env_id, now)
            self._failures[env_id] += are_at_work
        found = [env_id for env_id in env_ids if self._is_frequent(env_id, now) and env_id not in before]
        if found:
            others = f" (and {len(found) - 1} others of its worker)" if len(found) > 1 else ""
            text = "env %d%s failed %d times within a minute; further lines about it are counted instead of logged"
            _LOG.warning(text, self._first_env_id + found[0], others, _MOST_FAILURES + 1)

    def _is_frequent(self, env_id: int, now: int) -> bool:
        return self._newest.count(env_id, now) > self._newest.most

    def write(self, env_ids: Sequence[int], now: int, text: str, *args: Any) -> None:
        """Log a warning about these envs, or count it if one of them often fails."""
        frequent = [env_id for env_id in env_ids if self._is_frequent(env_id, now)]
        if frequent:
            self._left_out[frequent[0]] += 1
            self.num_left_out += 1
            return
        for env_id in env_ids:
            if self._left_out[env_id]:
                count = self._left_out.pop(env_id)
                _LOG.warning("env %d: log lines left out: %d", self._first_env_id + env_id, count)
        _LOG.warning(text, *args)

    def describe_failures(self) -> str:
        """Return which envs were at work during failures, and how often; '' if none was."""
        most = self._failures.most_common(_MOST_NAMED)
        named = [f"env {self._first_env_id + env_id}: {count}" for env_id, count in most if count]
        num_others = sum(count > 0 for count in self._failures.values()) - len(named)
        return ", ".join(named) + (f", {num_others} other envs" if num_others else "")
