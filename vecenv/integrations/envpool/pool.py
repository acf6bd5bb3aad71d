"""EnvPool: the calls that all interfaces share. It stands above one `VectorEnv` in NEXT_STEP mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from ...core.advice.facts import SettingNames
from ...core.pool.face import PoolFace
from ...errors import converted
from ...vector.arguments import read_env_ids, read_seeds
from ...vector.env import VectorEnv
from ...vector.saved_adapter import SavedAdapter

__all__ = ["EnvPool", "EnvPoolRows"]

#: Spaces whose actions are one array.
_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)


class EnvPoolRows(NamedTuple):
    """The results of B envs, in EnvPool's dtypes.

    Attributes:
        env_id: int32 (B,).
        obs: leaves (B, *S).
        reward, terminated, truncated: float32, bool and bool (B,).
        elapsed_step: the number of steps of the episode so far, 0 in a row that begins one; int32 (B,).
        is_first: whether the row begins an episode; bool (B,).
        state: the infos of the envs, arrays (B, ...).
    """

    env_id: Any
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    elapsed_step: Any
    is_first: Any
    state: dict[str, Any]

    def info(self) -> dict[str, Any]:
        """Return the infos of EnvPool's Gymnasium interface."""
        players = {"env_id": self.env_id.copy()}
        return {"env_id": self.env_id, "players": players, **self.state, "elapsed_step": self.elapsed_step}


class EnvPool(SavedAdapter, PoolFace):
    """N envs in worker processes, `batch_size` of which are received at a time.

    The step after the end of an episode ignores its action and begins the next episode, with reward 0. If `batch_size`
    is N, the rows of a batch have the order in which actions were sent; otherwise that in which envs have finished.

    Args:
        envs: the envs, which this object closes.
        config: the options, by EnvPool's names.
        seeds: the seed of the first reset of each env, or None.

    Attributes:
        num_envs: N.
        all_env_ids: the ids of all envs, int32 (N,).
        is_async: whether `batch_size` is below N.
        spec: the spec of Gymnasium that the envs were made from.
        vector_env: the `vecenv.VectorEnv` that contains the envs.
    """

    #: Makes the results of a step.
    _form: Callable[[EnvPoolRows], Any]
    _setting_names = SettingNames(overlap="batch_size=num_envs // 2", collect="")
    vector_env: VectorEnv
    _saved: ClassVar[tuple[str, ...]] = ("_seeds", "_elapsed", "_begins", "_sent")

    def __init__(self, envs: VectorEnv, config: Mapping[str, Any], seeds: Sequence[int | None]) -> None:
        self.vector_env = envs
        self._pool = envs.pool
        self._config = dict(config)
        self._seeds = list(seeds)  # Seed of the next reset of each env; None: its generator continues
        self.num_envs = envs.num_envs
        self.spec = envs.spec
        self.all_env_ids = np.arange(self.num_envs, dtype=np.int32)
        self.is_async = envs.batch_size not in (None, self.num_envs)
        self._elapsed = np.zeros(self.num_envs, np.int32)
        self._begins = np.ones(self.num_envs, np.bool_)  # whether the env's next row begins an episode
        self._sent: list[int] = []  # envs whose rows the next `recv` returns, in this order, unless `is_async`
        space = envs.single_action_space
        self._action_dtype = space.dtype if isinstance(space, _ARRAY_SPACES) else None

    def __len__(self) -> int:
        return self.num_envs

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._config.items())
        return f"{type(self).__name__}({options})"

    __str__ = __repr__

    @property
    def config(self) -> dict[str, Any]:
        """A copy of the options, by EnvPool's names."""
        return dict(self._config)

    # ---- sending -----------------------------------------------------------------------------

    def send(self, action: Any, env_id: Any = None) -> None:
        """Begin to step envs without waiting; `recv` returns their results.

        Args:
            action: leaves (B, *S): one row per env, ordered as `env_id`. Arrays are converted to the action space's
                dtype, if that is of the same kind.
            env_id: distinct ids. None (default): all envs.

        Raises:
            SpaceError: the actions do not fit; nothing was sent.
            AlreadyPendingCallError: one of these envs has an outstanding step or reset.
            ConfigError: there is no such env.
        """
        ids = self._read_ids("send", env_id)
        self.vector_env.send(self._cast(action), ids)
        self._expect(ids)

    def async_reset(self) -> None:
        """Begin to reset all envs without waiting; `recv` returns their first observations."""
        self.vector_env.async_reset(seed=self._seeds)
        self._begin(self.all_env_ids)
        self._expect(self.all_env_ids)

    def seed(self, seed: int | Sequence[int | None] | None = None) -> None:
        """Set the seeds of the next resets: env i gets `seed + i`, or `seed[i]`. EnvPool ignores this call."""
        self._seeds = list(read_seeds(seed, self.num_envs))

    def _read_ids(self, what: str, env_id: Any) -> Any:
        ids = read_env_ids(what, env_id, self.num_envs)
        return self.all_env_ids if ids is None else ids

    def _expect(self, ids: Any) -> None:
        if not self.is_async:
            self._sent += ids.tolist()

    def _begin(self, ids: Any) -> None:
        """Note that these envs are being reset: their seeds are used up, and their next rows begin episodes."""
        self._begins[ids] = True
        for env_id in ids.tolist():
            self._seeds[env_id] = None

    def _cast(self, action: Any) -> Any:
        if self._action_dtype is None:
            return action
        array = np.asarray(action)
        is_same_kind = np.can_cast(array.dtype, self._action_dtype, "same_kind")
        return array.astype(self._action_dtype, copy=False) if is_same_kind else action

    # ---- receiving ---------------------------------------------------------------------------

    def _recv(self, form: Callable[[EnvPoolRows], Any]) -> Any:
        ids, self._sent = self._sent, []
        return converted(lambda results: form(self._read(results)), self.vector_env.recv, env_id=ids or None)

    def step(self, action: Any, env_id: Any = None) -> Any:
        """Send actions as `send` does, and return the next batch as `recv` does."""
        form = self._form
        if self.is_async or self._sent:
            self.send(action, env_id)
            return self._recv(form)
        return converted(lambda results: form(self._read(results)), self.vector_env.step, self._cast(action), env_id)

    def _reset(self, env_id: Any, seed: Any, options: dict[str, Any] | None, form: Callable[[EnvPoolRows], Any]) -> Any:
        seeds = self._seeds if seed is None else read_seeds(seed, self.num_envs)
        if options and "reset_mask" in options:
            env_id = np.flatnonzero(options["reset_mask"]) if env_id is None else env_id
            options = {key: value for key, value in options.items() if key != "reset_mask"} or None
        ids = self._read_ids("reset", env_id)

        def read(results: tuple[Any, dict[str, Any]]) -> Any:
            obs, infos = results
            self._begin(ids)
            given = set(ids.tolist())
            self._sent = [env_id for env_id in self._sent if env_id not in given]
            ends = np.zeros(len(ids), np.bool_)
            return form(self._read((obs, np.zeros(len(ids)), ends, ends.copy(), infos)))

        return converted(read, self.vector_env.reset, None if env_id is None else ids, seed=seeds, options=options)

    def _read(self, results: tuple[Any, Any, Any, Any, dict[str, Any]]) -> EnvPoolRows:
        """Convert the results of a `VectorEnv` and note which envs have ended."""
        obs, rewards, terminated, truncated, infos = results
        ids = np.array(infos.get("env_id", self.all_env_ids), np.int32)
        is_first = self._begins[ids]
        elapsed = np.where(is_first, 0, self._elapsed[ids] + 1).astype(np.int32)
        state = {
            key: value
            for key, value in infos.items()
            if key not in ("env_id", "_env_id", "autoreset", "_autoreset") and not _is_full_mask(key, infos)
        }
        elapsed = state.pop("elapsed_step", elapsed)  # Atari games count over the lives of a game
        self._elapsed[ids] = elapsed
        self._begins[ids] = terminated | truncated
        return EnvPoolRows(ids, obs, rewards.astype(np.float32), terminated, truncated, elapsed, is_first, state)

    # ---- other calls -------------------------------------------------------------------------

    def render(self, env_ids: Any = 0) -> Any:
        """Return the frames of some envs, env 0 by default: an array (B, H, W, 3) with `render_mode="rgb_array"`."""
        return np.stack(self.vector_env.render(env_id=env_ids))

    def close(self, **kwargs: Any) -> None:
        """Close the envs and end the workers; takes the arguments of `VectorEnv.close`. Later calls do nothing."""
        self.vector_env.close(**kwargs)


def _is_full_mask(key: str, infos: Mapping[str, Any]) -> bool:
    """Return whether this key is Gymnasium's mask of another key which all rows have; EnvPool has no masks."""
    return key.startswith("_") and key[1:] in infos and bool(np.all(infos[key]))
