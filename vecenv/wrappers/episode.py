"""Wrappers that change how an episode starts or when it ends."""

from __future__ import annotations

from typing import Any, ClassVar

from vecenv.errors import ConfigError
from vecenv.registry import ENV_WRAPPER_REGISTRY
from vecenv.values.checks import check_whole
from vecenv.wrappers.base import Env, EnvWrapper, own_generator

NOOP, FIRE = 0, 1  # the numbers of these actions in all Atari games that have them


@ENV_WRAPPER_REGISTRY.register("noop_reset")
class NoopResetWrapper(EnvWrapper):
    """After a reset, apply the NOOP action 1 to `noop_max` times; reset again if that ends the game.

    The number is drawn from the wrapper's own generator, which is seeded by the seed of the reset.
    """

    state_names: ClassVar[tuple[str, ...]] = ("generator",)

    def __init__(self, env: Any, noop_max: int = 30) -> None:
        """Wrap; ConfigError if action 0 is not NOOP, or `noop_max` is below 1."""
        super().__init__(env)
        self.noop_max = check_whole("noop_max", noop_max, 1)
        require_meaning(self.env, NOOP, "NOOP")
        self.noop_action = NOOP
        self.generator = own_generator(None, "noop_reset")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.generator = own_generator(seed, "noop_reset")
        obs, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self.generator.integers(1, self.noop_max + 1))):
            obs, _, terminated, truncated, info = self.env.step(self.noop_action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


@ENV_WRAPPER_REGISTRY.register("fire_reset")
class FireResetWrapper(EnvWrapper):
    """After a reset, apply the FIRE action once, which starts the game; if it ends the game, only reset again."""

    def __init__(self, env: Any) -> None:
        """Wrap; ConfigError if action 1 is not FIRE, or there are fewer than three actions."""
        super().__init__(env)
        require_meaning(self.env, FIRE, "FIRE")
        if len(action_meanings(self.env)) < 3:
            raise ConfigError(f"fire_reset: expected at least 3 actions, got {action_meanings(self.env)}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.env.reset(seed=seed, options=options)
        obs, _, terminated, truncated, info = self.env.step(FIRE)
        if terminated or truncated:
            obs, info = self.env.reset(options=options)
        return obs, info


@ENV_WRAPPER_REGISTRY.register("episodic_life")
class EpisodicLifeWrapper(EnvWrapper):
    """A lost life ends the episode (terminated). The next reset continues the game, unless the game is over.

    A reset during a game applies one NOOP step instead, and its seed is not used. Set `was_real_done` to True to
    make the next reset start a new game. Lives are read from `env.unwrapped.ale`, from a `lives` attribute or
    method, or from `info['lives']`.
    """

    state_names: ClassVar[tuple[str, ...]] = ("lives", "was_real_done")

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.lives = 0
        self.was_real_done = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.was_real_done:
            obs, info = self.env.reset(seed=seed, options=options)
        else:
            obs, _, terminated, truncated, info = self.env.step(NOOP)
            if terminated or truncated:
                obs, info = self.env.reset(seed=seed, options=options)
        self.was_real_done = False
        self.lives = self._read_lives(info)
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.was_real_done = bool(terminated or truncated)
        lives = self._read_lives(info)
        # Some games continue for a few frames with 0 lives before they end.
        if 0 < lives < self.lives:
            terminated = True
        self.lives = lives
        return obs, reward, terminated, truncated, info

    def _read_lives(self, info: dict[str, Any]) -> int:
        game: Any = self.env.unwrapped
        source = game.ale.lives if hasattr(game, "ale") else getattr(game, "lives", None)
        if source is None:
            source = info.get("lives", 0)
        return int(source() if callable(source) else source)


@ENV_WRAPPER_REGISTRY.register("time_limit")
class TimeLimitWrapper(EnvWrapper):
    """Truncate an episode at step `max_limit`; info has `time_limit` (bool: reached) and `time_count` (steps)."""

    state_names: ClassVar[tuple[str, ...]] = ("time_count",)

    def __init__(self, env: Any, max_limit: int) -> None:
        """Wrap; ConfigError if `max_limit` is below 1."""
        super().__init__(env)
        self.max_limit = check_whole("max_limit", max_limit, 1)
        self.time_count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time_count = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.time_count += 1
        reached = self.time_count >= self.max_limit
        info = {**info, "time_limit": reached, "time_count": self.time_count}
        return obs, reward, terminated, truncated or reached, info


def action_meanings(env: Env) -> list[str]:
    """Return the names of the env's actions, in order; ConfigError if it has no `get_action_meanings`."""
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    if meanings is None:
        raise ConfigError(f"{env}: expected an env with get_action_meanings(), such as ale-py's")
    return list(meanings())


def require_meaning(env: Env, action: int, meaning: str) -> None:
    """Raise ConfigError unless an action of the env has this meaning, such as 'NOOP'."""
    meanings = action_meanings(env)
    if len(meanings) <= action or meanings[action] != meaning:
        raise ConfigError(f"{env}: expected action {action} to mean {meaning!r}, the actions are {meanings}")
