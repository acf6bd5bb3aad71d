"""AlfEnvironment: the interface that everything in `vecenv.alf` has and takes."""

from __future__ import annotations

import abc
import copy
from typing import Any, ClassVar

from vecenv.alf.base.spec import TensorSpec
from vecenv.alf.base.timestep import TimeStep, time_step_spec
from vecenv.errors import ConfigError, StateError

__all__ = ["AlfEnvironment"]


class AlfEnvironment(abc.ABC):
    """An environment, or a batch of them, whose `reset` and `step` return a `TimeStep`.

    A subclass gives `_reset`, `_step` and the specs, that of rewards only if they are not numbers.
    The step after a LAST one starts the next episode and ignores its action; so does a step before
    any reset.

    Example:
        >>> from vecenv.alf import load
        >>> with load("CartPole-v1") as env:
        ...     first = env.reset()
        ...     step = env.step(env.action_spec().numpy_sample())
        >>> bool(first.is_first()), int(step.step_type), float(step.discount)
        (True, 1, 1.0)
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    """Attributes that last from one episode to the next, so that a crash can be made good."""

    _current_time_step: TimeStep | None = None

    # ---- what subclasses give ------------------------------------------------------------

    @abc.abstractmethod
    def _reset(self) -> TimeStep:
        """Start an episode."""

    @abc.abstractmethod
    def _step(self, action: Any) -> TimeStep:
        """Take an action, or start an episode if the last one is over."""

    @abc.abstractmethod
    def observation_spec(self) -> Any:
        """Return the nest of specs of observations, without batch axis."""

    @abc.abstractmethod
    def action_spec(self) -> Any:
        """Return the nest of specs of actions."""

    @abc.abstractmethod
    def env_info_spec(self) -> Any:
        """Return the specs of what `env_info` always has; envs may tell more."""

    # ---- what they may give ----------------------------------------------------------------

    def reward_spec(self) -> Any:
        """Return the spec of rewards: here a float32 number."""
        return TensorSpec(())

    def time_step_spec(self) -> TimeStep:
        """Return the specs of a time step; its env_info is () if that is always empty."""
        spec = time_step_spec(self.observation_spec(), self.action_spec(), self.reward_spec())
        return spec._replace(env_info=self.env_info_spec() or ())

    # ---- what everybody calls --------------------------------------------------------------

    def reset(self) -> TimeStep:
        """Start an episode and return its FIRST time step."""
        self._current_time_step = self._reset()
        return self._current_time_step

    def step(self, action: Any) -> TimeStep:
        """Take an action and return the time step that follows."""
        if self._current_time_step is None:
            return self.reset()
        self._current_time_step = self._step(action)
        return self._current_time_step

    def current_time_step(self) -> TimeStep | None:
        """Return the last time step, None before the first."""
        return self._current_time_step

    @property
    def batched(self) -> bool:
        """Whether leaves have a batch axis."""
        return False

    @property
    def batch_size(self) -> int:
        """Length of the batch axis; 1 for a single env, whose leaves have none.

        Raises:
            StateError: the environment is batched but does not say how many (also a RuntimeError).
        """
        if self.batched:
            raise StateError(f"{type(self).__name__} is batched and must say its batch_size")
        return 1

    @property
    def is_tensor_based(self) -> bool:
        """Whether leaves are torch tensors."""
        return False

    @property
    def num_tasks(self) -> int:
        """How many tasks the environment has."""
        return 1

    @property
    def task_names(self) -> list[str]:
        """Names of the tasks."""
        return [type(self).__name__]

    @property
    def can_seed(self) -> bool:
        """Whether `seed` does something."""
        return type(self).seed is not AlfEnvironment.seed

    @property
    def metadata(self) -> dict[str, Any]:
        """As a Gymnasium env has it."""
        return {}

    def get_info(self) -> Any:
        """Return the info of the last step, None before the first."""
        time_step = self.current_time_step()
        return None if time_step is None else time_step.env_info

    def seed(self, seed: Any) -> Any:
        """Seed the episodes from the next reset on."""
        raise NotImplementedError(f"{type(self).__name__} has no seed")

    def render(self, mode: str = "rgb_array") -> Any:
        """Render the current state."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def sync_progress(self) -> None:  # noqa: B027  # most have nothing to do
        """Take over the training progress, for environments that change with it; does nothing here."""

    def close(self) -> None:  # noqa: B027  # nor to close
        """Let go of what the environment holds; may be called again."""

    def get_state(self) -> dict[str, Any]:
        """Give a picklable copy of what lasts longer than an episode; what is inside has its own."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self.state_names}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take back a state of `get_state`."""
        for name in self.state_names:
            setattr(self, name, copy.deepcopy(state[name]))

    def as_gym_env(self) -> Any:
        """Return an object with Gymnasium's calls that plays the same episodes, None if there is none.

        With one, a worker steps it without building time steps: `reset(seed=)` gives (obs, info),
        `step` five values, and the discount is 0 where terminated. A subclass that changes time
        steps must not pass on the one of what it wraps.
        """
        return None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def check_environment(env: Any, name: str) -> None:
    """Raise ConfigError, which begins with this name, for what is no AlfEnvironment."""
    if not isinstance(env, AlfEnvironment):
        raise ConfigError(f"{name}: expected an AlfEnvironment, got {env!r}; AlfGymWrapper makes one of an env")


def check_single(env: AlfEnvironment, name: str) -> None:
    """Raise ConfigError, which begins with this name, for a batch."""
    if env.batched:
        raise ConfigError(f"{name}: expected one env, got a batch; wrap each env instead")


def specs_of(env: AlfEnvironment) -> TimeStep:
    """Return the specs of an environment's time steps, infos included: its own `time_step_spec` may lack them."""
    return env.time_step_spec()._replace(env_info=env.env_info_spec())
