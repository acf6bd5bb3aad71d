"""Candidates: the settings of a vector env that `vecenv.tune` tries; `benchmarks.auto` measures their full grid."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from vecenv.core.advice.sizing import SERIAL, Setting, Workload, round_ns

__all__ = ["Candidate", "calls", "full_grid", "likely_settings", "settings", "spare_settings", "variants"]

#: A setting is left out if the estimated time of a round is this multiple of that with the best setting.
_MOST_TIMES_THE_BEST = 2.0
#: Least number of settings that are tried: the estimate is that of average envs.
_LEAST_SETTINGS = 5
#: The gain that is worth a change of the program, or the cores that worker processes keep busy.
_LEAST_GAIN = 0.015
_COPY, _INFOS = (True, False), ("all", "columns", "done", "none")


@dataclass(frozen=True)
class Candidate:
    """One way to step the envs.

    Attributes:
        setting: workers and threads, or `SERIAL`; None is `gymnasium.vector.SyncVectorEnv`.
        min_count: rows that `recv` waits for; None: `step` waits for all.
        copy, infos: options of `VectorEnv`.
    """

    setting: Setting | None
    min_count: int | None = None
    copy: bool = True
    infos: str = "all"

    def __str__(self) -> str:
        name = "SyncVectorEnv" if self.setting is None else str(self.setting).removeprefix("the ")
        parts = [name, "step" if self.min_count is None else f"recv({self.min_count})"]
        parts += [f"{key}={value!r}" for key, value in self.options.items() if key in ("copy", "infos")]
        return ", ".join(parts)

    @property
    def backend(self) -> str:
        """'process', 'serial', or 'gymnasium' for `SyncVectorEnv`."""
        if self.setting is None:
            return "gymnasium"
        return "process" if self.setting.num_workers else "serial"

    @property
    def options(self) -> dict[str, Any]:
        """Options of `VectorEnv`; those with the default value are left out, but for `num_workers`."""
        found: dict[str, Any] = {}
        if self.setting is None or not self.setting.num_workers:
            found["backend"] = "serial"
        else:
            found["num_workers"] = self.setting.num_workers
            if self.setting.threads_per_worker > 1:
                found["threads_per_worker"] = self.setting.threads_per_worker
            if self.setting.num_spares:
                found["num_spare_envs"] = self.setting.num_spares
        if not self.copy:
            found["copy"] = False
        if self.infos != "all":
            found["infos"] = self.infos
        return found

    @property
    def open_key(self) -> Candidate:
        """The candidate that uses the same vector env by `step`."""
        return dataclasses.replace(self, min_count=None)

    @property
    def handicap(self) -> float:
        """Factor of at most 1 for a measured speed: worker processes and changes of the program must be worth it."""
        costs = (self.min_count is not None, not self.copy, self.infos != "all", self.backend == "process")
        return 1.0 - _LEAST_GAIN * sum(costs)


def settings(num_envs: int, cores: int, *, may_thread: bool = True) -> list[Setting]:
    """Return workers and threads to try; the serial backend is not among them."""
    workers = sorted({1, cores, 2 * cores, 4 * cores, num_envs // 2, num_envs})
    found = [Setting(count) for count in workers if 1 <= count <= num_envs]
    if may_thread:
        counts = sorted({1, cores, 2 * cores, 4 * cores})
        found += [Setting(count, -(-num_envs // count)) for count in counts if count < num_envs]
    return found


def spare_settings(workload: Workload, num_envs: int) -> list[Setting]:
    """Return the settings with spare envs to try: none if no reset is slow, or no episode ended."""
    counts = {num_envs, num_envs // 2} - {0} if workload.slow_share else ()
    return [Setting.with_spares(num_envs, count) for count in sorted(counts)]


def calls(num_envs: int, *, lockstep: bool = False) -> list[int | None]:
    """Return the values of `Candidate.min_count` to try; with `lockstep` only `step`."""
    counts = sorted({num_envs // 2, num_envs // 4} - {0}, reverse=True)
    return [None] if lockstep else [None, *counts]


def likely_settings(
    found: Iterable[Setting], workload: Workload, num_envs: int, cores: int, policy_ns: float = 0.0
) -> list[Setting]:
    """Return the settings that may be the best one, best estimate first; `policy_ns` is the policy's time per round."""

    def estimate(setting: Setting) -> float:
        return policy_ns + round_ns(workload, num_envs, setting, cores)

    ranked = sorted(set(found), key=lambda setting: (estimate(setting), setting.num_workers))
    most = _MOST_TIMES_THE_BEST * estimate(ranked[0])
    return [setting for rank, setting in enumerate(ranked) if rank < _LEAST_SETTINGS or estimate(setting) <= most]


def variants(candidate: Candidate, fixed: Iterable[str] = ()) -> list[Candidate]:
    """Return the candidate with all other values of `copy` and `infos`; options in `fixed` keep their value."""
    copies = _COPY if "copy" not in fixed else (candidate.copy,)
    infos = _INFOS if "infos" not in fixed else (candidate.infos,)
    # the largest differences first: those are opened if there is time for a few only
    found = [dataclasses.replace(candidate, copy=c, infos=i) for i, c in itertools.product(reversed(infos), copies)]
    return [one for one in found if one != candidate]


def full_grid(num_envs: int, cores: int, *, may_thread: bool = True) -> Iterator[Candidate]:
    """Yield every candidate; those that share a vector env follow each other."""
    yield Candidate(None)
    for setting in (SERIAL, *settings(num_envs, cores, may_thread=may_thread)):
        for copy, infos in itertools.product(_COPY, _INFOS):
            for min_count in calls(num_envs, lockstep=setting == SERIAL):
                yield Candidate(setting, min_count, copy, infos)
