"""ShardTimes: the times of envs and workers of all shards, joined in the order of env ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ...statistics import Durations, EnvTimes, WorkerTimes

__all__ = ["ShardTimes"]


class ShardTimes:
    """The newest times of each shard, which it sends on request.

    Args:
        shares: the env ids of each shard, which are consecutive.
    """

    def __init__(self, shares: Sequence[Sequence[int]]) -> None:
        self._num_shards = len(shares)
        self._found: dict[int, tuple[EnvTimes, WorkerTimes]] = {}  # times by shard
        self._awaited: set[int] = set()
        self._number = 0  # number of the newest question

    def await_from(self, shards: Collection[int]) -> int:
        """Note that these shards are asked for their times; return the number of the question."""
        self._awaited = set(shards)
        self._number += 1
        return self._number

    def is_awaited(self) -> bool:
        """Return whether a shard has not answered the newest question."""
        return bool(self._awaited)

    def take(self, shard: int, number: int, envs: EnvTimes, workers: WorkerTimes) -> None:
        """Take the answer of a shard to the question of that number; older ones may be answered late."""
        self._found[shard] = envs, workers
        if number == self._number:
            self._awaited.discard(shard)

    def forget(self, shard: int) -> None:
        """Expect no answer from a shard: its process was lost."""
        self._awaited.discard(shard)

    def join(self) -> tuple[EnvTimes, WorkerTimes] | None:
        """Return the newest times of all shards; None until each one has answered once.

        Workers are numbered through all shards.
        """
        if len(self._found) < self._num_shards:
            return None
        found = [self._found[shard] for shard in range(self._num_shards)]
        envs, workers = [one for one, _ in found], [one for _, one in found]
        worker_ids, first = [], 0
        for env, worker in found:
            worker_ids.append(np.where(env.worker_id < 0, -1, env.worker_id + first))
            first += len(worker.pid)
        all_envs = EnvTimes(
            step=_join([one.step for one in envs]),
            reset=_join([one.reset for one in envs]),
            cpu_share=np.concatenate([one.cpu_share for one in envs]),
            answer_age=np.concatenate([one.answer_age for one in envs]),
            worker_id=np.concatenate(worker_ids),
            exceptions=np.concatenate([one.exceptions for one in envs]),
        )
        all_workers = WorkerTimes(
            pid=np.concatenate([one.pid for one in workers]),
            num_envs=np.concatenate([one.num_envs for one in workers]),
            busy_share=np.concatenate([one.busy_share for one in workers]),
            waiting_share=np.concatenate([one.waiting_share for one in workers]),
            rss_nbytes=np.concatenate([one.rss_nbytes for one in workers]),
            shard=np.repeat(np.arange(self._num_shards), [len(one.pid) for one in workers]),
        )
        return all_envs, all_workers


def _join(durations: Sequence[Durations]) -> Durations:
    return Durations(
        num=np.concatenate([one.num for one in durations]),
        sum=np.concatenate([one.sum for one in durations]),
        max=np.concatenate([one.max for one in durations]),
        buckets=np.concatenate([one.buckets for one in durations]),
        bounds=durations[0].bounds,
    )
