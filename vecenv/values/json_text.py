"""JSON of results, whose keys and numbers come from envs, so that JSON may not have them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["json_text"]


def json_text(content: Any, indent: int | None = 2) -> str:
    """Return JSON that every parser reads, with a newline at its end.

    NaN and infinite numbers become null. Arrays and tuples become lists, NumPy's numbers become numbers, and keys that
    are not strings become strings. All other objects become their `str`.

    Args:
        content: the value.
        indent: number of spaces per level; None: one line.

    Example:
        >>> json_text({np.int64(1): (2.0, math.inf), "path": np.arange(2)}, indent=None)
        '{"1": [2.0, null], "path": [0, 1]}\\n'
    """
    return json.dumps(_plain(content), indent=indent, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
