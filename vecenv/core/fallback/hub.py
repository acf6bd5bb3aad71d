"""The parent's end of the rows without C: sends commands and gathers rows, over any transport; see `words`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..layout.arena import ArenaPlan
from ..layout.commands import Command, Commands
from ..layout.flags import ROW_FLAGS, Form, Op, RowFlag
from ..layout.rows import AnyRows, copy_rows, union_of_flags
from ..layout.spec import Array
from ..parent.hub import Event, Hub, Refusal, SlotState
from ..system.clock import now_ns
from ..system.signals import signals_deferred
from .outstanding import Outstanding
from .words import BLOCKED_WORD, MESSAGE_FRAME, OP_WORD, ROW_FRAME, SharedWords

__all__ = ["FallbackHub"]

#: Without C, all infos are messages.
_ROW_FLAGS = ROW_FLAGS & ~(RowFlag.INFO | RowFlag.FINAL_INFO)


class FallbackHub(Hub):
    """The parent's end without C; a subclass provides the transport. See `Hub` for the public methods.

    Args:
        plan, memory, counters: the arena and its counters, with their headers written.
        slot_of: the slot of each env.
    """

    def __init__(self, plan: ArenaPlan, memory: Any, counters: Any, slot_of: Sequence[int]) -> None:
        self._plan = plan
        self._slot_of, self.num_slots = list(slot_of), max(slot_of) + 1
        self._words = SharedWords(plan, memory, counters)
        self._outstanding = Outstanding(plan.num_envs)
        self._next_step_id = 1  # 0 means that no reply is outstanding
        self._messages: list[list[bytes]] = [[] for _ in range(plan.num_slots)]
        self._fragments: dict[int, list[bytes]] = {}
        self._unblocked_ns = [0] * plan.num_slots
        self._has_notice = False
        self._has_stopped = False
        self._stray: dict[int, tuple[str, int]] = {}  # by slot: a word that no worker writes, and its value
        self._first_wait_ns = self._waited_ns = 0

    # ---- methods of the transport --------------------------------------------------------

    def _transmit(self, commands: list[Command]) -> None:
        """Send commands to their slots; does not block."""
        raise NotImplementedError

    def _wait_for_frame(self, deadline_ns: int) -> Event | None:
        """Sleep until a frame has been processed, then return None; return the event if another one comes first."""
        raise NotImplementedError

    def _forget_command(self, env_id: int, step_id: int) -> None:
        """Remove a command that its slot has executed or dropped."""

    # ---- sending -----------------------------------------------------------------------

    def send(
        self, leaves: tuple[Array, ...], env_ids: Array | None, ordered: bool, form: Form, /
    ) -> tuple[str, int] | None:
        ids = list(range(self._plan.num_envs)) if env_ids is None else env_ids.tolist()
        refusal = self._outstanding.refusal(Op.STEP, ids, ordered)
        if refusal is not None:
            return refusal
        if len(leaves) != len(self._words.actions):
            raise ValueError("wrong number of action leaves")
        rows = slice(None) if env_ids is None else env_ids
        for leaf, column, values in zip(self._plan.action.leaves, self._words.actions, leaves):
            if values.nbytes != leaf.nbytes * len(ids):
                raise ValueError("an action leaf has the wrong size")
            column[rows] = values
        with signals_deferred():  # record and send the commands together
            self._queue(Commands.of(Op.STEP, np.array(ids, np.int64), flags=form), ids, ordered)
        return None

    def command(self, commands: Commands, ordered: bool) -> Refusal | None:
        ids = commands.env_ids.tolist()
        refusal = self._outstanding.refusal(commands.op, ids, ordered)
        if refusal is None:
            self._queue(commands, ids, ordered)
        return refusal

    def continue_from(self, step_id: int, /) -> None:
        if step_id < self._next_step_id:
            raise ValueError("step_ids must not decrease")
        self._next_step_id = step_id

    def _queue(self, commands: Commands, ids: list[int], ordered: bool) -> None:
        first = self._next_step_id
        commands.number(first)
        self._next_step_id += len(ids)
        if commands.op != Op.CALL:  # the reply to a call is a message, not a row
            self._outstanding.add(commands.op, ids, first, ordered)
            self._words.newest[ids] = range(first, self._next_step_id)
        self._transmit(list(commands))

    # ---- receiving ---------------------------------------------------------------------

    def recv(self, min_count: int, max_count: int, deadline_ns: int, /) -> tuple[AnyRows, int] | Event:
        event = self._wait_until(functools.partial(self._outstanding.gather, min_count), deadline_ns)
        if event is not None:
            return event
        with signals_deferred():
            return self._gather_rows(self._outstanding.take(max_count))

    def recv_envs(self, env_ids: Array, deadline_ns: int, /) -> tuple[AnyRows, int] | Event:
        ids = env_ids.tolist()
        event = self._wait_until(functools.partial(self._outstanding.gather_envs, ids), deadline_ns)
        if event is not None:
            return event
        with signals_deferred():
            return self._gather_rows(self._outstanding.take_envs(ids))

    def _wait_until(self, gather: Callable[[], bool], deadline_ns: int) -> Event | None:
        """Wait until `gather` returns True, then return None; return the event if another one comes first."""
        if deadline_ns < 0:
            deadline_ns = now_ns() - deadline_ns
        while not gather():
            began_ns = now_ns()
            event = self._wait_for_frame(deadline_ns)
            if self._plan.is_timed:
                self._first_wait_ns = self._first_wait_ns or began_ns
                self._waited_ns += now_ns() - began_ns
            if event is None and self._has_notice:
                event = Event("message", -1)
            if event is not None and not gather():
                return event
        return None

    def _gather_rows(self, step_ids: dict[int, int]) -> tuple[AnyRows, int]:
        rows = copy_rows(self._words.rows, np.fromiter(step_ids, np.intp, len(step_ids)))
        # The words of a row may have been overwritten since it arrived.
        rows.columns["env_id"][:], rows.columns["step_id"][:] = list(step_ids), list(step_ids.values())
        rows.columns["flags"] &= np.uint32(_ROW_FLAGS)
        flags = union_of_flags(rows.columns["flags"])
        return rows, flags | RowFlag.NOTICE if self._has_notice else flags

    def waits(self) -> tuple[int, int]:
        return self._first_wait_ns, self._waited_ns

    def wait(self, deadline_ns: int, /) -> Event:
        if any(self._messages):
            return Event("message", -1)
        return self._wait_for_frame(deadline_ns) or Event("message", -1)

    def take_frame(self, frame: tuple[Any, ...]) -> None:
        """Process one frame from a slot: a row, the end of a command without a row, or a part of a message."""
        kind = frame[0]
        if kind != MESSAGE_FRAME:
            if self._is_stray(*frame):
                return
            self._forget_command(frame[1], frame[2])
        if kind == ROW_FRAME:
            self._outstanding.arrive(frame[1], frame[2])
        elif kind == MESSAGE_FRAME:
            _, slot, is_last, data = frame
            fragments = self._fragments.setdefault(slot, [])
            fragments.append(data)
            if is_last:
                self._messages[slot].append(b"".join(fragments))
                del self._fragments[slot]
        elif self._outstanding.owed[frame[1]] == frame[2]:  # ended without a row, but not superseded
            self._outstanding.forget(frame[1])

    def _is_stray(self, kind: int, env_id: int, step_id: int) -> bool:
        """Return whether the frame of an outstanding command does not fit the shared memory; note the stray word."""
        if self._outstanding.owed[env_id] != step_id:
            return False
        columns, slot = self._words.rows.columns, self._slot_of[env_id]
        if kind != ROW_FRAME:  # a slot drops only commands that are not the newest of their env
            newest = int(self._words.newest[env_id])
            if newest not in (0, step_id):
                self._stray[slot] = "the newest command of an env", newest
            return slot in self._stray
        for name, expected in (("env_id", env_id), ("step_id", step_id)):
            if int(columns[name][env_id]) != expected:
                self._stray[slot] = f"the {name} of a row", int(columns[name][env_id])
        flags = int(columns["flags"][env_id])
        if flags & ~_ROW_FLAGS:
            self._stray[slot] = "the flags of a row", flags
        return slot in self._stray

    def take_stray_words(self) -> list[tuple[int, str, int]]:
        found, self._stray = self._stray, {}
        return [(slot, word, value) for slot, (word, value) in found.items()]

    # ---- messages and state ------------------------------------------------------------

    def take_messages(self, slot: int) -> list[bytes]:
        messages, self._messages[slot] = self._messages[slot], []
        return messages

    def take_notice(self) -> bool:
        has_notice, self._has_notice = self._has_notice, False
        return has_notice

    def outstanding(self) -> int:
        return self._outstanding.num_owed

    def owed(self, env_id: int, /) -> tuple[int, int]:
        step_id = self._outstanding.owed[env_id]
        return (self._outstanding.ops[env_id] if step_id else int(Op.NONE)), step_id

    def cancel(self, env_id: int, /) -> None:
        if self._outstanding.owed[env_id]:
            self._words.newest[env_id] = 0  # no command has this step_id
        self._outstanding.forget(env_id)

    def reap(self, slot: int) -> None:
        """Clean up the state of a slot after its process has ended; the replies of its envs stay outstanding."""
        self._outstanding.stop_waiting_for({env_id for env_id, mine in enumerate(self._slot_of) if mine == slot})
        self._clear(slot)

    def requeue(self, slot: int, unanswered: Collection[int]) -> Commands:
        self._clear(slot)
        return Commands.listed(())

    def _clear(self, slot: int) -> None:
        self._fragments.pop(slot, None)
        self._messages[slot].clear()
        self._stray.pop(slot, None)
        self._words.progress[slot, [OP_WORD, BLOCKED_WORD]] = 0
        self._words.stop[0] = self._has_stopped
        for env_id, mine in enumerate(self._slot_of):
            if mine == slot:
                self._words.newest[env_id] = self._outstanding.owed[env_id]

    def last_delivered_obs(self, before: Mapping[int, int]) -> dict[int, list[Array]]:
        found = [env_id for env_id, step_id in before.items() if self._has_row_before(env_id, step_id)]
        return {env_id: [column[env_id].copy() for column in self._words.rows.leaves] for env_id in found}

    def last_delivered_seed(self, env_id: int, before: int) -> int | None:
        seed = int(self._words.rows.columns["seed"][env_id])
        return seed if seed >= 0 and self._has_row_before(env_id, before) else None

    def _has_row_before(self, env_id: int, before: int) -> bool:
        return 0 < int(self._words.rows.columns["step_id"][env_id]) < (before or 1 << 63)

    def move(self, env_id: int, slot: int) -> None:
        self._slot_of[env_id] = slot
        self.num_slots = max(self.num_slots, slot + 1)

    def state(self, slot: int) -> SlotState:
        state = SlotState(*self._words.progress[slot].tolist())._replace(unblocked_ns=self._unblocked_ns[slot])
        fits = 0 <= state.env_id < self._plan.num_envs and 0 <= state.step_id < self._next_step_id
        if state.op != Op.NONE and not (fits and state.op in list(Op) and 0 <= state.started_ns <= now_ns()):
            self._stray[slot] = "its operation under way", state.op
            op, env_id, step_id = self.pending(slot)  # the command under way is the first one
            return state._replace(op=op, env_id=env_id, step_id=step_id, started_ns=now_ns())
        return state

    def pending(self, slot: int, /) -> tuple[int, int, int]:
        return int(Op.NONE), 0, 0

    def stop(self) -> None:
        self._has_stopped = True
        self._words.stop[0] = 1

    def add_info_key(self, name: str, /) -> int:
        """Return -1: without C, infos are sent as messages."""
        return -1
