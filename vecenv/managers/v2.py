"""V2 managers: the same envs, with actions as one sequence and observations as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SpaceError
from ..registry import ENV_MANAGER_REGISTRY
from ..tree import TreeArray
from .base import BaseEnvManager
from .life import EnvLife
from .subprocess import SyncSubprocessEnvManager

__all__ = ["BaseEnvManagerV2", "SubprocessEnvManagerV2"]


class TreeSteps(EnvLife):
    """Sequences in, trees out; goes before a manager in the list of bases."""

    @property
    def ready_obs(self) -> Any:
        """Newest observations of the envs that can be stepped, in the order of `ready_obs_id`.

        Leaves (B, *S): a TreeArray for Dict and Tuple spaces, else one array; B is 0 when no env is
        ready. Usually it is the last batch as it came; do not write to it.
        """
        pool = self._open_pool("ready_obs")
        ids = self.ready_obs_id
        if not ids:
            return _as_tree(pool.obs_spec.batch(lambda leaf: np.empty((0, *leaf.shape), leaf.dtype), lambda _: ()))
        if self._shown_batch is None:
            return TreeArray.stack([_as_tree(self._shown[env_id]) for env_id in ids])
        whole = _as_tree(self._shown_batch)
        return whole if len(ids) == self.env_num else whole[ids]

    def step(self, actions: Any) -> list[TreeArray]:
        """Step envs and wait for all of them.

        Args:
            actions: one per ready env in the order of `ready_obs_id`, as a sequence, an array or a
                tree of arrays (B, ...); or a dict by env id, for these envs only.

        Returns:
            One tree per env, in the order asked: `obs`, `reward` float32 (1,), `done` bool (),
            `info`, `env_id` int64 (). Keys of `info` are made identifiers.

        Raises:
            SpaceError: a wrong number of actions.
            Exception: as `step` of the manager with dicts.
        """
        self._open_pool("step")
        ids, values = self._read_actions(actions)
        if not ids:
            return []
        timesteps = self._step_envs(ids, values)
        done = np.array([timestep.done for timestep in timesteps])
        env_ids = np.array(ids, np.int64)
        infos = _info_trees([timestep.info for timestep in timesteps])
        is_nested = isinstance(timesteps[0].obs, dict | tuple)
        return TreeArray.from_rows(
            {
                "obs": _as_tree(obs) if is_nested else obs,
                "reward": reward,
                "done": done[row, ...],
                "info": infos[row],
                "env_id": env_ids[row, ...],
            }
            for row, (obs, reward, _, _) in enumerate(timesteps)
        )

    if TYPE_CHECKING:

        def _step_envs(self, ids: list[int], actions: Sequence[Any]) -> list[Any]: ...

    def _read_actions(self, actions: Any) -> tuple[list[int], Sequence[Any]]:
        if isinstance(actions, Mapping) and all(key in self._env_states for key in actions):
            return list(actions), [_plain(action) for action in actions.values()]
        ids = self.ready_obs_id
        if isinstance(actions, Mapping | TreeArray) or hasattr(actions, "json"):
            actions = TreeArray(actions).split()
        values = list(actions)
        if not _SIMPLE.issuperset(map(type, values)):
            values = [_plain(action) for action in values]
        if len(values) != len(ids):
            raise SpaceError(
                f"actions: expected {len(ids)}, one per ready env {ids}, got {len(values)}", path="actions"
            )
        return ids, values


_SIMPLE = frozenset((bool, int, float, np.bool_, np.int64, np.float32, np.float64))
#: Keys of infos -> the same as identifiers; envs use a handful of combinations.
_names: dict[tuple[str, ...], tuple[str, ...]] = {}
_MOST_NAMES = 1000


def _info_trees(infos: list[dict[str, Any]]) -> list[TreeArray]:
    """Make infos trees; the usual ones, empty or of a few numbers, in a microsecond each."""
    rows: list[dict[str, Any]] = []
    for info in infos:
        if not info:
            rows.append({})
        elif _SIMPLE.issuperset(map(type, info.values())):
            names = _names.get(tuple(info)) or _learn_names(info)
            rows.append(dict(zip(names, map(np.asarray, info.values()))))
        else:
            rows.append(dict(TreeArray(info, identifiers=True).items()))
    return TreeArray.from_rows(rows)


def _learn_names(info: dict[str, Any]) -> tuple[str, ...]:
    names = tuple(TreeArray(info, identifiers=True).keys())
    if len(_names) < _MOST_NAMES:
        _names[tuple(info)] = names
    return names


def _plain(action: Any) -> Any:
    """Give a tree as the nested dict that an env expects."""
    return action.json() if hasattr(action, "json") else action


def _as_tree(nested: Any) -> Any:
    """Give dicts and tuples as trees; arrays and other values as they are."""
    return TreeArray(nested) if isinstance(nested, dict | tuple) else nested


@ENV_MANAGER_REGISTRY.register("base_v2")
class BaseEnvManagerV2(TreeSteps, BaseEnvManager):
    """`BaseEnvManager` with batches: `step` takes actions in the order of `ready_obs_id`.

    Example:
        >>> import gymnasium
        >>> with BaseEnvManagerV2([lambda: gymnasium.make("CartPole-v1")] * 3) as manager:
        ...     manager.launch()
        ...     trees = manager.step([0, 1, 0])
        ...     manager.ready_obs.shape, [tree.env_id.item() for tree in trees]
        ((3, 4), [0, 1, 2])
    """


@ENV_MANAGER_REGISTRY.register("subprocess_v2")
class SubprocessEnvManagerV2(TreeSteps, SyncSubprocessEnvManager):
    """`SyncSubprocessEnvManager` with batches: `step` takes actions in the order of `ready_obs_id`."""
