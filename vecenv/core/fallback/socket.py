"""Both ends of the rows of worker processes without C, over the control sockets of the workers.

    SocketHub   parent: sends commands, receives frames; one poll over sockets, pidfds and the event descriptor
    SocketEnd   worker: the other end of the socket, shared by the worker's slots

A write by the parent never blocks: it keeps the bytes that do not fit into a socket, and writes them later.
"""

from __future__ import annotations

import io
import pickle
import select
import threading
from collections import deque
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from ..layout.arena import ArenaPlan
from ..layout.commands import Command, Commands
from ..layout.flags import Op
from ..parent.hub import Event
from ..system.clock import now_ns
from ..system.descriptor import Descriptor
from ..system.log_records import is_log_frame
from ..system.signals import signals_deferred
from .hub import FallbackHub
from .slot import FallbackSlot
from .words import BLOCKED_WORD, LONGEST_POLL_MS, MS, AttachLike, SharedWords, WorkerLike, numbers

__all__ = ["SocketHub", "make_socket_slots"]


class SocketHub(FallbackHub):
    """The parent's end over the control sockets of worker processes.

    Args:
        plan, memory, counters: the arena and its counters, with their headers written.
        slot_of: the slot of each env.
        workers: the worker processes, in the order of worker_id; they keep the ownership of their descriptors.
        event_fd: becomes readable when another thread ends a wait; a closed one if there is none.
    """

    def __init__(
        self,
        plan: ArenaPlan,
        memory: Any,
        counters: Any,
        slot_of: Sequence[int],
        workers: Sequence[WorkerLike],
        event_fd: Descriptor,
    ) -> None:
        super().__init__(plan, memory, counters, slot_of)
        self._workers = list(workers)
        self._worker_of = {slot: worker.worker_id for worker in workers for slot in worker.slots}
        self._event_fd = event_fd
        self._poll: select.poll | None = None  # over all descriptors; None: they have changed
        self._polled: dict[int, WorkerLike] = {}  # the pidfds and sockets in this poll
        self._may_have_unread = False  # whether an interrupt may have left frames in buffers, which no poll reports
        self._delayed: set[int] = set()  # workers with commands that did not fit into the socket
        self._blocked = numbers(self._words.progress[:, BLOCKED_WORD])
        self._open: dict[int, deque[Command]] = {slot: deque() for slot in self._worker_of}  # unfinished commands

    def _forget_command(self, env_id: int, step_id: int) -> None:
        # A slot executes its commands in order, and sends no frame for those that it drops.
        commands = self._open[self._slot_of[env_id]]
        while commands and commands[0].step_id <= step_id:
            commands.popleft()

    def pending(self, slot: int, /) -> tuple[int, int, int]:
        """Return (op, env_id, step_id) of the first unfinished command of a slot; op is NONE if there is none.

        It is also NONE if unread frames have arrived, because the command may have been finished by one of them.
        """
        commands = self._open.get(slot)
        if not commands:
            return super().pending(slot)
        worker = self._workers[self._worker_of[slot]]
        has_unread = self._can_receive(worker) and worker.control.is_readable()  # perhaps from this command
        return super().pending(slot) if has_unread else (commands[0].op, commands[0].env_id, commands[0].step_id)

    def requeue(self, slot: int, unanswered: Collection[int]) -> Commands:
        """Clear a slot for a successor; keep its unfinished commands, and return them."""
        super().requeue(slot, unanswered)
        commands = self._open[slot]
        # A slot sends no frame for a command that it drops. After the reply to a call, the frame that ends the call may
        # be missing. So all commands up to the last call that was answered are finished.
        answered = [i for i, one in enumerate(commands) if one.op == Op.CALL and one.step_id not in unanswered]
        for _ in range(answered[-1] + 1 if answered else 0):
            commands.popleft()
        return Commands.listed(commands)

    def resend_payloads(self, slot: int, payloads: Sequence[bytes | None]) -> None:
        """Send the commands that `requeue` kept to the slot's successor; each contains its payload."""
        self._deliver(list(self._open[slot]))

    def move(self, env_id: int, slot: int) -> None:
        """Move an env and its unfinished commands to another slot; both slots must be without a process."""
        commands = self._open[self._slot_of[env_id]]
        moved = [command for command in commands if command.env_id == env_id]
        rest = [command for command in commands if command.env_id != env_id]
        commands.clear()
        commands.extend(rest)
        self._open.setdefault(slot, deque()).extend(moved)  # a spare slot has no entry yet
        super().move(env_id, slot)

    def _transmit(self, commands: list[Command]) -> None:
        for command in commands:
            self._open[self._slot_of[command.env_id]].append(command)
        self._deliver(commands)

    def _deliver(self, commands: list[Command]) -> None:
        commands_of: dict[int, list[tuple[Any, ...]]] = {}
        for command in commands:
            worker_id = self._worker_of[self._slot_of[command.env_id]]
            commands_of.setdefault(worker_id, []).append(tuple(command))
        with signals_deferred():
            for worker_id, own_commands in commands_of.items():
                self._workers[worker_id].control.queue_bytes(pickle.dumps(own_commands, protocol=5))
                self._pump(self._workers[worker_id])

    def pump(self) -> bool:
        """Continue writing commands that did not fit into the sockets; return whether some are left."""
        for worker_id in tuple(self._delayed):
            self._pump(self._workers[worker_id])
        return bool(self._delayed)

    def _pump(self, worker: WorkerLike) -> None:
        written = worker.control.pump()
        has_rest = worker.control.has_unsent()
        if written and (has_rest or worker.worker_id in self._delayed):
            self._note_unblocked(worker.slots)
        if has_rest:
            self._delayed.add(worker.worker_id)
        elif self._delayed:
            self._delayed.discard(worker.worker_id)

    def _note_unblocked(self, slots: Sequence[int]) -> None:
        now = now_ns()
        for slot in slots:
            self._unblocked_ns[slot] = now

    def _wait_for_frame(self, deadline_ns: int) -> Event | None:
        if self._may_have_unread:
            self._may_have_unread = False
            with_unread = [worker for worker in self._workers if worker.control.has_buffered_frame()]
            for worker in with_unread:
                self._take_all(worker)
            if with_unread:
                return None
        poll = self._make_poll() if self._poll is None or self._delayed else self._poll
        ready: list[tuple[int, int]] = []
        while not ready:
            left_ns = deadline_ns - now_ns()
            ready = poll.poll(min(max(0, -(-left_ns // MS)), LONGEST_POLL_MS))
            if not ready and left_ns <= 0:
                return Event("timeout", -1, -left_ns)
        self._may_have_unread = True
        with signals_deferred():
            event = self._process(ready)
        self._may_have_unread = False
        return event

    def _process(self, ready: list[tuple[int, int]]) -> Event | None:
        """Process the result of a poll; return the event that ends the wait, if there is one."""
        event: Event | None = None
        for descriptor, bits in ready:
            if descriptor == self._event_fd.number:
                self._event_fd.take_wakes()
                event = event or Event("message", -1)
                continue
            worker = self._polled[descriptor]
            if descriptor == worker.pidfd.number:
                self._take_all(worker)
                event = Event("descriptor", descriptor)
            elif descriptor != worker.control.fileno():  # it was closed, and perhaps another file has the number
                self._poll = None
            elif bits != select.POLLOUT:
                self._take_received(worker)
        if self._delayed:
            self.pump()
        return event

    def _make_poll(self) -> select.poll:
        """Return a poll over all descriptors."""
        self._poll = poll = select.poll()
        self._polled = {}
        for worker in self._workers:
            if worker.pidfd.number >= 0:
                self._polled[worker.pidfd.number] = worker
                poll.register(worker.pidfd.number, select.POLLIN)
            if self._can_receive(worker):
                self._polled[worker.control.fileno()] = worker
                poll.register(worker.control.fileno(), worker.control.poll_events())
        if self._event_fd.number >= 0:
            poll.register(self._event_fd.number, select.POLLIN)
        return poll

    def _can_receive(self, worker: WorkerLike) -> bool:
        return not (worker.control.is_at_eof() or worker.control.closed)

    def _take_all(self, worker: WorkerLike) -> None:
        """Process every frame that a worker has sent so far; does not block."""
        while self._take_next(worker):
            pass

    def _take_received(self, worker: WorkerLike) -> None:
        """Process the frames that one read receives; the next poll reports the others."""
        while self._take_next(worker) and worker.control.has_buffered_frame():
            pass
        if not self._can_receive(worker):
            self._poll = None  # it would report the end of the stream for ever

    def _take_next(self, worker: WorkerLike) -> bool:
        with signals_deferred():
            blocked = [slot for slot in worker.slots if self._blocked[slot]]
            frame = worker.control.take_frame()
            if frame is None:  # nothing to read; the end of a worker is detected by its pidfd
                return False
            if blocked:
                self._note_unblocked(blocked)
            if is_log_frame(frame):
                worker.log_frames.append(frame)
                self._has_notice = True
                return True
            word = pickle.loads(frame)
            if isinstance(word, tuple):
                self.take_frame(word)
            else:
                worker.exit_report = word
            return True

    def reap(self, slot: int) -> None:
        """Clean up the state of a slot after its process has ended, and drop its unfinished commands."""
        super().reap(slot)
        self._open[slot].clear()
        self._poll = None

    def attach_worker(self, worker: WorkerLike) -> None:
        """Connect a replacement of a worker, or an additional one, before any command is sent to it."""
        if worker.worker_id == len(self._workers):
            self._workers.append(worker)
        self._workers[worker.worker_id] = worker
        self._poll = None
        self._worker_of.update(dict.fromkeys(worker.slots, worker.worker_id))

    def stop(self) -> None:
        """Signal all slots to end after the current command.

        This sets the stop word and closes the command stream. After the stop word is set, slots send no more
        frames, so the next object from a worker is its exit report.
        """
        super().stop()
        for worker in self._workers:
            if not worker.control.closed:
                self._take_all(worker)
                worker.control.shut_down_write()


# ---- the worker's end ---------------------------------------------------------------------


class SocketEnd:
    """The worker's end of the control socket, shared by its slots.

    If there is only one slot, it reads its commands itself. If there are several, a thread distributes them.
    """

    def __init__(self, control: Connection, slots: list[tuple[int, list[int]]]) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._commands = io.FileIO(control.fileno(), "rb", closefd=False)
        self._stream = io.BufferedReader(self._commands, 1 << 16)
        self._queue: deque[Command] = deque()
        self._queues: dict[int, SimpleQueue[Command | None]] = {}
        if len(slots) > 1:
            self._queues = {slot: SimpleQueue() for slot, _ in slots}
            self._slot_of = {env_id: slot for slot, env_ids in slots for env_id in env_ids}
            threading.Thread(target=self._distribute, name="commands", daemon=True).start()

    def next(self, slot: int) -> Command | None:
        """Wait for the next command of a slot; return None at the end of the stream."""
        if self._queues:
            return self._queues[slot].get()
        if not self._queue:
            self._queue.extend(self._read())
        return self._queue.popleft() if self._queue else None

    def _read(self) -> list[Command]:
        """Read one list of commands; blocks. Return an empty list at the end of the stream."""
        try:
            return [Command(*parts) for parts in pickle.load(self._stream)]
        except (EOFError, OSError, pickle.UnpicklingError):  # also a stream that ends within a list
            return []

    def _distribute(self) -> None:
        while commands := self._read():
            for command in commands:
                self._queues[self._slot_of[command.env_id]].put(command)
        for queue in self._queues.values():
            queue.put(None)

    def send_frame(self, frame: tuple[Any, ...]) -> None:
        """Send one frame to the parent; blocks while the socket is full. Any thread may call it, signals deferred."""
        with self._lock:  # a partial frame would corrupt the next one
            self._control.send_bytes(pickle.dumps(frame, protocol=5))


def make_socket_slots(attach: AttachLike, memory: Any, counters: Any, control: Connection) -> list[FallbackSlot]:
    """Return one slot object per slot in `attach`; they share the control socket."""
    words = SharedWords(attach.plan, memory, counters)
    transport = SocketEnd(control, attach.slots)
    return [FallbackSlot(attach, slot, words, transport, waits=True) for slot, _ in attach.slots]
