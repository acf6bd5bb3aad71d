"""Carriers: an `AlfEnvironment` as a worker steps it, which knows Gymnasium's calls only.

    GymAdapter   the env under an AlfGymWrapper, and a TimeLimit around that: its five values
                   are the row, stepped in C; the parent makes time steps of whole columns
    TimeStepAdapter    any other environment, single or batched: fields of its time steps travel as
                   parts of the observation, (observation, step_type, discount, prev_action)

Single envs are reset by the worker, as LAST steps are marked as ends; a batch resets its own.
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
from vecenv.envs.adapt import reward_space_of
from vecenv.errors import ConfigError
from vecenv.nested import has_own_structure, map_structure

__all__ = ["EnvDescription", "adapt", "describe"]


def adapt(env: Any) -> GymAdapter | TimeStepAdapter:
    """Give an environment the calls of a pool.

    Raises:
        ConfigError: no AlfEnvironment, or one of tensors (a ValueError).
    """
    check_environment(env, "a constructor's result")
    if env.is_tensor_based:
        raise ConfigError(f"expected an environment of arrays, got {type(env).__name__}, whose leaves are tensors")
    gym_env = None if env.batched else env.as_gym_env()
    return TimeStepAdapter(env) if gym_env is None else GymAdapter(env, gym_env)


class _StatelessAdapter:
    """Tells the engine that nothing of a carrier lasts; the layers inside have states of their own."""

    alf: AlfEnvironment
    state_names: ClassVar[tuple[str, ...]] = ()

    def get_state(self) -> None:
        """Nothing."""

    def set_state(self, state: None) -> None:
        """Nothing."""

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment, for the calls of `envs.remote`."""
        return getattr(self.alf, name)


class GymAdapter(_StatelessAdapter):
    """The env itself; nothing stands between the worker and its `step`."""

    def __init__(self, env: AlfEnvironment, gym_env: Any) -> None:
        self.alf = env
        self.env = gym_env.gym
        self.discount: float | None = gym_env.discount
        self.step, self.reset, self.close = gym_env.step, gym_env.reset, env.close
        self.observation_space = self.env.observation_space
        self.action_space = self.env.action_space
        self.reward_space = reward_space_of(self.env)
        self.metadata, self.spec, self.render_mode = env.metadata, self.env.spec, self.env.render_mode

    @property
    def unwrapped(self) -> Any:
        """The innermost env."""
        return self.env.unwrapped


class TimeStepAdapter(_StatelessAdapter):
    """An environment whose time steps are taken apart; `parent` puts them together again."""

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

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Seed if asked, and begin an episode."""
        if seed is not None:
            self.alf.seed(seed)
        observation, _, _, _, info = self._take_apart(self.alf.reset())
        return observation, info

    def step(self, action: Any) -> Any:
        """Step; a single env's LAST step is an end, terminated where its discount is 0."""
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
    """Arrays of no axes as numbers: those fit the columns of infos."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


@dataclass(frozen=True)
class EnvDescription:
    """What the parent wants to know of an environment.

    Attributes:
        discount: of MID steps if it is the same for all, as of a `GymAdapter`; else None.
        batch_size: None for a single env.
    """

    discount: float | None
    batch_size: int | None
    specs: TimeStep
    num_tasks: int
    task_names: list[str]
    metadata: dict[str, Any]
    can_seed: bool


def describe(adapter: GymAdapter | TimeStepAdapter) -> EnvDescription:
    """Describe the environment, where it lives."""
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
