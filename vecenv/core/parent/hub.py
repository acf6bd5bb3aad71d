"""The parent's end of the rows: actions go out to workers, and ranges of rows come in.

`NativeHub` adds to `_native.Hub` the parts that are easier in Python: payloads larger than their ring, which are
written in parts, and messages that arrive in parts. Without C, `fallback.hub.FallbackHub` is used instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ...errors import StateError
from ..layout.arena import BYTE_RING_NBYTES, PRIVATE_BLOCK, ArenaPlan
from ..layout.commands import Command, Commands
from ..layout.flags import Form, Op, RowFlag
from ..layout.native import load
from ..layout.rows import AnyRows, BlockRows, RowRange
from ..layout.spec import Array
from ..system.clock import now_ns
from ..system.signals import signals_deferred

__all__ = ["METHODS_OF_C", "Event", "Hub", "NativeHub", "Refusal", "SlotState"]


#: Methods of a `NativeHub` that are those of `_native.Hub`, without a call in between.
METHODS_OF_C = (
    *("send", "record_in", "recv", "recv_envs", "wait", "waits", "outstanding", "num_stragglers", "owed", "cancel"),
    *("continue_from", "pending", "lend", "take_back", "stop", "take_stray_words", "reset_claims", "add_info_key"),
)
#: No command has this step_id.
_NEVER = (1 << 63) - 1
_NO_SHARDS = "these envs live in no shards, which tasks need"


class Refusal(NamedTuple):
    """The reason why a request was not sent: 'bad_env', 'busy', 'mixed', 'no_block' or 'no_room'; and the env."""

    reason: str
    env_id: int


class Event(NamedTuple):
    """The reason why a wait ended without rows: 'timeout', 'descriptor', 'message', 'no_block' or 'stray'.

    `late_ns`: nanoseconds between the deadline and the end of a wait that timed out.
    """

    kind: str
    descriptor: int
    late_ns: int = 0


class SlotState(NamedTuple):
    """The present operation of a slot; `op` is NONE between commands. Times are monotonic nanoseconds.

    `blocked`: whether the slot waits for room for its messages, or for further parts of a payload; `unblocked_ns`: when
    the parent last made such room or wrote such a part, 0 for never.
    """

    op: int
    env_id: int
    step_id: int
    started_ns: int
    blocked: int
    num_steps: int
    unblocked_ns: int = 0


class Hub:
    """The parent's end; a subclass overrides the methods that concern it. One thread uses it at a time.

    Attributes:
        num_slots: how many slots, from 0 on, serve envs now.
    """

    num_slots: int

    def send(
        self, leaves: tuple[Array, ...], env_ids: Array | None, ordered: bool, form: Form, /
    ) -> tuple[str, int] | Literal[True] | None:
        """Send a step to each env; does not block.

        Args:
            leaves: one array (n, *S) per action leaf.
            env_ids: int64 (n,); None for all envs.
            ordered: whether the rows are delivered in the order of this request.
            form: the type in which envs receive actions of shape ().

        Returns:
            None if the request was sent; True if it was recorded, too; else the fields of a `Refusal`.
        """
        raise NotImplementedError

    def record_in(self, columns: tuple[Array, ...], words: Array, /) -> None:
        """Record further steps of all envs, as they are sent, in this page; without C, the caller records them all.

        Args:
            columns, words: those of an `action_pages.Page`.
        """

    def command(self, commands: Commands, ordered: bool) -> Refusal | None:
        """Number commands of one operation and queue them; return a `Refusal` if nothing was queued."""
        raise NotImplementedError

    def continue_from(self, step_id: int, /) -> None:
        """Give the next command this step_id, to continue the numbers of another hub; later ones count up from it.

        Raises:
            ValueError: an earlier command may have had it.
        """
        raise NotImplementedError

    def recv(self, min_count: int, max_count: int, deadline_ns: int, /) -> tuple[AnyRows, int] | Event:
        """Wait for at least `min_count` rows; return them and the union of their flags.

        Args:
            min_count, max_count: how many rows to return.
            deadline_ns: on the monotonic clock; a negative value counts nanoseconds from now.
        """
        raise NotImplementedError

    def recv_envs(self, env_ids: Array, deadline_ns: int, /) -> tuple[AnyRows, int] | Event:
        """Wait for the rows of these envs; return them, in this order, and the union of their flags.

        Rows of other envs that have arrived are kept; the next `recv` delivers them first.

        Args:
            env_ids: int64 (n,), distinct envs that owe an answer.
            deadline_ns: as for `recv`.
        """
        raise NotImplementedError

    def pump(self) -> bool:
        """Continue writing payloads larger than their ring; return whether some are left."""
        return False

    def wait(self, deadline_ns: int, /) -> Event:
        """Sleep until any event occurs."""
        raise NotImplementedError

    def waits(self) -> tuple[int, int]:
        """Return when `recv` first waited for rows, 0 if it never did, and for how long it did in all.

        Both are nanoseconds, the first on the monotonic clock. They are 0 without timings.
        """
        raise NotImplementedError

    def take_messages(self, slot: int) -> list[bytes]:
        """Return the messages that have arrived from a slot."""
        raise NotImplementedError

    def num_stragglers(self) -> int:
        """Return the number of rows that were claimed, but not committed when their batch was delivered."""
        return 0

    def outstanding(self) -> int:
        """Return the number of envs that owe an answer."""
        raise NotImplementedError

    def owed(self, env_id: int, /) -> tuple[int, int]:
        """Return (op, step_id) of the answer that an env owes; op is NONE if it owes none."""
        raise NotImplementedError

    def cancel(self, env_id: int, /) -> None:
        """Cancel the outstanding command of an env: its slot drops the command, or its answer if it has begun."""
        raise NotImplementedError

    def reap(self, slot: int) -> None:
        """Clean up the state of a slot after its process has ended."""

    def requeue(self, slot: int, unanswered: Collection[int]) -> Commands:
        """Reap a slot for a successor: keep its commands, and return them, without arguments and payloads.

        Args:
            slot: the slot.
            unanswered: step_ids of the calls, of any slot, whose replies have not arrived.
        """
        return Commands.listed(())

    def resend_payloads(self, slot: int, payloads: Sequence[bytes | None]) -> None:
        """Send to a slot's successor the payloads of the commands that `requeue` returned; None: no payload."""

    def move(self, env_id: int, slot: int) -> None:
        """Move an env to another slot; both slots must be without a process."""

    def last_delivered_obs(self, before: Mapping[int, int]) -> dict[int, list[Array]]:
        """Return copies of the newest observations of envs, by env_id: one array per leaf.

        Args:
            before: by env_id, only an observation before this step_id counts; 0: there is no limit. An env without such
                an observation is left out.
        """
        raise NotImplementedError

    def last_delivered_seed(self, env_id: int, before: int) -> int | None:
        """Return the seed of the episode of such an observation; None if it had none or if it is unknown."""
        raise NotImplementedError

    def save_rows(self, rows: AnyRows) -> None:
        """Save the parts of rows that `last_delivered_obs` needs, before debug mode overwrites them."""

    def fill_repeated(self, rows: AnyRows) -> None:
        """Fill in the last observations of envs in delivered rows flagged REPEATS or FINAL_REPEATS; zeros without one.

        Called right after the rows were received.
        """

    def attach_worker(self, worker: Any) -> None:
        """Connect a new or replacement worker, before anything is sent to it."""

    def state(self, slot: int) -> SlotState:
        """Return the present operation of a slot."""
        raise NotImplementedError

    def pending(self, slot: int, /) -> tuple[int, int, int]:
        """Return (op, env_id, step_id) of the first command in a slot's queue; op is NONE if it is empty."""
        return int(Op.NONE), 0, 0

    def stop(self) -> None:
        """Signal all slots to end."""

    def take_notice(self) -> bool:
        """Return whether a worker has sent a message over its socket since the last call."""
        raise NotImplementedError

    def take_stray_words(self) -> list[tuple[int, str, int]]:
        """Look for stray words: values in shared memory that no worker writes.

        Returns:
            (slot, word, value) of those found since the last call, at most one per slot. The slot owns the word; -1 if
            all slots share it. [] where no memory is shared.
        """
        return []

    def has_answered_all(self, slot: int, /) -> bool:
        """Return whether a slot has carried out all its commands, so that all replies lie in shared memory."""
        return False  # replies come in other ways

    def reset_claims(self) -> None:
        """Set the words that all slots share again; called while no slot has a process."""

    def add_info_key(self, name: str, /) -> int:
        """Give an info key a cell; return its index, or -1 if all cells are in use."""
        raise NotImplementedError

    def lend(self, block: int, /) -> bool:
        """Keep a block until `take_back`, for the caller of the pool; return False if that is not possible."""
        return False

    def take_back(self, block: int, /) -> None:
        """Return a lent block to the rotation."""

    def share(self, data: bytes) -> Any:
        """Return a handle of a value that many tasks refer to."""
        raise StateError(_NO_SHARDS)

    def submit_task(self, call: Any) -> None:
        """Begin a task in a shard, a `shards.task_calls.TaskCall`."""
        raise StateError(_NO_SHARDS)

    def forget_task(self, task_id: int) -> None:
        """Let shards drop a task. Any thread may call this at any time."""

    def wait_for_task(self, calls: Sequence[Any], deadline_ns: int) -> Event | None:
        """Wait until one of these tasks has ended, then return None; return the event if another one comes first."""
        raise StateError(_NO_SHARDS)


class NativeHub(Hub):
    """The parent's end over shared memory; see `Hub` for its methods.

    Args:
        plan, memory, counters: the arena and its counters, with their headers written.
        slots: the slot of each env.
        event_fd: written by workers to wake the parent, never read.
        epoll_fd: watches `event_fd`, edge-triggered, and one pidfd per worker.
        spin_ns: longest time that a wait may spin before it sleeps, in nanoseconds.
        soon_spin_ns: the same once a worker on this core has finished its share, and the others are about to.
    """

    def __init__(
        self,
        plan: ArenaPlan,
        memory: Any,
        counters: Any,
        slots: Sequence[int],
        event_fd: int,
        epoll_fd: int,
        spin_ns: int,
        soon_spin_ns: int = 0,
    ) -> None:
        native: Any = load()
        self._slots, self.num_slots = list(slots), max(slots) + 1
        self._views = tuple(BlockRows(plan, memory, block) for block in range(plan.words["num_blocks"]))
        saved_rows = np.zeros(plan.words["block_stride"], np.uint8)  # takes memory only when it is used
        self._saved_rows = BlockRows(plan, saved_rows, PRIVATE_BLOCK)
        deferred_rows = np.zeros(plan.words["block_stride"], np.uint8)
        self._deferred_rows = BlockRows(plan, deferred_rows, PRIVATE_BLOCK)
        self._hub = native.Hub(
            memory,
            counters,
            plan.row_columns(),
            saved_rows,
            plan.saved_columns(),
            deferred_rows,
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
        self._delayed: set[int] = set()  # slots whose ring had too little room for all of their payloads
        self._unblocked_ns = [0] * plan.num_slots
        self._notice = plan.notice(memory)
        for name in METHODS_OF_C:
            setattr(self, name, getattr(self._hub, name))

    def has_answered_all(self, slot: int, /) -> bool:
        """Return whether a slot has carried out all its commands; a reply lies in shared memory before that."""
        return bool(self.pending(slot)[0] == Op.NONE)

    def command(self, commands: Commands, ordered: bool) -> Refusal | None:
        table = commands.table
        flags = table["flags"].astype(np.uint8)
        has_payloads = any(commands.payloads)
        arguments = table["argument"].copy()
        result = self._hub.command(commands.op, commands.env_ids, arguments, flags, ordered, has_payloads)
        if not isinstance(result, int):
            return Refusal(*result)
        commands.number(result)
        if has_payloads:
            self._send_payloads(commands)
            self._hub.wake_slots()  # only now: a worker that wakes up on this core takes it from the caller
        return None

    def _send_payloads(self, commands: Commands) -> None:
        for env_id, payload in zip(commands.table["env_id"].tolist(), commands.payloads):
            self._append_payload(self._slots[env_id], payload)
        self.pump()

    def pump(self) -> bool:
        """Write as much of the pending payloads as fits; return whether some are left.

        A worker that waits for a part of a payload is blocked, not late.
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
        if nbytes > BYTE_RING_NBYTES // 2:  # the ring may have been full, so that the slot waited
            self._unblocked_ns[slot] = now_ns()
        return messages

    def take_notice(self) -> bool:
        has_notice = bool(self._notice[0])
        self._notice[0] = 0
        return has_notice

    def reap(self, slot: int) -> None:
        self._drop_parts(slot)
        self._hub.reap(slot)

    def _drop_parts(self, slot: int) -> None:
        """Drop the messages of a slot that have arrived in part, and the payloads that are not written."""
        self._fragments.pop(slot, None)
        self._payloads.pop(slot, None)
        self._delayed.discard(slot)

    def requeue(self, slot: int, unanswered: Collection[int]) -> Commands:
        self._drop_parts(slot)
        left = self._hub.requeue(slot, unanswered)
        return Commands.listed(Command(step_id, env_id, op, flags) for op, env_id, step_id, flags in left)

    def move(self, env_id: int, slot: int) -> None:
        self._hub.move(env_id, slot)
        self._slots[env_id] = slot
        self.num_slots = max(self.num_slots, slot + 1)

    def resend_payloads(self, slot: int, payloads: Sequence[bytes | None]) -> None:
        for payload in payloads:
            self._append_payload(slot, payload)
        self.pump()

    def _append_payload(self, slot: int, payload: bytes | None) -> None:
        if payload is not None:
            self._payloads.setdefault(slot, deque()).append(memoryview(payload))

    def last_delivered_obs(self, before: Mapping[int, int]) -> dict[int, list[Array]]:
        newest = self._newest_rows(before)
        return {env_id: [column[row].copy() for column in block.leaves] for env_id, (block, row) in newest.items()}

    def last_delivered_seed(self, env_id: int, before: int) -> int | None:
        for block, row in self._newest_rows({env_id: before}).values():
            seed = int(block.columns["seed"][row])
            return None if seed < 0 else seed
        return None

    def _newest_rows(self, before: Mapping[int, int]) -> dict[int, tuple[BlockRows, int]]:
        """Return the rows of the observations of `last_delivered_obs`, by env_id, as a block and an index.

        All rows are read once, for any number of envs.
        """
        limits = np.zeros(len(self._slots), np.int64)
        limits[list(before)] = [limit or _NEVER for limit in before.values()]
        # saved rows first: the same row in the ring may be half overwritten
        blocks = self._saved_rows, self._deferred_rows, *self._views
        env_ids, step_ids, flags = (
            np.concatenate([block.columns[name] for block in blocks]) for name in ("env_id", "step_id", "flags")
        )
        step_ids = step_ids.astype(np.int64)
        # a row with an error has the observation of an older row
        rows = np.flatnonzero((step_ids > 0) & (flags & RowFlag.ERROR == 0) & (env_ids >= 0) & (env_ids < len(limits)))
        rows = rows[step_ids[rows] < limits[env_ids[rows]]]
        rows = rows[np.argsort(-step_ids[rows], kind="stable")]
        found, first = np.unique(env_ids[rows], return_index=True)
        numbers, indices = np.divmod(rows[first], self._saved_rows.count)
        return {
            env_id: (blocks[number], row)
            for env_id, number, row in zip(found.tolist(), numbers.tolist(), indices.tolist())
        }

    def save_rows(self, rows: AnyRows) -> None:
        step_ids, env_ids = rows.column("step_id").tolist(), rows.column("env_id").tolist()
        for row, (step_id, env_id) in enumerate(zip(step_ids, env_ids)):
            # The rows belong to the caller, and it may have changed these values.
            if not 0 <= env_id < len(self._slots) or step_id == 0 or step_id != self._hub.last_delivered(env_id):
                continue
            for name in ("step_id", "env_id", "episode_counters"):
                self._saved_rows.columns[name][env_id] = rows.column(name)[row]
            for leaf, column in enumerate(self._saved_rows.leaves):
                column[env_id] = rows.obs(leaf)[row]

    def fill_repeated(self, rows: AnyRows) -> None:
        flags, env_ids = rows.column("flags"), rows.column("env_id")
        repeating = np.flatnonzero(flags & (RowFlag.REPEATS | RowFlag.FINAL_REPEATS))
        step_ids = rows.column("step_id")[repeating]
        found = self.last_delivered_obs(dict(zip(env_ids[repeating].tolist(), step_ids.tolist())))
        for row in repeating.tolist():
            column_of = rows.obs if flags[row] & RowFlag.REPEATS else rows.final
            last = found.get(int(env_ids[row]))
            for leaf in range(len(self._saved_rows.leaves)):
                column_of(leaf)[row] = 0 if last is None else last[leaf]

    def state(self, slot: int) -> SlotState:
        return SlotState(*self._hub.state(slot))._replace(unblocked_ns=self._unblocked_ns[slot])
