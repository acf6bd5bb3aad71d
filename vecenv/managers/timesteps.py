"""Timesteps: takes a batch apart into what the callers of managers get, one value per env.

Stands behind the batch on the data path. While the parent builds objects, the workers wait for
their next actions. So what does not depend on the answers is built before they come, while the
envs step (`TimestepBuffers`); then numbers are copied into it and the few rows that differ are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..core.layout.rows import RowFlag, RowRange, Rows
from ..core.layout.spec import Array, DictNode, Leaf, Node, Spec, TupleNode, pick_rows
from ..core.parent.batch import Batch
from ..envs.base import BaseEnvTimestep
from ..nested import copy_arrays
from .build import Builder, numbers_of
from .side_values import REWARD

__all__ = ["TimestepBuffers", "Layout", "Seen", "Views", "final_rows", "mark_end", "split_rows"]

_FLOAT32 = np.dtype(np.float32)
#: Flags of rows that may have an info.
HAS_INFO = RowFlag.INFO | RowFlag.FINAL_INFO | RowFlag.MESSAGE
#: What `info['recovered']` says of an env that was built anew and not brought to where it was.
BUILT_ANEW = ("truncated", "restarted")


def fill_arrays(target: Any, source: Any) -> None:
    """Copy the arrays of a nested batch into those of another."""
    if isinstance(target, np.ndarray):
        target[...] = source
    elif isinstance(target, dict):
        for key, part in target.items():
            fill_arrays(part, source[key])
    else:
        for part, own in zip(target, source):
            fill_arrays(part, own)


def split_rows(spec: Spec, nested: Any, count: int) -> list[Any]:
    """Cut a batch nested as its space is into one nested value per row, views of its arrays."""
    return _split(spec.root, nested, count)


def _split(node: Node, nested: Any, count: int) -> list[Any]:
    if isinstance(node, DictNode) and node.keys:
        columns = [_split(child, nested[key], count) for key, child in zip(node.keys, node.children)]
        return [dict(zip(node.keys, row)) for row in zip(*columns)]
    if isinstance(node, TupleNode) and node.children:
        return list(zip(*[_split(child, part, count) for child, part in zip(node.children, nested)]))
    if isinstance(node, DictNode | TupleNode):  # an empty space
        return [type(nested)() for _ in range(count)]
    return list(nested)


def final_rows(spec: Spec, batch: Batch, rows: Array) -> list[Any]:
    """Return the observations that ended the episodes of these rows, with memory of their own."""
    root = spec.root
    if isinstance(root, Leaf):
        finals = batch.rows.final(0).take(rows, 0)
        return [finals[i] for i in range(len(finals))]  # `list` of a few comes to its end by an exception
    return split_rows(spec, pick_rows(root, batch.final_obs, rows), len(rows))


def infos_of(batch: Batch) -> list[dict[str, Any]]:
    """Return each row's info: that of the step, not that of an automatic reset within it."""
    if not batch.flags & HAS_INFO:
        return [{} for _ in range(len(batch))]
    infos = batch.infos()
    if batch.flags & RowFlag.FINAL:
        final_infos = batch.final_infos()
        for row in np.flatnonzero(batch.row_flags & RowFlag.FINAL).tolist():
            infos[row] = final_infos[row]
    return infos


def mark_end(info: dict[str, Any], terminated: bool, truncated: bool) -> None:
    """Say in an info how the episode ended, keeping what the env says itself."""
    info.setdefault("terminated", terminated)
    info.setdefault("truncated", truncated)
    info.setdefault("TimeLimit.truncated", truncated and not terminated)


class Seen(NamedTuple):
    """What every batch is looked at for: views of its rows.

    Attributes:
        obs: observations, if they are one array.
        rewards, terminated, truncated: columns.
    """

    obs: Array | None
    rewards: Array
    terminated: Array
    truncated: Array


#: Of whole blocks.
Views: TypeAlias = dict[Rows, Seen]


class Layout:
    """What the results of one manager's steps look like; found out once.

    Attributes:
        builder: makes the results.
        num_envs: rows of a step of all envs.
        shapes_of_all: `shapes(num_envs)`.
        views: what `look_at` has found of whole blocks; making views costs more than copying a few rows.
        copies: whether observations get memory of their own.
        is_early: whether their arrays can be made before they come. Views on request, single
            numbers and values without layout have to be taken as they are.
        is_untyped: whether values are not as their spaces say; then rewards may come in infos.
        leaf: the only leaf, if an observation is one array.
    """

    __slots__ = (
        *("_reward_shape", "builder", "copies", "is_early", "is_untyped", "leaf", "num_envs", "shapes_of_all"),
        *("spec", "views"),
    )

    def __init__(
        self,
        spec: Spec,
        reward_shape: tuple[int, ...],
        num_envs: int,
        builder: Builder,
        views: Views,
        *,
        copies: bool,
        is_untyped: bool,
    ) -> None:
        self.spec = spec
        self.builder = builder
        self.copies = copies
        self.is_untyped = is_untyped
        self.is_early = copies and spec.is_all_arrays and all(leaf.shape for leaf in spec.leaves)
        self.leaf = spec.root if isinstance(spec.root, Leaf) else None
        self.num_envs = num_envs
        self._reward_shape = reward_shape
        self.shapes_of_all = self.shapes(num_envs)
        self.views = views

    def look_at(self, rows: Rows) -> Seen:
        """Return views of a batch's rows; those of a whole block are kept."""
        obs = None if self.leaf is None else rows.obs(0)
        seen = Seen(obs, rows.column("reward"), rows.column("terminated"), rows.column("truncated"))
        if type(rows) is RowRange and rows.count == self.num_envs:
            self.views[rows] = seen
        return seen

    def shapes(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of `count` rewards and of as many observations that are one array."""
        return (count, *self._reward_shape), (count, *(() if self.leaf is None else self.leaf.shape))


class TimestepBuffers:
    """The timesteps of one step, made while the envs are busy with it; `fill` puts the answers in.

    Attributes:
        batch: observations as one batch (B, *S), nested like the space; None if some have no layout.
        ids, rows, rewards: env, observation and reward of each row; float32 unless the env's are loose.
        infos: one dict per row, the very one of its result; until `put_info` says else.
        results: one timestep per row.
    """

    # For the few envs of a small manager every microsecond counts: no dict, and nothing is set twice.
    __slots__ = ("_layout", "_reward_array", "batch", "ids", "infos", "results", "rewards", "rows")

    batch: Any
    rows: list[Any]
    rewards: list[Any]
    infos: list[Any]
    results: list[Any]

    def __init__(self, ids: Sequence[int], layout: Layout) -> None:
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
                self._make(split_rows(spec, self.batch, count))

    def _make(self, obs: Any) -> None:
        """Make the results, of steps that go on, and their infos, from rows of observations."""
        rewards = self._reward_array
        made = self._layout.builder.timesteps(obs, rewards if rewards.ndim > 1 else numbers_of(rewards))
        self.results, self.infos, self.rows, self.rewards = made

    def fill(self, batch: Batch) -> Seen:
        """Put in observations, rewards and infos; return what they were read from."""
        layout = self._layout
        seen = layout.views.get(batch.rows) or layout.look_at(batch.rows)
        obs, rewards = seen.obs, seen.rewards
        target = self._reward_array
        if rewards.ndim == target.ndim:
            target[...] = rewards
        else:  # one number per env, and each of them is to be of shape (1,)
            target[:, 0] = rewards
        if layout.is_early:
            if obs is not None:
                self.batch[...] = obs
            else:
                fill_arrays(self.batch, batch.obs)
        else:
            obs = copy_arrays(batch.obs) if layout.copies else batch.obs
            self.batch = obs if layout.spec.is_all_arrays else None
            self._make(split_rows(layout.spec, obs, len(self.ids)))
        if batch.flags & HAS_INFO:
            for info, own in zip(self.infos, infos_of(batch)):
                info.update(own)
            if layout.is_untyped:
                for row, info in enumerate(self.infos):
                    if REWARD in info:
                        self._put_reward(row, info.pop(REWARD))
        return seen

    def _put_reward(self, row: int, reward: Any) -> None:
        self.rewards[row] = reward
        self.results[row] = self.results[row]._replace(reward=reward)

    def end(self, observations: list[Any], ways: Iterable[tuple[int, bool, bool]]) -> None:
        """Make results the last ones of their episodes, with these observations.

        Args:
            observations: one per row.
            ways: (row, terminated, truncated).
        """
        for obs, (row, terminated, truncated) in zip(observations, ways):
            self.replace(row, obs, self.rewards[row], True)
            mark_end(self.infos[row], terminated, truncated)

    def replace(self, row: int, obs: Any, reward: Any, done: bool) -> None:
        """Make one result anew."""
        self.rows[row] = obs
        self.results[row] = BaseEnvTimestep(obs, reward, done, self.infos[row])

    def put_obs(self, row: int, obs: Any) -> None:
        """Put a copy in the place of one result's observation."""
        self.rows[row] = obs
        self.results[row] = self.results[row]._replace(obs=obs)

    def put_info(self, row: int, info: Any) -> None:
        """Put something else in the place of one result's info: a sequence, one per agent."""
        self.infos[row] = info
        self.results[row] = self.results[row]._replace(info=info)

    def obs_of(self, row: int) -> Any:
        """Return the observation that a result has now."""
        return self.results[row].obs

    def finish(self) -> list[Any]:
        """Return the results; infos are complete now."""
        return self.results
