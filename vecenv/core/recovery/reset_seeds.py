"""ResetSeeds: the seeds that envs got with their resets, as far as later resets depend on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..layout.spec import Array

__all__ = ["ResetSeeds"]


@dataclass
class ResetSeeds:
    """The seeds of the resets of one pool. It can be pickled, and another pool can continue with it.

    Attributes:
        may_lack_generator: bool (num_envs,), envs whose next reset is offered a drawn seed.
        is_seeded: bool (num_envs,), envs that have been given a seed.
        first_drawn: the drawn seed of env 0; None: no seed was drawn.
        offered: envs whose last reset was offered a drawn seed.
        last: seeds of the last resets, by env_id; None: it had none.
        cancelled: seeds of cancelled resets, until the next reset.
    """

    may_lack_generator: Array
    is_seeded: Array
    first_drawn: int | None = None
    offered: set[int] = field(default_factory=set)
    last: dict[int, Any] = field(default_factory=dict)
    cancelled: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of_new_envs(cls, num_envs: int) -> ResetSeeds:
        """Return the state before the first reset."""
        return cls(np.ones(num_envs, np.bool_), np.zeros(num_envs, np.bool_))
