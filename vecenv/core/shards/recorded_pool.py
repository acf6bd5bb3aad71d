"""RecordedPool: the pool of a shard as a task uses it: it records the commands, for the journal of the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import ErrorRows, WorkerError, locate, place_of
from ..layout.commands import Commands, Effect
from ..layout.flags import Autoreset, CommandFlag, Form, Op
from ..layout.spec import Array, Space
from ..parent.batch import Batch, raise_first
from ..pool.pool import Pool
from .requests import Steps

__all__ = ["RecordedPool", "Task"]

#: Argument of a reset that calls `reset(seed=None)`.
_NO_SEED = -1


class RecordedPool:
    """The envs of a shard, for a task; they owe nothing when it begins.

    Ids are those of the shard; recorded commands have those of the driver. Receives raise the exceptions of envs, which
    name envs by their numbers among all envs.

    Args:
        pool: of the shard.
        first_env_id: number of its env 0 among all envs.

    Attributes:
        pool: as given; commands pass the methods here.
        num_envs: n, how many envs; their ids are 0 .. n - 1 here.
        first_env_id: as given.
        observation_space, action_space: of one env.
        reward_shape: of one reward; () for one number.
        autoreset: when an ended env is reset.
        obs: the task stores the newest observations here, one array (n, *S) per leaf, for envs that cannot be restored.
        next_step_id: of the next command.
    """

    def __init__(self, pool: Pool, first_env_id: int) -> None:
        self.pool = pool
        self.num_envs = pool.num_envs
        self.first_env_id = first_env_id
        self.observation_space: Space[Any] = pool.spaces.observation_space
        self.action_space: Space[Any] = pool.spaces.action_space
        self.reward_shape = pool.spaces.reward_shape
        self.autoreset: Autoreset = pool.options.autoreset
        self.obs: tuple[Array, ...] = ()
        self._executed: list[Steps | Commands] = []
        self._rounds: list[tuple[Array, ...]] = []  # actions of the newest steps of all envs, which become one record
        self.next_step_id = 1

    def begin(self, step_id: int) -> None:
        """Begin a task, whose commands have this step_id, or higher ones."""
        self.next_step_id = max(self.next_step_id, step_id)
        self.pool.continue_from(self.next_step_id)

    def step(self, leaves: tuple[Array, ...]) -> Batch:
        """Step all envs; return their rows, ordered by env_id. `leaves`: one array (n, *S) per action leaf."""
        self.pool.send_leaves(leaves)
        self._rounds.append(tuple(leaf.copy() for leaf in leaves))
        self.next_step_id += self.num_envs
        return self._receive(None)

    def send(self, leaves: tuple[Array, ...], env_ids: Array) -> None:
        """Begin to step some envs; `recv` returns their rows. `leaves`: (B, *S), `env_ids`: int64 (B,)."""
        self.pool.send_leaves(leaves, env_ids, ordered=False)
        self._join_rounds()
        first, self.next_step_id = self.next_step_id, self.next_step_id + len(env_ids)
        copies = tuple(leaf.copy() for leaf in leaves)
        step_ids = range(first, self.next_step_id)
        self._executed.append(Steps(step_ids, env_ids + self.first_env_id, copies, int(Form.NATIVE)))

    def _join_rounds(self) -> None:
        """Make one record of the newest steps of all envs: it is pickled and read in the time of a single step."""
        if self._rounds:
            first = self.next_step_id - len(self._rounds) * self.num_envs
            leaves = tuple(np.concatenate(parts) for parts in zip(*self._rounds))
            self._executed.append(Steps(range(first, self.next_step_id), None, leaves, int(Form.NATIVE)))
            self._rounds.clear()

    def reset(self, env_ids: Array, seeds: Sequence[int] | None = None) -> None:
        """Begin to reset some envs; `recv` returns their first observations. `seeds`: one per env; None: no seeds."""
        flags = CommandFlag.SEED | CommandFlag.OPTIONS
        arguments, effects = (_NO_SEED, Effect.ONCE) if seeds is None else (seeds, Effect.SEEDS)
        commands = Commands.of(Op.RESET, env_ids, flags=flags, arguments=arguments, effects=effects)
        commands.number(self.next_step_id)
        self._join_rounds()
        self.pool.send_commands(commands)
        self.next_step_id += len(commands)
        commands.table["env_id"] += self.first_env_id
        self._executed.append(commands)

    def recv(self, min_count: int, timeout: float | None = None) -> Batch:
        """Return rows of at least this number of envs, as they finish; WorkerTimeoutError after `timeout` seconds."""
        return self._receive(min_count, timeout)

    def _receive(self, min_count: int | None, timeout: float | None = None) -> Batch:
        """Receive rows; exceptions of envs and workers name envs by their numbers among all envs."""
        try:
            batch = self.pool.recv(min_count, timeout=timeout)
        except WorkerError as error:
            env_ids = [self.first_env_id + env_id for env_id in error.env_ids]
            locate(error, **{**place_of(error), "env_ids": env_ids})
            raise
        errors = batch.errors(self.first_env_id)
        if errors:
            mask = ~np.isin(batch.env_ids + self.first_env_id, list(errors))
            raise_first(errors, ErrorRows(batch.without_errors(), mask))
        return batch

    def outstanding(self) -> int:
        """Return how many envs owe an answer."""
        return self.pool.outstanding()

    def take_executed(self) -> list[Steps | Commands]:
        """Return the commands since the last call. All of them are answered then, or cancelled."""
        self._join_rounds()
        executed, self._executed = self._executed, []
        return executed

    def finish(self) -> None:
        """Wait for the answers that are owed after an exception of the task, and drop them."""
        try:
            while self.pool.outstanding():
                self.pool.recv()
        except Exception:  # reported by every later command: a worker is dead and not replaced
            self.pool.cancel()


#: A task: called with its argument and a shared value or None; returns a result that pickles.
Task = Callable[[Any, Any], Any]
