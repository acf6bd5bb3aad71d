"""`read_cells`: the numbers of the infos of a batch, from cells into one array per key, with C and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vecenv.core.fallback import info_cells
from vecenv.core.layout.native import load

NUM_CELLS, FLAG = 4, 2
SIGNATURE = bytes([1, 0, 5, 7])
#: Cells 0 (8 bytes), 2 (4 bytes) and 3 (1 byte).
FIELDS = np.array([[0, 8], [2, 4], [3, 1]], np.uint32).tobytes()


@pytest.fixture(params=["native", "python"])
def read_cells(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "python":
        return info_cells.read_cells
    native = load()
    if native is None:
        pytest.skip("the extension was not built")
    function: Callable[..., Any] = native.read_cells
    return function


class Rows:
    """Columns of B rows, all with `SIGNATURE`, and what `read_cells` writes."""

    def __init__(self, count: int = 5) -> None:
        self.flags = np.full(count, FLAG | 1, np.uint32)
        self.tags = np.tile(np.frombuffer(SIGNATURE, np.uint8), (count, 1))
        self.cells = np.random.default_rng(0).integers(0, 1 << 62, (count, NUM_CELLS), np.uint64)
        self.values = np.full((3, count), 0xA5, np.uint64)
        self.mask = np.zeros(count, np.bool_)

    def read(self, read_cells: Callable[..., Any], signature: bytes = SIGNATURE, fields: bytes = FIELDS) -> Any:
        return read_cells((self.flags, self.tags, self.cells), FLAG, signature, fields, self.values, self.mask)

    def lines(self) -> list[np.ndarray[Any, Any]]:
        count = len(self.mask)
        return [line.view(f"<u{size}")[:count] for line, size in zip(self.values, (8, 4, 1))]


def test_values_of_all_rows_are_read_in_their_size(read_cells: Callable[..., Any]) -> None:
    rows = Rows()
    assert rows.read(read_cells) is True
    assert rows.mask.all()
    for line, cell in zip(rows.lines(), (0, 2, 3)):
        np.testing.assert_array_equal(line, rows.cells[:, cell].astype(line.dtype))


def test_rows_without_an_info_are_zero(read_cells: Callable[..., Any]) -> None:
    rows = Rows()
    rows.flags[[0, 3]] = 1
    rows.tags[[0, 3]] = 9  # left from an earlier row
    assert rows.read(read_cells) is True
    assert rows.mask.tolist() == [False, True, True, False, True]
    for line, cell in zip(rows.lines(), (0, 2, 3)):
        expected = rows.cells[:, cell].astype(line.dtype)
        np.testing.assert_array_equal(line, np.where(rows.mask, expected, 0))


def test_other_tags_are_returned(read_cells: Callable[..., Any]) -> None:
    rows = Rows()
    rows.flags[0] = 1
    assert rows.read(read_cells, bytes(NUM_CELLS)) == SIGNATURE
    rows.values = np.zeros((0, 5), np.uint64)
    assert rows.read(read_cells, b"", b"") == SIGNATURE


def test_rows_that_differ_are_refused(read_cells: Callable[..., Any]) -> None:
    rows = Rows()
    rows.tags[4, 1] = 1
    assert rows.read(read_cells) is None
    rows = Rows()
    rows.flags[:] = 1
    assert rows.read(read_cells) is None


@pytest.mark.skipif(load() is None, reason="the extension was not built")
def test_sizes_that_do_not_fit_are_refused() -> None:
    native: Any = load()
    for fields in ([[4, 8], [2, 4], [3, 1]], [[0, 9], [2, 4], [3, 1]], [[0, 8], [2, 4]]):
        with pytest.raises(ValueError, match="fit together"):
            Rows().read(native.read_cells, fields=np.array(fields, np.uint32).tobytes())
    for name in ("flags", "tags", "cells", "values", "mask"):
        rows = Rows()
        setattr(rows, name, getattr(rows, name)[..., :-1].copy())
        with pytest.raises(ValueError, match="fit together"):
            rows.read(native.read_cells)
    with pytest.raises(ValueError, match="fit together"):
        Rows().read(native.read_cells, SIGNATURE[:3])
    with pytest.raises(TypeError, match="read_cells expects"):
        native.read_cells((), FLAG, SIGNATURE, FIELDS, Rows().values, Rows().mask)
    with pytest.raises(TypeError):
        rows = Rows()
        native.read_cells((rows.flags, rows.tags, rows.cells), "2", SIGNATURE, FIELDS, rows.values, rows.mask)
