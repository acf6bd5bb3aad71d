"""TorchRL: `VecenvEnv`, an EnvBase whose envs step in vecenv's worker processes.

    env = GymWrapper(SyncVectorEnv(env_fns, autoreset_mode="Disabled"))     TorchRL's own envs, one after the other
    env = VecenvEnv(env_fns)                                                the same rollouts from worker processes

It steps the pool of a `VectorEnv` in SAME_STEP mode: the first observation of the next episode arrives with the last
one of the old episode. It is kept until TorchRL asks for the reset, which then waits for no worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from ..core.advice.facts import SettingNames
from ..core.layout.flags import Op, RowFlag
from ..core.layout.spec import Array, map_columns, pick_rows
from ..core.parent.batch import Batch, raise_first
from ..core.pool.face import PoolFace
from ..core.pool.pool import Pool
from ..errors import ConfigError, ErrorRows, SpaceError, StateError, require, take_rows
from ..values.checks import check_whole
from ..values.nested import map_structure
from ..vector.arguments import read_env_ids
from ..vector.env import VectorEnv, check_options
from ..vector.nested import merge, own
from ..vector.saved_adapter import SavedAdapter

__all__ = ["VecenvEnv"]

torch: Any = require("torch", "torchrl")
_specs: Any = require("torchrl.data", "torchrl")
_EnvBase: Any = require("torchrl.envs", "torchrl").EnvBase
_TensorDict: Any = require("tensordict", "torchrl").TensorDict
NonTensorData: Any = require("tensordict", "torchrl").NonTensorData
#: The conversion of GymWrapper, so that the specs are those of GymWrapper.
_spec_of: Any = require("torchrl.envs.libs.gym", "torchrl")._gym_to_torchrl_spec_transform

_FLAGS = ("done", "terminated", "truncated")
#: Options of `VectorEnv` that have one possible value here.
_FIXED = {"autoreset_mode": AutoresetMode.SAME_STEP, "copy": True, "infos": "none"}
_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class VecenvEnv(SavedAdapter, PoolFace, _EnvBase):
    """N envs in worker processes as one env of TorchRL with `batch_size` (N,).

    Specs and rollouts equal those of `GymWrapper` around a `SyncVectorEnv` in DISABLED mode: observations in the dtype
    of their space, under "observation" or the keys of a Dict space; reward float32 (N, 1); done, terminated and
    truncated bool (N, 1). Envs with a `reward_space` of several numbers have a reward (N, *K) in its dtype, as with
    `GymWrapper` around one env. `reset` with a mask "_reset", (N,) or (N, 1), resets these envs only. `step` with a
    mask "_step" steps these envs only. `set_seed(s)` resets all envs, env i with the seed `s + i`.

    Workers reset an ended env before TorchRL asks for it, so a render of an ended env shows the next episode. An ended
    env must be reset by TorchRL before its next step.

    `async_step_send` and the three calls like it are those of `AsyncEnvPool`: they step and reset envs as they finish.
    After them, the next reset without "async" has to be one of all envs.

    Tensors on the CPU are the caller's own, and lent or copied as by `VectorEnv` with `copy=True`. Those on another
    device are copied there from shared memory. Infos are not read.

    Example:
        >>> import gymnasium
        >>> env = VecenvEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial")
        >>> _ = env.set_seed(7)
        >>> rollout = env.rollout(5)
        >>> rollout["next", "reward"].shape
        torch.Size([2, 5, 1])
        >>> env.close()

    Attributes:
        vector_env: the `vecenv.VectorEnv` that steps the envs; it has `seeds`, `call` and `worker_pids`.
    """

    _setting_names = SettingNames(overlap="async_step_send() and async_step_recv()", infos="", views="", collect="")
    _recipe = "give collectors a function that builds one"
    vector_env: VectorEnv
    _saved = ("_first_obs", "_is_reset", "_last_obs", "_sent", "_arrived")

    # TorchRL reads `state_dict` of a first env into all others that `EnvCreator` makes, so it remains that of a module.
    env_state_dict, load_env_state_dict = SavedAdapter.state_dict, SavedAdapter.load_state_dict
    state_dict, load_state_dict = _EnvBase.state_dict, _EnvBase.load_state_dict

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        *,
        device: Any = None,
        categorical_action_encoding: bool = False,
        **options: Any,
    ) -> None:
        """Build all envs.

        Args:
            env_fns: one constructor per env.
            device: the device of all tensors, as torch has it. None (default): the CPU, without a device in the
                tensordicts, as of `GymWrapper`.
            categorical_action_encoding: if True, discrete actions and observations are whole numbers. If False
                (default), they are one-hot vectors.
            **options: options of `vecenv.VectorEnv`, with the same defaults, such as `num_workers` and `timeouts`,
                but for `autoreset_mode`, `copy` and `infos`, which have one value here.

        Raises:
            ConfigError: an option is wrong.
            SpaceError: a space has no spec: Tuple, Text, Graph, Sequence and OneOf.
            Exception: as `vecenv.VectorEnv`.
        """
        check_options("VecenvEnv", options)
        for name, value in _FIXED.items():
            if options.get(name, value) != value:
                raise ConfigError(f"VecenvEnv: {name} is always {value!r}, not {options[name]!r}", key=name)
        vector_env = VectorEnv(env_fns, **{**options, **_FIXED})
        try:
            super().__init__(device=device, batch_size=[vector_env.num_envs])
            self.vector_env = vector_env
            self._make_specs(categorical_action_encoding)
        except BaseException:
            vector_env.close()
            raise
        self._pool: Pool = vector_env.pool
        self._root = self._pool.obs_spec.root
        self._first_obs: Any = None  # (N, *S): rows of `_is_reset` are first observations that `reset` has to return
        self._is_reset = np.zeros(vector_env.num_envs, np.bool_)
        self._last_obs: Any = None  # (N, *S)
        self._sent: dict[int, Any] = {}  # rows of the running steps, by id
        # By id, in the order of arrival: rows that were not asked for yet.
        self._arrived: dict[Op, dict[int, Any]] = {Op.STEP: {}, Op.RESET: {}}
        self.is_closed = False
        self._continue_own(options.get("resume"))

    # ---- specs -------------------------------------------------------------------------------

    def _make_specs(self, is_categorical: bool) -> None:
        envs, shape = self.vector_env, self.batch_size
        _check_space("observation_space", envs.single_observation_space)
        _check_space("action_space", envs.single_action_space)
        arguments = {"device": self.device, "categorical_action_encoding": is_categorical}
        obs_spec = _spec_of(envs.observation_space, **arguments)
        if isinstance(obs_spec, _specs.Composite):
            obs_spec.shape = shape
        else:
            obs_spec = _specs.Composite(observation=obs_spec, shape=shape)
        flag = {"n": 2, "dtype": torch.bool, "device": self.device, "shape": (*shape, 1)}
        self.done_spec = _specs.Composite({name: _specs.Categorical(**flag) for name in _FLAGS}, shape=shape)
        action_spec = _spec_of(envs.action_space, **arguments)
        if isinstance(action_spec, _specs.Composite):
            action_spec.shape = shape
        self.action_spec = action_spec
        self.reward_spec = _specs.Unbounded(shape=(*shape, 1), device=self.device)
        if envs.reward_space is not None:
            self.reward_spec = _spec_of(batch_space(envs.reward_space, self.num_envs), **arguments)
        self.observation_spec = obs_spec

    def _encode(self, obs: Any, count: int) -> dict[str, Any]:
        """Return tensors of the observations of some envs by their keys in a tensordict."""
        if not isinstance(obs, dict):
            obs = {"observation": obs}
        return _encode(self.observation_spec, obs, count)

    def _decode(self, tensordict: Any) -> Any:
        """Return the actions of a tensordict as arrays, nested like the action space."""
        space = self._pool.spaces.action_space
        if isinstance(space, spaces.Dict):
            return _decode(space, self.full_action_spec, tensordict)
        return _decode(space, self.action_spec, tensordict[self.action_key])

    # ---- stepping ----------------------------------------------------------------------------

    def _step(self, tensordict: Any) -> Any:
        actions = self._decode(tensordict)
        mask = tensordict.get("_step", None)
        if mask is None:
            self._check_reset(self._is_reset)
            return self._deliver(self._pool.step(actions), None, tensordict)
        is_stepped = _as_mask(mask)
        self._check_reset(self._is_reset & is_stepped)
        ids = np.flatnonzero(is_stepped)
        self._pool.send(map_structure(lambda column: column[ids], actions), ids)
        return self._deliver(self._pool.recv(), ids, tensordict)

    def _deliver(self, batch: Batch, ids: Array | None, tensordict: Any) -> Any:
        """Return the results of a step of the envs `ids`, None for all; a tensordict (N,)."""
        if batch.flags & RowFlag.ERROR:
            batch.raise_errors(lambda good: self._deliver(good, ids, tensordict), num_rows=self.num_envs)
        stepped, obs = self._pack(batch)
        if ids is None:
            self._last_obs = obs
            return stepped
        if self._last_obs is not None:
            self._last_obs = merge(self._root, own(self._root, self._last_obs), obs, ids)
        results = self._skip_tensordict(tensordict)
        results[torch.from_numpy(ids).to(results.device)] = stepped
        return results

    def _check_reset(self, is_over: Array) -> None:
        if is_over.any():
            over = np.flatnonzero(is_over).tolist()
            raise StateError(f"step: the episodes of envs {over} are over; first reset them with a mask '_reset'")

    def _pack(self, batch: Batch) -> tuple[Any, Any]:
        """Return the results of a batch of steps as a tensordict (B,), and its observations as arrays (B, *S)."""
        obs = self.vector_env.results.own_obs(batch)
        terminated, truncated = batch.terminated, batch.truncated
        done = terminated | truncated
        if batch.flags & RowFlag.FINAL:
            obs = self._put_finals(obs, batch, np.flatnonzero(done))
        values = self._encode(obs, len(batch))
        space = self.vector_env.reward_space
        rewards = batch.rewards[:, None] if space is None else batch.rewards
        values["reward"] = torch.from_numpy(rewards.astype(np.float32 if space is None else space.dtype))
        values["done"] = torch.from_numpy(done[:, None])
        values["terminated"] = torch.from_numpy(terminated.copy()[:, None])
        values["truncated"] = torch.from_numpy(truncated.copy()[:, None])
        return _TensorDict(values, batch_size=[len(batch)], device=self.device), obs

    def _put_finals(self, obs: Any, batch: Batch, rows: Array) -> Any:
        """Keep first observations for `reset`, and replace them by the last ones of ended episodes."""
        ids = batch.env_ids[rows]
        first = pick_rows(self._root, obs, rows)
        if self._first_obs is None:
            shape = (self.num_envs,)
            self._first_obs = map_columns(self._root, obs, lambda c: np.empty(shape + c.shape[1:], c.dtype))
        self._first_obs = merge(self._root, self._first_obs, first, ids)
        self._is_reset[ids] = True
        return merge(self._root, obs, pick_rows(self._root, batch.final_obs, rows), rows)

    def _pack_first(self, obs: Any, count: int) -> Any:
        """Return first observations as a tensordict (B,)."""
        values = self._encode(obs, count)
        for name in _FLAGS:
            values[name] = torch.zeros((count, 1), dtype=torch.bool)
        return _TensorDict(values, batch_size=[count], device=self.device)

    # ---- resetting ---------------------------------------------------------------------------

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        is_asked = np.ones(self.num_envs, np.bool_) if mask is None else _as_mask(mask)
        ids = np.flatnonzero(is_asked if kwargs else is_asked & ~self._is_reset)
        if self._last_obs is None:
            if not is_asked.all():
                raise StateError("reset: a reset of all envs has to come before those by a mask '_reset'")
            ids = np.flatnonzero(is_asked)
            for rows in (self._sent, *self._arrived.values()):
                rows.clear()
        obs: Any = None
        try:
            if len(ids):
                obs, _ = self.vector_env.reset(None if len(ids) == self.num_envs else ids, **kwargs)
        except Exception as error:
            if (found := take_rows(error)) is not None:
                mask = np.ones(self.num_envs, np.bool_)
                mask[ids] = found.mask
                result = self._finish_reset(found.result[0], ids, is_asked, uses_kept=not kwargs)
                vars(error)["rows"] = ErrorRows(result, mask)
            raise
        return self._finish_reset(obs, ids, is_asked, uses_kept=not kwargs)

    def _finish_reset(self, obs: Any, ids: Array, is_asked: Array, *, uses_kept: bool) -> Any:
        """Return the first observations of all envs of `is_asked`, bool (N,), and the last ones of the others.

        `obs` are those of the envs `ids`, which were reset now. `uses_kept`: whether the others use kept ones.
        """
        if len(ids) < self.num_envs:
            last = own(self._root, self._last_obs)
            obs = merge(self._root, last, obs, ids) if len(ids) else last
            kept = np.flatnonzero(is_asked & self._is_reset)
            if len(kept) and uses_kept:
                obs = merge(self._root, obs, pick_rows(self._root, self._first_obs, kept), kept)
        self._is_reset[is_asked] = False
        self._last_obs = obs
        return self._pack_first(obs, self.num_envs)

    def _step_proc_data(self, next_tensordict_out: Any) -> Any:
        """Return the results of `_step` as they are: they have all keys of the specs, in the right shapes."""
        return super()._step_proc_data(next_tensordict_out) if self.run_type_checks else next_tensordict_out

    def _reset_proc_data(self, tensordict: Any, tensordict_reset: Any) -> Any:
        """Put the reset rows into the tensordict that was given to `reset`, as `EnvBase` does, without its checks."""
        mask = None if tensordict is None else tensordict.pop("_reset", None)
        if mask is None:
            return tensordict_reset if tensordict is None else tensordict.update(tensordict_reset)
        mask = mask.reshape(-1)
        for key, value in tensordict_reset.items(include_nested=True, leaves_only=True):
            old = tensordict.get(key, None)
            if old is not None:
                value = torch.where(mask.view(-1, *[1] * (value.ndim - 1)), value, old)
            tensordict.set(key, value)
        return tensordict

    def _set_seed(self, seed: int | None) -> None:
        self.reset(seed=seed)

    # ---- asynchronous calls, as of AsyncEnvPool ----------------------------------------------

    def async_step_send(self, tensordict: Any, env_index: int | Sequence[int] | None = None) -> None:
        """Begin to step some envs without waiting; `async_step_recv` returns their results.

        Args:
            tensordict: actions, one row per env, (B,); () for a single env.
            env_index: ids of the envs, (B,), or a single id. None (default): those in `tensordict["env_index"]`.

        Raises:
            StateError: an env has an outstanding call, or its episode is over. Nothing was sent.
            ConfigError: there is no such env.
        """
        ids = self._read_ids("async_step_send", tensordict, env_index)
        rows = tensordict.reshape(len(ids))
        is_asked = np.isin(np.arange(self.num_envs), ids)
        self._check_reset(self._is_reset & is_asked)
        self._pool.send(self._decode(rows), ids, ordered=False)
        self._last_obs = None  # Some are unknown from now on.
        for row, env_id in enumerate(ids.tolist()):
            self._sent[env_id] = rows[row]

    def async_reset_send(self, tensordict: Any = None, env_index: int | Sequence[int] | None = None) -> None:
        """Begin to reset some envs without waiting; `async_reset_recv` returns their first observations.

        Args:
            tensordict: has the ids as "env_index" if they are not given as an argument; its other keys have no effect.
            env_index: ids of the envs, (B,), or a single id. None (default): those of `tensordict`, or all envs if it
                is None, too.

        Raises:
            StateError: an env has an outstanding reset.
            ConfigError: there is no such env.
        """
        is_all = tensordict is None and env_index is None
        ids = np.arange(self.num_envs) if is_all else self._read_ids("async_reset_send", tensordict, env_index)
        asked = ids[~self._is_reset[ids]]
        if len(asked):
            self.vector_env.async_reset(asked)
        self._last_obs = None
        kept = ids[self._is_reset[ids]]
        if len(kept):
            self._is_reset[kept] = False
            self._keep_first(pick_rows(self._root, self._first_obs, kept), kept)
        for env_id in asked.tolist():
            self._sent.pop(env_id, None)  # the reset supersedes the step

    def _read_ids(self, what: str, tensordict: Any, env_index: Any) -> Array:
        """Return the ids that are given, or else those in the tensordict, as an int64 array (B,)."""
        if env_index is None:
            if tensordict is None or "env_index" not in tensordict:
                text = f"{what}: give env_index, the ids of the envs, as an argument or in the tensordict"
                raise ConfigError(text, key="env_index")
            env_index = np.asarray(tensordict["env_index"])
        ids = read_env_ids(what, env_index, self.num_envs)
        assert ids is not None
        return ids

    def async_step_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Wait for results of `async_step_send`.

        Args:
            min_get: return as soon as this many envs have finished, with all that have. None (default): 1.
            env_index: wait for this env; `min_get` and `max_get` have no effect then.
            max_get: return at most this many rows; the other rows are kept.
            timeout: seconds to wait. None (default): no limit. Results that have arrived are kept.

        Returns:
            The rows that were sent, with their results under "next" and the ids as "env_index", ordered by id: (B,);
            () for `env_index`. The rows of an ended env must be followed by `async_reset_send`.

        Raises:
            StateError: fewer steps are outstanding.
            WorkerTimeoutError: too few envs finished within `timeout` (also a TimeoutError).
            Exception: raised by an env, with the remote traceback as its cause.
        """
        return self._receive(Op.STEP, min_get, env_index, max_get, timeout)

    def async_reset_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Wait for first observations after `async_reset_send`; arguments and errors as of `async_step_recv`.

        Returns:
            Observations, done, terminated, truncated, and the ids as "env_index", ordered by id: (B,); () for
            `env_index`.
        """
        return self._receive(Op.RESET, min_get, env_index, max_get, timeout)

    def _receive(
        self, op: Op, min_get: int | None, env_index: int | None, max_get: int | None, timeout: float | None
    ) -> Any:
        """Return rows of steps or resets; rows of the other kind are kept."""
        arrived = self._arrived[op]
        least = 1 if min_get is None else check_whole("min_get", min_get, 1)
        expected = {env_id for env_id in range(self.num_envs) if env_id in arrived or self._pool.owes(env_id) == op}
        if len(expected) < least or (env_index is not None and env_index not in expected):
            raise StateError(f"only the envs {sorted(expected)} have an outstanding {op.name.lower()}")
        until = None if timeout is None else time.monotonic() + timeout
        while (len(arrived) < least) if env_index is None else env_index not in arrived:
            left = None if until is None else max(0.0, until - time.monotonic())
            self._sort_in(self._pool.recv(1, timeout=left))
        if env_index is not None:
            return arrived.pop(env_index)
        ids = sorted(list(arrived)[:max_get])
        return torch.stack([arrived.pop(env_id) for env_id in ids])

    def _sort_in(self, batch: Batch) -> None:
        """Keep the rows of a batch until they are asked for, then raise the exception of the lowest env that raised."""
        errors = batch.errors() if batch.flags & RowFlag.ERROR else {}
        if errors:
            for env_id in errors:
                self._sent.pop(env_id, None)
            batch = batch.take(np.flatnonzero(~np.isin(batch.env_ids, list(errors))))
        is_first = batch.row_flags & RowFlag.RESET != 0
        for of_resets in (False, True):
            rows = np.flatnonzero(is_first == of_resets)
            if not len(rows):
                continue
            part = batch if len(rows) == len(batch) else batch.take(rows)
            if of_resets:
                self._keep_first(own(self._root, part.obs), part.env_ids)
                continue
            results, _ = self._pack(part)
            for row, env_id in enumerate(part.env_ids.tolist()):
                sent = self._sent.pop(env_id).set("next", results[row])
                self._arrived[Op.STEP][env_id] = sent.set("env_index", NonTensorData(env_id))
        if errors:
            raise_first(errors)

    def _keep_first(self, obs: Any, env_ids: Array) -> None:
        """Keep first observations, arrays (B, *S), until they are asked for."""
        rows = self._pack_first(obs, len(env_ids))
        for row, env_id in enumerate(env_ids.tolist()):
            self._arrived[Op.RESET][env_id] = rows[row].set("env_index", NonTensorData(env_id))

    # ---- end ---------------------------------------------------------------------------------

    @property
    def num_envs(self) -> int:
        return self.vector_env.num_envs

    def close(self, *, raise_if_closed: bool = True) -> None:
        """End envs and workers within the `close` limit.

        Raises:
            RuntimeError: it is closed already and `raise_if_closed` is True, as of `GymWrapper`.
        """
        if raise_if_closed and self.is_closed:
            raise RuntimeError("close: the env is closed already")
        super().close()
        self.vector_env.close()

    def shutdown(self) -> None:
        """Close the env, as of `AsyncEnvPool`; idempotent."""
        self.close(raise_if_closed=False)


def _check_space(name: str, space: Space[Any]) -> None:
    """Raise SpaceError unless the space consists of Box, Discrete, MultiDiscrete, MultiBinary and Dict spaces."""
    if isinstance(space, spaces.Dict):
        for key, part in space.items():
            _check_space(f"{name}/{key}", part)
    elif not isinstance(space, _LEAVES):
        raise SpaceError(f"{name}: TorchRL has no tensors for a {type(space).__name__} space", path=name)


def _as_mask(mask: Any) -> Array:
    """Return a mask of TorchRL, (N,) or (N, 1), as a bool array (N,)."""
    return np.asarray(mask.cpu()).reshape(-1)


def _encode(spec: Any, obs: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the first `count` rows as tensors. As in GymWrapper, the key "state" is renamed to "observation"."""
    values = {}
    for key, value in obs.items():
        key = "observation" if key == "state" and "observation" not in obs else key
        part = spec[key]
        if isinstance(value, dict):
            values[key] = _encode(part, value, count)
        elif isinstance(part, _specs.Bounded | _specs.Unbounded):
            values[key] = torch.from_numpy(value)
        else:
            values[key] = part[:count].encode(value, ignore_device=True)
    return values


def _decode(space: Space[Any], spec: Any, value: Any) -> Any:
    """Return actions as arrays of the space's dtype, nested like the space."""
    if isinstance(space, spaces.Dict):
        return {key: _decode(part, spec[key], value[key]) for key, part in space.items()}
    array = spec.to_numpy(value, safe=False)
    return array.astype(space.dtype, copy=False)
