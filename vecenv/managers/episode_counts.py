"""Books: which state each env is in and how many episodes it has had; the same for all managers."""

from __future__ import annotations

from collections.abc import Iterable

from .remote_access import EnvAccess
from .states import EnvState

__all__ = ["EnvBooks"]


class EnvBooks(EnvAccess):
    """The part of a manager that counts."""

    _closed = True
    _episode_num: float
    _all_ids: list[int]
    _env_episode_count: dict[int, int]
    _not_running: set[int]

    def _open_books(self, num_envs: int, episode_num: float) -> None:
        """Begin with no env there.

        Args:
            episode_num: episodes after which an env is DONE.
        """
        self._episode_num = episode_num
        self._all_ids = list(range(num_envs))
        self._env_states = dict.fromkeys(self._all_ids, EnvState.VOID)
        self._env_episode_count = dict.fromkeys(self._all_ids, 0)
        self._not_running = set(self._all_ids)  # not in RUN

    @property
    def closed(self) -> bool:
        """Whether there are no envs to step: before launch (`gym_vector`: before reset) and after close."""
        return self._closed

    @property
    def done(self) -> bool:
        """Whether every env has had its `episode_num` episodes."""
        return all(state is EnvState.DONE for state in self._env_states.values())

    @property
    def env_states(self) -> dict[int, EnvState]:
        """State of each env, {env_id: state}; a copy."""
        return dict(self._env_states)

    @property
    def env_episode_count(self) -> dict[int, int]:
        """Episodes that each env has ended since launch (`gym_vector`: since reset), {env_id: count}; a copy."""
        return dict(self._env_episode_count)

    def env_state_done(self, env_id: int) -> bool:
        """Whether this env has had its `episode_num` episodes."""
        return self._env_states[env_id] is EnvState.DONE

    @property
    def ready_obs_id(self) -> list[int]:
        """Ids of the envs that can be stepped, ascending."""
        not_running = self._not_running
        return [env_id for env_id in self._all_ids if env_id not in not_running] if not_running else list(self._all_ids)

    def _set_state(self, env_id: int, state: EnvState) -> None:
        self._env_states[env_id] = state
        if state is EnvState.RUN:
            self._not_running.discard(env_id)
        else:
            self._not_running.add(env_id)

    def _set_states(self, state: EnvState, env_ids: Iterable[int] | None = None) -> None:
        for env_id in self._all_ids if env_ids is None else env_ids:
            self._set_state(env_id, state)

    def _is_last_episode(self, env_id: int) -> bool:
        """Whether the env is DONE when the episode that it is in ends."""
        return self._env_episode_count[env_id] + 1 >= self._episode_num

    def _note_end(self, env_id: int) -> bool:
        """Count an episode that ended; tell whether the env is to have another, else it is DONE."""
        self._env_episode_count[env_id] += 1
        if self._env_episode_count[env_id] >= self._episode_num:
            self._set_state(env_id, EnvState.DONE)
            return False
        return True
