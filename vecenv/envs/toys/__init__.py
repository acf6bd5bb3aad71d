"""Toy envs: known loads to measure with, and one env for every way in which an env can fail.

All are `gymnasium.Env`s that need NumPy only, follow their seed, and tell in their
docstring what they do and what that is good for. Those of `faults` are named after the crime:
never build one of them in a process that you need.
"""

from .faults import (
    ExitAtInit,
    ExitAtReset,
    ExitAtStep,
    FaultEnv,
    HangAtInit,
    HangAtReset,
    HangAtStep,
    HangInC,
    HugeInfo,
    LeaksMemory,
    RaiseAtInit,
    RaiseAtReset,
    RaiseAtStep,
    RaiseUnpicklableError,
    RaiseWeirdError,
    SegfaultAtInit,
    SegfaultAtReset,
    SegfaultAtStep,
    SpawnsChild,
    StopSelf,
    UnpicklableError,
    UnpicklableInfo,
    WeirdError,
    WrongDtype,
    WrongShape,
)
from .loads import BusyEnv, FrameEnv, NullEnv, SleepEnv
from .plain import CountEnv, ToyEnv
from .values import AliasedObs, KeepsAction, NoisyGlobal, SpaceEnv

__all__ = [
    "AliasedObs",
    "BusyEnv",
    "CountEnv",
    "ExitAtInit",
    "ExitAtReset",
    "ExitAtStep",
    "FaultEnv",
    "FrameEnv",
    "HangAtInit",
    "HangAtReset",
    "HangAtStep",
    "HangInC",
    "HugeInfo",
    "KeepsAction",
    "LeaksMemory",
    "NoisyGlobal",
    "NullEnv",
    "RaiseAtInit",
    "RaiseAtReset",
    "RaiseAtStep",
    "RaiseUnpicklableError",
    "RaiseWeirdError",
    "SegfaultAtInit",
    "SegfaultAtReset",
    "SegfaultAtStep",
    "SleepEnv",
    "SpaceEnv",
    "SpawnsChild",
    "StopSelf",
    "ToyEnv",
    "UnpicklableError",
    "UnpicklableInfo",
    "WeirdError",
    "WrongDtype",
    "WrongShape",
]
