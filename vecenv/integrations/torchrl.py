"""TorchRL: `VecenvEnv`, an EnvBase whose envs step in vecenv's worker processes.

    env = GymWrapper(SyncVectorEnv(env_fns, autoreset_mode="Disabled"))     TorchRL's own envs, one after the other
    env = VecenvEnv(env_fns)                                                the same rollouts from worker processes

It stands on `vecenv.VectorEnv` and steps its pool in SAME_STEP mode. A worker resets an ended env at once, so the first
observation of the next episode arrives with the last one of the old episode. It is kept until TorchRL asks for the
reset, which then waits for no worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode

from ..core.layout.rows import RowFlag
from ..core.layout.spec import Array, map_columns
from ..core.parent.batch import Batch
from ..core.pool.pool import Pool
from ..errors import ConfigError, SpaceError, StateError, require
from ..nested import map_structure
from ..report import Report
from ..statistics import Statistics
from ..vector.env import VectorEnv, check_options
from ..vector.nested import merge, own

__all__ = ["VecenvEnv"]

torch: Any = require("torch", "torchrl")
_specs: Any = require("torchrl.data", "torchrl")
_EnvBase: Any = require("torchrl.envs", "torchrl").EnvBase
_TensorDict: Any = require("tensordict", "torchrl").TensorDict
#: The conversion of GymWrapper, so that the specs are those of GymWrapper.
_spec_of: Any = require("torchrl.envs.libs.gym", "torchrl")._gym_to_torchrl_spec_transform

_FLAGS = ("done", "terminated", "truncated")
#: Options of `VectorEnv` that have one possible value here.
_FIXED = {"autoreset_mode": AutoresetMode.SAME_STEP, "copy": True}
_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class VecenvEnv(_EnvBase):
    """N envs in worker processes as one env of TorchRL with `batch_size` (N,).

    Specs and rollouts equal those of `GymWrapper` around a `SyncVectorEnv` in DISABLED mode: observations in the dtype
    of their space, under "observation" or the keys of a Dict space; reward float32 (N, 1); done, terminated and
    truncated bool (N, 1). `reset` with a mask "_reset", (N,) or (N, 1), resets these envs only. `step` with a mask
    "_step" steps these envs only. `set_seed(s)` resets all envs, env i with the seed `s + i`.

    Workers reset an ended env before TorchRL asks for it. Envs see the same calls in the same order as in DISABLED
    mode, only earlier, so a render of an ended env shows the next episode. An ended env must be reset by TorchRL
    before its next step.

    Tensors on the CPU are the caller's own. Batches under 16 KiB are copied once. Larger ones are lent without a copy
    and reused once their tensors are dropped; beyond three on loan, they are copied once. Tensors on another device
    are copied there from that memory. Infos are not read.

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
            **options: options of `vecenv.VectorEnv`, with the same defaults, such as `num_workers` and `timeouts`.
                `infos` is "none" by default.

        Raises:
            ConfigError: an option is wrong.
            SpaceError: a space has no spec: Tuple, Text, Graph, Sequence and OneOf.
            Exception: as `vecenv.VectorEnv`.
        """
        check_options("VecenvEnv", options)
        for name, value in _FIXED.items():
            if options.get(name, value) != value:
                raise ConfigError(f"VecenvEnv: {name} is always {value!r}, not {options[name]!r}", key=name)
        vector_env = VectorEnv(env_fns, **{"infos": "none", **options, **_FIXED})
        try:
            super().__init__(device=device, batch_size=[vector_env.num_envs])
            self.vector_env = vector_env
            self._make_specs(categorical_action_encoding)
        except BaseException:
            vector_env.close()
            raise
        self._pool: Pool = vector_env._pool
        self._root = self._pool.obs_spec.root
        self._first_obs: Any = None  # (N, *S): rows of `_is_reset` are first observations that `reset` has to return
        self._is_reset = np.zeros(vector_env.num_envs, np.bool_)
        self._last_obs: Any = None  # (N, *S)
        self.is_closed = False

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
        self.observation_spec = obs_spec

    def _encode(self, obs: Any, count: int) -> dict[str, Any]:
        """Return tensors of the observations of some envs by their keys in a tensordict."""
        if not isinstance(obs, dict):
            obs = {"observation": obs}
        return _encode(self.observation_spec, obs, count)

    def _decode(self, tensordict: Any) -> Any:
        """Return the actions of a tensordict as arrays, nested like the action space."""
        space = self.vector_env.single_action_space
        if isinstance(space, spaces.Dict):
            return _decode(space, self.full_action_spec, tensordict)
        return _decode(space, self.action_spec, tensordict[self.action_key])

    # ---- stepping ----------------------------------------------------------------------------

    def _step(self, tensordict: Any) -> Any:
        actions = self._decode(tensordict)
        mask = tensordict.get("_step", None)
        if mask is None:
            self._check_reset(self._is_reset)
            results, self._last_obs = self._pack(self._pool.step(actions))
            return results
        is_stepped = _as_mask(mask)
        self._check_reset(self._is_reset & is_stepped)
        ids = np.flatnonzero(is_stepped)
        self._pool.send(map_structure(lambda column: column[ids], actions), ids)
        stepped, obs = self._pack(self._pool.recv())
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
        if batch.flags & RowFlag.ERROR:
            batch.raise_errors()
        obs = self.vector_env._results.own_obs(batch)
        terminated, truncated = batch.terminated, batch.truncated
        done = terminated | truncated
        if batch.flags & RowFlag.FINAL:
            obs = self._put_finals(obs, batch, np.flatnonzero(done))
        values = self._encode(obs, len(batch))
        values["reward"] = torch.from_numpy(batch.rewards.astype(np.float32)[:, None])
        values["done"] = torch.from_numpy(done[:, None])
        values["terminated"] = torch.from_numpy(terminated.copy()[:, None])
        values["truncated"] = torch.from_numpy(truncated.copy()[:, None])
        return self._as_tensordict(values, len(batch)), obs

    def _put_finals(self, obs: Any, batch: Batch, rows: Array) -> Any:
        """Keep first observations for `reset`, and put the last ones of ended episodes in their place."""
        ids = batch.env_ids[rows]
        first = map_columns(self._root, obs, lambda column: column[rows])
        if self._first_obs is None:
            shape = (self.num_envs,)
            self._first_obs = map_columns(self._root, obs, lambda c: np.empty(shape + c.shape[1:], c.dtype))
        self._first_obs = merge(self._root, self._first_obs, first, ids)
        self._is_reset[ids] = True
        final = map_columns(self._root, batch.final_obs, lambda column: column[rows])
        return merge(self._root, obs, final, rows)

    def _as_tensordict(self, values: dict[str, Any], count: int) -> Any:
        return _TensorDict(values, batch_size=[count], device=self.device)

    def _pack_first(self, obs: Any, count: int) -> Any:
        """Return first observations as a tensordict (B,)."""
        values = self._encode(obs, count)
        for name in _FLAGS:
            values[name] = torch.zeros((count, 1), dtype=torch.bool)
        return self._as_tensordict(values, count)

    # ---- resetting ---------------------------------------------------------------------------

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        is_asked = np.ones(self.num_envs, np.bool_) if mask is None else _as_mask(mask)
        ids = np.flatnonzero(is_asked if kwargs else is_asked & ~self._is_reset)
        if self._last_obs is None:
            if not is_asked.all():
                raise StateError("reset: the first reset has to be one of all envs, without a mask '_reset'")
            ids = np.flatnonzero(is_asked)
        if len(ids) == self.num_envs:
            obs, _ = self.vector_env.reset(**kwargs)
        else:
            obs = own(self._root, self._last_obs)
            if len(ids):
                obs = merge(self._root, obs, self.vector_env.reset(ids, **kwargs)[0], ids)
            kept = np.flatnonzero(is_asked & self._is_reset)
            if len(kept) and not kwargs:
                obs = merge(self._root, obs, self._take_first(kept), kept)
        self._is_reset[is_asked] = False
        self._last_obs = obs
        return self._pack_first(obs, self.num_envs)

    def _take_first(self, env_ids: Array) -> Any:
        """Return the first observations that are kept for these envs, as arrays (B, *S)."""
        return map_columns(self._root, self._first_obs, lambda column: column[env_ids])

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

    # ---- end ---------------------------------------------------------------------------------

    @property
    def num_envs(self) -> int:
        """The number of envs."""
        return self.vector_env.num_envs

    def statistics(self) -> Statistics:
        """Return counts and times since the start, as `VectorEnv.statistics`."""
        return self.vector_env.statistics()

    def report(self) -> Report:
        """Return verdicts about the speed since the start, as `VectorEnv.report`."""
        return self.vector_env.report()

    def close(self, *, raise_if_closed: bool = True) -> None:
        """End envs and workers within `close_timeout` seconds.

        Raises:
            RuntimeError: it is closed already and `raise_if_closed` is True, as of `GymWrapper`.
        """
        if raise_if_closed and self.is_closed:
            raise RuntimeError("close: the env is closed already")
        super().close()
        self.vector_env.close()

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self._pool.describe()})" if "_pool" in vars(self) else f"{name}(not built)"

    def __getstate__(self) -> NoReturn:
        raise TypeError("a VecenvEnv cannot be pickled or copied; give collectors a function that builds one")


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
