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
    """

    def __init__(self, env_fn: Callable[[], Any], *, needed: bool) -> None:
        self._env_fn = env_fn
        self._needed = needed
        self._reference: Any = None
        self._known: _Spaces | None = None
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
        if self._known is None:
            env = self.reference()
            found = getattr(env, "observation_space", None), getattr(env, "action_space", None)
            self.set(*found, reward_space_of(env))
        assert self._known is not None
        return self._known

    def set(self, observation_space: Any, action_space: Any, reward_space: Any) -> None:
        """Use copies of these spaces from now on: an env in this process may use its own, and the caller change these.

        An env without a reward space has float32 (1,).
        """
        if reward_space is None:
            reward_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        given = (observation_space, action_space, reward_space)
        declared = [space.declared if isinstance(space, ObjectSpace) else space for space in given]
        observation_space, action_space, reward_space = copy_spaces(*declared)
        self._known = observation_space, action_space, reward_space
        self._seed_actions()

    def seed_actions(self, seed: int) -> None:
        """Seed the generator that `action_space.sample` uses, also that of later spaces."""
        self._action_seed = seed
        self._seed_actions()

    def _seed_actions(self) -> None:
        if self._action_seed is not None and self._known is not None and self._known[1] is not None:
            self._known[1].seed(self._action_seed)
