"""Transitions: a complete batch of transitions, as `collect` returns it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.layout.spec import Array

__all__ = ["Transitions"]


@dataclass(repr=False, eq=False)
class Transitions:
    """Transitions of N envs; their arrays belong to the caller.

    The leading shape of all columns is (B,), or (T, N) if they are time-major: column n then has T consecutive
    transitions of env n. Rows that only begin an episode are left out. K is the shape of a reward, () for one number.
    With `returns_only` of a `Collector`, `obs`, `actions`, `next_obs` and `bootstrap` are None, and `extras` is empty.

    Attributes:
        obs: observations, nested like the space of one env, leaves (B, *S). Parts without a fixed dtype and shape
            (Text, Sequence, Graph, OneOf) are arrays of objects (B,); `next_obs` has the same objects.
        actions: the actions that were taken there, nested like the action space.
        rewards: float64 (B, *K).
        terminated, truncated: bool (B,), Gymnasium's flags of the step.
        lost: bool (B,), rows that no step of the env has made. Their episode could not be restored after a failure, so
            it ends there: `obs` repeats in `next_obs`, the reward is 0, and `truncated` is True. Such rows must be left
            out of replay buffers.
        env_id: int64 (B,), the env of each row.
        step: int64 (B,), index of the step in its episode, from 0.
        episode: int64 (B,), index of the episode of that env, from 0; counted over all batches of the vector env.
        extras: the further arrays that the policy returned with the actions, by name.
        bootstrap: float (T, N, *K), or None if the batch is not time-major or the policy has no method `bootstrap`. The
            policy's estimate for `next_obs` in rows whose successor does not continue them: where `truncated`, and in
            the last row of each env. It is 0 in all other rows and where `terminated`.
        episode_returns: float64 (E, *K), the sum of rewards of each episode that ended in this batch, in the order of
            these ends: by round, and then by env id. This is the order of the rows where `terminated | truncated`, and
            `lost` in these rows marks lost episodes.
        episode_lengths: int64 (E,), the number of their steps, lost rows included.
        version: of the weights that the transitions were made with; None unless a `Collector` has policies in shards.
        renewed_envs: int64 (K,), envs whose shard was lost before this batch was complete, and whose policy has no
            `get_state`: a new policy has made their transitions, which may differ from those that were lost.
    """

    obs: Any
    actions: Any
    rewards: Array
    terminated: Array
    truncated: Array
    lost: Array
    env_id: Array
    step: Array
    episode: Array
    extras: dict[str, Array]
    bootstrap: Array | None
    episode_returns: Array
    episode_lengths: Array
    _make_next_obs: Callable[[], Any] = field(repr=False)
    _next_obs: Any = field(default=None, repr=False)
    version: int | None = None
    renewed_envs: Array = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return self.env_id.size

    @property
    def next_obs(self) -> Any:
        """The observations after each step, nested and shaped as `obs`.

        In rows that end an episode it is the final observation, never the first one of the next episode. The arrays are
        made when they are first read.
        """
        if self._next_obs is None:
            self._next_obs = self._make_next_obs()
        return self._next_obs

    def __repr__(self) -> str:
        names = "".join(f", {name}" for name in self.extras)
        shape, ends = self.env_id.shape, len(self.episode_returns)
        return f"Transitions(shape={shape}, {ends} ended episodes, extras: {names[2:] or 'none'})"
