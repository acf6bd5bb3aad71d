"""Orders of managers beside steps and resets; reads and calls of envs are those of `envs.remote`."""

from __future__ import annotations

from .env_driver import ManagedEnv

__all__ = ["leave_resets", "renew_env"]


def leave_resets(managed: ManagedEnv) -> None:
    """Have the manager begin all later episodes."""
    managed.leave_resets()


def renew_env(managed: ManagedEnv) -> None:
    """Replace the env."""
    managed.renew()
