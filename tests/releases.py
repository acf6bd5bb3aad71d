"""Which release of Gymnasium there is, for tests of what differs between releases."""

from __future__ import annotations

import gymnasium

#: Such as (1, 4).
GYMNASIUM = tuple(map(int, gymnasium.__version__.split(".")[:2]))
