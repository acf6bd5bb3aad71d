"""Pools that move their envs to further workers, whatever these envs do."""

from __future__ import annotations

from collections import Counter

import pytest

from vecenv.core.advice.sizing import Setting
from vecenv.core.advice.waiting import WaitingCheck
from vecenv.core.pool import process
from vecenv.report import Verdict

__all__ = ["force_spreading"]


def force_spreading(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let pools without `num_workers` begin with two workers, and find at a later request that their envs wait.

    Args:
        after: number of requests before that one.
    """
    requests: Counter[WaitingCheck] = Counter()

    def is_due(check: WaitingCheck) -> bool:
        requests[check] += 1
        return requests[check] > after

    verdict = Verdict("waiting envs", "the envs wait for 99% of their time", 0.99, "share", "num_workers=...", 50.0)
    monkeypatch.setattr(process, "usable_cores", lambda: 2)
    monkeypatch.setattr(WaitingCheck, "is_due", is_due)
    monkeypatch.setattr(WaitingCheck, "find", lambda check: (verdict, Setting(1000)))
    monkeypatch.setattr("vecenv.core.pool.spreading._PAUSE_NS", 0)
