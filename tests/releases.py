"""The installed release of Gymnasium, for tests of differences between releases."""

from __future__ import annotations

import gymnasium

#: Such as (1, 4).
GYMNASIUM = tuple(map(int, gymnasium.__version__.split(".")[:2]))
