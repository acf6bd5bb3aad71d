"""Compare transitions with plain loops: each env alone, stepped with the actions that were collected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from tests.vector.comparison import assert_same
from vecenv import Transitions
from vecenv.envs.toys import ToyEnv
from vecenv.values.nested import map_structure


class DiceEnv(ToyEnv):
    """A toy env whose episodes have random lengths of 1 to 6 steps, and end by truncation half of the time."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = super().reset(seed=seed, options=options)
        self.length = 1 + int(self.np_random.integers(6))
        self.truncate = bool(self.np_random.integers(2))
        return result


class Rows:
    """The transitions of several batches in one order: by batch, and time-major ones by round."""

    def __init__(self, batches: Sequence[Transitions]) -> None:
        def flat(name: str) -> Any:
            def join(*parts: np.ndarray) -> np.ndarray:
                return np.concatenate(
                    [
                        part.reshape(-1, *part.shape[batch.rewards.ndim :])
                        for part, batch in zip(parts, batches, strict=True)
                    ]
                )

            first, *others = [getattr(batch, name) for batch in batches]
            return map_structure(join, first, *others)

        self.obs, self.next_obs, self.actions = flat("obs"), flat("next_obs"), flat("actions")
        self.rewards, self.terminated, self.truncated = flat("rewards"), flat("terminated"), flat("truncated")
        self.env_id, self.step, self.episode = flat("env_id"), flat("step"), flat("episode")

    def __len__(self) -> int:
        return len(self.rewards)


def assert_plain(batches: Sequence[Transitions], env_fns: Sequence[Callable[[], gymnasium.Env]], seed: int) -> None:
    """Fail unless the transitions of each env are those of a plain loop with the same actions.

    Args:
        batches: consecutive batches; the envs were reset with `seed` before the first one.
        env_fns: one per env.
        seed: env i was reset with `seed + i`.
    """
    rows = Rows(batches)
    assert not any(batch.lost.any() for batch in batches)
    for env_id, env_fn in enumerate(env_fns):
        env = env_fn()
        obs, _ = env.reset(seed=seed + env_id)
        step, episode, has_ended = 0, 0, False
        for row in np.flatnonzero(rows.env_id == env_id):
            where = f"env {env_id}, episode {episode}, step {step}"
            if has_ended or (rows.step[row] == 0 and step > 0):  # later calls may begin new episodes
                obs, _ = env.reset()
                step, episode = 0, episode + 1
            assert_same(take(rows.obs, row), as_arrays(obs), where)
            obs, reward, terminated, truncated, _ = env.step(to_action(rows.actions, row))
            assert_same(take(rows.next_obs, row), as_arrays(obs), where)
            found = rows.rewards[row], rows.terminated[row], rows.truncated[row], rows.step[row], rows.episode[row]
            assert found == (reward, terminated, truncated, step, episode), where
            step, has_ended = step + 1, terminated or truncated
        env.close()


def take(nested: Any, row: int) -> Any:
    return map_structure(lambda leaf: leaf[row, ...], nested)


def to_action(actions: Any, row: int) -> Any:
    return take(actions, row)


def as_arrays(obs: Any) -> Any:
    return map_structure(np.asarray, obs)
