"""PolicyRows: calls a policy with the envs that need an action, in batches of a fixed size if that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from ..core.layout.spec import Array
from ..policies import PolicyCaller, no_objects
from .observations import Observations

__all__ = ["PolicyRows"]

#: Added to the entropy of a policy's generators. Without it they would draw the numbers of the env's `np_random`.
_STREAM = 0x706F6C


class PolicyRows:
    """Calls the policy of an evaluation.

    Args:
        has_generators: whether the policy takes a list of random generators, one per row, as its third argument.
        batch_rows: number of rows of each call. Rows beyond those of the envs repeat the first row, with its env id;
            their actions are dropped. None: as many rows as envs need an action.

    Raises:
        ConfigError: the policy is not callable, or its actions would have no fixed layout.
    """

    def __init__(
        self, policy: Any, action_space: Space[Any], what: str, *, has_generators: bool, batch_rows: int | None
    ) -> None:
        self._drawing = _DrawingPolicy(policy) if has_generators else None
        self._caller = PolicyCaller(self._drawing or policy, action_space, what)
        self._batch_rows = batch_rows

    def begin(self, env_ids: Array, seeds: Sequence[int]) -> None:
        """Inform the policy that these envs, int64 (K,), begin episodes from these seeds."""
        if self._drawing is not None:
            self._drawing.seed(env_ids.tolist(), seeds)
        self._caller.begin(env_ids)

    def actions(self, observations: Observations, env_ids: Array) -> Any:
        """Return the policy's actions for the envs `env_ids`, int64 (B,), nested like the action space, leaves (B, *S).

        Raises:
            SpaceError: the actions do not fit.
        """
        parts = [self._act(observations, part) for part in self._split(env_ids)]
        columns = parts[0] if len(parts) == 1 else tuple(map(np.concatenate, zip(*parts)))
        return self._caller.spec.batch(lambda leaf: columns[leaf.index], no_objects)

    def _split(self, env_ids: Array) -> list[Array]:
        step = self._batch_rows or len(env_ids)
        return [env_ids[start : start + step] for start in range(0, len(env_ids), step)]

    def _act(self, observations: Observations, env_ids: Array) -> tuple[Array, ...]:
        count = len(env_ids)
        if self._batch_rows is not None and count < self._batch_rows:
            padding = np.repeat(env_ids[:1], self._batch_rows - count)
            env_ids = np.concatenate([env_ids, padding])
        if self._drawing is not None:
            self._drawing.num_used = count
        answer = self._caller.act(observations.take(env_ids), env_ids)
        return tuple(column[:count] for column in answer.actions)


class _DrawingPolicy:
    """A policy that gets a generator per row as its third argument, as a policy of two arguments."""

    def __init__(self, policy: Callable[..., Any]) -> None:
        self._policy = policy
        self._generators: dict[int, np.random.Generator] = {}
        self._unused = np.random.default_rng(_STREAM)  # for rows whose actions are dropped
        self.num_used = 0
        self.begin = getattr(policy, "begin", None)

    def seed(self, env_ids: Sequence[int], seeds: Sequence[int]) -> None:
        for env_id, seed in zip(env_ids, seeds):
            self._generators[env_id] = np.random.default_rng([seed, _STREAM])

    def __call__(self, obs: Any, env_ids: Array) -> Any:
        generators = [self._generators[env_id] for env_id in env_ids[: self.num_used].tolist()]
        generators += [self._unused] * (len(env_ids) - self.num_used)
        return self._policy(obs, env_ids, generators)
