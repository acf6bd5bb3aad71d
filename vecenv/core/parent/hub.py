"""Hub: the parent's end of the rows. Actions go in, runs of rows come out.

`NativeHub` adds to `_native.Hub` what is easier in Python: payloads larger than their ring, which are written in parts,
and messages that came in parts. Without C `fallback.hub.FallbackHub` stands in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..layout.arena import BYTE_RING_NBYTES, SAVED_ROWS, ArenaPlan, BlockViews
from ..layout.native import load
from ..layout.rows import Form, Op, RowFlag, RowRange, Rows
from ..layout.spec import Array
from ..system.clock import now_ns
from ..system.signals import signals_deferred

__all__ = ["Event", "Hub", "NativeHub", "Refusal", "SlotState"]


class Refusal(NamedTuple):
    """Why a request was not sent: 'bad_env', 'busy', 'mixed', 'no_block' or 'no_room', and the env."""

    reason: str
    env_id: int


class Event(NamedTuple):
    """What ended a wait without rows: 'timeout', 'descriptor', 'message' or 'no_block'.

    `late_ns`: how long after its deadline a wait that timed out has ended.
    """

    kind: str
    descriptor: int
    late_ns: int = 0


class SlotState(NamedTuple):
    """What a slot is doing; `op` is NONE between commands.

    `blocked`: it waits for room for its mail, or for the rest of a payload; `unblocked_ns`: when the
    parent last made such room or wrote such a rest, 0: never.
    """

    op: int
    env_id: int
    step_id: int
    started_ns: int
    blocked: int
    num_steps: int
    unblocked_ns: int = 0


class Hub(Protocol):
    """The parent's end: `NativeHub` and `fallback.hub.FallbackHub`. One thread uses it at a time."""

    def send(
        self, leaves: tuple[Array, ...], env_ids: Array | None, ordered: bool, form: Form, /
    ) -> tuple[str, int] | None:
        """Step envs (None: all) with one array (n, *S) per action leaf; return why not, as in a `Refusal`."""

    def command(
        self, op: Op, env_ids: Array, seeds: Array, flags: Array, payloads: Sequence[bytes | None], ordered: bool
    ) -> int | Refusal:
        """Queue one operation per env; return the step_id of the first, they count up."""

    def recv(self, min_count: int, max_count: int, deadline_ns: int, /) -> tuple[Rows, int] | Event:
        """Wait for at least min_count rows; return them and the union of their flags.

        A negative deadline_ns counts nanoseconds from now.
        """

    def pump(self) -> bool:
        """Go on writing payloads larger than their ring; tell whether some are left."""

    def wait(self, deadline_ns: int, /) -> Event:
        """Sleep until anything happens."""

    def take_messages(self, slot: int) -> list[bytes]:
        """Return the messages that have arrived from a slot."""

    def outstanding(self) -> int:
        """Return how many envs owe an answer."""

    def owed(self, env_id: int, /) -> tuple[int, int]:
        """Return (op, step_id) that an env owes; op NONE when nothing."""

    def cancel(self, env_id: int, /) -> None:
        """Forget what an env owes: its slot drops the command, or the answer if it has begun."""

    def reap(self, slot: int) -> None:
        """Clear up after the process of a slot has ended."""

    def requeue(self, slot: int, unanswered: Collection[int]) -> list[tuple[int, int, int, int]]:
        """As `reap`, for a successor: keep and return what is left to do (op, env_id, step_id, flags).

        `unanswered`: step_ids of the calls whose answers are not in; of any slot.
        """

    def resend_payloads(self, slot: int, payloads: Sequence[bytes | None]) -> None:
        """Give the successor of a slot the payloads of what `requeue` returned; None: has none."""

    def move(self, env_id: int, slot: int) -> None:
        """Serve an env by another slot from now on; both are between two processes."""

    def last_delivered_obs(self, env_id: int, before: int) -> list[Array] | None:
        """Return a copy of the newest observation of an env before a step_id; None: there was none."""

    def last_delivered_seed(self, env_id: int, before: int) -> int | None:
        """Return the seed of the episode of that observation; None: it had none, or nobody knows."""

    def save_rows(self, rows: Rows) -> None:
        """Keep what `last_delivered_obs` needs of rows that debug mode is about to overwrite."""

    def attach_worker(self, worker: Any) -> None:
        """Take over a replacement of a worker, or one more, before anything is sent to it."""

    def state(self, slot: int) -> SlotState:
        """Return what a slot is doing."""

    def pending(self, slot: int, /) -> tuple[int, int, int]:
        """Return (op, env_id, step_id) of the first command that a slot has to deal with; op NONE: none."""

    def stop(self) -> None:
        """Tell all slots to end."""

    def add_info_key(self, name: str, /) -> int:
        """Give an info key a column; return its index, -1 when there is none left."""


class NativeHub:
    """The parent's end over shared memory, see `Hub` for its methods.

    Args:
        plan, memory: the arena, its header written.
        slots: the slot of each env.
        event_fd: what workers write to wake the parent, never read.
        epoll_fd: watches that, edge-triggered, and one pidfd per worker.
        spin_ns: longest time that a wait may spin before it sleeps.
        soon_spin_ns: the same once a worker on this core has done its share, and the others are about to.
    """

    def __init__(
        self,
        plan: ArenaPlan,
        memory: Any,
        slots: Sequence[int],
        event_fd: int,
        epoll_fd: int,
        spin_ns: int,
        soon_spin_ns: int = 0,
    ) -> None:
        native: Any = load()
        self._slots = list(slots)
        self._views = tuple(BlockViews(plan, memory, block) for block in range(plan.words["num_blocks"]))
        saved_rows = np.zeros(plan.words["block_stride"], np.uint8)  # costs memory once it is used
        self._saved_rows = BlockViews(plan, saved_rows, SAVED_ROWS)
        self._hub = native.Hub(
            memory,
            plan.row_columns(),
            saved_rows,
            plan.saved_columns(),
            plan.action_columns(),
            tuple(slots),
            plan.depth,
            event_fd,
            epoll_fd,
            spin_ns,
            soon_spin_ns,
            np.ndarray,
            self._views,
            RowRange,
            Event,
        )
        self._fragments: dict[int, bytearray] = {}
        self._payloads: dict[int, deque[memoryview]] = {}
        self._delayed: set[int] = set()  # slots whose ring had no room for all of their payloads
        self._unblocked_ns = [0] * plan.num_slots
        self.send = self._hub.send
        self.recv = self._hub.recv
        self.wait = self._hub.wait
        self.outstanding = self._hub.outstanding
        self.num_stragglers = self._hub.num_stragglers
        self.owed = self._hub.owed
        self.cancel = self._hub.cancel
        self.pending = self._hub.pending
        self.lend, self.take_back = self._hub.lend, self._hub.take_back
        self.stop = self._hub.stop
        self.add_info_key = self._hub.add_info_key

    def command(
        self, op: Op, env_ids: Array, seeds: Array, flags: Array, payloads: Sequence[bytes | None], ordered: bool
    ) -> int | Refusal:
        result = self._hub.command(op, env_ids, seeds, flags, ordered)
        if not isinstance(result, int):
            return Refusal(*result)
        for env_id, payload in zip(env_ids.tolist(), payloads):
            if payload is not None:
                self._queue_payload(self._slots[env_id], payload)
        return result

    def _queue_payload(self, slot: int, payload: bytes) -> None:
        self._payloads.setdefault(slot, deque()).append(memoryview(payload))
        self.pump()

    def pump(self) -> bool:
        """Write what fits of the payloads that are under way; tell whether some are left.

        A worker that waits for the rest of a payload is blocked, not late.
        """
        if not self._payloads:
            return False
        with signals_deferred():
            self._pump()
        return bool(self._payloads)

    def _pump(self) -> None:
        for slot, payloads in list(self._payloads.items()):
            while payloads:
                taken = self._hub.write_payload(slot, payloads[0])
                if taken < 0:
                    break
                if slot in self._delayed:
                    self._unblocked_ns[slot] = now_ns()
                payloads[0] = payloads[0][taken:]
                if not len(payloads[0]):
                    payloads.popleft()
            if payloads:
                self._delayed.add(slot)
            else:
                del self._payloads[slot]
                self._delayed.discard(slot)

    def take_messages(self, slot: int) -> list[bytes]:
        messages: list[bytes] = []
        nbytes = 0
        while (record := self._hub.take_fragment(slot)) is not None:
            data, is_last = record
            nbytes += len(data) if is_last and slot not in self._fragments else BYTE_RING_NBYTES
            if not is_last:
                self._fragments.setdefault(slot, bytearray()).extend(data)
            elif slot in self._fragments:
                messages.append(bytes(self._fragments.pop(slot) + data))
            else:
                messages.append(data)
        if nbytes > BYTE_RING_NBYTES // 2:  # the ring was full, perhaps, and the slot waited
            self._unblocked_ns[slot] = now_ns()
        return messages

    def attach_worker(self, worker: Any) -> None:
        """Nothing to do: a replacement maps the same arena."""

    def reap(self, slot: int) -> None:
        self._fragments.pop(slot, None)
        self._payloads.pop(slot, None)
        self._delayed.discard(slot)
        self._hub.reap(slot)

    def requeue(self, slot: int, unanswered: Collection[int]) -> list[tuple[int, int, int, int]]:
        op, _, step_id = self._hub.pending(slot)  # only the first may have been answered
        is_answered = op == Op.CALL and step_id not in unanswered
        self._fragments.pop(slot, None)
        self._payloads.pop(slot, None)
        self._delayed.discard(slot)
        left: list[tuple[int, int, int, int]] = self._hub.requeue(slot, is_answered)
        return left

    def move(self, env_id: int, slot: int) -> None:
        self._hub.move(env_id, slot)
        self._slots[env_id] = slot

    def resend_payloads(self, slot: int, payloads: Sequence[bytes | None]) -> None:
        for payload in payloads:
            if payload is not None:
                self._queue_payload(slot, payload)

    def last_delivered_obs(self, env_id: int, before: int) -> list[Array] | None:
        found = self._newest_row(env_id, before)
        return None if found is None else [column[found[1]].copy() for column in found[0].obs]

    def last_delivered_seed(self, env_id: int, before: int) -> int | None:
        found = self._newest_row(env_id, before)
        seed = -1 if found is None else int(found[0].columns["seed"][found[1]])
        return None if seed < 0 else seed

    def _newest_row(self, env_id: int, before: int) -> tuple[BlockViews, int] | None:
        best, found = 0, None
        for views in (self._saved_rows, *self._views):  # first, since a row in the ring may be half written over
            step_ids, env_ids = views.columns["step_id"], views.columns["env_id"]
            has_obs = views.columns["flags"] & RowFlag.ERROR == 0  # else what another row has left there
            for row in np.flatnonzero((env_ids == env_id) & (step_ids != 0) & has_obs).tolist():
                if best < int(step_ids[row]) < (before or 1 << 63):
                    best, found = int(step_ids[row]), (views, row)
        return found

    def save_rows(self, rows: Rows) -> None:
        step_ids, env_ids = rows.column("step_id").tolist(), rows.column("env_id").tolist()
        for row, (step_id, env_id) in enumerate(zip(step_ids, env_ids)):
            # They are the caller's by now, whatever it wrote there.
            if not 0 <= env_id < len(self._slots) or step_id == 0 or step_id != self._hub.last_delivered(env_id):
                continue
            for name in ("step_id", "env_id", "episode_counters"):
                self._saved_rows.columns[name][env_id] = rows.column(name)[row]
            for leaf, column in enumerate(self._saved_rows.obs):
                column[env_id] = rows.obs(leaf)[row]

    def state(self, slot: int) -> SlotState:
        return SlotState(*self._hub.state(slot))._replace(unblocked_ns=self._unblocked_ns[slot])
