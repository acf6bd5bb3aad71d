"""Retry policy: how often a failed reset, or a failed step in this process, is repeated."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RetryPolicy"]


@dataclass
class RetryPolicy:
    """The retry policy of a manager; it may be changed while envs run.

    Attributes:
        max_retry: number of attempts, at least 1.
        retry_type: before another attempt, 'reset' keeps the env and 'renew' replaces it by a new one.
        waiting_time: seconds before another attempt.
    """

    max_retry: int
    retry_type: str
    waiting_time: float

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> RetryPolicy:
        """Read the policy from a manager's config."""
        return cls(max(1, int(cfg["max_retry"])), cfg["retry_type"], cfg["retry_waiting_time"])

    def change(self, **values: Any) -> None:
        """Change attributes."""
        for name, value in values.items():
            setattr(self, name, value)

    def wait(self) -> None:
        """Sleep before another attempt."""
        time.sleep(self.waiting_time)
