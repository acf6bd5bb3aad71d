"""Remote access: functions that a manager calls where its envs live, beside steps and resets."""

from __future__ import annotations

from .env_driver import EnvDriver

__all__ = ["LASTING_CALLS", "disable_autoreset", "rebuild_env"]


def disable_autoreset(driver: EnvDriver) -> None:
    """Leave all later resets to the manager."""
    driver.disable_autoreset()


def rebuild_env(driver: EnvDriver) -> None:
    """Replace the env by a new one."""
    driver.rebuild()


#: Functions whose last call of an env stands for all earlier ones.
LASTING_CALLS = (disable_autoreset, rebuild_env)
