"""Wrappers above time steps that make batches of single envs, and tensors of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.actions import rows_of
from vecenv.alf.base.environment import AlfEnvironment, FixedSpecs, check_environment, specs_of
from vecenv.alf.base.infos import stack_infos
from vecenv.alf.base.known_infos import KnownInfos
from vecenv.alf.base.timestep import TimeStep
from vecenv.alf.wrappers.base import AlfEnvironmentBaseWrapper, forwarded
from vecenv.core.host.host import close_all
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.errors import ConfigError, StateError
from vecenv.values.nested import map_structure


class TensorWrapper(AlfEnvironmentBaseWrapper):
    """Converts the time steps of a batched environment to tensors, and accepts tensors as actions."""

    is_tensor_based = True

    def __init__(self, env: AlfEnvironment) -> None:
        """Wrap a batch; ConfigError (an AssertionError too) if it is none, DependencyError without torch."""
        super().__init__(env)
        if not env.batched:
            raise ConfigError("TensorWrapper: expected a batched environment; BatchedTensorWrapper takes a single one")
        tensors.torch()

    def _step(self, action: Any) -> TimeStep:
        return super()._step(tensors.to_arrays(action))

    def _changed(self, time_step: TimeStep) -> TimeStep:
        step: TimeStep = tensors.to_tensors(time_step)
        return step


class BatchedTensorWrapper(AlfEnvironmentBaseWrapper):
    """A single environment of arrays as a batch of one, with tensors."""

    state_names: ClassVar[tuple[str, ...]] = ("_stack",)
    batched = is_tensor_based = True
    batch_size = 1

    def __init__(self, env: AlfEnvironment) -> None:
        """Wrap a single env; ConfigError (an AssertionError too) if it is batched, DependencyError without torch."""
        super().__init__(env)
        if env.batched:
            raise ConfigError("BatchedTensorWrapper: expected a single env; TensorWrapper takes a batched one")
        tensors.torch()
        self._stack = StepStack(env.env_info_spec(), 1)

    def _step(self, action: Any) -> TimeStep:
        return super()._step(rows_of(self.action_spec(), action, 1)[0])

    def _changed(self, time_step: TimeStep) -> TimeStep:
        step: TimeStep = tensors.to_tensors(self._stack.batch([time_step]))
        return step


def _first_env(batch: Any) -> AlfEnvironment:
    env: AlfEnvironment = batch._envs[0]
    return env


class SeveralEnvs(FixedSpecs, AlfEnvironment):
    """Base of the environments that consist of several single envs with equal specs.

    Args:
        envs: at least one environment.
        names: the name of each env, for the ConfigError if specs differ or an env is not an AlfEnvironment.
    """

    def __init__(self, envs: Sequence[AlfEnvironment], names: Sequence[str]) -> None:
        self._envs = list(envs)
        for name, env in zip(names, envs):
            check_environment(env, name)
        self._specs = specs_of(envs[0])
        for name, env in zip(names, envs):
            if specs_of(env) != self._specs:
                raise ConfigError(f"{name}: its specs differ from those of {names[0]}")

    can_seed = forwarded("can_seed", _first_env)
    metadata = forwarded("metadata", _first_env)

    def get_state(self) -> dict[str, Any]:
        """Return the own state, and that of each env, within its episode if that is known; see `find_state_gap`."""
        states = []
        for env in self._envs:
            snapshot = SNAPSHOTTER.capture(env, within_episode=True) or SNAPSHOTTER.capture(env)
            if snapshot is None:
                raise StateError(f"{type(env).__name__}: unknown state; define get_state() and set_state(state)")
            states.append(snapshot.state)
        return {**super().get_state(), "envs": states}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        for env, own in zip(self._envs, state["envs"], strict=True):
            SNAPSHOTTER.restore(env, own)

    def find_state_gap(self) -> str | None:
        """Return why `get_state` is not exact, or None: some of the envs may always be within an episode."""
        for env in self._envs:
            if SNAPSHOTTER.capture(env, within_episode=True) is None:
                return f"the state of {type(env).__name__} within an episode is not known"
        return None

    def close(self) -> None:
        """Close every env, even if closing another one raises."""
        close_all(env.close for env in self._envs)


class BatchEnvironmentWrapper(SeveralEnvs):
    """Several single envs as a batch of arrays; they are stepped one after the other in the calling thread."""

    state_names: ClassVar[tuple[str, ...]] = ("_stack",)
    batched = True

    def __init__(self, envs: Sequence[AlfEnvironment]) -> None:
        """Build a batch of these envs.

        Raises:
            ConfigError: there are no envs, an env is batched or tensor based, or specs differ (a ValueError).
        """
        if not isinstance(envs, Sequence) or not envs:
            raise ConfigError(f"envs: expected a list of at least one env, got {envs!r}", key="envs")
        super().__init__(envs, [f"envs[{index}]" for index in range(len(envs))])
        if any(env.batched or env.is_tensor_based for env in envs):
            raise ConfigError("envs: expected single envs of arrays", key="envs")
        self._stack = StepStack(self._specs.env_info, len(envs))

    @property
    def batch_size(self) -> int:
        return len(self._envs)

    num_tasks = forwarded("num_tasks", _first_env)
    task_names = forwarded("task_names", _first_env)

    def seed(self, seed: int) -> None:
        """Seed env i with `seed + i`."""
        for index, env in enumerate(self._envs):
            env.seed(seed + index)

    def render(self, mode: str = "rgb_array") -> Any:
        """Render the first env."""
        return self._envs[0].render(mode)

    def _reset(self) -> TimeStep:
        return self._stack.batch([env.reset() for env in self._envs])

    def _step(self, action: Any) -> TimeStep:
        rows = rows_of(self.action_spec(), action, len(self._envs))
        return self._stack.batch([env.step(row) for env, row in zip(self._envs, rows)])


class StepStack:
    """Makes batches of the time steps of `count` envs; infos keep the numeric keys that earlier ones had."""

    def __init__(self, env_info_spec: Any, count: int) -> None:
        self._known_infos = KnownInfos(env_info_spec, (count,))

    def batch(self, time_steps: Sequence[TimeStep]) -> TimeStep:
        """Return the next time step of each env as one batch."""
        batch = stack(time_steps)
        return batch._replace(env_info=self._known_infos.complete(batch.env_info))


def stack(time_steps: Sequence[TimeStep]) -> TimeStep:
    """Return the time steps of several envs as one batch; `stack_infos` joins their infos."""
    env_info = stack_infos([step.env_info for step in time_steps])
    rest = [step._replace(env_info=()) for step in time_steps]
    batch: TimeStep = map_structure(lambda *leaves: np.stack(leaves), *rest)
    return batch._replace(env_info=env_info)
