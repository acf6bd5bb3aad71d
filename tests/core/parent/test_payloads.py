"""Payloads of commands reach their workers without pauses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.inside import hub_of, note_calls_of_native_hub
from vecenv import VectorEnv
from vecenv.core.layout.native import load
from vecenv.core.operations import waiter
from vecenv.envs.toys import NullEnv

pytestmark = [pytest.mark.skipif(load() is None, reason="the extension was not built")]


class Length:
    """A call with a payload of this number of bytes; its result is that number."""

    def __init__(self, nbytes: int) -> None:
        self.data = bytes(nbytes)

    def __call__(self, env: Any) -> int:
        return len(self.data)


@pytest.fixture
def envs() -> Iterator[VectorEnv]:
    with VectorEnv([NullEnv] * 4, num_workers=2) as made:
        made.reset(seed=0)
        yield made


def test_worker_that_lacks_a_part_of_a_payload_wakes_the_caller(
    envs: VectorEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller looked once per millisecond whether there was room for the next part. Here it looks every 50 ms.

    Each worker gets 2 payloads of 32 MiB in 1024 parts or more, so those looks alone would take 50 s.
    """
    monkeypatch.setattr(waiter, "_PAYLOAD_POLL_NS", 3600 * 10**9)
    assert envs.pool.call(Length(1 << 25), timeout=30.0) == [1 << 25] * 4


def test_workers_sleep_until_their_payloads_are_written(envs: VectorEnv) -> None:
    """A worker that woke up on the caller's core kept it for milliseconds, and the other payloads came later."""
    names = note_calls_of_native_hub(hub_of(envs.pool))
    envs.pool.call(Length(1))
    sent = names[: names.index("wake_slots") + 1]
    assert sent == ["command", *["write_payload"] * 4, "wake_slots"]
