"""Bots with simple rules, one or two per game, which look one or two moves ahead and are fast."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

from vecenv.envs.board.bots import Bot
from vecenv.envs.board.positions import GridPosition, Position

__all__ = ["Connect4RuleBot", "GomokuRuleBotV0", "GomokuRuleBotV1", "TicTacToeRuleBot"]


class RuleBot(Bot):
    """Base of these bots: wins, else blocks an immediate win of the other player, else takes a preferred action."""

    def choose(self, position: Position, generator: random.Random) -> int:
        position = cast(GridPosition, position)
        forced = position.winning_actions() or position.passed().winning_actions()
        return generator.choice(forced or self.preferred(position))

    @abstractmethod
    def preferred(self, position: GridPosition) -> list[int]:
        """Return the best actions of a position in which neither player can win immediately; there is one."""


class Connect4RuleBot(RuleBot):
    """Wins, else blocks, else avoids actions that help the other player and builds its longest row.

    It drops actions after which the other player can win immediately, or can make two threats with one move. Of the
    others it prefers those that make three of four, then two of four. If all are dropped, it plays any legal action.

    Example:
        >>> from vecenv.ding import Connect4Env
        >>> board = [0] * 35 + [1, 1, 1, 0, 2, 2, 0]
        >>> Connect4RuleBot(Connect4Env()).get_rule_bot_action(board, player=2)
        3
    """

    def preferred(self, position: GridPosition) -> list[int]:
        legal = position.legal_actions()
        safe = [action for action in legal if not _helps_other(position.play(action))]
        return _longest(position, safe) or legal


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


class TicTacToeRuleBot(RuleBot):
    """Wins, else blocks, else takes the middle, a corner or an edge, in this order.

    Example:
        >>> from vecenv.ding import TicTacToeEnv
        >>> TicTacToeRuleBot(TicTacToeEnv()).get_rule_bot_action([1, 0, 0, 0, 0, 0, 0, 0, 0], player=2)
        4
    """

    def preferred(self, position: GridPosition) -> list[int]:
        legal = position.legal_actions()
        return [action for action in legal if action == 4] or [one for one in legal if one in (0, 2, 6, 8)] or legal


class GomokuRuleBotV0(RuleBot):
    """Wins, else blocks, else plays next to any stone.

    Example:
        >>> from vecenv.ding import GomokuEnv
        >>> board = [2, 2, 2, 2] + [0] * 8 + [1, 1, 1, 1] + [0] * 20
        >>> GomokuRuleBotV0(GomokuEnv()).get_rule_bot_action(board, player=2)
        4
    """

    def preferred(self, position: GridPosition) -> list[int]:
        return position.candidates() or position.legal_actions()


class GomokuRuleBotV1(RuleBot):
    """Wins, else blocks, else takes the most valuable cell in the lines that a player can still complete.

    Each line through a cell counts ten times more for each stone in it; own lines count double. Only cells next to a
    stone are taken.

    Example:
        >>> from vecenv.ding import GomokuEnv
        >>> board = [0] * 12 + [0, 1, 1, 1, 0, 0] + [0] * 18
        >>> GomokuRuleBotV1(GomokuEnv()).get_rule_bot_action(board, player=2) in (12, 16)
        True
    """

    def preferred(self, position: GridPosition) -> list[int]:
        values = _cell_values(position)
        actions = position.candidates() or position.legal_actions()
        best = max(values[action] for action in actions)
        return [action for action in actions if values[action] == best]


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
