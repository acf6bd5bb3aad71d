"""V2 managers: the same envs, with actions as one sequence and observations as one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..core.layout.spec import DictNode, Leaf, Node, Spec, TupleNode
from ..errors import SpaceError, require
from ..registry import ENV_MANAGER_REGISTRY
from ..tree import TreeArray, only_numbers
from .base import BaseEnvManager
from .build import Builder, numbers_of
from .launch import EnvLife
from .options import BASE_CONFIG, PROCESS_CONFIG, V2_CONFIG
from .subprocess import SyncSubprocessEnvManager
from .timesteps import TimestepBuffers

__all__ = ["BaseEnvManagerV2", "SubprocessEnvManagerV2"]


_FIELDS = ("obs", "reward", "done", "info", "env_id")


class TreeTimestepBuffers(TimestepBuffers):
    """The same as trees."""

    __slots__ = ("_done",)

    def _make(self, obs: Any) -> None:
        count = len(self.ids)
        rewards = self._reward_array
        self.rows, self.rewards = list(obs), list(rewards) if rewards.ndim > 1 else numbers_of(rewards)
        self._done = np.zeros(count, np.bool_)
        env_ids = np.array(self.ids, np.int64)
        builder = self._layout.builder
        trees = tree_rows(builder, self._layout.spec, self.batch, self.rows)
        columns = (trees, self.rewards, self._done, builder.trees(count, (), ()), env_ids)
        self.infos = [{} for _ in range(count)]
        self.results = builder.trees(count, _FIELDS, columns)

    def replace(self, row: int, obs: Any, reward: Any, done: bool) -> None:
        """Make one result anew."""
        tree = self.results[row]
        self.rows[row], self._done[row] = obs, done
        tree["obs"], tree["reward"] = obs, reward

    def _put_reward(self, row: int, reward: Any) -> None:
        self.rewards[row] = self.results[row]["reward"] = reward

    def put_obs(self, row: int, obs: Any) -> None:
        """Put a copy in the place of one result's observation."""
        self.rows[row] = self.results[row]["obs"] = obs

    def put_info(self, row: int, info: Any) -> None:
        """Put something else in the place of one result's info: a sequence, one per agent."""
        self.infos[row] = info

    def finish(self) -> list[Any]:
        """Return the results; infos are complete now."""
        for row, info in enumerate(self.infos):
            if isinstance(info, dict):
                if info:
                    self.results[row]["info"] = _info_tree(info)
            else:  # one per agent; anywhere else a tuple would become a tree
                children = {**dict(self.results[row].items()), "info": _info_trees(info)}
                self.results[row] = TreeArray.from_rows([children])[0]
        return self.results


class TreeSteps(EnvLife):
    """Sequences in, trees out; goes before a manager in the list of bases.

    With the config key `trees` 'treetensor' both `ready_obs` and the results of `step` are that
    library's `treetensor.numpy.ndarray`, as `treetensor.torch.as_tensor` takes them, and infos are
    without what is no number; by default they are of this library.
    """

    _buffers_class: ClassVar[type[TimestepBuffers]] = TreeTimestepBuffers

    def __init__(self, env_fn: Sequence[Callable[[], Any]], cfg: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_fn, cfg)
        self._gives_treetensors = self._cfg.get("trees") == "treetensor"
        if self._gives_treetensors:
            require("treetensor.numpy", "treetensor")

    @property
    def ready_obs(self) -> Any:
        """Newest observations of the envs that can be stepped, in the order of `ready_obs_id`.

        Leaves (B, *S): a tree for Dict and Tuple spaces, else one array; B is 0 when no env is
        ready. Usually it is the last batch as it came; do not write to it.
        """
        obs = self._ready_batch()
        return obs.to_treetensor() if self._gives_treetensors and isinstance(obs, TreeArray) else obs

    def _ready_batch(self) -> Any:
        pool = self._open_pool("ready_obs")
        ids = self.ready_obs_id
        if not ids:
            return _as_tree(pool.obs_spec.batch(lambda leaf: np.empty((0, *leaf.shape), leaf.dtype), lambda _: ()))
        whole = self._shown.stacked(ids)
        if whole is None:
            return TreeArray.stack([_as_tree(self._shown.rows[env_id]) for env_id in ids])
        return _as_tree(whole)

    def step(self, actions: Any) -> list[Any]:
        """Step envs and wait for all of them.

        Args:
            actions: one per ready env in the order of `ready_obs_id`, as a sequence, an array or a
                tree of arrays (B, ...); or a dict by env id, for these envs only.

        Returns:
            One tree per env, in the order asked: `obs`, `reward` float32 (1,) or of the reward
            space's shape, `done` bool (), `info`, `env_id` int64 (). Keys of `info` are made
            identifiers; a list or tuple of infos, one per agent, stays one, of trees
            (of treetensor's: a tree `_0`, `_1`).

        Raises:
            SpaceError: a wrong number of actions.
            Exception: as `step` of the manager with dicts; `timesteps`, {env_id: tree}, has what the other envs
                answered where one raised.
        """
        self._open_pool("step")
        ids, values = self._read_actions(actions)
        if not ids:
            return []
        return self._hand_out(self._step_envs(ids, values))

    def _hand_out(self, timesteps: list[Any]) -> list[Any]:
        """Give trees of the library that was asked for."""
        return list(map(_as_treetensor, timesteps)) if self._gives_treetensors else timesteps

    if TYPE_CHECKING:

        def _step_envs(self, ids: list[int], actions: list[Any]) -> list[Any]: ...

    def _read_actions(self, actions: Any) -> tuple[list[int], list[Any]]:
        if isinstance(actions, Mapping) and all(isinstance(key, int | np.integer) for key in actions):
            return list(actions), [self._plain(action) for action in actions.values()]
        ids = self.ready_obs_id
        if isinstance(actions, Mapping | TreeArray) or hasattr(actions, "json"):
            actions = TreeArray(actions).split()
        if not isinstance(actions, Iterable):
            raise SpaceError(f"actions: expected one per ready env {ids}, got {actions!r}", path="actions")
        values = list(actions)
        if not _SIMPLE.issuperset(map(type, values)):
            values = [self._plain(action) for action in values]
        if len(values) != len(ids):
            raise SpaceError(
                f"actions: expected {len(ids)}, one per ready env {ids}, got {len(values)}", path="actions"
            )
        return ids, values

    def _plain(self, action: Any) -> Any:
        """Give a tree as the nested value that an env expects."""
        return _untree(self._open_pool("step").action_spec.root, action.json()) if hasattr(action, "json") else action


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


def _info_trees(infos: Any) -> Any:
    """Make each agent's info a tree; they stay the list or the tuple that they are."""
    return type(infos)(_info_tree(info) if isinstance(info, dict) else info for info in infos)


def _learn_names(info: dict[str, Any]) -> tuple[str, ...]:
    names = tuple(TreeArray(info, identifiers=True).keys())
    if len(_names) < _MOST_NAMES:
        _names[tuple(info)] = names
    return names


def _as_treetensor(tree: TreeArray) -> Any:
    info = only_numbers(TreeArray(info=tree["info"]))
    return TreeArray({**dict(tree.items()), **dict(info.items())}).to_treetensor()


def _untree(node: Node, value: Any) -> Any:
    """Undo what a tree does to a value of the space: tuples became dicts `_0`, `_1`, and keys strings."""
    if not isinstance(value, dict):
        return value
    if isinstance(node, TupleNode) and value.keys() == {f"_{i}" for i in range(len(node.children))}:
        return tuple(_untree(child, value[f"_{i}"]) for i, child in enumerate(node.children))
    if isinstance(node, DictNode):
        known = {str(key): (key, child) for key, child in zip(node.keys, node.children)}
        if value.keys() == known.keys():
            return {key: _untree(child, value[name]) for name, (key, child) in known.items()}
    return value


def _as_tree(nested: Any) -> Any:
    """Give dicts and tuples as trees; arrays and other values as they are."""
    return TreeArray(nested) if isinstance(nested, dict | tuple) else nested


def tree_rows(builder: Builder, spec: Spec, batch: Any, rows: list[Any]) -> list[Any]:
    """Give rows of observations as trees; `batch` is what they were cut from, None if there is no such thing."""
    if isinstance(spec.root, Leaf):
        return rows
    if batch is None:
        return [_as_tree(row) for row in rows]
    found: list[Any] = _cut(builder, spec.root, batch, len(rows))
    return found


def _cut(builder: Builder, node: Node, nested: Any, count: int) -> Any:
    """Return a column for `Builder.trees`."""
    if isinstance(node, DictNode):
        names = tuple(str(key) for key in node.keys)
        parts = [nested[key] for key in node.keys]
    elif isinstance(node, TupleNode):
        names, parts = tuple(f"_{i}" for i in range(len(node.children))), list(nested)
    else:
        return list(nested) if nested.ndim > 1 else nested
    columns = tuple(_cut(builder, child, part, count) for child, part in zip(node.children, parts))
    return builder.trees(count, names, columns)


@ENV_MANAGER_REGISTRY.register("base_v2")
class BaseEnvManagerV2(TreeSteps, BaseEnvManager):
    """`BaseEnvManager` with batches: `step` takes actions in the order of `ready_obs_id`.

    Its config has the key `trees`, see `TreeSteps`.

    Example:
        >>> import gymnasium
        >>> with BaseEnvManagerV2([lambda: gymnasium.make("CartPole-v1")] * 3) as manager:
        ...     manager.launch()
        ...     trees = manager.step([0, 1, 0])
        ...     manager.ready_obs.shape, [tree.env_id.item() for tree in trees]
        ((3, 4), [0, 1, 2])
    """

    config: ClassVar[dict[str, Any]] = {**BASE_CONFIG, **V2_CONFIG}


@ENV_MANAGER_REGISTRY.register("subprocess_v2")
class SubprocessEnvManagerV2(TreeSteps, SyncSubprocessEnvManager):
    """`SyncSubprocessEnvManager` with batches: `step` takes actions in the order of `ready_obs_id`.

    Its config has the key `trees`, see `TreeSteps`.
    """

    config: ClassVar[dict[str, Any]] = {**PROCESS_CONFIG, **V2_CONFIG}
