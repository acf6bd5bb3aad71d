"""One log line says that the history of an env would take long to repeat, with the remedies."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.test_long_histories import ROUNDS, EndlessCartPole, PickledCartPole
from vecenv import FailurePolicy, VectorEnv


def long_run(caplog: pytest.LogCaptureFixture, make: Callable[[], Any]) -> list[str]:
    """Make steps whose repetition takes longer than half of `recovery_timeout`; return the log lines about that."""
    failures = FailurePolicy(recovery_timeout=0.5, max_log_bytes=1 << 14)
    envs = VectorEnv([make] * 7, num_workers=1, failures=failures)
    try:
        envs.reset(seed=7)
        for number in range(ROUNDS):
            envs.step([number % 2] * 7)
    finally:
        envs.close()
    return [record.getMessage() for record in caplog.records if "recovery_timeout" in record.getMessage()]


def test_long_history_is_logged_once_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = long_run(caplog, EndlessCartPole)
    assert re.match(r"vecenv: envs? \d(, \d)*( and \d others)?(; env \d)?: \d+ steps since", line) and "(0.5 s)" in line
    for remedy in ("get_state()", "register_state_adapter", "register_pickled_state", "seeds"):
        assert remedy in line


def test_long_history_of_pickled_env_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert long_run(caplog, PickledCartPole) == []
