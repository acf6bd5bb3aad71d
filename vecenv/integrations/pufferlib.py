"""PufferLib: `VecenvBackend`, a backend of `pufferlib.vector.make` whose envs step in vecenv's worker processes.

    pufferlib.vector.make(creator, backend=pufferlib.vector.Multiprocessing, num_envs=16, ...)
    pufferlib.vector.make(creator, backend=VecenvBackend, num_envs=16, ...)

Each env of PufferLib, with its A agents, is one env of the engine. Its row contains PufferLib's buffers of that env:

    row of env i    observations (A, *S), rewards (A,), terminals (A,), truncations (A,), masks (A,)
    batch           the rows of `batch_size` envs, one after the other, seen as rows of agents

PufferLib resets an ended env in the next step. This is the NEXT_STEP autoreset of the engine, so the engine does it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ..core.advice.facts import SettingNames
from ..core.layout.flags import Op, RowFlag
from ..core.layout.spec import Array, copy_spaces
from ..core.parent.batch import Batch
from ..core.pool.face import PoolFace
from ..core.pool.pool import Pool
from ..envs.adapt import generator_owner
from ..envs.remote import CallMethod
from ..envs.state.state import register_state_adapter
from ..errors import ConfigError, require
from ..vector.env import VectorEnv, check_adapter_options
from ..vector.saved_adapter import SavedAdapter

__all__ = ["VecenvBackend"]

_vector: Any = require("pufferlib.vector", "pufferlib")
_joint_space: Any = require("pufferlib.spaces", "pufferlib").joint_space

#: PufferLib's buffers in the order in which `recv` returns them. pufferlib-core also has the second.
_BEFORE_INFOS = ("observations", "rewards", "terminals", "truncations")
_TEACHER_ACTIONS = "teacher_actions"
#: Options of `VectorEnv` that have one possible value here.
_FIXED = {"autoreset_mode": "NextStep", "copy": False, "infos": "all", "observation_mode": "same"}
#: Options that would have no effect.
_USELESS = ("episode_statistics", "mark_autoreset")
#: Key of infos that are a list of dicts.
_LISTED = "pufferlib infos"

Received = tuple[Any, ...]


class VecenvBackend(SavedAdapter, PoolFace):
    """N envs of PufferLib in worker processes, for `pufferlib.vector.make(creator, backend=VecenvBackend, ...)`.

    The same seeds and actions give what `pufferlib.vector.Serial` gives. Env i is built with `seed=i` and reset with
    `seed + i`. A worker that dies is replaced, and its envs continue where they were.

    Batches have `batch_size` envs, always the same ones: envs 0 to `batch_size - 1`, and so on. So the ids
    of their agents are ascending and without gaps. Arrays of `recv`, `reset` and `step` are views of shared memory;
    they are valid until the next but one `recv`.

    Example:
        >>> import gymnasium, pufferlib.emulation, pufferlib.vector
        >>> def creator(buf=None, seed=0):
        ...     env = gymnasium.make("CartPole-v1")
        ...     return pufferlib.emulation.GymnasiumPufferEnv(env, buf=buf, seed=seed)
        >>> envs = pufferlib.vector.make(creator, backend=VecenvBackend, num_envs=4)
        >>> obs, infos = envs.reset(seed=7)
        >>> obs, rewards, terminals, truncations, infos = envs.step(envs.action_space.sample())
        >>> obs.shape, rewards.dtype
        ((4, 4), dtype('float32'))
        >>> envs.close()

    Attributes:
        driver_env: an env in this process, for its attributes; it is never stepped.
        emulated: the `emulated` of this env.
        num_environments: N.
        num_agents: number of agents of all envs, N * A.
        agents_per_batch, num_envs: number of agents of a batch, `batch_size` * A.
        single_observation_space, single_action_space: of one agent.
        observation_space, action_space: of a batch.
        agent_ids: int64 (N * A,), 0, 1, 2, ...
        vector_env: the `vecenv.VectorEnv` that contains the envs; it has `statistics()`, `report()` and `worker_pids`.
    """

    # Functions of the installed release: the number of results of `recv` differs.
    reset, step = _vector.reset, _vector.step

    _setting_names = SettingNames(overlap="batch_size=num_envs // 2", infos="", views="", collect="")
    _recipe = "build one by pufferlib.vector.make"
    vector_env: VectorEnv
    _saved = ("_block", "initialized", "flag")

    def __init__(
        self,
        env_creators: Sequence[Callable[..., Any]],
        env_args: Sequence[Sequence[Any]],
        env_kwargs: Sequence[Mapping[str, Any]],
        num_envs: int,
        num_workers: int | None = None,
        batch_size: int | None = None,
        zero_copy: bool = True,
        sync_traj: bool = True,
        overwork: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """Build all envs; `pufferlib.vector.make` calls this.

        Args:
            env_creators: one per env, called with the keywords `buf` and `seed`.
            env_args, env_kwargs: further arguments of each creator.
            num_envs: N.
            num_workers: number of processes. None (default): one per usable core.
            batch_size: number of envs per batch, a divisor of N. None (default): N.
            zero_copy, sync_traj, overwork: without effect. Batches are never copied and have a fixed order; more
                workers than cores do no harm.
            seed: the first env's `seed`.
            **options: options of `vecenv.VectorEnv`, such as `timeouts`; `make` accepts a
                `functools.partial(VecenvBackend, timeouts=10.0)` as `backend`.

        Raises:
            APIUsageError: a creator returns no env of PufferLib.
            ConfigError: an option is wrong, or N is not a multiple of `batch_size`.
            Exception: as `vecenv.VectorEnv`.
        """
        check_adapter_options("VecenvBackend", "PufferLib", options, (*_FIXED, *_USELESS))
        batch_size = num_envs if batch_size is None else batch_size
        if num_envs % batch_size:
            raise ConfigError(
                f"batch_size: expected a divisor of num_envs={num_envs}, got {batch_size}", key="batch_size"
            )
        self.driver_env = driver = env_creators[0](*env_args[0], **env_kwargs[0])
        try:
            _vector.check_envs([driver], driver)
            self._describe(driver, num_envs, batch_size)
            env_fns = [
                functools.partial(_PufferEnv, creator, tuple(args), dict(kwargs), seed + i)
                for i, (creator, args, kwargs) in enumerate(zip(env_creators, env_args, env_kwargs))
            ]
            self.vector_env = VectorEnv(env_fns, num_workers=num_workers, **{**options, **_FIXED})
        except BaseException:
            driver.close()
            raise
        self._pool: Pool = self.vector_env.pool
        ids = np.arange(num_envs).reshape(-1, batch_size)
        self._blocks = list(zip(ids, self.agent_ids.reshape(len(ids), -1)))
        self._is_ordered = len(ids) == 1
        self._block = 0  # the block that `recv` returns next, or that `send` steps
        self.initialized = False  # whether the first actions were checked
        self.flag = _vector.RESET
        self._continue_own(options.get("resume"))

    def _describe(self, driver: Any, num_envs: int, batch_size: int) -> None:
        agents = int(driver.num_agents)
        self.emulated = driver.emulated
        self.num_environments = num_envs
        self.num_agents, self.agents_per_batch = agents * num_envs, agents * batch_size
        # The caller may change its spaces, but not those of the env class, which workers may use.
        shown = copy_spaces(driver.single_observation_space, driver.single_action_space)
        self.single_observation_space, self.single_action_space = shown
        self.observation_space = _joint_space(self.single_observation_space, self.agents_per_batch)
        self.action_space = _joint_space(_sent_action_space(driver), self.agents_per_batch)
        self.agent_ids = np.arange(self.num_agents)
        self._names = (*_BEFORE_INFOS, *_further_buffers(driver))

    @property
    def num_envs(self) -> int:
        """Number of agents of a batch, as in PufferLib."""
        return self.agents_per_batch

    # ---- stepping ----------------------------------------------------------------------------

    def async_reset(self, seed: int | None = None) -> None:
        """Reset all envs, env i with `seed + i`; steps that are under way are abandoned. `recv` returns the results.

        Raises:
            TypeError: the seed is not a whole number.
            ClosedError: the backend is closed.
        """
        pool = self._pool
        count = self.num_environments
        resetting = [env_id for env_id in range(count) if pool.owes(env_id) == Op.RESET]
        if resetting:
            pool.cancel(resetting)
        seeds = None if seed is None else [seed + env_id for env_id in range(count)]
        pool.reset(seeds=seeds, ordered=len(self._blocks) == 1)
        self._block = 0
        self.flag = _vector.RECV

    def recv(self) -> Received:
        """Wait for the next batch.

        Returns:
            The results of `recv` in the installed PufferLib: observations (M, *S) of M agents, rewards float32 (M,),
            terminals bool (M,), truncations bool (M,), in pufferlib-core also teacher_actions; infos, a list of dicts;
            agent ids int64 (M,); masks bool (M,).

        Raises:
            APIUsageError: the last batch was not answered by `send`, or there was no reset.
            Exception: as `VectorEnv.recv`.
        """
        _vector.recv_precheck(self)
        env_ids, agent_ids = self._blocks[self._block]
        return self._deliver(
            self._pool.recv() if len(self._blocks) == 1 else self._pool.recv(env_ids=env_ids), agent_ids
        )

    def _deliver(self, batch: Batch, agent_ids: Array) -> Received:
        columns = batch.obs
        if not batch.flags:
            infos = []
        else:
            if batch.flags & RowFlag.ERROR:
                deliver = functools.partial(self._deliver, agent_ids=agent_ids)
                batch.raise_errors(deliver, rows_per_env=len(agent_ids) // len(batch))
            infos = _list_infos(batch)
            if batch.flags & RowFlag.REPEATS or batch.truncated.any():
                columns = _without_repeated_results(columns, batch)
        count = len(agent_ids)
        buffers = [column.reshape(count, *column.shape[2:]) for column in map(columns.__getitem__, self._names)]
        return *buffers, infos, agent_ids, columns["masks"].reshape(count)

    def send(self, actions: Any) -> None:
        """Step the envs of the batch that `recv` returned last.

        Args:
            actions: (M, *S), one row per agent.

        Raises:
            APIUsageError: `recv` was not called before, or the first actions are not in `action_space`.
            SpaceError: the actions do not fit; nothing was stepped.
        """
        rows = _vector.send_precheck(self, actions)
        try:
            space = self._pool.spaces.action_space
            rows = rows.reshape(-1, *space.shape).astype(space.dtype, copy=False)  # type: ignore[misc]
            if len(self._blocks) == 1:
                self._pool.send(rows)
            else:
                self._pool.send(rows, self._blocks[self._block][0], ordered=False)
                self._block = (self._block + 1) % len(self._blocks)
        except Exception:
            self.flag = _vector.SEND  # nothing was sent, so other actions may follow
            raise

    def notify(self) -> None:
        """Call `notify` of each env; waits for the steps that are under way."""
        self._pool.call(CallMethod("notify", (), {}))

    # ---- end ---------------------------------------------------------------------------------

    def close(self) -> None:
        if not self._pool.closed:
            try:
                self.driver_env.close()
            finally:
                self.vector_env.close()


def _list_infos(batch: Batch) -> list[dict[str, Any]]:
    """Return the infos of a batch as a list, as `Serial` does: after a reset of all envs also empty dicts."""
    is_first = bool(batch.flags & RowFlag.RESET)
    found: list[dict[str, Any]] = []
    for info in batch.infos():
        listed = info.pop(_LISTED, None)
        found += listed or ()
        if info or (is_first and listed is None):
            found.append(info)
    return found


def _without_repeated_results(columns: dict[str, Array], batch: Batch) -> dict[str, Array]:
    """Return the columns of a batch without the rows that repeat last results: of exceptions, and of lost episodes."""
    found = {name: columns[name].copy() for name in ("rewards", "terminals", "truncations")}
    repeats = batch.truncated | ((batch.row_flags & RowFlag.REPEATS) != 0)
    found["rewards"][repeats], found["terminals"][repeats], found["truncations"][repeats] = 0, False, False
    found["truncations"][batch.truncated] = True
    return columns | found


# ---- in the workers ------------------------------------------------------------------------------


class _PufferEnv(gymnasium.Env[Any, Any]):
    """An env of PufferLib with A agents as one env of the engine; an observation contains all its buffers."""

    def __init__(self, creator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], seed: int) -> None:
        self.env = env = creator(*args, buf=None, seed=seed, **kwargs)  # `envs.state` looks for this name
        _vector.check_envs([env], env)
        self._names = (*_BEFORE_INFOS, *_further_buffers(env), "masks")
        buffers: dict[str, Any] = {name: _space_like(getattr(env, name)) for name in self._names}
        buffers["observations"] = _joint_space(env.single_observation_space, env.num_agents)
        self.observation_space = spaces.Dict(buffers)
        self.action_space = _action_space_of(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        _, info = self.env.reset() if seed is None else self.env.reset(seed=seed)
        return self._buffers(), {_LISTED: info} if isinstance(info, list) else info

    def step(self, action: Any) -> Any:
        env = self.env
        _, _, _, _, info = env.step(action)
        if isinstance(info, list):
            info = {_LISTED: info} if info else {}
        rewards = env.rewards
        reward = rewards.item() if len(rewards) == 1 else float(rewards.sum())
        return self._buffers(), reward, bool(env.done), False, info

    def _buffers(self) -> dict[str, Any]:
        env = self.env
        return {name: getattr(env, name) for name in self._names}

    def notify(self) -> None:
        self.env.notify()

    def generator_owners(self, first: int) -> list[Any]:
        return [generator_owner(self.env)]

    def close(self) -> None:
        self.env.close()


def _further_buffers(env: Any) -> tuple[str, ...]:
    """Return the names of the buffers that only some releases of PufferLib have."""
    return (_TEACHER_ACTIONS,) if hasattr(env, _TEACHER_ACTIONS) else ()


def _space_like(array: Array) -> spaces.Box:
    """Return the space of all arrays with this shape and dtype."""
    if array.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, array.shape, array.dtype)
    low, high = (0, 1) if array.dtype == np.bool_ else (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)
    return spaces.Box(low, high, array.shape, array.dtype)


def _sent_action_space(env: Any) -> Any:
    """Return the space of the actions that the env's `step` gets for one agent."""
    return getattr(env, "single_transport_action_space", env.single_action_space)


def _action_space_of(env: Any) -> spaces.Box | spaces.MultiDiscrete:
    """Return the space of the actions of all agents; whole numbers are int32, as in PufferLib's own buffers."""
    joint = _joint_space(_sent_action_space(env), env.num_agents)
    if isinstance(joint, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(joint.nvec, dtype=np.int32)  # type: ignore[arg-type]
    is_whole = not isinstance(_sent_action_space(env), spaces.Box)
    return spaces.Box(joint.low, joint.high, dtype=np.int32 if is_whole else joint.dtype)


def _no_state(env: Any, state: None = None) -> None:
    """Return or restore the state of an emulated env between two episodes: a reset sets all its attributes."""


for _name in ("GymnasiumPufferEnv", "PettingZooPufferEnv"):
    register_state_adapter(f"pufferlib.emulation.{_name}", _no_state, _no_state, spans=False)
