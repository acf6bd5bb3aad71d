"""Read the cells of infos without C."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..layout.spec import Array

__all__ = ["read_cells"]


def read_cells(
    columns: tuple[Array, ...], flag: int, signature: bytes, fields: bytes, values: Array, mask: Array, /
) -> bytes | Literal[True] | None:
    """Read the numbers of the infos of rows that have equal tags; see `_native.read_cells`."""
    flags, tags, cells = columns
    np.not_equal(flags & flag, 0, out=mask)
    rows = mask.nonzero()[0]
    table = tags[rows].tobytes()
    found = table[: tags.shape[1]]
    if not found:
        return None
    if found != signature:
        return found
    if table != signature * len(rows):
        return None
    values[...] = 0
    for line, (cell, size) in zip(values, np.frombuffer(fields, np.uint32).reshape(-1, 2).tolist()):
        line.view(f"<u{size}")[rows] = cells[rows, cell].astype(f"<u{size}")  # in the first bytes of a cell
    return True
