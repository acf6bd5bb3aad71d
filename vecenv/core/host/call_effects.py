"""CallEffects: finds out in the worker whether the calls of an env change it.

The attributes of the env are compared before and after a call. Calls of a name that has changed nothing many times are
compared now and then; the others are only checked for attributes that were assigned. Where a comparison takes long,
fewer calls are "many", and comparisons take a small share of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..layout.commands import CallEffect, Changes
from ..system.clock import cpu_ns, now_ns
from .checks import function_name
from .global_rngs import GlobalRngs
from .replay import Snapshotter

__all__ = ["CallEffects"]

#: Where a comparison takes long: calls of a name that must have changed nothing, one after the other, before not all
#: are compared; and how long their comparisons may take together, after the first few.
_FIRST_CALLS, _FEWEST_CALLS, _FIRST_NS = 64, 4, 200_000_000
#: The part of the time since the last comparison that the next one may take.
_SHARE = 0.01
#: Longest time of a comparison that does not take long; an Atari game takes two thirds of it. A comparison raises the
#: time of the last one by a 256th at most: on a busy machine, a hundred in a row may be slow.
_CHEAP_NS, _GROWTH = 300_000, 256
#: Where a comparison does not take long: calls of a name that must have changed nothing, and the part of later ones
#: that are compared.
_FIRST_CHEAP_CALLS, _EVERY = 10_000, 8


class CallEffects:
    """Compares envs before and after calls.

    Args:
        snapshotter: reads the attributes of envs; None: no effect is known.
        rngs: the states of the global generators of the envs.
    """

    def __init__(self, snapshotter: Snapshotter | None, rngs: GlobalRngs) -> None:
        self._snapshotter = snapshotter
        self._rngs = rngs
        self._streaks: dict[tuple[int, str], int] = {}  # calls in a row without any change, by env_id and name
        self._skipped: set[tuple[int, str]] = set()  # (env_id, name) of calls that were not compared
        self._costs_ns: dict[int, int] = {}  # CPU time of the last comparison, with limited growth, by env_id
        self._compared_ns: dict[int, int] = {}  # instant of that comparison, by env_id
        self._watch: Any = None
        self._name = ""
        self._is_deep = False
        self._spent_ns = 0
        self._rng_state: Any = None  # state of the global generators, and the number of pools that began from it

    def begin(self, env_id: int, env: Any, function: Callable[[Any], Any]) -> None:
        """Read the attributes of an env before a call."""
        self._name = function_name(function)
        self._watch, self._rng_state = None, self._rng_state_of(env_id)
        if self._snapshotter is None:
            return
        began_ns = cpu_ns()
        self._is_deep = self._is_due(env_id)
        try:
            self._watch = self._snapshotter.watch(env, is_deep=self._is_deep)
        except Exception:  # pickling may raise anything for a foreign class: then the effect is unknown
            self._watch = None
        self._spent_ns = cpu_ns() - began_ns

    def end(self, env_id: int, env: Any) -> CallEffect:
        """Return the effect of the call since `begin`, also if it raised."""
        key, watch = (env_id, self._name), self._watch
        if watch is None or self._snapshotter is None:
            return CallEffect(self._name, None)
        began_ns = cpu_ns()
        changes: Changes | None
        try:
            changes = self._snapshotter.changes(env, watch)
        except Exception:
            changes = None
        if changes is not None and self._rng_state_of(env_id) != self._rng_state:
            changes[-1, "global generators"] = b""
        self._watch = None
        if self._is_deep:
            took = self._spent_ns + cpu_ns() - began_ns
            self._compared_ns[env_id] = now_ns()
            before = self._costs_ns.get(env_id, took)
            self._costs_ns[env_id] = min(took, before + before // _GROWTH)
        is_unchanged = changes is not None and not changes
        if not (self._is_deep or is_unchanged):  # the contents of values may have changed, too
            changes = None
        self._streaks[key] = self._streaks.get(key, 0) + 1 if is_unchanged else 0
        is_compared, has_missed = self._is_deep or not is_unchanged, False
        if not is_compared:
            self._skipped.add(key)
        elif not is_unchanged and key in self._skipped:
            self._skipped.remove(key)
            has_missed = True
        return CallEffect(self._name, changes, is_compared, has_missed)

    def _rng_state_of(self, env_id: int) -> Any:
        env_rngs = self._rngs.of(env_id)
        return env_rngs.state, env_rngs.num_pools

    def _is_due(self, env_id: int) -> bool:
        """Return whether a call is compared."""
        cost, streak = self._costs_ns.get(env_id, 0), self._streaks.get((env_id, self._name), 0)
        if cost <= _CHEAP_NS:
            return streak < _FIRST_CHEAP_CALLS or streak % _EVERY == 0
        first = min(max(_FEWEST_CALLS, _FIRST_NS // max(cost, 1)), _FIRST_CALLS)
        return streak < first or cost <= _SHARE * (now_ns() - self._compared_ns.get(env_id, 0))
