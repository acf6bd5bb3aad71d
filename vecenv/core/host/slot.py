"""Slot: the interface through which a host receives commands and writes rows, and the events that it returns.

`_native.Slot` and `fallback.slot.FallbackSlot` implement it. Their methods are documented only here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .generator_states import WatchedWords

__all__ = ["OnDraw", "Slot", "SlotEvent"]

#: (kind, env_id, op, step_id, argument, flags, result), see `_native.Slot.serve`
SlotEvent = tuple[int, int, int, int, int, int, Any]

#: Called with (env_id, exception or None), see `Slot.watch`
OnDraw = Callable[[int, BaseException | None], object]

#: The argument of a RESULT or RAISED: the call of the env that it comes from. BOTH means a step and the reset after it;
#: then the result is (reward, terminated, truncated, result of the reset), because the reset may have overwritten the
#: step's observation and info. Of a RAISED, the last item is the exception of the reset.
RESULT_OF_STEP, RESULT_OF_RESET, RESULT_OF_BOTH = range(3)

#: The argument of a step that is a COMMAND: a plain one; one that must reset the env, because its episode is over; one
#: before which a snapshot is due.
STEP_ONLY, STEP_BEGINS, STEP_WITH_SNAPSHOT = range(3)

#: Kinds of events: the pool stops; the queue is empty; a command for the host; a result of the env that the slot could
#: not write itself; an exception of the env.
STOP, IDLE, COMMAND, RESULT, RAISED = range(5)


class Slot(Protocol):
    """The worker's end of one slot: commands in, rows out. Only one thread may use it, but for `stop`.

    The current command is the one that `serve` took from the queue last, until `publish` or `finish` ends it.
    """

    def serve(self) -> SlotEvent:
        """Step envs until an event needs the host; sleep without the GIL while the queue is empty.

        Returns:
            (kind, env_id, op, step_id, argument, flags, result), by kind:
            COMMAND: the current command is a reset, a call, or a step that has a payload, must reset first, or needs a
            snapshot first; of a step, `argument` is STEP_ONLY, STEP_BEGINS or STEP_WITH_SNAPSHOT. If `result` is True,
            it was superseded or cancelled, and only its payload must be read.
            RESULT: a step, an autoreset or both returned `result`, which needs a conversion, a message or an autoreset;
            `argument` is RESULT_OF_STEP, RESULT_OF_RESET or RESULT_OF_BOTH.
            RAISED: the env raised `result`; `argument` is as above.
            STOP, IDLE: there is no current command. All other events must be ended by `publish` or `finish`.
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
        """Reply to the current command with one row, and end the command.

        Args:
            obs, final_obs: each leaf must have exactly its dtype and shape. With None the columns are not changed; if
                `flags` contain FINAL, they are filled with the values that were kept for this row.
            reward: a number, or an array of the reward's shape.
            terminated, truncated: whether the step ended the episode.
            info, final_info: all keys must be known and have columns; with None the columns are not changed.
            flags: bits of `rows.RowFlag`.

        Returns:
            True if the command has ended; the row of a superseded or cancelled command is dropped. False if a value
            needs conversion; then no column was written, and the command has not ended.
        """

    def finish(self) -> None:
        """End the current command without a row: its reply was a message, or it needs no reply."""

    def current(self) -> tuple[int, int, int] | None:
        """Return (env_id, op, step_id) of the current command; None if there is none."""

    def host(
        self, env_id: int, step: Callable[[Any], Any] | None, env: Any = None, window: bytes | None = None, /
    ) -> None:
        """Register how an env is stepped from now on.

        Args:
            env_id: the env.
            step: called with an action; None: `env.step` is looked up at each step, or, without an env, the host makes
                the steps.
            env: the slot calls its `reset` for autoresets; None leaves autoresets to the host.
            window: words that are written to the addresses of `watch` before each step and autoreset; None: nothing is.
        """

    def watch(self, words: WatchedWords, on_draw: OnDraw | None, windows: tuple[int, ...] = (), /) -> None:
        """Call on_draw(env_id, exception) right after each step or autoreset that changed one of these words.

        Args:
            words: at most seven pairs (address of a uint32, value). Their memory must exist until the next `watch`.
            on_draw: gets the exception that the env raised, or None. It must restore the values, watch other words or
                end the process. None only if `words` is empty.
            windows: none, two or three addresses, to which the equal parts of an env's window are written; (): none is.
        """

    def stop(self) -> None:
        """Have `serve` return after the command under way, within a second if it sleeps. Any thread may call this."""

    def count_step(self) -> None:
        """Count a step that the host made; `serve` counts its own steps."""

    def set_seed(self, env_id: int, seed: int, /) -> None:
        """Set the seed that the rows of the next episode contain; -1: without a seed."""

    def set_counters(self, env_id: int, length: int, episode_return: float, age_ns: int, /) -> None:
        """Set the counters of the episode that the next row, which is flagged CONTINUES, continues.

        Args:
            env_id: the env.
            length: the steps of this episode so far.
            episode_return: the sum of its rewards; NaN where a reward has several numbers.
            age_ns: nanoseconds since its begin.
        """

    def action(self, form: int = ..., leaves: tuple[bytes, ...] = ..., /) -> Any:
        """Return a new action object.

        Args:
            form: a `rows.Form`; by default that of the current command.
            leaves: the bytes of each leaf; by default those in the action row of the command's env.
        """

    def send_message(self, data: bytes, /) -> None:
        """Write one message for the parent; blocks, with deadlines suspended, while the ring is full.

        An exception of a signal handler is raised after the whole message has been written.
        """

    def take_payload(self) -> bytes | bytearray:
        """Return the payload of the current command; call it once per command that has one.

        An exception of a signal handler is raised after the whole payload has been read, because the next payload
        follows directly.
        """

    def keep_records(self, final_offset: int, take_snapshot: Callable[[int, int], bool], /) -> None:
        """Keep records of the two newest replies of each env from now on.

        Args:
            final_offset: of the columns of final observations in a block, in bytes.
            take_snapshot: called with (env_id, step_id) before an autoreset by the slot, if `is_snapshot_due`. If it
                returns True, the result of the reset is an event for the host.
        """

    def start_digest(self, env_id: int, /) -> None:
        """Start the env's digest again with its next row."""

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
        """Add a repeated reply to the env's digest as `publish` does, but do not write a row.

        Args:
            env_id, step_id: the env and the repeated command.
            obs, reward, terminated, truncated, flags, final_obs: as for `publish`.
            starts_digest: whether the digest starts again with this reply.

        Returns:
            False if a value needs conversion, as for `publish`.
        """

    def records(self, env_id: int, /) -> tuple[int, tuple[int, int], tuple[int, int]]:
        """Return the env's digest and its two records, each as (step_id, digest); step_id 0 is an empty record."""

    def present_record(self, env_id: int, /) -> bytes:
        """Return the env's episode counters and digest as the bytes of an `arena.RECORD`.

        Its step_id is 0; `is_over`: whether the next step resets the env first, in NEXT_STEP mode.
        """

    def resume(self, env_id: int, step_id: int, needs_reset: bool, /) -> bool:
        """Set the env's episode counters and digest from the record of `step_id`; 0: there is no record.

        Args:
            env_id: the env.
            step_id: the command whose reply was recorded last.
            needs_reset: whether the next step must reset the env first.

        Returns:
            Whether the episode was over after the recorded reply.
        """

    def schedule_snapshot(self, env_id: int, busy_ns: int, step_busy_ns: int, /) -> None:
        """Set the busy time of the env after which a snapshot is due, in nanoseconds from now; 0: never.

        Args:
            env_id: the env.
            busy_ns: for a snapshot before a reset or within a call.
            step_busy_ns: for a snapshot before a step within an episode, which is an event for the host then.
        """

    def is_snapshot_due(self, env_id: int, /) -> bool:
        """Return whether a snapshot is due, see `schedule_snapshot`."""

    def touch(self, op: int, /) -> None:
        """Begin operation `op` within the current command: its time limit starts now."""
