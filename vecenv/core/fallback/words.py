"""Twin words: what both ends of the rows agree on without C, for installs without a compiler.

    socket, local           what carries the words: control sockets; a queue within a process
    hub, outstanding        the parent's end, in the place of `_native.Hub`
    slot, records, values   the worker's end, in the place of `_native.Slot`

Python has no atomics, so nothing is claimed: every env has one fixed row, and what C says through
shared words travels over the control socket of each worker.

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

from typing import Any, NamedTuple, Protocol

import numpy as np

from ..layout.arena import LINE, ArenaPlan, BlockViews
from ..layout.info_cells import Infos
from ..layout.rows import Autoreset
from ..layout.spec import Array
from ..system.worker_socket import ControlSocket

__all__ = [
    "AttachLike",
    "BLOCKED_WORD",
    "CheckedLeaves",
    "Command",
    "ENV_ID_WORD",
    "FRAGMENT_NBYTES",
    "LOCAL_SLICE_NS",
    "LONGEST_POLL_MS",
    "MESSAGE_FRAME",
    "MS",
    "NUM_STEPS_WORD",
    "OP_WORD",
    "ROW_FRAME",
    "STARTED_WORD",
    "STEP_ID_WORD",
    "STOP_OFFSET",
    "SharedWords",
    "VOID_FRAME",
    "WORDS_PER_SLOT",
    "WORKER_WORDS",
    "WorkerLike",
]

WORDS_PER_SLOT = 3 * LINE // 8
WORKER_WORDS = slice(LINE // 8, LINE // 8 + 6)
OP_WORD, ENV_ID_WORD, STEP_ID_WORD, STARTED_WORD, BLOCKED_WORD, NUM_STEPS_WORD = range(6)
STOP_OFFSET = 2 * LINE  # of the stop word in the control lines, as in native/shm/layout.h

#: Kinds of frames from a worker: (ROW | VOID, env_id, step_id) and (MAIL, slot, is_last, bytes).
ROW_FRAME, VOID_FRAME, MESSAGE_FRAME = range(3)
#: Payload of one mail frame. A frame is one write of less than 16 KiB, which a Unix socket takes
#: as a whole: a worker that is stopped leaves no half frames behind.
FRAGMENT_NBYTES = 15_000
MS = 1_000_000
LONGEST_POLL_MS = 1_000_000
LOCAL_SLICE_NS = 50 * MS

#: Leaves of a value that have been checked: (column, what goes into its row).
CheckedLeaves = list[tuple[Array, Any]]


class Command(NamedTuple):
    """One operation on its way to a slot; the socket carries it as a plain tuple."""

    slot: int
    op: int
    env_id: int
    step_id: int
    argument: int
    flags: int
    payload: bytes | None


class AttachLike(Protocol):
    """What the ends need of `worker.Attach`."""

    plan: ArenaPlan
    slots: list[tuple[int, list[int]]]
    autoreset: Autoreset
    infos: Infos


class WorkerLike(Protocol):
    """What the parent's end needs of `supervise.Worker`."""

    worker_id: int
    slots: list[int]
    control: ControlSocket
    pidfd: int
    exit_report: Any


class SharedWords:
    """The few words of the arena that both ends look at while they do not talk."""

    def __init__(self, plan: ArenaPlan, memory: Any) -> None:
        words = plan.words
        lines = np.frombuffer(memory, np.int64, plan.num_slots * WORDS_PER_SLOT, words["slots"])
        self.progress = lines.reshape(plan.num_slots, WORDS_PER_SLOT)[:, WORKER_WORDS]
        self.newest = np.frombuffer(memory, np.int64, plan.num_envs, words["newest"])
        self.stop = np.frombuffer(memory, np.uint32, 1, words["control"] + STOP_OFFSET)
        self.actions = plan.actions(memory)
        self.rows = BlockViews(plan, memory, 0)
        self.records = plan.records(memory)
