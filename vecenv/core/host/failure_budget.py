"""Count the failures of each env within a window of time, to compare them with the limit of a policy."""

from __future__ import annotations

from collections import deque

from ..system.clock import MOST_SECONDS

__all__ = ["FailureBudget"]


class FailureBudget:
    """The newest failures of each env.

    Args:
        most: failures of one env that are accepted within the window.
        window: in seconds.
    """

    def __init__(self, most: int, window: float) -> None:
        self.most, self.window = most, window
        self._window_ns = int(min(window, MOST_SECONDS) * 1e9)
        self._times: dict[int, deque[int]] = {}  # instants on the monotonic clock, by env_id

    def note(self, env_id: int, now: int, count: int = 1) -> int:
        """Count failures at an instant of the monotonic clock; return how many the env has had within the window."""
        self._times.setdefault(env_id, deque()).extend([now] * count)
        return self.count(env_id, now)

    def count(self, env_id: int, now: int) -> int:
        """Return how many failures the env has had within the window that ends now."""
        times, oldest = self._times.get(env_id, deque()), now - self._window_ns
        while times and times[0] < oldest:
            times.popleft()
        return len(times)
