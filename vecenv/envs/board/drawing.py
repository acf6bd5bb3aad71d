"""Pictures of boards, drawn with NumPy from distance functions: smooth edges without an extra library."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Colour = tuple[int, int, int]

WHITE, BLACK = (250, 250, 250), (25, 25, 25)
RED, YELLOW, BLUE, GREY = (206, 52, 48), (245, 205, 60), (38, 84, 160), (150, 150, 150)
WOOD, LINE = (224, 182, 112), (80, 56, 24)


class BoardPicture:
    """A picture of a board of square cells: a background, and a stone for each player.

    A stone is a colour and a mask (cell, cell) of 0 to 1, the part of each pixel that the stone covers.
    """

    def __init__(self, background: Array, stones: list[tuple[Array, Colour]]) -> None:
        self._background = background.astype(np.float32)
        self._stones = stones

    def draw(self, board: Array) -> Array:
        """Draw a board (rows, columns) of 0, 1 and 2 as uint8 (height, width, 3)."""
        picture = self._background
        for number, (mask, colour) in enumerate(self._stones, start=1):
            cover = np.kron(board == number, mask)[..., None].astype(np.float32)
            picture = picture * (1 - cover) + np.array(colour, np.float32) * cover
        return np.rint(picture).astype(np.uint8)


def connect4_picture(rows: int, columns: int, cell: int) -> BoardPicture:
    """Return a picture with a blue frame with round holes, and red and yellow discs."""
    hole = disc(cell, 0.41)
    frame = _paint(np.tile(hole, (rows, columns)), WHITE, BLUE)
    return BoardPicture(frame, [(disc(cell, 0.42), RED), (disc(cell, 0.42), YELLOW)])


def tictactoe_picture(rows: int, columns: int, cell: int) -> BoardPicture:
    """Return a picture with thin lines between cells, and a blue cross and a red ring as stones."""
    y, x = _pixels(rows * cell, columns * cell)
    lines: Array = np.zeros((rows * cell, columns * cell))
    for row in range(1, rows):
        lines = np.maximum(lines, _cover(0.02 * cell - np.abs(y - row * cell)))
    for column in range(1, columns):
        lines = np.maximum(lines, _cover(0.02 * cell - np.abs(x - column * cell)))
    return BoardPicture(_paint(lines, GREY, WHITE), [(cross(cell), BLUE), (ring(cell), RED)])


def gomoku_picture(rows: int, columns: int, cell: int) -> BoardPicture:
    """Return a picture with lines through the middles of cells on wood, and black and white stones."""
    y, x = _pixels(rows * cell, columns * cell)
    half, bottom, right = cell / 2, (rows - 0.5) * cell, (columns - 0.5) * cell
    on_board = (y > half - 1) & (y < bottom + 1) & (x > half - 1) & (x < right + 1)
    to_line = np.minimum(np.abs(y % cell - half), np.abs(x % cell - half))
    lines = _cover(0.012 * cell + 0.3 - to_line) * on_board
    return BoardPicture(_paint(lines, LINE, WOOD), [(disc(cell, 0.43), BLACK), (disc(cell, 0.43), WHITE)])


def disc(cell: int, radius: float) -> Array:
    """Return the mask of a filled circle in the middle of a cell; the radius is in cells."""
    return _cover(radius * cell - _from_middle(cell))


def ring(cell: int) -> Array:
    """Return the mask of a circle line."""
    return _cover(0.055 * cell - np.abs(_from_middle(cell) - 0.3 * cell))


def cross(cell: int) -> Array:
    """Return the mask of two diagonal lines."""
    y, x = _pixels(cell, cell)
    y, x = y - cell / 2, x - cell / 2
    along, across = (np.abs(x + y) / np.sqrt(2), np.abs(x - y) / np.sqrt(2))
    reach = 0.4 * cell
    beyond = np.hypot(np.maximum(along - reach, 0), across), np.hypot(np.maximum(across - reach, 0), along)
    return _cover(0.055 * cell - np.minimum(*beyond))


def _pixels(height: int, width: int) -> tuple[Array, Array]:
    """Return the coordinates of the middles of pixels: y (height, 1), x (1, width)."""
    return np.arange(height)[:, None] + 0.5, np.arange(width)[None] + 0.5


def _from_middle(cell: int) -> Array:
    y, x = _pixels(cell, cell)
    return np.asarray(np.hypot(y - cell / 2, x - cell / 2))


def _cover(inside: Array) -> Array:
    """Convert distances to an edge in pixels, positive inside, to the covered part of each pixel."""
    return np.asarray(np.clip(inside + 0.5, 0.0, 1.0))


def _paint(cover: Array, colour: Colour, ground: Colour) -> Array:
    return np.asarray(cover[..., None] * np.array(colour) + (1 - cover[..., None]) * np.array(ground))
