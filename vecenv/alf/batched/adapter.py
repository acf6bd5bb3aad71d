"""Adapters: give an `AlfEnvironment` Gymnasium's methods, by which workers step envs.

    GymAdapter         the Gymnasium env below an AlfGymWrapper, and its TimeLimit. Its five values are written to the
                       row in C; the parent builds time steps from whole columns. If a `step` or `reset` is set on one
                       of these environments later, it is called, and its time steps are taken apart
    TimeStepAdapter    any other environment, single or batched. The fields of its time steps are sent as parts of the
                       observation: (observation, step_type, discount, prev_action)

They run in the workers. Workers reset single envs, whose LAST steps are marked as ends. A batch resets its own envs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from vecenv.alf.base.environment import AlfEnvironment, check_environment, specs_of
from vecenv.alf.base.spec import space_of_specs, zeros_of
from vecenv.alf.base.steps import scalar_of
from vecenv.alf.base.timestep import StepType, TimeStep
from vecenv.envs.adapt import generator_owner, reward_space_of
from vecenv.envs.spaces import map_by_space
from vecenv.errors import ConfigError, StateError
from vecenv.values.nested import has_own_structure, map_structure


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


class _Adapter:
    """Base of the adapters. Their only state is that of the environments that they skip; inner ones have their own.

    Attributes:
        skipped_layers: the environments above the one in `env`, outermost first; `core.host.shortcut` checks them
            before each step.
    """

    alf: AlfEnvironment
    skipped_layers: Sequence[AlfEnvironment] = ()

    def get_state(self) -> list[Any]:
        """Return the state of each skipped layer."""
        return [layer.get_state() for layer in self.skipped_layers]

    def set_state(self, state: list[Any]) -> None:
        """Restore a state that `get_state` returned."""
        for layer, own in zip(self.skipped_layers, state, strict=True):
            layer.set_state(own)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment; used by the calls of `envs.remote`."""
        return getattr(self.alf, name)

    def close(self) -> None:
        """Close the environment."""
        self.alf.close()


class GymAdapter(_Adapter):
    """Adapter for an environment that is a Gymnasium env below: the worker calls that env's `step` directly.

    Attributes:
        steps_by: the object that has the same `step`, for `core.host.shortcut`.
    """

    def __init__(self, env: AlfEnvironment, gym_env: Any) -> None:
        self.alf = env
        self.env = gym_env.gym
        self.discount: float | None = gym_env.discount
        self._gym_env = gym_env
        self.skipped_layers = gym_env.layers
        self.observation_space = self.env.observation_space
        self.action_space = self.env.action_space
        self.reward_space = reward_space_of(self.env)
        self.metadata, self.spec, self.render_mode = env.metadata, self.env.spec, self.env.render_mode
        self.unwrapped = self.env.unwrapped
        self.steps_by = gym_env.steps_by

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        if not self._has_replaced_methods():
            return self._gym_env.reset(seed=seed, options=options)
        if seed is not None:
            self.alf.seed(seed)
        observation, *_, info = self._take_apart(self.alf.reset(), {int(StepType.FIRST): (1.0,)})
        return observation, info

    def step(self, action: Any) -> Any:
        """Step the env.

        Raises:
            StateError: a method that was set on an environment has returned a time step that no Gymnasium env has.
        """
        if not self._has_replaced_methods():
            return self.steps_by.step(action)
        for layer in self.skipped_layers:  # an environment that was not reset itself would begin an episode
            if layer.current_time_step() is None:
                layer._current_time_step = zeros_of(specs_of(layer))
        return self._take_apart(
            self.alf.step(action), {int(StepType.MID): (self.discount,), int(StepType.LAST): (0.0, 1.0)}
        )

    def _has_replaced_methods(self) -> bool:
        return any(layer.has_own_methods() for layer in self.skipped_layers)

    def _take_apart(self, time_step: TimeStep, discounts: dict[int, tuple[Any, ...]]) -> Any:
        """Return the five values of a time step; `discounts` are those that a Gymnasium env can have, by step type."""
        step_type, discount = int(time_step.step_type), time_step.discount
        if discount not in np.array(discounts.get(step_type, ()), np.float32):
            raise StateError(
                f"a step or reset that was set on {type(self.alf).__name__} has returned a time step of type "
                f"{step_type} with discount {discount}, which no Gymnasium env has; set it before the constructor "
                "returns"
            )
        is_end = step_type == StepType.LAST
        observation = map_by_space(
            lambda space, part: np.asarray(part, space.dtype), self.observation_space, time_step.observation
        )
        info = {key: scalar_of(value) for key, value in (time_step.env_info or {}).items()}
        return observation, time_step.reward, is_end and discount == 0, is_end and discount != 0, info


class TimeStepAdapter(_Adapter):
    """Adapter that splits time steps into Gymnasium's five values; `assemble` joins them again in the parent."""

    discount: float | None = None
    spec = render_mode = None

    def __init__(self, env: AlfEnvironment) -> None:
        self.alf = self.env = self.unwrapped = env
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
        info = {key: scalar_of(value) for key, value in (time_step.env_info or {}).items()}
        whole = (observation, step_type, discount, time_step.prev_action)
        return whole, time_step.reward, terminated, is_end and not terminated, info


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
