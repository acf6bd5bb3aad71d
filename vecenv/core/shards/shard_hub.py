"""ShardHub: the hub of the driver's pool. Commands go to the shards of their envs, and rows of all shards come back.

    send    -> Ledger -> ShardLink -> carrier -> shards
    recv    <- RowStore <- Ledger <- frames <- carrier <- shards

Numbers. The pool numbers commands over all envs, each shard numbers its own ones: `ShardLink.next_step_id`. The ledger
has both numbers of the newest command of each env. Rows and messages of other commands are superseded, and dropped.
The arena belongs to this process alone: shards have arenas of their own.

Tasks. A task commands the envs of its shard by itself, and its reply contains these commands, which are numbered then.
Other commands wait until no task is under way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import WorkerError, add_notes, locate, place_of
from ...pickling import load
from ..layout import messages
from ..layout.arena import INFO_KEY_NBYTES, ArenaPlan
from ..layout.columns import INFO_KEYS
from ..layout.commands import Command, Commands
from ..layout.flags import CommandFlag, Form, Op, RowFlag
from ..layout.rows import AnyRows
from ..layout.spec import Array
from ..parent.hub import Event, Hub, Refusal, SlotState
from ..system.clock import now_ns
from ..system.signals import signals_deferred
from .carrier import Carrier, CarrierEvent, Lost, Replied, Unavailable
from .frames import Frame, FrameLayout, unpack_bare
from .ledger import Ledger
from .requests import AddInfoKey, Cancel, Close, ForgetTask, Mail, Steps, TaskReply
from .row_store import RowStore
from .shard_link import POLL_NS, ShardLink
from .shard_log_records import ShardLogRecords
from .task_calls import TaskCall

if TYPE_CHECKING:  # it has the hub
    from .shard_supervisor import ShardSupervisor

__all__ = ["ShardHub"]


class ShardHub(Hub):
    """The driver's end of all shards; see `Hub` for the public methods.

    Args:
        plan, memory: the arena.
        shares: the env ids of each shard, which are consecutive.
        carrier: the transport.
        layout: of frames.
        supervisor: replaces shards, and takes their news.
        log_records: the log records of shards.
        has_cells: whether infos may have cells, as with C.
        is_timed: whether to measure waits.

    Attributes:
        links: the requests to each shard.
        info_keys: the keys that have cells.
    """

    def __init__(
        self,
        plan: ArenaPlan,
        memory: Any,
        shares: Sequence[Sequence[int]],
        links: Sequence[ShardLink],
        carrier: Carrier,
        layout: FrameLayout,
        supervisor: ShardSupervisor,
        log_records: ShardLogRecords,
        *,
        has_cells: bool,
        is_timed: bool,
    ) -> None:
        self._plan = plan
        self._is_timed = is_timed
        self._carrier = carrier
        self._layout = layout
        self._supervisor = supervisor
        self._log_records = log_records
        self.links = links
        self._parts: list[tuple[int, Steps | Commands]] = []  # of the newest request, by shard, in its numbers
        self.info_keys: list[str] = []
        self._has_cells = has_cells
        self._slices = [slice(share[0], share[-1] + 1) for share in shares]
        self._shard_of = np.concatenate([np.full(len(share), shard) for shard, share in enumerate(shares)])
        self._first_of = np.array([share[0] for share in shares])
        self._most_nbytes = [layout.most_nbytes(len(share)) for share in shares]
        self._all_ids = np.arange(plan.num_envs)
        self._ledger = Ledger(self._shard_of, len(shares))
        self._store = RowStore(plan, memory)
        self._next_step_id = 1
        self._actions = plan.actions(memory)  # of the newest command of each env
        self._newest = Commands.of(Op.NONE, self._all_ids)  # command of each env, in the numbers of its shard
        #: by shard and local number: step_id of each call that is not answered
        self._calls: list[dict[int, int]] = [{} for _ in shares]
        self._local_calls: dict[int, int] = {}  # local number of each of the newest calls
        self._tasks: list[list[TaskCall]] = [[] for _ in shares]  # that have not ended
        self._forgotten: deque[int] = deque()  # numbers of tasks that shards may drop
        self._generations = [0] * len(shares)  # number of predecessors of each shard
        self._messages: list[list[bytes]] = [[] for _ in shares]
        self._errors: list[tuple[int, Exception]] = []  # raised in shards, with their numbers
        self._num_steps = [0] * len(shares)
        self._steps_before = [0] * len(shares)  # of predecessors
        self._first_wait_ns = self._waited_ns = 0

    def continue_from(self, step_id: int, /) -> None:
        if step_id < self._next_step_id:
            raise ValueError("step_ids must not decrease")
        self._next_step_id = step_id

    # ---- sending ---------------------------------------------------------------------------

    def send(
        self, leaves: tuple[Array, ...], env_ids: Array | None, ordered: bool, form: Form, /
    ) -> tuple[str, int] | None:
        self._finish_tasks()
        refusal = self._ledger.refusal(Op.STEP, env_ids, ordered)
        if refusal is not None:
            return refusal
        began_ns = now_ns()
        with signals_deferred():
            rows = slice(None) if env_ids is None else env_ids
            count = self._plan.num_envs if env_ids is None else len(env_ids)
            for leaf, column, values in zip(self._plan.action.leaves, self._actions, leaves):
                column[rows] = values.reshape(count, *leaf.shape)
            self._newest.table[rows] = Commands.of(Op.STEP, self._all_ids[rows], flags=form).table
            local_ids = np.empty(count, np.int64)
            self._parts = []
            for shard, chosen, local_envs in self._split(env_ids):
                mine = Steps(local_envs, tuple(leaf[chosen] for leaf in leaves), int(form))
                self._parts.append((shard, mine))
                local_ids[chosen] = self._number(shard, len(local_ids[chosen]))
                self.links[shard].add(mine)
            self._register(Op.STEP, env_ids, local_ids, ordered)
            for shard, _ in self._parts:
                self._ask(shard, all_rows=ordered)
        if self._first_wait_ns:
            self._waited_ns += now_ns() - began_ns
        return None

    def command(self, commands: Commands, ordered: bool) -> Refusal | None:
        self._finish_tasks()
        op, env_ids = commands.op, commands.env_ids
        refusal = self._ledger.refusal(op, env_ids, ordered)
        if refusal is not None:
            return refusal
        with signals_deferred():
            commands.number(self._next_step_id)
            local = commands.select(slice(None))
            self._parts = []
            for shard, chosen, local_envs in self._split(env_ids):
                local.table["step_id"][chosen] = self._number(shard, len(chosen))
                mine = local.select(chosen)
                mine.table["env_id"] = local_envs
                self._parts.append((shard, mine))
                self.links[shard].add(mine)
            if op == Op.CALL:
                self._register_calls(commands, local.table["step_id"])
            else:
                self._newest.table[env_ids] = local.table
                for env_id, payload in zip(env_ids.tolist(), local.payloads):
                    self._newest.payloads[env_id] = payload
                self._register(op, env_ids, local.table["step_id"], ordered)
            for shard, _ in self._parts:
                is_call = op == Op.CALL
                self._ask(shard, all_rows=self._ledger.is_ordered and not is_call, least=0 if is_call else 1)
        return None

    def take_parts(self) -> list[tuple[int, Steps | Commands]]:
        """Return the parts of the newest request, once: the shard, and its commands in the numbers of the shard."""
        parts, self._parts = self._parts, []
        return parts

    def _split(self, env_ids: Array | None) -> list[tuple[int, Any, Array | None]]:
        """Return the shards of a request, which commands are theirs, and their envs in the numbers of the shard."""
        if env_ids is None:
            return [(shard, mine, None) for shard, mine in enumerate(self._slices)]
        shards = self._shard_of[env_ids]
        chosen_of = {shard: np.flatnonzero(shards == shard) for shard in np.unique(shards).tolist()}
        return [(shard, chosen, env_ids[chosen] - self._first_of[shard]) for shard, chosen in chosen_of.items()]

    def _number(self, shard: int, count: int) -> Array:
        """Number commands of a shard; return their numbers."""
        first = self.links[shard].number_commands(count)
        return np.arange(first, first + count)

    def _register(self, op: int, env_ids: Array | None, local_ids: Array, ordered: bool) -> None:
        """Enter the newest request into the ledger."""
        ids = self._all_ids if env_ids is None else env_ids
        step_ids = np.arange(self._next_step_id, self._next_step_id + len(ids))
        self._next_step_id += len(ids)
        self._ledger.add(op, ids, step_ids, local_ids, ordered)

    def _register_calls(self, calls: Commands, local_ids: Array) -> None:
        self._local_calls = dict(zip(calls.table["step_id"].tolist(), local_ids.tolist()))
        self._next_step_id += len(calls)
        for call, local in zip(calls, local_ids.tolist()):
            self._calls[int(self._shard_of[call.env_id])][local] = call.step_id

    def _ask(self, shard: int, *, all_rows: bool, least: int = 1) -> None:
        """Send the operations that are queued for a shard, unless two requests are in flight.

        Args:
            shard: number of the shard.
            all_rows: whether the shard answers only when it has all rows.
            least: number of rows with which it answers else.
        """
        owed = self._ledger.num_missing_of[shard]
        most_nbytes = max([self._most_nbytes[shard], *(call.most_nbytes for call in self._tasks[shard])])
        self.links[shard].ask(owed if all_rows else min(least, owed), most_nbytes)

    def tell(self, shard: int, op: Any) -> None:
        """Queue an operation for a shard that no row answers, and send it soon."""
        self.links[shard].add(op)
        self._ask(shard, all_rows=False, least=0)

    # ---- tasks -----------------------------------------------------------------------------

    def share(self, data: bytes) -> Any:
        """Return a handle of a value that the requests of many tasks refer to."""
        return self._carrier.share(data)

    def forget_task(self, task_id: int) -> None:
        """Let shards drop a task, with the next one that is submitted. Any thread may call this at any time."""
        self._forgotten.append(task_id)

    def submit(self, call: TaskCall) -> None:
        """Begin a task, after those of its shard that are under way; its envs owe nothing."""
        error = self._supervisor.find_failure(call.shard)
        if error is not None:
            call.end(None, error, is_lost=True)
            return
        with signals_deferred():
            while self._forgotten:
                op = ForgetTask(self._forgotten.popleft())
                for link in self.links:
                    link.add(op)
            self._tasks[call.shard].append(call)
            self._send_tasks(call.shard)

    def _send_tasks(self, shard: int) -> None:
        """Send the tasks that the present process of a shard was not sent."""
        link = self.links[shard]
        if link.is_open:
            for call in self._tasks[shard]:
                if not call.is_sent:
                    op, shared, _ = call.request(self._generations[shard])
                    link.add(op, shared)
            self._ask(shard, all_rows=False, least=0)

    def wait_for_task(self, calls: Sequence[TaskCall], deadline_ns: int) -> Event | None:
        """Wait until one of these calls has ended, then return None; return the event if another one comes first."""
        return self._wait_until(lambda: any(call.is_done for call in calls), int, deadline_ns)

    def _finish_tasks(self) -> None:
        """Wait until no task is under way: the commands of tasks are numbered before all later ones."""
        while any(self._tasks):
            self._supervisor.check_not_closing()
            self._wait_once(0, now_ns() + POLL_NS)

    def _take_task(self, shard: int, reply: TaskReply) -> None:
        """Number the commands of a task that has ended."""
        link = self.links[shard]
        for op in reply.executed:
            env_ids = self._all_ids[self._slices[shard]] if op.env_ids is None else op.env_ids
            link.number_commands(len(env_ids))
            self._supervisor.note_executed(shard, op)
        if reply.records is not None:
            self._supervisor.note_records(shard, reply.records, np.arange(len(reply.records)))
            if reply.obs:
                self._store.put_obs(self._slices[shard], reply.obs, reply.records["step_id"])
        error = None if reply.error is None else messages.unpack_error(reply.error)
        self._tasks[shard].pop(0).end(reply.value, error)

    def fail_tasks(self, shard: int, error: Exception) -> None:
        """End the tasks of a shard that will not be replaced, or is built again."""
        for call in self._tasks[shard]:
            call.end(None, error, is_lost=True)
        self._tasks[shard] = []

    # ---- receiving -------------------------------------------------------------------------

    def recv(self, min_count: int, max_count: int, deadline_ns: int, /) -> tuple[AnyRows, int] | Event:
        ledger = self._ledger
        event = self._wait_until(lambda: ledger.gather(min_count), lambda: ledger.count_wanted(min_count), deadline_ns)
        if event is not None:
            return event
        with signals_deferred():
            return self._deliver(ledger.take(max_count))

    def recv_envs(self, env_ids: Array, deadline_ns: int, /) -> tuple[AnyRows, int] | Event:
        ledger = self._ledger
        event = self._wait_until(
            lambda: ledger.have_arrived(env_ids), lambda: len(ledger.missing(env_ids)), deadline_ns
        )
        if event is not None:
            return event
        with signals_deferred():
            for env_id in env_ids.tolist():
                ledger.forget(env_id)
            return self._deliver(env_ids)

    def _deliver(self, env_ids: Array) -> tuple[AnyRows, int]:
        rows, flags = self._store.deliver(env_ids)
        return rows, flags | RowFlag.NOTICE if self._log_records.has_any() else flags

    def _wait_until(
        self, is_done: Callable[[], bool], count_wanted: Callable[[], int], deadline_ns: int
    ) -> Event | None:
        """Wait until `is_done` returns True, then return None; return the event if another one comes first.

        Args:
            is_done: checked after each change.
            count_wanted: returns how many further rows the caller waits for; 0: for the results of calls.
            deadline_ns: see `Hub.recv`.
        """
        if deadline_ns < 0:
            deadline_ns = now_ns() - deadline_ns
        while not is_done():
            began_ns = now_ns()
            event = self._wait_once(count_wanted(), deadline_ns)
            if self._is_timed:
                self._first_wait_ns = self._first_wait_ns or began_ns
                self._waited_ns += now_ns() - began_ns
            if event is not None and not is_done():
                return event
        return None

    def _wait_once(self, wanted: int, deadline_ns: int) -> Event | None:
        """Send the requests that are due, and handle the events of one wait of the carrier."""
        if self._errors:
            raise self._errors.pop(0)[1]
        now = now_ns()
        due_ns = min(self._supervisor.repair(now), *(link.advance(now) for link in self.links))
        self._ask_idle_shards(wanted)
        events = self._carrier.wait(min(deadline_ns, due_ns))
        waited_ns = now_ns() - now
        with signals_deferred():
            for event in events:
                self._take(event)
        heard = {event.shard for event in events if isinstance(event, Replied)}
        for shard, link in enumerate(self.links):
            if shard not in heard:
                link.note_silence(waited_ns)
        if self._supervisor.take_failure():
            return Event("descriptor", -1)
        late_ns = now_ns() - deadline_ns
        if not events and late_ns >= 0:
            return Event("timeout", -1, late_ns)
        if not events and now_ns() < due_ns:  # `interrupt` was called
            return Event("message", -1)
        return None

    def _ask_idle_shards(self, wanted: int) -> None:
        """Send a request to each shard that has none and whose answers are awaited, or that has operations queued."""
        ledger = self._ledger
        num_missing = ledger.num_missing
        for shard, link in enumerate(self.links):
            owed = ledger.num_missing_of[shard]
            awaited = bool(self._tasks[shard]) or (owed if wanted > 0 else bool(self._calls[shard]))
            waits = link.num_in_flight == 0 and awaited
            if waits or link.has_ops:
                share = math.ceil(wanted * owed / num_missing) if wanted > 0 else 0
                self._ask(shard, all_rows=ledger.is_ordered and wanted > 0, least=share)

    def wait(self, deadline_ns: int, /) -> Event:
        """Sleep until a message arrives, or another event occurs."""
        return self._wait_until(lambda: any(self._messages), int, deadline_ns) or Event("message", -1)

    def waits(self) -> tuple[int, int]:
        """Do the same as `Hub.waits`; the sending of steps counts, too, since it takes about as long as the answers."""
        return self._first_wait_ns, self._waited_ns

    # ---- events of the carrier -------------------------------------------------------------

    def _take(self, event: CarrierEvent) -> None:
        link = self.links[event.shard]
        if isinstance(event, Lost):
            self._supervisor.handle(event)
        elif isinstance(event, Unavailable):
            link.repeat_after_pause(now_ns())
        elif not link.is_open:
            self._supervisor.note_opened(event.shard, unpack_bare(event.data))
        else:
            self._take_replies(event)

    def _take_replies(self, event: Replied) -> None:
        link = self.links[event.shard]
        link.bytes_down += len(event.data)
        for frame in link.receive(self._layout.unpack(event.data)):
            self._num_steps[event.shard] = frame.num_steps
            if len(frame.mail):
                self._take_mail(event.shard, load(frame.mail))
            if "record" in frame.columns:
                self._supervisor.note_records(event.shard, frame.columns["record"], frame.columns["env_id"])
            if frame.count:
                self._take_rows(event.shard, frame)

    def _take_mail(self, shard: int, mail: Mail) -> None:
        if mail.task is not None:  # before the restore points that are among its commands
            self._take_task(shard, mail.task)
        self._supervisor.note_news(shard, mail)
        for message in mail.messages:
            self._take_message(shard, message)
        if mail.error is not None:
            error = messages.unpack_error(mail.error)
            if isinstance(error, WorkerError):  # for `Pool.restart`: the workers of the pool are the shards
                locate(error, **{**place_of(error), "worker_id": shard})
                add_notes(error, [f"raised in shard {shard}"])
            self._errors.append((shard, error))

    def _take_message(self, shard: int, message: bytes) -> None:
        """Keep a message under the numbers of the pool, unless its command was superseded."""
        local, env_id = messages.numbers_of(message)
        env_id += int(self._first_of[shard])
        step_id = self._calls[shard].pop(local, 0)
        if local and not step_id:
            if not self._ledger.awaits(env_id, local):
                return
            step_id = int(self._ledger.step_ids[env_id])
        self._messages[shard].append(messages.renumber(message, step_id, env_id))

    def _take_rows(self, shard: int, frame: Frame) -> None:
        """Take the rows of a frame, except those of superseded commands."""
        ids = frame.columns["env_id"] + self._first_of[shard]
        is_taken = self._ledger.select_awaited(ids, frame.columns["step_id"])
        ids = ids[is_taken]
        if len(ids):
            self._store.take(frame, is_taken, ids, self._ledger.step_ids[ids])
            self._ledger.arrive(shard, ids)

    # ---- messages and state ----------------------------------------------------------------

    def take_messages(self, slot: int) -> list[bytes]:
        found, self._messages[slot] = self._messages[slot], []
        return found

    def outstanding(self) -> int:
        return self._ledger.num_owed

    def owed(self, env_id: int, /) -> tuple[int, int]:
        return self._ledger.owed(env_id)

    def cancel(self, env_id: int, /) -> None:
        if self._ledger.owed(env_id)[0] != Op.NONE:
            shard = int(self._shard_of[env_id])
            self.tell(shard, Cancel(env_id - int(self._first_of[shard])))
        self._ledger.forget(env_id)

    def add_info_key(self, name: str, /) -> int:
        fits = len(self.info_keys) < INFO_KEYS and len(name.encode()) < INFO_KEY_NBYTES and "\0" not in name
        if not self._has_cells or not fits:
            return -1
        self.info_keys.append(name)
        for link in self.links:
            link.add(AddInfoKey(name))
        return len(self.info_keys) - 1

    def last_delivered_seed(self, env_id: int, before: int) -> int | None:
        return self._store.newest_seed(env_id, before)

    def last_delivered_obs(self, env_id: int, before: int) -> list[Array] | None:
        """Return a copy of the newest observation of an env; `before` is in the numbers of its shard."""
        return self._store.newest_obs(env_id, before)

    def state(self, slot: int) -> SlotState:
        """Return the number of steps of a shard; it watches its operations itself."""
        return SlotState(int(Op.NONE), 0, 0, 0, 0, self._steps_before[slot] + self._num_steps[slot])

    # ---- shards that are replaced ------------------------------------------------------------

    def local_id(self, env_id: int, step_id: int) -> int:
        """Return the number of a command in its shard: of a call, or of the newest other command of an env."""
        return self._local_calls.get(step_id) or int(self._ledger.local_ids[env_id])

    def owes(self, shard: int) -> bool:
        """Return whether an env of a shard owes an answer that has not arrived."""
        return self._ledger.num_missing_of[shard] > 0

    def queued(self, shard: int, calls: Mapping[int, Command]) -> Commands:
        """Return the commands of a shard that are not answered, in the numbers of the shard.

        Args:
            shard: number of the shard.
            calls: by step_id, those that must be made.
        """
        ledger, first, index = self._ledger, int(self._first_of[shard]), self._slices[shard]
        missing = np.array(ledger.missing(range(index.start, index.stop)), np.int64)
        found = self._newest.select(missing)
        found.table["env_id"], found.table["step_id"] = missing - first, ledger.local_ids[missing]
        for row, (env_id, flags) in enumerate(zip(missing.tolist(), found.table["flags"].tolist())):
            if found.table["op"][row] == Op.STEP and not flags & CommandFlag.PAYLOAD:
                found.payloads[row] = tuple(column[env_id].tobytes() for column in self._actions)
        made = [
            calls[step_id]._replace(env_id=calls[step_id].env_id - first, step_id=local)
            for local, step_id in self._calls[shard].items()
            if step_id in calls
        ]
        return Commands.concat([found, Commands.listed(made)])

    def awaits(self, env_id: int, local_id: int) -> bool:
        """Return whether the command with this number in its shard is the one that an env owes the answer to."""
        return self._ledger.awaits(env_id, local_id)

    def begin_again(self, shard: int, *, is_new: bool) -> None:
        """Prepare for another process of a shard: nothing that was sent to the old one counts any more.

        Args:
            shard: number of the shard.
            is_new: whether its envs are new, so that its commands are numbered from 1.
        """
        self._steps_before[shard] += self._num_steps[shard]
        self._num_steps[shard] = 0
        self._generations[shard] += 1
        for call in self._tasks[shard]:
            call.forget_sent()
        self.links[shard].begin(is_new=is_new)
        if is_new:
            self._calls[shard].clear()
            self._store.forget(self._slices[shard])

    def serve(self, shard: int) -> None:
        """Begin to send requests to a shard that has opened its envs."""
        self.links[shard].open()
        if self._tasks[shard]:
            self._send_tasks(shard)
        elif self.links[shard].has_ops or self.owes(shard):
            self._ask(shard, all_rows=self._ledger.is_ordered)

    def wait_briefly(self, deadline_ns: int) -> None:
        """Handle the events of one wait; rows and messages are kept."""
        self._wait_once(0, deadline_ns)

    def has_errors(self) -> bool:
        """Return whether the next wait raises an exception of a shard."""
        return bool(self._errors)

    def close_envs(self, shards: Sequence[int], timeout: float | None, until_ns: int) -> Exception | None:
        """Have shards close their envs; return the exception of the first shard in which this raises one.

        Args:
            shards: those that are not lost.
            timeout: seconds that each shard has for that; None: no limit.
            until_ns: when to stop waiting for their replies, on the monotonic clock.
        """
        self._errors.clear()
        for shard in shards:
            self.links[shard].add(Close(timeout))
        while now_ns() < until_ns:
            for link in self.links:
                if link.has_ops:
                    link.ask(0, 0)
            if not any(self.links[shard].num_in_flight for shard in shards):
                break
            for event in self._carrier.wait(min(until_ns, *(link.advance(now_ns()) for link in self.links))):
                if isinstance(event, Lost):
                    self.links[event.shard].begin()
                elif self.links[event.shard].is_open:
                    self._take(event)
                    if self.links[event.shard].num_in_flight or self.links[event.shard].has_ops:
                        # of an earlier request: only exceptions of `close` are returned
                        self._errors = [pair for pair in self._errors if pair[0] != event.shard]
        return min(self._errors, key=lambda pair: pair[0], default=(0, None))[1]
