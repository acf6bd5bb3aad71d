"""States of an env as a manager's caller sees them; they decide what may be asked of it."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["EnvState"]


class EnvState(IntEnum):
    """What an env is ready for.

    VOID --launch--> INIT --reset--> RESET --first observation--> RUN
    RUN  --episode ends--> RESET (automatic), NEED_RESET (the caller resets), DONE (had all its episodes)
    RUN  --step fails, or an abnormal timestep--> ERROR; a reset brings it back
    any  --close--> VOID
    """

    VOID = 0
    INIT = 1
    RUN = 2
    RESET = 3
    DONE = 4
    ERROR = 5
    NEED_RESET = 6
