"""Batched envs: a `gymnasium.vector.VectorEnv` of k envs becomes one env of the engine; each row contains all k.

    inner step   obs (k, *S), rewards (k, *K), terminations (k,), truncations (k,), infos
                      |               |              |    |                            |
    row          obs leaves           reward         two more leaves, bool (k,)        info

So the engine steps k envs by one call and copies each array of the inner vector env into the row once. The inner
vector env manages the episodes of its envs; for the engine the episode of a batched env never ends. `vector/batched.py`
converts the rows back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from ..gymnasium_api.first_seeds import is_seeded_by
from ..gymnasium_api.reward_spaces import reward_shape_of
from ..values.checks import describe_wrong_env_fn, is_pettingzoo_env
from ..values.nested import is_sequence, map_structure

__all__ = [
    "BatchedEnv",
    "VectorEnvDescription",
    "adapt_batched",
    "add_infos",
    "read_drawn_seeds",
    "describe_vector_env",
]


@dataclass(frozen=True)
class VectorEnvDescription:
    """The properties of a vector env in a worker that front ends need."""

    num_envs: int
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    autoreset_mode: Any = None
    reward_space: Any = None


def adapt_batched(env: Any) -> BatchedEnv:
    """Adapt a vector env to the calls of one env; TypeError if it is no `gymnasium.vector.VectorEnv`."""
    if not isinstance(env, gymnasium.vector.VectorEnv):
        got = f"got {type(env).__name__}; vecenv.VectorEnv hosts single envs"
        if is_pettingzoo_env(env):
            got = describe_wrong_env_fn(env)
        raise TypeError(f"expected a gymnasium.vector.VectorEnv, {got}")
    return BatchedEnv(env)


class BatchedEnv(gymnasium.Env[Any, Any]):
    """A vector env of k envs behind the calls of one env.

    Observations are (obs, terminations, truncations), rewards have shape (k, *K), and a step never ends an episode.
    Seeds, options, infos and the dtype of rewards are passed on unchanged.

    Example:
        >>> env = BatchedEnv(gymnasium.make_vec("CartPole-v1", 3, "sync"))
        >>> (obs, terminations, truncations), infos = env.reset(seed=1)
        >>> obs.shape, terminations.tolist()
        ((3, 4), [False, False, False])
        >>> env.step(np.array([0, 1, 0]))[1:]
        (array([1., 1., 1.]), False, False, {})

    Attributes:
        env: the vector env.
        inner: number and spaces of its envs.
        first_seed: the seed that was drawn for the generator of its first env; None if there is none.
        has_begun: whether all its envs have been reset; until then a reset always resets all of them.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        count = env.num_envs
        self.env = env  # `envs.state` looks for the inner layer under this name
        self.metadata = env.metadata or {}
        self.observation_space, self.action_space = env.observation_space, env.action_space
        if hasattr(env, "single_observation_space"):
            one_obs, one_action = env.single_observation_space, env.single_action_space
        else:  # a vector env of SuperSuit: its spaces are those of one agent, and it resets in the step of an end
            one_obs, one_action = env.observation_space, env.action_space
            self.observation_space, self.action_space = batch_space(one_obs, count), batch_space(one_action, count)
            self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, **self.metadata}
        reward_space = getattr(env.unwrapped, "reward_space", None)  # MO-Gymnasium's vector envs have that of one env
        mode = self.metadata.get("autoreset_mode")
        self.inner = VectorEnvDescription(count, one_obs, one_action, mode, reward_space)
        flag: Any = np.bool_  # Gymnasium's type hints allow floats only
        flags = spaces.Box(0, 1, (count,), flag)
        self.observation_space = spaces.Tuple((self.observation_space, flags, flags))
        self.reward_space = spaces.Box(-np.inf, np.inf, (count, *reward_shape_of(reward_space)), np.float64)
        self.render_mode = env.render_mode
        self._no_ends = np.zeros(count, np.bool_)
        self.first_seed: int | None = None
        self.has_begun = False

    def reset(
        self,
        *,
        seed: int | list[int] | None = None,
        options: dict[str, Any] | None = None,
        seed_of_some: int | list[int | None] | None = None,
    ) -> Any:
        """Reset the vector env.

        Args:
            seed: one seed for all envs, or a list with one for each, if the vector env takes lists. All later
                results depend on it only.
            options: passed to the vector env. A `reset_mask` is dropped before the first reset: then this env
                replaces one whose episodes were all lost, so all of its envs must start.
            seed_of_some: used instead of `seed` if some envs get no seed or are not reset.
        """
        given: Any = seed if seed_of_some is None else seed_of_some
        if options and "reset_mask" in options and not self.has_begun:
            options = {key: value for key, value in options.items() if key != "reset_mask"} or None
        obs, infos = self.env.reset(seed=given, options=options)
        self.has_begun = True
        return (as_arrays(obs), self._no_ends, self._no_ends), self._fetch_infos(infos)

    def step(self, action: Any) -> Any:
        obs, rewards, terminations, truncations, infos = self.env.step(action)
        row = (as_arrays(obs), as_array(terminations, np.bool_), as_array(truncations, np.bool_))
        return row, as_array(rewards), False, False, self._fetch_infos(infos)

    def _fetch_infos(self, infos: Any) -> Any:
        return fetch_infos(add_infos(self.env, infos) if isinstance(infos, list) else infos)

    def generator_owners(self, first: int) -> list[Any]:
        """Return the envs with the generators: those inside, or the vector env itself; see `first_seeds`."""
        self.first_seed = first
        inside = getattr(self.env.unwrapped, "envs", None)
        if isinstance(inside, list | tuple) and len(inside) == self.inner.num_envs:
            return list(inside)
        return [self.env]

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


# ---- functions that the front end runs by Pool.call ---------------------------------------------


def describe_vector_env(env: BatchedEnv) -> VectorEnvDescription:
    return env.inner


def read_drawn_seeds(env: BatchedEnv) -> int | list[int | None] | None:
    """Return the seeds that were drawn for generators and are used by them.

    That is the first seed if they all are, else one seed or None per env; None if no generator uses one.
    """
    first = env.first_seed
    if first is None or is_seeded_by(env, first):
        return first
    owners = enumerate(env.generator_owners(first), first)
    found = [seed if is_seeded_by(owner, seed) else None for seed, owner in owners]
    return found if any(one is not None for one in found) else None


# ---- arrays ------------------------------------------------------------------------------------


def as_arrays(value: Any) -> Any:
    """Convert nested batches to NumPy arrays; tensors are copied from their device to main memory."""
    if isinstance(value, np.ndarray):
        return value  # the copy into the row handles any memory order
    return map_structure(_from_device, value, is_leaf=_is_list)


def _from_device(value: Any) -> Any:
    return as_array(value) if hasattr(value, "cpu") else value


def _is_list(value: Any) -> bool:
    return isinstance(value, list)  # a list of numbers, or of one object for each env


def as_array(value: Any, dtype: Any = None) -> NDArray[Any]:
    """Convert one batch to a contiguous array; a tensor is copied from its device."""
    return np.ascontiguousarray(_fetch(value), dtype)


def add_infos(env: gymnasium.vector.VectorEnv[Any, Any, Any], infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the infos of a vector env's envs, one dict for each, in Gymnasium's form.

    A `terminal_observation`, which SuperSuit and Stable-Baselines3 add at the end of an episode, becomes `final_obs`,
    and the other infos of that step also become `final_info`.
    """
    found: dict[str, Any] = {}
    for i, info in enumerate(infos):
        if "terminal_observation" in info:
            info = dict(info)
            info = {"final_obs": info.pop("terminal_observation"), "final_info": dict(info), **info}
        found = env._add_info(found, info, i)
    return found


def fetch_infos(value: Any) -> Any:
    """Return infos in which tensors are replaced by NumPy arrays or numbers, so that they can be split by env.

    Only arrays of other libraries have `__dlpack__`; all other values are kept.
    """
    return map_structure(_fetch_info, value, is_leaf=is_sequence)


def _fetch_info(value: Any) -> Any:
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    return np.asarray(_fetch(value))[()]


def _fetch(value: Any) -> Any:
    """Copy a tensor from its device to main memory; return any other value unchanged."""
    fetch = getattr(value, "cpu", None)
    return value if fetch is None else fetch()
