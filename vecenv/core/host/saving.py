"""The calls by which a pool asks for the states of its envs.

SaveState    for another pool, which continues all episodes
GetStates    for the caller, who puts them into envs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import InternalError
from ..layout.arena import read_record
from ..system.clock import now_ns
from .global_rngs import GlobalRngs
from .replay import Snapshotter, StateSnapshotter
from .slot import Slot

__all__ = ["GetStates", "SaveState", "SavedEnv", "get_state", "restore_now", "save_env"]


class SavedEnv(NamedTuple):
    """The state of an env whose commands are not kept.

    Attributes:
        state: for `Snapshotter.restore`; None if the state is not known exactly, or if the env was never reset.
        holds_calls: see `RestorePoint`.
        record: the bytes of an `arena.RECORD` with step_id 0; its `began_ns` is the age of the episode.
        reason: why there is no state; '' if there is one, or if the env was never reset.
        layers: of `GetStates`: the names of the classes of the env and of the envs inside it.
        objects: of `GetStates`: the values of the last observation without a column.
    """

    state: bytes | None
    holds_calls: bool
    record: bytes
    reason: str = ""
    layers: tuple[str, ...] = ()
    objects: list[Any] | None = None


@dataclass(frozen=True)
class SaveState:
    """Requests the state of an env; the host handles this call.

    If the host keeps records, it sends a snapshot to the journal, and its answer is None. Else the answer is a
    `SavedEnv`.

    Attributes:
        snapshotter: captures the state.
    """

    snapshotter: Snapshotter | None

    def __call__(self, env: Any) -> SavedEnv | None:
        """Raise InternalError: no env is called."""
        raise InternalError("a request to save an env has reached it")


@dataclass(frozen=True)
class GetStates:
    """Requests the states of several envs of one slot, between their commands; the host handles this call.

    The call is made for one of them. The answer is {offset: SavedEnv}, without envs that the slot does not have.

    Attributes:
        snapshotter: captures the states.
        offsets: the ids of the envs, less that of the called one, since a shard has ids of its own.
    """

    snapshotter: StateSnapshotter
    offsets: tuple[int, ...]

    def __call__(self, env: Any) -> dict[int, SavedEnv]:
        """Raise InternalError: no env is called."""
        raise InternalError("a request for the states of envs has reached one")


def restore_now(env: Any) -> None:
    """Do nothing: a call of an env restores the env first."""


def save_env(env_id: int, env: Any, slot: Slot, rngs: GlobalRngs, snapshotter: Snapshotter | None) -> SavedEnv:
    """Return the state of an env between two of its commands."""
    record = read_record(slot.present_record(env_id))
    if record["episode"] < 0:
        return SavedEnv(None, False, record.tobytes())
    record["began_ns"] = now_ns() - record["began_ns"]
    snapshot, reason = None, "the state of one of its layers is not known"
    try:
        with rngs.fork_guard:
            snapshot = None if snapshotter is None else snapshotter.capture(env, within_episode=not record["is_over"])
    except Exception as error:  # raised by a hook of the user's
        reason = f"{type(error).__name__}: {error}"
    if snapshot is None or not snapshot.is_complete:
        return SavedEnv(None, False, record.tobytes(), reason)
    state = rngs.pack_state(env_id, snapshot.state)
    return SavedEnv(state, snapshot.holds_calls, record.tobytes())


def get_state(env_id: int, env: Any, slot: Slot, rngs: GlobalRngs, snapshotter: StateSnapshotter) -> SavedEnv:
    """Return the exact state of an env that was reset, between two of its commands; raise as `capture_exactly`."""
    record = read_record(slot.present_record(env_id))
    with rngs.fork_guard:
        state = snapshotter.capture_exactly(env, within_episode=not record["is_over"])
    record["began_ns"] = now_ns() - record["began_ns"]
    return SavedEnv(rngs.pack_state(env_id, state), False, record.tobytes(), layers=snapshotter.layers(env))
