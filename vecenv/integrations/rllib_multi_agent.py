"""RLlib's env runner for multi-agent envs, with the envs in vecenv's worker processes.

    config.env_runners(env_runner_cls=MultiAgentRunner, num_envs_per_env_runner=16)

RLlib itself steps the envs of a runner one after the other. Observations, rewards and ends are dicts by agent, whose
agents change from step to step, so each worker pickles the answer of a step as one object.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from unittest import mock

import gymnasium

from ..envs.spaces import ObjectSpace
from ..errors import converted, require
from ..vector.env import VectorEnv, check_options
from ..vector.options import move_options
from .rllib import assigned_workers

__all__ = ["MultiAgentRunner", "ParallelMultiAgentEnv", "multi_agent_runner"]

_runner_module: Any = require("ray.rllib.env.multi_agent_env_runner", "rllib")
_sync_module: Any = require("ray.rllib.env.vector.sync_vector_multi_agent_env", "rllib")

_ALL = "__all__"


class _AnswerEnv(gymnasium.Env[Any, Any]):
    """A multi-agent env whose observation is the whole answer of a step: five dicts by agent."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self._env = env_fn()
        self.observation_space = ObjectSpace(None)
        self.action_space = ObjectSpace(None)

    @property
    def unwrapped(self) -> Any:
        return self._env.unwrapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, infos = self._env.reset(seed=seed, options=options)
        agents = self.unwrapped.possible_agents
        ends = dict.fromkeys([*agents, _ALL], False)
        return (obs, dict.fromkeys(agents, 0.0), ends, dict(ends), infos), {}

    def step(self, action: Any) -> Any:
        """Step all agents; the env has ended when "__all__" has."""
        answer = self._env.step(action)
        terminated, truncated = answer[2].get(_ALL, False), answer[3].get(_ALL, False)
        return tuple(answer), 0.0, bool(terminated), bool(truncated), {}

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


class ParallelMultiAgentEnv(_sync_module.SyncVectorMultiAgentEnv):
    """N multi-agent envs in worker processes; results are those of RLlib's `SyncVectorMultiAgentEnv`.

    Args:
        env_fn: builds one env, a `MultiAgentEnv`; it is pickled.
        num_envs: the number of envs.
        options: options of `VectorEnv`, such as `num_workers`.

    Attributes:
        envs: one env of this process, N times; RLlib reads its spaces and agents, and never steps it.
        vector_env: the `VectorEnv` that steps the envs. Its observations are whole answers.
    """

    def __init__(self, env_fn: Callable[[], Any], num_envs: int, **options: Any) -> None:
        env = env_fn()
        super().__init__([lambda: env])
        self.envs = [env] * num_envs
        self.num_envs = num_envs
        env_fns = [functools.partial(_AnswerEnv, env_fn)] * num_envs
        self.vector_env = VectorEnv(env_fns, infos="none", **options)

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all envs.

        Args:
            seed: an int s gives env i the seed s + i; or one per env.
            options: passed to each env.

        Returns:
            Observations and infos: lists of N dicts by agent.
        """
        return converted(_first_of, self.vector_env.reset, seed=seed, options=options)

    def step(self, actions: Sequence[Mapping[Any, Any]]) -> Any:
        """Step all envs; an env whose episode has ended is reset instead, with rewards 0.0.

        Args:
            actions: N dicts by agent.

        Returns:
            Observations, rewards, terminations, truncations and infos: lists of N dicts by agent. The dicts of ends
            contain "__all__".
        """
        return converted(_by_part, self.vector_env.step, tuple(actions))

    def render(self) -> tuple[Any, ...]:
        return self.vector_env.call("render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute; return N values."""
        return self.vector_env.call(name, *args, **kwargs)

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers, and close the env of this process."""
        self.envs[0].close()
        self.vector_env.close()


def _first_of(result: Any) -> tuple[list[Any], list[Any]]:
    """Return observations and infos of a reset; {} for an env that raised before its first answer."""
    answers = [({},) * 5 if answer is None else answer for answer in result[0]]
    return [answer[0] for answer in answers], [answer[4] for answer in answers]


def _by_part(result: Any) -> tuple[list[Any], ...]:
    """Return the five lists of a step. An episode that the engine has truncated repeats the last answer, as its end."""
    answers, _, _, truncated, _ = result
    return tuple(map(list, zip(*(_end(answer) if cut else answer for answer, cut in zip(answers, truncated.tolist())))))


def _end(answer: Any) -> Any:
    obs, rewards, terminated, truncated, infos = answer
    if terminated.get(_ALL, False) or truncated.get(_ALL, False):
        return answer
    no, yes = dict.fromkeys(terminated, False), dict.fromkeys(truncated, True)
    return obs, dict.fromkeys(rewards, 0.0), no, {**yes, _ALL: True}, infos


class MultiAgentRunner(_runner_module.MultiAgentEnvRunner):
    """An env runner of RLlib for multi-agent envs in worker processes.

    Samples equal those of RLlib's own runner, except for random actions (`random_actions=True`). By default a runner
    starts a worker process for each CPU that Ray has assigned to it. `multi_agent_runner` sets other options.

    Attributes:
        options: options of `VectorEnv`.
    """

    options: ClassVar[Mapping[str, Any]] = {}

    def make_env(self) -> None:
        """Make the vector env, as RLlib does it, which has no other hook for the kind of vector env."""
        with mock.patch.object(_runner_module, "make_vec", self._make_vec):
            super().make_env()

    def _make_vec(self, name: str, num_envs: int, vectorization_mode: Any) -> ParallelMultiAgentEnv:
        options = {"num_workers": assigned_workers(), **self.options}
        return ParallelMultiAgentEnv(functools.partial(gymnasium.make, name), num_envs, **options)


def multi_agent_runner(**options: Any) -> type[MultiAgentRunner]:
    """Return a `MultiAgentRunner` with options of `VectorEnv`, such as `num_workers` or `timeouts`.

    Raises:
        ConfigError: an unknown option.
    """
    check_options("multi_agent_runner", options)
    return type("MultiAgentRunner", (MultiAgentRunner,), {"options": move_options(options)})
