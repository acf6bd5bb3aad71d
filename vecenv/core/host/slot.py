"""Slot: the worker's end of the rows as the host uses it, and the events that it returns.

`_native.Slot` and `fallback.slot.FallbackSlot` implement it. The contracts stand here only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .global_rngs import WatchedWords

__all__ = ["Slot", "SlotEvent"]

#: (kind, env_id, op, step_id, argument, flags, result), see `_native.Slot.serve`
SlotEvent = tuple[int, int, int, int, int, int, Any]

#: The argument of a RESULT: what the env returned it from. BOTH is a step and the reset after it, and the result then
#: (reward, terminated, truncated, what the reset returned): the reset may have written into what the step returned.
RESULT_OF_STEP, RESULT_OF_RESET, RESULT_OF_BOTH = range(3)

#: Kinds of events: the pool stops; nothing is left to do; a command for the host; what the env returned
#: to the slot and it could not write itself; what the env raised there.
STOP, IDLE, COMMAND, RESULT, RAISED = range(5)


class Slot(Protocol):
    """The worker's end of one slot: commands in, rows out. One thread uses it.

    The command under way is the one that `serve` took from the queue last, until `publish` or `finish` ends it.
    """

    def serve(self) -> SlotEvent:
        """Step envs until something needs the host; sleep without the GIL while the queue is empty.

        Returns:
            (kind, env_id, op, step_id, argument, flags, result), by kind:
            COMMAND: a reset, a call, or a step that has a payload or must reset first is under way. If `result` is True
            it was superseded or cancelled, and only its payload has to be read.
            RESULT: a step, an autoreset or both returned `result`, which needs a conversion, mail or an autoreset;
            `argument` is RESULT_OF_STEP, RESULT_OF_RESET or RESULT_OF_BOTH.
            RAISED: the env raised `result`.
            STOP, IDLE: no command is under way. All other events must be ended by `publish` or `finish`.
        """

    def publish(
        self,
        obs: Any,
        reward: Any,
        terminated: bool,
        truncated: bool,
        info: Any,
        flags: int,
        final_obs: Any,
        final_info: Any = None,
        /,
    ) -> bool:
        """Answer the command under way with one row.

        Args:
            obs, final_obs: leaves of exactly their dtype and shape. None leaves the columns as they are, or fills
                them with the values that were kept for this row if `flags` contain FINAL.
            info, final_info: the values must have columns under known keys; None leaves the columns as they are.

        Returns:
            False if a value needs conversion; then no column was written.
        """

    def finish(self) -> None:
        """End the command under way without a row of its own: its answer went as mail."""

    def host(self, env_id: int, step: Callable[[Any], Any], env: Any = None, /) -> None:
        """Step env_id by `step` from now on.

        Args:
            env: with NEXT_STEP its `reset` begins the next episodes; None leaves them to the host.
        """

    def watch(self, words: WatchedWords, on_draw: Callable[[int], object] | None, /) -> None:
        """Call on_draw(env_id) right after a step or autoreset that changed one of these words.

        Args:
            words: at most four pairs (address of a uint32, value). Their memory must exist until the next call.
            on_draw: must write the values back or watch other words; None only without words.
        """

    def count_step(self) -> None:
        """Count a step that was made outside `serve`, which counts its own."""

    def set_seed(self, env_id: int, seed: int, /) -> None:
        """Record the seed of the episode that begins, for its rows; -1: unseeded."""

    def action(self, form: int = ..., leaves: tuple[bytes, ...] = ..., /) -> Any:
        """Return a new action object.

        Args:
            form: a `rows.Form`; by default that of the command under way.
            leaves: the bytes of each leaf; by default those in the row of actions of the command's env.
        """

    def send_message(self, data: bytes, /) -> None:
        """Write one message for the parent; blocks, with deadlines suspended, while the ring is full.

        An exception of a signal handler is raised once the whole message has been written.
        """

    def take_payload(self) -> bytes | bytearray:
        """Return the payload of the command under way.

        An exception of a signal handler is raised once the whole payload has been read: the next one follows it.
        """

    def keep_records(self, final_offset: int, take_snapshot: Callable[[int, int], None], /) -> None:
        """Keep two records of the answers of each env from now on.

        Args:
            final_offset: of the columns of final observations in a block, in bytes.
            take_snapshot: called with (env_id, step_id) before an autoreset by the slot, if `is_snapshot_due`.
        """

    def start_digest(self, env_id: int, /) -> None:
        """Begin the env's digest with its next row."""

    def add_to_digest(
        self,
        env_id: int,
        step_id: int,
        obs: Any,
        reward: Any,
        terminated: bool,
        truncated: bool,
        flags: int,
        final_obs: Any,
        starts_digest: bool,
        /,
    ) -> bool:
        """Count a repeated answer into the env's digest as its row was counted; write no row.

        Returns:
            False if a value needs conversion, as for `publish`.
        """

    def records(self, env_id: int, /) -> tuple[int, tuple[int, int], tuple[int, int]]:
        """Return the env's digest, and both its records as (step_id, digest)."""

    def resume(self, env_id: int, step_id: int, needs_reset: bool, /) -> bool:
        """Continue from the record of step_id; 0: without a record. Return whether the episode was over then."""

    def schedule_snapshot(self, env_id: int, busy_ns: int, /) -> None:
        """Set the time that the env may be busy until a snapshot is due, in nanoseconds; 0: never."""

    def is_snapshot_due(self, env_id: int, /) -> bool:
        """Tell whether a snapshot is due, see `schedule_snapshot`."""

    def touch(self, op: int, /) -> None:
        """Begin operation `op` within the command under way: its time limit counts from now."""
