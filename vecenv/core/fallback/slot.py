"""The worker's end of the rows without C: takes commands, steps envs and writes rows; see `words` for the protocol."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..host.generator_states import WatchedWords
from ..host.slot import (
    COMMAND,
    IDLE,
    RAISED,
    RESULT,
    STEP_BEGINS,
    STEP_ONLY,
    STEP_WITH_SNAPSHOT,
    STOP,
    OnDraw,
    Slot,
    SlotEvent,
)
from ..layout.commands import Command
from ..layout.flags import FORM_MASK, Autoreset, Op, RowFlag
from ..layout.info_cells import is_wanted
from ..layout.spec import Array
from ..system.clock import now_ns
from ..system.signals import signals_deferred
from .parent_watch import MAYBE_STOPPED_NS, check_parent
from .records import RecordedState, Records
from .timing import RESET, STEP, SlotTimer, TimedEnv, timed_envs
from .values import check_leaves, load_action, read_reward
from .words import (
    BLOCKED_WORD,
    ENV_ID_WORD,
    FRAGMENT_NBYTES,
    MESSAGE_FRAME,
    NUM_STEPS_WORD,
    OP_WORD,
    ROW_FRAME,
    STARTED_WORD,
    STEP_ID_WORD,
    VOID_FRAME,
    AttachLike,
    CheckedLeaves,
    SharedWords,
    numbers,
)

__all__ = ["FallbackSlot"]

#: The columns of one number per row that a slot writes.
_NUMBERS = (
    *("step_id", "env_id", "terminated", "truncated", "flags", "episode", "length", "seed", "return", "seconds"),
)


class _Transport(Protocol):
    """The part of a transport that a slot uses."""

    def next(self, slot: int) -> Command | None:
        """Return the next command of a slot; None if the queue is empty (local) or the stream has ended (socket)."""

    def send_frame(self, frame: tuple[Any, ...]) -> None:
        """Send one frame to the parent; may block. Signals must be deferred."""


@dataclass(kw_only=True)
class _HostedEnv(RecordedState):
    """The state of one env; `needs_reset`: the episode is over, and the next step resets the env."""

    timed: TimedEnv | None  # None: nothing is timed
    step: Callable[[Any], Any] | None = None  # see `host`
    window: bytes | None = None  # see `host`
    pieces: tuple[tuple[int, bytes], ...] = ()  # the address and the content of each part of the window
    needs_reset: bool = False


class FallbackSlot(Slot):
    """The worker's end of one slot, without C; see `Slot` for its methods.

    Args:
        attach: layout and options of the pool.
        slot: index of the slot.
        words: the shared memory.
        transport: carries commands and frames.
        waits: whether `transport.next` blocks, so that None is the end of the stream; `serve` then returns STOP.
    """

    def __init__(self, attach: AttachLike, slot: int, words: SharedWords, transport: _Transport, waits: bool) -> None:
        self._plan = attach.plan
        self._autoreset = attach.autoreset
        self._infos = attach.infos
        self._slot = slot
        self._words = words
        self._transport = transport
        self._waits = waits
        self._progress, self._newest = numbers(words.progress[slot]), numbers(words.newest)
        self._columns = {name: numbers(words.rows.columns[name]) for name in _NUMBERS}
        self._reward_size = attach.plan.reward_size
        self._started_ns = 0
        self._envs: dict[int, _HostedEnv] = {}
        self._command: Command | None = None  # the current command
        self._watched: list[tuple[ctypes.c_uint32, int]] = []
        self._on_draw: OnDraw | None = None
        self._windows: tuple[int, ...] = ()
        self._records = Records(words, len(attach.plan.obs.leaves))
        self._timings = None if words.timings is None else timed_envs(words.timings)
        self._timer = SlotTimer()

    # ---- commands ----------------------------------------------------------------------

    def stop(self) -> None:
        self._words.stop[0] = 1

    def serve(self) -> SlotEvent:
        if self._waits and self._timings is not None:
            self._timer.open()  # for the thread that serves this slot
        while not self._words.stop[0]:
            command = self._transport.next(self._slot)
            if command is None and not self._waits:
                return self._event(IDLE)
            if command is None or self._words.stop[0]:
                break
            if command.env_id not in self._envs:
                raise RuntimeError("command for an env of another slot")
            self._begin(command)
            env = self._envs[command.env_id]
            if self._is_superseded():
                self._timer.cancel()
                self._end()
                continue
            if env.timed is not None and command.op != Op.CALL:
                self._timer.begin(env.timed, RESET if command.op == Op.RESET or env.needs_reset else STEP)
            needs_snapshot = 0 < env.step_snapshot_after_ns <= env.busy_ns
            needs_host = env.needs_reset or needs_snapshot or env.step is None
            if command.op != Op.STEP or command.payload is not None or needs_host:
                if command.op == Op.STEP:  # its payload may contain an action
                    kind = STEP_BEGINS if env.needs_reset else STEP_WITH_SNAPSHOT if needs_snapshot else STEP_ONLY
                    command = self._command = command._replace(argument=kind)
                return self._event(COMMAND)
            event = self._step(env)
            if event is not None:
                return event
        self._timer.close()
        return self._event(STOP)

    def _event(self, kind: int, result: Any = None) -> SlotEvent:
        command = self._command
        if command is None:
            return kind, 0, int(Op.NONE), 0, 0, 0, None
        return kind, command.env_id, command.op, command.step_id, command.argument, command.flags, result

    def _begin(self, command: Command) -> None:
        self._command = command
        progress = self._progress
        progress[STARTED_WORD] = self._started_ns = now_ns()
        progress[ENV_ID_WORD] = command.env_id
        progress[STEP_ID_WORD] = command.step_id
        progress[OP_WORD] = command.op

    def _end(self) -> None:
        if self._command is not None:
            took_ns = self._end_timing()
            self._envs[self._command.env_id].busy_ns += took_ns
            if took_ns > MAYBE_STOPPED_NS:
                check_parent()
        self._progress[OP_WORD] = Op.NONE
        self._command = None

    def _end_timing(self) -> int:
        """Stop the timer of the current command, if it still runs; return for how long the command has been running."""
        assert self._command is not None
        now = now_ns()
        took_ns = now - self._started_ns
        timed = self._envs[self._command.env_id].timed
        if timed is not None:
            self._timer.end(timed, took_ns, now)
        return took_ns

    def _is_superseded(self) -> bool:
        command = self._command
        assert command is not None
        return command.op != Op.CALL and bool(self._newest[command.env_id] != command.step_id)

    def _step(self, env: _HostedEnv) -> SlotEvent | None:
        """Step the env of the current command; return None if its row was written, else the event for the host."""
        assert env.step is not None
        action = self.action()
        for address, piece in env.pieces:
            ctypes.memmove(address, piece, len(piece))
        try:
            try:
                result = env.step(action)
            except BaseException as error:
                self._check_for_draw(error)
                raise
            self._check_for_draw(None)
        except BaseException as error:  # the host decides whether it is the env's reply
            return self._event(RAISED, error)
        self.count_step()
        return None if self._answer_step(env, result) else self._event(RESULT, result)

    def _answer_step(self, env: _HostedEnv, result: Any) -> bool:
        """Write the row of a step from the result of the env; False: the host must do it."""
        if type(result) is not tuple or len(result) != 5:
            return False
        obs, reward, terminated, truncated, info = result
        try:
            terminated, truncated = bool(terminated), bool(truncated)
        except Exception:  # neither true nor false: the host raises the error
            return False
        is_done = terminated or truncated
        needs_mail = self._plan.obs.num_objects or not isinstance(info, dict)
        if obs is None or needs_mail or (is_done and self._autoreset == Autoreset.SAME_STEP):
            return False
        if not is_wanted(self._infos, is_done):
            info = {}
        return self.publish(obs, reward, terminated, truncated, info, 0, None)

    def finish(self) -> None:
        command = self._command
        if command is not None:
            with signals_deferred():  # as in `publish`
                if not self._is_superseded():
                    self._send_frame((VOID_FRAME, command.env_id, command.step_id))
                self._end()

    def current(self) -> tuple[int, int, int] | None:
        command = self._command
        return None if command is None else (command.env_id, command.op, command.step_id)

    # ---- rows --------------------------------------------------------------------------

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
        command = self._command
        if command is None:
            raise RuntimeError("publish without a command under way")
        exact = None if info or final_info else self._exact(obs, reward, final_obs)
        if exact is None:
            return False
        env = self._envs[command.env_id]
        is_over = self._is_over_after(env, terminated, truncated, flags)
        with signals_deferred():  # a handler that raises between reply and end would make the host reply twice
            if not self._is_superseded():
                self._write_row(env, *exact, terminated, truncated, flags)
                self._end_timing()  # a step whose row has arrived counts, even if the worker is killed then
                self._send_frame((ROW_FRAME, command.env_id, command.step_id))
            self._end()
            env.needs_reset = is_over and self._autoreset == Autoreset.NEXT_STEP
        return True

    def _is_over_after(self, env: _HostedEnv, terminated: bool, truncated: bool, flags: int) -> bool:
        """Return whether the episode is over after this reply; after a failed autoreset it still is."""
        assert self._command is not None
        is_left = flags & RowFlag.ERROR and self._command.op == Op.STEP and env.needs_reset
        return bool(terminated or truncated or is_left)

    def _exact(self, obs: Any, reward: Any, final_obs: Any) -> tuple[CheckedLeaves, Array] | None:
        """Return the leaves and the reward of a reply; None if one of them needs conversion first."""
        checked: CheckedLeaves = []
        rows, root = self._words.rows, self._plan.obs.root
        if obs is not None and not check_leaves(root, obs, rows.leaves, checked):
            return None
        if (
            final_obs is not None
            and rows.final_leaves
            and not check_leaves(root, final_obs, rows.final_leaves, checked)
        ):
            return None
        exact_reward = read_reward(reward, self._plan.reward_shape, self._reward_size)
        return None if exact_reward is None else (checked, exact_reward)

    def _write_row(
        self, env: _HostedEnv, checked: CheckedLeaves, reward: Array, terminated: bool, truncated: bool, flags: int
    ) -> None:
        command = self._command
        assert command is not None
        if flags & RowFlag.CONTINUES:
            env.episode += 1
        elif flags & (RowFlag.RESET | RowFlag.AUTORESET):
            _begin_episode(env)
        elif not flags & RowFlag.ERROR:
            env.length += 1
            env.episode_return += reward.item() if self._reward_size == 1 else math.nan
        row = command.env_id
        columns = self._columns
        columns["step_id"][row] = command.step_id
        columns["env_id"][row] = row
        self._words.rows.columns["reward"][row] = reward
        columns["terminated"][row] = terminated
        columns["truncated"][row] = truncated
        columns["flags"][row] = flags
        columns["episode"][row] = env.episode
        columns["length"][row] = env.length
        columns["seed"][row] = env.seed
        columns["return"][row] = env.episode_return
        if terminated or truncated:
            columns["seconds"][row] = (now_ns() - env.began_ns) / 1e9
            if env.timed is not None and not flags & RowFlag.CONTINUES:
                env.timed.count_episode(env.episode_return)
        if flags & RowFlag.FINAL_REPEATS:
            for final, last in zip(self._words.rows.final_leaves, self._words.rows.leaves):
                final[row] = last[row]
        for column, value in checked:
            column[row] = value
        if flags & RowFlag.FINAL:  # the same step began a new episode
            _begin_episode(env)
            env.seed = -1
        if self._records.is_kept:
            starts_digest, env.starts_digest = env.starts_digest, False
            env.digest = self._records.digest_of(
                env.digest, starts_digest, checked, reward, terminated, truncated, flags
            )
            is_over = not flags & RowFlag.FINAL and self._is_over_after(env, terminated, truncated, flags)
            self._records.write(row, command.step_id, env, is_over)

    def host(
        self, env_id: int, step: Callable[[Any], Any] | None, env: Any = None, window: bytes | None = None, /
    ) -> None:
        if not 0 <= env_id < self._plan.num_envs:
            raise ValueError("env_id out of range")
        if step is None and env is not None:

            def step(action: Any) -> Any:
                return env.step(action)

        if env_id not in self._envs:
            timed = None if self._timings is None else TimedEnv(self._timings[env_id])
            self._envs[env_id] = _HostedEnv(timed=timed, step=step)
        self._envs[env_id].step, self._envs[env_id].window = step, window
        self._place_window(self._envs[env_id])

    def watch(self, words: WatchedWords, on_draw: OnDraw | None, windows: tuple[int, ...] = (), /) -> None:
        self._watched = [(ctypes.c_uint32.from_address(address), value) for address, value in words]
        self._on_draw = on_draw
        self._windows = windows
        for env in self._envs.values():
            self._place_window(env)

    def _place_window(self, env: _HostedEnv) -> None:
        env.pieces = ()
        if env.window is not None and self._windows:
            nbytes = len(env.window) // len(self._windows)
            pieces = [env.window[number * nbytes :][:nbytes] for number in range(len(self._windows))]
            env.pieces = tuple(zip(self._windows, pieces))

    def _check_for_draw(self, error: BaseException | None) -> None:
        for word, value in self._watched:
            if word.value != value:
                assert self._on_draw is not None and self._command is not None
                self._on_draw(self._command.env_id, error)
                break

    def count_step(self) -> None:
        self._progress[NUM_STEPS_WORD] += 1

    def set_seed(self, env_id: int, seed: int, /) -> None:
        if env_id not in self._envs:
            raise ValueError("env_id out of range")
        self._envs[env_id].seed = seed

    def set_counters(self, env_id: int, length: int, episode_return: float, age_ns: int, /) -> None:
        env = self._envs[env_id]
        env.length, env.episode_return, env.began_ns = length, episode_return, now_ns() - age_ns

    # ---- records and replay: as native/worker/slot_records.c -------------------------------------

    def keep_records(self, final_offset: int, take_snapshot: Callable[[int, int], bool], /) -> None:
        self._records.is_kept = True  # take_snapshot is not needed: the host makes every autoreset

    def start_digest(self, env_id: int, /) -> None:
        self._envs[env_id].starts_digest = True

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
        exact = self._exact(obs, reward, final_obs)
        if exact is None:
            return False
        env = self._envs[env_id]
        env.digest = self._records.digest_of(env.digest, starts_digest, *exact, terminated, truncated, flags)
        return True

    def records(self, env_id: int, /) -> tuple[int, tuple[int, int], tuple[int, int]]:
        return (self._envs[env_id].digest, *self._records.pairs(env_id))

    def present_record(self, env_id: int, /) -> bytes:
        env = self._envs[env_id]
        return self._records.pack(env, env.needs_reset)

    def resume(self, env_id: int, step_id: int, needs_reset: bool, /) -> bool:
        env = self._envs[env_id]
        env.needs_reset = needs_reset
        return self._records.read(env_id, step_id, env)

    def schedule_snapshot(self, env_id: int, busy_ns: int, step_busy_ns: int, /) -> None:
        env = self._envs[env_id]
        env.busy_ns, env.snapshot_after_ns, env.step_snapshot_after_ns = 0, busy_ns, step_busy_ns

    def is_snapshot_due(self, env_id: int, /) -> bool:
        env = self._envs[env_id]
        return 0 < env.snapshot_after_ns <= env.busy_ns

    def touch(self, op: int, /) -> None:
        self._timer.cancel()  # the time of a replay is not the env's
        self._progress[STARTED_WORD] = self._started_ns = now_ns()
        self._progress[OP_WORD] = op

    # ---- actions, payloads, messages ---------------------------------------------------

    def action(self, form: int = -1, leaves: tuple[bytes, ...] | None = None, /) -> Any:
        root = self._plan.action.root
        if leaves is not None:
            columns = [
                np.frombuffer(data, leaf.dtype).reshape(1, *leaf.shape)
                for data, leaf in zip(leaves, self._plan.action.leaves)
            ]
            return load_action(root, columns, 0, form)
        command = self._command
        assert command is not None, "no command is under way"
        form = command.flags & FORM_MASK if form < 0 else form
        return load_action(root, self._words.actions, command.env_id, form)

    def take_payload(self) -> bytes:
        command = self._command
        assert command is not None and command.payload is not None, "no payload came with this command"
        payload: bytes = command.payload
        return payload

    def send_message(self, data: bytes, /) -> None:
        with signals_deferred():  # the fragments of two messages must not mix
            for start in range(0, max(1, len(data)), FRAGMENT_NBYTES):
                stop = start + FRAGMENT_NBYTES
                self._send_frame((MESSAGE_FRAME, self._slot, stop >= len(data), bytes(data[start:stop])))

    def _send_frame(self, frame: tuple[Any, ...]) -> None:
        if self._words.stop[0]:
            return  # after a stop the parent expects only the exit report
        self._progress[BLOCKED_WORD] = 1
        self._timer.pause()  # sending may have to wait for the parent
        self._transport.send_frame(frame)
        self._timer.resume()
        self._progress[BLOCKED_WORD] = 0


def _begin_episode(env: _HostedEnv) -> None:
    env.began_ns = now_ns()
    env.episode += 1
    env.length = 0
    env.episode_return = 0.0
