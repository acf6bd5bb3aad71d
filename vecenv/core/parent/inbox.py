"""Collect the messages of workers, and pass each to the row or call that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from ...errors import warn_caller
from ..layout import messages
from ..layout.commands import Command, Commands
from ..layout.flags import RowFlag
from ..layout.info_cells import InfoColumns
from ..layout.messages import Reply
from ..layout.rows import AnyRows
from ..system.clock import now_ns
from ..system.signals import signals_deferred
from .hub import Hub
from .pickled_infos import PickledInfos

__all__ = ["Inbox", "Listener"]

#: Called with a message that has a snapshot, an outcome or the effect of a call, and whether its command is answered.
Listener = Callable[[Reply, bool], object]


class Inbox:
    """Keeps each message until its row or call is delivered, and drops messages that are not awaited.

    Args:
        hub: where messages arrive.
        worker_of: returns the worker_id of a slot, or None.
        listener: receives the reports about restore points, restored envs and calls; None: there are no reports.

    Attributes:
        infos: the table of info cells, to which new keys are added here.
        unanswered_calls: every call that is not answered yet, by step_id, abandoned ones included. Empty without a
            listener, because calls are then never sent again.
        pickled_infos: counts of the infos that have arrived here.
    """

    def __init__(self, hub: Hub, worker_of: Callable[[int], int | None], listener: Listener | None = None) -> None:
        self._hub = hub
        self._worker_of = worker_of
        self._listener = listener
        self._replies: dict[int, Reply] = {}
        # Pickled replies whose observations have values without a column; the caller may change unpickled ones.
        self._packed: dict[int, bytes] = {}  # replies of rows, by step_id
        self._last_delivered: dict[int, bytes] = {}  # replies of the last delivered rows, by env_id
        self._calls: Collection[int] = ()
        self.unanswered_calls: dict[int, Command] = {}
        self._queued_warnings: list[tuple[str, str]] = []
        self._warned: set[str] = set()
        self._relay: Callable[[bytes], None] | None = None
        self.infos = InfoColumns()
        self.pickled_infos = PickledInfos()

    def relay_to(self, receiver: Callable[[bytes], None]) -> None:
        """Pass on each message about a row or call as it arrived, to a pool of which these envs are a part.

        `receiver` is called in the thread that uses this pool. The other pool emits the warnings and decides which info
        keys get cells, so that is not done here.
        """
        self._relay = receiver
        self.infos.close()
        queued, self._queued_warnings = self._queued_warnings, []
        if queued:
            receiver(messages.dump_reply(Reply(0, 0, warnings=queued)))

    def poll(self, delivered: Collection[int] = ()) -> None:
        """Take all messages that have arrived; keep those that are owed, registered as calls, or `delivered`.

        Raises nothing, because it runs while workers are being replaced and after rows were delivered. A message that
        cannot be unpickled becomes an error of its env, and warnings wait for `emit_warnings`.

        Args:
            delivered: step_ids of rows that are being delivered.
        """
        with signals_deferred():  # a message that was taken must not be lost
            for slot in range(self._hub.num_slots):
                for data in self._hub.take_messages(slot):
                    self._take(slot, data, delivered)

    def _take(self, slot: int, data: bytes, delivered: Collection[int]) -> None:
        began_ns = now_ns()
        reply = messages.load_reply(data)
        if (reply.info or reply.final_info) and not isinstance(data, Reply):  # a `Reply` was not pickled
            info = {**(reply.final_info or {}), **(reply.info or {})}
            self.pickled_infos.note(info, len(data), now_ns() - began_ns)
        if reply.error is not None:
            reply.worker_id = self._worker_of(slot)
        if self._relay is None:
            self._queued_warnings += reply.warnings
        is_report = reply.snapshot is not None or reply.outcome is not None
        if self._listener is not None and (is_report or reply.effect is not None):
            self._listener(reply, self._hub.owed(reply.env_id)[1] != reply.step_id)
        if is_report:
            return
        self.unanswered_calls.pop(reply.step_id, None)
        if self._relay is not None:
            self._relay(data)
        if self._is_awaited(reply, delivered):
            self._replies[reply.step_id] = reply
            if reply.objects is not None and self._listener is not None:
                self._packed[reply.step_id] = data
            self.infos.learn(reply.info, self._hub.add_info_key)
            self.infos.learn(reply.final_info, self._hub.add_info_key)

    def emit_warnings(self) -> None:
        """Emit the queued warnings.

        Each warning leaves the queue first. So if `-W error` turns one into an exception, the others are kept.
        """
        while self._queued_warnings:
            key, text = self._queued_warnings.pop(0)
            self.warn_once(key, text, UserWarning)

    def queue_warning(self, text: str) -> None:
        """Queue a warning of this process, for `emit_warnings`; each text is shown once."""
        if self._relay is None:
            self._queued_warnings.append((text, text))
        else:
            self._relay(messages.dump_reply(Reply(0, 0, warnings=[(text, text)])))

    def _is_awaited(self, reply: Reply, delivered: Collection[int]) -> bool:
        step_id = reply.step_id
        return step_id in delivered or step_id in self._calls or self._hub.owed(reply.env_id)[1] == step_id

    def register_calls(self, calls: Commands, awaited: Collection[int] | None = None) -> None:
        """Keep the replies to these calls when they arrive, and until then keep the calls.

        Args:
            calls: numbered commands.
            awaited: step_ids of all calls whose replies are kept, in the order of `take_calls`; None: of `calls`.
        """
        self._calls = dict.fromkeys(calls.table["step_id"].tolist()) if awaited is None else awaited
        if self._listener is not None:
            self.unanswered_calls.update((call.step_id, call) for call in calls)

    def forget_calls_of(self, env_ids: Collection[int]) -> None:
        """Drop all unanswered calls of these envs, because the calls will not be made."""
        for call in [call for call in self.unanswered_calls.values() if call.env_id in env_ids]:
            del self.unanswered_calls[call.step_id]

    def awaits_call(self, step_id: int) -> bool:
        """Return whether a registered call has not been answered."""
        return step_id in self._calls and step_id not in self._replies

    def reply_to_call(self, reply: Reply) -> None:
        """Answer a registered call on behalf of a worker."""
        self._replies[reply.step_id] = reply

    def has_all_calls(self) -> bool:
        """Return whether every registered call has been answered."""
        return all(step_id in self._replies for step_id in self._calls)

    def take_calls(self) -> list[Reply]:
        """Return the replies to the registered calls, in their order, and unregister the calls."""
        replies = [self._replies.pop(step_id) for step_id in self._calls]
        self._calls = ()
        return replies

    def forget_calls(self) -> None:
        """Drop the replies to abandoned calls; later ones are dropped when they arrive."""
        for step_id in self._calls:
            self._replies.pop(step_id, None)
        self._calls = ()

    def forget(self, step_id: int) -> None:
        """Drop the message of an operation that was superseded or cancelled."""
        self._replies.pop(step_id, None)
        self._packed.pop(step_id, None)

    def take_rows(self, rows: AnyRows) -> dict[int, Reply]:
        """Return {step_id: message} of the rows flagged MESSAGE; their messages were written before them.

        A row whose message could not be read, or was overwritten in shared memory, is flagged ERROR.
        """
        has_message = (rows.column("flags") & RowFlag.MESSAGE) != 0
        step_ids = rows.column("step_id")[has_message].tolist()
        env_ids = rows.column("env_id")[has_message].tolist()
        self.poll(set(step_ids))
        replies = {
            step_id: (self._replies.pop(step_id) if step_id in self._replies else messages.lost_reply(step_id, env_id))
            for step_id, env_id in zip(step_ids, env_ids)
        }
        if self._packed:
            for step_id, reply in replies.items():
                if step_id in self._packed:
                    self._last_delivered[reply.env_id] = self._packed.pop(step_id)
        unread = [step_id for step_id, reply in replies.items() if reply.is_unread]
        if unread:
            flags = rows.column("flags")
            flags[np.isin(rows.column("step_id"), unread)] |= np.uint32(RowFlag.ERROR)
        return replies

    def last_delivered_message(self, env_id: int) -> bytes | None:
        """Return the message of the last delivered observation of an env, or None if it had none.

        It contains the values without a column. It is returned as received: an unpickled message cannot always be
        pickled again.
        """
        return self._last_delivered.get(env_id)

    def warn_once(self, key: str, text: str, category: type[Warning]) -> None:
        """Warn the first time that `key` is used."""
        if key not in self._warned:
            self._warned.add(key)
            warn_caller(text, category)
