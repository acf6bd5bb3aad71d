"""States of an env in a manager; a state decides which calls are allowed for the env."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["EnvState"]


class EnvState(IntEnum):
    """The state of one env, as `manager.env_states` reports it.

    VOID --launch--> INIT --reset--> RESET --first observation--> RUN
    RUN  --episode ends--> RESET (automatic), NEED_RESET (the caller resets), DONE (it was the last episode)
    RUN  --step fails, or an abnormal timestep--> ERROR; a reset brings the env back to RUN
    any  --close--> VOID
    """

    VOID = 0
    INIT = 1
    RUN = 2
    RESET = 3
    DONE = 4
    ERROR = 5
    NEED_RESET = 6
