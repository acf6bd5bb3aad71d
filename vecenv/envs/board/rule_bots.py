"""Players by rules of thumb, one or two per game: they see one or two moves ahead and cost little."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import cast

from vecenv.envs.board.bots import Bot
from vecenv.envs.board.positions import GridPosition, Position

__all__ = ["Connect4RuleBot", "GomokuRuleBotV0", "GomokuRuleBotV1", "TicTacToeRuleBot"]


def win_or_block(position: GridPosition) -> list[int]:
    """Give the actions that win at once, else those that take the cell where the other would."""
    return position.winning_actions() or position.passed().winning_actions()


class Connect4RuleBot(Bot):
    """Wins, else blocks, else avoids what helps the other, then builds the longest row it can.

    Dropped are actions after which the other wins at once, or can make two threats at once. Of the rest it
    prefers those that make three of four, then two of four; if all were dropped it plays any legal action.

    Example:
        >>> from vecenv import Connect4Env
        >>> board = [0] * 35 + [1, 1, 1, 0, 2, 2, 0]
        >>> Connect4RuleBot(Connect4Env()).get_rule_bot_action(board, player=2)
        3
    """

    def choose(self, position: Position, generator: random.Random) -> int:
        """Go through the rules in order."""
        position = cast(GridPosition, position)
        actions = win_or_block(position)
        if not actions:
            legal = position.legal_actions()
            safe = [action for action in legal if not _helps_other(position.play(action))]
            actions = _longest(position, safe) or legal
        return generator.choice(actions)


def _helps_other(position: GridPosition) -> bool:
    """Tell whether the player to move wins at once, or with one move threatens to win in two ways."""
    if position.winning_actions():
        return True
    for reply in position.legal_actions():
        after = position.play(reply)
        if not after.is_over and not after.winning_actions() and len(after.passed().winning_actions()) >= 2:
            return True
    return False


def _longest(position: GridPosition, actions: Sequence[int]) -> list[int]:
    """Keep the actions that make the longest row that can still become a full one, if that is at least two."""
    lengths = {action: _open_length(position, position.bit_of(action)) for action in actions}
    longest = max(lengths.values(), default=0)
    return list(actions) if longest < 2 else [action for action in actions if lengths[action] == longest]


def _open_length(position: GridPosition, bit: int) -> int:
    """Count the own stones in the best line through a cell that the other has no stone in."""
    own = position.own | bit
    through = (window for window in position.rules.windows if window & bit and not window & position.other)
    return max(((own & window).bit_count() for window in through), default=0)


class TicTacToeRuleBot(Bot):
    """Wins, else blocks, else takes the middle, a corner or an edge, in this order.

    Example:
        >>> from vecenv import TicTacToeEnv
        >>> TicTacToeRuleBot(TicTacToeEnv()).get_rule_bot_action([1, 0, 0, 0, 0, 0, 0, 0, 0], player=2)
        4
    """

    def choose(self, position: Position, generator: random.Random) -> int:
        """Go through the rules in order."""
        position = cast(GridPosition, position)
        legal = position.legal_actions()
        corners = [action for action in legal if action in (0, 2, 6, 8)]
        actions = win_or_block(position) or [action for action in legal if action == 4] or corners or legal
        return generator.choice(actions)


class GomokuRuleBotV0(Bot):
    """Wins, else blocks, else plays next to any stone.

    Example:
        >>> from vecenv import GomokuEnv
        >>> board = [2, 2, 2, 2] + [0] * 8 + [1, 1, 1, 1] + [0] * 20
        >>> GomokuRuleBotV0(GomokuEnv()).get_rule_bot_action(board, player=2)
        4
    """

    def choose(self, position: Position, generator: random.Random) -> int:
        """Go through the rules in order."""
        position = cast(GridPosition, position)
        return generator.choice(win_or_block(position) or position.candidates() or position.legal_actions())


class GomokuRuleBotV1(Bot):
    """Wins, else blocks, else takes the cell that matters most to the lines still open to either player.

    Each line through a cell counts ten times more for each stone in it; own lines count double.

    Example:
        >>> from vecenv import GomokuEnv
        >>> board = [0] * 12 + [0, 1, 1, 1, 0, 0] + [0] * 18
        >>> GomokuRuleBotV1(GomokuEnv()).get_rule_bot_action(board, player=2) in (12, 16)
        True
    """

    def choose(self, position: Position, generator: random.Random) -> int:
        """Weigh every cell next to a stone."""
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
