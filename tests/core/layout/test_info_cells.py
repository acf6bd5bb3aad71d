"""The table of cells: which keys of infos get cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vecenv.core.layout.columns import INFO_KEYS
from vecenv.core.layout.info_cells import InfoColumns, fitting


class Table:
    """A table and the names of its cells."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.infos = InfoColumns()

    def learn(self, *infos: dict[str, Any]) -> list[tuple[str, int]]:
        """Return the path and the first cell of each key that the table contains after these infos."""
        for info in infos:
            self.infos.learn(info, self._add)
        return [("/".join(column.path), column.first) for column in self.infos.columns]

    def _add(self, name: str) -> int:
        if len(self.names) == INFO_KEYS:
            return -1
        self.names.append(name)
        return len(self.names) - 1


def test_cells_hold_one_number_or_array_element_each() -> None:
    assert Table().learn({"a": 1, "b": np.zeros((2, 3)), "c": {"d": 0.5}}) == [("a", 0), ("b", 1), ("c/d", 7)]


def test_key_has_cells_of_one_kind() -> None:
    assert Table().learn({"a": 1}, {"a": {"b": 1}}, {"a": np.zeros(2)}) == [("a", 0)]
    assert Table().learn({"a": {"b": 1}}, {"a": 1}, {"a": {"c": 1}}) == [("a/b", 0), ("a/c", 1)]


def test_numbers_of_another_byte_order_have_no_cells() -> None:
    foreign = np.dtype(np.int32).newbyteorder()
    info = {"a": np.zeros(2, foreign), "b": np.zeros(2, foreign.newbyteorder())}
    assert Table().learn(info) == []
    assert list(fitting(info)) == ["b"]


@pytest.mark.parametrize("key", ["a\x1fb", "a\x1e2", "\x1d", "a\0", "\ud800"])
def test_keys_with_a_meaning_in_the_table_have_no_cells(key: str) -> None:
    assert Table().learn({key: 1}, {"b": {key: 1}}) == []


def test_info_sent_partly_as_message_adds_no_keys() -> None:
    assert Table().learn({"a": 1, "b": "text"}, {"a": {"b": None}}, {0: 1}, {"c": {}}, None) == []


def test_array_without_room_in_the_table_gets_no_cells() -> None:
    table = Table()
    full = {f"key {number}": number for number in range(INFO_KEYS - 2)}
    known = table.learn(full)
    assert len(known) == INFO_KEYS - 2
    assert table.learn({"array": np.zeros(3)}, {"more": 1}) == known
