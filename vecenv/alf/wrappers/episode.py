"""Wrappers above time steps that change the ends of episodes, discounts, rewards, and observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.environment import AlfEnvironment, check_single
from vecenv.alf.base.spec import TensorSpec
from vecenv.alf.base.timestep import TimeStep, check_discount
from vecenv.alf.wrappers.base import AlfEnvironmentBaseWrapper, TruncatingMixin
from vecenv.errors import ConfigError, SpaceError
from vecenv.values.checks import check_whole
from vecenv.wrappers.base import own_generator


class NonEpisodicAgent(AlfEnvironmentBaseWrapper):
    """Replaces the discount of every LAST step, so that each end of an episode is a truncation.

    For agents with purely intrinsic rewards, which should not avoid the end of an episode.
    """

    def __init__(self, env: AlfEnvironment, discount: float = 1.0) -> None:
        """Wrap an environment or a batch; ConfigError if `discount`, that of LAST steps, is not a number."""
        super().__init__(env)
        self._discount = check_discount(discount)

    def _changed(self, time_step: TimeStep) -> TimeStep:
        is_last = time_step.is_last()
        if tensors.is_tensor(is_last):
            return time_step._replace(discount=time_step.discount.masked_fill(is_last, self._discount))
        discount = np.where(is_last, np.float32(self._discount), time_step.discount)
        return time_step._replace(discount=discount.astype(np.float32)[()])


class RandomFirstEpisodeLength(TruncatingMixin, AlfEnvironmentBaseWrapper):
    """Truncates the first episodes at a random length, so that envs with episodes of equal length do not end together.

    Lengths are drawn from the wrapper's own generator, which `seed` seeds.
    """

    state_names: ClassVar[tuple[str, ...]] = ("_cuts_left", "_generator", "_limit")

    def __init__(self, env: AlfEnvironment, random_length_range: int, num_episodes: int = 1) -> None:
        """Wrap a single environment.

        Args:
            random_length_range: largest length; lengths are drawn from 1 to this number.
            num_episodes: number of episodes to truncate, 1 by default.

        Raises:
            ConfigError: env is batched or not an AlfEnvironment, random_length_range is not a whole number of at least
                1, or num_episodes is not a whole number of at least 0.
        """
        super().__init__(env)
        check_single(env, "RandomFirstEpisodeLength")
        self._range = check_whole("random_length_range", random_length_range, 1)
        self._cuts_left = check_whole("num_episodes", num_episodes, 0)
        self._generator = own_generator(None, "first_length")
        self._limit = self._draw()

    def _draw(self) -> int:
        return int(self._generator.integers(1, self._range + 1))

    def seed(self, seed: Any) -> Any:
        """Seed the lengths and the wrapped environment."""
        self._generator = own_generator(seed, "first_length")
        self._limit = self._draw()
        return self._env.seed(seed)

    def _must_truncate(self, num_steps: int) -> bool:
        if self._cuts_left <= 0 or num_steps < self._limit:
            return False
        self._limit = self._draw()  # The next episode has another limit.
        return True

    def _step(self, action: Any) -> TimeStep:
        time_step = super()._step(action)
        if bool(time_step.is_last()):
            self._cuts_left -= 1
        return time_step


class ActionObservationWrapper(AlfEnvironmentBaseWrapper):
    """Adds the previous action to observations: {'observation': the env's own, 'prev_action': the action before it}."""

    def observation_spec(self) -> Any:
        """Return {'observation': specs, 'prev_action': specs}."""
        return {"observation": self._env.observation_spec(), "prev_action": self._env.action_spec()}

    def _changed(self, time_step: TimeStep) -> TimeStep:
        both = {"observation": time_step.observation, "prev_action": time_step.prev_action}
        return time_step._replace(observation=both)


class ScalarRewardWrapper(AlfEnvironmentBaseWrapper):
    """Replaces a vector of rewards by its weighted sum."""

    def __init__(self, env: AlfEnvironment, reward_weights: Sequence[float] | None = None) -> None:
        """Wrap an environment.

        Args:
            reward_weights: n numbers. None (default): 1 for the first reward, 0 for the others.

        Raises:
            SpaceError: rewards are not of shape (n,).
            ConfigError: the number of weights is not n.
        """
        super().__init__(env)
        spec = env.reward_spec()
        if spec.ndim != 1:
            raise SpaceError(f"reward: expected a vector, got shape {spec.shape}", path="reward")
        weights = [1.0] + [0.0] * (spec.shape[0] - 1) if reward_weights is None else list(reward_weights)
        if len(weights) != spec.shape[0]:
            raise ConfigError(f"reward_weights: expected {spec.shape[0]} numbers, got {len(weights)}")
        self._weights = np.array(weights, np.float32)

    def reward_spec(self) -> Any:
        """Return the spec of a float32 scalar."""
        return TensorSpec(())

    def _changed(self, time_step: TimeStep) -> TimeStep:
        if tensors.is_tensor(time_step.reward):
            weights = tensors.to_tensors(self._weights).to(time_step.reward.device)
            return time_step._replace(reward=time_step.reward @ weights)
        return time_step._replace(reward=(time_step.reward @ self._weights).astype(np.float32))


class AtariTerminalOnLifeLossWrapper(AlfEnvironmentBaseWrapper):
    """Sets the discount to 0 in a step that loses a life; the episode continues.

    The number of lives is read from `env_info`, key `lives`, or `ale.lives` in older versions of ALE.
    """

    state_names: ClassVar[tuple[str, ...]] = ("_lives",)

    def __init__(self, env: AlfEnvironment) -> None:
        """Wrap a single environment; ConfigError if it is batched."""
        super().__init__(env)
        check_single(env, "AtariTerminalOnLifeLossWrapper")
        self._lives = 0

    def _changed(self, time_step: TimeStep) -> TimeStep:
        if bool(time_step.is_first()):
            self._lives = _lives(time_step, 0)
            return time_step
        before, self._lives = self._lives, _lives(time_step, self._lives)
        return time_step._replace(discount=np.float32(0)) if self._lives < before else time_step


def _lives(time_step: TimeStep, default: int) -> int:
    info = time_step.env_info
    return int(info.get("lives", info.get("ale.lives", default)))
