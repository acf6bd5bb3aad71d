"""Branches: the states of single envs of a vector env, from which these or other envs continue.

    get_states: worker -> SavedEnv, with the last delivered observation -> EnvSnapshot
    set_states: EnvSnapshot -> GivenState -> a reset that puts it into the env -> the row that the state comes from

In the journal, such a reset is a restore point as one with a seed is: the env needs no command before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.host.saving import SavedEnv
from ..core.layout.arena import read_record
from ..core.layout.commands import GivenState
from ..core.layout.flags import Autoreset
from ..core.layout.spec import Array
from ..core.pool.pool import Pool
from ..env_snapshot import EnvSnapshot
from ..envs.state.state import SNAPSHOTTER
from ..errors import ConfigError, WrongTypeError
from ..saved_state import fingerprint
from ..values.pickling import dump_by_name, load

__all__ = ["Branches"]


class Branches:
    """Makes snapshots of the envs of an open pool, and checks those that are put into its envs."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._spec = pool.obs_spec
        self._spaces = fingerprint(pool.spaces.observation_space, pool.spaces.action_space)
        self._layers: dict[int, tuple[str, ...]] = {}  # keys: the env_ids of the envs that are known

    def get(self, env_ids: Array, ended: Array | None, returns: Array | None) -> tuple[EnvSnapshot, ...]:
        """Return the snapshots of envs; see `Pool.get_states`.

        Args:
            env_ids: int64 (B,).
            ended: bool (N,), envs whose episodes are over; None: the envs know it.
            returns: float64 (N, *K), sums of rewards; None: the envs know them.
        """
        found = []
        for env_id, (env, obs) in zip(env_ids.tolist(), self._pool.get_states(env_ids, SNAPSHOTTER)):
            self._layers[env_id] = layers = self._shared(env.layers)
            is_over = ended is not None and bool(ended[env_id])
            found.append(self._snapshot(layers, env, obs, is_over, None if returns is None else returns[env_id]))
        return tuple(found)

    def _shared(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        """Return an equal object that other snapshots have: a pickle contains it once."""
        return next((known for known in self._layers.values() if known == layers), layers)

    def _snapshot(
        self, layers: tuple[str, ...], env: SavedEnv, obs: list[Array], is_over: bool, returns: Array | None
    ) -> EnvSnapshot:
        record = read_record(env.record)
        assert env.state is not None
        return EnvSnapshot(
            layers=layers,
            spaces=self._spaces,
            state=env.state,
            obs=tuple([leaf.tobytes() for leaf in obs]),
            objects=dump_by_name(env.objects) if self._spec.num_objects else b"",
            length=int(record["length"]),
            seed=int(record["seed"]),
            returns=(record["return"] if returns is None else returns).tobytes(),
            is_over=is_over or bool(record["is_over"]),
            age_ns=int(record["began_ns"]),
        )

    def read(self, states: Any, env_ids: Array) -> list[EnvSnapshot]:
        """Return the snapshots that are put into envs, one per env.

        Raises:
            ConfigError: there is not one per env, or one is of another class or of other spaces than its env.
            WrongTypeError: one is not a snapshot.
        """
        given = [states] * len(env_ids) if isinstance(states, EnvSnapshot) else list(states)
        if len(given) != len(env_ids):
            raise ConfigError(f"set_states: expected {len(env_ids)} states, got {len(given)}", key="states")
        for state in given:
            if not isinstance(state, EnvSnapshot):
                raise WrongTypeError(f"set_states: expected states of get_states, got {type(state).__name__}")
        ids = env_ids.tolist()
        self._read_layers([env_id for env_id in ids if env_id not in self._layers])
        for env_id, state in zip(ids, given):
            if state.spaces != self._spaces:
                raise ConfigError("set_states: the state comes from an env with other spaces", key="states")
            if not _fits(state, self._layers[env_id]):
                self._read_layers([env_id])  # it may have other wrappers now
            mine = self._layers[env_id]
            if not _fits(state, mine):
                raise ConfigError(
                    f"set_states: env {env_id} consists of {', '.join(mine)}, and the state is that of "
                    f"{', '.join(state.layers)}",
                    key="states",
                )
            if state.is_over and self._pool.autoreset == Autoreset.SAME_STEP:
                raise ConfigError(
                    "set_states: the episode of the state is over, and with autoreset_mode SAME_STEP none ever is",
                    key="states",
                )
        return given

    def _read_layers(self, env_ids: Sequence[int]) -> None:
        if env_ids:
            self._layers.update(zip(env_ids, self._pool.call(SNAPSHOTTER.layers, env_ids, pure=True)))

    def put(self, states: Sequence[EnvSnapshot], env_ids: Array, *, ordered: bool) -> None:
        """Begin to put states into envs; see `Pool.set_states`."""
        made = {id(state): self._given(state) for state in states}
        self._pool.set_states([made[id(state)] for state in states], env_ids, ordered=ordered)

    def _given(self, state: EnvSnapshot) -> GivenState:
        leaves = [
            np.frombuffer(data, leaf.dtype).reshape(leaf.shape)[()] for data, leaf in zip(state.obs, self._spec.leaves)
        ]
        objects = load(state.objects) if state.objects else []
        obs = self._spec.batch(lambda leaf: leaves[leaf.index], lambda node: objects[node.index])
        returns = np.frombuffer(state.returns)
        return GivenState(
            snapshotter=SNAPSHOTTER,
            state=state.state,
            obs=obs,
            length=state.length,
            episode_return=float(returns[0]) if len(returns) == 1 else float("nan"),
            age_ns=state.age_ns,
            seed=None if state.seed < 0 else state.seed,
            is_over=state.is_over,
        )


def _fits(state: EnvSnapshot, layers: tuple[str, ...]) -> bool:
    """Return whether a state fits an env of these layers; one may make the layers inside it at its first reset."""
    return state.layers[: len(layers)] == layers
