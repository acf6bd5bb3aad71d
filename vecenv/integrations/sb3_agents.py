"""SB3AgentVecEnv: the agents of envs of PettingZoo as the rows of a VecEnv of Stable-Baselines3.

    SB3AgentVecEnv(parallel_fn, N)       in place of SuperSuit's concat_vec_envs_v1(..., base_class="stable_baselines3")

It stands on `PettingZooVectorEnv` with infos as lists. All agents then share one policy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.advice.facts import SettingNames
from ..core.layout.spec import Array
from ..core.pool.face import PoolFace
from ..envs.remote import CallBatch, SetBatchAttribute
from ..errors import ConfigError, StateError, convert_rows, converted, require
from ..statistics import Shards, Statistics
from ..vector.saved_adapter import SavedAdapter
from .pettingzoo import PettingZooVectorEnv
from .sb3 import Indices, Infos, call_once, read_rows

__all__ = ["SB3AgentVecEnv"]

_VecEnv: Any = require("stable_baselines3.common.vec_env", "sb3").VecEnv


class SB3AgentVecEnv(SavedAdapter, PoolFace, _VecEnv):
    """N envs of PettingZoo with A agents each, as a VecEnv of N * A rows.

    The same seeds and actions give the observations, rewards and dones of SuperSuit's `SB3VecEnvWrapper`: a row is
    done when its agent has ended, rewards are float32, and the env is reset when all of its agents have ended. Infos
    then contain `terminal_observation`, and as in SuperSuit no `TimeLimit.truncated`: algorithms do not add the value
    of the last observation where an episode was truncated.

    Example:
        >>> from pettingzoo.classic.rps import rps
        >>> envs = SB3AgentVecEnv(rps.parallel_env, 2, backend="serial")
        >>> _ = envs.seed(7)
        >>> envs.reset().shape
        (4,)
        >>> obs, rewards, dones, infos = envs.step([0, 1, 1, 0])
        >>> rewards.tolist(), dones.tolist(), infos
        ([-1.0, 1.0, 1.0, -1.0], [False, False, False, False], [{}, {}, {}, {}])
        >>> envs.close()

    Attributes:
        vector_env: the `PettingZooVectorEnv`.
        reset_infos: for each row the info of the last call of `reset`.
    """

    _setting_names = SettingNames(overlap="", spare_envs="", infos="", collect="")
    _recipe = "build one from its constructors"
    vector_env: PettingZooVectorEnv
    _saved = ("reset_infos", "_seeds", "_options")

    def __init__(
        self, parallel_fn: Callable[[], Any] | Sequence[Callable[[], Any]], num_envs: int | None = None, **options: Any
    ) -> None:
        """Build all envs; arguments and errors are those of `PettingZooVectorEnv`, except `infos`.

        With `episode_statistics=True` the logger of Stable-Baselines3 shows averages over agents.
        """
        if "infos" in options:
            raise ConfigError("infos: Stable-Baselines3 needs one dict per row; leave it out", key="infos")
        envs = self.vector_env = PettingZooVectorEnv(parallel_fn, num_envs, infos="list", **options)
        self._pool = envs.batched.pool
        self._is_stepping = False
        try:
            super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
            self.metadata: dict[str, Any] = {**envs.metadata, **self.metadata}
            self._continue_own(options.get("resume"))
        except BaseException:
            envs.close()
            raise

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Have the next reset give env w the seed `seed + w`; None draws a seed. Returns the seed of each row."""
        each = super().seed(seed)
        self._seeds = [each[w] for w in range(self._pool.num_envs) for _ in self.vector_env.agents]
        return list(self._seeds)

    # ---- stepping ----------------------------------------------------------------------------

    def reset(self) -> Any:
        """Begin an episode in every env, with the seeds and options set before; they are used once.

        All envs get the options of row 0.
        """
        if self._is_stepping:
            self.step_wait()
        size = len(self.vector_env.agents)
        try:
            obs, self.reset_infos = self.vector_env.reset(seed=self._seeds[::size], options=self._options[0] or None)
        except Exception as error:
            convert_rows(error, operator.itemgetter(0))
            raise
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: Any) -> None:
        """Begin a step of every env; one row of actions per agent."""
        self.vector_env.step_async(actions)
        self._is_stepping = True

    def step_wait(self) -> tuple[Any, Array, Array, Infos]:
        """Wait for the step; return observations, rewards float32, dones bool, and one dict per row.

        Raises:
            StateError: there is none.
            Exception: as `PettingZooVectorEnv.step`.
        """
        if not self._is_stepping:
            raise StateError("step_wait: call step_async first")
        self._is_stepping = False
        return converted(_in_form_of_sb3, self.vector_env.step_wait)

    # ---- calls -------------------------------------------------------------------------------

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of the env of each of these rows; None: all rows."""
        return self._call(operator.attrgetter(f"env.{attr_name}"), indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of the envs of these rows to one value."""
        self._call(SetBatchAttribute(attr_name, value, False), indices, name=f"set_attr {attr_name}")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the envs of these rows, once per env; return its result for each row."""
        return [value for _, value in self._call(CallBatch(method_name, method_args, method_kwargs), indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """Return False for each row: wrappers of PettingZoo are not those of Gymnasium."""
        return [False for _ in read_rows(indices, self.num_envs)]

    def get_images(self) -> list[Any]:
        """Return the frame of each env, once per env."""
        return list(self.vector_env.batched.render()[:: len(self.vector_env.agents)])

    def _call(self, function: Callable[[Any], Any], indices: Indices, *, name: str | None = None) -> list[Any]:
        """Call a function in the envs of these rows, once per env; return its result for each row."""
        owners = [row // len(self.vector_env.agents) for row in read_rows(indices, self.num_envs)]
        return call_once(self._pool, function, owners, name=name)

    # ---- end ---------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        return self.vector_env.batched.statistics()

    def shards(self) -> Shards:
        return self.vector_env.batched.shards()

    def close(self) -> None:
        self.vector_env.close()


def _in_form_of_sb3(result: Any) -> tuple[Any, Array, Array, Infos]:
    obs, rewards, terminations, truncations, infos = result
    return obs, rewards.astype(np.float32), terminations | truncations, infos
