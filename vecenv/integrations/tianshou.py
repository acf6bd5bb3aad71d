"""VecenvVectorEnv: the engine as a vector env of Tianshou.

    train_envs = VecenvVectorEnv(env_fns)                   in place of SubprocVectorEnv
    train_envs = VecenvVectorEnv(env_fns, wait_num=4)       continue with the first four envs that have finished

The `VectorEnv` below has no autoreset, as Tianshou's collectors reset the envs whose episodes have ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from ..core.advice.facts import SettingNames
from ..core.layout.flags import Op
from ..core.layout.spec import Array, Leaf
from ..core.parent.batch import Batch
from ..core.pool.face import PoolFace
from ..core.pool.pool import Pool
from ..core.processes.worker import usable_cores
from ..envs.remote import CallMethod, GetAttributeOrNone, ObjectEnv, SeedActionSpace, SetInnerAttribute
from ..envs.spaces import ObjectSpace
from ..errors import (
    ClosedError,
    ConfigError,
    NotASequenceError,
    SpaceError,
    StateError,
    WorkerTimeoutError,
    WrongTypeError,
    add_notes,
    require,
)
from ..values.checks import check_callables, check_flag, check_seconds
from ..vector.arguments import read_count, read_env_ids, read_seeds
from ..vector.env import VectorEnv, check_adapter_options
from ..vector.nested import row_of
from ..vector.saved_adapter import SavedAdapter

__all__ = ["VecenvVectorEnv"]

_BaseVectorEnv: Any = require("tianshou.env", "tianshou").BaseVectorEnv


#: Largest number of envs per core that have a worker each, with `wait_num` or `timeout`.
_MOST_PER_CORE = 4

_NO_TUPLES = "Tianshou does not support observations that are tuples; use an array or a dict"

Result = tuple[Array, Array, Array, Array, Array]


class VecenvVectorEnv(SavedAdapter, PoolFace, _BaseVectorEnv):
    """N envs in worker processes for Tianshou, a few of them per worker.

    The same seeds and actions give what `DummyVectorEnv` gives, with rewards in float64 and observations in the dtype
    of their space. Arrays are the caller's own. An ended env is not reset: a collector does that, or the caller.

    Envs with process-wide state need `num_workers=len(env_fns)`; `SubprocVectorEnv` always has one process per env. As
    in Tianshou, `action_space`, `observation_space`, `spec`, `metadata` and `reward_range` are lists.

    Example:
        >>> import gymnasium
        >>> envs = VecenvVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial")
        >>> envs.seed(7)
        [[7], [8]]
        >>> obs, infos = envs.reset()
        >>> obs, rewards, terminations, truncations, infos = envs.step([0, 1])
        >>> obs.shape, rewards.tolist(), infos.tolist()
        ((2, 4), [1.0, 1.0], [{'env_id': 0}, {'env_id': 1}])
        >>> envs.close()

    Attributes:
        env_num: number of envs, also `len(envs)`.
        wait_num: as given, N if None was given.
        timeout: as given.
        is_async: whether `step` returns before all envs have finished: if `wait_num` is less than N, or there is a
            `timeout`.
        vector_env: the `vecenv.VectorEnv` that contains the envs; it has `statistics()`, `seeds` and `worker_pids`.
    """

    _setting_names = SettingNames(overlap="wait_num=num_envs // 2", views="", collect="")
    vector_env: VectorEnv
    _saved = ("_no_reward",)

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        shared_memory: bool = True,
        **options: Any,
    ) -> None:
        """Build all envs.

        Args:
            env_fns: one constructor per env. They are sent to the workers by value.
            wait_num: `step` returns as soon as this many envs have finished, from 1 to N. None (default): all.
            timeout: seconds after which `step` returns, with the envs that have finished, at least one. None
                (default): no limit.
            shared_memory: False: observations and rewards may be of any form, such as the dicts and the lists of
                rewards of Tianshou's `PettingZooEnv`. They are pickled, which takes longer. So are those of envs that
                have no spaces, and their actions, with either value.
            **options: options of `vecenv.VectorEnv`, with the same defaults, such as `num_workers`, `timeouts` and
                `failures`. `observation_mode` is 'different'. With `wait_num` or `timeout`, `num_workers` is N, or one
                per core if that is more than four per core. There are no autoreset_mode, batch_size, copy,
                episode_statistics and mark_autoreset. With `num_spare_envs`, resets of ended envs without arguments,
                such as those of a collector, take envs that have been reset ahead.

        Raises:
            ConfigError: an argument or an option is wrong (also a ValueError and an AssertionError).
            WrongTypeError: the observations are tuples, which Tianshou does not support (also a TypeError).
            Exception: as `vecenv.VectorEnv`.
        """
        check_adapter_options("VecenvVectorEnv", "Tianshou", options)
        self.timeout = None if timeout is None else check_seconds("timeout", timeout)
        wait_num = read_count("wait_num", wait_num, len(env_fns))
        self._no_reward: Any = np.zeros(())  # shaped like the last reward that is an object
        always = not check_flag("shared_memory", shared_memory)
        env_fns = [functools.partial(ObjectEnv.build, one, always) for one in check_callables("env_fns", env_fns)]
        options = {"observation_mode": "different", **options}
        is_few = len(env_fns) <= _MOST_PER_CORE * usable_cores()
        if is_few and options.get("backend", "process") == "process" and (wait_num, timeout) != (None, None):
            options.setdefault("num_workers", len(env_fns))  # their durations differ
        self.vector_env = VectorEnv(env_fns, autoreset_mode=AutoresetMode.DISABLED, **options)
        self._pool: Pool = self.vector_env.pool
        self.env_num = self._pool.num_envs
        self.wait_num = self.env_num if wait_num is None else wait_num
        self.is_async = self.wait_num != self.env_num or timeout is not None
        self._obs_space = self._pool.spaces.observation_space
        parts = self._obs_space.spaces if isinstance(self._obs_space, spaces.Tuple) else ()
        self._has_objects = len(parts) == 2 and all(isinstance(part, ObjectSpace) for part in parts)
        self._has_array_obs = isinstance(self._pool.obs_spec.root, Leaf)
        root = self._pool.action_spec.root
        self._has_array_actions = isinstance(root, Leaf)
        self._has_int_actions = isinstance(root, Leaf) and root.dtype.kind in "iu"
        if isinstance(self._obs_space, spaces.Tuple) and not self._has_objects:
            self.vector_env.close()
            raise WrongTypeError(f"{_NO_TUPLES}, not {self._obs_space}")
        self._continue_own(options.get("resume"))

    # ---- stepping ----------------------------------------------------------------------------

    def step(self, action: Any, id: Any = None) -> Result:  # the names are Tianshou's
        """Step envs, and wait for them; if `is_async`, for the first of all envs that step.

        Args:
            action: one row per env, ordered as `id`: an array, or a sequence of actions. None, only if `is_async`: no
                env begins a step.
            id: distinct ids of the envs to step, or a single id. None (default): all envs.

        Returns:
            (obs, rewards, terminations, truncations, infos) of B envs, ordered as `id`, or if `is_async` in the order
            in which they finished: obs (B, *S), or an object array of dicts (B,) for Dict spaces; rewards float64 (B,);
            terminations and truncations bool (B,); infos an object array of dicts (B,). Each has the int `env_id`.
            With `shared_memory=False`, obs and rewards are what `np.stack` makes of those of the envs; obs of different
            shapes are an object array (B,).

        Raises:
            SpaceError: the actions do not fit; nothing was stepped (also a ValueError and an AssertionError).
            ConfigError: there is no such env, or `action` is None, but not `is_async` (also a ValueError).
            StateError: one of the envs is stepping already, `action` is None and none is, or the vector env is closed
                (also a RuntimeError and an AssertionError).
            Exception: as `VectorEnv.step`.
        """
        self._check_open("step")
        is_async = self.is_async
        if action is not None:
            self._send(action, read_env_ids("step", id, self.env_num), ordered=not is_async)
        elif not is_async:
            raise ConfigError("step: actions are needed, as the vector env waits for all envs", key="action")
        return self._deliver(self._recv_first() if is_async else self._pool.recv())

    def _deliver(self, batch: Batch) -> Result:
        _raise_errors(batch, self._deliver)
        infos = batch.infos()
        for info, env_id in zip(infos, batch.env_ids.tolist()):
            info["env_id"] = env_id
        ends = batch.terminated.copy(), batch.truncated.copy()
        return self._obs_of(batch), self._rewards_of(batch, infos), *ends, _as_objects(infos)

    def _send(self, action: Any, ids: Array | None, ordered: bool) -> None:
        pool = self._pool
        count = pool.num_envs if ids is None else len(ids)
        if not hasattr(action, "__len__") or len(action) != count:
            raise NotASequenceError(f"step: expected {count} actions, one per env, got {action!r}")
        if pool.outstanding():
            stepping = set(self.waiting_id).intersection(range(count) if ids is None else ids.tolist())
            if stepping:
                raise StateError(f"step: envs {sorted(stepping)} are stepping; step(None) waits for the first of them")
        if self._has_array_actions:
            pool.send(self._as_ints(np.asarray(action)), ids, ordered=ordered)
        else:
            rows = [action[row] for row in range(count)]
            pool.send_objects(rows, range(count) if ids is None else ids, ordered=ordered)

    def _as_ints(self, actions: Array) -> Array:
        """Return whole numbers that are floats as integers, if the space has integers."""
        if self._has_int_actions and actions.dtype.kind == "f":
            whole = actions.astype(np.int64)
            return whole if np.array_equal(whole, actions) else actions
        return actions

    def _recv_first(self) -> Batch:
        """Return the rows of the first envs that finish."""
        count = self._pool.outstanding()
        if not count:
            raise StateError("step: no env is stepping; give actions")
        try:
            return self._pool.recv(min(self.wait_num, count), timeout=self.timeout)
        except WorkerTimeoutError as error:
            if error.op is not None:  # an env has exceeded its own limit
                raise
        return self._pool.recv(1)

    def reset(self, env_id: Any = None, **kwargs: Any) -> tuple[Array, Array]:
        """Begin an episode in every env, or in some of them, and wait for the first observations.

        The steps of these envs are abandoned. Other envs may be stepping; later steps return their results.

        Args:
            env_id: distinct ids of the envs to reset, or a single id. None (default): all envs.
            **kwargs: passed to the `reset` of each of these envs. A `seed` is the same for all; see `seed`.

        Returns:
            (obs, infos) of B envs, ordered as `env_id`: obs as from `step`, and an object array of dicts (B,).

        Raises:
            Exception: as `step`.
        """
        self._check_open("reset")
        ids = read_env_ids("reset", env_id, self.env_num)
        ids = np.arange(self.env_num) if ids is None else ids
        seeds = [kwargs.pop("seed")] * len(ids) if "seed" in kwargs else None
        return self._first_of(self._reset(ids, seeds, kwargs))

    def _reset(self, ids: Array, seeds: Sequence[int | None] | None, kwargs: dict[str, Any]) -> Batch:
        superseded = [env_id for env_id in ids.tolist() if self._pool.owes(env_id) != Op.NONE]
        if superseded:
            self._pool.cancel(superseded)
        ordered = not self._pool.outstanding()
        self._pool.reset(ids, seeds=seeds, kwargs=[kwargs] * len(ids) if kwargs else None, ordered=ordered)
        if seeds is not None:
            self.vector_env.env_seeds.record(seeds, ids.tolist())
        batch = self._pool.recv() if ordered else self._pool.recv(env_ids=ids)
        self.vector_env.env_seeds.note(batch)
        _raise_errors(batch, self._first_of)
        return batch

    def _first_of(self, batch: Batch) -> tuple[Array, Array]:
        return self._obs_of(batch), _as_objects(batch.infos())

    def _obs_of(self, batch: Batch) -> Array:
        """Return observations in the form of Tianshou: one array, for Dict spaces an object array of dicts."""
        if self._has_array_obs:
            obs: Array = self.vector_env.results.own_obs(batch)
            return obs
        if self._has_objects:
            return _stack_objects(batch.obs[0])
        columns = batch.obs
        return _as_objects([row_of(self._obs_space, columns, row) for row in range(len(batch))])

    def _rewards_of(self, batch: Batch, infos: list[dict[str, Any]]) -> Array:
        """Return rewards, float64 (B,); if they are objects, what `np.stack` makes of them."""
        if not self._has_objects:
            return batch.rewards.copy()
        # The row that ends a lost episode repeats the objects of the row before, which may be that of a reset.
        is_lost = [str(info.get("recovered")) == "truncated" for info in infos]
        known = [one for one, lost in zip(batch.obs[1], is_lost) if not lost]
        if known:
            self._no_reward = np.zeros_like(known[0])
        return np.stack([self._no_reward if lost else one for one, lost in zip(batch.obs[1], is_lost)])

    @property
    def waiting_id(self) -> list[int]:
        """The ids of the envs that are stepping, or whose results have not been returned yet."""
        if not self._pool.outstanding():
            return []
        return [env_id for env_id in range(self.env_num) if self._pool.owes(env_id) != Op.NONE]

    @property
    def ready_id(self) -> list[int]:
        """The ids of the envs that can be stepped: those that are not in `waiting_id`."""
        waiting = set(self.waiting_id)
        return [env_id for env_id in range(self.env_num) if env_id not in waiting]

    def seed(self, seed: int | Sequence[int | None] | None = None) -> list[list[int | None]]:
        """Reset every env with a seed of its own, and seed its action space.

        Args:
            seed: env i gets `seed + i`, or `seed[i]` from a list of N. None (default): generators continue.

        Returns:
            A list with the seed of each env.

        Raises:
            ConfigError, TypeError: the number of seeds is not N, or a seed is not a whole number.
            Exception: as `reset`.
        """
        self._check_open("seed")
        seeds = read_seeds(seed, self.env_num)
        self._pool.call_each([SeedActionSpace(one) for one in seeds], name="seed action_space")
        self._reset(np.arange(self.env_num), seeds, {})
        return [[one] for one in seeds]

    # ---- attributes --------------------------------------------------------------------------

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """Return copies of an attribute of envs, looked up from the outermost wrapper inwards.

        Args:
            key: name of the attribute.
            id: ids of the envs, or a single id, in the order of the result. None (default): all envs.

        Returns:
            One value per env; as in `SubprocVectorEnv`, None for an env that has no such attribute.

        Raises:
            ConfigError: there is no such env.
            ClosedError: the vector env is closed.
        """
        self._check_open("get_env_attr")
        return self._pool.call(GetAttributeOrNone(key), read_env_ids("get_env_attr", id, self.env_num), pure=True)

    def set_env_attr(self, key: str, value: Any, id: Any = None) -> None:
        """Set an attribute of the innermost env, under all wrappers, to one value; see `get_env_attr`."""
        self._check_open("set_env_attr")
        ids = read_env_ids("set_env_attr", id, self.env_num)
        self._pool.call(SetInnerAttribute(key, value), ids, name=f"set_attr unwrapped {key}")  # lasts beyond an episode

    def render(self, **kwargs: Any) -> list[Any]:
        """Return the result of each env's `render` with these arguments, ordered by env id.

        Raises:
            StateError: an env is stepping (also a RuntimeError).
            ClosedError: the vector env is closed.
        """
        self._check_open("render")
        if self.waiting_id:
            raise StateError(f"render: envs {self.waiting_id} are stepping; receive them by step(None) before")
        return self._pool.call(CallMethod("render", (), kwargs), pure=True)

    # ---- end ---------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return bool(self._pool.closed)

    def _check_open(self, what: str) -> None:
        if self._pool.closed:
            raise ClosedError(f"{what}: the vector env is closed")

    def close(self) -> None:
        """End envs and workers within the `close` limit; a second call has no effect."""
        self.vector_env.close()


def _raise_errors(batch: Batch, deliver: Callable[[Batch], Any]) -> None:
    """Raise the exception of the env with the lowest id, if any, and name the option for values of other forms."""
    try:
        batch.raise_errors(deliver)
    except SpaceError as error:
        if (error.path or "").startswith(("obs", "reward")):
            add_notes(error, ["shared_memory=False takes observations and rewards that differ from their space"])
        raise


def _stack_objects(values: Sequence[Any]) -> Array:
    """Return B observations as Tianshou does: stacked, or as an object array (B,) if their shapes differ.

    Raises:
        WrongTypeError: they are tuples.
    """
    if isinstance(values[0], tuple):
        raise WrongTypeError(f"{_NO_TUPLES}, not {values[0]!r}")
    try:
        return np.stack(values)
    except ValueError:
        return _as_objects(values)


def _as_objects(rows: Sequence[Any]) -> Array:
    return np.fromiter(rows, object, len(rows))
