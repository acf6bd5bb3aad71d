"""Errors of the Gymnasium face: each is vecenv's error and Gymnasium's at once.

So programs that catch what `AsyncVectorEnv` raises go on working, and `except VecenvError` too.
"""

from __future__ import annotations

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

from ..errors import ClosedError, SpaceError, StateError

__all__ = ["ClosedVectorEnvError", "DifferentSpacesError", "NoCallError", "PendingCallError"]


class ClosedVectorEnvError(ClosedError, ClosedEnvironmentError):
    """The vector env was closed by the program that now uses it."""


class PendingCallError(StateError, AlreadyPendingCallError):
    """Envs still owe the answer to an earlier call.

    Attributes:
        name: that call: 'step', 'reset', 'call' or 'send'.
    """

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class NoCallError(StateError, NoAsyncCallError):
    """There is nothing to wait for.

    Attributes:
        name: the call that was to be waited for.
    """

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class DifferentSpacesError(SpaceError, RuntimeError):
    """An env's spaces are not those of env 0."""
