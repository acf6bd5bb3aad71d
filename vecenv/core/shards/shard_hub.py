"""ShardHub: the hub of the driver's pool. Commands go to the shards of their envs, and rows of all shards come back.

    send    -> NewestCommands -> ShardLink -> carrier -> shards
    recv    <- RowStore <- NewestCommands <- frames <- carrier <- shards

`NewestCommands` has the newest command of each env. Rows of other commands are superseded, and dropped. The arena
belongs to this process alone: shards have arenas of their own.

Tasks. A task commands the envs of its shard by itself, and its reply contains these commands, which enter the journal
then. Tasks that run in several shards use the same step_ids, which depend on the earlier commands of their shard alone.
Other commands wait until no task is under way, and have higher numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import WorkerError, add_notes, locate, place_of
from ...values.pickling import load
from ..layout import messages
from ..layout.arena import INFO_KEY_NBYTES, ArenaPlan
from ..layout.columns import INFO_KEYS
from ..layout.commands import Command, Commands
from ..layout.flags import CommandFlag, Form, Op, RowFlag
from ..layout.rows import AnyRows
from ..layout.spec import Array
from ..parent.hub import Event, Hub, Refusal, SlotState
from ..recovery.journal import Journal
from ..recovery.resume import read_records
from ..system.clock import NEVER_NS, now_ns
from ..system.signals import signals_deferred
from .carrier import Carrier, CarrierEvent, Lost, Replied, Unavailable
from .frames import Frame, FrameLayout, unpack_bare
from .newest_commands import NewestCommands
from .requests import AddInfoKey, Attachment, Cancel, Close, ForgetTask, Steps, TaskReply
from .row_store import RowStore
from .shard_link import POLL_NS, ShardLink
from .shard_log_records import ShardLogRecords
from .shard_table import ShardTable
from .task_calls import TaskCall

if TYPE_CHECKING:  # it has the hub
    from .shard_supervisor import ShardSupervisor

__all__ = ["ShardHub"]

#: Longest time without a reply that one wait may add; if it took longer, this process was stopped. Half of it is the
#: longest time between two looks at all shards.
_MOST_SILENT_NS = 2_000_000_000


class ShardHub(Hub):
    """The driver's end of all shards; see `Hub` for the public methods.

    Args:
        plan, memory: the arena.
        shares: the env ids of each shard, which are consecutive.
        carrier: the transport.
        journal: the log of the pool, which receives the commands of tasks here; None: nothing is recorded.
        log_records: the log records of shards.
        table: gets the steps and the last answer of each shard.
        has_cells: whether infos may have cells, as with C.
        is_timed: whether to measure waits.

    Attributes:
        links: the requests to each shard.
        info_keys: the keys that have cells.
        store: the newest rows and records.
        supervisor: replaces shards, and handles their notices; set before the first request.
    """

    supervisor: ShardSupervisor

    def __init__(
        self,
        plan: ArenaPlan,
        memory: Any,
        shares: Sequence[Sequence[int]],
        carrier: Carrier,
        journal: Journal | None,
        log_records: ShardLogRecords,
        table: ShardTable,
        *,
        has_cells: bool,
        is_timed: bool,
    ) -> None:
        self._plan, self._memory = plan, memory
        self._is_timed = is_timed
        self._carrier = carrier
        self._layout = layout = FrameLayout(plan, has_records=journal is not None)
        self._journal = journal
        self._log_records = log_records
        self.num_slots = len(shares)
        self.links = [ShardLink(shard, carrier) for shard in range(self.num_slots)]
        self.info_keys: list[str] = []
        self._has_cells = has_cells
        self._slices = [slice(share[0], share[-1] + 1) for share in shares]
        self._shard_of = np.concatenate([np.full(len(share), shard) for shard, share in enumerate(shares)])
        self._most_nbytes = [layout.most_nbytes(len(share)) for share in shares]
        self._all_ids = np.arange(plan.num_envs)
        self._newest = NewestCommands(self._shard_of, len(shares), table.is_owed, table.has_arrived)
        self.store = RowStore(plan, memory, layout)
        self._next_step_id = 1
        self._actions = plan.actions(memory)  # actions of each env's newest command
        self._actions_of = [tuple([column[mine] for column in self._actions]) for mine in self._slices]
        self._replies: dict[int, Frame] = {}  # replies whose rows were not taken yet, one of each shard at most
        self._calls: list[set[int]] = [set() for _ in shares]  # by shard: step_ids of the calls that are not answered
        self._tasks: list[list[TaskCall]] = [[] for _ in shares]  # unended tasks by shard
        self._next_in_task = [1] * len(shares)  # by shard: step_id after those of its tasks
        self._forgotten: deque[int] = deque()  # numbers of tasks that shards may drop
        self._generations = [0] * len(shares)  # number of predecessors of each shard
        self._messages: list[list[bytes]] = [[] for _ in shares]
        self._errors: list[tuple[int, Exception]] = []  # raised in shards, with their numbers
        self._num_steps, self._answered_ns = table.num_steps, table.answered_ns
        self._woken_ns = 0  # when the last wait of the carrier ended
        self._steps_before = [0] * len(shares)  # steps of lost predecessors
        self._first_wait_ns = self._waited_ns = 0
        self._unasked: set[int] = set()  # shards that may need a request; the others have one, or nothing to do
        self._due_ns = 0  # when to look at all shards, on the monotonic clock
        self._silent_ns = 0  # time of waits since then

    def continue_from(self, step_id: int, /) -> None:
        if step_id < self._next_step_id:
            raise ValueError("step_ids must not decrease")
        self._next_step_id = step_id

    # ---- sending ---------------------------------------------------------------------------

    def send(
        self, leaves: tuple[Array, ...], env_ids: Array | None, ordered: bool, form: Form, /
    ) -> tuple[str, int] | None:
        self._finish_tasks()
        refusal = self._newest.refusal(Op.STEP, env_ids, ordered)
        if refusal is not None:
            return refusal
        began_ns = now_ns()
        with signals_deferred():
            rows = slice(None) if env_ids is None else env_ids
            count = self._plan.num_envs if env_ids is None else len(env_ids)
            for leaf, column, values in zip(self._plan.action.leaves, self._actions, leaves):
                column[rows] = values.reshape(count, *leaf.shape)
            steps = Commands.of(Op.STEP, self._all_ids[rows], flags=form)
            first = self._number(steps)
            self._newest.add(steps, ordered)
            for shard, chosen in self._split(env_ids):
                if env_ids is None:
                    step_ids = range(first + chosen.start, first + chosen.stop)
                    op = Steps(step_ids, None, self._actions_of[shard], int(form))
                else:
                    mine = env_ids[chosen]
                    op = Steps(first + chosen, mine, tuple([column[mine] for column in self._actions]), int(form))
                self.links[shard].add(op)
                self._ask(shard, all_rows=ordered)
        if self._first_wait_ns:
            self._waited_ns += now_ns() - began_ns
        return None

    def command(self, commands: Commands, ordered: bool) -> Refusal | None:
        self._finish_tasks()
        op, env_ids = commands.op, commands.env_ids
        refusal = self._newest.refusal(op, env_ids, ordered)
        if refusal is not None:
            return refusal
        with signals_deferred():
            self._number(commands)
            if op != Op.CALL:
                self._newest.add(commands, ordered)
            for shard, chosen in self._split(env_ids):
                mine = commands.select(chosen)
                self.links[shard].add(mine)
                if op == Op.CALL:
                    self._calls[shard].update(mine.table["step_id"].tolist())
                    self._ask(shard, all_rows=False, least=0)
                else:
                    self._ask(shard, all_rows=self._newest.is_ordered)
        return None

    def _number(self, commands: Commands) -> int:
        """Number the commands of a request; return the step_id of the first one."""
        first = self._next_step_id
        commands.number(first)
        self._next_step_id += len(commands)
        return first

    def _split(self, env_ids: Array | None) -> list[tuple[int, Any]]:
        """Return the shards of a request, and which commands are theirs: a slice of all envs, else int64 (n,)."""
        if env_ids is None:
            return list(enumerate(self._slices))
        shards = self._shard_of[env_ids]
        return [(shard, np.flatnonzero(shards == shard)) for shard in np.unique(shards).tolist()]

    def _ask(self, shard: int, *, all_rows: bool, least: int = 1) -> None:
        """Send the operations that are queued for a shard, unless two requests are in flight.

        Args:
            shard: number of the shard.
            all_rows: whether the shard answers only when it has all rows.
            least: number of rows with which it answers else.
        """
        owed = self._newest.num_missing_of[shard]
        most_nbytes = max([self._most_nbytes[shard], *(call.most_nbytes for call in self._tasks[shard])])
        self.links[shard].ask(owed if all_rows else min(least, owed), most_nbytes)

    def tell(self, shard: int, op: Any) -> None:
        """Queue an operation for a shard that no row answers, and send it soon."""
        self.links[shard].add(op)
        self._ask(shard, all_rows=False, least=0)

    # ---- tasks -----------------------------------------------------------------------------

    def share(self, data: bytes) -> Any:
        return self._carrier.share(data)

    def forget_task(self, task_id: int) -> None:
        self._forgotten.append(task_id)  # sent with the next task

    def submit_task(self, call: TaskCall) -> None:
        """Begin a task, after those of its shard that are under way; its envs owe nothing."""
        error = self.supervisor.find_failure(call.shard)
        if error is not None:
            call.end(None, error, is_lost=True)
            return
        with signals_deferred():
            while self._forgotten:
                op = ForgetTask(self._forgotten.popleft())
                for link in self.links:
                    link.add(op)
                self._unasked.update(range(self.num_slots))
            self._tasks[call.shard].append(call)
            self._send_tasks(call.shard)

    def _send_tasks(self, shard: int) -> None:
        """Send the tasks that the present process of a shard was not sent."""
        link = self.links[shard]
        if link.is_open:
            for call in self._tasks[shard]:
                if not call.is_sent:
                    op, shared = call.request(self._generations[shard])
                    link.add(op._replace(first=max(self._next_step_id, self._next_in_task[shard])), shared)
            self._ask(shard, all_rows=False, least=0)

    def wait_for_task(self, calls: Sequence[TaskCall], deadline_ns: int) -> Event | None:
        return self._wait_until(lambda: any(call.is_done for call in calls), int, deadline_ns)

    def _finish_tasks(self) -> None:
        """Wait until no task is under way: all later commands have higher numbers than those of tasks."""
        while any(self._tasks):
            self.supervisor.check_not_closing()
            self._wait_once(0, now_ns() + POLL_NS)
        self._next_step_id = max(self._next_step_id, *self._next_in_task)

    def _take_task(self, shard: int, reply: TaskReply) -> None:
        """Record the commands of a task that has ended, and keep its newest records and observations."""
        mine = self._slices[shard]
        self._next_in_task[shard] = reply.next_step_id
        if self._journal is not None:
            for op in reply.executed:
                if isinstance(op, Steps):
                    self._journal.continue_from(int(op.step_ids[0]))
                    env_ids = op.env_ids
                    if env_ids is None:
                        env_ids = np.resize(self._all_ids[mine], len(op.step_ids))
                    self._journal.note_steps(op.leaves, env_ids, op.form)
                else:
                    self._journal.continue_from(int(op.table["step_id"][0]))
                    self._journal.note_commands(op)
            self._journal.continue_from(max(self._next_step_id, *self._next_in_task))
        if reply.records is not None:
            self.store.put_records(reply.records, self._all_ids[mine])
            if reply.obs:
                self.store.put_obs(mine, reply.obs, reply.records["step_id"])
        error = None if reply.error is None else messages.unpack_error(reply.error)
        self._tasks[shard].pop(0).end(reply.value, error)

    def fail_tasks(self, shard: int, error: Exception) -> None:
        """End the tasks of a shard that will not be replaced, or is built again."""
        for call in self._tasks[shard]:
            call.end(None, error, is_lost=True)
        self._tasks[shard] = []

    # ---- receiving -------------------------------------------------------------------------

    def recv(self, min_count: int, max_count: int, deadline_ns: int, /) -> tuple[AnyRows, int] | Event:
        newest = self._newest
        event = self._wait_until(lambda: newest.gather(min_count), lambda: newest.count_wanted(min_count), deadline_ns)
        if event is not None:
            return event
        with signals_deferred():
            return self._deliver(newest.take(max_count))

    def recv_envs(self, env_ids: Array, deadline_ns: int, /) -> tuple[AnyRows, int] | Event:
        newest = self._newest
        event = self._wait_until(
            lambda: newest.have_arrived(env_ids), lambda: len(newest.missing(env_ids)), deadline_ns
        )
        if event is not None:
            return event
        with signals_deferred():
            for env_id in env_ids.tolist():
                newest.forget(env_id)
            return self._deliver(env_ids)

    def _deliver(self, env_ids: Array) -> tuple[AnyRows, int]:
        rows, flags = self.store.deliver(env_ids)
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
        if now >= self._due_ns:
            self._look_at_all(now)
        self._ask_idle_shards(wanted)
        # While half of the replies are read, the others arrive.
        count = self._newest.count_missing_shards() // 2 if self._newest.is_ordered and wanted > 0 else 1
        events = self._carrier.wait(min(deadline_ns, self._due_ns), max(count, 1))
        self._woken_ns = woken = now_ns()
        self._silent_ns += min(woken - now, _MOST_SILENT_NS)
        with signals_deferred():
            try:
                for event in events:
                    self._take(event)
            finally:
                self._take_rows()
        if self.supervisor.take_failure():
            return Event("descriptor", -1)
        late_ns = now_ns() - deadline_ns
        if not events and late_ns >= 0:
            return Event("timeout", -1, late_ns)
        if not events and now_ns() < self._due_ns:  # `interrupt` was called
            return Event("message", -1)
        return None

    def _look_at_all(self, now: int) -> None:
        """Do what is due by time: repeat requests, and replace or start shards.

        Events that change the state of a shard make the next look due at once. All other events concern one shard.
        """
        self._due_ns = NEVER_NS
        silent_ns, self._silent_ns = self._silent_ns, 0
        due_ns = min(link.advance(now, silent_ns) for link in self.links)
        due_ns = min(due_ns, self.supervisor.repair(now))
        self._due_ns = min(self._due_ns, max(due_ns, now + POLL_NS), now + _MOST_SILENT_NS // 2)

    def _ask_idle_shards(self, wanted: int) -> None:
        """Send a request to each shard that has none and whose answers are awaited, or that has operations queued."""
        newest = self._newest
        num_missing = newest.num_missing
        for shard in sorted(self._unasked):
            link, owed = self.links[shard], newest.num_missing_of[shard]
            awaited = bool(self._tasks[shard]) or (owed if wanted > 0 else bool(self._calls[shard]))
            waits = link.num_in_flight == 0 and awaited
            if waits or link.has_ops:
                share = math.ceil(wanted * owed / num_missing) if wanted > 0 else 0
                self._ask(shard, all_rows=newest.is_ordered and wanted > 0, least=share)
            if link.num_in_flight or not (owed or link.has_ops or self._calls[shard] or self._tasks[shard]):
                self._unasked.discard(shard)

    def wait(self, deadline_ns: int, /) -> Event:
        """Sleep until a message arrives, or another event occurs."""
        return self._wait_until(lambda: any(self._messages), int, deadline_ns) or Event("message", -1)

    def waits(self) -> tuple[int, int]:
        """Return the waits, as `Hub.waits`; sending steps counts, too, since it takes about the time of the answers."""
        return self._first_wait_ns, self._waited_ns

    # ---- events of the carrier -------------------------------------------------------------

    def _take(self, event: CarrierEvent) -> None:
        link = self.links[event.shard]
        self._unasked.add(event.shard)
        if not isinstance(event, Replied):
            self._take_rows()  # these came earlier
        if not link.is_open or not isinstance(event, Replied):
            self._due_ns = 0
        if isinstance(event, Lost):
            self.supervisor.handle(event)
        elif isinstance(event, Unavailable):
            link.repeat_after_pause(now_ns())
        elif not link.is_open:
            self.supervisor.note_opened(event.shard, unpack_bare(event.data))
        else:
            self._take_replies(event)

    def _take_replies(self, event: Replied) -> None:
        link = self.links[event.shard]
        link.bytes_down += len(event.data)
        self._answered_ns[event.shard] = self._woken_ns
        for frame in link.receive(self._layout.unpack(event.data)):
            if event.shard in self._replies:
                self._take_rows()
            self._num_steps[event.shard] = self._steps_before[event.shard] + frame.num_steps
            if len(frame.attachment):
                self._take_attachment(event.shard, load(frame.attachment))
            if frame.count:
                self._replies[event.shard] = frame

    def _take_attachment(self, shard: int, attachment: Attachment) -> None:
        if attachment.task is not None:  # before the restore points that are among its commands
            self._take_task(shard, attachment.task)
        self.supervisor.on_attachment(shard, attachment)
        for message in attachment.messages:
            self._calls[shard].discard(messages.numbers_of(message)[0])
            self._messages[shard].append(message)
        if attachment.error is not None:
            error = messages.unpack_error(attachment.error)
            if isinstance(error, WorkerError):  # `Pool.restart` needs it: the workers of the pool are the shards
                locate(error, **{**place_of(error), "worker_id": shard})
                add_notes(error, [f"raised in shard {shard}"])
            self._errors.append((shard, error))

    def _take_rows(self) -> None:
        """Take the rows of replies, at most one of each shard, except the rows of superseded commands."""
        if not self._replies:
            return
        frames, self._replies = list(self._replies.values()), {}
        rows = np.concatenate([frame.rows for frame in frames]).view(self._layout.row)
        env_ids = rows["env_id"]
        if self._journal is not None:
            self.store.put_records(rows["record"], env_ids)
        is_taken = self._newest.select_awaited(env_ids, rows["step_id"])
        self.store.take(frames, rows, is_taken)
        self._newest.arrive(env_ids[is_taken])

    # ---- messages and state ----------------------------------------------------------------

    def take_messages(self, slot: int) -> list[bytes]:
        found, self._messages[slot] = self._messages[slot], []
        return found

    def outstanding(self) -> int:
        return self._newest.num_owed

    def owed(self, env_id: int, /) -> tuple[int, int]:
        return self._newest.owed(env_id)

    def cancel(self, env_id: int, /) -> None:
        if self._newest.owed(env_id)[0] != Op.NONE:
            self.tell(int(self._shard_of[env_id]), Cancel(env_id))
        self._newest.forget(env_id)

    def add_info_key(self, name: str, /) -> int:
        fits = len(self.info_keys) < INFO_KEYS and len(name.encode()) < INFO_KEY_NBYTES and "\0" not in name
        if not self._has_cells or not fits:
            return -1
        self.info_keys.append(name)
        for link in self.links:
            link.add(AddInfoKey(name))
        self._unasked.update(range(self.num_slots))
        return len(self.info_keys) - 1

    def read_records(self, env_ids: Sequence[int]) -> Array:
        """Return the newest records of envs, (n, 2), for another process."""
        return read_records(self._plan, self._memory, env_ids)

    def last_delivered_seed(self, env_id: int, before: int) -> int | None:
        return self.store.newest_seed(env_id, before)

    def last_delivered_obs(self, before: Mapping[int, int]) -> dict[int, list[Array]]:
        found = {env_id: self.store.newest_obs(env_id, step_id) for env_id, step_id in before.items()}
        return {env_id: obs for env_id, obs in found.items() if obs is not None}

    def state(self, slot: int) -> SlotState:
        """Return the number of steps of a shard; it watches its operations itself."""
        return SlotState(int(Op.NONE), 0, 0, 0, 0, self._num_steps[slot])

    # ---- shards that are replaced ------------------------------------------------------------

    def owes(self, shard: int) -> bool:
        """Return whether an env of a shard owes an answer that has not arrived."""
        return self._newest.num_missing_of[shard] > 0

    def queued(self, shard: int, calls: Mapping[int, Command]) -> Commands:
        """Return the commands of a shard that are not answered, in the order of their step_ids.

        Args:
            shard: number of the shard.
            calls: by step_id, those that must be made.
        """
        found = [calls[step_id] for step_id in self._calls[shard] if step_id in calls]
        for one in self._newest.commands.select(self._newest.missing(self._all_ids[self._slices[shard]])):
            key, payload = (one.key, one.payload) if one.flags & CommandFlag.PAYLOAD else (None, None)
            if payload is None and one.op == Op.STEP:
                payload = tuple(column[one.env_id].tobytes() for column in self._actions)
            found.append(one._replace(key=key, payload=payload))
        return Commands.listed(sorted(found))  # step_ids are distinct

    def begin_again(self, shard: int, *, is_new: bool) -> None:
        """Prepare for another process of a shard: nothing that was sent to the old one counts any more.

        Args:
            shard: number of the shard.
            is_new: whether its envs are new.
        """
        self._steps_before[shard] = self._num_steps[shard]
        self._generations[shard] += 1
        for call in self._tasks[shard]:
            call.forget_sent()
        self.links[shard].begin()
        self._due_ns = 0
        if is_new:
            self._calls[shard].clear()
            self.store.forget(self._slices[shard])

    def serve(self, shard: int) -> None:
        """Begin to send requests to a shard that has opened its envs."""
        self.links[shard].open()
        self._unasked.add(shard)
        self._due_ns = 0
        if self._tasks[shard]:
            self._send_tasks(shard)
        elif self.links[shard].has_ops or self.owes(shard):
            self._ask(shard, all_rows=self._newest.is_ordered)

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
                        # an earlier request has raised it: only exceptions of `close` are returned
                        self._errors = [pair for pair in self._errors if pair[0] != event.shard]
        return min(self._errors, key=lambda pair: pair[0], default=(0, None))[1]
