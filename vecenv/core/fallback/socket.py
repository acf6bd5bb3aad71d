"""Twin socket: both ends of the rows of worker processes without C, over their control sockets.

    SocketHub   parent: commands out, frames in, one poll over sockets, pidfds and the bell
    SocketEnd   worker: the same socket, shared by its slots

The parent writes only what a socket takes at once and keeps the rest, so it never blocks.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import threading
from collections import deque
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from ..layout.arena import ArenaPlan
from ..layout.rows import Op
from ..parent.hub import Event
from ..system.clock import now_ns
from ..system.signals import signals_deferred
from .hub import FallbackHub
from .slot import FallbackSlot
from .words import BLOCKED_WORD, LONGEST_POLL_MS, MS, AttachLike, Command, SharedWords, WorkerLike

__all__ = ["SocketHub", "make_socket_slots"]


class SocketHub(FallbackHub):
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
        self._worker_of = {slot: worker.worker_id for worker in workers for slot in worker.slots}
        self._event_fd = event_fd
        self._delayed: set[int] = set()  # workers whose socket had no room for all
        self._open: dict[int, deque[Command]] = {slot: deque() for slot in self._worker_of}  # not dealt with

    def _forget_command(self, env_id: int, step_id: int) -> None:
        # A slot deals with its commands in order, and says nothing of those it drops.
        commands = self._open[self._slot_of[env_id]]
        while commands and commands[0].step_id <= step_id:
            commands.popleft()

    def pending(self, slot: int, /) -> tuple[int, int, int]:
        """Return (op, env_id, step_id) of the first command that a slot has to deal with; op NONE: none."""
        commands = self._open.get(slot)
        if not commands:
            return super().pending(slot)
        worker = self._workers[self._worker_of[slot]]
        has_unread = self._can_receive(worker) and worker.control.is_readable()  # it may have dealt with it
        return super().pending(slot) if has_unread else commands[0][1:4]

    def requeue(self, slot: int, unanswered: Collection[int]) -> list[tuple[int, int, int, int]]:
        """As `reap`, for a successor: keep and return what is left to do (op, env_id, step_id, flags)."""
        super().requeue(slot, unanswered)
        commands = self._open[slot]
        # What a slot drops it says nothing of, and the frame that ends a call may be missing behind its answer.
        answered = [i for i, one in enumerate(commands) if one.op == Op.CALL and one.step_id not in unanswered]
        for _ in range(answered[-1] + 1 if answered else 0):
            commands.popleft()
        return [(command.op, command.env_id, command.step_id, command.flags) for command in commands]

    def resend_payloads(self, slot: int, payloads: Sequence[bytes | None]) -> None:
        """Give the successor of a slot what it has to do; payloads go with their commands here."""
        self._deliver(list(self._open[slot]))

    def move(self, env_id: int, slot: int) -> None:
        """Serve an env by another slot from now on; both are between two processes."""
        commands = self._open[self._slot_of[env_id]]
        moved = [command._replace(slot=slot) for command in commands if command.env_id == env_id]
        rest = [command for command in commands if command.env_id != env_id]
        commands.clear()
        commands.extend(rest)
        self._open.setdefault(slot, deque()).extend(moved)  # a spare one had none so far
        super().move(env_id, slot)

    def _transmit(self, commands: list[Command]) -> None:
        for command in commands:
            self._open[command.slot].append(command)
        self._deliver(commands)

    def _deliver(self, commands: list[Command]) -> None:
        commands_of: dict[int, list[tuple[Any, ...]]] = {}
        for command in commands:
            commands_of.setdefault(self._worker_of[command.slot], []).append(tuple(command))
        for worker_id, own_commands in commands_of.items():
            self._workers[worker_id].control.queue_bytes(pickle.dumps(own_commands, protocol=5))
        self.pump()

    def pump(self) -> bool:
        """Go on writing commands that the sockets had no room for; tell whether some are left."""
        for worker in self._workers:
            written = worker.control.has_unsent() and worker.control.pump()
            has_rest = worker.control.has_unsent()
            if written and (has_rest or worker.worker_id in self._delayed):
                self._note_unblocked(worker.slots)
            if has_rest:
                self._delayed.add(worker.worker_id)
            else:
                self._delayed.discard(worker.worker_id)
        return bool(self._delayed)

    def _note_unblocked(self, slots: Sequence[int]) -> None:
        now = now_ns()
        for slot in slots:
            self._unblocked_ns[slot] = now

    def _wait_for_frame(self, deadline_ns: int) -> Event | None:
        with_unread = [worker for worker in self._workers if worker.control.has_buffered_frame()]
        for worker in with_unread:
            self._take_all(worker)
        if with_unread:
            return None
        poll, workers = self._make_poll()
        ready: list[tuple[int, int]] = []
        while not ready:
            left_ns = deadline_ns - now_ns()
            ready = poll.poll(min(max(0, -(-left_ns // MS)), LONGEST_POLL_MS))
            if not ready and left_ns <= 0:
                return Event("timeout", -1, -left_ns)
        event: Event | None = None
        for descriptor, bits in ready:
            if descriptor == self._event_fd:
                os.read(descriptor, 8)
                event = event or Event("message", -1)
            elif descriptor == workers[descriptor].pidfd:
                self._take_all(workers[descriptor])
                event = Event("descriptor", descriptor)
            elif bits != select.POLLOUT:
                self._take_all(workers[descriptor])
        self.pump()
        return event

    def _make_poll(self) -> tuple[select.poll, dict[int, WorkerLike]]:
        """Return a poll over all that can happen, and whose descriptors these are."""
        poll = select.poll()
        workers: dict[int, WorkerLike] = {}
        for worker in self._workers:
            if worker.pidfd >= 0:
                workers[worker.pidfd] = worker
                poll.register(worker.pidfd, select.POLLIN)
            if self._can_receive(worker):
                workers[worker.control.fileno()] = worker
                poll.register(worker.control.fileno(), worker.control.poll_events())
        if self._event_fd >= 0:
            poll.register(self._event_fd, select.POLLIN)
        return poll, workers

    def _can_receive(self, worker: WorkerLike) -> bool:
        return not (worker.control.is_at_eof() or worker.control.closed)

    def _take_all(self, worker: WorkerLike) -> None:
        """Take in every frame that a worker has sent so far."""
        while self._take_next(worker):
            pass

    def _take_next(self, worker: WorkerLike) -> bool:
        with signals_deferred():
            blocked = [slot for slot in worker.slots if self._words.progress[slot, BLOCKED_WORD]]
            frame = worker.control.take_frame()
            if frame is None:  # its pidfd tells of its end
                return False
            self._note_unblocked(blocked)
            word = pickle.loads(frame)
            if isinstance(word, tuple):
                self.take_frame(word)
            else:
                worker.exit_report = word
            return True

    def reap(self, slot: int) -> None:
        """Clear up after the process of a slot has ended; its envs owe what they owed."""
        super().reap(slot)
        self._open[slot].clear()

    def attach_worker(self, worker: WorkerLike) -> None:
        """Take over a replacement of a worker, or one more, before anything is sent to it."""
        if worker.worker_id == len(self._workers):
            self._workers.append(worker)
        self._workers[worker.worker_id] = worker
        self._worker_of.update(dict.fromkeys(worker.slots, worker.worker_id))

    def stop(self) -> None:
        """Tell all slots to end after the command under way.

        The end of the stream of commands is the message. Slots that see the stop word say no
        more, so that what comes next from a worker is its last word.
        """
        super().stop()
        for worker in self._workers:
            if not worker.control.closed:
                self._take_all(worker)
                worker.control.shut_down_write()


# ---- the worker's end ---------------------------------------------------------------------


class SocketEnd:
    """The worker's side of the control socket, shared by its slots.

    One slot reads its commands itself. Several have a thread that distributes them.
    """

    def __init__(self, control: Connection, slots: list[int]) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._commands = io.FileIO(control.fileno(), "rb", closefd=False)
        self._stream = io.BufferedReader(self._commands, 1 << 16)
        self._queue: deque[Command] = deque()
        self._queues: dict[int, SimpleQueue[Command | None]] = {}
        if len(slots) > 1:
            self._queues = {slot: SimpleQueue() for slot in slots}
            threading.Thread(target=self._distribute, name="commands", daemon=True).start()

    def next(self, slot: int) -> Command | None:
        """Wait for the next command of a slot; None: the parent sends no more."""
        if self._queues:
            return self._queues[slot].get()
        if not self._queue:
            self._queue.extend(self._read())
        return self._queue.popleft() if self._queue else None

    def _read(self) -> list[Command]:
        """Read one parcel of commands; empty at the end of the stream."""
        try:
            return [Command(*parts) for parts in pickle.load(self._stream)]
        except (EOFError, OSError, pickle.UnpicklingError):  # also within a parcel: the parent gave it up
            return []

    def _distribute(self) -> None:
        while commands := self._read():
            for command in commands:
                self._queues[command.slot].put(command)
        for queue in self._queues.values():
            queue.put(None)

    def send_frame(self, frame: tuple[Any, ...]) -> None:
        """Send one frame to the parent."""
        with signals_deferred(), self._lock:  # half a frame would take the next one along
            self._control.send(frame)


def make_socket_slots(attach: AttachLike, memory: Any, control: Connection) -> list[FallbackSlot]:
    """Return the worker's ends, one per slot of `attach`, over its control socket."""
    words = SharedWords(attach.plan, memory)
    transport = SocketEnd(control, [slot for slot, _ in attach.slots])
    return [FallbackSlot(attach, slot, words, transport, waits=True) for slot, _ in attach.slots]
