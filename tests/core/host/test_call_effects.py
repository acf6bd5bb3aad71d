"""The choice of the calls before and after which an env is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vecenv.core.host import call_effects
from vecenv.core.host.call_effects import CallEffects
from vecenv.core.host.global_rngs import GlobalRngs
from vecenv.core.layout.commands import CallEffect


class Clock:
    """A CPU clock that stands still but in comparisons."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class ScriptedSnapshotter:
    """Finds the given changes in comparisons, which take the given time."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.cost_ns = clock, 0
        self.found: dict[Any, bytes] = {}

    def watch(self, env: Any, *, is_deep: bool) -> Any:
        self.clock.now_ns += self.cost_ns // 2 if is_deep else 0
        return is_deep

    def changes(self, env: Any, watch: Any) -> Any:
        self.clock.now_ns += self.cost_ns // 2 if watch else 0
        return dict(self.found) if watch else {}


Compare = Callable[..., CallEffect]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Return a function that makes one call and returns its effect, by the time of a comparison and the changes."""
    clock = Clock()
    monkeypatch.setattr(call_effects, "cpu_ns", clock)
    monkeypatch.setattr(call_effects, "now_ns", clock)
    snapshotter = ScriptedSnapshotter(clock)
    effects = CallEffects(snapshotter, GlobalRngs(0, 0))  # type: ignore[arg-type]

    def compare(cost_ns: int, found: dict[Any, bytes] | None = None) -> CallEffect:
        snapshotter.cost_ns, snapshotter.found = cost_ns, found or {}
        effects.begin(0, None, len)
        return effects.end(0, None)

    return compare


def test_each_call_is_compared_where_that_is_quick_with_many_slow_ones_between(compare: Compare) -> None:
    assert all(compare(50_000_000 if number % 50 > 10 else 50_000).is_compared for number in range(1000))


def test_calls_are_sampled_where_each_comparison_is_slow(compare: Compare) -> None:
    compared = [compare(1_000_000).is_compared for _ in range(200)]
    assert all(compared[:64]) and not any(compared[64:])


def test_comparisons_that_become_quick_again_are_made_at_each_call(compare: Compare) -> None:
    assert all(compare(1_000_000).is_compared for _ in range(60))
    assert all(compare(50_000).is_compared for _ in range(1000))


def test_each_eighth_call_is_compared_after_10_000_without_a_change(compare: Compare) -> None:
    compared = [compare(50_000).is_compared for _ in range(10_800)]
    assert all(compared[:10_000]) and sum(compared[10_000:]) == 100


def test_change_after_calls_that_were_not_compared_is_reported_once(compare: Compare) -> None:
    for _ in range(10_001):
        compare(50_000)
    effects = [compare(50_000, {(0, "task"): b"1"}) for _ in range(20)]
    assert [effect.is_compared for effect in effects] == [False] * 7 + [True] * 13
    assert [effect.has_missed for effect in effects] == [False] * 7 + [True] + [False] * 12
