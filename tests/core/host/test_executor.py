"""Executor: the answers to each operation, in each mode of autoreset, with and without exceptions."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from vecenv.core.host.caught import CaughtExceptions, UnbuiltEnv
from vecenv.core.host.executor import Answer, Executor
from vecenv.core.host.global_rngs import GlobalRngs
from vecenv.core.host.slot import RESULT_OF_BOTH, RESULT_OF_RESET, RESULT_OF_STEP
from vecenv.core.layout.flags import Autoreset, CommandFlag, Op, RowFlag
from vecenv.envs.toys import ToyEnv
from vecenv.errors import StateError

MODES = pytest.mark.parametrize("autoreset", list(Autoreset), ids=lambda mode: mode.name)


class CountEnv(ToyEnv):
    """Observes the number of its steps, and raises in the resets of these numbers and in steps with action 9."""

    def __init__(self, failing_resets: tuple[int, ...] = ()) -> None:
        super().__init__(length=2)
        self.failing_resets = failing_resets
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        if len(self.seeds) in self.failing_resets:
            raise KeyError(len(self.seeds))
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if action == 9:
            raise ValueError(action)
        return super().step(action)

    def observe(self) -> Any:
        return self.elapsed_steps


class Scene:
    """One executor with env 0, and the envs that replace it; rewards of resets are -1."""

    def __init__(self, autoreset: Autoreset, *envs: Any) -> None:
        self.rngs, self.touched, self.spares = GlobalRngs(), list[int](), list(envs[1:])
        self.executor = Executor({0: envs[0]}, autoreset, self.rngs, -1.0, self.touched.append)
        self.executor.caught = CaughtExceptions((5, 60.0), lambda env_id: self.spares.pop(0), self.rngs, None)
        self.step_id = 0

    def run(self, op: int, given: Any = None, *, flags: int = 0, argument: int = 0) -> Answer:
        self.step_id += 1
        self.executor.begin(0, op, self.step_id)
        answer = self.executor.execute(flags, argument, given)
        return self.executor.autoreset(answer) if answer.needs_autoreset else answer

    def fail(self, error: type[Exception], op: int, given: Any = None, **how: Any) -> None:
        with pytest.raises(error):
            self.run(op, given, **how)


def test_reset_step_and_call_give_answers() -> None:
    scene = Scene(Autoreset.NEXT_STEP, CountEnv())
    assert scene.run(Op.RESET, {"seed": 3}) == Answer("reset", 0, -1.0, False, False, {}, RowFlag.RESET, seed=3)
    assert scene.executor.given == (3,) and scene.executor.is_seeded
    assert scene.run(Op.STEP, 1) == Answer("step", 1, 1.0, False, False, {})
    assert scene.executor.given == (1,) and not scene.executor.is_seeded
    assert scene.run(Op.CALL, lambda env: env.length) == Answer("call", 2, info={})
    assert scene.executor.doing == "call" and scene.executor.given == ()


@MODES
def test_episode_that_ends_begins_again_as_its_mode_requires(autoreset: Autoreset) -> None:
    scene = Scene(autoreset, CountEnv())
    scene.run(Op.RESET)
    scene.run(Op.STEP, 0)
    end = scene.run(Op.STEP, 0)
    assert (end.reward, end.terminated, end.truncated) == (1.0, True, False)
    assert scene.executor.needs_reset == (autoreset == Autoreset.NEXT_STEP)
    if autoreset == Autoreset.SAME_STEP:
        assert (end.doing, end.obs, end.flags) == ("autoreset", 0, RowFlag.FINAL)
        assert (end.final_obs, end.final_info) == (2, {})
        return
    assert (end.doing, end.obs, end.flags, end.final_obs) == ("step", 2, 0, None)
    if autoreset == Autoreset.NEXT_STEP:
        first = scene.run(Op.STEP, 0)
        assert first == Answer("autoreset", 0, -1.0, False, False, {}, RowFlag.AUTORESET)
    scene.run(Op.RESET)
    assert not scene.executor.needs_reset


@MODES
def test_exception_in_step_is_the_answer_or_ends_the_episode(autoreset: Autoreset) -> None:
    scene = Scene(autoreset, CountEnv())
    scene.run(Op.RESET)
    scene.fail(ValueError, Op.STEP, 9)
    error = scene.executor.answer_exception(False)
    assert error == Answer("step", None, -1.0, flags=RowFlag.ERROR | RowFlag.REPEATS)
    assert not scene.executor.needs_reset
    end = scene.executor.answer_exception(True)
    assert (end.doing, end.obs, end.reward, end.truncated) == ("step", None, -1.0, True)
    assert end.flags == RowFlag.REPEATS and end.needs_autoreset == (autoreset == Autoreset.SAME_STEP)
    assert scene.executor.needs_reset == (autoreset == Autoreset.NEXT_STEP)
    if end.needs_autoreset:
        first = scene.executor.autoreset(end)
        assert first.flags == RowFlag.FINAL | RowFlag.FINAL_REPEATS and first.truncated


@MODES
def test_exception_in_autoreset_is_the_answer_or_builds_the_env_again(autoreset: Autoreset) -> None:
    scene = Scene(autoreset, CountEnv((2, 3)), CountEnv((1, 2)), CountEnv())
    scene.run(Op.RESET, {"seed": 3})
    scene.run(Op.STEP, 0)
    if autoreset != Autoreset.SAME_STEP:
        scene.run(Op.STEP, 0)
    how = (Op.RESET, {}) if autoreset == Autoreset.DISABLED else (Op.STEP, 0)
    scene.fail(KeyError, *how)
    kind = RowFlag.RESET if autoreset == Autoreset.DISABLED else 0
    assert scene.executor.answer_exception(False).flags == RowFlag.ERROR | RowFlag.REPEATS | kind
    assert scene.executor.needs_reset == (autoreset == Autoreset.NEXT_STEP), "the next step tries again"
    with pytest.raises(KeyError):
        scene.executor.answer_exception(True)
    answer = scene.executor.answer_exception(True)
    assert answer.is_rebuilt and answer.obs == 0 and scene.touched == [Op.RESET] * 4
    assert answer.final_obs == (2 if autoreset == Autoreset.SAME_STEP else None)
    assert answer.terminated == (autoreset == Autoreset.SAME_STEP)
    assert not scene.executor.needs_reset and scene.executor.fresh_seeds == {}


def test_env_built_again_is_reset_with_its_seed_if_it_raises_without_one() -> None:
    scene = Scene(Autoreset.DISABLED, CountEnv((2,)), CountEnv((1,)))
    scene.run(Op.RESET, {"seed": 3})
    scene.fail(KeyError, Op.RESET)
    answer = scene.executor.answer_exception(True)
    assert scene.executor.envs[0].seeds == [None, answer.seed] and isinstance(answer.seed, int)


def test_constructor_that_raises_leaves_an_env_that_a_reset_builds() -> None:
    scene = Scene(Autoreset.DISABLED, CountEnv((1,)))
    scene.fail(KeyError, Op.RESET)
    with pytest.raises(IndexError):  # there is no other env
        scene.executor.answer_exception(True)
    assert isinstance(scene.executor.envs[0], UnbuiltEnv)
    scene.fail(StateError, Op.STEP, 0)
    scene.spares.append(CountEnv())
    assert scene.run(Op.RESET).is_rebuilt and not scene.run(Op.RESET).is_rebuilt


def test_exception_in_call_changes_no_episode() -> None:
    scene = Scene(Autoreset.NEXT_STEP, CountEnv())
    scene.executor.needs_reset = True
    scene.fail(AttributeError, Op.CALL, lambda env: env.nothing)
    assert scene.executor.answer_exception(False).doing == "call" and scene.executor.needs_reset


def test_drawn_seed_makes_the_first_generator_only() -> None:
    scene = Scene(Autoreset.DISABLED, CountEnv())
    answer = scene.run(Op.RESET, flags=CommandFlag.DRAWN, argument=5)
    assert answer.seed == 5 and not scene.executor.is_seeded and scene.executor.envs[0].seeds == [None]
    assert scene.run(Op.RESET, flags=CommandFlag.DRAWN, argument=6).seed is None
    assert scene.run(Op.RESET, flags=CommandFlag.SEED, argument=7).seed == 7


@pytest.mark.parametrize(
    ("origin", "result", "expected"),
    [
        (RESULT_OF_STEP, (1, 2.0, 0, 0, {}), Answer("step", 1, 2.0, False, False, {})),
        (RESULT_OF_RESET, (0, {}), Answer("autoreset", 0, -1.0, False, False, {}, RowFlag.FINAL)),
        (RESULT_OF_BOTH, (2.0, True, False, (0, {})), Answer("autoreset", 0, 2.0, True, False, {}, RowFlag.FINAL)),
    ],
)
def test_step_that_the_slot_has_begun_is_continued(origin: int, result: Any, expected: Answer) -> None:
    executor = Scene(Autoreset.SAME_STEP, CountEnv()).executor
    executor.begin(0, Op.STEP, 1)
    assert executor.continue_step(origin, result, False) == expected
    error = LookupError()
    with pytest.raises(LookupError):
        executor.continue_step(origin, (*result[:-1], error) if origin == RESULT_OF_BOTH else error, True)
    assert executor.doing == expected.doing


@pytest.mark.parametrize("result", [None, (1, 2.0, False, False), (1, 2.0, np.zeros(2), False, {})])
def test_step_must_return_five_values_and_two_flags(result: Any) -> None:
    executor = Scene(Autoreset.DISABLED, CountEnv()).executor
    executor.begin(0, Op.STEP, 1)
    with pytest.raises((TypeError, ValueError), match="env 0 must return five values|terminated"):
        executor.continue_step(RESULT_OF_STEP, result, False)


class DrawingEnv(CountEnv):
    """Observes a number of the global generator; the process has another one before and after each call."""

    def observe(self) -> Any:
        return random.random()


@pytest.mark.parametrize("op", [Op.RESET, Op.STEP, Op.CALL], ids=lambda op: op.name)
def test_calls_have_the_generators_of_their_env(op: Op) -> None:
    before = random.getstate()
    drawn = []
    for number in range(2):
        scene = Scene(Autoreset.NEXT_STEP, DrawingEnv(), DrawingEnv())
        with scene.rngs:
            neutral = random.getstate()
            scene.run(Op.RESET, {"seed": 3})
            if number == 1:  # draws of another env change nothing
                scene.rngs.call_swapped(1, random.random)
            given = {Op.RESET: {"seed": 4}, Op.STEP: 0, Op.CALL: DrawingEnv.observe}[op]
            drawn.append(scene.run(op, given).obs)
            assert random.getstate() == neutral
        assert random.getstate() == before
    assert drawn[0] == drawn[1]
