"""Timesteps: makes one timestep per env out of a batch.

It stands behind the batch on the data path. Workers wait for their next actions while the parent builds objects, so
objects that do not depend on the answers are built while the envs step (`TimestepBuffers`). Then the numbers of the
batch are copied into them, and the few timesteps that differ are replaced.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..core.layout.flags import RowFlag
from ..core.layout.rows import AnyRows, RowRange
from ..core.layout.spec import Array, DictNode, Leaf, Node, Spec, TupleNode, pick_rows
from ..core.parent.batch import Batch
from ..core.parent.copy_timer import CopyTimer
from ..core.parent.leases import Leases
from ..envs.base import BaseEnvTimestep
from ..tree import TreeArray
from ..values.nested import copy_arrays, map_structure
from .build import BuildFunctions, numbers_of
from .side_values import REWARD
from .trees import info_tree, info_trees, tree_rows

__all__ = [
    "HAS_INFO",
    "REBUILT",
    "BatchViews",
    "Layout",
    "TimestepBuffers",
    "TreeBuffers",
    "final_rows",
    "mark_end",
    "split_rows",
]

_FLOAT32 = np.dtype(np.float32)
#: Flags of rows that may have an info.
HAS_INFO = RowFlag.INFO | RowFlag.FINAL_INFO | RowFlag.MESSAGE
#: Values of `info['recovered']` of an env that is new and was not restored.
REBUILT = ("truncated", "restarted")


def fill_arrays(target: Any, source: Any) -> None:
    """Copy the arrays of a nested batch into the arrays of another one."""
    if isinstance(target, np.ndarray):
        target[...] = source
    elif isinstance(target, dict):
        for key, part in target.items():
            fill_arrays(part, source[key])
    else:
        for part, own in zip(target, source):
            fill_arrays(part, own)


def split_rows(node: Node, nested: Any, count: int) -> list[Any]:
    """Return the rows of a batch, nested like its space; they are views of its arrays."""
    if isinstance(node, DictNode) and node.keys:
        columns = [split_rows(child, nested[key], count) for key, child in zip(node.keys, node.children)]
        return [dict(zip(node.keys, row)) for row in zip(*columns)]
    if isinstance(node, TupleNode) and node.children:
        return list(zip(*[split_rows(child, part, count) for child, part in zip(node.children, nested)]))
    if isinstance(node, DictNode | TupleNode):  # an empty space
        return [type(nested)() for _ in range(count)]
    return list(nested)


def final_rows(spec: Spec, batch: Batch, rows: Array) -> list[Any]:
    """Return copies of the final observations of these rows."""
    root = spec.root
    if isinstance(root, Leaf):
        finals = batch.rows.final(0).take(rows, 0)
        return [finals[i] for i in range(len(finals))]  # faster than `list` for a few rows
    return split_rows(root, pick_rows(root, batch.final_obs, rows), len(rows))


def infos_of(batch: Batch) -> list[dict[str, Any]]:
    """Return the info of each row's step, not that of an autoreset in the same row."""
    infos = batch.infos()
    if batch.flags & RowFlag.FINAL:
        final_infos = batch.final_infos()
        for row in np.flatnonzero(batch.row_flags & RowFlag.FINAL).tolist():
            infos[row] = final_infos[row]
    return infos


def mark_end(info: dict[str, Any], terminated: bool, truncated: bool) -> None:
    """Add to an info how the episode ended; items that the env has set stay."""
    info.setdefault("terminated", terminated)
    info.setdefault("truncated", truncated)
    info.setdefault("TimeLimit.truncated", truncated and not terminated)


class BatchViews(NamedTuple):
    """Views of the columns that every batch is read for.

    Attributes:
        obs: observations (B, *S) if they are one array, else None.
        rewards, terminated, truncated: columns (B, ...).
    """

    obs: Array | None
    rewards: Array
    terminated: Array
    truncated: Array


@dataclass(eq=False)
class Layout:
    """The layout of the results of one manager; fixed from launch to close.

    Attributes:
        spec: the observation spec.
        reward_shape: shape of one timestep's reward.
        num_envs: number of rows of a step of all envs.
        builder: makes the results.
        leases: lend blocks with large observations to the caller; None: observations are copied.
        is_untyped: values may differ from their spaces; then rewards may come in infos.
        copy_timer: of the pool.
        shapes_of_all: `shapes(num_envs)`.
        views: views of whole blocks by their rows; making views takes longer than copying a few rows.
        is_early: the arrays of observations are made before the batch comes. Those that may be lent, single numbers
            and values without a layout are taken from the batch instead.
        leaf: the only leaf, if an observation is one array.
    """

    spec: Spec
    reward_shape: tuple[int, ...]
    num_envs: int
    builder: BuildFunctions
    leases: Leases[Any] | None
    is_untyped: bool
    copy_timer: CopyTimer | None = None

    def __post_init__(self) -> None:
        spec = self.spec
        self.is_early = self.leases is None and spec.is_all_arrays and all(leaf.shape for leaf in spec.leaves)
        self.leaf = spec.root if isinstance(spec.root, Leaf) else None
        self.shapes_of_all = self.shapes(self.num_envs)
        self.views: dict[AnyRows, BatchViews] = {}

    def make_views(self, rows: AnyRows) -> BatchViews:
        """Return views of a batch's rows; those of a whole block are kept in `views`."""
        obs = None if self.leaf is None else rows.obs(0)
        views = BatchViews(obs, rows.column("reward"), rows.column("terminated"), rows.column("truncated"))
        if type(rows) is RowRange and rows.count == self.num_envs:
            self.views[rows] = views
        return views

    def shapes(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of `count` rewards and of `count` observations that are one array."""
        return (count, *self.reward_shape), (count, *(() if self.leaf is None else self.leaf.shape))


class TimestepBuffers:
    """The timesteps of one step, made while the envs are stepped; `put_batch` copies the answers into them.

    Args:
        ids: the env of each row.
        layout: layout of the results.

    Attributes:
        ids: as the argument.
        batch: observations as one batch (B, *S), nested like the space; None if some have no layout.
        rows: observation of each env.
        rewards: reward of each env; float32 unless rewards are untyped.
        infos: info of each env, the same object as in its timestep until `put_info`.
        results: timestep of each env.
    """

    # For a manager of a few envs every microsecond counts: no __dict__, and each attribute is set once.
    __slots__ = ("_layout", "_reward_array", "batch", "ids", "infos", "results", "rewards", "rows")

    batch: Any
    rows: list[Any]
    rewards: list[Any]
    infos: list[Any]
    results: list[Any]

    def __init__(self, ids: list[int], layout: Layout) -> None:
        self.ids = ids
        self._layout = layout
        count = len(ids)
        reward_shape, obs_shape = layout.shapes_of_all if count == layout.num_envs else layout.shapes(count)
        self._reward_array = np.empty(reward_shape, _FLOAT32)
        if layout.is_early:
            leaf = layout.leaf
            if leaf is not None:
                self.batch = batch = np.empty(obs_shape, leaf.dtype)
                self._make(batch)
            else:
                spec = layout.spec
                self.batch = spec.batch(lambda leaf: np.empty((count, *leaf.shape), leaf.dtype), lambda _: ())
                self._make(split_rows(spec.root, self.batch, count))

    def _make(self, obs: Any) -> None:
        """Make the results and their infos, with done False, from rows of observations."""
        rewards = self._reward_array
        made = self._layout.builder.timesteps(obs, rewards if rewards.ndim > 1 else numbers_of(rewards))
        self.results, self.infos, self.rows, self.rewards = made

    def put_batch(self, batch: Batch) -> BatchViews:
        """Copy the observations, rewards and infos of a batch; return views of its columns."""
        layout = self._layout
        views = layout.views.get(batch.rows) or layout.make_views(batch.rows)
        obs, rewards = views.obs, views.rewards
        target = self._reward_array
        if rewards.ndim == target.ndim:
            target[...] = rewards
        else:  # one number per env, in an array of shape (1,)
            target[:, 0] = rewards
        timer = layout.copy_timer
        if layout.is_early:
            if timer is not None:
                timer.run(len(self.ids), fill_arrays, self.batch, batch.obs if obs is None else obs)
            elif obs is not None:
                self.batch[...] = obs
            else:
                fill_arrays(self.batch, batch.obs)
        else:
            lent = None if layout.leases is None else layout.leases.take(batch.rows)
            if lent is not None:
                assert isinstance(batch.rows, RowRange)
                obs = map_structure(operator.itemgetter(slice(batch.rows.start, batch.rows.stop)), lent)
            else:
                obs = batch.obs
                obs = copy_arrays(obs) if timer is None else timer.run(len(self.ids), copy_arrays, obs)
            self.batch = obs if layout.spec.is_all_arrays else None
            self._make(split_rows(layout.spec.root, obs, len(self.ids)))
        if batch.flags & HAS_INFO:
            for info, own in zip(self.infos, infos_of(batch)):
                info.update(own)
            if layout.is_untyped:
                for row, info in enumerate(self.infos):
                    if REWARD in info:
                        self._put_reward(row, info.pop(REWARD))
        return views

    def _put_reward(self, row: int, reward: Any) -> None:
        self.rewards[row] = reward
        self.results[row] = self.results[row]._replace(reward=reward)

    def end(self, observations: list[Any], ends: Iterable[tuple[int, bool, bool]], *, keeps_final: bool) -> None:
        """Make timesteps the last ones of their episodes.

        Args:
            observations: their observations.
            ends: (row, terminated, truncated) of each.
            keeps_final: whether to add them to the infos, as `final_obs`.
        """
        for obs, (row, terminated, truncated) in zip(observations, ends):
            self.replace(row, obs, self.rewards[row], True)
            mark_end(self.infos[row], terminated, truncated)
            if keeps_final:
                self.infos[row]["final_obs"] = obs

    def replace(self, row: int, obs: Any, reward: Any, done: bool) -> None:
        """Replace all values of a timestep but its info."""
        self.rows[row] = obs
        self.results[row] = BaseEnvTimestep(obs, reward, done, self.infos[row])

    def put_info(self, row: int, info: Any) -> None:
        """Replace the info of a timestep, for example by a list of infos, one per agent."""
        self.infos[row] = info
        self.results[row] = self.results[row]._replace(info=info)

    def finish(self) -> list[Any]:
        """Return the timesteps; infos do not change any more."""
        return self.results


_FIELDS = ("obs", "reward", "done", "info", "env_id")


class TreeBuffers(TimestepBuffers):
    """The same with trees as timesteps."""

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

    def _put_reward(self, row: int, reward: Any) -> None:
        self.rewards[row] = self.results[row]["reward"] = reward

    def replace(self, row: int, obs: Any, reward: Any, done: bool) -> None:
        tree = self.results[row]
        self.rows[row], self._done[row] = obs, done
        tree["obs"], tree["reward"] = obs, reward

    def put_info(self, row: int, info: Any) -> None:
        self.infos[row] = info

    def finish(self) -> list[Any]:
        """Return the timesteps, with their infos as trees."""
        for row, info in enumerate(self.infos):
            if isinstance(info, dict):
                if info:
                    self.results[row]["info"] = info_tree(info)
            else:  # one per agent; an assignment would turn a tuple into a tree
                children = {**dict(self.results[row].items()), "info": info_trees(info)}
                self.results[row] = TreeArray.from_rows([children])[0]
        return self.results
