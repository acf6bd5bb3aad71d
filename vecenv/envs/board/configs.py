"""Validation of the config of a board game, before its env makes the rules."""

from __future__ import annotations

import numbers
from collections.abc import Collection, Mapping
from typing import Any

from vecenv.envs.board.recording import RENDER_MODES, SAVED_FORMATS
from vecenv.errors import ConfigError

SELF_PLAY, PLAY_WITH_BOT, EVAL = MODES = ("self_play_mode", "play_with_bot_mode", "eval_mode")
CHOICES: dict[str, tuple[Any, ...]] = {
    "battle_mode": MODES,
    "battle_mode_in_simulation_env": MODES,
    "illegal_action": ("random", "raise"),
    "render_mode": (None, *RENDER_MODES),
    "replay_format": SAVED_FORMATS,
}


def check_config(cfg: Mapping[str, Any], bots: Collection[str], game: str) -> None:
    """Check the values of a config that has every key.

    Args:
        cfg: the config, with the keys that `BoardEnv` documents.
        bots: the valid values of `bot_action_type`.
        game: name of the env's class, for messages.

    Raises:
        ConfigError: a value is not valid.
        NotImplementedError: the game does not have the bot.
    """
    for key, allowed in CHOICES.items():
        if cfg[key] not in allowed:
            raise ConfigError(f"{key}: expected one of {allowed}, got {cfg[key]!r}", key=key)
    for key in ("prob_random_agent", "prob_expert_agent", "prob_random_action_in_bot"):
        if not isinstance(cfg[key], numbers.Real) or not 0 <= cfg[key] <= 1:
            raise ConfigError(f"{key}: expected 0 to 1, got {cfg[key]!r}", key=key)
    if cfg["prob_random_agent"] > 0 and cfg["prob_expert_agent"] > 0:
        raise ConfigError("prob_random_agent and prob_expert_agent: only one may be above 0")
    if cfg["bot_action_type"] not in bots:
        raise NotImplementedError(f"{game} has no bot {cfg['bot_action_type']!r}; there are {sorted(bots)}")
