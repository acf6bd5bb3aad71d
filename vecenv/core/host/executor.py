"""Executor: calls an env as a command requires, and returns its answer as a value.

    command -> Executor -> env.step, env.reset or a function of the env -> Answer

This file has the rules of an env's life: the begin of episodes in each mode of autoreset, the seeds and the global
random generators of each call, and the answer to an exception. The slot itself makes plain steps and autoresets by the
same rules. The host writes an answer into a row, the restorer adds it to the env's digest, and a reproducer yields it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...gymnasium_api.first_seeds import is_seeded_by, seed_generators
from ...gymnasium_api.replaying import is_replaying
from ..layout.commands import GivenState, reset_kwargs
from ..layout.flags import Autoreset, CommandFlag, Op, RowFlag
from .caught import CaughtExceptions, UnbuiltEnv
from .checks import exact_flag, type_name, unpack_reset
from .global_rngs import GlobalRngs
from .slot import RESULT_OF_BOTH, RESULT_OF_STEP

if TYPE_CHECKING:
    from .snapshots import Snapshots

__all__ = ["Answer", "Executor"]


class Answer(NamedTuple):
    """The answer of an env to a command.

    Attributes:
        doing: the call that it comes from: 'step', 'reset', 'autoreset', 'set_states' or 'call'.
        obs: the observation, or the result of a call; None if `flags` contain REPEATS.
        reward, terminated, truncated, info: of the step; a reset has only an info.
        flags: `RowFlag` bits.
        final_obs, final_info: SAME_STEP: of the step that ended the episode, whose reward and ends these are.
        seed: the one from which a reset has made the env's generators; None: they are older, or it is unknown.
        is_rebuilt: whether it is the first observation of an env that replaces a lost one.
        needs_autoreset: SAME_STEP: the episode is over; `Executor.autoreset` completes the answer.
    """

    doing: str
    obs: Any
    reward: Any = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Any = None
    flags: int = 0
    final_obs: Any = None
    final_info: Any = None
    seed: Any = None
    is_rebuilt: bool = False
    needs_autoreset: bool = False


#: The names of operations, by `Op`.
_NAMES = tuple(op.name.lower() for op in Op)
#: Arguments of `Executor._reset`: its name, the arguments of the env's `reset`, the drawn seed, and whether a snapshot
#: is taken even if none is due.
_ResetArguments = tuple[str, dict[str, Any], int | None, bool]
_NO_ARGUMENTS: _ResetArguments = "reset", {}, None, False


class Executor:
    """Calls the envs of one slot, one command at a time.

    Args:
        envs: env_id -> env with Gymnasium's methods. An env that is built again replaces the old one.
        autoreset: mode of the reset at the end of an episode.
        rngs: the RNG states of these envs.
        zero_reward: reward of an answer that does not come from a step.
        touch: called with an operation whose time limit starts within a command.
        call_lazily: steps and autoresets an env; see `GlobalRngs.call_lazily`.

    Attributes:
        command: (env_id, op, step_id) of the current command.
        doing: the present call of the env: 'step', 'reset', 'autoreset', 'set_states' or 'call'.
        given: (action,) of a step; (seed,) of a reset that has the argument `seed`; else ().
        needs_reset: whether the next step resets its env, because its episode is over (NEXT_STEP).
        caught: builds envs again after exceptions in resets; None: exceptions are answers.
        snapshots: takes snapshots before resets if they are due; None: takes none.
        fresh_seeds: env_id -> a seed for the generator of a newly built env, until it is reset.
        seed_takers: envs whose reset had a seed.
    """

    def __init__(
        self,
        envs: dict[int, Any],
        autoreset: Autoreset,
        rngs: GlobalRngs,
        zero_reward: Any = 0.0,
        touch: Callable[[int], object] = lambda op: None,
        call_lazily: Callable[..., Any] | None = None,
    ) -> None:
        self.envs = envs
        self._autoreset = autoreset
        self._rngs = rngs
        self._no_end = Answer("step", None, zero_reward)
        self._touch = touch
        self._call_lazily = call_lazily or rngs.call_lazily
        self.needs_reset = False
        self.caught: CaughtExceptions | None = None
        self.snapshots: Snapshots | None = None
        self.fresh_seeds: dict[int, int] = {}
        self.seed_takers: set[int] = set()
        self.begin(0, Op.NONE, 0)

    def begin(self, env_id: int, op: int, step_id: int) -> None:
        """Begin a command, before `execute` or `continue_step`."""
        self.command, self.doing = (env_id, op, step_id), _NAMES[op]
        self.given: tuple[Any, ...] = ()
        self._end = self._no_end  # SAME_STEP: of the episode that this command has ended
        self._reset_arguments = _NO_ARGUMENTS  # the arguments of `_reset`, for another attempt

    def execute(self, flags: int = 0, argument: int = 0, given: Any = None) -> Answer:
        """Call the env for the current command.

        Args:
            flags, argument: of the command; see `CommandFlag`.
            given: the action of a step, the keyword arguments or the state of a reset, or the function of a call.

        Raises:
            BaseException: raised by the env; call `answer_exception` then.
        """
        env_id, op, _ = self.command
        env = self.envs[env_id]
        self._needed_reset = op == Op.STEP and self.needs_reset
        if op == Op.CALL:
            return Answer("call", self._rngs.call_swapped(env_id, given, env), info={})
        if op == Op.RESET and isinstance(given, GivenState):
            return self._set_state(given)
        if op == Op.RESET:
            kwargs = reset_kwargs(env, given or {}, flags, argument)
            self.given = (kwargs["seed"],) if "seed" in kwargs else ()
            drawn = argument if flags & CommandFlag.DRAWN else None
            return self._reset("reset", kwargs, drawn, bool(flags & CommandFlag.SNAPSHOT))
        if self.needs_reset:
            return self.autoreset()
        self.given = (given,)
        return self._answer_step(self._call_lazily(env_id, env.step, given))

    def continue_step(self, origin: int, result: Any, raised: bool) -> Answer:
        """Continue a step that the slot has begun, from its event RESULT or RAISED; see `slot.RESULT_OF_STEP`."""
        if origin != RESULT_OF_STEP:
            self.doing, self._reset_arguments = "autoreset", ("autoreset", {}, None, False)
        if origin == RESULT_OF_BOTH:  # the slot has kept the final observation and info
            *end, result = result
            self._end = Answer("step", None, *end)
        if raised:
            raise result
        return self._answer_step(result) if origin == RESULT_OF_STEP else self._answer_reset(result)

    def autoreset(self, end: Answer | None = None) -> Answer:
        """Reset the env of the current command, whose episode is over.

        Args:
            end: the answer that needs the autoreset (SAME_STEP), with copies of the values that the reset may
                overwrite; None: there is no such answer.
        """
        self._end = end or self._no_end
        return self._reset("autoreset", {})

    def answer_exception(self, is_caught: bool) -> Answer:
        """Answer the current command after an exception of its env, or one that its answer has caused.

        Args:
            is_caught: whether the exception ends the episode, so that a step is truncated and an env whose reset raised
                is built again and reset; else the exception is the answer.

        Raises:
            BaseException: raised by the env or its constructor. Call `answer_exception` again.
        """
        is_caught = is_caught and self.doing != "set_states"  # its exceptions are always answers
        if is_caught and self.doing == "step":
            return self.truncate(None, RowFlag.REPEATS)
        if is_caught:
            self._build_again()
            return self._reset(*self._reset_arguments)
        if self.doing != "call":  # a failed autoreset is tried again by the next step
            self.needs_reset = self._needed_reset and self._autoreset == Autoreset.NEXT_STEP
        flags = RowFlag.ERROR | RowFlag.REPEATS | (RowFlag.RESET if self.command[1] == Op.RESET else 0)
        return Answer(self.doing, None, self._no_end.reward, flags=flags)

    def truncate(self, last_obs: Any, flags: int = 0) -> Answer:
        """End the episode of a step that has no answer, with the last delivered observation."""
        return self._end_episode(Answer("step", last_obs, self._no_end.reward, False, True, {}, flags))

    @property
    def is_seeded(self) -> bool:
        """Whether the current command is a reset with a seed."""
        return self.command[1] == Op.RESET and any(seed is not None for seed in self.given)

    def _answer_step(self, result: Any) -> Answer:
        try:
            obs, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            name = f"env {self._rngs.first_env_id + self.command[0]}"
            is_old = isinstance(result, tuple) and len(result) == 4
            hint = "; for Gym's old calls, wrap it in vecenv.ding.GymToGymnasiumWrapper" if is_old else ""
            raise TypeError(f"step of {name} must return five values, got {type_name(result)}{hint}") from None
        terminated, truncated = exact_flag("terminated", terminated), exact_flag("truncated", truncated)
        answer = Answer("step", obs, reward, terminated, truncated, info)
        return self._end_episode(answer) if terminated or truncated else answer

    def _end_episode(self, answer: Answer) -> Answer:
        self.needs_reset = self._autoreset == Autoreset.NEXT_STEP
        return answer._replace(needs_autoreset=self._autoreset == Autoreset.SAME_STEP)

    def _reset(self, doing: str, kwargs: dict[str, Any], drawn: int | None = None, forced: bool = False) -> Answer:
        """Seed the generators of an env, take a snapshot if one is due or `forced`, and reset the env.

        If a newly built env raises, try again with a seed: some need one in their first reset.
        """
        self.doing, self._reset_arguments = doing, (doing, kwargs, drawn, forced)
        env_id, _, step_id = self.command
        if isinstance(self.envs[env_id], UnbuiltEnv):
            self._build_again()
        env, seed, fresh = self.envs[env_id], kwargs.get("seed"), self.fresh_seeds.get(env_id)
        if seed is not None:
            self.seed_takers.add(env_id)
            self._rngs.reseed(env_id, seed)
        elif drawn is None:
            drawn = fresh
        is_made = drawn is not None and self._rngs.call_swapped(env_id, seed_generators, env, drawn)
        if self.snapshots is not None and not is_replaying():
            how = {"seeded": seed is not None, "has_new_generator": is_made, "forced": forced or fresh is not None}
            self.snapshots.before_reset(env_id, step_id, env, **how)
        call: Callable[..., Any] = self._call_lazily if doing == "autoreset" else self._rngs.call_swapped
        try:
            result = call(env_id, env.reset, **kwargs)
        except Exception:
            if fresh is None or env_id not in self.seed_takers or seed is not None:
                raise
            result = self._rngs.call_swapped(env_id, env.reset, **{**kwargs, "seed": fresh})
        self.fresh_seeds.pop(env_id, None)  # a failed reset would need the seed again
        if seed is None and drawn is not None and is_seeded_by(env, drawn):
            seed = drawn
        return self._answer_reset(result, seed, fresh is not None)

    def _answer_reset(self, result: Any, seed: Any = None, is_rebuilt: bool = False) -> Answer:
        obs, info = unpack_reset(result)
        self.needs_reset = False
        end = self._end
        flags = RowFlag.RESET if self.doing == "reset" else RowFlag.AUTORESET
        if self.doing == "autoreset" and self._autoreset == Autoreset.SAME_STEP:
            flags = RowFlag.FINAL | (RowFlag.FINAL_REPEATS if end.flags & RowFlag.REPEATS else 0)
        ends = end.terminated, end.truncated
        return Answer(self.doing, obs, end.reward, *ends, info, flags, end.obs, end.info, seed, is_rebuilt)

    def _set_state(self, given: GivenState) -> Answer:
        """Put a state into the env of the current command; the answer is the row that the state comes from."""
        self.doing = "set_states"
        env_id = self.command[0]
        if isinstance(self.envs[env_id], UnbuiltEnv):
            self._build_again()
        state = self._rngs.unpack_state(env_id, given.state)
        with self._rngs.fork_guard:
            given.snapshotter.restore(self.envs[env_id], state)
        self.fresh_seeds.pop(env_id, None)
        if self.snapshots is not None and not is_replaying():
            self.snapshots.continue_from_state(env_id, self.envs[env_id])
        self.needs_reset = given.is_over and self._autoreset == Autoreset.NEXT_STEP
        flags = RowFlag.RESET | RowFlag.CONTINUES
        return Answer(self.doing, given.obs, self._no_end.reward, given.is_over, False, {}, flags, seed=given.seed)

    def _build_again(self) -> None:
        """Replace an env whose reset has raised by a new one."""
        assert self.caught is not None
        env_id, _, step_id = self.command
        self._touch(Op.RESET)  # the constructor has the limit of a reset, and so has the reset after it
        try:
            env, self.fresh_seeds[env_id] = self.caught.rebuild(env_id, self.envs[env_id], step_id)
        except BaseException as error:
            self.envs[env_id] = UnbuiltEnv(error)
            raise
        self._touch(Op.RESET)
        self.envs[env_id] = env
        if self.snapshots is not None and not is_replaying():
            self.snapshots.resume(env_id, env, is_newly_built=True)
