"""The choice of the calls before and after which an env is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vecenv.core.host import call_effects
from vecenv.core.host.call_effects import CallEffects
from vecenv.core.host.global_rngs import GlobalRngs


class Clock:
    """A CPU clock that stands still but in comparisons."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class ScriptedSnapshotter:
    """Finds no changes; a comparison takes the given time."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.cost_ns = clock, 0

    def watch(self, env: Any, *, is_deep: bool) -> Any:
        self.clock.now_ns += self.cost_ns // 2 if is_deep else 0
        return is_deep

    def changes(self, env: Any, watch: Any) -> Any:
        self.clock.now_ns += self.cost_ns // 2 if watch else 0
        return {}


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], bool]:
    """Return a function that makes one call, and returns whether it was compared in full."""
    clock = Clock()
    monkeypatch.setattr(call_effects, "cpu_ns", clock)
    monkeypatch.setattr(call_effects, "now_ns", clock)
    snapshotter = ScriptedSnapshotter(clock)
    effects = CallEffects(snapshotter, GlobalRngs(0, 0))  # type: ignore[arg-type]

    def compare(cost_ns: int) -> bool:
        snapshotter.cost_ns = cost_ns
        effects.begin(0, None, len)
        return effects.end(0, None).is_compared

    return compare


def test_each_call_is_compared_where_that_is_quick_with_many_slow_ones_between(compare: Callable[[int], bool]) -> None:
    assert all(compare(50_000_000 if number % 50 > 10 else 50_000) for number in range(1000))


def test_calls_are_sampled_where_each_comparison_is_slow(compare: Callable[[int], bool]) -> None:
    compared = [compare(1_000_000) for _ in range(200)]
    assert all(compared[:64]) and not any(compared[64:])


def test_comparisons_that_become_quick_again_are_made_at_each_call(compare: Callable[[int], bool]) -> None:
    assert all(compare(1_000_000) for _ in range(60))
    assert all(compare(50_000) for _ in range(1000))
