"""Facts from which a pool is judged beside its statistics, and the names of the settings that verdicts recommend."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..parent.pickled_infos import PickledInfos
from .sizing import Setting, Workload

__all__ = ["PoolFacts", "SettingNames"]


@dataclass(frozen=True)
class SettingNames:
    """The settings that verdicts recommend, as the users of a front end write them.

    Attributes:
        serial, processes: envs in the caller's process, and in workers.
        overlap: stepping the envs that have answered, while others step; '' if the front end cannot, likewise below.
        spare_envs: envs that are reset in advance; "..." stands for their number.
        infos: infos without values that must be pickled.
        views: results without a copy.
        collect: calling the policy in the shards.
    """

    serial: str = "backend='serial'"
    processes: str = "backend='process'"
    overlap: str = "send() and recv(num_envs // 2)"
    spare_envs: str = "num_spare_envs=..."
    infos: str = "infos='columns'"
    views: str = "copy=False"
    collect: str = "vecenv.Collector(envs, make_policy=..., where='shards')"


@dataclass(frozen=True)
class PoolFacts:
    """The facts beside its statistics from which a pool is judged.

    Attributes:
        num_shards: how many shards have these workers, on other machines; 0 if the workers are on this one.
        cores, machine_cores: how many cores the pool may use, and the machine has.
        core_limit: the reason why these differ, '' if they do not.
        workload: the mean cost of a step; None if it is not known.
        compute_threads: by worker, how many of its threads have computed.
        helper_share: the part of the CPU time of workers that was used by threads beyond `threads_per_worker`.
        pickled_infos: counts of the infos that were pickled; None if none can be.
        callers_load: how many threads of other programs compete with the caller for the cores.
        num_spares: how many of the envs are spare.
        resets_in_steps: whether steps that end an episode include the reset (autoreset mode SAME_STEP).
        names: settings of the front end.
    """

    setting: Setting
    cores: int
    machine_cores: int
    core_limit: str = ""
    workload: Workload | None = None
    compute_threads: tuple[int, ...] = ()
    helper_share: float = 0.0
    pickled_infos: PickledInfos | None = None
    resets_in_steps: bool = False
    num_shards: int = 0
    num_spares: int = 0
    callers_load: float = 0.0
    names: SettingNames = field(default_factory=SettingNames)
