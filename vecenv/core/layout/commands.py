"""Describe the commands that bring one env back to its state, so that another worker can repeat them.

    RestorePoint ---- Entry, Entry, ... ----> present state         a RestorePlan; several make a History

The journal in the parent creates them; workers and reproducers use them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...reset_options import accepts_options
from .flags import CommandFlag

__all__ = ["CallEffect", "Changes", "Entry", "History", "LastingCall", "RestorePlan", "RestorePoint", "reset_kwargs"]

#: Attributes that a call has changed: (number of the layer, from the outermost on, and name) -> the pickled new value.
#: The value is b"" for a random generator, which every restore point contains.
Changes = dict[tuple[int, str], bytes]


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


class CallEffect(NamedTuple):
    """The changes that a call made in its env, as far as the worker compared the env.

    Attributes:
        name: of the function or method that was called.
        changes: the attributes that it changed; None if they are unknown, or have values that are not plain data.
        is_compared: False if the env was not compared, because calls of this name have never changed anything.
        has_missed: whether it is the first call of this name that changed something after calls that were not compared.
    """

    name: str
    changes: Changes | None
    is_compared: bool = True
    has_missed: bool = False


class LastingCall(NamedTuple):
    """A call that may have changed an env.

    Attributes:
        step_id: its number.
        payload: the pickled `Payload`, or the object itself in the process of the env; None if its `changes` stand
            for it.
        flags: `CommandFlag` bits.
        name: of an attribute; a later call with the same name replaces it. None for any other call.
        changes: the attributes that it changed, if they are known and their values are plain data.
        is_compared: False if the worker has not compared the env before and after it.
        num_sharing: how many calls have the same payload, in other envs.
        is_first: whether the env had not been reset before, so that a new env is in the same state.
    """

    step_id: int
    payload: Any = None
    flags: int = 0
    name: str | None = None
    changes: Changes | None = None
    is_compared: bool = True
    num_sharing: int = 1
    is_first: bool = False


class RestorePoint(NamedTuple):
    """A point from which an env can be restored.

    Attributes:
        step_id: the first command to repeat. If there is a state, only the reset of this command is repeated.
        state: a snapshot of the env from `Snapshotter.capture`. None if a new env is enough, or a reset with a seed by
            this command.
        is_complete: whether the state is known to contain everything that the env depends on.
        is_mid_episode: whether the state was taken during an episode, so that the next command is a step.
        holds_calls: whether the state contains everything that earlier calls may have changed.
    """

    step_id: int
    state: bytes | None = None
    is_complete: bool = True
    is_mid_episode: bool = False
    holds_calls: bool = False


class RestorePlan(NamedTuple):
    """One way to restore an env.

    Attributes:
        restore_point: where to begin.
        entries: commands to repeat after it.
        lasting_calls: calls before the restore point that may have changed the env, in order.
        unproven: why these may leave the env in another state than the original calls; '' if they do not.
    """

    restore_point: RestorePoint
    entries: list[Entry]
    lasting_calls: list[LastingCall]
    unproven: str = ""


@dataclass
class History:
    """All ways to restore one env.

    Attributes:
        attempts: restore plans, in the order in which to try them. Plans with a complete restore point come first,
            even if they begin earlier. Empty if the env cannot be restored.
        lasting_calls: calls of the whole run that may have changed the env. They are repeated in an env that begins a
            new episode because it cannot be restored.
        lost_calls: why such calls are no longer kept -> step_id of the newest of them.
    """

    attempts: list[RestorePlan] = field(default_factory=list)
    lasting_calls: list[LastingCall] = field(default_factory=list)
    lost_calls: dict[str, int] = field(default_factory=dict)
