"""The actions of the env check: legal ones if the env gives a mask, in the form that its API needs."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Ding, Plain
from vecenv import check_all
from vecenv.ding import TicTacToeEnv, check_obs_deepcopy, check_step, demonstrate_correct_procedure
from vecenv.envs.check.episodes import sample_action
from vecenv.envs.check.recovery import check_recovery

STRICT = {"illegal_action": "raise"}


def strict_game(cfg=None):
    return TicTacToeEnv({**STRICT, **(cfg or {})})


@pytest.mark.parametrize(
    "play",
    [
        functools.partial(check_all, spawn=False),
        functools.partial(check_step, episodes=10),
        check_obs_deepcopy,
        lambda env: demonstrate_correct_procedure(strict_game),
        lambda env: check_recovery(strict_game),
    ],
    ids=["all", "step", "deepcopy", "procedure", "recovery"],
)
def test_check_plays_board_games_with_legal_moves(play):
    """Illegal actions broke a rule that the check blamed on the env, or were replaced with a warning."""
    play(strict_game())


def test_recovery_gives_a_base_env_its_actions_as_arrays():
    """They were NumPy integers, so an env that reads `action[0]` broke a rule."""

    class Picky(Ding):
        def step(self, action):
            assert action.shape == (1,) and action.dtype == np.int64
            return super().step(action)

    assert check_recovery(Picky).seeded is None


def test_masked_actions_are_never_drawn():
    space = spaces.Discrete(5, start=2, seed=0)
    for dtype in (np.int8, np.bool_, np.float32):
        obs = {"action_mask": np.array([0, 1, 0, 1, 0], dtype)}
        assert {int(sample_action(Plain(), space, obs)) for _ in range(40)} == {3, 5}


MASKS = {"none": None, "list": [1, 0], "too long": np.ones(3, np.int8), "nothing": np.zeros(2, np.int8)}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_unrelated_mask_is_ignored(mask):
    space = spaces.Discrete(2, seed=0)
    assert {int(sample_action(Plain(), space, {"action_mask": mask})) for _ in range(40)} == {0, 1}
    assert sample_action(Plain(), spaces.Box(0, 1, (2,)), {"action_mask": np.ones(2, np.int8)}).shape == (2,)
