"""SB3VecEnv: the engine as a VecEnv of Stable-Baselines3.

    make_vec_env("CartPole-v1", n_envs=64, vec_env_cls=SB3VecEnv)     in place of SubprocVecEnv

It steps the pool of a `VectorEnv` in SAME_STEP mode. Each batch becomes the four values of Stable-Baselines3.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from ..core.advice.facts import SettingNames
from ..core.layout.flags import RowFlag
from ..core.layout.spec import Array, Leaf, has_rows
from ..core.options import START_METHODS
from ..core.parent.batch import Batch
from ..core.pool.face import PoolFace
from ..core.pool.pool import Pool
from ..envs.remote import CallMethod, GetAttribute, HasAttribute, IsWrapped, SetOuterAttribute
from ..errors import ClosedError, ConfigError, NotASequenceError, StateError, require, warn_caller
from ..values.checks import check_choice, check_whole
from ..vector.env import VectorEnv, check_options
from ..vector.infos import check_no_statistics
from ..vector.nested import row_of
from ..vector.saved_adapter import SavedAdapter

__all__ = ["SB3VecEnv", "call_once", "read_rows"]

_VecEnv: Any = require("stable_baselines3.common.vec_env", "sb3").VecEnv

_EXTRA_FLAGS = RowFlag.INFO | RowFlag.MESSAGE | RowFlag.FINAL | RowFlag.ERROR

#: Methods that read the envs of the rows only.
_READS = ("has_attr", "get_attr", "env_is_wrapped", "get_images")

Infos = list[dict[str, Any]]
#: Numbers of rows; None: all.
Indices = int | Iterable[int] | None


class SB3VecEnv(SavedAdapter, PoolFace, _VecEnv):
    """N envs in worker processes for Stable-Baselines3, a few of them per worker.

    The same seeds and actions give what `DummyVecEnv` gives: float32 rewards, bool dones, and infos with
    `TimeLimit.truncated`, and `terminal_observation` where an episode has ended. Arrays are the caller's own.
    Envs have equal spaces; `observation_mode='different'` lets the bounds of observations differ. Envs with
    process-wide state need `num_workers=num_envs`; `SubprocVecEnv` always has one process per env.

    Example:
        >>> import gymnasium
        >>> envs = SB3VecEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial")
        >>> _ = envs.seed(7)
        >>> envs.reset().shape
        (2, 4)
        >>> obs, rewards, dones, infos = envs.step([0, 1])
        >>> rewards.tolist(), dones.tolist(), infos
        ([1.0, 1.0], [False, False], [{'TimeLimit.truncated': False}, {'TimeLimit.truncated': False}])
        >>> envs.close()

    Attributes:
        reset_infos: for each env the info of its last reset, by `reset` or at an episode's end.
        vector_env: the `vecenv.VectorEnv` that steps the envs; it has `seeds` and `worker_pids`.
    """

    # Stable-Baselines3 waits for all envs, and keeps arrays.
    _setting_names = SettingNames(overlap="", views="", collect="")
    vector_env: VectorEnv
    _saved = ("reset_infos", "_seeds", "_options")
    _is_ordered = True

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]] | VectorEnv, start_method: str | None = None, **options: Any
    ) -> None:
        """Build all envs, or use a vector env that has been built.

        Args:
            env_fns: one constructor per env; or a `vecenv.VectorEnv` with SAME_STEP autoreset, which `close` then
                closes.
            start_method: start method of the workers; SubprocVecEnv's name of `context`.
            **options: options of `vecenv.VectorEnv`, with the same defaults. With `episode_statistics=True` the info
                of the last step of an episode has "episode": return "r", length "l" and seconds "t", as from a
                `Monitor` around the env; but "t" counts from the start of this episode.

        Raises:
            ConfigError: an option is wrong or given twice, two constructors returned the same env, or rewards have
                several numbers.
            Exception: as `vecenv.VectorEnv`.
        """
        if start_method is not None:
            check_choice("start_method", start_method, START_METHODS)
            if isinstance(env_fns, VectorEnv):
                raise ConfigError("SB3VecEnv: start_method: the vector env has been built", key="start_method")
            if options.setdefault("context", start_method) != start_method:
                raise ConfigError(
                    f"start_method={start_method!r} and context={options['context']!r}: two names of one option",
                    key="start_method",
                )
        self.vector_env = _vector_env_of(env_fns, options)
        self._pool: Pool = self.vector_env.pool
        self._env_seeds = self.vector_env.env_seeds
        self._ids = list(range(self._pool.num_envs))
        self._is_plain = isinstance(self._pool.action_spec.root, Leaf)
        self._action_dtype: Any = self._pool.spaces.action_space.dtype
        try:
            envs = self.vector_env
            _check_rewards(envs)
            super().__init__(self._pool.num_envs, envs.single_observation_space, envs.single_action_space)
            # the metadata of the envs beside render modes: VecVideoRecorder reads the frames per second here
            self.metadata: dict[str, Any] = {**(self._pool.properties.get("metadata") or {}), **self.metadata}
            self._continue_own(options.get("resume"))
        except BaseException:
            self.vector_env.close()
            raise

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Have the next reset give env i `seed + i`; None draws a seed. Returns the seeds.

        Raises:
            ConfigError: it is no whole number, or negative.
        """
        seeds: Sequence[int | None] = super().seed(None if seed is None else check_whole("seed", seed, 0))
        return seeds

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Have the next reset give each env these options, or those of a list with one dict per env.

        Raises:
            ConfigError: they are neither.
        """
        if isinstance(options, list | tuple):
            fits = len(options) == self.num_envs and all(one is None or isinstance(one, Mapping) for one in options)
        else:
            fits = options is None or isinstance(options, dict)
        if not fits:
            raise ConfigError(f"options: expected a dict, or {self.num_envs} of them, got {options!r}", key="options")
        super().set_options(options)

    # ---- stepping ----------------------------------------------------------------------------

    def reset(self) -> Any:
        """Begin an episode in every env, with the seeds and options set before; they are used once.

        A step under way is cancelled. Without a seed, generators continue; see `vector_env.seeds`. Returns the
        observations, nested like the space, with N rows; raises as `VectorEnv.reset`.
        """
        self._check_open("reset")
        if self._pool.outstanding():
            self._pool.cancel()
        kwargs = [{"options": one} if one else None for one in self._options]
        self._pool.reset(seeds=self._seeds, kwargs=kwargs)
        self._env_seeds.record(self._seeds, self._ids)
        batch = self._pool.recv()
        self._env_seeds.note(batch)
        obs = self._deliver_reset(batch)
        self._reset_seeds()
        self._reset_options()
        return obs

    def _deliver_reset(self, batch: Batch) -> Any:
        if batch.flags & RowFlag.ERROR:
            batch.raise_errors(self._deliver_reset)
        self.reset_infos = batch.infos()
        return self.vector_env.results.own_obs(batch)

    def step_async(self, actions: Any) -> None:
        """Begin a step of every env.

        Args:
            actions: one row per env; an array, or a sequence of N actions. A dict of columns will do for Dict spaces.
                An array of floats for a space of whole numbers is converted if they are whole and the space is no
                Box; else each env gets its row as it is, which is slower.

        Raises:
            SpaceError: the actions do not fit; nothing was sent. Also a TypeError if they are a single value.
            StateError: a step is under way already.
        """
        try:
            if self._is_plain and getattr(actions, "dtype", None) == self._action_dtype:
                self._pool.send(actions)
            else:
                self._send_converted(actions)
        except StateError:
            self._check_open("step_async")
            if self._pool.outstanding():
                raise StateError("step_async: a step is under way; call step_wait first, or reset") from None
            raise

    def _send_converted(self, actions: Any) -> None:
        """Send actions that are not one array of the action space's dtype."""
        if not has_rows(actions):
            raise NotASequenceError(f"action: expected {self.num_envs} actions, one per env, got {actions!r}")
        if not self._is_plain:
            if isinstance(actions, Mapping):
                self._pool.send(actions)
            else:
                self._pool.send_objects(list(actions), self._ids)
            return
        is_float = isinstance(actions, np.ndarray) and actions.dtype.kind == "f"
        if self._pool.options.strict or not is_float or self._action_dtype.kind not in "iu":
            self._pool.send(actions)
            return
        with np.errstate(invalid="ignore"):
            whole = actions.astype(self._action_dtype)
        if not isinstance(self._pool.spaces.action_space, spaces.Box) and np.array_equal(whole, actions):
            self._pool.send(whole)  # MultiBinary actions come so from policies
        else:
            self._pool.send_objects(list(actions), self._ids)

    def _check_open(self, what: str) -> None:
        if self._pool.closed:
            raise ClosedError(f"{what}: the vec env is closed")

    def step_wait(self) -> tuple[Any, Array, Array, Infos]:
        """Wait for the step that `step_async` began.

        Returns:
            Observations (N rows), rewards float32 (N,), dones bool (N,), and one dict of infos per env. Where an
            episode has ended, the observation is the first of the next one.

        Raises:
            StateError: there is none.
            ConfigError: the envs give episode statistics themselves, and they were asked for here, too.
            Exception: as `VectorEnv.step`.
        """
        self._check_open("step_wait")
        if not self._pool.outstanding():
            raise StateError("step_wait: call step_async first")
        return self._deliver(self._pool.recv())

    def _deliver(self, batch: Batch) -> tuple[Any, Array, Array, Infos]:
        if batch.flags & RowFlag.ERROR:
            batch.raise_errors(self._deliver)
        dones = batch.terminated | batch.truncated
        infos = self._infos_of(batch, dones)
        return self.vector_env.results.own_obs(batch), batch.rewards.astype(np.float32), dones, infos

    def _infos_of(self, batch: Batch, dones: Array) -> Infos:
        if not batch.flags & _EXTRA_FLAGS:
            return [{"TimeLimit.truncated": False} for _ in self._ids]
        infos = batch.infos()
        for info, done in zip(infos, dones.tolist()):
            if not done:  # else it is that of a reset
                info["TimeLimit.truncated"] = False
        if batch.flags & RowFlag.FINAL:
            self._put_finals(infos, batch, dones)
        return infos

    def _put_finals(self, infos: Infos, batch: Batch, dones: Array) -> None:
        """Replace the infos of resets, which become `reset_infos`, by those of the last steps."""
        final_infos, space, final_obs = batch.final_infos(), self._pool.spaces.observation_space, batch.final_obs
        truncated = batch.truncated & ~batch.terminated
        reset_infos = list(self.reset_infos)
        has_statistics = self.vector_env.results.has_statistics
        for env_id in np.flatnonzero(dones).tolist():
            reset_infos[env_id] = infos[env_id]
            info = final_infos[env_id]
            info["TimeLimit.truncated"] = bool(truncated[env_id])
            has_ints = bool(batch.row_flags[env_id] & RowFlag.FINAL_INTS)
            info["terminal_observation"] = row_of(space, final_obs, env_id, has_ints)
            if has_statistics:
                check_no_statistics(info)
                info["episode"] = _statistics_of(batch, env_id)
            infos[env_id] = info
        self.reset_infos = reset_infos

    # ---- calls -------------------------------------------------------------------------------

    @property
    def envs(self) -> list[Any]:
        """The envs themselves, as of `DummyVecEnv`; only with `backend="serial"`. See `vecenv.VectorEnv.envs`."""
        return self.vector_env.envs

    def has_attr(self, attr_name: str) -> bool:
        """Return whether every env has the attribute."""
        return all(self._call("has_attr", HasAttribute(attr_name), None))

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of the envs `indices` (None: all), looked up from the outermost layer inwards.

        Raises:
            AttributeError: an env has none of this name.
            IndexError: there is no such env.
        """
        return self._call("get_attr", GetAttribute(attr_name), indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of the envs' outermost layers to one value."""
        function = SetOuterAttribute(attr_name, value)
        self._call("set_attr", function, indices, name=f"set_attr {attr_name}")  # lasts beyond an episode

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of envs with the same arguments; return its results in the order of `indices`.

        Of exceptions of several envs, that of the lowest id is raised, with the remote traceback as its cause.
        """
        return self._call("env_method", CallMethod(method_name, method_args, method_kwargs), indices)

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """Return for each env whether one of its layers is a `wrapper_class`."""
        return self._call("env_is_wrapped", IsWrapped(wrapper_class), indices)

    def _call(
        self, what: str, function: Callable[[Any], Any], indices: Indices, *, name: str | None = None
    ) -> list[Any]:
        self._check_open(what)
        options: dict[str, Any] = {"pure": what in _READS, "name": name}
        if indices is None:  # without ids, spare envs are called too
            return self._pool.call(function, **options)
        return call_once(self._pool, function, read_rows(indices, self.num_envs), **options)

    def get_images(self) -> list[Any]:
        """Return what each env renders, None for each unless their render_mode is 'rgb_array'."""
        if self.render_mode != "rgb_array":
            mode = self.render_mode
            warn_caller(f"get_images: the envs were made with render_mode {mode!r}; images need 'rgb_array'")
            return [None for _ in self._ids]
        return self._call("get_images", CallMethod("render"), None)

    # ---- end ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether a step is under way."""
        return self._pool.outstanding() > 0

    def close(self) -> None:
        """End envs and workers within the `close` limit; idempotent."""
        self.vector_env.close()


def read_rows(indices: Indices, count: int) -> list[int]:
    """Return the rows that are asked for, of `count`; negative ones count from the end, and None means all."""
    if indices is None:
        return list(range(count))
    each = [indices] if isinstance(indices, int | np.integer) else indices
    return [range(count)[operator.index(row)] for row in each]


def call_once(pool: Pool, function: Callable[[Any], Any], env_ids: Sequence[int], **options: Any) -> list[Any]:
    """Call a function once in each of these envs, some of which are named twice; return its result for each id."""
    asked = sorted(set(env_ids))
    results = dict(zip(asked, pool.call(function, asked, **options))) if asked else {}
    return [results[env_id] for env_id in env_ids]


def _statistics_of(batch: Batch, row: int) -> dict[str, Any]:
    """Return the entry of an episode as `Monitor` of Stable-Baselines3 writes it, with the same rounding."""
    return {
        "r": round(float(batch.returns[row]), 6),
        "l": int(batch.lengths[row]),
        "t": round(float(batch.seconds[row]), 6),
    }


def _check_rewards(envs: VectorEnv) -> None:
    """Raise ConfigError if rewards have several numbers."""
    if envs.reward_space is not None:
        raise ConfigError(
            f"SB3VecEnv: expected rewards of one number, got shape {envs.reward_space.shape}; weight the numbers in a "
            "wrapper, and declare its `reward_space` with the shape ()",
            key="env_fns",
        )


def _vector_env_of(env_fns: Any, options: dict[str, Any]) -> VectorEnv:
    """Return the caller's vector env, or a new one; ConfigError if the caller's has another form."""
    check_options("SB3VecEnv", options)
    if isinstance(env_fns, VectorEnv):
        if options:
            raise ConfigError(
                f"SB3VecEnv: {', '.join(options)}: the vector env has been built", key=next(iter(options))
            )
        if env_fns.autoreset_mode != AutoresetMode.SAME_STEP:
            raise ConfigError(
                f"SB3VecEnv: the vector env has autoreset_mode {env_fns.autoreset_mode.value!r}; Stable-Baselines3 "
                "needs AutoresetMode.SAME_STEP",
                key="autoreset_mode",
            )
        _check_rewards(env_fns)
        return env_fns
    if hasattr(env_fns, "single_observation_space"):
        raise ConfigError(
            f"SB3VecEnv: expected constructors of envs or a vecenv.VectorEnv, got {type(env_fns).__name__}; "
            "SB3AgentVecEnv of vecenv.integrations.sb3_agents has a row per agent of PettingZoo's envs",
            key="env_fns",
        )
    mode = options.setdefault("autoreset_mode", AutoresetMode.SAME_STEP)
    if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP.value):
        raise ConfigError(
            f"autoreset_mode: SB3VecEnv works with AutoresetMode.SAME_STEP only, not {mode!r}", key="autoreset_mode"
        )
    return VectorEnv(env_fns, **options)
