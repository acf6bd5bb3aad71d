"""The names of DI-engine and LightZero: `from ding.envs import X` becomes `from vecenv.ding import X`."""

from __future__ import annotations

from . import config, managers, registry, tree, wrappers
from .config import *
from .envs import agents, arrays, base, board, buffers
from .envs.agents import *
from .envs.arrays import *
from .envs.base import *
from .envs.board import *
from .envs.buffers import *
from .envs.check import check
from .envs.check.check import *
from .managers import *
from .registry import *
from .tree import *
from .wrappers import *
from .wrappers import ding
from .wrappers.ding import *

_MODULES = (config, agents, arrays, base, board, buffers, check, managers, registry, tree, wrappers, ding)
__all__ = sorted({name for module in _MODULES for name in module.__all__} - {"CheckError"})
