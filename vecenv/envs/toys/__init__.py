"""Toy envs: loads of known cost for measurements, and one env for each way in which an env can fail.

All are `gymnasium.Env`s that need only NumPy and follow their seed. Envs of `faults` crash, hang or
corrupt data: never build one of them in a process that you need. `FAULTS` has one class of each kind.
"""

from . import faults, plain, values
from .faults import *
from .plain import *
from .values import *

__all__ = [*faults.__all__, *plain.__all__, *values.__all__]
