"""The games with stones in a row: Connect Four, tic-tac-toe and gomoku."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from gymnasium import spaces

from vecenv.envs.board.bots import COMMON_BOTS, AlphaBetaBot
from vecenv.envs.board.drawing import BoardPicture, connect4_picture, gomoku_picture, tictactoe_picture
from vecenv.envs.board.env import BoardEnv, BoardPart, BotMaker
from vecenv.envs.board.positions import PLAYERS, Array, GridPosition, GridRules, Position
from vecenv.envs.board.rule_bots import Connect4RuleBot, GomokuRuleBotV0, GomokuRuleBotV1, TicTacToeRuleBot
from vecenv.registry import ENV_REGISTRY

__all__ = ["Connect4Env", "GomokuEnv", "TicTacToeEnv"]

SYMBOLS = ".XO"
#: Width of a cell in pixels, for each unit of `screen_scaling`.
CELL_SCALE = 8


class GridMixin(BoardPart):
    """Part of the games on a grid; observations have `observation` (three planes) and `board` (all stones).

    A game names this class before `BoardEnv` in its list of bases.

    The planes are float32 (3, height, width), or (height, width, 3) with `channel_last`. They contain the stones of
    the player to move, the stones of the other player, and the number of the player to move (1 or 2) in every cell.
    With `scale` all values are divided by 2. `board` is int64 (height, width) of 0 (empty), 1 and 2; row 0 is the top.
    """

    rules: GridRules
    human_prompt: ClassVar[str] = "row and column"
    #: Makes the picture, from the numbers of rows and columns, and the width of a cell in pixels.
    make_picture: ClassVar[Callable[[int, int, int], BoardPicture]]

    def _shown_spaces(self) -> dict[str, spaces.Space[Any]]:
        height, width = self.rules.height, self.rules.width
        bounds = np.zeros((2, 3, height, width), np.float32)
        bounds[1, :2] = 1
        bounds[0, 2], bounds[1, 2] = min(PLAYERS), max(PLAYERS)
        low, high = map(self._form, bounds)
        return {
            "observation": spaces.Box(low, high, dtype=np.float32),
            "board": spaces.Box(0, max(PLAYERS), (height, width), np.int64),
        }

    def _show(self, position: Position) -> dict[str, Any]:
        stones = self.rules.planes(cast(GridPosition, position))
        number = PLAYERS[position.player]
        planes = np.empty((3, self.rules.height, self.rules.width), np.float32)
        planes[:2] = stones
        planes[2] = number
        return {"observation": self._form(planes), "board": _board_of(stones, number)}

    @property
    def _divisor(self) -> int:
        return 2 if self._cfg.scale else 1

    def _form(self, planes: Array) -> Array:
        """Apply `scale` and `channel_last` to planes; the argument may be changed."""
        planes /= self._divisor
        return np.ascontiguousarray(planes.transpose(1, 2, 0)) if self._cfg.channel_last else planes

    @property
    def board(self) -> Array:
        """A new array of the board, int64 (height, width) of 0 (empty), 1 and 2."""
        position = cast(GridPosition, self.position)
        return _board_of(self.rules.planes(position), PLAYERS[position.player])

    @cached_property
    def _picture(self) -> BoardPicture:
        cell = max(1, round(CELL_SCALE * self._cfg.screen_scaling))
        return type(self).make_picture(self.rules.height, self.rules.width, cell)

    def draw(self) -> Array:
        """Return a picture of the board, uint8 (height, width, 3); a cell is `8 * screen_scaling` pixels wide."""
        return self._picture.draw(self.board)

    def board_to_string(self) -> str:
        """Return the board as text, with column numbers, and row numbers if actions contain a row, from 1."""
        rows_named = not self.rules.gravity
        margin = "   " if rows_named else ""
        lines = [margin + " ".join(str((column + 1) % 10) for column in range(self.rules.width))]
        for number, row in enumerate(self.board.tolist(), start=1):
            lines.append((f"{number:2} " if rows_named else "") + " ".join(SYMBOLS[cell] for cell in row))
        return "\n".join(lines)

    def action_to_string(self, action: int) -> str:
        """Return row and column of the action's cell, counted from 1."""
        row, column = divmod(action, self.rules.width)
        return f"{row + 1} {column + 1}"

    def _parse_human(self, text: str) -> int:
        row, column = (int(part) - 1 for part in text.replace(",", " ").split())
        if not (0 <= row < self.rules.height and 0 <= column < self.rules.width):
            raise ValueError(f"outside the board: {text!r}")
        return row * self.rules.width + column


def _board_of(stones: Array, number: int) -> Array:
    """Make a board from two planes: the stones of the player with this number, and the other player's."""
    other = PLAYERS[0] + PLAYERS[1] - number
    board = stones.astype(np.int64)  # before NumPy 2, a product with a wider scalar stays uint8
    return np.asarray(board[0] * number + board[1] * other)


@ENV_REGISTRY.register("connect4")
class Connect4Env(GridMixin, BoardEnv):
    """Connect Four: 6 rows, 7 columns, four in a row wins; action = column, 0 to 6.

    Bots: 'rule', 'mcts', 'alpha_beta_pruning' (five plies), 'random'.

    Example:
        >>> env = Connect4Env({"battle_mode": "play_with_bot_mode"})
        >>> env.seed(0)
        >>> obs = env.reset()
        >>> obs["observation"].shape, obs["action_mask"].tolist(), obs["to_play"]
        ((3, 6, 7), [1, 1, 1, 1, 1, 1, 1], -1)
        >>> timestep = env.step(3)
        >>> int(timestep.obs["board"].astype(bool).sum()), timestep.done
        (2, False)
    """

    config: ClassVar[dict[str, Any]] = {
        **BoardEnv.config,
        "env_id": "Connect4",
        "bot_action_type": "rule",
        "stop_value": 2,
    }
    bots: ClassVar[Mapping[str, BotMaker]] = {
        **COMMON_BOTS,
        "rule": Connect4RuleBot,
        "alpha_beta_pruning": lambda env: AlphaBetaBot(env, depth=5),
    }
    human_prompt: ClassVar[str] = "column"
    make_picture = connect4_picture

    def _make_rules(self) -> GridRules:
        return GridRules(6, 7, 4, gravity=True)

    def action_to_string(self, action: int) -> str:
        return str(action + 1)

    def _parse_human(self, text: str) -> int:
        return int(text) - 1


@ENV_REGISTRY.register("tictactoe")
class TicTacToeEnv(GridMixin, BoardEnv):
    """Tic-tac-toe: three in a row on a 3 x 3 board wins; action = 3 * row + column.

    Bots: 'v0' (by rules), 'alpha_beta_pruning' (perfect), 'mcts', 'random'.

    Example:
        >>> env = TicTacToeEnv({"bot_action_type": "alpha_beta_pruning"})
        >>> obs = env.reset(init_state=[1, 1, 0, 2, 2, 0, 0, 0, 0])
        >>> env.legal_actions, env.bot_action()
        ([2, 5, 6, 7, 8], 2)
        >>> env.step(2).info["eval_episode_return"]
        1.0
    """

    config: ClassVar[dict[str, Any]] = {
        **BoardEnv.config,
        "env_id": "TicTacToe",
        "bot_action_type": "v0",
        "scale": True,
    }
    bots: ClassVar[Mapping[str, BotMaker]] = {
        **COMMON_BOTS,
        "v0": TicTacToeRuleBot,
        "alpha_beta_pruning": AlphaBetaBot,
    }
    make_picture = tictactoe_picture

    def _make_rules(self) -> GridRules:
        return GridRules(3, 3, 3)


@ENV_REGISTRY.register("gomoku")
class GomokuEnv(GridMixin, BoardEnv):
    """Gomoku: five or more in a row win on a square board; action = board_size * row + column.

    The config key `board_size` is the number of rows and columns, 6 by default.
    Bots: 'v0' and 'v1' (by rules), 'alpha_beta_pruning' (two plies), 'mcts', 'random'.

    Example:
        >>> env = GomokuEnv({"board_size": 9})
        >>> env.reset()["board"].shape, env.action_space
        ((9, 9), Discrete(81))
    """

    config: ClassVar[dict[str, Any]] = {
        **BoardEnv.config,
        "env_id": "Gomoku",
        "bot_action_type": "v1",
        "scale": True,
        "board_size": 6,
    }
    bots: ClassVar[Mapping[str, BotMaker]] = {
        **COMMON_BOTS,
        "v0": GomokuRuleBotV0,
        "v1": GomokuRuleBotV1,
        "alpha_beta_pruning": lambda env: AlphaBetaBot(env, depth=2),
    }
    make_picture = gomoku_picture

    def _make_rules(self) -> GridRules:
        return GridRules(self._cfg.board_size, self._cfg.board_size, 5)
