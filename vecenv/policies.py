"""PolicyCaller: calls a policy with a batch of observations and checks its answer.

    observations, env ids -- policy --> actions, or (actions, extras) -- checks --> one array per leaf of the space

A policy is any callable `policy(obs, env_id)`:

    obs         nested like the observation space, leaves (B, *S), and tuples of B objects for parts without a fixed
                shape, such as text; the policy must not change them
    env_id      int64 (B,), the env of each row
    returns     actions, nested like the action space, leaves (B, *S);
                or (actions, extras), where extras is a dict of arrays (B, ...), such as log-probabilities, or None, as
                from `predict` of Stable-Baselines3

An agent with a method `predict`, such as a model of Stable-Baselines3 or its policy, is a policy, too. `predict` gets
the observations, and `deterministic=True` if it has that parameter. A policy may have two further methods:

    begin(env_ids)              int64 (K,): these envs begin an episode, and their first observations come next. A
                                recurrent policy clears its states there.
    bootstrap(obs, env_id)      returns values (B,): estimates of the return that follows these observations; (B, *K)
                                where rewards have several numbers

A torch module is called with tensors on its own device in the place of arrays, without gradients. Its `forward` takes
(obs, env_id), or obs alone; its answers may be tensors.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from .core.layout.spec import Array, Spec
from .errors import ConfigError, SpaceError
from .values.nested import map_structure
from .values.signatures import parameters_of

__all__ = ["Answer", "PolicyCaller", "check_policy", "evaluation_mode", "no_objects"]

#: Begin of the errors about actions.
_ACTIONS = "actions of the policy"


class Answer(NamedTuple):
    """The checked answer of a policy for B rows: `actions`, one array (B, *S) per leaf; `extras`, arrays (B, ...)."""

    actions: tuple[Array, ...]
    extras: dict[str, Array]


class PolicyCaller:
    """Calls one policy.

    Args:
        policy: see the text of this module.
        action_space: of one env.
        what: the name of the function that got the policy, for errors.
        first_env_id: number of env 0 for the policy, if the envs are a part of all envs.
        reward_shape: K, the shape of one reward; () for one number.

    Attributes:
        spec: the leaves of the action space. `spec.batch` nests the arrays of an `Answer`.
        has_begin, can_bootstrap: whether the policy has these methods.

    Raises:
        ConfigError: the policy cannot be called with (obs, env_id), or actions of this space have no fixed dtype and
            shape.
    """

    def __init__(
        self,
        policy: Any,
        action_space: Space[Any],
        what: str,
        *,
        first_env_id: int = 0,
        reward_shape: tuple[int, ...] = (),
    ) -> None:
        agent, policy = policy, check_policy(policy, what)
        self.policy = policy
        self._first_env_id = first_env_id
        self._reward_shape = reward_shape
        self.spec = Spec(action_space, _ACTIONS)
        if not self.spec.is_all_arrays:
            raise ConfigError(f"{what}: actions of {action_space} have no fixed dtype and shape", key="policy")
        self._num_choices = int(action_space.n) if isinstance(action_space, spaces.Discrete) else 0
        self._float_leaves = [leaf for leaf in self.spec.leaves if leaf.dtype.kind in "fc"]
        self._pair_keys = _keys_of_second_part(action_space)
        module = _torch_module(policy)
        is_function = isinstance(policy, types.FunctionType | types.MethodType)
        if module is None and is_function and not _takes_two(policy):
            text = f"{what}: policy: {policy!r} does not take (obs, env_id); write lambda obs, env_id: ..."
            raise ConfigError(text, key="policy")
        self._act: Callable[[Any, Array], Any] = policy if module is None else _call_with_tensors(module, policy)
        self._begin: Any = getattr(agent, "begin", None)
        self._bootstrap: Any = getattr(agent, "bootstrap", None)
        self.has_begin, self.can_bootstrap = callable(self._begin), callable(self._bootstrap)
        if module is not None and self.can_bootstrap:
            self._bootstrap = _call_with_tensors(module, self._bootstrap)

    def begin(self, env_ids: Array) -> None:
        """Inform the policy that these envs, int64 (K,), begin an episode. Does nothing without envs or `begin`."""
        if self.has_begin and len(env_ids):
            self._begin(self._number(env_ids))

    def _number(self, env_ids: Array) -> Array:
        """Return the ids of envs as the policy knows them."""
        return env_ids + self._first_env_id if self._first_env_id else env_ids

    def act(self, obs: Any, env_ids: Array) -> Answer:
        """Return the policy's actions for these observations.

        Args:
            obs: nested like the observation space, leaves (B, *S).
            env_ids: int64 (B,), the env of each row.

        Raises:
            SpaceError: the actions do not fit their space or contain NaN, their number is not B, or extras are not
                arrays with B rows.
            Exception: an exception of the policy.
        """
        env_ids = self._number(env_ids)
        actions = self._act(obs, env_ids)
        extras: Any = {}
        if type(actions) is tuple and len(actions) == 2 and (actions[1] is None or self._is_extras(actions[1])):
            actions, extras = actions[0], actions[1] or {}
        count = len(env_ids)
        actions = _as_arrays(actions)
        self._refuse_logits(actions, count)
        leaves = self.spec.flatten_batch(actions, count)
        for leaf in self._float_leaves:
            self._check_numbers(leaf.path, leaves[leaf.index], env_ids)
        return Answer(leaves, {name: _read_column(name, value, count) for name, value in extras.items()})

    def _refuse_logits(self, actions: Any, count: int) -> None:
        if self._num_choices and isinstance(actions, np.ndarray) and actions.shape == (count, self._num_choices):
            expected, got = f"int64 ({count},)", f"{actions.dtype} {actions.shape}"
            text = f"{_ACTIONS}: expected {expected}, got {got}; return actions, such as logits.argmax(-1)"
            raise SpaceError(text, expected=expected, got=got)

    def bootstrap(self, obs: Any, env_ids: Array) -> Array:
        """Return the policy's estimates, (B, *K), of the returns after these observations; arguments as for `act`.

        Raises:
            SpaceError: the estimates do not have this shape.
            Exception: an exception of the policy.
        """
        values = np.asarray(_as_array(self._bootstrap(obs, self._number(env_ids))))
        shape = (*env_ids.shape, *self._reward_shape)
        if values.shape != shape:
            expected, got = str(shape), str(values.shape)
            text = f"bootstrap of the policy: expected shape {expected}, got {got}"
            raise SpaceError(text, expected=expected, got=got)
        return values

    def _is_extras(self, value: Any) -> bool:
        return isinstance(value, Mapping) and (self._pair_keys is None or set(value) != self._pair_keys)

    def _check_numbers(self, path: str, values: Array, env_ids: Array) -> None:
        is_nan = np.isnan(values)
        if is_nan.any():
            wrong = env_ids[is_nan.reshape(len(env_ids), -1).any(axis=1)].tolist()
            raise SpaceError(f"{path}: NaN for envs {wrong}", path=path, got="NaN")


def _keys_of_second_part(space: Space[Any]) -> set[Any] | None:
    """Return the keys of a dict that may be the second of two actions, where it could be mistaken for extras."""
    if isinstance(space, spaces.Tuple) and len(space.spaces) == 2 and isinstance(space.spaces[1], spaces.Dict):
        return set(space.spaces[1].spaces)
    return None


def _read_column(name: Any, value: Any, count: int) -> Array:
    column = np.asarray(_as_array(value))
    if not isinstance(name, str) or column.ndim == 0 or len(column) != count or column.dtype == object:
        got = f"{column.dtype} {column.shape}"
        raise SpaceError(
            f"extras of the policy: {name!r}: expected an array with {count} rows, got {got}", path=str(name), got=got
        )
    return column


# ---- predict ---------------------------------------------------------------------------------


def check_policy(policy: Any, what: str) -> Callable[..., Any]:
    """Return a policy, or a function that calls its `predict`, if it is an agent that has it or that method itself.

    An object that can be called is called, unless its `predict` has the parameters of Stable-Baselines3.

    Raises:
        ConfigError: the policy is neither callable nor an agent; `what` is the name of the function that got it.
    """
    owner = getattr(policy, "__self__", None) if getattr(policy, "__name__", "") == "predict" else policy
    predict = getattr(owner, "predict", None)
    known = parameters_of(predict) or {} if callable(predict) else {}
    if callable(policy) and not {"state", "deterministic"} <= known.keys():
        return policy  # type: ignore[no-any-return]
    if not callable(predict):
        raise ConfigError(f"{what}: policy: expected a callable policy(obs, env_id), got {policy!r}", key="policy")
    settings = {"deterministic": True} if "deterministic" in known else {}

    def act(obs: Any, _env_ids: Array) -> Any:
        answer = predict(obs, **settings)
        if type(answer) is tuple and len(answer) == 2 and answer[1] is not None and "state" in known:
            text = "predict returned a state: write a function that keeps it for each env_id, with begin(env_ids)"
            raise ConfigError(f"policy: {text}", key="policy")
        return answer

    return act


# ---- torch -----------------------------------------------------------------------------------


def _torch_module(policy: Any) -> Any:
    """Return the torch module that answers: the policy, or the object whose method it is; None: there is none."""
    torch: Any = sys.modules.get("torch")  # without the library, no object is a module
    owner = getattr(policy, "__self__", policy)
    return owner if torch is not None and isinstance(owner, torch.nn.Module) else None


@contextlib.contextmanager
def evaluation_mode(policy: Any) -> Iterator[None]:
    """Put the torch modules of a policy into evaluation mode, and each of their parts back at the end.

    These are the policy or the object whose method it is, the attributes of this object, the variables outside a
    function that it uses, and modules in lists, tuples and dicts of these.
    """
    torch: Any = sys.modules.get("torch")  # without the library, no object is a module
    found = [] if torch is None else [part for part in _parts_of(policy) if isinstance(part, torch.nn.Module)]
    modules = [module for module in found if any(part.training for part in module.modules())]
    modes = [(module.training, [(part, part.training) for part in module.modules()]) for module in modules]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for module, (mode, parts) in zip(modules, modes):
            module.train(mode)
            for part, own_mode in parts:  # some may have been in evaluation mode, such as frozen layers
                part.training = own_mode


def _parts_of(policy: Any) -> Iterator[Any]:
    """Yield the objects that a policy may answer with; see `evaluation_mode`."""
    if isinstance(policy, functools.partial):
        yield from _parts_of(policy.func)
        yield from _items_of([*policy.args, *policy.keywords.values()])
        return
    owner, function = getattr(policy, "__self__", policy), getattr(policy, "__func__", policy)
    yield owner
    yield from _items_of(getattr(owner, "__dict__", {}).values())
    if isinstance(function, types.FunctionType):
        used = inspect.getclosurevars(function)
        yield from _items_of([*used.nonlocals.values(), *used.globals.values()])


def _items_of(values: Iterable[Any]) -> Iterator[Any]:
    """Yield values, and the items of those that are lists, tuples or dicts."""
    for value in list(values):
        yield value
        if isinstance(value, list | tuple | dict):
            yield from value.values() if isinstance(value, dict) else value


def _call_with_tensors(module: Any, function: Any) -> Callable[[Any, Array], Any]:
    """Return `function`, made to take arrays: they become tensors on the device of the module."""
    torch: Any = sys.modules["torch"]
    takes_ids = _takes_two(module.forward if function is module else function)

    def call(obs: Any, env_ids: Array) -> Any:
        parameter = next(module.parameters(), None)
        device = None if parameter is None else parameter.device

        def convert(part: Any) -> Any:
            return torch.as_tensor(part, device=device) if isinstance(part, np.ndarray | np.generic) else part

        with torch.no_grad():
            tensors = map_structure(convert, obs)
            return function(tensors, convert(env_ids)) if takes_ids else function(tensors)

    return call


def _takes_two(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called with two positional arguments."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    return True


def _as_array(value: Any) -> Any:
    """Return a tensor as an array; other values are returned unchanged."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _as_arrays(actions: Any) -> Any:
    """Return nested actions with tensors as arrays."""
    if isinstance(actions, np.ndarray):
        return actions
    return map_structure(_as_array, actions, is_leaf=lambda part: not isinstance(part, Mapping | tuple))


def no_objects(node: Any) -> Any:
    """Stand in for the function of parts without a column where there are none."""
    raise AssertionError(f"{node.path} has no column, which was checked before")
