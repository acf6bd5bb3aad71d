"""Board games with LightZero's calls; importing this package registers `connect4`, `tictactoe` and `gomoku`."""

from . import bots, env, games, rule_bots
from .bots import *
from .env import *
from .games import *
from .rule_bots import *

__all__ = [*bots.__all__, *env.__all__, *games.__all__, *rule_bots.__all__]
