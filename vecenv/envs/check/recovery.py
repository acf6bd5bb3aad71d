"""The check that an env's episodes can be repeated in a rebuilt env, as after a crash of its worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from vecenv.envs.check.episodes import Run, exhaust, find_difference
from vecenv.envs.state.state import uncovered_layers
from vecenv.values.checks import check_callable

__all__ = ["RecoveryReport", "check_recovery"]

MAX_STEPS = 300


class RecoveryReport(NamedTuple):
    """The result of `check_recovery`; a difference is described by a sentence, or None if there is none."""

    #: First difference between two envs in an episode with the same seed and the unseeded episode after it.
    seeded: str | None
    #: First difference in that unseeded episode, played in a new env with the restored state.
    carried: str | None
    #: Layers of the env whose state between two episodes is not saved, each with the reason.
    uncovered: tuple[str, ...]
    #: Whether the env used the generators of `random` or `numpy.random`, which its whole process shares.
    draws_globally: bool

    @property
    def verdict(self) -> str:
        """The episodes that can be recovered after a crash: 'any episode', 'from the last seeded reset' or 'none'."""
        if self.carried is None and self.seeded is None:
            return "any episode"
        return "none" if self.seeded is not None else "from the last seeded reset"

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [
            f"two runs from one seed: {self.seeded or 'alike'}",
            f"fresh env with the state carried over: {self.carried or 'alike'}",
        ]
        lines += [f"state not carried over: {gap}" for gap in self.uncovered]
        if self.draws_globally:
            lines.append("draws from the global generators: give it a worker of its own, or use np_random")
        return [*lines, f"recovery after a crash: {self.verdict}"]


def check_recovery(env_fn: Callable[[], Any], *, seed: int = 0, max_steps: int = MAX_STEPS) -> RecoveryReport:
    """Check whether the episodes of a crashed worker could be replayed exactly; exceptions of the env are passed on.

    A first and a second env play a seeded episode and the unseeded episode after it, with the same random actions.
    A third env plays only the unseeded episode, after its state was restored by `envs.state`. Observations, rewards
    and flags are compared; infos are not.

    Args:
        env_fn: builds the env; called three times. ConfigError if it is not callable.
        seed: seed of the first episode and of the actions.
        max_steps: number of steps after which an episode is stopped.

    Example:
        >>> import gymnasium
        >>> check_recovery(lambda: gymnasium.make("CartPole-v1")).verdict
        'any episode'
    """
    check_callable("env_fn", env_fn)
    return exhaust(compare_runs(env_fn, seed, max_steps))


def compare_runs(
    env_fn: Callable[[], Any], seed: int = 0, max_steps: int = MAX_STEPS
) -> Generator[None, None, RecoveryReport]:
    """Do the work of `check_recovery`; yield None after each step, and return its report."""
    with contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(contextlib.closing(Run(env_fn, seed))) for _ in range(3))
        one = yield from first.play(max_steps, {"seed": seed})
        other = yield from second.play(max_steps, {"seed": seed})
        state, uncovered = first.save(), tuple(uncovered_layers(first.env))
        one_after = yield from first.play(max_steps, {})
        other_after = yield from second.play(max_steps, {})
        seeded = find_difference(one, other, "the seeded episode")
        seeded = seeded or find_difference(one_after, other_after, "the unseeded episode after it")
        carried = "its state cannot be captured" if state is None else third.load(state)
        if carried is None:
            restored = yield from third.play(max_steps, {})
            carried = find_difference(one_after, restored, "the unseeded episode")
        return RecoveryReport(seeded, carried, uncovered, first.draws_globally)
