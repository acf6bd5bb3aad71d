"""Adapters that give every env Gymnasium's calls, applied before a worker or a wrapper uses the env.

    env                                  recognised by                     becomes
    gymnasium.Env                        its type                          itself, unchanged
    BaseEnv, AllinObsWrapper             class attribute uses_old_calls    AdaptedEnv
    plain object, old Gym calls          anything else                     AdaptedEnv, by the form of its first results

The rest of the engine uses five-tuples only. `step_formats` converts the results of old calls to five-tuples, and
five-tuples to DI-engine's timesteps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.envs.seeding import EpisodeSeeds, check_seed
from vecenv.envs.step_formats import FiveTuple, split_reset, step_reader
from vecenv.errors import SpaceError, StateError
from vecenv.gymnasium_api.reward_spaces import find_reward_space
from vecenv.values.checks import describe_wrong_env_fn, is_pettingzoo_env
from vecenv.values.own_attributes import get_own_attr
from vecenv.values.signatures import parameters_of

#: Attributes that `AdaptedEnv` defines itself, instead of its env's.
_TRANSLATED = frozenset(
    ("reset", "step", "seed", "close", "render", "observation_space", "action_space", "reward_space")
    + ("render_mode", "metadata", "spec", "np_random", "unwrapped")
)


def adapt(env: Any) -> gymnasium.Env[Any, Any]:
    """Return an env with Gymnasium's calls: `reset(seed=, options=)`, five-tuple `step`, `close`, spaces.

    A Gymnasium env, wrapped or not, is returned unchanged, at no cost. Any other object must have `reset` and
    `step`; all other methods are optional.

    Example:
        >>> class Old:
        ...     def reset(self):
        ...         return 0
        ...     def step(self, action):
        ...         return 1, 1.0, True, {"TimeLimit.truncated": True}
        >>> env = adapt(Old())
        >>> env.reset()
        (0, {})
        >>> env.step(0)[2:4]
        (False, True)

    Raises:
        TypeError: the object lacks `reset` or `step`, or is a vector env or an env of PettingZoo.
    """
    if isinstance(env, gymnasium.Env) and not has_old_calls(env):
        return env
    if is_pettingzoo_env(env) and not hasattr(env, "uses_old_calls"):
        raise TypeError(f"expected an env of one agent, {describe_wrong_env_fn(env)}")
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise TypeError(f"{type(env).__name__} is a vector env, not one env: host it by vecenv.BatchedVectorEnv")
    return AdaptedEnv(env)


def adapt_and_build(env: Any, *, needed: bool = True, remedy: str = "") -> gymnasium.Env[Any, Any]:
    """Adapt an env, and reset it once if it has no spaces before its first reset; see `adapt` and `ensure_spaces`.

    If this fails the env is closed, because the caller has no other reference to it. Exceptions of that `close`
    are dropped.
    """
    try:
        adapted = adapt(env)
        ensure_spaces(adapted, needed=needed, remedy=remedy)
    except BaseException:
        with contextlib.suppress(Exception):
            env.close()
        raise
    return adapted


def has_old_calls(env: Any) -> bool:
    """Return whether the env has old calls (DI-engine's or old Gym's), judged by its type only."""
    if getattr(type(env), "uses_old_calls", False) or not isinstance(env, gymnasium.Env):
        return True
    return not _accepts(type(env).reset, "seed")


def original(env: Any) -> Any:
    """Return the env that was passed to `adapt`, whose attributes the users of a manager expect."""
    return env.env if isinstance(env, AdaptedEnv) else env


def ensure_spaces(env: gymnasium.Env[Any, Any], *, needed: bool = True, remedy: str = "") -> None:
    """Reset the env once if a space is missing or None, as in an env that is built at its first reset.

    Blocks for as long as the env's reset does. Other exceptions raised when a space is read are passed on.

    Args:
        needed: False accepts an env that has no spaces after the reset.
        remedy: end of the error's message.

    Raises:
        SpaceError: a space is still missing after the reset.
    """
    if not has_spaces(env):
        env.reset()
        if needed and not has_spaces(env):
            raise SpaceError(
                f"{original(env)!r}: observation_space or action_space missing, also after a reset{remedy}"
            )


def has_spaces(env: Any) -> bool:
    """Return whether an env has both spaces now; `ensure_spaces` gives it those of its first reset."""
    return all(getattr(env, name, None) is not None for name in ("observation_space", "action_space"))


def reward_space_of(env: Any) -> spaces.Space[Any] | None:
    """Return the reward space that the env or a layer under it declares, or None; see `find_reward_space`."""
    return _named_space("reward_space", find_reward_space(env))


def find_attr(env: Any, name: str, default: Any = None) -> Any:
    """Look up an attribute in an env and the layers under it, outermost first; return `default` if none has it.

    Gymnasium's wrappers do not forward attributes. Private attributes of an `AdaptedEnv` are skipped, because the
    env in it may have attributes of the same names.
    """
    while env is not None:
        if isinstance(env, AdaptedEnv) and name not in _TRANSLATED:
            env = env.env
        try:
            return getattr(env, name)
        except AttributeError:
            inner = get_own_attr(env, "env")
            env = inner if inner is not env else None
    return default


def inner_env(layer: Any) -> Any:
    """Return the env inside a layer: `env`, or `_env` as in many `BaseEnv`s; None for the innermost."""
    for name in ("env", "_env"):
        inner = get_own_attr(layer, name)
        if inner is not None and hasattr(inner, "reset") and hasattr(inner, "step"):
            return inner
    return None


def generator_owner(env: Any) -> Any:
    """Return the innermost env, also below `BaseEnv`s, which `unwrapped` does not pass; see `first_seeds`."""
    while not hasattr(type(env), "generator_owners") and (inner := inner_env(env)) is not None:
        env = inner
    return env


def _space_property(name: str) -> Any:
    """Return a property: the env's space of this name as a Gymnasium space; None without one, as before a reset."""
    return property(lambda self: _named_space(name, getattr(self.env, name, None)))


class AdaptedEnv(gymnasium.Env[Any, Any]):
    """An env with old calls (DI-engine's or old Gym's) behind Gymnasium's calls.

    The first `reset` and the first `step` determine the form of the results; later results are read in that form.
    All other attributes are read from the original env, which is in `env`. Rewards are passed on unchanged;
    `reward_space` describes them.

    Attributes:
        notes_agents: if True, an info that was a sequence with one dict per agent is marked by the key `AGENTS`.
            Set it before the first step.
    """

    def __init__(self, env: Any) -> None:
        """Wrap an env without calling it; TypeError if it lacks `reset` or `step`."""
        for name in ("reset", "step"):
            if not callable(getattr(env, name, None)):
                raise TypeError(f"{type(env).__name__} is not an env: it has no {name}(); {describe_wrong_env_fn(env)}")
        self.env = env
        self.notes_agents = False
        self._read_step: Callable[[Any], FiveTuple] | None = None
        self._read_reset: Callable[[Any], tuple[Any, dict[str, Any]]] | None = None
        self._reset_takes_seed = _accepts(env.reset, "seed")
        self._reset_names_seed = _accepts(env.reset, "seed", by_name=True)
        self._reset_takes_options = _accepts(env.reset, "options")
        seed_method = getattr(env, "seed", None)
        self._has_seed = callable(seed_method)
        self._seed_takes_dynamic = self._has_seed and _accepts(seed_method, "dynamic_seed")
        # Seeds for the coming resets, for envs whose seed() does not handle episodes.
        self._seeds: EpisodeSeeds | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None, **reset_param: Any) -> Any:
        """Start an episode; blocks as long as the env's reset does.

        Args:
            seed: passed on if `seed` is a named parameter of the env's reset; a sequence begun by the `seed`
                method then continues at the next episode. Otherwise the `seed` method is called with it first.
                None leaves the generators unchanged.
            options: passed on if the env's reset takes it, else ignored.
            **reset_param: passed on unchanged.

        Returns:
            (obs, info); info is empty unless the env returns one or has it in `reset_info`.
        """
        if seed is not None and self._reset_names_seed:
            reset_param["seed"] = seed
        elif seed is not None:
            self.seed(seed)
        if options is not None and self._reset_takes_options:
            reset_param["options"] = options
        with contextlib.nullcontext() if self._seeds is None else self._seeds.for_reset() as episode_seed:
            if episode_seed is not None and "seed" not in reset_param:
                if self._has_seed:
                    self.env.seed(episode_seed)
                elif self._reset_takes_seed:
                    reset_param["seed"] = episode_seed
            result = self.env.reset(**reset_param)
        if self._read_reset is None:
            self._read_reset = self._read_bare_obs if split_reset(result, self.observation_space) is None else tuple
        return self._read_reset(result)

    @property
    def reset_form(self) -> str:
        """The form of the results of `reset`: 'obs', 'obs and info', or '' before the first reset."""
        read = self._read_reset
        return "" if read is None else "obs and info" if read is tuple else "obs"

    @reset_form.setter
    def reset_form(self, form: str) -> None:
        self._read_reset = {"": None, "obs and info": tuple, "obs": self._read_bare_obs}[form]

    def _read_bare_obs(self, obs: Any) -> tuple[Any, dict[str, Any]]:
        return obs, dict(getattr(self.env, "reset_info", None) or {})

    def step(self, action: Any) -> Any:
        """Apply one action and return the five-tuple.

        If the env returns four values, `terminated`, `truncated` and `TimeLimit.truncated` are added to `info`,
        and `abnormal` if the observation is None.

        Raises:
            StateError: called before the first reset.
            TypeError: the form of the result is unknown, or its info is not a dict.
        """
        result = self.env.step(action)
        if self._read_step is None:
            if self._read_reset is None:
                raise StateError(f"step of {self.env!r} before its first reset")
            self._read_step = step_reader(result, notes_agents=self.notes_agents)
        return self._read_step(result)

    def seed(self, seed: int, dynamic_seed: bool | None = None) -> None:
        """Seed the env for the coming resets, and its action space if it is not a `BaseEnv`.

        Args:
            seed: at least 0.
            dynamic_seed: True gives each episode a seed of its own, False gives all the same seed. None is the
                env's default; an env with the old `seed(seed)` is then seeded once, and later episodes continue
                its random numbers.

        Raises:
            ConfigError: the seed is not an integer >= 0.
        """
        seed = check_seed(seed)
        if self._has_seed and (dynamic_seed is None or self._seed_takes_dynamic):
            self._seeds = None
            if dynamic_seed is None:
                self.env.seed(seed)
            else:
                self.env.seed(seed, dynamic_seed)
        else:
            self._seeds = _OneSeed() if dynamic_seed is None else EpisodeSeeds()
            self._seeds.seed(seed, dynamic_seed is not False)
        action_space = getattr(self, "action_space", None)
        if action_space is not None and not getattr(type(self.env), "uses_old_calls", False):
            action_space.seed(seed)

    def generator_owners(self, first: int) -> list[Any]:
        return [generator_owner(self.env)]

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if callable(close):
            close()

    def render(self) -> Any:
        """Return the env's rendering; a `render` that requires a mode is called with mode 'rgb_array'."""
        render = self.env.render
        mode = (parameters_of(render) or {}).get("mode")
        return render() if mode is None or mode.default not in (mode.empty, "human") else render(mode="rgb_array")

    observation_space: Any = _space_property("observation_space")
    action_space: Any = _space_property("action_space")
    reward_space: Any = _space_property("reward_space")
    render_mode: Any = property(lambda self: getattr(self.env, "render_mode", None))
    spec: Any = property(lambda self: getattr(self.env, "spec", None))

    @property
    def metadata(self) -> Any:  # type: ignore[override]
        """The env's metadata, or an empty dict if they are missing or not a mapping."""
        metadata = getattr(self.env, "metadata", None)
        return metadata if isinstance(metadata, Mapping) else {}

    @property
    def np_random(self) -> Any:
        """The env's generator; AttributeError if it has none."""
        return self.env.np_random

    @np_random.setter
    def np_random(self, value: Any) -> None:
        self.env.np_random = value

    @property
    def unwrapped(self) -> Any:
        """The innermost env."""
        return getattr(self.env, "unwrapped", self.env)

    def __getattr__(self, name: str) -> Any:
        # Called only for names that this class lacks. `env` itself is missing while pickle builds the object.
        if name == "env" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.env, name)

    def __repr__(self) -> str:
        return f"AdaptedEnv({self.env!r})"


class _OneSeed(EpisodeSeeds):
    """A seed for the next reset only; later resets continue the env's generators, as in Gymnasium."""

    def advance(self) -> int | None:
        seed, self.base = self.base, None
        return seed


def _named_space(name: str, space: Any) -> spaces.Space[Any] | None:
    try:
        converted: spaces.Space[Any] | None = convert_space(space)
        return converted
    except TypeError as error:
        raise SpaceError(f"{name}: {error}", path=name) from None


def convert_space(space: Any) -> Any:
    """Convert a space of the old `gym` package to Gymnasium's, and return Gymnasium's spaces and None unchanged.

    TypeError is raised for an object that is not a known space.
    """
    if space is None or isinstance(space, spaces.Space):
        return space
    kind = type(space).__name__
    if kind == "Box":
        low, high = (np.asarray(bound, dtype=space.dtype) for bound in (space.low, space.high))
        return spaces.Box(low, high, space.shape, np.dtype(space.dtype).type)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if kind == "MultiBinary":
        return spaces.MultiBinary(space.n)
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(space.nvec, dtype=space.dtype)
    if kind == "Dict":
        return spaces.Dict({key: convert_space(part) for key, part in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple([convert_space(part) for part in space.spaces])
    raise TypeError(f"expected a Gymnasium space, got {type(space).__module__}.{kind}")


def _accepts(function: Any, name: str, *, by_name: bool = False) -> bool:
    """Return whether a function accepts this keyword; True if its signature cannot be read.

    With `by_name` it must have a parameter of that name; `**kwargs` does not count.
    """
    parameters = parameters_of(function)
    if parameters is None or name in parameters:
        return True
    return not by_name and any(one.kind is one.VAR_KEYWORD for one in parameters.values())
