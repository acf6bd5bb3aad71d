"""The protocol between both ends of the rows without C, and the shared words.

    socket, local           transports: control sockets; a queue within a process
    hub, outstanding        the parent's end, in the place of `_native.Hub`
    slot, records, values   the worker's end, in the place of `_native.Slot`

Python has no atomic operations, so rows are not claimed: every env has one fixed row. The notices that C
writes into shared words are sent over the control socket of each worker.

    block 0 of the arena, row = env_id   written by the worker, copied out by the parent
    actions, newest step_ids             written by the parent
    slot lines                           int64: op | env_id | step_id | started_ns | blocked | num_steps
    socket, parent -> worker             a stream of pickles, each a list of commands as tuples
    socket, worker -> parent             frames: a row or void frame ends a command, a message frame is a fragment

A row is written before its frame is sent, and an action before its command; the socket keeps this order.
A row does not change until the next command for its env, and before that it was copied or cancelled. The
parent never blocks in a write, so it always reads the frames of a worker that is blocked in one.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..layout.arena import LINE, ArenaPlan
from ..layout.flags import Autoreset
from ..layout.info_cells import Infos
from ..layout.rows import BlockRows
from ..layout.spec import Array
from ..system.descriptor import Descriptor
from ..system.worker_socket import ControlSocket

__all__ = [
    "AttachLike",
    "BLOCKED_WORD",
    "CheckedLeaves",
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
    "numbers",
]

WORDS_PER_SLOT = 3 * LINE // 8
WORKER_WORDS = slice(LINE // 8, LINE // 8 + 6)
OP_WORD, ENV_ID_WORD, STEP_ID_WORD, STARTED_WORD, BLOCKED_WORD, NUM_STEPS_WORD = range(6)
STOP_OFFSET = 2 * LINE  # of the stop word in the control lines, as in native/shm/layout.h

#: Kinds of frames from a worker: (ROW | VOID, env_id, step_id) and (MESSAGE, slot, is_last, bytes).
ROW_FRAME, VOID_FRAME, MESSAGE_FRAME = range(3)
#: Maximum bytes of a message in one frame. A Unix socket accepts a frame below 16 KiB in one write, so a worker that is
#: killed does not leave a partial frame.
FRAGMENT_NBYTES = 15_000
MS = 1_000_000
LONGEST_POLL_MS = 1_000_000
LOCAL_SLICE_NS = 50 * MS

#: Checked leaves of a value: (column, value for one row of it).
CheckedLeaves = list[tuple[Array, Any]]


def numbers(column: Array) -> Any:
    """Return a memoryview of an array (n,): a number is read and written several times faster there."""
    data: Any = column
    return memoryview(data)


class AttachLike(Protocol):
    """The attributes of `Attach` that both ends use."""

    plan: ArenaPlan
    slots: list[tuple[int, list[int]]]
    autoreset: Autoreset
    infos: Infos


class WorkerLike(Protocol):
    """The attributes of `processes.worker.Worker` that the parent's end uses."""

    worker_id: int
    slots: list[int]
    control: ControlSocket
    pidfd: Descriptor
    exit_report: Any
    log_frames: list[bytes]


class SharedWords:
    """Views for both ends: of the arena (newest step_ids, stop word, actions, rows, records) and of the counters."""

    def __init__(self, plan: ArenaPlan, memory: Any, counters: Any) -> None:
        words = plan.words
        at = plan.counters.words["slots"]
        lines = np.frombuffer(counters, np.int64, plan.num_slots * WORDS_PER_SLOT, at)
        self.progress = lines.reshape(plan.num_slots, WORDS_PER_SLOT)[:, WORKER_WORDS]
        self.newest = np.frombuffer(memory, np.int64, plan.num_envs, words["newest"])
        self.stop = np.frombuffer(memory, np.uint32, 1, words["control"] + STOP_OFFSET)
        self.actions = plan.actions(memory)
        self.rows = BlockRows(plan, memory, 0)
        self.records = plan.records(memory)
        self.timings = plan.counters.timings(counters)
