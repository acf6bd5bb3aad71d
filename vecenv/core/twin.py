"""Twin: both ends of the rows without C, for installs without a compiler.

Stands where `_native.Hub` and `_native.Slot` stand on the data path. Python has no atomics, so
nothing is claimed: every env has one fixed row, and what C says through shared words travels
over the control socket of each worker.

    block 0 of the arena, row = env_id   written by the worker, copied out by the parent
    actions, newest step_ids             written by the parent
    slot lines                           int64: op | env_id | step_id | started_ns | blocked | num_steps
    socket, parent -> worker             a stream of pickles, each a list of commands
    socket, worker -> parent             frames: row and void name a step, mail is a piece of a message

A row is written before its frame is sent, and an action before its command: the socket orders
them. A row stays as it is until its env is asked again, which is after it was copied out or
given up. The parent never blocks in a write, so a worker that does is always heard.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from .arena import ArenaPlan, BlockViews
from .clock import now_ns
from .hub import Event, Refusal, SlotState
from .rows import Form, Op, RowFlag, Rows
from .spec import Array
from .twin_slot import PipeSlot, Socket
from .twin_words import (
    BLOCKED_WORD,
    LOCAL_SLICE_NS,
    LONGEST_POLL_MS,
    MAIL_FRAME,
    MS,
    OP_WORD,
    ROW_FRAME,
    AttachLike,
    Command,
    SharedWords,
    WorkerLike,
)

__all__ = ["LocalHub", "PipeHub", "make_local_pair", "make_pipe_slots"]

_COLUMNS = (
    "step_id", "env_id", "reward", "terminated", "truncated", "flags", "episode", "length", "seed", "return",
    "seconds",
)  # fmt: skip


class GatheredRows:
    """Rows copied together from the rows of their envs; the arrays belong to the batch."""

    def __init__(self, views: BlockViews, env_ids: list[int]) -> None:
        self.count = len(env_ids)
        self._views = views
        ids = np.array(env_ids, np.intp)
        self._columns = {name: views.columns[name][ids] for name in _COLUMNS}
        self._obs = [column[ids] for column in views.obs]
        has_final = bool(self._columns["flags"].any()) and bool((self._columns["flags"] & RowFlag.FINAL).any())
        self._final = [column[ids] if has_final else self._empty(column) for column in views.final]

    def _empty(self, column: Array) -> Array:
        return np.zeros((self.count, *column.shape[1:]), column.dtype)

    def column(self, name: str) -> Array:
        """Return a column, (B,) or (B, ...)."""
        if name not in self._columns:  # info columns: here all infos travel as mail
            self._columns[name] = self._empty(self._views.columns[name])
        return self._columns[name]

    def obs(self, leaf: int) -> Array:
        """Return an observation leaf."""
        return self._obs[leaf]

    def final(self, leaf: int) -> Array:
        """Return a leaf of the observations that ended episodes."""
        return self._final[leaf]


class _Ledger:
    """Who owes what, and which rows have arrived: the same rules as native/ring.h.

        owed -> arrived -> ready -> delivered      rows of unordered requests
        owed -> missing  -> ready -> delivered     an ordered request, all of it at once

    Attributes:
        owed: per env, the step_id that the caller waits for; 0 none.
        ops: per env, the operation owed.
        num_owed: how many envs owe an answer.
        ready: env ids of rows that may be delivered, in the order of delivery.
    """

    def __init__(self, num_envs: int) -> None:
        self.owed = [0] * num_envs
        self.ops = [int(Op.NONE)] * num_envs
        self.num_owed = 0
        self.ready: deque[int] = deque()
        self._arrived: dict[int, int] = {}  # step_id -> env_id, in order of arrival
        self._ordered: dict[int, int] = {}  # the same of the ordered request, in its order
        self._missing: set[int] = set()  # step_ids of it that have not arrived

    def refusal(self, op: int, env_ids: list[int], ordered: bool) -> Refusal | None:
        """Say why a request cannot start now; nothing is changed."""
        superseded = 0
        for env_id in env_ids:
            if not 0 <= env_id < len(self.owed):
                return Refusal("bad_env", env_id)
            if op == Op.CALL or not self.owed[env_id]:
                continue
            if op != Op.RESET or self.ops[env_id] != Op.STEP:
                return Refusal("busy", env_id)
            superseded += 1
        if op != Op.CALL and len(set(env_ids)) != len(env_ids):
            seen: set[int] = set()
            return Refusal("busy", next(i for i in env_ids if i in seen or seen.add(i)))  # type: ignore[func-returns-value]
        return Refusal("mixed", env_ids[-1]) if ordered and self.num_owed > superseded else None

    def enter(self, op: int, env_ids: list[int], first: int, ordered: bool) -> None:
        """Note that each env owes an answer: first, first + 1, ... in request order."""
        for env_id in env_ids:
            self.forget(env_id)
        step_ids = range(first, first + len(env_ids))
        for env_id, step_id in zip(env_ids, step_ids):
            self.owed[env_id] = step_id
            self.ops[env_id] = op
        self.num_owed += len(env_ids)
        if ordered:
            self._ordered = dict(zip(step_ids, env_ids))
            self._missing = set(step_ids)

    def forget(self, env_id: int) -> None:
        """Let an env owe nothing; a row of it that was not delivered is dropped."""
        step_id = self.owed[env_id]
        if not step_id:
            return
        self.owed[env_id] = 0
        self.num_owed -= 1
        self._arrived.pop(step_id, None)
        self._ordered.pop(step_id, None)
        self._missing.discard(step_id)
        if env_id in self.ready:
            self.ready.remove(env_id)

    def arrive(self, env_id: int, step_id: int) -> None:
        """Note that a row has been written; a late one is dropped."""
        if self.owed[env_id] != step_id:
            return
        if step_id in self._missing:
            self._missing.discard(step_id)
        else:
            self._arrived[step_id] = env_id

    def give_up(self, env_ids: set[int]) -> None:
        """Let an ordered request go on without the rows of these envs, which still owe them."""
        for step_id in [step_id for step_id in self._missing if self._ordered[step_id] in env_ids]:
            self._missing.discard(step_id)
            del self._ordered[step_id]

    def gather(self, count: int) -> bool:
        """Make rows ready until there are `count`; tell whether there are."""
        while len(self.ready) < count:
            if self._ordered:
                if self._missing:
                    return False
                self.ready.extend(self._ordered.values())
                self._ordered = {}
            elif self._arrived and len(self.ready) + len(self._arrived) >= count:
                self.ready.extend(self._arrived.values())
                self._arrived = {}
            else:
                return False
        return True

    def take(self, max_count: int) -> list[int]:
        """Remove up to max_count ready rows; their envs owe nothing afterwards."""
        taken = [self.ready.popleft() for _ in range(min(max_count, len(self.ready)))]
        for env_id in taken:
            self.owed[env_id] = 0
        self.num_owed -= len(taken)
        return taken


class _TwinHub:
    """The parent's end, whatever carries its words; see `hub.Hub` for the calls."""

    def __init__(self, plan: ArenaPlan, memory: Any, slot_of: Sequence[int]) -> None:
        self._plan = plan
        self._slot_of = list(slot_of)
        self._words = SharedWords(plan, memory)
        self._ledger = _Ledger(plan.num_envs)
        self._next_step_id = 1  # 0 means that nothing is owed
        self._messages: list[list[bytes]] = [[] for _ in range(plan.num_slots)]
        self._pieces: dict[int, list[bytes]] = {}
        self._given_ns = [0] * plan.num_slots

    # ---- what carriers provide ---------------------------------------------------------

    def _transmit(self, commands: list[Command]) -> None:
        """Bring commands on their way."""
        raise NotImplementedError

    def _listen(self, deadline_ns: int) -> Event | None:
        """Sleep until a frame has been taken in (None) or something else happens."""
        raise NotImplementedError

    def _settle(self, env_id: int, step_id: int) -> None:
        """Forget a command that has been dealt with."""

    def repost(self, slot: int, letters: Sequence[bytes | None]) -> None:
        """Give the successor of a slot what it has to do; letters go with their commands here."""

    # ---- sending -----------------------------------------------------------------------

    def send(self, leaves: tuple[Array, ...], env_ids: Array | None, ordered: bool, form: Form) -> Refusal | None:
        """Step envs (None: all) with one array (n, *S) per action leaf."""
        ids = list(range(self._plan.num_envs)) if env_ids is None else env_ids.tolist()
        refusal = self._ledger.refusal(Op.STEP, ids, ordered)
        if refusal is not None:
            return refusal
        if len(leaves) != len(self._words.actions):
            raise ValueError("wrong number of action leaves")
        rows = slice(None) if env_ids is None else env_ids
        for leaf, column, values in zip(self._plan.action.leaves, self._words.actions, leaves):
            if values.nbytes != leaf.nbytes * len(ids):
                raise ValueError("an action leaf has the wrong size")
            column[rows] = values
        none = [0] * len(ids)
        self._queue(Op.STEP, ids, none, [int(form)] * len(ids), [None] * len(ids), ordered)
        return None

    def command(
        self, op: Op, env_ids: Array, seeds: Array, flags: Array, letters: Sequence[bytes | None], ordered: bool
    ) -> int | Refusal:
        """Queue one operation per env; return the step_id of the first, they count up."""
        ids = env_ids.tolist()
        refusal = self._ledger.refusal(op, ids, ordered)
        if refusal is not None:
            return refusal
        return self._queue(op, ids, seeds.tolist(), flags.tolist(), letters, ordered)

    def _queue(
        self,
        op: int,
        ids: list[int],
        numbers: list[int],
        flags: list[int],
        letters: Sequence[bytes | None],
        ordered: bool,
    ) -> int:
        first = self._next_step_id
        self._next_step_id += len(ids)
        if op != Op.CALL:  # the answer to a call is mail: nobody owes a row for it
            self._ledger.enter(op, ids, first, ordered)
            self._words.newest[ids] = range(first, self._next_step_id)
        step_ids = range(first, self._next_step_id)
        self._transmit(
            [
                Command(self._slot_of[env_id], int(op), env_id, step_id, number, bits, letter)
                for env_id, step_id, number, bits, letter in zip(ids, step_ids, numbers, flags, letters)
            ]
        )
        return first

    def pump(self) -> bool:
        """Go on writing commands that the sockets had no room for; tell whether some are left."""
        return False

    # ---- receiving ---------------------------------------------------------------------

    def recv(self, min_count: int, max_count: int, deadline_ns: int) -> tuple[Rows, int] | Event:
        """Wait for at least min_count rows; return them and the union of their flags."""
        if deadline_ns < 0:
            deadline_ns = now_ns() - deadline_ns
        while not self._ledger.gather(min_count):
            event = self._listen(deadline_ns)
            if event is not None and not self._ledger.gather(min_count):
                return event
        rows = GatheredRows(self._words.rows, self._ledger.take(max_count))
        return rows, int(np.bitwise_or.reduce(rows.column("flags")))

    def wait(self, deadline_ns: int) -> Event:
        """Sleep until anything happens."""
        if any(self._messages):
            return Event("mail", -1)
        return self._listen(deadline_ns) or Event("mail", -1)

    def take_frame(self, frame: tuple[Any, ...]) -> None:
        """Take in what a slot says."""
        kind = frame[0]
        if kind != MAIL_FRAME:
            self._settle(frame[1], frame[2])
        if kind == ROW_FRAME:
            self._ledger.arrive(frame[1], frame[2])
        elif kind == MAIL_FRAME:
            _, slot, is_last, data = frame
            pieces = self._pieces.setdefault(slot, [])
            pieces.append(data)
            if is_last:
                self._messages[slot].append(b"".join(pieces))
                del self._pieces[slot]
        elif self._ledger.owed[frame[1]] == frame[2]:  # given up without being superseded
            self._ledger.forget(frame[1])

    # ---- mail and books ----------------------------------------------------------------

    def mail(self, slot: int) -> list[bytes]:
        """Return the messages that have arrived from a slot."""
        messages, self._messages[slot] = self._messages[slot], []
        return messages

    def outstanding(self) -> int:
        """Return how many envs owe an answer."""
        return self._ledger.num_owed

    def num_late(self) -> int:
        """Return 0: no row here can come after its block."""
        return 0

    def owed(self, env_id: int) -> tuple[int, int]:
        """Return (op, step_id) that an env owes; op NONE when nothing."""
        step_id = self._ledger.owed[env_id]
        return (self._ledger.ops[env_id] if step_id else int(Op.NONE)), step_id

    def cancel(self, env_id: int) -> None:
        """Forget what an env owes; a late answer will be dropped."""
        self._ledger.forget(env_id)

    def reap(self, slot: int) -> None:
        """Clear up after the process of a slot has ended; its envs owe what they owed."""
        self._ledger.give_up({env_id for env_id, mine in enumerate(self._slot_of) if mine == slot})
        self._pieces.pop(slot, None)
        self._messages[slot].clear()
        self._words.progress[slot, [OP_WORD, BLOCKED_WORD]] = 0

    def revive(self, slot: int, answered: int) -> list[tuple[int, int, int, int]]:
        """As `reap`, for a successor: keep and return what is left to do (op, env_id, step_id, flags)."""
        self._pieces.pop(slot, None)
        self._messages[slot].clear()
        self._words.progress[slot, [OP_WORD, BLOCKED_WORD]] = 0
        return []

    def seen(self, env_id: int, before: int) -> list[Array] | None:
        """Return a copy of the newest observation of an env before a step_id; None: it is gone."""
        step_id = int(self._words.rows.columns["step_id"][env_id])
        if not 0 < step_id < (before or 1 << 63):
            return None
        return [column[env_id].copy() for column in self._words.rows.obs]

    def adopt(self, worker: WorkerLike) -> None:
        """Take over a worker, before anything is sent to it."""

    def move(self, env_id: int, slot: int) -> None:
        """Serve an env by another slot from now on; both are between two processes."""
        self._slot_of[env_id] = slot

    def state(self, slot: int) -> SlotState:
        """Return what a slot is doing."""
        return SlotState(*self._words.progress[slot].tolist())._replace(given_ns=self._given_ns[slot])

    def pending(self, slot: int) -> tuple[int, int, int]:
        """Return (op, env_id, step_id) of the first command that a slot has to deal with; op NONE: none."""
        return int(Op.NONE), 0, 0

    def stop(self) -> None:
        """Tell all slots to end after the command under way."""
        self._words.stop[0] = 1

    def add_info_key(self, name: str) -> int:
        """Return -1: infos travel as mail here."""
        return -1


class PipeHub(_TwinHub):
    """The parent's end over the control sockets of worker processes.

    Args:
        plan, memory: the arena, its header written.
        slot_of: the slot of each env.
        workers: the processes, by worker_id; their descriptors stay theirs.
        event_fd: readable when another thread wants a wait to end; -1 for none.
    """

    def __init__(
        self, plan: ArenaPlan, memory: Any, slot_of: Sequence[int], workers: Sequence[WorkerLike], event_fd: int = -1
    ) -> None:
        super().__init__(plan, memory, slot_of)
        self._workers = list(workers)
        self._unsent = [bytearray() for _ in workers]
        self._worker_of = {slot: worker.worker_id for worker in workers for slot in worker.slots}
        self._event_fd = event_fd
        self._silent: set[int] = set()  # workers that closed their end
        self._delayed: set[int] = set()  # workers whose socket had no room for all
        self._open: dict[int, deque[Command]] = {slot: deque() for slot in self._worker_of}  # not dealt with

    def _settle(self, env_id: int, step_id: int) -> None:
        # A slot deals with its commands in order, and says nothing of those it drops.
        commands = self._open[self._slot_of[env_id]]
        while commands and commands[0].step_id <= step_id:
            commands.popleft()

    def pending(self, slot: int) -> tuple[int, int, int]:
        """Return (op, env_id, step_id) of the first command that a slot has to deal with; op NONE: none."""
        commands = self._open.get(slot)
        if not commands:
            return super().pending(slot)
        worker = self._workers[self._worker_of[slot]]
        is_unheard = self._can_hear(worker) and _is_readable(worker.control)  # it may have dealt with it
        return super().pending(slot) if is_unheard else commands[0][1:4]

    def revive(self, slot: int, answered: int) -> list[tuple[int, int, int, int]]:
        """As `reap`, for a successor: keep and return what is left to do (op, env_id, step_id, flags)."""
        super().revive(slot, answered)
        self._unsent[self._worker_of[slot]].clear()
        commands = self._open[slot]
        if commands and commands[0].step_id == answered:
            commands.popleft()
        return [(command.op, command.env_id, command.step_id, command.flags) for command in commands]

    def repost(self, slot: int, letters: Sequence[bytes | None]) -> None:
        """Give the successor of a slot what it has to do; letters go with their commands here."""
        self._deliver(list(self._open[slot]))

    def move(self, env_id: int, slot: int) -> None:
        """Serve an env by another slot from now on; both are between two processes."""
        commands = self._open[self._slot_of[env_id]]
        moved = [command._replace(slot=slot) for command in commands if command.env_id == env_id]
        rest = [command for command in commands if command.env_id != env_id]
        commands.clear()
        commands.extend(rest)
        self._open[slot] = deque(moved)
        super().move(env_id, slot)

    def _transmit(self, commands: list[Command]) -> None:
        for command in commands:
            self._open[command.slot].append(command)
        self._deliver(commands)

    def _deliver(self, commands: list[Command]) -> None:
        parcels: dict[int, list[tuple[Any, ...]]] = {}
        for command in commands:
            parcels.setdefault(self._worker_of[command.slot], []).append(tuple(command))
        for worker_id, parcel in parcels.items():
            self._unsent[worker_id] += pickle.dumps(parcel, protocol=5)
        self.pump()

    def pump(self) -> bool:
        """Go on writing commands that the sockets had no room for; tell whether some are left."""
        for worker, data in zip(self._workers, self._unsent):
            while data:
                taken = _send_some(worker.control, data)
                if not taken:
                    break
                del data[:taken]
                if data or worker.worker_id in self._delayed:
                    self._note_given(worker.slots)
            if data:
                self._delayed.add(worker.worker_id)
            else:
                self._delayed.discard(worker.worker_id)
        return any(self._unsent)

    def _note_given(self, slots: Sequence[int]) -> None:
        now = now_ns()
        for slot in slots:
            self._given_ns[slot] = now

    def _listen(self, deadline_ns: int) -> Event | None:
        poll, workers = self._make_poll()
        ready: list[tuple[int, int]] = []
        while not ready:
            left_ns = deadline_ns - now_ns()
            ready = poll.poll(min(max(0, -(-left_ns // MS)), LONGEST_POLL_MS))
            if not ready and left_ns <= 0:
                return Event("timeout", -1)
        event: Event | None = None
        for descriptor, bits in ready:
            if descriptor == self._event_fd:
                os.read(descriptor, 8)
                event = event or Event("mail", -1)
            elif descriptor == workers[descriptor].pidfd:
                self._hear_out(workers[descriptor])
                event = Event("descriptor", descriptor)
            elif bits != select.POLLOUT and self._can_hear(workers[descriptor]):
                self._read_frame(workers[descriptor])
        self.pump()
        return event

    def _make_poll(self) -> tuple[select.poll, dict[int, WorkerLike]]:
        """Return a poll over all that can happen, and whose descriptors these are."""
        poll = select.poll()
        workers: dict[int, WorkerLike] = {}
        for worker, unsent in zip(self._workers, self._unsent):
            if worker.pidfd >= 0:
                workers[worker.pidfd] = worker
                poll.register(worker.pidfd, select.POLLIN)
            if self._can_hear(worker):
                workers[worker.control.fileno()] = worker
                poll.register(worker.control.fileno(), select.POLLIN | (select.POLLOUT if unsent else 0))
        if self._event_fd >= 0:
            poll.register(self._event_fd, select.POLLIN)
        return poll, workers

    def _can_hear(self, worker: WorkerLike) -> bool:
        return worker.worker_id not in self._silent and not worker.control.closed

    def _read_frame(self, worker: WorkerLike) -> None:
        """Take in a frame that is known to be there."""
        self._note_given([slot for slot in worker.slots if self._words.progress[slot, BLOCKED_WORD]])
        try:
            frame = worker.control.recv()
        except (EOFError, OSError):  # it is about to exit: the pidfd tells of that
            self._silent.add(worker.worker_id)
        else:
            if isinstance(frame, tuple):
                self.take_frame(frame)
            else:
                worker.goodbye = frame

    def _hear_out(self, worker: WorkerLike) -> None:
        """Take in every frame that a worker has sent so far."""
        while self._can_hear(worker) and _is_readable(worker.control):
            self._read_frame(worker)

    def reap(self, slot: int) -> None:
        """Clear up after the process of a slot has ended; its envs owe what they owed."""
        super().reap(slot)
        self._open[slot].clear()
        self._unsent[self._worker_of[slot]].clear()

    def adopt(self, worker: WorkerLike) -> None:
        """Take over a replacement of a worker, or one more, before anything is sent to it."""
        if worker.worker_id == len(self._workers):
            self._workers.append(worker)
            self._unsent.append(bytearray())
        self._workers[worker.worker_id] = worker
        self._worker_of.update(dict.fromkeys(worker.slots, worker.worker_id))
        self._unsent[worker.worker_id].clear()
        self._silent.discard(worker.worker_id)

    def stop(self) -> None:
        """Tell all slots to end after the command under way.

        The end of the stream of commands is the message. Slots that see the stop word say no
        more, so that what comes next from a worker is its last word.
        """
        super().stop()
        for worker in self._workers:
            if not worker.control.closed:
                self._hear_out(worker)
                _end_stream(worker.control)


def _is_readable(control: Connection) -> bool:
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _send_some(control: Connection, data: bytearray) -> int:
    """Write what the socket takes at once; all of it if nobody will ever read."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, control.fileno())
    try:
        return end.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except BlockingIOError:
        return 0
    except OSError:  # the worker is dead; its pidfd tells of that
        return len(data)
    finally:
        end.detach()  # the descriptor stays the connection's


def _end_stream(control: Connection) -> None:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, control.fileno())
    try:
        end.shutdown(socket.SHUT_WR)
    except OSError:  # the worker is dead
        pass
    finally:
        end.detach()


# ---- the worker's end ---------------------------------------------------------------------


class LocalHub(_TwinHub):
    """The parent's end for the one slot of this process: the carrier is a queue."""

    def __init__(self, plan: ArenaPlan, memory: Any, slot_of: Sequence[int]) -> None:
        super().__init__(plan, memory, slot_of)
        self._queue_down: deque[Command] = deque()

    def _transmit(self, commands: list[Command]) -> None:
        self._queue_down.extend(commands)

    def _listen(self, deadline_ns: int) -> Event | None:
        """Nothing can happen while this thread waits: sleep."""
        time.sleep(min(max(0, deadline_ns - now_ns()), LOCAL_SLICE_NS) / 1e9)
        return Event("timeout" if now_ns() >= deadline_ns else "mail", -1)

    def next(self, slot: int) -> Command | None:
        """Return the next command; None: there is none now."""
        return self._queue_down.popleft() if self._queue_down else None

    def say(self, frame: tuple[Any, ...]) -> None:
        """Take in what the slot says."""
        self.take_frame(frame)


def make_pipe_slots(attach: AttachLike, memory: Any, control: Connection) -> list[PipeSlot]:
    """Return the worker's ends, one per slot of `attach`, over its control socket."""
    words = SharedWords(attach.plan, memory)
    carrier = Socket(control, [slot for slot, _ in attach.slots])
    return [PipeSlot(attach, slot, words, carrier, waits=True) for slot, _ in attach.slots]


def make_local_pair(attach: AttachLike, memory: Any, slots: Sequence[int]) -> tuple[LocalHub, PipeSlot]:
    """Return both ends for envs in this process; `serve` returns IDLE when nothing is left to do."""
    hub = LocalHub(attach.plan, memory, slots)
    words = SharedWords(attach.plan, memory)
    return hub, PipeSlot(attach, 0, words, hub, waits=False)
