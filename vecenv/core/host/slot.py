"""Slot: what the host asks of the worker's end of the rows, and the events that it gets from there.

Two classes have it: `_native.Slot` and `fallback.slot.FallbackSlot`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .global_rngs import WatchedWords
from .replay import RestoreSlot

__all__ = ["Slot", "SlotEvent"]

#: (kind, env_id, op, step_id, argument, flags, result), see `_native.Slot.serve`
SlotEvent = tuple[int, int, int, int, int, int, Any]

#: The argument of a RESULT: what the env returned it from. BOTH is a step and the reset after it, and the result then
#: (reward, terminated, truncated, what the reset returned): the reset may have written into what the step returned.
RESULT_OF_STEP, RESULT_OF_RESET, RESULT_OF_BOTH = range(3)

#: Kinds of events: the pool stops; nothing is left to do; a command for the host; what the env returned
#: to the slot and it could not write itself; what the env raised there.
STOP, IDLE, COMMAND, RESULT, RAISED = range(5)


class Slot(RestoreSlot, Protocol):
    """The worker's end of the rows: `_native.Slot` or `fallback.slot.FallbackSlot`."""

    def serve(self) -> SlotEvent:
        """Step envs until something needs the host; return that."""

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
    ) -> bool:
        """Answer the command under way with a row; False if a value needs conversion first."""

    def finish(self) -> None:
        """End the command under way without a row."""

    def host(self, env_id: int, step: Callable[[Any], Any], env: Any = None, /) -> None:
        """Step env_id by this function from now on, and autoreset it by `env.reset()`."""

    def watch(self, words: WatchedWords, on_draw: Callable[[int], object] | None, /) -> None:
        """Call on_draw(env_id) right after a step or autoreset that changed one of these words."""

    def count_step(self) -> None:
        """Count a step that the host has made."""

    def set_seed(self, env_id: int, seed: int) -> None:
        """Record the seed of the episode that begins."""

    def send_message(self, data: bytes) -> None:
        """Send a message up."""

    def take_payload(self) -> bytes | bytearray:
        """Read the payload of the command under way."""

    def keep_records(self, final_offset: int, take_snapshot: Callable[[int, int], None], /) -> None:
        """Keep records of the answers of every env from now on.

        Autoresets that the slot makes itself it begins by take_snapshot(env_id, step_id) where `is_snapshot_due`.
        """

    def start_digest(self, env_id: int) -> None:
        """Begin the env's digest with its next row."""

    def schedule_snapshot(self, env_id: int, busy_ns: int) -> None:
        """Have the env looked at before the first autoreset after so much of its own time."""

    def is_snapshot_due(self, env_id: int) -> bool:
        """Tell whether that time has come."""
