"""Snapshots of an env's state between two episodes or within one, and their restoring in another process.

    worker: between two episodes -> Snapshotter.capture -> bytes -> (the worker dies)
    new worker: Snapshotter.restore -> reset

Most envs need no snapshot for a reset with a seed. A reset without a seed continues from the state of generators,
running statistics and emulators. A snapshot saves this state layer by layer, from the outermost wrapper to the env
itself. The state of each layer is saved in the first of these ways that exists:

    hook        get_state() and set_state(state), defined by its class
    adapter     registered for its class or a base of it: `register_state_adapter`, or those of `state.adapters`
    pickle      of the layer and all layers inside it, if registered by `register_pickled_state`
    generators  only the random generators in its attributes and spaces; these are saved for all layers

Within an episode, the state of the first two kinds is known only if the functions are of vecenv. Of known classes that
have no adapter for it, plain attributes are saved.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from vecenv.envs.adapt import inner_env
from vecenv.envs.seeding import EpisodeSeeds
from vecenv.envs.state.adapters import (
    EPISODE,
    HOOK_LIFETIMES,
    LIFE,
    PICKLED,
    SEED,
    STATE_ADAPTERS,
    TRUSTED,
    UNCOVERED,
    StateAdapter,
)
from vecenv.envs.state.effects import AttributeWatch, is_plain, set_attributes
from vecenv.envs.state.generators import (
    find_generators,
    get_generator_state,
    is_space_or_generator,
    restore_generators,
)
from vecenv.errors import ConfigError, StateError, warn_caller
from vecenv.values.own_attributes import MISSING, attributes_of, get_own_attr, read_attributes, set_own_attr
from vecenv.values.pickling import dump_by_name, load

__all__ = ["register_pickled_state", "register_state_adapter"]

_UNKNOWN = (
    "unknown class; only its random generators are kept. Define get_state() and set_state(state), or call "
    "vecenv.register_state_adapter or vecenv.register_pickled_state"
)
_REMEDY = ". Call vecenv.register_pickled_state for the class, or define get_state() and set_state(state)"
#: Packages whose adapters keep only the state of episodes, without attributes that methods have set.
_TRUSTED_PREFIXES = tuple(f"{name}." for name in TRUSTED)
#: Packages whose classes have no state beside their attributes.
_IN_ATTRIBUTES = ("gymnasium.", "vecenv.")
#: Layers whose attributes are compared; those of further envs of a vector env are compared with it.
_MOST_WATCHED = 1000
_MAX_DEPTH = 100  # layers; a deeper stack surely contains itself


class Snapshot(NamedTuple):
    """The state of an env stack."""

    state: bytes
    #: Whether all layers are covered; False if a layer may have state that was not found.
    is_complete: bool
    #: Whether it also contains everything that methods of the env may have changed.
    holds_calls: bool = False


class Snapshotter:
    """Capture and restore the state of env stacks. It has no state of its own and can be pickled.

    Example:
        >>> env, twin = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")
        >>> _ = env.reset(seed=5)
        >>> snapshot = SNAPSHOTTER.capture(env)
        >>> SNAPSHOTTER.restore(twin, snapshot.state)
        >>> bool((env.reset()[0] == twin.reset()[0]).all()), snapshot.is_complete, SNAPSHOTTER.spans_episodes(env)
        (True, True, False)
    """

    def spans_episodes(self, env: Any) -> bool:
        """Return whether the stack has state that lasts even over a reset with a seed.

        The result may change to True later, e.g. when a space is sampled for the first time. It is False for an
        unknown class whose only visible generator is `np_random`.
        """
        for layer in _layers(env):
            plan = _plan_of(type(layer))
            if plan.capture is not None and _lifetime_of(plan, layer) == LIFE:
                return True
            for _, path, _ in find_generators(layer, 0):
                if len(path) > 1 or not (plan.is_trusted or path == ("_np_random",)):
                    return True
        return False

    def is_built_alike(self, env: Any) -> bool:
        """Return whether a new stack has no state that its next construction may not repeat.

        The generator `np_random` of the innermost layer does not count.
        """
        layers = list(_layers(env))
        for depth, layer in enumerate(layers):
            plan = _plan_of(type(layer))
            if plan.capture is not None and _lifetime_of(plan, layer) != EPISODE:
                return False
            own = [] if layer is not layers[-1] else [("_np_random",)]
            if any(path not in own for _, path, _ in find_generators(layer, depth)):
                return False
        return True

    def capture(self, env: Any, *, within_episode: bool = False) -> Snapshot | None:
        """Take a snapshot. Call this right before a reset, or between two steps if `within_episode`.

        If the env has not made its `np_random` yet, it is made now, as at its first draw. Some episodes of a vector
        env are always running, so its state is always one within episodes.

        Returns:
            The snapshot, or None if the innermost env is of an unknown class without generator or hook, so that its
            state cannot be saved. Within an episode also None if the state of any layer is not known exactly: of a
            class that is neither registered by `register_pickled_state` nor one of Gymnasium, ALE or vecenv, or that
            cannot be pickled now.

        Raises:
            StateError: the state cannot be pickled.
        """
        layers = list(_layers(env))
        is_running = not _plan_of(type(env)).only_between_episodes
        within_episode = within_episode and not is_running
        while True:
            payload, is_complete = _capture_layers(layers, within_episode=within_episode)
            if payload is None or not (is_complete or not (within_episode or is_running)):
                return None
            try:
                return Snapshot(dump_by_name(payload), is_complete, is_complete and _holds_calls(layers))
            except Exception as error:
                if within_episode:  # between two episodes it may be possible
                    return None
                if not _mark_unpicklable(layers, payload[1]):
                    raise StateError(f"state of {layers[-1]!r}: cannot be pickled: {error}") from error

    def layers(self, env: Any) -> tuple[str, ...]:
        """Return the names of the classes of all layers whose states are saved separately, outermost first."""
        return tuple([_plan_of(type(layer)).name for layer in _layers(env)])

    def capture_exactly(self, env: Any, *, within_episode: bool) -> bytes:
        """Return the state between two steps, or right before a reset, for `restore` in any env of the same classes.

        Hooks, and functions of `register_state_adapter`, are called within episodes, too.

        Raises:
            StateError: the state of a layer is not known, or cannot be pickled; the text names its class.
            Exception: raised by a hook, or by a registered function.
        """
        layers = list(_layers(env))
        payload, _ = _capture_layers(layers, within_episode=within_episode, is_asked=True)
        try:
            return dump_by_name(payload)
        except Exception as error:
            raise StateError(f"{_plan_of(type(env)).name}: its state cannot be pickled: {error}") from error

    def restore(self, env: Any, state: bytes) -> None:
        """Put a captured state into an env built by the same constructor; call right before a reset.

        A layer that makes the env inside it at its first reset is reset for that. After an error the env may be
        partly restored. StateError is raised if the stack has other classes, or no adapter is registered here for
        one of them; exceptions of a layer's own `set_state` are passed on.
        """
        names, states, values, paths, generators = load(state)
        layers = _restore_layers(env, names, states)
        for depth, name, value in values:
            present = get_own_attr(layers[depth], name)
            if isinstance(value, EpisodeSeeds) and type(present) is type(value):
                vars(present).update(vars(value))  # the object stays, because others may refer to it
            else:
                set_own_attr(layers[depth], name, value)
        restore_generators(layers, paths, generators)

    def capture_new(self, env: Any) -> bytes | None:
        """Return the state of an env that has just been built, for `renew`; None if it is not known exactly.

        It is not known either if the constructor has made a generator, which another construction may seed otherwise.
        """
        if _has_generator(env) or uncovered_layers(env):
            return None
        snapshot = self.capture(env, within_episode=True)
        _remove_generator(env)  # the capture has made it
        return None if snapshot is None or not snapshot.is_complete else snapshot.state

    def renew(self, env: Any, state: bytes) -> bool:
        """Make a used env as it was when `capture_new` returned this state; return whether it is.

        It is not if the env has made generators for its spaces: a new env makes them from entropy of the system.
        """
        self.restore(env, state)
        _remove_generator(env)
        return not _has_generator(env)

    @contextlib.contextmanager
    def registrations_kept(self) -> Iterator[None]:
        """Forget, at the end of the context, the classes that were registered in it."""
        before = dict(_registered)
        try:
            yield
        finally:
            _registered.clear()
            _registered.update(before)
            _plans.clear()  # they keep their classes

    def watch(self, env: Any, *, is_deep: bool) -> AttributeWatch:
        """Read the attributes of all layers, so that `changes` can compare them after a call; see `AttributeWatch`."""
        return AttributeWatch(_watched_layers(env), _captured, is_deep=is_deep)

    def changes(self, env: Any, watch: AttributeWatch) -> dict[tuple[int, str], bytes] | None:
        return watch.changes()

    def set_attributes(self, env: Any, changes: dict[tuple[int, str], bytes]) -> None:
        set_attributes(_watched_layers(env), changes)


SNAPSHOTTER = Snapshotter()


def _has_generator(env: Any) -> bool:
    return any(find_generators(layer, depth) for depth, layer in enumerate(_layers(env)))


def _remove_generator(env: Any) -> None:
    """Remove the generator `np_random` of the innermost env, so that the next reset makes it."""
    *_, base = _layers(env)
    if get_own_attr(base, "_np_random", MISSING) is not MISSING:
        set_own_attr(base, "_np_random", None)
        set_own_attr(base, "_np_random_seed", None)


def _watched_layers(env: Any) -> list[Any]:
    """Return all layers of a stack, and of the envs in a vector env."""
    layers: list[Any] = []
    pending = [env]
    while pending and len(layers) < _MOST_WATCHED:
        layer = pending.pop(0)
        if any(layer is other for other in layers):
            continue
        layers.append(layer)
        inner = inner_env(layer) if _may_have(layer, "env") or _may_have(layer, "_env") else None
        envs = get_own_attr(layer, "envs") if _may_have(layer, "envs") else None
        pending += [inner] if inner is not None else envs if isinstance(envs, list | tuple) else []
    return layers


def _may_have(layer: Any, name: str) -> bool:
    """Return whether an object may have an attribute of its own; quicker than an error."""
    return name in vars(layer) or hasattr(type(layer), name)


def _captured(layer: Any) -> Any:
    """Return the state of a layer by its adapter or hook; None if there is none, () if its attributes contain that."""
    plan = _plan_of(type(layer))
    if plan.name.startswith(_IN_ATTRIBUTES):
        return ()
    return None if plan.capture is None or plan.holds_inner else plan.capture(layer)


def _holds_calls(layers: list[Any]) -> bool:
    """Return whether the state of a stack contains everything that a method of it may change.

    The class of the innermost layer must have a hook or adapter of the user's; the wrappers around it must be known.
    """
    *wrappers, base = map(_plan_of, map(type, layers))
    return (
        base.capture is not None
        and not base.name.startswith(_TRUSTED_PREFIXES)
        and not any(plan.gap is not None or not (plan.is_trusted or plan.capture) for plan in wrappers)
    )


def uncovered_layers(env: Any) -> list[str]:
    """Return '<class>: <reason>' for each layer whose state is not covered, outermost first; empty if all are."""
    gaps = []
    continues_episode = False
    for layer in _layers(env):
        plan = _plan_of(type(layer))
        gap = _find_gap(plan, layer, continues_episode)
        if gap is not None:
            gaps.append(f"{plan.name}: {gap}")
        continues_episode = continues_episode or _continues_episode(layer)
    return gaps


def register_state_adapter(
    target: type | str,
    capture: Callable[[Any], Any],
    restore: Callable[[Any, Any], None],
    spans: bool = True,
) -> None:
    """Register functions that capture and restore the state of an env or wrapper class and its subclasses.

    This must also run in the workers; best call it in the module that defines the class or the env's factory. It
    replaces an earlier registration, a built-in one, and the class's own hook. A hook that a subclass defines takes
    precedence over it.

    Args:
        target: the class, or its full dotted name, which avoids importing it.
        capture: takes a layer; returns the layer's own state as a picklable object, without that of the env inside.
        restore: takes a new layer and such an object, and sets the layer's state.
        spans: False if a reset with a seed initialises all of this state, so that only other resets need it.

    Example:
        >>> class Tired(gymnasium.Wrapper):
        ...     steps_ever = 0
        >>> register_state_adapter(
        ...     Tired, lambda layer: layer.steps_ever, lambda layer, steps: setattr(layer, "steps_ever", steps)
        ... )
        >>> uncovered_layers(Tired(gymnasium.make("CartPole-v1")))
        []

    Raises:
        ConfigError: `target` is not a class or dotted name, or `capture` or `restore` is not callable.
    """
    for key, function in (("capture", capture), ("restore", restore)):
        if not callable(function):
            raise ConfigError(f"register_state_adapter: expected a function, got {key}={function!r}", key=key)
    _register("register_state_adapter", target, StateAdapter(capture, restore, LIFE if spans else SEED))


def register_pickled_state(target: type | str) -> None:
    """Save the state of an env or wrapper class, and of its subclasses, by pickling all its attributes.

    The attributes include the env inside, so one registration is enough for a whole stack: register the class of
    the outermost layer that has state. It is captured between episodes, and within long ones. The cost is that of
    pickling the stack. State that pickle does not see, such as objects behind a native handle, is not saved. This must
    also run in the workers. Like `register_state_adapter` it takes precedence over a hook. ConfigError is raised if
    `target` is not a class or its full dotted name, which avoids importing it.

    Example:
        >>> class Tired(gymnasium.Wrapper):
        ...     steps_ever = 0
        >>> register_pickled_state(Tired)
        >>> uncovered_layers(Tired(gymnasium.make("CartPole-v1")))
        []
    """
    _register("register_pickled_state", target, PICKLED)


def _register(what: str, target: type | str, adapter: StateAdapter) -> None:
    if not (isinstance(target, type) or (isinstance(target, str) and "." in target)):
        raise ConfigError(f"{what}: expected a class or its dotted name, got {target!r}", key="target")
    _registered[target] = adapter
    _plans.clear()


# ---- layers of a stack -------------------------------------------------------------------------


def _layers(env: Any) -> Iterator[Any]:
    layer = env
    for _ in range(_MAX_DEPTH):
        if layer is None:
            return
        yield layer
        layer = _next(layer)
    raise StateError(f"{type(env).__name__}: more than {_MAX_DEPTH} layers; does a wrapper contain itself?")


def _next(layer: Any) -> Any:
    """Return the next layer whose state is saved separately; None if there is none."""
    return None if _plan_of(type(layer)).holds_inner else inner_env(layer)


# ---- the plan for each class, made once --------------------------------------------------------


@dataclass(frozen=True)
class _Plan(StateAdapter):
    name: str = ""
    is_trusted: bool = False  # it has no unknown state
    gap: str | None = None
    is_built_in: bool = False  # vecenv's own functions capture the state, and their gaps are known


_registered: dict[type | str, StateAdapter] = {}
_plans: dict[type, _Plan] = {}


def dotted_name(cls: type) -> str:
    """Return the name under which a class is registered, '<module>.<qualified name>'."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _plan_of(cls: type) -> _Plan:
    plan = _plans.get(cls)
    if plan is None:
        plan = _plans[cls] = _make_plan(cls)
    return plan


def _make_plan(cls: type) -> _Plan:
    name = dotted_name(cls)
    is_trusted = cls.__module__.partition(".")[0] in TRUSTED
    for base in cls.__mro__:
        base_name = dotted_name(base)
        adapter = _registered.get(base) or _registered.get(base_name)
        if adapter is not None:
            return _Plan(**vars(adapter), name=name, is_trusted=True, is_built_in=adapter is PICKLED)
        if ("get_state" in vars(base) or "set_state" in vars(base)) and _has_hook(cls):
            return _hook_plan(cls, name, base, is_trusted)
        adapter = STATE_ADAPTERS.get(base_name)
        if adapter is not None and (base is cls or (is_trusted and adapter.with_subclasses)):
            return _Plan(**vars(adapter), name=name, is_trusted=True, is_built_in=True)
        if adapter is not None and adapter.capture is not None:
            gap = f"may hold more than {base.__name__}, of which it is a subclass"
            return _Plan(**vars(adapter), name=name, gap=gap)
        if base_name in UNCOVERED:
            return _Plan(is_whole=False, name=name, gap=UNCOVERED[base_name])
    return _Plan(is_whole=False, name=name, gap=_UNKNOWN)


def _has_hook(cls: Any) -> bool:
    """Return whether the class has both methods of a hook, with the right numbers of arguments."""
    get_state, set_state = getattr(cls, "get_state", None), getattr(cls, "set_state", None)
    if not (callable(get_state) and callable(set_state)):
        return False
    try:
        inspect.signature(get_state).bind(None)
        inspect.signature(set_state).bind(None, None)
    except (TypeError, ValueError):  # MujocoEnv.set_state(qpos, qvel) is not a hook
        return False
    return True


def _hook_plan(cls: Any, name: str, base: type, is_trusted: bool) -> _Plan:
    plan = _Plan(cls.get_state, cls.set_state, LIFE, name=name, is_trusted=True)
    is_ours = base.__module__.partition(".")[0] == "vecenv"
    if is_ours and is_trusted:
        if not getattr(cls, "state_names", True):
            return _Plan(name=name, is_trusted=True, is_built_in=True)
        lifetime = next((HOOK_LIFETIMES[n] for n in map(dotted_name, cls.__mro__) if n in HOOK_LIFETIMES), LIFE)
        return replace(plan, lifetime=lifetime, is_built_in=True, find_gap=getattr(cls, "find_state_gap", None))
    own = [one for one in cls.__mro__ if one.__module__.partition(".")[0] != "vecenv"]
    if is_ours and not any("state_names" in vars(one) for one in own):
        gap = f"inherits get_state() from {base.__name__}, which does not return its state; list that in state_names"
        return replace(plan, is_whole=False, is_trusted=False, gap=gap)
    return plan


def _lifetime_of(plan: _Plan, layer: Any) -> str:
    return plan.lifetime if isinstance(plan.lifetime, str) else plan.lifetime(layer)


def _continues_episode(layer: Any) -> bool:
    """Return whether the layer's next reset continues the episode of the env inside it, as after a lost life."""
    return get_own_attr(layer, "was_real_done") is False or not _plan_of(type(layer)).only_between_episodes


def _find_gap(
    plan: _Plan, layer: Any, continues_episode: bool, within: dict[str, Any] | None = None, *, is_asked: bool = False
) -> str | None:
    """Return why the state of a layer is not covered; None if it is.

    Args:
        continues_episode: whether a wrapper around it continues its episode after a reset.
        within: None between two episodes; else the further attributes that are saved within one.
        is_asked: whether the caller asks for this state, so that functions of the user's are trusted.
    """
    if plan.gap is not None:
        return plan.gap
    if within is not None and not (plan.is_built_in or is_asked):
        return "its functions may return the state between two episodes only"
    if (within is not None or continues_episode) and not plan.holds_inner and _has_own_methods(layer):
        return "its step or reset was replaced by a function that may hold state of its own"
    if within is not None and not plan.is_whole:
        return None if within else "its state within an episode is not plain data"
    if get_own_attr(layer, "_env", MISSING) is None or get_own_attr(layer, "env", MISSING) is None:
        return "it has not made its env yet"
    if continues_episode and not plan.is_whole:
        return "a wrapper around it continues its episode after a reset, and state of an episode is not saved"
    return plan.find_gap(layer) if plan.find_gap is not None else None


def _has_own_methods(layer: Any) -> bool:
    """Return whether `step` or `reset` of an object is not the method of its class."""
    for name in ("step", "reset"):
        method = getattr(type(layer), name, None)
        if method is not None and getattr(getattr(layer, name), "__func__", None) is not method:
            return True
    return False


# ---- capture -------------------------------------------------------------------------------------

# Gymnasium's `np_random` properties, which make `_np_random` when it is first read.
_GYMNASIUM_NP_RANDOM: tuple[Any, ...] = (gymnasium.Env.np_random, gymnasium.vector.VectorEnv.np_random)
# Attributes with a seed for the next reset in envs with old calls, and the seed that np_random was made from.
_SEED_NAMES = ("_np_random_seed", "_seed", "_dynamic_seed")


def _capture_layers(layers: list[Any], *, within_episode: bool = False, is_asked: bool = False) -> tuple[Any, bool]:
    """Return (payload, is_complete): the object to pickle, or None, and whether all layers are covered.

    Within an episode, the first layer that is not covered ends the capture. If `is_asked`, it raises StateError, and
    exceptions of captures are passed on.
    """
    names: list[str] = []
    states: list[Any] = []
    values: list[tuple[int, str, Any]] = []
    paths: list[tuple[int, tuple[Any, ...], int]] = []
    indices: dict[int, int] = {}  # id of a generator -> its index; several layers may share one
    generators: list[Any] = []
    is_complete, is_kept = True, False
    continues_episode, may_continue_episode = False, within_episode
    base = layers[-1]
    if getattr(type(base), "np_random", None) in _GYMNASIUM_NP_RANDOM and base._np_random is None:
        _ = base.np_random  # the property makes the generator
    for depth, layer in enumerate(layers):
        plan = _plan_of(type(layer))
        names.append(plan.name)
        state = None
        if plan.capture is not None and (may_continue_episode or _lifetime_of(plan, layer) != EPISODE):
            try:
                state = (plan.capture(layer),)
            except Exception as error:
                if is_asked:
                    raise
                if within_episode:
                    return None, False
                plan = _mark_uncapturable(type(layer), plan, error)
        states.append(state)
        attributes = attributes_of(layer)
        within = _plain_attributes(plan, layer, attributes) if within_episode else None
        gap = _find_gap(plan, layer, continues_episode, within, is_asked=is_asked) if is_complete else None
        if gap is not None:
            if is_asked:
                raise StateError(f"{plan.name}: {gap}" + ("" if gap is _UNKNOWN else _REMEDY))
            is_complete = False
            if within_episode:
                return None, False
        values += [(depth, name, value) for name, value in (within or {}).items()]
        for name, value in read_attributes(layer, _SEED_NAMES).items():
            if isinstance(value, (int, np.integer, type(None))):
                values.append((depth, name, value))
        is_kept = state is not None or plan.gap is None  # the value for the innermost layer remains after the loop
        for _, path, generator in find_generators(layer, depth, attributes):
            is_kept = True
            if isinstance(generator, EpisodeSeeds):
                values.append((depth, path[0], generator))
                continue
            index = indices.get(id(generator))
            if index is None:
                index = indices[id(generator)] = len(generators)
                generators.append((type(generator), get_generator_state(generator)))
            paths.append((depth, path, index))
        continues_episode = continues_episode or _continues_episode(layer)
        may_continue_episode = may_continue_episode or continues_episode or not plan.is_trusted
    return (None if not is_kept else (names, states, values, paths, generators)), is_complete


def _plain_attributes(plan: _Plan, layer: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that are the state within an episode of a class whose adapter does not save it.

    {} is returned if the adapter saves it, or if an attribute is no plain data, such as an object of a class in C.
    """
    if plan.is_whole or not plan.name.startswith(_IN_ATTRIBUTES):
        return {}
    inner = inner_env(layer)
    found = {
        name: value
        for name, value in attributes.items()
        if value is None or not (value is inner or is_space_or_generator(value) or isinstance(value, EnvSpec))
    }
    return found if all(map(is_plain, found.values())) else {}


def _mark_uncapturable(cls: type, plan: _Plan, error: Exception) -> _Plan:
    """Warn that the state of a class cannot be captured, and treat the class as unknown from now on."""
    reason = f"its state cannot be captured: {type(error).__name__}: {error}"
    warn_caller(f"{plan.name}: {reason}; it is lost if the env has to be rebuilt", RuntimeWarning)
    plan = _plans[cls] = replace(plan, capture=None, restore=None, is_trusted=False, gap=reason)
    return plan


def _mark_unpicklable(layers: list[Any], states: list[Any]) -> bool:
    """Mark the classes whose state cannot be pickled as uncapturable; return whether there was one."""
    found = False
    for layer, state in zip(layers, states, strict=True):
        try:
            dump_by_name(state)
        except Exception as error:
            _mark_uncapturable(type(layer), _plan_of(type(layer)), error)
            found = True
    return found


# ---- restore -------------------------------------------------------------------------------------


def _restore_layers(env: Any, names: list[str], states: list[Any]) -> list[Any]:
    """Restore each layer's own state, outermost first, as a layer may have to make the env inside it; return them."""
    layers: list[Any] = []
    layer = env
    for depth, (name, state) in enumerate(zip(names, states, strict=True)):
        found = "nothing" if layer is None else _plan_of(type(layer)).name
        if found != name:
            raise StateError(f"restore of {type(env).__name__}: expected {name} as layer {depth}, got {found}")
        layers.append(layer)
        if state is not None:
            restore = _plan_of(type(layer)).restore
            if restore is None:
                raise StateError(f"restore of {name}: no adapter is registered for it in this process")
            restore(layer, state[0])
        inner = _next(layer)
        if inner is None and depth + 1 < len(names):
            layer.reset()  # it makes its env at its first reset
            inner = _next(layer)
        layer = inner
    if layer is not None:
        raise StateError(f"restore of {type(env).__name__}: unexpected {type(layer).__name__} as layer {len(names)}")
    return layers
