"""Positions and rules of two-player games, used by the board envs; games with stones in a row use bitboards.

    bit of row r, column c = r * (width + 1) + c          row 0 is the top

Each row has one more bit than the width, which stays empty, so that a shift never moves a line over the edge.
"""

from __future__ import annotations

import numbers
import random
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenv.errors import ConfigError

Array = NDArray[Any]

#: Numbers of the two players in boards and observations; their indices are 0 and 1.
PLAYERS = (1, 2)
#: On boards of up to this many cells a search tries all legal actions, so it is exact.
SMALL_BOARD = 16


class Position(ABC):
    """A position of a game in which two players take turns; it never changes, except by `advance`."""

    __slots__ = ()

    #: Index of the player to move.
    player: int
    is_over: bool
    #: Index of the winner; None for a draw or if the game is not over.
    winner: int | None

    @abstractmethod
    def legal_actions(self) -> list[int]:
        """Return the legal actions, ascending; empty when the game is over."""

    @abstractmethod
    def play(self, action: int) -> Position:
        """Return the position after a legal action."""

    def advance(self, action: int) -> Position:
        """Return the position after a legal action; this position may be changed, which can save a copy."""
        return self.play(action)

    def result(self, player: int) -> float:
        """Return 1.0 if this player has won, -1.0 if the other one has, else 0.0."""
        return 0.0 if self.winner is None else 1.0 if self.winner == player else -1.0

    @property
    def key(self) -> Hashable:
        """A key that is equal for equal positions of one game; None if positions have no key."""
        return None

    def candidates(self) -> list[int]:
        """Return the legal actions that a search should try, the most promising first."""
        return self.legal_actions()

    def evaluate(self) -> float:
        """Return an estimate of the result for the player to move, between -1 and 1 exclusive."""
        return 0.0

    def rollout(self, generator: random.Random) -> int | None:
        """Play random moves to the end of the game; return the winner's index, or None for a draw."""
        position: Position = self
        while not position.is_over:
            position = position.play(generator.choice(position.legal_actions()))
        return position.winner


class Rules(ABC):
    """The rules of a game, which make its positions."""

    num_actions: int

    @abstractmethod
    def start(self, player: int) -> Position:
        """Return the first position; `player` is the index of the player to move."""

    @abstractmethod
    def restore(self, state: Any, player: int) -> Position:
        """Return the position with this state; `player` is the index of the player to move.

        ConfigError is raised if the state is not valid in this game.
        """


class GridRules(Rules):
    """Rules of games in which players put stones on a grid; the first with `length` or more in a row wins.

    With gravity, an action is a column, and the stone falls to the lowest free row. Without it, an action is
    `row * width + column`.

    Example:
        >>> rules = GridRules(3, 3, 3)
        >>> position = rules.restore([1, 1, 0, 2, 2, 0, 0, 0, 0], player=0)
        >>> position.play(2).winner
        0
    """

    def __init__(self, height: int, width: int, length: int, gravity: bool = False) -> None:
        """Compute the masks that positions use; ConfigError if `length` stones in a row do not fit on the board."""
        is_whole = all(isinstance(size, numbers.Integral) for size in (height, width, length))
        if not is_whole or min(height, width, length) < 1 or length > max(height, width):
            raise ConfigError(f"expected a board that {length} in a row fit on, got {height!r} x {width!r}")
        self.height, self.width, self.length, self.gravity = height, width, length, gravity
        self.stride = width + 1
        self.num_actions = width if gravity else height * width
        self.bits = [1 << (row * self.stride + column) for row in range(height) for column in range(width)]
        self.full = sum(self.bits)
        self.columns = [sum(self.bits[column::width]) for column in range(width)]
        self.shifts = self._find_shifts()
        self.windows = self._find_windows()
        # Each additional stone makes a line count ten times as much.
        self.weights = [0.0, *(10.0**count for count in range(length))]
        self.order = self._order_actions()
        self._plane_nbytes = -(-height * self.stride // 8)

    def _find_shifts(self) -> list[tuple[int, ...]]:
        """Compute for each direction the shifts after which a bit remains where `length` stones are in a row.

        After each shift, a bit represents a longer run: 1, 2, 4 and so on; after the last shift, exactly `length`.
        """
        found = []
        for direction in (1, self.stride, self.stride + 1, self.stride - 1):
            covered, shifts = 1, []
            while covered < self.length:
                step = min(covered, self.length - covered)
                shifts.append(step * direction)
                covered += step
            found.append(tuple(shifts))
        return found

    def _find_windows(self) -> list[int]:
        """Compute the masks of all lines of `length` cells."""
        found = []
        for row in range(self.height):
            for column in range(self.width):
                for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    last_row, last_column = row + down * (self.length - 1), column + right * (self.length - 1)
                    if last_row < self.height and 0 <= last_column < self.width:
                        cells = [(row + i * down, column + i * right) for i in range(self.length)]
                        found.append(sum(self.bits[r * self.width + c] for r, c in cells))
        return found

    def _order_actions(self) -> list[int]:
        """Return the actions, sorted from the middle of the board outwards."""
        middle_row, middle_column = (self.height - 1) / 2, (self.width - 1) / 2

        def distance(action: int) -> float:
            row, column = (middle_row, action) if self.gravity else divmod(action, self.width)
            return max(abs(row - middle_row), abs(column - middle_column))

        return sorted(range(self.num_actions), key=distance)

    def has_row(self, stones: int) -> bool:
        """Return whether a bitboard of stones has `length` in a row."""
        for shifts in self.shifts:
            run = stones
            for shift in shifts:
                run &= run >> shift
            if run:
                return True
        return False

    def near(self, stones: int) -> int:
        """Return a bitboard of these stones and all neighbouring cells, including diagonal ones."""
        wide = stones | stones << 1 | stones >> 1
        return (wide | wide << self.stride | wide >> self.stride) & self.full

    def start(self, player: int) -> GridPosition:
        return GridPosition(self, 0, 0, player)

    def restore(self, state: Any, player: int) -> GridPosition:
        """Return the position of a board, array-like (height, width) or flat, of 0 (empty), 1 and 2; row 0 is the top.

        ConfigError is raised if the size or a value is wrong, a stone has an empty cell below it in a game with
        gravity, or both players have `length` in a row.
        """
        board = np.asarray(state)
        if board.size != self.height * self.width or not np.isin(board, (0, *PLAYERS)).all():
            raise ConfigError(f"board: expected {self.height} x {self.width} of 0, 1 and 2, got {board.shape}")
        board = board.reshape(self.height, self.width)
        if self.gravity and ((board[:-1] != 0) & (board[1:] == 0)).any():
            raise ConfigError("board: a stone has an empty cell below it; row 0 is the top")
        flat = board.ravel().tolist()
        stones = [sum(bit for bit, cell in zip(self.bits, flat) if cell == number) for number in PLAYERS]
        if all(map(self.has_row, stones)):
            raise ConfigError(f"board: both players have {self.length} in a row")
        return GridPosition(self, stones[player], stones[1 - player], player)

    def planes(self, position: GridPosition) -> Array:
        """Return uint8 (2, height, width): the stones of the player to move, and those of the other player."""
        nbytes = self._plane_nbytes
        packed = position.own.to_bytes(nbytes, "little") + position.other.to_bytes(nbytes, "little")
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").reshape(2, nbytes * 8)
        cells = bits[:, : self.height * self.stride].reshape(2, self.height, self.stride)
        return cells[:, :, : self.width]


class GridPosition(Position):
    """A position of `GridRules`; `own` and `other` are bitboards of the player to move and the other player."""

    __slots__ = ("rules", "own", "other", "player", "is_over", "winner")

    def __init__(self, rules: GridRules, own: int, other: int, player: int) -> None:
        """Make a position and compute whether the game is over."""
        self.rules, self.own, self.other, self.player = rules, own, other, player
        self.winner: int | None = None
        if rules.has_row(other):  # first: the last move was the other player's
            self.winner = 1 - player
        elif rules.has_row(own):
            self.winner = player
        self.is_over = self.winner is not None or own | other == rules.full

    def legal_actions(self) -> list[int]:
        if self.is_over:
            return []
        taken = self.own | self.other
        if self.rules.gravity:
            return [column for column in range(self.rules.width) if not taken >> column & 1]
        return [action for action, bit in enumerate(self.rules.bits) if not taken & bit]

    def bit_of(self, action: int) -> int:
        """Return the bit of the cell in which an action puts a stone."""
        if self.rules.gravity:
            free = self.rules.columns[action] & ~(self.own | self.other)
            return 1 << (free.bit_length() - 1)  # the highest bit is the lowest row
        return self.rules.bits[action]

    def play(self, action: int) -> GridPosition:
        rules, player = self.rules, self.player
        stones = self.own | self.bit_of(action)
        after = GridPosition.__new__(GridPosition)
        after.rules, after.own, after.other, after.player = rules, self.other, stones, 1 - player
        won = rules.has_row(stones)
        after.winner = player if won else None
        after.is_over = won or stones | self.other == rules.full
        return after

    def passed(self) -> GridPosition:
        """Return the position with the same stones and the other player to move."""
        return GridPosition(self.rules, self.other, self.own, 1 - self.player)

    def winning_actions(self) -> list[int]:
        """Return the legal actions that win immediately."""
        return [action for action in self.legal_actions() if self.rules.has_row(self.own | self.bit_of(action))]

    @property
    def key(self) -> Hashable:
        return self.own, self.other

    def candidates(self) -> list[int]:
        """Return legal actions from the middle outwards; on large boards without gravity only those next to a stone."""
        legal = set(self.legal_actions())
        rules = self.rules
        found = [action for action in rules.order if action in legal]
        taken = self.own | self.other
        if rules.gravity or not taken or rules.num_actions <= SMALL_BOARD:
            return found
        near = rules.near(taken)
        return [action for action in found if rules.bits[action] & near]

    def evaluate(self) -> float:
        """Compare the lines that each player can still complete, weighted by the stones in them."""
        own, other, weights = self.own, self.other, self.rules.weights
        score = 0.0
        for window in self.rules.windows:
            mine, theirs = own & window, other & window
            if not theirs:
                score += weights[mine.bit_count()]
            elif not mine:
                score -= weights[theirs.bit_count()]
        return score / (abs(score) + 100.0)

    def rollout(self, generator: random.Random) -> int | None:
        if self.is_over:
            return self.winner
        rules, own, other, player = self.rules, self.own, self.other, self.player
        for bit in self._random_cells(generator):
            own |= bit
            if rules.has_row(own):
                return player
            own, other, player = other, own, 1 - player
        return None

    def _random_cells(self, generator: random.Random) -> Sequence[int]:
        """Return the bits of all free cells in a random order in which they can be played."""
        taken = self.own | self.other
        if not self.rules.gravity:
            cells = [bit for bit in self.rules.bits if not taken & bit]
            generator.shuffle(cells)
            return cells
        # The shuffle determines the order of columns; the row of each stone follows from gravity.
        free = [mask & ~taken for mask in self.rules.columns]
        order = [column for column, mask in enumerate(free) for _ in range(mask.bit_count())]
        generator.shuffle(order)
        cells = []
        for column in order:
            bit = 1 << (free[column].bit_length() - 1)
            free[column] ^= bit
            cells.append(bit)
        return cells

    def __repr__(self) -> str:
        symbols = {(0, 0): ".", (1, 0): "X", (0, 1): "O"}
        first, second = (self.own, self.other) if self.player == 0 else (self.other, self.own)
        rows = [
            "".join(
                symbols[bool(first & bit), bool(second & bit)] for bit in self.rules.bits[start:][: self.rules.width]
            )
            for start in range(0, len(self.rules.bits), self.rules.width)
        ]
        return f"GridPosition({'/'.join(rows)}, player {PLAYERS[self.player]})"
