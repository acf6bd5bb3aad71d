"""Episode counts: the state of each env, and how many episodes it has ended. All managers have this part."""

from __future__ import annotations

from typing import Any

from .states import EnvState

__all__ = ["EpisodeCounts"]


class EpisodeCounts:
    """States of envs, and counts of their episodes.

    Args:
        num_envs: number of envs; their ids are 0 .. num_envs - 1.
        episode_num: number of episodes after which an env is DONE; may be infinite.

    Attributes:
        all_ids: all env ids, ascending.
        states: {env_id: state}; only `set_state` changes it.
        counts: {env_id: episodes ended since launch}.
        not_running: ids of the envs that are not in RUN.
        closed: True if there are no envs: before launch and after close.
        episode_num: the argument.
    """

    def __init__(self, num_envs: int, episode_num: float) -> None:
        self.all_ids = list(range(num_envs))
        self.states = dict.fromkeys(self.all_ids, EnvState.VOID)
        self.counts = dict.fromkeys(self.all_ids, 0)
        self.not_running = set(self.all_ids)
        self.closed = True
        self.episode_num = episode_num

    def open(self) -> None:
        """Begin with new envs: all are in INIT, and no episode has ended."""
        self.closed = False
        for env_id in self.all_ids:
            self.counts[env_id] = 0
            self.set_state(env_id, EnvState.INIT)

    def close(self) -> None:
        """Set all envs to VOID."""
        self.closed = True
        for env_id in self.all_ids:
            self.set_state(env_id, EnvState.VOID)

    def set_state(self, env_id: int, state: EnvState) -> None:
        """Change the state of one env."""
        self.states[env_id] = state
        if state is EnvState.RUN:
            self.not_running.discard(env_id)
        else:
            self.not_running.add(env_id)

    def running_ids(self) -> list[int]:
        """Return the ids of the envs in RUN, ascending."""
        out = self.not_running
        return [env_id for env_id in self.all_ids if env_id not in out] if out else list(self.all_ids)

    def episodes_left(self, env_id: int) -> float:
        """Return how many episodes are left until the env is DONE; not above 0 if it is DONE already."""
        return self.episode_num - self.counts[env_id]

    def count_end(self, env_id: int) -> bool:
        """Count an episode that has ended.

        Returns:
            True if the env has another episode; False if that was the last one, and the env is DONE now.
        """
        self.counts[env_id] += 1
        if self.counts[env_id] >= self.episode_num:
            self.set_state(env_id, EnvState.DONE)
            return False
        return True

    def save(self) -> dict[str, Any]:
        """Return states and counts, as `load` takes them."""
        return {"states": self.states, "counts": self.counts}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue with the result of `save`."""
        self.counts.update(saved["counts"])
        for env_id, state in saved["states"].items():
            self.set_state(env_id, state)
