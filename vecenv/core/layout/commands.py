"""Commands on their way to envs, and those that bring one env back to its state in another worker.

    Commands                                                        of one request; one row is a Command
    RestorePoint ---- Entry, Entry, ... ----> present state         a RestorePlan; several make a History

Requests make `Commands`; hubs, journals and successors take them over or parts of them. A step of many envs without
payloads has no `Commands`: its actions travel as arrays, with the ids of its envs.

The journal in the parent creates the restore plans; workers and reproducers use them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...gymnasium_api.reset_options import accepts_options
from .flags import CommandFlag, Op
from .spec import Array

__all__ = [
    "GIVEN_STATE",
    "CallEffect",
    "Changes",
    "Command",
    "Commands",
    "Effect",
    "Entry",
    "GivenState",
    "History",
    "LastingCall",
    "RestorePlan",
    "RestorePoint",
    "reset_kwargs",
]

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


class Effect:
    """The effect of a command on its env, which decides whether a new env needs the command. Plain, as `RowFlag`."""

    NONE = 0  #: no change: never repeated
    ONCE = 1  #: a change, or an unknown effect: repeated in its order
    LASTS = 2  #: a call that sets the attribute named by its key: repeated unless a later call has the same key
    SEEDS = 3  #: a reset that brings a new env to the same state by itself: no earlier command is needed


class Command(NamedTuple):
    """One command to one env.

    Attributes:
        step_id: its number; 0 until the hub has numbered it.
        op: of `flags.Op`.
        flags: `CommandFlag` bits; for a step, also the form of its action.
        argument: the seed of a reset.
        effect: of `Effect`.
        key: with `Effect.LASTS`: a later call with this key replaces the call.
        payload: a pickled `Payload`, or the object itself in the process of the env; the bytes of each action leaf for
            an unanswered step without one; else None.
    """

    step_id: int
    env_id: int
    op: int
    flags: int = 0
    argument: int = 0
    effect: int = Effect.ONCE
    key: str | None = None
    payload: Any = None


_COMMAND = np.dtype(list(zip(Command._fields, ("i8", "i8", "u1", "u2", "i8", "u1"))))


class Commands:
    """Commands to envs, in their order.

    Attributes:
        table: structured array (n,) with all fields of `Command` but these two; others may write to it.
        keys, payloads: (n,).
    """

    __slots__ = ("keys", "payloads", "table")

    def __init__(self, table: Array, keys: list[str | None], payloads: list[Any]) -> None:
        self.table, self.keys, self.payloads = table, keys, payloads

    @classmethod
    def of(
        cls,
        op: int,
        env_ids: Array,
        *,
        flags: Sequence[int] | int = 0,
        arguments: Sequence[int] | int = 0,
        effects: Sequence[int] | int = Effect.ONCE,
        key: str | None = None,
        payloads: Sequence[Any] = (),
    ) -> Commands:
        """Make one command per env, without numbers.

        Args:
            op: of all commands.
            env_ids: int64 (n,); copied.
            flags, arguments, effects: (n,), or one value for all commands.
            key: of all commands.
            payloads: (n,); commands with a payload get `CommandFlag.PAYLOAD`. (): none has a payload.
        """
        count = len(env_ids)
        table = np.zeros(count, _COMMAND)
        table["env_id"], table["op"], table["effect"] = env_ids, op, effects
        table["flags"], table["argument"] = flags, arguments
        if any(payloads):
            table["flags"] |= np.array([CommandFlag.PAYLOAD if one else 0 for one in payloads], np.uint16)
        return cls(table, [key] * count, list(payloads) or [None] * count)

    @classmethod
    def listed(cls, commands: Iterable[Command]) -> Commands:
        """Return these commands, with their numbers."""
        rows = list(commands)
        table = np.array([row[:-2] for row in rows], _COMMAND)
        return cls(table, [row.key for row in rows], [row.payload for row in rows])

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Command]:
        columns = [self.table[name].tolist() for name in _COMMAND.names or ()]
        return map(Command, *columns, self.keys, self.payloads)

    @property
    def op(self) -> int:
        """The operation of the first command, which is that of all commands of a request; RESET if there is none."""
        return self.table["op"].item(0) if len(self.table) else int(Op.RESET)

    @property
    def env_ids(self) -> Array:
        """A copy of the ids of the envs, int64 (n,)."""
        ids: Array = self.table["env_id"].copy()
        return ids

    def number(self, first: int) -> None:
        """Give the commands the numbers `first`, `first + 1`, ... in their order."""
        self.table["step_id"] = np.arange(first, first + len(self.table))

    def first_by_env(self) -> dict[int, Command]:
        """Return the command with the lowest step_id of each env, by env_id."""
        found: dict[int, Command] = {}
        for command in sorted(self, key=lambda command: command.step_id):
            found.setdefault(command.env_id, command)
        return found

    def select(self, chosen: Any) -> Commands:
        """Return a copy of some of the commands; `chosen` is a slice, a mask (n,) or an array of indices."""
        rows = np.arange(len(self))[chosen]
        listed = rows.tolist()
        return Commands(self.table[rows], [self.keys[i] for i in listed], [self.payloads[i] for i in listed])


class Entry(NamedTuple):
    """One command to one env; `payload` is a pickled `Payload`, or the bytes of each action leaf.

    Reproducer files contain it.
    """

    step_id: int
    op: int
    flags: int
    argument: int
    payload: bytes | tuple[bytes, ...] | None


#: The key of resets that put a state into their env, and the name of the lasting calls that stand for them. The name of
#: any other lasting call ends with an identifier.
GIVEN_STATE = "set_states()"


class GivenState(NamedTuple):
    """The state that a reset puts into its env, in place of the env's own reset.

    Attributes of the env that no later reset sets are a part of it. So such a reset is also a lasting call, which is
    repeated before a later restore point.

    Attributes:
        snapshotter: restores the state; a `StateSnapshotter`.
        state: as `GlobalRngs.pack_state` has returned it.
        obs: the last delivered observation of the env that the state comes from.
        length, episode_return, age_ns: see `Slot.set_counters`.
        seed: of the episode; None: it had none, or it is unknown.
        is_over: whether this episode is over.
    """

    snapshotter: Any
    state: bytes
    obs: Any
    length: int
    episode_return: float
    age_ns: int
    seed: int | None
    is_over: bool

    def __call__(self, env: Any) -> None:
        """Put the state into an env, without its global random generators."""
        *_, state = pickle.loads(self.state)
        self.snapshotter.restore(env, state)


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
