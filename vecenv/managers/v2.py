"""V2 managers: the same envs, with actions as one sequence and observations as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.spec import DictNode, Leaf, Node, ObjectNode, Spec, TupleNode
from ..errors import SpaceError
from ..registry import ENV_MANAGER_REGISTRY
from ..tree import TreeArray
from .base import BaseEnvManager
from .life import EnvLife
from .subprocess import SyncSubprocessEnvManager
from .timesteps import Blanks

__all__ = ["BaseEnvManagerV2", "SubprocessEnvManagerV2"]


class TreeBlanks(Blanks):
    """The same as trees."""

    def _make(self) -> list[Any]:
        count = len(self.ids)
        self._done = np.zeros(count, np.bool_)
        done, env_ids = self._done, np.array(self.ids, np.int64)
        infos = TreeArray.from_rows([{} for _ in range(count)])
        self._children = [
            {"obs": obs, "reward": reward, "done": done[row, ...], "info": info, "env_id": env_ids[row, ...]}
            for row, (obs, reward, info) in enumerate(zip(tree_rows(self._spec, self.batch, self.rows), self.rewards, infos))
        ]
        return TreeArray.from_rows(self._children)

    def replace(self, row: int, obs: Any, reward: Any, done: bool) -> None:
        """Make one result anew."""
        self._done[row] = done
        self._children[row].update(obs=_as_tree(obs), reward=reward)

    def finish(self) -> list[Any]:
        """Return the results; infos are complete now."""
        for info, children in zip(self.infos, self._children):
            if info:
                children["info"] = _info_tree(info)
        return self.results


class TreeSteps(EnvLife):
    """Sequences in, trees out; goes before a manager in the list of bases."""

    _blanks_class = TreeBlanks

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
        whole = self._shown.stacked(ids)
        if whole is None:
            return TreeArray.stack([_as_tree(self._shown.rows[env_id]) for env_id in ids])
        return _as_tree(whole)

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
        return self._step_envs(ids, values)

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


def _info_tree(info: dict[str, Any]) -> TreeArray:
    """Make an info a tree; the usual ones, of a few numbers, in a microsecond or two."""
    if not _SIMPLE.issuperset(map(type, info.values())):
        return TreeArray(info, identifiers=True)
    names = _names.get(tuple(info)) or _learn_names(info)
    return TreeArray.from_rows([dict(zip(names, map(np.asarray, info.values())))])[0]


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


def tree_rows(spec: Spec, batch: Any, rows: list[Any]) -> list[Any]:
    """Give rows of observations as trees; `batch` is what they were cut from, None if there is no such thing."""
    if isinstance(spec.root, Leaf | ObjectNode):
        return rows
    if batch is None:
        return [_as_tree(row) for row in rows]
    return _cut(spec.root, batch, len(rows))


def _cut(node: Node, nested: Any, count: int) -> list[Any]:
    if isinstance(node, DictNode):
        names: list[str] = [str(key) for key in node.keys]
        columns = [_cut(child, nested[key], count) for key, child in zip(node.keys, node.children)]
    elif isinstance(node, TupleNode):
        names = [f"_{i}" for i in range(len(node.children))]
        columns = [_cut(child, part, count) for child, part in zip(node.children, nested)]
    else:
        return list(nested) if nested.ndim > 1 else [nested[row, ...] for row in range(count)]
    rows = zip(*columns) if columns else [()] * count
    return TreeArray.from_rows([dict(zip(names, row)) for row in rows])


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
