"""Waist: what all pools share before anything is sent: options, spaces, hooks for engines.

First of the four parts of `pool.Pool`: waist -> sending -> receiving -> pool (calls).
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import SpaceError
from ..host.replay import Snapshotter
from ..layout.arena import ArenaPlan
from ..layout.rows import Autoreset
from ..layout.spec import Array, Leaf, Space, Spec
from ..options import Limits, PoolOptions, check_env_fns, check_options
from ..parent.batch import Batch
from ..parent.hub import Hub
from ..parent.inbox import Inbox
from ..parent.leases import MIN_NBYTES, Leases
from ..parent.watchdog import Watchdog
from ..processes.worker_main import reward_shape_of
from ..recovery.journal import Journal
from ..recovery.policy import COUNTS, Recovery
from .lifecycle import Life, this_process

__all__ = ["Waist"]


def _nothing() -> None:
    """Gather no starts: there is no mail any more."""


class Waist(Life):
    """State of a pool, and what engines provide; see `pool.Pool`."""

    observation_space: Space[Any]
    action_space: Space[Any]
    reward_space: Any

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        options: PoolOptions | None = None,
        *,
        adapt: Callable[[Any], Any] | None = None,
        snapshotter: Snapshotter | None = None,
    ) -> None:
        """Check and remember; builds nothing.

        Args:
            env_fns: one constructor per env.
            options: how to work.
            adapt: makes whatever a constructor returns speak Gymnasium's calls.
            snapshotter: looks into envs for what they carry from one episode to the next, so that a
                worker's death can be made good from there; None: from seeded resets only.
        """
        super().__init__()
        self.env_fns = check_env_fns(env_fns)
        self.num_envs = len(self.env_fns)
        self.options = check_options(options or PoolOptions())
        self._adapt = adapt or _identity
        self._snapshotter = snapshotter
        self._recovery: Recovery | None = None
        self._journal: Journal | None = None
        self._recycler: Any = None
        self._unseeded = np.ones(self.num_envs, np.bool_)  # envs never reset so far
        self._steps_by_letter = False  # whether any action has passed the columns by
        self._takes_seeds = np.zeros(self.num_envs, np.bool_)  # envs that a reset has given a seed
        self._asked_seeds: dict[int, Any] = {}  # of the last reset of each env; None: it had none
        self._lost_seeds: dict[int, Any] = {}  # of resets that were cancelled, until there is another
        self._held: deque[Batch] = deque()  # debug mode: those that are still valid
        self._called: dict[int, int] = {}  # step_ids of the calls under way, by env
        self._ids = np.arange(self.num_envs, dtype=np.int64)
        self._is_debug = self.options.debug
        self._attention = False  # set while a plain receive will not do: payloads, dead workers
        self.properties: dict[str, Any] = {}
        self.implementation = "python"

    # ---- what engines provide ----------------------------------------------------------

    _hub: Hub
    _plan: ArenaPlan
    #: the mapping that the arena lies in
    _memory: Any
    #: what lends blocks to the caller, if anything does
    _leases: Leases[Any] | None = None
    #: slots at the end of the arena that nobody uses so far
    _num_spares = 0
    #: whether envs run in the thread that receives
    _works_here = False
    #: dtype and shape of all envs' actions where they are one array
    _plain_dtype: np.dtype[Any] | None = None
    _plain_shape: tuple[int, ...] = ()

    @abstractmethod
    def _start(self) -> None:
        """Build the envs and the arena; set _hub, _plan, _memory and the spaces."""

    def _forget(self) -> None:
        """Let go of the arena; what the caller still looks at keeps it mapped."""
        if self._leases is not None:
            self._leases.end()
        for name in ("_hub", "_inbox", "_watchdog", "_memory", "_leases"):
            self.__dict__.pop(name, None)
        if self._journal is not None:
            self._journal.gather_restore_points = _nothing  # the inbox holds the memory
        self._held.clear()

    @abstractmethod
    def _work(self) -> None:
        """Give the envs a chance to run before a wait (they run here if in this process)."""

    @abstractmethod
    def _hear(self, descriptor: int) -> None:
        """Deal with a descriptor that became readable: raises if a worker died."""

    @abstractmethod
    def _check_alive(self) -> None:
        """Raise if an env owes an answer that can never come."""

    def _recycle(self) -> None:
        """Replace workers that have lived long enough."""

    @abstractmethod
    def _has_dead(self) -> bool:
        """Tell whether a worker is dead, so that waits must ask whose answers can still come."""

    @abstractmethod
    def describe_worker(self, slot: int) -> str:
        """Name a slot's worker in messages."""

    @abstractmethod
    def worker_of(self, slot: int) -> int | None:
        """Return a slot's worker_id, None where there are no workers."""

    def is_alive(self, slot: int) -> bool:
        """Tell whether a slot has a worker that is not known to be dead."""
        return True

    @property
    @abstractmethod
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker, by worker_id; empty when there are none. Recovery may add some behind."""

    @property
    def memory(self) -> Array:
        """The arena as bytes, uint8 (nbytes,), read-only and page aligned, for who registers it with a device.

        Batches lie in it, unless the Python implementation puts them together elsewhere. The array keeps the
        mapping alive.

        Raises:
            StateError: the pool is not started.
            ClosedError: it is closed.
        """
        if self._open_in is not this_process[0]:
            self._explain("memory")
        memory = np.frombuffer(self._memory, np.uint8)
        memory.flags.writeable = False
        return memory

    def _go(self) -> None:
        self._start()
        num_slots = self._plan.num_slots - self._num_spares
        self._inbox = Inbox(self._hub, num_slots, self._recovery)
        if self._journal is not None:
            self._journal.gather_restore_points = self._inbox.poll
        self._watchdog = Watchdog(self._hub, num_slots, self.options.limits, self, self._inbox)
        self._infos = self._inbox.infos

    # ---- spaces --------------------------------------------------------------------------

    def _adopt_spaces(self, observation_space: Any, action_space: Any, reward_space: Any) -> None:
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            if not isinstance(space, Space):
                raise SpaceError(f"{name}: expected a gymnasium Space, got {type(space).__name__}", path=name)
        self.observation_space = observation_space
        self.action_space = action_space
        self.reward_space = reward_space
        strict, ignores_extra = self.options.strict, self.options.ignores_extra_keys
        self.obs_spec = Spec(observation_space, "obs", strict=strict, ignores_extra=ignores_extra)
        self.action_spec = Spec(action_space, "action", strict=strict, ignores_extra=ignores_extra)
        if isinstance(self.action_spec.root, Leaf):
            self._plain_dtype = self.action_spec.root.dtype
            self._plain_shape = (self.num_envs, *self.action_spec.root.shape)

    def _make_plan(self, num_slots: int, envs_per_slot: int) -> ArenaPlan:
        return ArenaPlan(
            num_envs=self.num_envs,
            num_slots=num_slots,
            obs=self.obs_spec,
            action=self.action_spec,
            reward_shape=reward_shape_of(self.reward_space),
            depth=self.options.depth,
            has_final=self.options.final_obs or self.options.autoreset == Autoreset.SAME_STEP,
            envs_per_slot=envs_per_slot,
            leases=self._count_leases(),
        )

    def _count_leases(self) -> int:
        """Return how many blocks may be lent: none in debug mode, which writes over old ones."""
        nbytes = self.num_envs * sum(leaf.nbytes for leaf in self.obs_spec.leaves)
        is_worth_it = nbytes >= MIN_NBYTES and not self.obs_spec.num_objects
        return self.options.leases if is_worth_it and not self.options.debug else 0

    # ---- numbers and limits --------------------------------------------------------------

    def statistics(self) -> dict[str, Any]:
        """Return counts since the start.

        Returns:
            steps: env steps made; restarts: workers replaced because they died or hung; recycled: because
            of `recycle_after`; workers_added: for envs that failed so often that they got one of their own;
            replayed, unproven, truncated: episodes brought back, brought back from a state that may lack
            something, or given up after a crash; steps_replayed, replay_seconds: what that took; log_nbytes:
            memory for what is kept for it, which `max_log_bytes` limits. Not in it: pages that wait to be written
            again, half of that at most, and the few messages of each env that are kept anyway.
        """
        found: dict[str, Any] = {**dict.fromkeys(COUNTS, 0), "replay_seconds": 0.0, "log_nbytes": 0}
        if self._recovery is not None:
            found.update(self._recovery.statistics())
        slots = range(self._plan.num_slots) if self._open_in is not None else ()
        found["steps"] = sum(self._hub.state(slot).num_steps for slot in slots)
        return found

    def set_limits(self, limits: Limits) -> None:
        """Change how long operations of envs may take, those under way included.

        Raises:
            ConfigError: a limit is no number of seconds.
        """
        self.options = check_options(dataclasses.replace(self.options, limits=limits))
        if self._open_in is None:
            return  # `start` reads them
        self._watchdog.set_limits(limits)
        if self._recovery is not None:
            self._recovery.limits = limits


def _identity(env: Any) -> Any:
    return env
