"""ShardedEpisodes: the driver's end of an evaluation with where='shards': each shard plays a part of the seeds.

    seeds -> TaskCall -> ShardPlayer of each shard -> Played -> EpisodeResult

A shard gets its seeds once. Further calls return the episodes that have ended since then. If a shard is lost, its
successor gets the seeds whose episodes have not arrived.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from ..core.layout.messages import unpack_error
from ..core.shards.requests import RunTask
from ..core.shards.task_calls import TaskCall
from ..errors import add_notes, warn_caller
from ..vector.env import VectorEnv
from ..vector.shard_tasks import ShardTask
from .result import EpisodeResult
from .shard_player import Played, ShardPlayer

__all__ = ["ShardedEpisodes"]

#: Calls of each shard: one that runs, and one ahead.
_NUM_CALLS = 2


class ShardedEpisodes:
    """Plays one episode per seed in the shards of a vector env; seed k belongs to the shard of env k modulo N.

    Args:
        envs: with shards; no step or reset is outstanding.
        make_policy: makes the policy of each shard.
        max_steps, batch_rows: as for `evaluate`.
        has_generators: as for `PolicyRows`.

    Raises:
        ConfigError: `make_policy` does not pickle.
    """

    def __init__(
        self,
        envs: VectorEnv,
        make_policy: Any,
        seeds: Sequence[int],
        *,
        max_steps: int | None,
        batch_rows: int | None,
        has_generators: bool,
    ) -> None:
        self._envs = envs
        self._task = ShardTask(
            *(envs, "evaluate", ShardPlayer, make_policy),
            max_steps=max_steps,
            batch_rows=batch_rows,
            has_generators=has_generators,
            has_statistics=envs.results.has_statistics,
        )
        shard_of = [info.shard for info in envs.shards() for _ in info.env_ids]
        self._left: list[list[int]] = [
            [] for _ in envs.shards()
        ]  # one per shard: seeds whose episodes have not arrived
        for number, seed in enumerate(seeds):
            self._left[shard_of[number % len(shard_of)]].append(seed)
        self._generations = [-1] * len(self._left)  # one per shard: of the process that has the seeds
        self._under_way: list[TaskCall] = []

    def play(self) -> Iterator[EpisodeResult]:
        """Yield each episode when it has arrived.

        Raises:
            Exception: as from `evaluate`; those of shards have an attribute `shard`, and name it in their notes.
        """
        for _ in range(_NUM_CALLS):
            for shard, seeds in enumerate(self._left):
                if seeds:
                    self._submit(shard)
        self._envs.note_steps_in_shards()
        while self._under_way:
            try:
                self._envs.pool.wait_for_task(self._under_way)
            except BaseException:  # Ctrl-C, too
                yield from self._take_done()[0]
                raise
            episodes, errors = self._take_done()
            yield from episodes
            if errors:
                add_notes(errors[0], [f"another shard raised {type(one).__name__}: {one}" for one in errors[1:]])
                raise errors[0]

    def _submit(self, shard: int) -> None:
        call = TaskCall(shard, functools.partial(self._make_request, shard))
        self._under_way.append(call)
        self._envs.pool.submit_task(call)

    def _make_request(self, shard: int, generation: int) -> tuple[RunTask, Any]:
        is_new = generation != self._generations[shard]
        self._generations[shard] = generation
        seeds = None
        if is_new:
            arrived = {one.seed for call in self._under_way if call.shard == shard for one in _episodes_of(call)}
            seeds = tuple(seed for seed in self._left[shard] if seed not in arrived)
        return self._task.operation(seeds, is_new=is_new), None

    def _take_done(self) -> tuple[list[EpisodeResult], list[Exception]]:
        """Return the episodes and the exceptions that have arrived, and have shards continue."""
        done = [call for call in self._under_way if call.is_done]
        episodes: list[EpisodeResult] = []
        errors: dict[int, Exception] = {}  # one per shard
        for call in done:
            found = _episodes_of(call)
            episodes += found
            ended = {episode.seed for episode in found}
            self._left[call.shard] = [seed for seed in self._left[call.shard] if seed not in ended]
            played: Played | None = call.value
            error = call.error
            if played is not None and played.error is not None:
                error = unpack_error(played.error)
            if error is not None:
                errors.setdefault(call.shard, self._task.locate(error, call))
        self._under_way = [call for call in self._under_way if not call.is_done]
        if not errors:
            for call in done:
                if call.value.has_more:
                    self._submit(call.shard)
                for text in call.value.warnings:
                    warn_caller(text, RuntimeWarning)
        return episodes, list(errors.values())


def _episodes_of(call: TaskCall) -> list[EpisodeResult]:
    """Return the episodes of a call that has ended; [] before its end."""
    return [] if call.value is None else call.value.episodes
