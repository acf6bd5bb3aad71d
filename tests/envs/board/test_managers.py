"""Board games in every manager: masks, the player to move and infos arrive as columns."""

from __future__ import annotations

import functools
import os
import signal

import numpy as np
import pytest

from tests.envs.board.fakes import GAMES
from vecenv import VectorEnv
from vecenv.core.layout.spec import Spec
from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvManagerV2,
    Connect4Env,
    GomokuEnv,
    GymVectorEnvManager,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
    TicTacToeEnv,
)

MANAGERS = [
    (BaseEnvManager, {}),
    (BaseEnvManagerV2, {}),
    (SyncSubprocessEnvManager, {"num_workers": 2}),
    (SubprocessEnvManagerV2, {"num_workers": 2}),
    (AsyncSubprocessEnvManager, {"num_workers": 2}),
    (GymVectorEnvManager, {"num_workers": 2}),
]


def plain(obs):
    """Return an observation of any manager as a dict of arrays."""
    return {key: np.asarray(obs[key]) for key in obs.keys()}  # noqa: SIM118  # trees are no dicts


def by_env(values):
    """Return {env_id: value} of a manager's result."""
    if isinstance(values, dict):
        return values
    return {int(np.asarray(value["env_id"])): value for value in values}


@pytest.mark.extended
@pytest.mark.parametrize(
    "game, mode",
    [(Connect4Env, "self_play_mode"), (TicTacToeEnv, "play_with_bot_mode"), (GomokuEnv, "play_with_bot_mode")],
)
@pytest.mark.parametrize("manager_cls, cfg", MANAGERS, ids=lambda value: getattr(value, "__name__", ""))
def test_games_run_in_every_manager(manager_cls, cfg, game, mode):
    generator = np.random.default_rng(0)
    scores = []
    with manager_cls([functools.partial(game, {"battle_mode": mode})] * 3, {"episode_num": 2, **cfg}) as manager:
        manager.seed(0)
        manager.launch()
        space = manager.observation_space
        while not manager.done:
            ready = manager.ready_obs
            if not isinstance(ready, dict):  # one tree with the observations of all envs
                ready = dict(zip(manager.ready_obs_id, ready.split()))
            actions = {}
            for env_id, obs in ready.items():
                obs = plain(obs)
                assert space["board"].contains(obs["board"]) and space["observation"].contains(obs["observation"])
                assert space["action_mask"].contains(obs["action_mask"]) and obs["action_mask"].any()
                expected = obs["current_player_index"] + 1 if mode == "self_play_mode" else -1
                assert int(obs["to_play"]) == expected
                actions[env_id] = int(generator.choice(np.flatnonzero(obs["action_mask"])))
            for timestep in by_env(manager.step(actions)).values():
                assert np.asarray(timestep.reward).shape == (1,)
                if bool(timestep.done):
                    assert not np.asarray(timestep.obs["action_mask"]).any()
                    scores.append(float(np.asarray(timestep.info["eval_episode_return"])))
    assert len(scores) == 6 and set(scores) <= {1.0, -1.0, 0.0}


def test_observations_travel_without_pickling():
    for game in GAMES:
        spec = Spec(game().observation_space, "obs")
        assert {leaf.path for leaf in spec.leaves} == {
            f"obs/{key}" for key in ("action_mask", "board", "current_player_index", "observation", "to_play")
        }
        assert spec.num_objects == 0


@pytest.mark.extended
@pytest.mark.parametrize("num_workers", [1, 3])
def test_games_do_not_depend_on_worker_count(num_workers):
    """Bots draw from their env's own generator, so a seed decides every game in any worker."""

    def boards(**kwargs):
        env_fns = [functools.partial(Connect4Env, {"battle_mode": "play_with_bot_mode"})] * 5
        envs = VectorEnv(env_fns, **kwargs)
        generator = np.random.default_rng(1)
        try:
            obs, _ = envs.reset(seed=4)
            for _ in range(40):
                yield obs["board"].copy()
                mask = obs["action_mask"]
                obs = envs.step(np.argmax(np.where(mask, generator.random(mask.shape), -1), axis=1))[0]
        finally:
            envs.close()

    for one, other in zip(boards(backend="serial"), boards(num_workers=num_workers)):
        assert np.array_equal(one, other)


@pytest.mark.extended
def test_games_continue_after_their_worker_was_killed():
    """A bot's draws depend on the game's seed and the moves only, so a replayed game is the same game."""
    cfg = {"battle_mode": "play_with_bot_mode", "prob_random_action_in_bot": 0.3}

    def boards(kills):
        generator = np.random.default_rng(0)
        envs = VectorEnv([functools.partial(Connect4Env, cfg)] * 4, num_workers=2, autoreset_mode="SameStep")
        try:
            obs, _ = envs.reset(seed=1)
            for turn in range(30):
                if turn in kills:
                    os.kill(envs.worker_pids[turn % 2], signal.SIGKILL)
                mask = obs["action_mask"]
                obs = envs.step(np.argmax(np.where(mask, generator.random(mask.shape), -1), axis=1))[0]
                yield obs["board"].copy()
        finally:
            envs.close()

    assert np.array_equal(list(boards(())), list(boards((7, 18))))


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_second_player_may_start(manager_cls):
    with manager_cls([Connect4Env] * 2) as manager:
        manager.launch({0: {"start_player_index": 1}, 1: {"init_state": [0] * 41 + [1], "start_player_index": 1}})
        obs = {env_id: plain(obs) for env_id, obs in manager.ready_obs.items()}
        assert [int(obs[env_id]["to_play"]) for env_id in (0, 1)] == [2, 2]
        assert [int(obs[env_id]["board"].sum()) for env_id in (0, 1)] == [0, 1]
        assert manager.legal_actions == [list(range(7))] * 2


@pytest.mark.extended
def test_vector_env_seats_players_by_options():
    envs = VectorEnv([functools.partial(Connect4Env, {"battle_mode": "play_with_bot_mode"})] * 2, num_workers=1)
    try:
        obs, _ = envs.reset(seed=0, options={"start_player_index": 1})
        assert obs["board"].sum(axis=(1, 2)).tolist() == [2, 2]  # the bot has made the first move on both boards
    finally:
        envs.close()
