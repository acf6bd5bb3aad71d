"""Bots with simple rules, one or two per game, which look one or two moves ahead and are fast."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import cast

from vecenv.envs.board.bots import Bot
from vecenv.envs.board.positions import GridPosition, Position

__all__ = ["Connect4RuleBot", "GomokuRuleBotV0", "GomokuRuleBotV1", "TicTacToeRuleBot"]


def win_or_block(position: GridPosition) -> list[int]:
    """Return the actions that win immediately, else those that block an immediate win of the other player."""
    return position.winning_actions() or position.passed().winning_actions()


class Connect4RuleBot(Bot):
    """Wins, else blocks, else avoids actions that help the other player and builds its longest row.

    It drops actions after which the other player can win immediately, or can make two threats with one move. Among
    the rest it prefers those that make three of four, then two of four. If all are dropped, it plays any legal action.

    Example:
        >>> from vecenv.ding import Connect4Env
        >>> board = [0] * 35 + [1, 1, 1, 0, 2, 2, 0]
        >>> Connect4RuleBot(Connect4Env()).get_rule_bot_action(board, player=2)
        3
    """

    def choose(self, position: Position, generator: random.Random) -> int:
        position = cast(GridPosition, position)
        actions = win_or_block(position)
        if not actions:
            legal = position.legal_actions()
            safe = [action for action in legal if not _helps_other(position.play(action))]
            actions = _longest(position, safe) or legal
        return generator.choice(actions)


def _helps_other(position: GridPosition) -> bool:
    """Return whether the player to move can win immediately, or can threaten to win in two ways with one move."""
    if position.winning_actions():
        return True
    for reply in position.legal_actions():
        after = position.play(reply)
        if not after.is_over and not after.winning_actions() and len(after.passed().winning_actions()) >= 2:
            return True
    return False


def _longest(position: GridPosition, actions: Sequence[int]) -> list[int]:
    """Return the actions that make the longest row that can still be completed; all actions if that is below two."""
    lengths = {action: _open_length(position, position.bit_of(action)) for action in actions}
    longest = max(lengths.values(), default=0)
    return list(actions) if longest < 2 else [action for action in actions if lengths[action] == longest]


def _open_length(position: GridPosition, bit: int) -> int:
    """Return the number of own stones in the best line through a cell; lines with stones of the other don't count."""
    own = position.own | bit
    through = (window for window in position.rules.windows if window & bit and not window & position.other)
    return max(((own & window).bit_count() for window in through), default=0)


class TicTacToeRuleBot(Bot):
    """Wins, else blocks, else takes the middle, a corner or an edge, in this order.

    Example:
        >>> from vecenv.ding import TicTacToeEnv
        >>> TicTacToeRuleBot(TicTacToeEnv()).get_rule_bot_action([1, 0, 0, 0, 0, 0, 0, 0, 0], player=2)
        4
    """

    def choose(self, position: Position, generator: random.Random) -> int:
        position = cast(GridPosition, position)
        legal = position.legal_actions()
        corners = [action for action in legal if action in (0, 2, 6, 8)]
        actions = win_or_block(position) or [action for action in legal if action == 4] or corners or legal
        return generator.choice(actions)


class GomokuRuleBotV0(Bot):
    """Wins, else blocks, else plays next to any stone.

    Example:
        >>> from vecenv.ding import GomokuEnv
        >>> board = [2, 2, 2, 2] + [0] * 8 + [1, 1, 1, 1] + [0] * 20
        >>> GomokuRuleBotV0(GomokuEnv()).get_rule_bot_action(board, player=2)
        4
    """

    def choose(self, position: Position, generator: random.Random) -> int:
        position = cast(GridPosition, position)
        return generator.choice(win_or_block(position) or position.candidates() or position.legal_actions())


class GomokuRuleBotV1(Bot):
    """Wins, else blocks, else takes the most valuable cell in the lines that a player can still complete.

    Each line through a cell counts ten times more for each stone in it; own lines count double.

    Example:
        >>> from vecenv.ding import GomokuEnv
        >>> board = [0] * 12 + [0, 1, 1, 1, 0, 0] + [0] * 18
        >>> GomokuRuleBotV1(GomokuEnv()).get_rule_bot_action(board, player=2) in (12, 16)
        True
    """

    def choose(self, position: Position, generator: random.Random) -> int:
        """Win or block if possible, else return the cell next to a stone with the highest value."""
        position = cast(GridPosition, position)
        forced = win_or_block(position)
        if forced:
            return generator.choice(forced)
        values = _cell_values(position)
        actions = position.candidates() or position.legal_actions()
        return _choose_best(actions, lambda action: values[action], generator)


def _cell_values(position: GridPosition) -> dict[int, float]:
    rules = position.rules
    values = dict.fromkeys(position.legal_actions(), 0.0)
    cells = [(action, rules.bits[action]) for action in values]
    for window in rules.windows:
        own, other = (position.own & window).bit_count(), (position.other & window).bit_count()
        if own and other:
            continue
        weight = 10.0**other if other else 2 * 10.0**own
        for action, bit in cells:
            if bit & window:
                values[action] += weight
    return values


def _choose_best(actions: Sequence[int], value: Callable[[int], float], generator: random.Random) -> int:
    best = max(map(value, actions))
    return generator.choice([action for action in actions if value(action) == best])
