"""Helpers for tests of board games: random games and matches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from vecenv.ding import BoardEnv, Connect4Env, GomokuEnv, TicTacToeEnv

GAMES: list[type[BoardEnv]] = [Connect4Env, TicTacToeEnv, GomokuEnv]
MODES = ["self_play_mode", "play_with_bot_mode", "eval_mode"]


def random_game(env: BoardEnv, generator: random.Random, **reset: Any) -> Iterator[tuple[Any, Any]]:
    """Play random legal actions to the end; yield (observation, timestep or None) of the reset and each step."""
    yield env.reset(**reset), None
    done = False
    while not done:
        timestep = env.step(generator.choice(env.legal_actions))
        done = timestep.done
        yield timestep.obs, timestep


def match(env: BoardEnv, num_games: int, seed: int, seats: tuple[int, ...] = (0, 1)) -> Counter[int]:
    """Let the env's bot play a random player, from both seats alternately; count games by its result, 1, 0 or -1."""
    env.seed(seed)
    generator = random.Random(seed)
    results: Counter[int] = Counter()
    for game in range(num_games):
        seat = seats[game % len(seats)]
        env.reset()
        done = False
        while not done:
            is_bot = env.current_player_index == seat
            timestep = env.step(env.bot_action() if is_bot else generator.choice(env.legal_actions))
            done = timestep.done
        score = int(timestep.info["eval_episode_return"])
        results[score if seat == 0 else -score] += 1
    return results
