"""Resets of a whole batch at any moment begin the same episodes, with or without resets ahead."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.alf.comparison import VectorReward, alternating, assert_same, counting, covered
from vecenv.alf import AlfGymWrapper, ParallelAlfEnvironment
from vecenv.envs.toys import CountEnv, ExitAtStep
from vecenv.values.nested import map_structure

KINDS = {
    "alternating": alternating,
    "counting": counting,
    "alternating behind a wrapper": functools.partial(covered, make=alternating),
    "VectorReward": VectorReward,
}


def play(make, program, pause=None, spares=0, **options):
    """Run a program: 'r' resets, '.' steps; `pause` is called before each reset."""
    options = {"num_spare_envs_for_reload": spares, "tensors": False, **options}
    with ParallelAlfEnvironment([make] * (3 + spares), **options) as env:
        rng = np.random.default_rng(0)
        env.seed(1)
        steps = [env.reset()]
        for order in program:
            if order == "r":
                if pause is not None:
                    pause(env)
                steps.append(env.reset())
            else:
                action = map_structure(lambda leaf: leaf.numpy_sample((3,), rng), env.action_spec())
                steps.append(env.step(action))
    return steps


def run_down(env):
    """Wait until the envs have run all pending commands; a call runs after them."""
    env.call_envs_with_same_args("observation_spec")


def assert_all_same(left, right):
    for mine, theirs in zip(left, right, strict=True):
        assert_same(mine, theirs)


@pytest.mark.extended
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_resets_ahead_begin_the_same_episodes_as_lockstep(make):
    rng = np.random.default_rng(3)
    for _ in range(12):
        program = "".join(rng.choice(["r", "."], 40, p=[0.2, 0.8]))
        lockstep = play(make, program, backend="serial", reset_ahead=False)
        assert_all_same(play(make, program, backend="serial", reset_ahead=True), lockstep)


@pytest.mark.extended
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_resets_in_workers_begin_the_same_episodes_as_ahead(make):
    program = ".....r..r.r....r......r"
    lockstep = play(make, program, reset_ahead=False)
    for pause in (None, run_down):
        assert_all_same(play(make, program, pause, num_workers=2, reset_ahead=True), lockstep)


class SlowReset(CountEnv):
    """Takes some time to begin an episode."""

    def reset(self, **kwargs):
        import time

        time.sleep(0.03)
        return super().reset(**kwargs)


def waiting(env_id=0):
    return AlfGymWrapper(SlowReset(2 + env_id % 3), env_id)


@pytest.mark.extended
@pytest.mark.parametrize("spares", [0, 2])
def test_env_progress_does_not_depend_on_speed(spares):
    program = "..r...r....r.r"
    at_once = play(waiting, program, spares=spares, reset_ahead=True)
    assert_all_same(play(waiting, program, run_down, spares, reset_ahead=True), at_once)


@pytest.mark.parametrize("ahead", [False, True])
def test_new_seeds_apply_to_episodes_begun_without_them(ahead):
    with ParallelAlfEnvironment([counting] * 3, tensors=False, backend="serial", reset_ahead=ahead) as env:
        env.seed(1)
        env.reset()
        for _ in range(2):
            env.step(np.zeros(3, np.int64))
        env.seed(10)
        assert env.reset().env_info["seed"].tolist() == [10, 11, 12]


class SecondResetRaises(CountEnv):
    """Its second reset raises."""

    resets = 0

    def reset(self, **kwargs):
        self.resets += 1
        if self.resets == 2:
            raise ValueError("stumbled")
        return super().reset(**kwargs)


def stumbling(env_id=0):
    return AlfGymWrapper(SecondResetRaises(2) if env_id == 1 else CountEnv(2), env_id)


@pytest.mark.parametrize("has_seeds", [False, True])
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_exception_of_a_reset_ahead_is_raised_unless_new_seeds_replace_its_episode(backend, has_seeds):
    with ParallelAlfEnvironment([stumbling] * 3, tensors=False, backend=backend, reset_ahead=True) as env:
        env.reset()
        for _ in range(2):
            env.step(np.zeros(3, np.int64))
        if has_seeds:
            env.seed(5)
            assert env.reset().env_info["seed"].tolist() == [5, 6, 7]
        else:
            with pytest.raises(ValueError, match="stumbled") as caught:
                env.reset()
            assert caught.value.rows.mask.tolist() == [True, False, True]
        assert env.reset().is_first().all()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_reset_that_raises_keeps_seeds_for_the_next(backend):
    """The failed reset used up the seeds, and the next one was unseeded."""
    with ParallelAlfEnvironment([stumbling] * 3, tensors=False, backend=backend, reset_ahead=False) as env:
        env.reset()
        env.seed(5)
        with pytest.raises(ValueError, match="stumbled"):
            env.reset()
        assert env.reset().env_info["seed"].tolist() == [5, 6, 7] and env.seeds == (5, 6, 7)
        env.seed(9)
        env.reset()
        env.reset()
        assert env.seeds == (9, 10, 11), "they are used once"


def dies_once(env_id=0, once=None):
    return AlfGymWrapper(ExitAtStep(length=3, at=8, once=once) if env_id == 1 else CountEnv(2 + env_id), env_id)


@pytest.mark.extended
@pytest.mark.parametrize("ahead", [False, True])
def test_crash_between_resets_is_recovered(ahead, tmp_path):
    program = "...r....r..r......r.r..."
    spared = tmp_path / "spared"
    spared.touch()
    options = {"reset_ahead": ahead, "num_workers": 3}
    undisturbed = play(functools.partial(dies_once, once=spared), program, **options)
    found = play(functools.partial(dies_once, once=tmp_path / "died"), program, **options)
    assert (tmp_path / "died").exists()
    for mine, theirs in zip(found, undisturbed, strict=True):
        assert_same(mine._replace(env_info={}), theirs._replace(env_info={}))
