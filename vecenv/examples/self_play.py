"""Play board games against themselves: `python -m vecenv.examples.self_play --game connect4 --envs 64`.

A policy chooses among the legal actions of all boards at once, by the mask that comes with each observation. Replace
`random_policy` by a network, and it plays both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenv.cli.options import count, natural
from vecenv.envs.board import BoardEnv, Connect4Env, GomokuEnv, TicTacToeEnv
from vecenv.vector import VectorEnv

__all__ = ["Played", "main", "make_games", "play", "random_policy"]

GAMES: dict[str, type[BoardEnv]] = {"connect4": Connect4Env, "gomoku": GomokuEnv, "tictactoe": TicTacToeEnv}
MODES = {"self": "self_play_mode", "bot": "play_with_bot_mode"}
RESULTS = {1: "player 1 wins", -1: "player 2 wins", 0: "draws"}

Policy = Callable[[Any], Any]


class Played(NamedTuple):
    """The result of `play`: games by result (1, -1, 0: player 1's view), moves of the policy, seconds."""

    results: Counter[int]
    moves: int
    seconds: float


def make_games(game: str, num_envs: int, mode: str = "self", num_workers: int | None = None) -> VectorEnv:
    """Make boards that start over with the step that follows the end of a game.

    Args:
        game: 'connect4', 'gomoku' or 'tictactoe'.
        num_envs: boards.
        mode: 'self', the policy makes every move; or 'bot', player 2 is the game's rule bot.
        num_workers: processes; None: one per usable core.
    """
    env_fn = functools.partial(GAMES[game], {"battle_mode": MODES[mode]})
    # The reward is the result of a game, so infos are not needed.
    return VectorEnv([env_fn] * num_envs, num_workers=num_workers, infos="none")


def random_policy(generator: np.random.Generator) -> Policy:
    """Give a policy that plays any legal action; where there is none, its answer is ignored."""

    def choose(obs: Any) -> Any:
        mask = obs["action_mask"]
        return np.argmax(np.where(mask, generator.random(mask.shape), -1.0), axis=1)

    return choose


def play(envs: VectorEnv, policy: Policy, num_games: int, seed: int | None = None) -> Played:
    """Play until `num_games` games have ended, each board its share of them.

    Args:
        envs: made by `make_games`.
        policy: from observations with N rows to actions int64 (N,).
        num_games: at least 1; the first boards play one more if it does not divide evenly.
        seed: board i starts from `seed + i`; None for different games every time.
    """
    to_go = np.full(envs.num_envs, num_games // envs.num_envs)
    to_go[: num_games % envs.num_envs] += 1
    results: Counter[int] = Counter()
    moves = 0
    obs, _ = envs.reset(seed=seed)
    ended: NDArray[np.bool_] = np.zeros(envs.num_envs, np.bool_)
    start = time.perf_counter()
    while to_go.any():
        moves += int(np.count_nonzero(~ended & (to_go > 0)))  # after an end the next step only begins a game
        mover = np.where(obs["to_play"] == 2, -1, 1)  # `to_play` is -1 against the bot: then rewards are player 1's
        obs, rewards, ended, _, _ = envs.step(policy(obs))
        counted = np.flatnonzero(ended & (to_go > 0))
        if len(counted):
            results.update(map(int, (mover * rewards)[counted]))
            to_go[counted] -= 1
    return Played(results, moves, time.perf_counter() - start)


def main(argv: Sequence[str] | None = None) -> None:
    """Play, then print results and speed."""
    options = _parse(argv)
    with contextlib.closing(make_games(options.game, options.envs, options.against, options.workers)) as envs:
        policy = random_policy(np.random.default_rng(options.seed))
        results, moves, seconds = play(envs, policy, options.games, options.seed)
    opponent = "itself" if options.against == "self" else "the rule bot"
    games = sum(results.values())
    print(f"{options.game}: {games} games of a random policy against {opponent} on {options.envs} boards")
    print(", ".join(f"{name} {results[result]}" for result, name in RESULTS.items()))
    print(f"speed: {games / seconds:,.0f} games per second, {moves / seconds:,.0f} moves per second")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Play a board game against itself on many boards, print results.")
    parser.add_argument("--game", choices=sorted(GAMES), default="connect4", help="default: %(default)s")
    parser.add_argument("--against", choices=sorted(MODES), default="self", help="player 2 (default: %(default)s)")
    parser.add_argument("--envs", type=count, default=64, help="boards at once (default: %(default)s)")
    parser.add_argument("--games", type=count, default=512, help="games to play (default: %(default)s)")
    parser.add_argument("--workers", type=count, help="processes (default: one per usable core)")
    parser.add_argument("--seed", type=natural, help="repeat a run exactly (default: a new one every time)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
