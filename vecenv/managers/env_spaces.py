"""Spaces of the envs of a manager, and the reference env that they are read from before launch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from ..core.layout.spec import copy_spaces
from ..envs.adapt import adapt_and_build, reward_space_of
from ..envs.spaces import ObjectSpace
from ..envs.state.generators import restore_generators, save_generators

__all__ = ["SPACES_REMEDY", "ReferenceSpaces"]

#: End of the error for an env without spaces.
SPACES_REMEDY = "; shared_memory=False takes envs without spaces"

#: Observation, action and reward space; the first two are None if the envs have none and need none.
_Spaces: TypeAlias = "tuple[spaces.Space[Any], spaces.Space[Any], spaces.Space[Any]]"


class ReferenceSpaces:
    """The spaces of one env; all envs of a manager have the same.

    Args:
        env_fn: builds the reference env, an env that is never stepped.
        needed: the envs must have spaces; else they may lack them.

    Attributes:
        is_known: whether the spaces are known; else `get` builds the reference env.
    """

    def __init__(self, env_fn: Callable[[], Any], *, needed: bool) -> None:
        self._env_fn = env_fn
        self._needed = needed
        self._reference: Any = None
        self.is_known = False
        self._observation_space: Any = None
        self._action_space: Any = None
        self._reward_space: Any = None
        self._action_seed: int | None = None

    def reference(self) -> Any:
        """Return the reference env with Gymnasium's calls; the first call builds it.

        The global random generators are left as they were.

        Raises:
            Exception: raised by the env's constructor.
        """
        if self._reference is None:
            states = random.getstate(), np.random.get_state()
            try:
                self._reference = adapt_and_build(self._env_fn(), needed=self._needed, remedy=SPACES_REMEDY)
            finally:
                random.setstate(states[0])
                np.random.set_state(states[1])
        return self._reference

    def close(self) -> None:
        """Close the reference env, if there is one."""
        env, self._reference = self._reference, None
        if env is not None:
            env.close()

    def get(self) -> _Spaces:
        """Return (observation space, action space, reward space); builds the reference env if they are not known.

        Raises:
            Exception: raised by the env's constructor.
        """
        if not self.is_known:
            env = self.reference()
            found = getattr(env, "observation_space", None), getattr(env, "action_space", None)
            self.set(*found, reward_space_of(env))
        return self._observation_space, self._action_space, self._reward_space

    def set(self, observation_space: Any, action_space: Any, reward_space: Any) -> None:
        """Use copies of these spaces from now on: an env in this process may use its own, and the caller change these.

        An env without a reward space has float32 (1,).
        """
        if reward_space is None:
            reward_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        given = (observation_space, action_space, reward_space)
        declared = [space.declared if isinstance(space, ObjectSpace) else space for space in given]
        self._observation_space, self._action_space, self._reward_space = copy_spaces(*declared)
        self.is_known = True
        self._seed_actions()

    def save(self) -> dict[str, Any]:
        """Return the generators of the spaces, as `load` takes them; the spaces must be known."""
        return {"action_seed": self._action_seed, "generators": save_generators(self)}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue with the result of `save`; the spaces must be known, and stay the same objects."""
        self._action_seed = saved["action_seed"]
        restore_generators([self], *saved["generators"])

    def seed_actions(self, seed: int) -> None:
        """Seed the generator that `action_space.sample` uses, also that of later spaces."""
        self._action_seed = seed
        self._seed_actions()

    def _seed_actions(self) -> None:
        if self._action_seed is not None and self._action_space is not None:
            self._action_space.seed(self._action_seed)
