"""Host: steps, resets and calls the envs of one slot, and answers with rows.

Stands between the slot's commands and the env on the data path. The plain step never comes
here: the slot makes it and writes its row in C. What does come: resets, autoresets, calls,
odd actions, infos and observations that need conversion or mail, and exceptions. Worker
processes and `SerialPool` drive this same class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..errors import SpaceError
from . import mail
from .arena import ArenaPlan
from .infos import Infos, fitting, is_wanted
from .rows import Autoreset, CommandFlag, Op, RowFlag
from .spec import Spec

__all__ = ["Host", "Slot", "SlotEvent"]

#: (kind, env_id, op, step_id, argument, flags, result), see `_native.Slot.serve`
SlotEvent = tuple[int, int, int, int, int, int, Any]

#: Seeds that fit the column; larger ones are used all the same and shown as unknown.
_MANY_SEEDS = 2**63

RESULT_OF_STEP, RESULT_OF_RESET, RESULT_OF_BOTH = range(3)

STOP, IDLE, COMMAND, RESULT, RAISED = range(5)


class Slot(Protocol):
    """The worker's end of the rows: `_native.Slot` or `twin.PipeSlot`."""

    def serve(self) -> SlotEvent:
        """Step envs until something needs the host; return that."""

    def publish(
        self, obs: Any, reward: Any, terminated: bool, truncated: bool, info: Any, flags: int, final_obs: Any
    ) -> bool:
        """Answer the command under way with a row; False if a value needs conversion first."""

    def finish(self) -> None:
        """End the command under way without a row."""

    def host(self, env_id: int, step: Callable[[Any], Any], env: Any = None, /) -> None:
        """Step env_id by this function from now on, and autoreset it by `env.reset()`."""

    def set_seed(self, env_id: int, seed: int) -> None:
        """Record the seed of the episode that begins."""

    def action(self) -> Any:
        """Return the action of the command under way."""

    def mail(self, data: bytes) -> None:
        """Send a message up."""

    def letter(self) -> bytes | bytearray:
        """Read the letter of the command under way."""


class Host:
    """The envs of one slot.

    Args:
        slot: where commands come from and rows go to.
        envs: env_id -> env with Gymnasium's calls.
        plan: for the observation spec and the reward's shape.
        autoreset: what to do when an episode ends.
        infos: which infos travel.

    Attributes:
        interrupted: the env whose command was given up because of a KeyboardInterrupt.
    """

    def __init__(
        self, slot: Slot, envs: dict[int, Any], plan: ArenaPlan, autoreset: Autoreset, infos: Infos = Infos.ALL
    ) -> None:
        self._slot = slot
        self._envs = envs
        self._obs: Spec = plan.obs
        self._reward_shape = plan.reward_shape
        self._autoreset = autoreset
        self._infos = infos
        self.interrupted: int | None = None  # the env whose command a Ctrl-C cut short
        self._current = (0, 0)  # env_id and step_id of the command under way
        self._warnings: list[tuple[str, str]] = []
        self._obs.warn = lambda path, text: self._warnings.append((path, text))
        for env_id, env in envs.items():
            slot.host(env_id, env.step, env)

    def serve(self) -> int:
        """Answer commands until the slot stops or, if it does not wait, is idle.

        Returns:
            STOP or IDLE.

        Raises:
            KeyboardInterrupt: in the caller's own process only; the command is given up.
        """
        while True:
            kind, env_id, op, step_id, argument, flags, result = self._slot.serve()
            if kind in (STOP, IDLE):
                return kind
            self._current = (env_id, step_id)
            try:
                self._handle(kind, env_id, op, argument, flags, result)
            except KeyboardInterrupt:
                self._slot.finish()
                self.interrupted = env_id
                raise
            except BaseException as error:  # everything an env may raise is its answer, SystemExit too
                self._answer_error(op, error)

    def close(self) -> None:
        """Close every env, all of them even if some raise; then raise the first such error."""
        first: BaseException | None = None
        for env in self._envs.values():
            try:
                env.close()
            except Exception as error:  # the others must be closed too; raised below
                first = first or error
        self._envs.clear()
        if first is not None:
            raise first

    # ---- commands ---------------------------------------------------------------------

    def _handle(self, kind: int, env_id: int, op: int, argument: int, flags: int, result: Any) -> None:
        env = self._envs[env_id]
        if kind == RAISED:
            raise result
        if kind == RESULT:
            self._answer_result(env_id, argument, result)
            return
        letter: Any = mail.load(self._slot.letter()) if flags & CommandFlag.LETTER else None
        if op == Op.CALL:
            self._answer_call(env, letter)
        elif op == Op.RESET:
            kwargs = dict(letter.kwargs) if letter else {}
            if flags & CommandFlag.SEED:
                kwargs["seed"] = argument
            self._answer_reset(env_id, kwargs, RowFlag.RESET)
        elif letter is not None and not argument:
            self._answer_step(env_id, env.step(letter.action))
        else:  # NEXT_STEP: the episode is over, as `argument` says of steps; this one begins the next
            self._answer_reset(env_id, {}, RowFlag.AUTORESET)

    def _answer_reset(self, env_id: int, kwargs: dict[str, Any], flag: RowFlag) -> None:
        obs, info = _pair(self._envs[env_id].reset(**kwargs))
        seed = kwargs.get("seed")
        self._slot.set_seed(env_id, seed if seed is not None and 0 <= seed < _MANY_SEEDS else -1)
        # a reset may have put another env behind this one
        self._slot.host(env_id, self._envs[env_id].step, self._envs[env_id])
        self._publish(obs, self._no_reward(), False, False, info, flag)

    def _answer_result(self, env_id: int, argument: int, result: Any) -> None:
        """Answer with what the slot got from the env and could not write itself."""
        if argument == RESULT_OF_STEP:
            self._answer_step(env_id, result)
        elif argument == RESULT_OF_RESET:
            obs, info = _pair(result)
            self._publish(obs, self._no_reward(), False, False, info, RowFlag.AUTORESET)
        else:  # SAME_STEP: the slot has kept the observation that ended the episode
            (_, reward, terminated, truncated, _), reset_result = result
            obs, info = _pair(reset_result)
            self._publish(obs, self._reward(reward), bool(terminated), bool(truncated), info, RowFlag.FINAL)

    def _answer_step(self, env_id: int, result: Any) -> None:
        try:
            obs, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            raise TypeError(f"step of env {env_id} must return five values, got {_kind_of(result)}") from None
        terminated, truncated = bool(terminated), bool(truncated)
        if (terminated or truncated) and self._autoreset == Autoreset.SAME_STEP:
            # before the reset, which may write into the same arrays and dicts
            info = self._wanted(info, is_end=True)
            obs, info, reward = _copy_arrays(obs), _copy_arrays(info), self._reward(reward)
            first_obs, first_info = _pair(self._envs[env_id].reset())
            self._publish(first_obs, reward, terminated, truncated, first_info, RowFlag.FINAL, obs, info)
        else:
            self._publish(obs, reward, terminated, truncated, info, RowFlag(0))

    def _answer_call(self, env: Any, letter: mail.Letter) -> None:
        function = letter.function
        assert function is not None
        value = function(env)
        env_id, step_id = self._current
        self._slot.host(env_id, env.step, env)  # as after a reset
        self._slot.mail(mail.dump(mail.Answer(step_id, env_id, value=value)))
        self._slot.finish()

    # ---- rows -------------------------------------------------------------------------

    def _publish(
        self,
        obs: Any,
        reward: Any,
        terminated: bool,
        truncated: bool,
        info: Any,
        flags: RowFlag,
        final_obs: Any = None,
        final_info: Any = None,
    ) -> None:
        is_final = bool(flags & RowFlag.FINAL)  # then the info is of the reset
        info = self._wanted(info, is_end=(terminated or truncated) and not is_final)
        no_mail = not self._obs.num_objects and not final_info
        if no_mail and self._slot.publish(obs, reward, terminated, truncated, info, flags, final_obs):
            return
        # Something needs conversion or mail. Find out what by doing it all here, once.
        exact_obs = self._obs.conform(obs)
        exact_final = None if final_obs is None else self._obs.conform(final_obs)
        exact_reward = self._reward(reward)
        no_mail = no_mail and not self._warnings
        if no_mail and self._slot.publish(exact_obs, exact_reward, terminated, truncated, info, flags, exact_final):
            return
        env_id, step_id = self._current
        answer = mail.Answer(step_id, env_id, info=info, final_info=final_info, warnings=self._warnings[:])
        self._warnings.clear()
        if self._obs.num_objects:
            answer.objects = self._obs.objects(obs)
            answer.final_objects = None if final_obs is None else self._obs.objects(final_obs)
        self._slot.mail(mail.dump(answer))
        flags |= RowFlag.MAIL
        written = self._slot.publish(exact_obs, exact_reward, terminated, truncated, None, flags, exact_final)
        assert written, "a row of conforming values was refused"

    def _answer_error(self, op: int, error: BaseException) -> None:
        env_id, step_id = self._current
        self._slot.mail(mail.dump(mail.Answer(step_id, env_id, error=mail.pack_error(error))))
        if op == Op.CALL:
            self._slot.finish()
        else:
            flags = RowFlag.MAIL | RowFlag.ERROR | (RowFlag.RESET if op == Op.RESET else RowFlag(0))
            self._slot.publish(None, self._no_reward(), False, False, None, flags, None)

    def _wanted(self, info: Any, is_end: bool) -> dict[str, Any]:
        """Return what of an info travels; `is_end`: of a step that ends an episode."""
        if not isinstance(info, dict):
            raise TypeError(f"info must be a dict, got {_kind_of(info)}")
        if not is_wanted(self._infos, is_end):
            return {}
        return fitting(info) if self._infos == Infos.COLUMNS else info

    def _no_reward(self) -> Any:
        return 0.0 if self._reward_shape == () else np.zeros(self._reward_shape)

    def _reward(self, reward: Any) -> Any:
        """Return the reward as a float, or as float64 of the reward space's shape."""
        try:
            array = np.asarray(reward, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise SpaceError(f"reward: {error}", path="reward") from error
        if array.size == 1 and self._reward_shape == ():
            return float(array.reshape(()))
        if array.shape != self._reward_shape:
            expected, got = f"float64 {self._reward_shape}", f"{array.dtype} {array.shape}"
            raise SpaceError(f"reward: expected {expected}, got {got}", path="reward", expected=expected, got=got)
        return np.ascontiguousarray(array)


def _pair(result: Any) -> tuple[Any, Any]:
    try:
        obs, info = result
    except (TypeError, ValueError):
        raise TypeError(f"reset must return (obs, info), got {_kind_of(result)}") from None
    return obs, info


def _kind_of(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, tuple | list | dict) else ""
    return f"{type(value).__name__}{size}"


def _copy_arrays(value: Any) -> Any:
    """Copy a nested value's containers and arrays; other objects are shared."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: _copy_arrays(part) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_copy_arrays(part) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple, such as a graph
        return value._make(_copy_arrays(part) for part in value)
    return value
