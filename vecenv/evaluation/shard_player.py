"""ShardPlayer: the shard's end of an evaluation with where='shards': a policy, and the loop of its episodes.

seeds -> Episodes, policy -> episodes that have ended -> Played
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..core.layout.messages import pack_error
from ..core.shards.recorded_pool import RecordedPool
from ..core.shards.requests import PackedError
from ..core.system.clock import now_ns
from ..gymnasium_api.registrations import has_own_batches
from ..policies import check_policy, evaluation_mode
from ..values.pickling import load_with_main
from ..vector.infos import InfoReader
from ..vector.results import ConcatenatedResults, Results
from ..vector.shard_envs import ShardEnvs
from .episodes import Episodes
from .policy_rows import PolicyRows
from .result import EpisodeResult

__all__ = ["CALL_NS", "Played", "ShardPlayer"]

#: Least time of one call, unless all episodes end. Other calls of the envs wait for it, and progress is shown as often.
CALL_NS = 200_000_000


@dataclass
class Played:
    """The result of one call.

    Attributes:
        episodes: those that have ended, in their order.
        has_more: whether episodes are under way, or have not begun.
        warnings: the texts of warnings.
        error: the exception that has ended the episodes under way, or None.
    """

    episodes: list[EpisodeResult] = field(default_factory=list)
    has_more: bool = False
    warnings: list[str] = field(default_factory=list)
    error: PackedError | None = None


class ShardPlayer:
    """Plays the episodes of one shard, in several calls; envs owe nothing between two calls.

    Args:
        make_policy: pickled, see `pickling.dump_with_main`.
        pool: of the shard.
        max_steps, batch_rows: as for `evaluate`.
        has_generators: as for `PolicyRows`.
        has_statistics: whether infos have the statistics of ended episodes.
    """

    def __init__(
        self,
        make_policy: bytes,
        pool: RecordedPool,
        *,
        max_steps: int | None,
        batch_rows: int | None,
        has_generators: bool,
        has_statistics: bool,
    ) -> None:
        make: Callable[[], Any] = load_with_main(make_policy)
        self._policy = make()
        self._rows = PolicyRows(
            check_policy(self._policy, "evaluate"),
            pool.action_space,
            "evaluate",
            has_generators=has_generators,
            batch_rows=batch_rows,
            first_env_id=pool.first_env_id,
        )
        space = pool.observation_space
        make_results = ConcatenatedResults if has_own_batches(space) else Results
        results = make_results(pool.pool, InfoReader(space), space, False, False, has_statistics)
        self._pool, self._envs = pool, ShardEnvs(pool, results)
        self._max_steps = max_steps
        self._warnings: list[str] = []
        self._episodes: Episodes | None = None

    def __call__(self, seeds: tuple[int, ...] | None, _shared: Any) -> Played:
        """Play for a short time; an exception of the policy or of an env is part of the result.

        `seeds` are those of the episodes that begin now and later; None: episodes continue where the last call ended.
        """
        if seeds is not None:
            self._episodes = Episodes(
                self._envs, self._rows, seeds, timeout=None, max_steps=self._max_steps, warn=self._note_warning
            )
        self._pool.obs = ()  # no step follows, so the newest observations are not needed
        played = Played()
        episodes = self._episodes
        if episodes is None:  # the call before has raised
            return played
        until_ns = now_ns() + CALL_NS
        try:
            with evaluation_mode(self._policy):
                while episodes.has_more:
                    for episode in episodes.play_round():
                        played.episodes.append(episode)
                    if now_ns() >= until_ns:
                        break
            played.has_more = episodes.has_more
        except BaseException as error:  # also an exit: the evaluation raises it
            played.error, self._episodes = pack_error(error), None
            self._pool.finish()
        played.warnings, self._warnings = self._warnings, []
        return played

    def _note_warning(self, text: str, _category: type[Warning]) -> None:
        self._warnings.append(text)
