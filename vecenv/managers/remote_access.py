"""Access: what a manager's caller reads of the envs beside stepping them.

Spaces, the reference env, attributes of all envs, frames, figures, samples of actions. The
stepping itself is in `base`.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
from gymnasium import Space, spaces

from ..config import Config, deep_merge_dicts
from ..core.pool.pool import Pool
from ..envs.adapt import adapt_and_build, find_attr, original, reward_space_of
from ..envs.remote import CallEnvMethod, FindAttribute, Render, ShapeRewards
from ..envs.spaces import ObjectSpace
from ..errors import ClosedError, ConfigError, StateError
from .states import EnvState

__all__ = ["EnvAccess"]

_Self = TypeVar("_Self", bound="EnvAccess")


class EnvAccess:
    """The part of a manager that reads envs; knows nothing of episodes.

    `manager.x`, for a name that the manager lacks, is the list of that attribute of all envs.
    """

    _env_fn: list[Callable[[], Any]]
    _pool: Pool | None = None
    _env_states: dict[int, EnvState]
    _env_reference: Any = None
    _known_spaces: tuple[Any, Any, Any] | None = None
    _action_space_seed: int | None = None
    _has_columns = True  # observations are as their space says; else there need be no spaces

    config: ClassVar[dict[str, Any]]

    @classmethod
    def default_config(cls) -> Config:
        """Return a copy of the class's config, with `cfg_type` naming the class."""
        config = deep_merge_dicts(cls.config, None)
        config["cfg_type"] = f"{cls.__name__}Dict"
        return config

    def close(self) -> None:
        """End all envs; may be repeated."""
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} owns running envs and cannot be pickled or copied; make a new one")

    # ---- spaces ----------------------------------------------------------------------------

    @property
    def env_num(self) -> int:
        """How many envs."""
        return len(self._env_fn)

    @property
    def env_ref(self) -> Any:
        """An env of its own in this process, built by the first env_fn when first read; it is never stepped.

        Closed with the manager. Building it leaves the global random generators as they were.
        """
        if self._env_reference is None:
            states = random.getstate(), np.random.get_state()
            try:
                env = adapt_and_build(self._env_fn[0](), needed=self._has_columns)
            except AttributeError as error:
                self._raise_from_property(error)
            finally:
                random.setstate(states[0])
                np.random.set_state(states[1])
            self._env_reference = env
        return original(self._env_reference)

    def _close_env_ref(self) -> None:
        env, self._env_reference = self._env_reference, None
        if env is not None:
            env.close()

    @property
    def observation_space(self) -> Space[Any]:
        """Of one env. Before the first launch it takes the reference env to know it.

        With shared_memory=False an env need not have spaces; then this and `action_space` are None.
        """
        space: Space[Any] = self._spaces()[0]
        return space

    @property
    def action_space(self) -> Space[Any]:
        """Of one env; a copy of the manager's own, seeded with the first seed."""
        space: Space[Any] = self._spaces()[1]
        return space

    @property
    def reward_space(self) -> Space[Any]:
        """Of one env; any float32 (1,) if it declares none."""
        space: Space[Any] = self._spaces()[2]
        return space

    def _spaces(self) -> tuple[Any, Any, Any]:
        if self._known_spaces is None:
            if self._pool is not None:
                source: Any = self._pool
                reward_space = self._pool.reward_space
            else:
                try:
                    self.env_ref  # noqa: B018  # builds it
                except AttributeError as error:
                    self._raise_from_property(error)
                source = self._env_reference
                reward_space = reward_space_of(source)
            if reward_space is None:
                reward_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
            # A copy: an env in this process samples from its own space, with its own generator.
            action_space = copy.deepcopy(_declared(getattr(source, "action_space", None)))
            if self._action_space_seed is not None and action_space is not None:
                action_space.seed(self._action_space_seed)
            observation_space = _declared(getattr(source, "observation_space", None))
            self._known_spaces = (observation_space, action_space, _declared(reward_space))
        return self._known_spaces

    def _seed_action_space(self, seed: int) -> None:
        self._action_space_seed = seed
        if self._known_spaces is not None and self._known_spaces[1] is not None:
            self._known_spaces[1].seed(seed)

    def random_action(self) -> dict[int, Any]:
        """Sample an action for each env that is ready: {env_id: action}.

        Raises:
            StateError: the envs have no action space.
        """
        action_space = self.action_space
        if action_space is None:
            raise StateError(f"random_action: the envs of {type(self).__name__} declare no action_space")
        return {env_id: action_space.sample() for env_id in self.ready_obs_id}

    # ---- envs as they are ------------------------------------------------------------------

    @property
    def ready_obs_id(self) -> list[int]:
        """Ids of the envs that can be stepped, ascending."""
        raise NotImplementedError

    @property
    def method_name_list(self) -> list[str]:
        """Methods of envs that may be reached through the manager."""
        return [
            *("reset", "step", "seed", "close", "enable_save_replay", "render", "reward_shaping"),
            "enable_save_figure",
        ]

    def _open_pool(self, what: str) -> Pool:
        """Return the pool.

        Raises:
            ClosedError: not launched, or closed.
        """
        if self._pool is None:
            raise ClosedError(f"{what}: {type(self).__name__} is closed; call launch first")
        return self._pool

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling ask for names before there is an __init__ behind the object.
        if (name.startswith("__") and name.endswith("__")) or "_env_fn" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raised = self.__dict__.pop("_raised", None)
        if raised is not None:
            raise raised
        return self._read_from_envs(name)

    def _raise_from_property(self, error: AttributeError) -> NoReturn:
        """Raise an env's AttributeError: from a property Python takes it for a missing one and asks `__getattr__`."""
        self.__dict__["_raised"] = error
        raise error

    def _read_from_envs(self, name: str) -> Any:
        if self._pool is None:
            self._check_known_while_closed(name)
        found = self._call_envs(FindAttribute(name), f"attribute {name!r}")
        kind, _ = found[0]
        if kind == "missing":
            raise AttributeError(f"neither {type(self).__name__} nor its envs have an attribute {name!r}")
        if kind == "method":
            if name not in self.method_name_list:
                raise RuntimeError(
                    f"{name!r} is a method of the envs and is not in method_name_list: {self.method_name_list}"
                )
            return lambda *args, **kwargs: self._call_envs(CallEnvMethod(name, args, kwargs), name)
        return [value for _, value in found]

    def _check_known_while_closed(self, name: str) -> None:
        """Let the class say more than that it is closed."""

    def _call_envs(self, function: Callable[[Any], Any], what: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Run a function of `ManagedEnv` beside each env; results in the order of env_ids."""
        pool = self._open_pool(what)
        if env_ids is not None and not len(env_ids):
            return []
        return pool.call(function, env_ids, pure=isinstance(function, FindAttribute | Render))

    # ---- frames and figures ----------------------------------------------------------------

    @property
    def ready_imgs(self) -> dict[int, Any]:
        """Frames of the ready envs, {env_id: uint8 (H, W, 3)}."""
        try:
            return self.render("rgb_array")
        except AttributeError as error:
            self._raise_from_property(error)

    def render(self, mode: str = "rgb_array", env_ids: Sequence[int] | None = None) -> dict[int, Any]:
        """Render envs where they live; waits for their running steps.

        Args:
            mode: a Gymnasium env must have been made with this render mode.
            env_ids: None for all that are ready.

        Raises:
            StateError: an env renders in another mode.
            ClosedError: not launched.
        """
        self._open_pool("render")
        ids = self.ready_obs_id if env_ids is None else list(env_ids)
        return dict(zip(ids, self._call_envs(Render(mode), "render", ids)))

    def enable_save_figure(self, env_id: int, figure_path: str) -> None:
        """Tell one env where to save figures.

        Raises:
            ConfigError: no path.
            AttributeError: the env has no such method.
            ClosedError: not launched.
        """
        if figure_path is None:
            raise ConfigError("enable_save_figure: figure_path is None; name a folder", key="figure_path")
        self._call_envs(CallEnvMethod("enable_save_figure", (figure_path,)), "enable_save_figure", [env_id])

    def reward_shaping(self, env_id: int, transitions: list[Any]) -> Any:
        """Have one env reshape the rewards of an episode's transitions; returns what it returns.

        An env that edits the list edits the caller's: in this process it gets that very list. Where
        it lives in a worker it gets a copy; if it returns a list as long, or None, then the
        caller's has what it returned, or what it has made of the copy.

        Raises:
            AttributeError: the env has no such method.
            ClosedError: not launched.
        """
        call = ShapeRewards("reward_shaping", (transitions,))
        result, edited = self._call_envs(call, "reward_shaping", [env_id])[0]
        if edited is not transitions and isinstance(transitions, list):
            shaped = edited if result is None else result
            if isinstance(shaped, list) and len(shaped) == len(transitions):
                transitions[:] = shaped
        return result


def _declared(space: Any) -> Any:
    return space.declared if isinstance(space, ObjectSpace) else space


def has_attribute(env: Any, name: str) -> bool:
    """Tell whether an env or a layer under it has a name."""
    missing = object()
    return find_attr(env, name, missing) is not missing
