"""Describe the commands that bring one env back to its state, so that another worker can repeat them.

    RestorePoint ---- Entry, Entry, ... ----> present state         a RestorePlan; several make a History

The journal in the parent creates them; workers and reproducers use them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...reset_options import accepts_options
from .rows import CommandFlag

__all__ = ["RestorePlan", "Entry", "History", "RestorePoint", "reset_kwargs"]


def reset_kwargs(env: Any, given: dict[str, Any], flags: int, argument: int) -> dict[str, Any]:
    """Return the keyword arguments of a reset.

    Args:
        env: the env that will be reset.
        given: those of its payload.
        flags, argument: of its command; see `CommandFlag`.
    """
    kwargs = dict(given)
    if flags & CommandFlag.SEED:
        kwargs["seed"] = argument if argument >= 0 and not flags & CommandFlag.DRAWN else None
    if flags & CommandFlag.OPTIONS and accepts_options(env):
        kwargs["options"] = None
    return kwargs


class Entry(NamedTuple):
    """One command to one env; `payload` is a pickled `Payload`, or the bytes of each action leaf."""

    step_id: int
    op: int
    flags: int
    argument: int
    payload: bytes | tuple[bytes, ...] | None


class RestorePoint(NamedTuple):
    """A point from which an env can be restored.

    Attributes:
        step_id: the first command to repeat. If there is a state, only the reset of this command is repeated.
        state: a snapshot of the env from `Snapshotter.capture`. None if a new env is enough, or a reset with a seed by
            this command.
        is_complete: whether the state is known to contain everything that the env depends on.
        is_mid_episode: whether the state was taken during an episode, so that the next command is a step.
    """

    step_id: int
    state: bytes | None = None
    is_complete: bool = True
    is_mid_episode: bool = False


class RestorePlan(NamedTuple):
    """One way to restore an env.

    Attributes:
        restore_point: where to begin.
        entries: commands to repeat after it.
        persistent_calls: earlier calls with a lasting effect: the last one of each name, in call order.
    """

    restore_point: RestorePoint
    entries: list[Entry]
    persistent_calls: list[Entry]


@dataclass
class History:
    """All ways to restore one env.

    Attributes:
        attempts: restore plans, in the order in which to try them. Plans with a complete restore point come first,
            even if they begin earlier. Empty if the env cannot be restored.
        persistent_calls: the last call of each name, from the whole run. They are repeated in an env that
            begins a new episode because it cannot be restored.
    """

    attempts: list[RestorePlan] = field(default_factory=list)
    persistent_calls: list[Entry] = field(default_factory=list)
