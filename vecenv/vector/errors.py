"""Errors of the Gymnasium front end: each derives from an error of vecenv and from one of Gymnasium.

So programs that catch the errors of `AsyncVectorEnv` keep working, and `except VecenvError` works, too.
"""

from __future__ import annotations

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

from ..errors import ClosedError, StateError

__all__ = ["ClosedVectorEnvError", "NoCallError", "PendingCallError"]


class ClosedVectorEnvError(ClosedError, ClosedEnvironmentError):
    """A method was called after `close`."""


class PendingCallError(StateError, AlreadyPendingCallError):
    """An earlier call, `name`, such as 'step', is still outstanding and must be waited for first; or it was refused."""

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class NoCallError(StateError, NoAsyncCallError):
    """A `..._wait` was called without its `..._async`; `name` is 'step', 'reset' or 'call'."""

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name
