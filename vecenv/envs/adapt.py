"""The one place of translation: every env dialect becomes Gymnasium's calls here, before a worker or a wrapper sees it.

    dialect                              recognised by                     becomes
    gymnasium.Env                        its type                          itself, untouched
    BaseEnv, AllinObsWrapper             class attribute uses_old_calls    AdaptedEnv
    plain object, old Gym calls          anything else                     AdaptedEnv, by the form of its first results

Inside, everything is the five-tuple; `step_formats` converts results of old calls, and back to DI-engine's surface.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.envs.own_attributes import get_own_attr
from vecenv.envs.seeding import EpisodeSeeds, check_seed
from vecenv.envs.step_formats import FiveTuple, split_reset, step_reader
from vecenv.errors import SpaceError, StateError

#: What `AdaptedEnv` has in the place of its env's own.
_TRANSLATED = frozenset(
    ("reset", "step", "seed", "close", "render", "observation_space", "action_space", "reward_space")
    + ("render_mode", "metadata", "spec", "np_random", "unwrapped")
)


def adapt(env: Any) -> gymnasium.Env[Any, Any]:
    """Give an object with Gymnasium's calls: `reset(seed=, options=)`, five-tuple `step`, `close`, spaces.

    A Gymnasium env, wrapped or not, comes back as it is, so it pays nothing. Of anything else only `reset`
    and `step` are required.

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
        TypeError: the object has no `reset` or no `step`, or is a vector env.
    """
    if isinstance(env, gymnasium.Env) and not has_old_calls(env):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise TypeError(f"{type(env).__name__} is a vector env, not one env: host it by vecenv.BatchedVectorEnv")
    return AdaptedEnv(env)


def adapt_and_build(env: Any, *, needed: bool = True) -> gymnasium.Env[Any, Any]:
    """Adapt, and have an env that builds itself lazily build itself now: what a worker needs to know its spaces.

    If that fails the env is closed, for nobody else has it; what closing it raises is not heard.

    Args:
        needed: as for `ensure_spaces`.

    Raises:
        TypeError: no env.
        SpaceError: there are no spaces, also after a reset.
    """
    try:
        adapted = adapt(env)
        ensure_spaces(adapted, needed=needed)
    except BaseException:
        with contextlib.suppress(Exception):
            env.close()
        raise
    return adapted


def has_old_calls(env: Any) -> bool:
    """Tell whether the env speaks the old dialect, by its type; results are looked at later."""
    if getattr(type(env), "uses_old_calls", False) or not isinstance(env, gymnasium.Env):
        return True
    return not _accepts(type(env).reset, "seed")


def original(env: Any) -> Any:
    """Give the env that was passed to `adapt`: the object whose attributes a manager's users mean."""
    return env.env if isinstance(env, AdaptedEnv) else env


def ensure_spaces(env: gymnasium.Env[Any, Any], *, needed: bool = True) -> None:
    """Make the env's spaces readable: one that builds itself lazily is reset once.

    Only a missing or None space leads to the reset; whatever else reading raises is the caller's to see. May
    block as long as the env's reset does.

    Args:
        needed: False lets an env without spaces pass.

    Raises:
        SpaceError: there are still no spaces after a reset.
    """
    if not _has_spaces(env):
        env.reset()
        if needed and not _has_spaces(env):
            raise SpaceError(f"{original(env)!r}: observation_space or action_space missing, also after a reset")


def _has_spaces(env: Any) -> bool:
    return all(getattr(env, name, None) is not None for name in ("observation_space", "action_space"))


def reward_space_of(env: Any) -> spaces.Space[Any] | None:
    """Give the reward space the env or any layer under it declares, or None."""
    return _named_space("reward_space", find_attr(env, "reward_space"))


def find_attr(env: Any, name: str, default: Any = None) -> Any:
    """Look a name up in an env and the layers under it, outermost first (Gymnasium's wrappers do not forward).

    What `AdaptedEnv` has for itself is passed over: the env in it may have attributes of these names.
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


def has_generator(env: Any) -> bool:
    """Tell whether the env has made or been given its generator already, as by a reset in its env_fn."""
    return get_own_attr(getattr(env, "unwrapped", env), "_np_random") is not None


class AdaptedEnv(gymnasium.Env[Any, Any]):
    """An env of another dialect behind Gymnasium's calls.

    The form of the results is found out at the first `reset` and the first `step` and kept. Other attributes
    are the original's, which is in `env`. Rewards are passed on as the env gives them: `reward_space` tells.

    Attributes:
        notes_agents: whether infos say by the key `AGENTS` that they were a sequence, one per agent; to be set
            before the first step.
    """

    def __init__(self, env: Any) -> None:
        """Wrap; calls nothing of the env.

        Raises:
            TypeError: the object has no `reset` or no `step`.
        """
        for name in ("reset", "step"):
            if not callable(getattr(env, name, None)):
                raise TypeError(f"{type(env).__name__} is no env: it has no {name}()")
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
        # For envs whose own seed() knows nothing of episodes: seeds wait here for the next reset.
        self._seeds: EpisodeSeeds | None = None
        self._offered_seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None, **reset_param: Any) -> Any:
        """Start an episode; blocks as long as the env does.

        Args:
            seed: passed on if the env's reset names it; a sequence begun by `seed` then goes on with the next
                episode. Else it is given to the env's `seed` first. None leaves its generators as they are.
            options: passed on if the env's reset takes it, else ignored as unknown options are anywhere.
            **reset_param: passed on as they are.

        Returns:
            (obs, info); info is empty unless the env gives one, by its result or as `reset_info`.
        """
        if seed is not None:
            if self._reset_names_seed:
                reset_param["seed"] = seed
            else:
                self.seed(seed)
        if options is not None and self._reset_takes_options:
            reset_param["options"] = options
        result = self._reset_env(reset_param, is_seeded=self._reset_names_seed and seed is not None)
        if self._read_reset is None:
            self._read_reset = _reset_reader(result, self)
        return self._read_reset(result)

    def _reset_env(self, reset_param: dict[str, Any], *, is_seeded: bool) -> Any:
        offered, self._offered_seed = self._offered_seed, None
        with contextlib.nullcontext() if self._seeds is None else self._seeds.for_reset() as episode_seed:
            if is_seeded:
                episode_seed = None
            elif offered is not None and episode_seed is None and self._reset_names_seed:
                reset_param.setdefault("seed", offered)
            if episode_seed is not None and self._has_seed:
                self.env.seed(episode_seed)
            elif episode_seed is not None and self._reset_takes_seed:
                reset_param["seed"] = episode_seed
            return self.env.reset(**reset_param)

    def step(self, action: Any) -> Any:
        """Advance the env and give the five-tuple.

        Of an env with four values, `info` also has `terminated`, `truncated` and `TimeLimit.truncated`, and
        `abnormal` if the observation is None.

        Raises:
            StateError: called before any reset.
            TypeError: the result is no known form, or its info no dict.
        """
        result = self.env.step(action)
        if self._read_step is None:
            if self._read_reset is None:
                raise StateError(f"step of {self.env!r} before its first reset")
            self._read_step = step_reader(result, notes_agents=self.notes_agents)
        return self._read_step(result)

    def seed(self, seed: int, dynamic_seed: bool | None = None) -> None:
        """Seed the env for the resets to come.

        Args:
            seed: at least 0.
            dynamic_seed: True for a seed of its own for each episode, False for the same for each, None for
                the env's default (an env with the old `seed(seed)` is then seeded once and runs on).

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

    def offer_seed(self, seed: int) -> None:
        """Have the next reset seeded with this if the env's `reset` names a seed; its `seed` is not called."""
        self._offered_seed = seed

    def close(self) -> None:
        """Close the env if it has a `close`."""
        close = getattr(self.env, "close", None)
        if callable(close):
            close()

    def render(self) -> Any:
        """Render by the env's own method; one that still wants a mode is asked for an RGB array."""
        render = self.env.render
        return render(mode="rgb_array") if _requires(render, "mode") else render()

    @property
    def observation_space(self) -> Any:  # type: ignore[override]  # read live: lazy envs set it at reset
        """The env's own, in Gymnasium's classes; None as long as a lazy env has none."""
        return _named_space("observation_space", getattr(self.env, "observation_space", None))

    @property
    def action_space(self) -> Any:  # type: ignore[override]
        """As `observation_space`."""
        return _named_space("action_space", getattr(self.env, "action_space", None))

    @property
    def reward_space(self) -> Any:
        """The env's own, or None if it declares none."""
        return _named_space("reward_space", getattr(self.env, "reward_space", None))

    @property
    def render_mode(self) -> Any:  # type: ignore[override]
        """The env's own, or None."""
        return getattr(self.env, "render_mode", None)

    @property
    def metadata(self) -> Any:  # type: ignore[override]
        """The env's own, or an empty dict in the place of what is no mapping."""
        metadata = getattr(self.env, "metadata", None)
        return metadata if isinstance(metadata, Mapping) else {}

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """The env's own, or None."""
        return getattr(self.env, "spec", None)

    @property
    def np_random(self) -> Any:
        """The env's own generator; AttributeError if it has none."""
        return self.env.np_random

    @np_random.setter
    def np_random(self, value: Any) -> None:
        self.env.np_random = value

    @property
    def unwrapped(self) -> Any:
        """The innermost env."""
        return getattr(self.env, "unwrapped", self.env)

    def __getattr__(self, name: str) -> Any:
        # Reached only for names this class lacks. `env` itself is absent while an unpickler builds the object.
        if name == "env" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.env, name)

    def __repr__(self) -> str:
        return f"AdaptedEnv({self.env!r})"


class _OneSeed(EpisodeSeeds):
    """A seed for the next reset only; later ones leave the env's generators running, as Gymnasium's do."""

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
    """Give a space of the old `gym` package as Gymnasium's; Gymnasium's own and None pass unchanged."""
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


def _reset_reader(result: Any, adapted: AdaptedEnv) -> Callable[[Any], tuple[Any, dict[str, Any]]]:
    if split_reset(result, adapted.observation_space) is not None:
        return tuple
    env = adapted.env

    def read_bare_obs(obs: Any) -> tuple[Any, dict[str, Any]]:
        return obs, dict(getattr(env, "reset_info", None) or {})

    return read_bare_obs


def _accepts(function: Any, name: str, *, by_name: bool = False) -> bool:
    """Tell whether a call may carry this keyword; True for what cannot be inspected.

    Args:
        by_name: only as a parameter of its own, not among others' `**kwargs`.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == name or (p.kind is p.VAR_KEYWORD and not by_name) for p in parameters)


def _requires(function: Any, name: str) -> bool:
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.default in (parameter.empty, "human")
