"""History: the way of one env to where it is, for another worker to go it again.

    RestorePoint ---- Entry, Entry, ... ----> where the env is          a RestorePlan; several make a History

The journal has all of it, worker and reproducer get what they need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["RestorePlan", "Entry", "History", "RestorePoint"]


class Entry(NamedTuple):
    """One command to one env; `payload` is a pickled `Payload`, or the bytes of each action leaf."""

    step_id: int
    op: int
    flags: int
    argument: int
    payload: bytes | tuple[bytes, ...] | None


class RestorePoint(NamedTuple):
    """A point from which an env can be brought to where it was.

    Attributes:
        step_id: the first command to repeat. With a state, of this command only the reset.
        state: what `Snapshotter.capture` returned between two episodes; None: a new env, or one
            that this command resets with a seed, is enough.
        is_complete: whether the state is known to be all that the env carries on.
        is_mid_episode: the state is one amid an episode, and what comes next a step.
    """

    step_id: int
    state: bytes | None = None
    is_complete: bool = True
    is_mid_episode: bool = False


class RestorePlan(NamedTuple):
    """One way to bring an env to where it was.

    Attributes:
        restore_point: where to begin.
        entries: what to repeat after it.
        persistent_calls: calls from before it whose effect lasts: per name the last one, in their order.
    """

    restore_point: RestorePoint
    entries: list[Entry]
    persistent_calls: list[Entry]


@dataclass
class History:
    """How to bring one env to where it was.

    Attributes:
        attempts: to be tried in this order: from a start that is surely all there is, as far back as
            that lies, before a later one that may lack something. None: there is no way.
        persistent_calls: the last call of each name, wherever it stands: what an env has to be told
            that begins anew.
    """

    attempts: list[RestorePlan] = field(default_factory=list)
    persistent_calls: list[Entry] = field(default_factory=list)
