"""Keep the calls that may have changed an env, in their order since its construction.

    call -> note -> the worker's answer: note_effect -> repeated in a new env, before its restore point

The journal in the parent keeps them for envs of a new worker, and the worker for an env that it builds again.

A call belongs to the life of its env, not to an episode. It is kept until one of these is known:

    it changed nothing              the worker compared the attributes of the env before and after it
    a later one replaces it         both set the same attribute, and both precede the restore point
    its name changes nothing        the worker does not compare each call of a name that has changed nothing many
                                    times; such a call is kept until the next restore point, or until there are many.
                                    Once a call of that name changes something, rows are 'unproven', unless a newer
                                    snapshot contains it
    its values stand for it         it changed only attributes with plain values; among many calls, older ones are
                                    replaced by these values
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from .commands import GIVEN_STATE, CallEffect, Changes, Entry, LastingCall, RestorePoint
from .flags import Op
from .messages import Payload

__all__ = ["LastingCalls"]

#: Size of a call beside its payload and values.
_CALL_NBYTES = 300
#: Calls of an env before its restore point that are repeated; older ones are replaced by values where possible.
_MOST_REPEATED = 1000
#: Calls of an env that the worker has not compared, beyond which the oldest are dropped.
_MOST_UNCOMPARED = 1000
#: Bytes that the calls may have however small the journal is: a task or an attribute outlives every episode.
_LEAST_NBYTES = 1 << 20
_TOO_MANY = "all calls exceed half of max_log_bytes"
_MISSED = (
    "{!r} changed something after many calls that had changed nothing, so that not each of these was compared and kept"
)
_FATAL = "{!r} ends its worker when it is repeated"


@dataclass
class _EnvCalls:
    """The calls of one env.

    Attributes:
        calls: by step_id, in order.
        num_uncompared: how many of them the worker has not compared.
        first_needed: calls before this step_id are settled: they precede every restore point.
        has_unsettled: whether there may be others.
        lost: the newest calls that were dropped although they may have had an effect; see `History.lost_calls`.
    """

    calls: dict[int, LastingCall] = field(default_factory=dict)
    num_uncompared: int = 0
    first_needed: int = 0
    has_unsettled: bool = False
    lost: dict[str, int] = field(default_factory=dict)


class LastingCalls:
    """The lasting calls of several envs.

    Args:
        max_nbytes: most bytes of the journal; the calls may have half of them.

    Attributes:
        nbytes: bytes of all calls that are kept.
    """

    def __init__(self, max_nbytes: int) -> None:
        self._envs: defaultdict[int, _EnvCalls] = defaultdict(_EnvCalls)  # keys: env_id
        self._max_nbytes = max(max_nbytes // 2, _LEAST_NBYTES)
        self.nbytes = 0

    # ---- writing -------------------------------------------------------------------------

    def note(self, env_id: int, call: LastingCall) -> None:
        """Keep a call that was sent."""
        mine = self._envs[env_id]
        mine.calls[call.step_id] = call
        mine.has_unsettled = True
        mine.num_uncompared += not call.is_compared
        self.nbytes += _nbytes_of(call)

    def note_effect(self, env_id: int, step_id: int, effect: CallEffect) -> None:
        """Record what the worker has found out about a call: its effect, or that it was not compared."""
        mine = self._envs[env_id]
        call = mine.calls.get(step_id)
        if effect.has_missed:
            mine.lost[_MISSED.format(effect.name)] = step_id
        if call is None:
            return
        if not effect.is_compared:
            mine.num_uncompared += 1
            mine.calls[step_id] = call._replace(is_compared=False)
            if mine.num_uncompared > _MOST_UNCOMPARED:
                self._drop_uncompared(mine, _MOST_UNCOMPARED // 2)
        elif effect.changes is None:
            return
        elif not effect.changes:
            self._drop(mine, step_id)
        else:
            self._replace(mine, call._replace(changes=effect.changes))

    def settle(self, env_id: int, first_needed: int) -> None:
        """Drop what is not needed of the calls before an env's restore point."""
        mine = self._envs[env_id]
        if not mine.has_unsettled:
            return
        mine.first_needed = first_needed
        names_after: set[str] = set()
        for call in reversed(_settled(mine)):
            if not call.is_compared or call.name in names_after:
                self._drop(mine, call.step_id)
            elif call.name is not None:
                names_after.add(call.name)
            elif call.changes is None:  # it may depend on attributes that were set before it
                names_after.clear()
        settled = _settled(mine)
        if len(settled) > _MOST_REPEATED:
            self._merge(mine, settled[: len(settled) - _MOST_REPEATED // 2])
        mine.has_unsettled = len(_settled(mine)) < len(mine.calls)

    def has_unsettled(self, env_id: int) -> bool:
        """Return whether an env may have calls that `settle` has not looked through."""
        return self._envs[env_id].has_unsettled

    def forget(self, env_id: int) -> None:
        """Drop all calls of an env, because it was built again and will receive no old ones."""
        mine = self._envs[env_id]
        self.nbytes -= sum(map(_nbytes_of, mine.calls.values()))
        self._envs[env_id] = _EnvCalls()

    def drop_uncompared(self) -> None:
        """Drop all calls that the worker has not compared: their names have never changed anything."""
        for mine in self._envs.values():
            self._drop_uncompared(mine, mine.num_uncompared)

    def is_over(self) -> bool:
        """Return whether all calls together exceed their bound."""
        return self.nbytes > self._max_nbytes

    def limit(self) -> tuple[int, int]:
        """Replace settled calls by values, and drop the oldest ones, of the envs with the most, until all fit.

        Returns:
            The env whose calls were dropped first, and how many; (0, 0) if none were.
        """
        dropped = (0, 0)
        while self.is_over():
            sizes = {env_id: sum(map(_nbytes_of, _settled(mine))) for env_id, mine in self._envs.items()}
            env_id = max(sizes, key=sizes.__getitem__)
            if not sizes[env_id]:
                break
            mine = self._envs[env_id]
            settled = _settled(mine)
            oldest = settled[: -(-len(settled) // 2)]
            self._merge(mine, oldest)
            if sum(map(_nbytes_of, _settled(mine))) < 0.75 * sizes[env_id]:
                continue
            for call in oldest:
                if call.step_id in mine.calls:
                    mine.lost[_TOO_MANY] = max(mine.lost.get(_TOO_MANY, 0), call.step_id)
                    self._drop(mine, call.step_id)
            dropped = dropped if dropped[1] else (env_id, len(oldest))
        return dropped

    def _merge(self, mine: _EnvCalls, calls: list[LastingCall]) -> None:
        """Replace calls by the values of the attributes that they have changed, where these are known.

        A call with unknown changes may depend on all before it, and one that sets an attribute may replace a value. So
        both stay, and the values before them stay before them.
        """
        run: list[LastingCall] = []
        for call in calls:
            if call.changes is not None and call.name is None:
                run.append(call)
                continue
            changed = {name for one in run for _, name in one.changes or ()}
            if call.name in (None, GIVEN_STATE) or call.name.split()[-1] in changed:
                self._merge_run(mine, run)
                run = []
        self._merge_run(mine, run)

    def _merge_run(self, mine: _EnvCalls, run: list[LastingCall]) -> None:
        if len(run) < 2:
            return
        values: Changes = {}
        for call in run:
            values.update(call.changes or {})
            self._drop(mine, call.step_id)
        merged = LastingCall(run[-1].step_id, changes={key: value for key, value in values.items() if value})
        mine.calls[merged.step_id] = merged
        self.nbytes += _nbytes_of(merged)
        mine.calls = dict(sorted(mine.calls.items()))

    def _drop_uncompared(self, mine: _EnvCalls, count: int) -> None:
        uncompared = [step_id for step_id, call in mine.calls.items() if not call.is_compared] if count else []
        for step_id in uncompared[:count]:
            self._drop(mine, step_id)

    def _replace(self, mine: _EnvCalls, call: LastingCall) -> None:
        self.nbytes += _nbytes_of(call) - _nbytes_of(mine.calls[call.step_id])
        mine.calls[call.step_id] = call

    def _drop(self, mine: _EnvCalls, step_id: int) -> None:
        call = mine.calls.pop(step_id)
        self.nbytes -= _nbytes_of(call)
        mine.num_uncompared -= not call.is_compared

    def give_up(self, env_id: int, step_id: int, name: str) -> bool:
        """Stop repeating a call of function `name`, because it ends its worker; return False if it is not repeated.

        The values of the attributes that it has changed stand for it, if they are known.
        """
        mine = self._envs[env_id]
        call = mine.calls.get(step_id)
        if call is None or call.payload is None:
            return False
        mine.lost[_FATAL.format(name)] = step_id
        if call.changes:
            self._replace(mine, call._replace(payload=None))
        else:
            self._drop(mine, step_id)
        return True

    def restore(self, env_id: int, calls: Iterable[LastingCall], lost: dict[str, int]) -> None:
        """Continue with the calls that another journal has kept, in order."""
        for call in calls:
            self.note(env_id, call)
        self._envs[env_id].lost = dict(lost)

    # ---- reading -------------------------------------------------------------------------

    def since(self, env_id: int, first: int) -> list[Entry]:
        """Return the calls of an env from a step_id on, as commands; without a payload if values stand for them."""
        return [
            Entry(call.step_id, int(Op.CALL), call.flags, 0, call.payload)
            for call in self._envs[env_id].calls.values()
            if call.step_id >= first and call.name != GIVEN_STATE  # the reset is another command
        ]

    def before(self, env_id: int, step_id: int, queued: Collection[int]) -> list[LastingCall]:
        """Return the calls to repeat before a command, in order, except queued ones."""
        found: list[LastingCall] = []
        names_after: set[str] = set()
        for call in reversed(self._envs[env_id].calls.values()):
            if call.step_id >= step_id or call.step_id in queued or call.name in names_after:
                continue
            if call.name is not None:
                names_after.add(call.name)
            elif call.changes is None:
                names_after.clear()
            found.append(call)
        return found[::-1]

    def all_of(self, env_id: int, queued: Collection[int]) -> list[LastingCall]:
        """Return all calls of an env, except queued ones."""
        return [call for call in self._envs[env_id].calls.values() if call.step_id not in queued]

    def find(self, env_id: int, step_id: int) -> LastingCall | None:
        """Return a call, or None if it is not kept."""
        return self._envs[env_id].calls.get(step_id)

    def lost(self, env_id: int) -> dict[str, int]:
        """Return the newest calls that were dropped although they may have had an effect; see `History.lost_calls`."""
        return dict(self._envs[env_id].lost)

    def doubt(self, env_id: int, point: RestorePoint, calls: Iterable[LastingCall]) -> str:
        """Return why an env may differ that has only had `calls` before a restore point; '' if it does not.

        A call in the middle of an episode may have used state of that episode. Its values stand for it, if they are
        known.
        """
        lost = self._envs[env_id].lost.items()
        missing = [(reason, last) for reason, last in lost if not (point.holds_calls and point.step_id > last)]
        if missing:
            return "; ".join(f"calls up to command {last} are no longer kept: {reason}" for reason, last in missing)
        unknown = [call.step_id for call in calls if call.changes is None and call.name is None and not call.is_first]
        if unknown and not point.holds_calls:
            return f"call {unknown[-1]} was made during an earlier episode, and what it changed is not known"
        return ""


def _settled(mine: _EnvCalls) -> list[LastingCall]:
    return [call for call in mine.calls.values() if call.step_id < mine.first_needed]


def _nbytes_of(call: LastingCall) -> int:
    values = sum(len(value) + 100 for value in call.changes.values()) if call.changes else 0
    nbytes = 0 if call.payload is None or isinstance(call.payload, Payload) else len(call.payload)
    return _CALL_NBYTES + nbytes // max(1, call.num_sharing) + values
