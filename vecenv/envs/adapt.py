"""The one place of translation: every env dialect becomes Gymnasium's calls here, before a worker or a wrapper sees it.

    dialect                              recognised by                     becomes
    gymnasium.Env                        its type                          itself, untouched
    BaseEnv, AllinObsWrapper             class attribute uses_old_calls    AdaptedEnv
    plain object, old Gym calls          anything else                     AdaptedEnv, by the form of its first results

Inside, everything is the five-tuple; `to_timestep` is the way back to DI-engine's surface.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.envs.base import BaseEnvTimestep
from vecenv.envs.own import get_own
from vecenv.envs.seeding import EpisodeSeeds, check_seed
from vecenv.errors import SpaceError, StateError

#: What `AdaptedEnv` has in the place of its env's own.
_TRANSLATED = frozenset(
    ("reset", "step", "seed", "close", "render", "observation_space", "action_space", "reward_space")
    + ("render_mode", "metadata", "spec", "np_random", "unwrapped")
)

FiveTuple = tuple[Any, Any, bool, bool, dict[str, Any]]

#: Info key that says, where it is asked for, that the env gave a sequence of infos: True a tuple, False a list.
AGENTS = "vecenv.agents"


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


def adapt_built(env: Any) -> gymnasium.Env[Any, Any]:
    """Adapt, and have an env that builds itself lazily build itself now: what a worker needs to know its spaces.

    Raises:
        TypeError: no env.
        SpaceError: there are no spaces, also after a reset.
    """
    adapted = adapt(env)
    ensure_spaces(adapted)
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
    space = find_attr(env, "reward_space")
    return None if space is None else convert_space(space)


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
            inner = get_own(env, "env")
            env = inner if inner is not env else None
    return default


def has_generator(env: Any) -> bool:
    """Tell whether the env has made or been given its generator already, as by a reset in its env_fn."""
    return get_own(getattr(env, "unwrapped", env), "_np_random") is not None


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
        with contextlib.nullcontext() if self._seeds is None else self._seeds.beginning() as episode_seed:
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
        return convert_space(getattr(self.env, "observation_space", None))

    @property
    def action_space(self) -> Any:  # type: ignore[override]
        """As `observation_space`."""
        return convert_space(getattr(self.env, "action_space", None))

    @property
    def reward_space(self) -> Any:
        """The env's own, or None if it declares none."""
        return convert_space(getattr(self.env, "reward_space", None))

    @property
    def render_mode(self) -> Any:  # type: ignore[override]
        """The env's own, or None."""
        return getattr(self.env, "render_mode", None)

    @property
    def metadata(self) -> Any:  # type: ignore[override]
        """The env's own, or an empty dict."""
        return getattr(self.env, "metadata", {})

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


def read_flags(done: Any, info: Mapping[str, Any]) -> tuple[bool, bool]:
    """Tell (terminated, truncated) apart from an old env's done and what its info says.

    `info['truncated']` or `info['TimeLimit.truncated']` marks a time-out; without either an end is a
    termination. Where the info itself says nothing of it, the infos of the agents do, if there are any: those
    under `agent_infos`, or under the keys of a dict of dones. A sequence, an array or a dict of dones or flags
    counts as set when all are, a dict with `__all__` by that; a done of None (an abnormal timestep) as not done.

    Raises:
        TypeError: done is none of these.
    """
    if not isinstance(done, bool):
        given, done = done, _is_done(done)
        if isinstance(given, Mapping):
            agents = [info[key] for key in given if isinstance(info.get(key), Mapping)]
            info = {**info, "agent_infos": info.get("agent_infos", agents)}
    if not done:
        return False, False
    truncated = bool(_said(info, "truncated") or _said(info, "TimeLimit.truncated"))
    terminated = _said(info, "terminated")
    if terminated is None or not (terminated or truncated):
        terminated = not truncated
    return terminated, truncated


def _is_done(done: Any) -> bool:
    if done is None:
        return False
    value = _flag(done)
    if value is None:
        expected = "a bool, or a sequence, an array or a dict of them"
        raise TypeError(f"done: expected {expected}, got {type(done).__name__}: {done!r}")
    return value


def _said(info: Mapping[str, Any], key: str) -> bool | None:
    """Give a flag as the info itself has it, else as those of the agents' infos agree that say something of it."""
    value = _flag(info.get(key))
    if value is None:
        agents = info.get("agent_infos")
        parts = [part for part in agents if isinstance(part, Mapping)] if isinstance(agents, (list, tuple)) else []
        told = [flag for flag in (_flag(part.get(key)) for part in parts) if flag is not None]
        value = all(told) if told else None
    return value


def to_timestep(obs: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]) -> BaseEnvTimestep:
    """Give a five-tuple as DI-engine's timestep, with both flags in a shallow copy of info."""
    terminated, truncated = bool(terminated), bool(truncated)
    marked = {
        **info,
        "terminated": terminated,
        "truncated": truncated,
        "TimeLimit.truncated": truncated and not terminated,
    }
    return BaseEnvTimestep(obs, reward, terminated or truncated, marked)


def is_abnormal(info: Any) -> bool:
    """Tell whether an info, or any of a list of infos (one per agent), declares its timestep abnormal."""
    if isinstance(info, Mapping):
        return bool(info.get("abnormal", False))
    return isinstance(info, (list, tuple)) and any(is_abnormal(part) for part in info)


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


def split_reset(result: Any, space: spaces.Space[Any] | None) -> tuple[Any, dict[str, Any]] | None:
    """Give (obs, info) if a reset's result is that pair, None if it is a bare observation.

    A pair whose second part is a dict may be either; the observation space decides, if it holds the whole.
    """
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        if isinstance(space, spaces.Tuple) and space.contains(result):
            return None
        return result
    return None


def _reset_reader(result: Any, adapted: AdaptedEnv) -> Callable[[Any], tuple[Any, dict[str, Any]]]:
    if split_reset(result, adapted.observation_space) is not None:
        return tuple
    env = adapted.env

    def read_bare_obs(obs: Any) -> tuple[Any, dict[str, Any]]:
        return obs, dict(getattr(env, "reset_info", None) or {})

    return read_bare_obs


def step_reader(result: Any, *, notes_agents: bool = False) -> Callable[[Any], FiveTuple]:
    """Give the function that turns results of this one's form into five-tuples.

    Args:
        result: of a step.
        notes_agents: as of `AdaptedEnv`.

    Raises:
        TypeError: the form is unknown.
    """
    if isinstance(result, tuple) and len(result) == 5:
        return _read_five
    if isinstance(result, (tuple, list)) and len(result) == 4:
        return functools.partial(_read_four, notes_agents=True) if notes_agents else _read_four
    length = f" of {len(result)}" if isinstance(result, (tuple, list)) else ""
    raise TypeError(
        f"step: expected (obs, reward, done, info) or (obs, reward, terminated, truncated, info), "
        f"got {type(result).__name__}{length}"
    )


def _read_five(result: Any) -> FiveTuple:
    obs, reward, terminated, truncated, info = result
    return obs, reward, _is_done(terminated), _is_done(truncated), info


def _read_four(result: Any, notes_agents: bool = False) -> FiveTuple:
    obs, reward, done, given = result
    info = _info_dict(given)
    if notes_agents and isinstance(given, (list, tuple)):
        info[AGENTS] = isinstance(given, tuple)
    terminated, truncated = read_flags(done, info)
    info["terminated"], info["truncated"] = terminated, truncated
    info["TimeLimit.truncated"] = truncated and not terminated
    if obs is None:
        info["abnormal"] = True
    return obs, reward, terminated, truncated, info


def _info_dict(info: Any) -> dict[str, Any]:
    """Give a dict of our own to write in; a list of infos, one per agent, goes under `agent_infos`."""
    if isinstance(info, Mapping):
        return dict(info)
    if info is None:
        return {}
    if isinstance(info, (list, tuple)):
        merged: dict[str, Any] = {"agent_infos": list(info)}
        if is_abnormal(info):
            merged["abnormal"] = True
        return merged
    raise TypeError(f"info: expected a dict or a list of dicts, got {type(info).__name__}: {info!r}")


def _flag(value: Any) -> bool | None:
    """Read a flag, or several that count as set when all are; None for what is no flag, and for none at all."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, Mapping):
        return _flag(value["__all__"] if "__all__" in value else list(value.values()))
    if isinstance(value, (list, tuple)):
        flags = [_flag(part) for part in value]
        return None if not flags or None in flags else all(flags)
    if isinstance(value, (int, float)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.size and array.dtype.kind in "biuf":
            return bool(array.all())
    return None


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
