"""Resets of envs in a pool with spare envs: their arguments, and those that are under way.

    resets of rows -> SpareResets -> resets of their spare envs
                      EnvResets -> Requests, one reset at a time for each env
                                -> first observations, kept until their episodes are delivered

Neither class knows which rows wait for an answer; `SpareEnvs` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..layout.commands import GivenState
from ..layout.spec import Array
from ..operations.engine import EnvSpaces
from ..operations.requests import Requests
from ..parent.batch import Batch
from .queues import SpareQueues
from .rows import AnswerStore

__all__ = ["PLAIN", "SpareResets", "EnvResets", "Reset", "SpareRule"]


class SpareRule(NamedTuple):
    """How many spare envs a front end has, and the seeds that they get.

    Attributes:
        num_spares: number of spare envs. With 0, an env whose episode has ended is reset at once and serves its row
            again.
        derive_seed: derive_seed(seed, k) is the seed of spare env k = 1, 2, ... in the queue of a row with that seed.
        derive_kwargs: the same for keyword arguments of a reset, if they are to reach spare envs.
        env_fns: one constructor per spare env; None: spare env j is built by the constructor of env `j % N`.
    """

    num_spares: int
    derive_seed: Callable[[int, int], int]
    derive_kwargs: Callable[[dict[str, Any], int], dict[str, Any]] | None = None
    env_fns: Sequence[Callable[[], Any]] | None = None


class Reset(NamedTuple):
    """The arguments of one env's reset. Without `has_seed` its `reset` gets no `seed`.

    With a `state`, this is put into the env in place of its reset, and there are no arguments.
    """

    seed: int | None = None
    has_seed: bool = False
    kwargs: dict[str, Any] | None = None
    state: GivenState | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments, without `options=None`."""
        return {name: value for name, value in (self.kwargs or {}).items() if name != "options" or value is not None}

    @property
    def is_plain(self) -> bool:
        """Whether it has neither a seed nor arguments, so that any env that is reset can begin the episode."""
        return self.seed is None and not self.arguments


#: A reset without a seed and arguments.
PLAIN = Reset()


class SpareResets:
    """The resets of spare envs, whose seeds and arguments follow from those of rows.

    Args:
        rule: of the spare envs.
        queues: the spare envs, in the order of their use.

    Attributes:
        queues: as given.
    """

    def __init__(self, rule: SpareRule, queues: SpareQueues) -> None:
        self._rule = rule
        self._num_rows = len(queues.env_of)
        self.queues = queues

    def seed_of(self, first: int, env_id: int, seeds_per_env: int) -> int:
        """Return the drawn seed of an env of the engine; see `Requests`."""
        position, row = divmod(env_id, self._num_rows)
        return self._rule.derive_seed(first + row, position) if position else first + row

    def reach_all_envs(self, resets: Mapping[int, Reset]) -> bool:
        """Return whether resets of these rows reset all envs of the engine."""
        return len(resets) == self._num_rows and all(self._derive(reset, 1) for reset in resets.values())

    def follow(self, resets: Mapping[int, Reset], was_reset: Array) -> list[tuple[int, Reset]]:
        """Return the resets of spare envs that follow from those of rows, as pairs (env_id, reset).

        Args:
            resets: by row.
            was_reset: bool, by env. Spare envs that were never reset are reset, too, with those of their rows.
        """
        queues = self.queues
        found = []
        for row, queue in enumerate(queues.distinct()):
            for position, env_id in enumerate(queue):
                number, owner = (position, row) if queues.are_own else divmod(position, self._num_rows)
                reset = None
                if queues.are_own or len(resets) == self._num_rows:
                    reset = self._derive(resets.get(owner), number + 1)
                if reset is not None or (not was_reset[env_id] and (not queues.are_own or owner in resets)):
                    found.append((env_id, reset or PLAIN))
        return found

    def _derive(self, reset: Reset | None, number: int) -> Reset | None:
        """Return the reset of a spare env that follows from that of a row; None: it is not reset."""
        if reset is None:
            return None
        if self._rule.derive_kwargs is not None and reset.arguments:
            return Reset(None, False, self._rule.derive_kwargs(reset.arguments, number))
        return None if reset.seed is None else Reset(self._rule.derive_seed(reset.seed, number), True)


class EnvResets:
    """Sends resets of envs, one at a time for each env, and keeps first observations.

    A reset that is sent ahead belongs to an episode that its row has not begun to deliver. Its first observation is
    kept. The answer to any other reset is that of a row.

    Args:
        requests: sends the resets.
        num_envs: number of envs of the engine.
        spaces: of one env.

    Attributes:
        postponed: by env_id, the resets to send when the one under way, which was sent ahead, is answered.
        first: first observations, by env.
        has_first: bool (num_envs,), envs whose first observation has arrived.
        is_ahead: bool (num_envs,), envs with a reset under way that was sent ahead.
        was_reset: bool (num_envs,), envs that were reset at least once.
    """

    #: Attributes that a saved pool contains.
    SAVED = ("postponed", "first", "has_first", "is_ahead", "was_reset")

    def __init__(self, requests: Requests, num_envs: int, spaces: EnvSpaces) -> None:
        self._requests = requests
        self.postponed: dict[int, Reset] = {}
        self.first = AnswerStore(num_envs, spaces)
        self.has_first = np.zeros(num_envs, np.bool_)
        self.is_ahead = np.zeros(num_envs, np.bool_)
        self.was_reset = np.zeros(num_envs, np.bool_)

    def send(self, resets: Sequence[tuple[int, Reset]]) -> None:
        """Send resets, pairs (env_id, reset), whose answers are those of rows; those of equal form in one request."""
        states = {env_id: reset.state for env_id, reset in resets if reset.state is not None}
        if states:
            envs = list(states)
            self._requests.set_states(list(states.values()), envs, False)
            self.was_reset[envs] = True
        for has_seed in (False, True):
            some = [one for one in resets if one[1].has_seed == has_seed and one[1].state is None]
            if some:
                envs = [env_id for env_id, _ in some]
                seeds = [reset.seed for _, reset in some] if has_seed else None
                has_kwargs = any(reset.kwargs is not None for _, reset in some)
                kwargs = [reset.kwargs for _, reset in some] if has_kwargs else None
                self._requests.reset(envs, seeds, kwargs, False, 1)
                self.was_reset[envs] = True

    def send_ahead(self, resets: Sequence[tuple[int, Reset]]) -> None:
        """Reset envs whose first observations are kept; after the reset that is under way, if there is one."""
        now = [(env_id, reset) for env_id, reset in resets if not self.is_ahead[env_id]]
        self.postponed.update((env_id, reset) for env_id, reset in resets if self.is_ahead[env_id])
        self.send(now)
        self.is_ahead[[env_id for env_id, _ in now]] = True
        self.has_first[[env_id for env_id, _ in resets]] = False

    def keep_first_obs(self, envs: Array, batch: Batch) -> tuple[Array, list[tuple[int, Reset]]]:
        """Keep the answers of a batch to resets that were sent ahead; `envs`: int64 (n,), the env of each row.

        Returns:
            Indices of the other rows, int64; and the postponed resets that must be sent now, as pairs (env_id, reset).
        """
        is_ahead = self.is_ahead[envs]
        others = np.flatnonzero(~is_ahead)
        if len(others) == len(envs):
            return others, []
        ahead = envs[is_ahead]
        self.is_ahead[ahead] = False
        postponed = [(env_id, self.postponed.pop(env_id)) for env_id in ahead.tolist() if env_id in self.postponed]
        is_kept = is_ahead & ~np.isin(envs, [env_id for env_id, _ in postponed])
        kept = np.flatnonzero(is_kept)
        if len(kept):
            self.first.put(envs[kept], batch, kept)
            self.has_first[envs[kept]] = True
        return others, postponed

    def take_lost(self, is_idle: Array) -> list[tuple[int, Reset]]:
        """Return resets, as pairs (env_id, reset), instead of those whose answers were lost.

        `is_idle`: bool (num_envs,), envs that owe no answer.
        """
        lost = np.flatnonzero(self.is_ahead & is_idle).tolist()
        self.is_ahead[lost] = False
        return [(env_id, self.postponed.pop(env_id, PLAIN)) for env_id in lost]
