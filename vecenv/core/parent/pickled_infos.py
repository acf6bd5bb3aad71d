"""Count the infos that arrive pickled, because a value has no cell, and find the keys that cause this."""

from __future__ import annotations

import pickle
from typing import Any

from ..layout.info_cells import leaves_of

__all__ = ["PickledInfos"]

#: Number of infos of which one is examined, key by key. The first are not typical: their numbers have no cells yet.
_INTERVAL = 16


class PickledInfos:
    """Counts of the infos that arrived pickled in one pool; one thread changes them at a time.

    Attributes:
        num: how many messages with infos.
        nbytes: bytes of these messages.
        load_ns: nanoseconds that unpickling them took.
    """

    def __init__(self) -> None:
        self.num = 0
        self.nbytes = 0
        self.load_ns = 0
        self._num_examined = 0
        self._by_key: dict[str, tuple[bool, int]] = {}  # path -> whether a value had no cell, bytes of all values

    def note(self, info: dict[str, Any], nbytes: int, load_ns: int) -> None:
        """Count the info of a message of `nbytes` that was unpickled in `load_ns` nanoseconds."""
        self.num += 1
        self.nbytes += nbytes
        self.load_ns += load_ns
        if self.num % _INTERVAL == 0:
            self._examine(info)

    def _examine(self, info: dict[str, Any]) -> None:
        self._num_examined += 1
        for path, value, shape in leaves_of(info):
            key = "/".join(map(str, path))
            lacks_cell, nbytes = self._by_key.get(key, (False, 0))
            self._by_key[key] = lacks_cell or shape is None, nbytes + _size_of(value)

    def largest(self) -> tuple[str, float] | None:
        """Return the key whose values have most bytes, such as 'solver/log', and its mean bytes per message.

        Of the keys whose values cannot have cells; of all keys if each could have one, because all cells are in use.
        None if too few messages have arrived.
        """
        chosen = {key: nbytes for key, (lacks_cell, nbytes) in self._by_key.items() if lacks_cell}
        chosen = chosen or {key: nbytes for key, (_, nbytes) in self._by_key.items()}
        if not chosen:
            return None
        key = max(chosen, key=lambda one: chosen[one])
        return key, chosen[key] / self._num_examined


def _size_of(value: Any) -> int:
    try:
        return len(pickle.dumps(value, protocol=5))
    except Exception:  # a foreign class may refuse to be pickled a second time; its size is not known then
        return 0
