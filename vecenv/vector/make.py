"""`make_vec` and `register_vec`: vector envs by registered name, like `gymnasium.make_vec`; above `VectorEnv`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from ..core.pool.backends import BACKENDS
from ..envs.factory import EnvFactory
from ..envs.gym_registry import find_spec
from ..errors import ConfigError
from ..gymnasium_api.registrations import add_to_main, named_in_main
from ..options import EngineOptions, FailurePolicy, Timeouts, given_fields
from ..ray_options import RayOptions
from ..values.checks import check_callables, check_choice, check_whole
from .env import OPTION_NAMES, VectorEnv, check_options
from .options import move_options, suggest

__all__ = ["build_vec", "make_vec", "register_vec"]

#: Backend of each vectorization mode: our names, then Gymnasium's.
_BACKEND_OF = {**{name: name for name in BACKENDS}, "async": "process", "sync": "serial"}
#: Keys in the spec of a vector env that are not arguments of its envs.
_VECTOR_KEYS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
#: Prefix of the entry point that `register_vec` registers; the env's id follows.
_BY_ID = f"{__package__}.by_id:"


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    vectorization_mode: Any = None,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """Build a `VectorEnv` of `num_envs` copies of a registered env.

    Args:
        id: registered name, or a spec, which may be that of a vector env. A name `module:id` imports the module first.
        num_envs: number of envs, 1 by default.
        vectorization_mode: 'process' (default), 'serial', 'auto' or 'ray'. Gymnasium's names 'async' and 'sync' mean
            the same as the first two.
        vector_kwargs: options of `VectorEnv`.
        wrappers: applied to each env in this order, in its worker.
        **kwargs: options of `VectorEnv` by their names, such as `timeouts` and `failures`. All others are passed to the
            env, as by `gymnasium.make`.

    Example:
        >>> envs = make_vec("CartPole-v1", num_envs=2, vectorization_mode="serial", sutton_barto_reward=True)
        >>> envs.spec.id, envs.num_envs
        ('CartPole-v1', 2)
        >>> envs.close()

    Raises:
        gymnasium.error.Error: there is no such env.
        ConfigError: an option is wrong, or the env has no argument that resembles an option.
        Exception: any error of the constructor of `VectorEnv`.
    """
    return build_vec(make_vec, id, num_envs, vectorization_mode, vector_kwargs, wrappers, kwargs)


def build_vec(
    caller: Callable[..., Any], id: Any, num_envs: int, mode: Any, options: Any, wrappers: Any, kwargs: dict[str, Any]
) -> VectorEnv:
    """Make a vector env as `make_vec` does; errors about misspelt options name `caller` and its parameters."""
    spec, env_kwargs = _read_spec(id)
    num_envs = env_kwargs.pop("num_envs", num_envs)
    mode = env_kwargs.pop("vectorization_mode", mode)
    options = env_kwargs.pop("vector_kwargs", options) or {}
    wrappers = env_kwargs.pop("wrappers", wrappers) or ()
    if not isinstance(options, Mapping):
        raise ConfigError(f"vector_kwargs: expected a dict, got {options!r}", key="vector_kwargs")
    options, wrappers = dict(options), check_callables("wrappers", wrappers)
    for key, value in kwargs.items():
        (options if key in OPTION_NAMES else env_kwargs)[key] = value
    num_envs = check_whole("num_envs", num_envs, 1)
    check_options("vector_kwargs", options)
    options["backend"] = options.get("backend") or _backend_of(mode)
    options = move_options(options)
    backend = options["backend"]
    if not isinstance(backend, RayOptions):
        del options["backend"]
    factory = EnvFactory(_make, (spec, named_in_main([spec])), env_kwargs, wrappers)
    try:
        envs = VectorEnv([factory] * num_envs, **{"backend": backend, **options})
    except TypeError as error:
        _raise_if_misspelt(caller, kwargs, error)
        raise
    envs.spec = _vector_spec(spec, env_kwargs, num_envs, backend, options, wrappers)
    return envs


def register_vec(id: str, name: str | None = None) -> str:
    """Register a name under which `gymnasium.make_vec` makes a `VectorEnv`, and return it.

    Options of `VectorEnv` and arguments of the env are given by their names, as to `make_vec`, and no mode.
    `gymnasium.make` makes a single env by this name, unless the env was registered with wrappers, which Gymnasium does
    not allow for vector envs.

    Args:
        id: a registered env. A name `module:id` imports the module first.
        name: the new name. None (default): `vecenv/` and the id, in which `/` becomes a dot.

    Example:
        >>> name = register_vec("CartPole-v1")
        >>> envs = gymnasium.make_vec(name, num_envs=2, backend="serial", sutton_barto_reward=True)
        >>> envs.spec.id, envs.num_envs
        ('vecenv/CartPole-v1', 2)
        >>> envs.close()

    Raises:
        gymnasium.error.Error: there is no such env, or it has an entry point for vector envs only.
        ConfigError: another env has that name, or `name` is not a string.
    """
    if not isinstance(id, str):
        raise gymnasium.error.Error(f"id: expected a name, got {type(id).__name__}")
    spec = find_spec(id)
    if spec.entry_point is None:
        raise gymnasium.error.Error(f"{spec.id} has no entry point for single envs")
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"name: expected a name or None, got {name!r}", key="name")
    name = name or f"vecenv/{spec.id.replace('/', '.')}"
    entry_point = f"{_BY_ID}{spec.id}"
    known = gymnasium.registry.get(name)
    if known is None:
        has_wrappers = bool(spec.additional_wrappers)
        gymnasium.register(
            name,
            entry_point=None if has_wrappers else spec.entry_point,
            vector_entry_point=entry_point,
            reward_threshold=spec.reward_threshold,
            nondeterministic=spec.nondeterministic,
            max_episode_steps=spec.max_episode_steps,
            order_enforce=spec.order_enforce,
            disable_env_checker=spec.disable_env_checker,
            kwargs={} if has_wrappers else copy.deepcopy(spec.kwargs),
        )
    elif known.vector_entry_point != entry_point:
        raise ConfigError(f"name: {name!r} is the id of another env", key="name")
    return name


def _make(spec: EnvSpec, named: Mapping[str, Any], /, **kwargs: Any) -> Any:
    """Make an env from a spec that need not be registered; `named` are the objects of `__main__` that it names."""
    add_to_main(named)
    return gymnasium.make(spec, **kwargs)


def _read_spec(id: str | EnvSpec) -> tuple[EnvSpec, dict[str, Any]]:
    if isinstance(id, str):
        found = find_spec(id)  # imports the module, suggests similar names, warns about old versions
    elif isinstance(id, EnvSpec):
        found = id
    else:
        raise gymnasium.error.Error(
            f"id: expected a name or an EnvSpec, got {type(id).__name__}; "
            "for a function, write VectorEnv([env_fn] * num_envs)"
        )
    spec = copy.deepcopy(found)
    env_kwargs, spec.kwargs = spec.kwargs, {}
    if env_kwargs.get("vectorization_mode") == "vector_entry_point":  # Gymnasium's default
        del env_kwargs["vectorization_mode"]
    origin = str(spec.vector_entry_point).removeprefix(_BY_ID)
    if origin not in (str(spec.vector_entry_point), spec.id):  # made by `register_vec`
        spec, own = _read_spec(origin)
        options = {key: env_kwargs.pop(key) for key in OPTION_NAMES & env_kwargs.keys()}
        env_kwargs = {**own, **env_kwargs, **({"vector_kwargs": options} if options else {})}
    return spec, env_kwargs


def _raise_if_misspelt(caller: Callable[..., Any], kwargs: Mapping[str, Any], error: TypeError) -> None:
    """Raise ConfigError if an env refused a keyword that resembles an option of `caller` or `VectorEnv`."""
    known = {*OPTION_NAMES, *inspect.signature(caller).parameters} - {"kwargs", "options"}
    for name in kwargs:
        hint = "" if name in known else suggest(name, known)
        if hint and f"unexpected keyword argument {name!r}" in str(error):
            raise ConfigError(
                f"{caller.__name__}: neither VectorEnv nor the env has an option {name!r}{hint}", key=name
            ) from error


def _backend_of(mode: Any) -> str:
    name = "process" if mode is None else getattr(mode, "value", mode)
    check_choice("vectorization_mode", name, tuple(_BACKEND_OF))
    return _BACKEND_OF[name]


def _vector_spec(
    spec: EnvSpec, env_kwargs: dict[str, Any], num_envs: int, backend: Any, options: dict[str, Any], wrappers: Any
) -> EnvSpec:
    """Return a spec from which `make_vec` builds the same vector env."""
    result = copy.deepcopy(spec)
    plain = {  # `EnvSpec.to_json` takes dicts only
        name: given_fields(value) if isinstance(value, Timeouts | FailurePolicy | EngineOptions) else value
        for name, value in options.items()
    }
    mode = "ray" if isinstance(backend, RayOptions) else backend
    values = (num_envs, mode, plain, wrappers)
    result.kwargs = {**env_kwargs, **{key: value for key, value in zip(_VECTOR_KEYS, values) if value}}
    return result
