"""AlfEnvironment: the interface of all environments and wrappers in `vecenv.alf`."""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from vecenv.alf.base.spec import TensorSpec, space_of_specs
from vecenv.alf.base.timestep import TimeStep, time_step_spec
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.errors import ConfigError, StateError
from vecenv.saved_state import SavedState, fingerprint
from vecenv.values.own_attributes import get_listed_state, set_listed_state


class AlfEnvironment(abc.ABC):
    """An environment, or a batch of environments, whose `reset` and `step` return a `TimeStep`.

    A subclass defines `_reset`, `_step` and the specs; `reward_spec` only if rewards are not float32 scalars. The step
    after a LAST step starts the next episode and ignores its action. So does a step before the first reset.

    Example:
        >>> from vecenv.alf import load
        >>> with load("CartPole-v1") as env:
        ...     first = env.reset()
        ...     step = env.step(env.action_spec().numpy_sample())
        >>> bool(first.is_first()), int(step.step_type), float(step.discount)
        (True, 1, 1.0)
    """

    state_names: ClassVar[tuple[str, ...]] = ("_current_time_step",)
    """Names of the attributes that last from one step or episode to the next, beside those of base classes. They are
    saved and restored after a crash."""

    batched: bool = False
    """Whether the leaves of time steps and actions have a batch axis."""

    is_tensor_based: bool = False
    """Whether the leaves of time steps are torch tensors."""

    num_tasks: int = 1
    """Number of tasks of the environment."""

    _current_time_step: TimeStep | None = None

    # ---- required in subclasses ------------------------------------------------------------

    @abc.abstractmethod
    def _reset(self) -> TimeStep:
        """Start an episode and return its FIRST time step."""

    @abc.abstractmethod
    def _step(self, action: Any) -> TimeStep:
        """Take an action and return the next time step, or start an episode if the last one is over."""

    @abc.abstractmethod
    def observation_spec(self) -> Any:
        """Return the nest of specs of observations, without a batch axis."""

    @abc.abstractmethod
    def action_spec(self) -> Any:
        """Return the nest of specs of actions, without a batch axis."""

    @abc.abstractmethod
    def env_info_spec(self) -> Any:
        """Return a dict of specs of the keys that `env_info` always has; it may contain more keys."""

    # ---- optional in subclasses ------------------------------------------------------------

    def reward_spec(self) -> Any:
        """Return the spec of rewards: a float32 scalar, unless a subclass changes it."""
        return TensorSpec(())

    def time_step_spec(self) -> TimeStep:
        """Return a TimeStep of specs, without a batch axis; its env_info is () if `env_info_spec` is empty."""
        spec = time_step_spec(self.observation_spec(), self.action_spec(), self.reward_spec())
        return spec._replace(env_info=self.env_info_spec() or ())

    # ---- the interface for callers ---------------------------------------------------------

    def reset(self) -> TimeStep:
        """Start an episode in every env and return the FIRST time step."""
        self._current_time_step = self._reset()
        return self._current_time_step

    def step(self, action: Any) -> TimeStep:
        """Take an action and return the next time step; before the first reset, reset instead.

        Args:
            action: nested like the action spec, with a batch axis in front if the environment is batched.
        """
        if self._current_time_step is None:
            return self.reset()
        self._current_time_step = self._step(action)
        return self._current_time_step

    def current_time_step(self) -> TimeStep | None:
        """Return the last time step, or None before the first reset."""
        return self._current_time_step

    @property
    def batch_size(self) -> int:
        """Length of the batch axis; 1 for a single env, whose leaves have no batch axis.

        Raises:
            StateError: the environment is batched but does not define `batch_size` (also a RuntimeError).
        """
        if self.batched:
            raise StateError(f"{type(self).__name__} is batched and must define batch_size")
        return 1

    @property
    def task_names(self) -> list[str]:
        """Names of the tasks."""
        return [type(self).__name__]

    @property
    def can_seed(self) -> bool:
        """Whether the environment implements `seed`."""
        return type(self).seed is not AlfEnvironment.seed

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the Gymnasium env, {} without one."""
        return {}

    def get_info(self) -> Any:
        """Return the info of the last step, or None before the first reset."""
        time_step = self.current_time_step()
        return None if time_step is None else time_step.env_info

    def seed(self, seed: Any) -> Any:
        """Set the seed for the next reset; NotImplementedError if the environment cannot be seeded."""
        raise NotImplementedError(f"{type(self).__name__} has no seed")

    def render(self, mode: str = "rgb_array") -> Any:
        """Render the current state; `mode` is one of Gymnasium's. NotImplementedError if it does not render."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def sync_progress(self) -> None:  # noqa: B027  # most environments ignore it
        """Read the training progress, in environments that depend on it; does nothing by default."""

    def close(self) -> None:  # noqa: B027  # optional
        """Release the environment's resources; may be called again."""

    def get_state(self) -> dict[str, Any]:
        """Return a picklable copy of the attributes that `state_names` of its classes list, without inner state."""
        return get_listed_state(self)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        set_listed_state(self, state)

    # ---- saving --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the environment, from which another one continues; see `save`.

        Returns:
            A dict of plain values, for `torch.save({"model": model.state_dict(), "env": env.state_dict()}, path)`.

        Raises:
            StateError: as for `save`.
        """
        return self._save_state("state_dict").as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called. With workers, all envs are built again.

        Args:
            state: the result of `state_dict` of an environment that was built in the same way.

        Raises:
            ConfigError: the state is damaged, or it does not fit; nothing was changed if it was saved by another class.
            Exception: as for the constructor; the environment must be closed then.
        """
        saved = SavedState.read(state)
        self._check_state(saved)
        self._load_state(saved)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state into one file, from which another environment continues with the same results.

        The state contains the envs and their random generators, seeds that are still to be given, and the current time
        step. The file replaces an older one when it is complete. It contains pickles, so load only files that you
        trust.

        Raises:
            StateError: a call is under way. Without workers: the state of an env within its episode is not known.
            ClosedError: the environment is closed.
            OSError: the file cannot be written.
        """
        self._save_state("save").write(path)

    def _save_state(self, what: str) -> SavedState:
        """Return the state; `what` is the name of the calling method, for errors."""
        snapshot = SNAPSHOTTER.capture(self, within_episode=True)
        if snapshot is None or not snapshot.is_complete:
            raise StateError(
                f"{what}: the state of {type(self).__name__} within an episode is not known. Call "
                "vecenv.register_pickled_state for the class of its env, or use ParallelAlfEnvironment with workers"
            )
        spaces = self._state_spaces()
        return SavedState.of(
            snapshot.state,
            kind=type(self).__name__,
            num_envs=self.batch_size,
            autoreset_mode="NEXT_STEP",
            env=self.task_names[0],
            observation_space=str(spaces[0]),
            action_space=str(spaces[1]),
            spaces=fingerprint(*spaces),
            implementation="python",
            num_repeated=0,
        )

    def _check_state(self, saved: SavedState) -> None:
        """Raise ConfigError if the header of a state does not fit; no pickle is run."""
        saved.check(kind=type(self).__name__, num_envs=self.batch_size)
        saved.check_spaces(*self._state_spaces(), "python")

    def _load_state(self, saved: SavedState) -> None:
        """Continue with a state that was checked."""
        SNAPSHOTTER.restore(self, saved.value)

    def _state_spaces(self) -> tuple[Any, Any]:
        return space_of_specs(self.observation_spec()), space_of_specs(self.action_spec())

    def has_own_methods(self) -> bool:
        """Return whether the object has a `step` or `reset` that is not its class's."""
        return not vars(self).keys().isdisjoint(("step", "reset", "_step", "_reset"))

    def as_gym_env(self) -> Any:
        """Return an object with Gymnasium's methods that plays the same episodes, or None (default).

        Workers step this object without building time steps. Its `reset(seed=)` returns (obs, info), its `step` five
        values; the discount is 0 if terminated. A wrapper that changes time steps must not return the object of the
        environment that it wraps.
        """
        return None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FixedSpecs:
    """Returns the specs of the time step in `_specs`; a class names it before `AlfEnvironment` in its list of bases."""

    _specs: TimeStep

    def observation_spec(self) -> Any:
        return self._specs.observation

    def action_spec(self) -> Any:
        return self._specs.prev_action

    def reward_spec(self) -> Any:
        return self._specs.reward

    def env_info_spec(self) -> Any:
        return self._specs.env_info


def check_environment(env: Any, name: str) -> None:
    """Raise ConfigError, with a message that begins with `name`, if `env` is not an AlfEnvironment."""
    if not isinstance(env, AlfEnvironment):
        raise ConfigError(f"{name}: expected an AlfEnvironment, got {env!r}; AlfGymWrapper makes one of an env")


def check_single(env: AlfEnvironment, name: str) -> None:
    """Raise ConfigError, with a message that begins with `name`, if the environment is batched."""
    if env.batched:
        raise ConfigError(f"{name}: expected one env, got a batch; wrap each env instead")


def specs_of(env: AlfEnvironment) -> TimeStep:
    """Return an environment's `time_step_spec`, with `env_info_spec` as its env_info, which it may lack."""
    return env.time_step_spec()._replace(env_info=env.env_info_spec())
