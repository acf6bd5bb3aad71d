"""An env whose episodes differ in length and end by their seed, and fail for chosen seeds."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from vecenv.envs.toys import CountEnv

__all__ = ["SeedEnv", "crash", "hang", "length_of"]


def length_of(seed: int) -> int:
    """Steps of the episode of a seed."""
    return 2 + seed % 5


class SeedEnv(CountEnv):
    """Episodes of `length_of(seed)` steps; those of odd seeds are truncated, those of even seeds terminate.

    Its reward at each step is the action plus a number that is drawn at the step. `faults` has functions, by seed, that
    are called at the second step of an episode.
    """

    def __init__(self, faults: Mapping[int, Callable[[], object]] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.faults = dict(faults or {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.length, self.truncate = length_of(seed), seed % 2 == 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self.elapsed_steps == 1 and self.seed_given in self.faults:
            self.faults[self.seed_given]()
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(action) + float(obs[3]), terminated, truncated, info


def hang() -> None:
    """Wait forever."""
    threading.Event().wait()


def crash() -> None:
    """Kill the process of the env."""
    os.kill(os.getpid(), signal.SIGSEGV)
