"""Twin words: what both ends of the Python twin agree on: commands, frames, progress words."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np

from .arena import ArenaPlan, BlockViews
from .infos import Infos
from .rows import Autoreset
from .spec import Array

__all__ = [
    "AttachLike",
    "BLOCKED_WORD",
    "Command",
    "ENV_ID_WORD",
    "FORM_MASK",
    "Held",
    "LINE",
    "LOCAL_SLICE_NS",
    "LONGEST_POLL_MS",
    "MAIL_FRAME",
    "MS",
    "NUM_STEPS_WORD",
    "OP_WORD",
    "PIECE_NBYTES",
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

LINE = 64
WORDS_PER_SLOT = 3 * LINE // 8
WORKER_WORDS = slice(LINE // 8, LINE // 8 + 6)
OP_WORD, ENV_ID_WORD, STEP_ID_WORD, STARTED_WORD, BLOCKED_WORD, NUM_STEPS_WORD = range(6)
STOP_OFFSET = 2 * LINE  # of the stop word in the control lines, as in native/layout.h

#: Kinds of frames from a worker: (ROW | VOID, env_id, step_id) and (MAIL, slot, is_last, bytes).
ROW_FRAME, VOID_FRAME, MAIL_FRAME = range(3)
#: Payload of one mail frame. A frame is one write of less than 16 KiB, which a Unix socket takes
#: as a whole: the parent never finds half a frame and so never waits in the middle of one.
PIECE_NBYTES = 15_000
MS = 1_000_000
LONGEST_POLL_MS = 1_000_000
LOCAL_SLICE_NS = 50 * MS
FORM_MASK = 0x0F

#: Leaves of a value that have been checked: (column, what goes into its row).
Held = list[tuple[Array, Any]]


class Command(NamedTuple):
    """One operation on its way to a slot; the socket carries it as a plain tuple."""

    slot: int
    op: int
    env_id: int
    step_id: int
    argument: int
    flags: int
    letter: bytes | None


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
    control: Connection
    pidfd: int
    goodbye: Any


class SharedWords:
    """The few words of the arena that both ends look at while they do not talk."""

    def __init__(self, plan: ArenaPlan, memory: Any) -> None:
        words = plan.words
        lines = np.frombuffer(memory, np.int64, plan.num_slots * WORDS_PER_SLOT, words["slots"])
        self.progress = lines.reshape(plan.num_slots, WORDS_PER_SLOT)[:, WORKER_WORDS]
        self.newest = np.frombuffer(memory, np.int64, plan.num_envs, words["newest"])
        self.stop = np.frombuffer(memory, np.uint32, 1, words["control"] + STOP_OFFSET)
        self.actions = [
            plan.view(memory, offset, leaf.dtype, (plan.num_envs, *leaf.shape))
            for offset, leaf in zip(plan.action_offsets, plan.action.leaves)
        ]
        self.rows = BlockViews(plan, memory, 0)


# ---- the parent's end ---------------------------------------------------------------------
