"""Adapters: give an `AlfEnvironment` Gymnasium's methods, by which workers step envs.

    GymAdapter         the Gymnasium env below an AlfGymWrapper, and its TimeLimit. Its five values are written to the
                       row in C; the parent builds time steps from whole columns
    TimeStepAdapter    any other environment, single or batched. The fields of its time steps are sent as parts of the
                       observation: (observation, step_type, discount, prev_action)

They run in the workers. Workers reset single envs, whose LAST steps are marked as ends. A batch resets its own envs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from vecenv.alf.base.environment import AlfEnvironment, check_environment, specs_of
from vecenv.alf.base.spec import space_of_specs
from vecenv.alf.base.timestep import StepType, TimeStep
from vecenv.envs.adapt import generator_owner, reward_space_of
from vecenv.errors import ConfigError
from vecenv.nested import has_own_structure, map_structure

__all__ = ["EnvDescription", "adapt", "describe"]


def adapt(env: Any) -> GymAdapter | TimeStepAdapter:
    """Return the adapter of an environment.

    Raises:
        ConfigError: `env` is not an AlfEnvironment, or its leaves are tensors (a ValueError).
    """
    check_environment(env, "a constructor's result")
    if env.is_tensor_based:
        raise ConfigError(f"expected an environment of arrays, got {type(env).__name__}, whose leaves are tensors")
    gym_env = None if env.batched else env.as_gym_env()
    return TimeStepAdapter(env) if gym_env is None else GymAdapter(env, gym_env)


class _StatelessAdapter:
    """Base of the adapters. They have no state; the environments and wrappers inside have their own."""

    alf: AlfEnvironment
    state_names: ClassVar[tuple[str, ...]] = ()

    def get_state(self) -> None:
        """Return None: there is no state."""

    def set_state(self, state: None) -> None:
        """Do nothing: there is no state."""

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment; used by the calls of `envs.remote`."""
        return getattr(self.alf, name)


class GymAdapter(_StatelessAdapter):
    """Adapter for an environment that is a Gymnasium env below: the worker calls that env's `step` directly."""

    def __init__(self, env: AlfEnvironment, gym_env: Any) -> None:
        self.alf = env
        self.env = gym_env.gym
        self.discount: float | None = gym_env.discount
        self._gym_env = gym_env
        self.observation_space = self.env.observation_space
        self.action_space = self.env.action_space
        self.reward_space = reward_space_of(self.env)
        self.metadata, self.spec, self.render_mode = env.metadata, self.env.spec, self.env.render_mode

    @property
    def unwrapped(self) -> Any:
        """The innermost Gymnasium env."""
        return self.env.unwrapped

    @property
    def steps_by(self) -> Any:
        """The object that has the same `step`, for `core.host.shortcut`."""
        return self._gym_env.steps_by

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        return self._gym_env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Step the env."""
        return self._gym_env.steps_by.step(action)

    def close(self) -> None:
        """Close the environment."""
        self.alf.close()


class TimeStepAdapter(_StatelessAdapter):
    """Adapter that splits time steps into Gymnasium's five values; `assemble` joins them again in the parent."""

    discount: float | None = None
    spec = render_mode = None

    def __init__(self, env: AlfEnvironment) -> None:
        self.alf = self.env = env
        self.metadata = env.metadata
        self._is_single = not env.batched
        step_type = spaces.Box(0, 2, (), np.int32)
        discount = spaces.Box(-np.inf, np.inf, (), np.float32)
        action_spec = env.action_spec()
        action = space_of_specs(action_spec)
        whole = spaces.Tuple([space_of_specs(env.observation_spec()), step_type, discount, action])
        outer: tuple[int, ...] = ()
        if not self._is_single:
            size = env.batch_size
            whole, action, outer = batch_space(whole, size), batch_space(action, size), (size,)  # type: ignore[assignment]
        self.observation_space, self.action_space = whole, action
        self._repacked = action_spec if has_own_structure(action_spec) else None
        self.reward_space = spaces.Box(-np.inf, np.inf, (*outer, *env.reward_spec().shape), np.float32)

    @property
    def unwrapped(self) -> Any:
        """The environment itself."""
        return self.alf

    def generator_owners(self, first: int) -> list[Any]:
        """Return the env with the generator; see `first_seeds`."""
        return [generator_owner(self.alf)]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Seed the environment unless `seed` is None, and begin an episode."""
        if seed is not None:
            self.alf.seed(seed)
        observation, _, _, _, info = self._take_apart(self.alf.reset())
        return observation, info

    def step(self, action: Any) -> Any:
        """Step the environment. A LAST step of a single env is terminated if its discount is 0, else truncated."""
        if self._repacked is not None:
            action = map_structure(lambda spec, leaf: leaf, self._repacked, action)
        return self._take_apart(self.alf.step(action))

    def _take_apart(self, time_step: TimeStep) -> Any:
        observation, step_type, discount = time_step.observation, time_step.step_type, time_step.discount
        is_end = self._is_single and bool(step_type == StepType.LAST)
        terminated = is_end and bool(discount == 0)
        info = {key: _scalar(value) for key, value in (time_step.env_info or {}).items()}
        whole = (observation, step_type, discount, time_step.prev_action)
        return whole, time_step.reward, terminated, is_end and not terminated, info

    def close(self) -> None:
        """Close the environment."""
        self.alf.close()


def _scalar(value: Any) -> Any:
    """Return an array without axes as a NumPy scalar, which can be sent in shared memory; others unchanged."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


@dataclass(frozen=True)
class EnvDescription:
    """Properties of an environment that the parent needs.

    Attributes:
        discount: the discount of all MID steps, for a `GymAdapter`; None for a `TimeStepAdapter`.
        batch_size: k for a batch of k envs, None for a single env.
        specs: the specs of its time steps, with `env_info`.
        num_tasks, task_names, metadata, can_seed: the properties of these names.
    """

    discount: float | None
    batch_size: int | None
    specs: TimeStep
    num_tasks: int
    task_names: list[str]
    metadata: dict[str, Any]
    can_seed: bool


def describe(adapter: GymAdapter | TimeStepAdapter) -> EnvDescription:
    """Return the description of an adapter's environment; runs in the worker."""
    env = adapter.alf
    return EnvDescription(
        discount=adapter.discount,
        batch_size=env.batch_size if env.batched else None,
        specs=specs_of(env),
        num_tasks=env.num_tasks,
        task_names=env.task_names,
        metadata=env.metadata,
        can_seed=env.can_seed,
    )
