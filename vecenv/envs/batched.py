"""Batched envs: a `gymnasium.vector.VectorEnv` of k envs becomes one env, k of them in each of its rows.

    inner step   obs (k, *S), rewards (k,), terminations (k,), truncations (k,), infos
                      |               |          |    |                            |
    row          obs leaves           reward     two more leaves, bool (k,)        info

So the engine steps k envs by one call, and each of the inner env's arrays is copied into the row once. Episodes
within the batch are the inner env's own: to the engine such an env never ends. `vector/batched.py` is the way back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ..nested import is_sequence, map_structure
from .adapt import has_generator

__all__ = [
    "BatchedEnv",
    "VectorEnvDescription",
    "adapt_batched",
    "have_generators",
    "describe_vector_env",
]


@dataclass(frozen=True)
class VectorEnvDescription:
    """What the faces must know of a vector env in a worker."""

    num_envs: int
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    autoreset_mode: Any = None


def adapt_batched(env: Any) -> BatchedEnv:
    """Give a vector env the calls of one env.

    Raises:
        TypeError: it is no `gymnasium.vector.VectorEnv`.
    """
    if not isinstance(env, gymnasium.vector.VectorEnv):
        raise TypeError(
            f"expected a gymnasium.vector.VectorEnv, got {type(env).__name__}; vecenv.VectorEnv hosts single envs"
        )
    return BatchedEnv(env)


class BatchedEnv(gymnasium.Env[Any, Any]):
    """A vector env of k envs behind the calls of one env.

    Observations are (obs, terminations, truncations), rewards (k,), and no step ends an episode. Seeds,
    options and infos are the vector env's own, and so is the rewards' dtype up to here.

    Example:
        >>> env = BatchedEnv(gymnasium.make_vec("CartPole-v1", 3, "sync"))
        >>> (obs, terminations, truncations), infos = env.reset(seed=1)
        >>> obs.shape, terminations.tolist()
        ((3, 4), [False, False, False])
        >>> env.step(np.array([0, 1, 0]))[1:]
        (array([1., 1., 1.]), False, False, {})

    Attributes:
        env: the vector env.
        inner: its number of envs and their spaces.
        has_begun: whether all its envs have been reset; until then there is no reset of some of them.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        count = env.num_envs
        self.env = env  # by this name the state of a stack is looked for
        mode = (env.metadata or {}).get("autoreset_mode")
        self.inner = VectorEnvDescription(count, env.single_observation_space, env.single_action_space, mode)
        flag: Any = np.bool_  # Gymnasium's types know floats only
        flags = spaces.Box(0, 1, (count,), flag)
        self.observation_space = spaces.Tuple((env.observation_space, flags, flags))
        self.action_space = env.action_space
        self.reward_space = spaces.Box(-np.inf, np.inf, (count,), np.float64)
        self.metadata = env.metadata
        self.render_mode = env.render_mode
        self._no_ends = np.zeros(count, np.bool_)
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
            seed: for all, or a list with one for each of its envs, if it takes lists. What they do from here on
                depends on nothing else.
            options: the vector env's own. A `reset_mask` is left out where this env stands in for one whose episodes
                are lost, all of them: so all begin anew.
            seed_of_some: in its place where some envs get no seed, or are not reset.
        """
        given: Any = seed if seed_of_some is None else seed_of_some
        if options and "reset_mask" in options and not self.has_begun:
            options = {key: value for key, value in options.items() if key != "reset_mask"} or None
        obs, infos = self.env.reset(seed=given, options=options)
        self.has_begun = True
        return (as_arrays(obs), self._no_ends, self._no_ends), fetch_infos(infos)

    def step(self, action: Any) -> Any:
        """Step all k envs by one call."""
        obs, rewards, terminations, truncations, infos = self.env.step(action)
        row = (as_arrays(obs), as_array(terminations, np.bool_), as_array(truncations, np.bool_))
        return row, as_array(rewards), False, False, fetch_infos(infos)

    def render(self) -> Any:
        """Render all k envs."""
        return self.env.render()

    def close(self) -> None:
        """Close the vector env."""
        self.env.close()


# ---- what the face asks of it ------------------------------------------------------------------


def describe_vector_env(env: BatchedEnv) -> VectorEnvDescription:
    """Return what there is to know of the vector env."""
    return env.inner


def have_generators(env: BatchedEnv) -> list[bool]:
    """Tell of each env whether it has made or been given its generator already; of some vector envs all share one."""
    inside = getattr(env.env.unwrapped, "envs", None)
    if isinstance(inside, list | tuple) and len(inside) == env.inner.num_envs:
        return [has_generator(one) for one in inside]
    return [has_generator(env.env)] * env.inner.num_envs


# ---- arrays ------------------------------------------------------------------------------------


def as_arrays(value: Any) -> Any:
    """Give nested batches as arrays, those of a device copied to this machine's memory."""
    if isinstance(value, np.ndarray):
        return value  # in whatever order: the copy into the row sees to it
    return map_structure(_from_device, value, is_leaf=_is_list)


def _from_device(value: Any) -> Any:
    return as_array(value) if hasattr(value, "cpu") else value


def _is_list(value: Any) -> bool:
    return isinstance(value, list)  # of numbers, or of one object for each env


def as_array(value: Any, dtype: Any = None) -> NDArray[Any]:
    """Give one batch as a contiguous array; tensors of a device are fetched."""
    return np.ascontiguousarray(_fetch(value), dtype)


def fetch_infos(value: Any) -> Any:
    """Give infos with arrays, or numbers, in place of tensors, so that each env is told its own row.

    What else there is in infos stays as it is: only arrays of other libraries have `__dlpack__`.
    """
    return map_structure(_fetch_info, value, is_leaf=is_sequence)


def _fetch_info(value: Any) -> Any:
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    return np.asarray(_fetch(value))[()]


def _fetch(value: Any) -> Any:
    """Return a tensor of a device in this machine's memory, anything else as it is."""
    fetch = getattr(value, "cpu", None)
    return value if fetch is None else fetch()
