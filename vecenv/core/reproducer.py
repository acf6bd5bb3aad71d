"""Reproducer: one env's episode in a file, to be run again in one process until it fails.

Written when an env fails a second time in the same call. Holds the constructor by value, the
newest start, and every command since, the one that failed included.
"""

from __future__ import annotations

import os
import pickle
import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..replaying import replaying
from . import mail
from .journal import Entry, Start
from .replay import Keeper
from .rows import FORM_MASK, Autoreset, CommandFlag, Op
from .spec import Spec, register_missing
from .streams import Streams
from .twin_values import load_action
from .worker import build_env

__all__ = ["Event", "Reproducer", "load", "write"]

_FORMAT = 1
_SUFFIX = ".vecenv-episode"


class Event(NamedTuple):
    """What one repeated command gave; `op` is 'step', 'reset', 'autoreset' or 'call'."""

    step_id: int
    op: str
    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass
class Reproducer:
    """An episode that can be run again.

    Attributes:
        env_fn, adapt, keeper, registrations: pickled by value, as workers get them.
        env_id, step_id: who failed, in which command.
        why: the error's text.
        start, entries, kept: as in `journal.Attempt`; the last entry is the one that failed.
        versions: of Python and of NumPy where the file was written.
    """

    env_fn: bytes
    adapt: bytes
    keeper: bytes
    registrations: bytes
    autoreset: Autoreset
    env_id: int
    step_id: int
    why: str
    start: Start
    entries: list[Entry]
    kept: list[Entry]
    versions: dict[str, str] = field(
        default_factory=lambda: {"python": platform.python_version(), "numpy": np.__version__}
    )

    def run(self, until: int | None = None, pause: Callable[[], object] | None = None) -> Iterator[Event]:
        """Build the env and repeat its commands, one per item; whatever it does, it does here.

        Args:
            until: stop before the command with this step_id; None: go through to the end.
            pause: called there instead, such as `pdb.set_trace`; then it goes on.
        """
        register_missing(pickle.loads(self.registrations))
        calls = _Calls(self.env_id)
        env = calls.build(pickle.loads(self.env_fn), pickle.loads(self.adapt))
        keeper: Keeper | None = pickle.loads(self.keeper)
        try:
            with replaying():
                for entry in self.kept:
                    calls.command(mail.load(entry.payload).function, env)  # type: ignore[arg-type]
                if self.start.state is not None and keeper is not None:
                    keeper.restore(env, calls.streams.take_from(self.env_id, self.start.state))
                yield from self._repeat(env, calls, until, pause)
        finally:
            calls.command(env.close)

    def _repeat(
        self, env: Any, calls: _Calls, until: int | None, pause: Callable[[], object] | None
    ) -> Iterator[Event]:
        spec = Spec(env.action_space, "action")
        begins = self.start.state is not None
        for entry in self.entries:
            if until is not None and entry.step_id >= until:
                if pause is None:
                    return
                until = None
                pause()
            letter = mail.load(entry.payload) if isinstance(entry.payload, bytes) else None
            if entry.op == Op.CALL:
                assert letter is not None
                yield Event(entry.step_id, "call", calls.command(letter.function, env), 0.0, False, False, {})
            elif entry.op == Op.RESET or begins:
                kwargs = dict(letter.kwargs) if letter and entry.op == Op.RESET else {}
                if entry.op == Op.RESET and entry.flags & CommandFlag.SEED:
                    kwargs["seed"] = entry.argument
                is_command = entry.op == Op.RESET
                obs, info = calls.command(env.reset, **kwargs) if is_command else calls.quick(env.reset)
                begins = False
                name = "reset" if is_command else "autoreset"
                yield Event(entry.step_id, name, obs, 0.0, False, False, info)
            else:
                action = letter.action if letter else _action(spec, entry)
                obs, reward, terminated, truncated, info = calls.quick(env.step, action)
                begins = bool(terminated or truncated) and self.autoreset != Autoreset.DISABLED
                yield Event(entry.step_id, "step", obs, reward, bool(terminated), bool(truncated), info)
                if begins and self.autoreset == Autoreset.SAME_STEP:
                    obs, info = calls.quick(env.reset)
                    begins = False
                    yield Event(entry.step_id, "autoreset", obs, 0.0, False, False, info)


class _Calls:
    """Calls into the env with its global random generators; between calls the process has its own."""

    def __init__(self, env_id: int) -> None:
        self.streams = Streams()
        self._env_id = env_id

    def build(self, env_fn: Callable[[], Any], adapt: Callable[[Any], Any]) -> Any:
        with self.streams:
            return build_env(env_fn, adapt, self.streams.of(self._env_id))

    def command(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.streams:
            return self.streams.command(self._env_id, call, *args, **kwargs)

    def quick(self, call: Callable[..., Any], *args: Any) -> Any:
        with self.streams:
            return self.streams.quick(self._env_id, call, *args)


def _action(spec: Spec, entry: Entry) -> Any:
    assert isinstance(entry.payload, tuple)
    columns = [
        np.frombuffer(data, leaf.dtype).reshape((1, *leaf.shape)) for data, leaf in zip(entry.payload, spec.leaves)
    ]
    return load_action(spec.root, columns, 0, entry.flags & FORM_MASK)


def write(episode: Reproducer, folder: str | None) -> str:
    """Write an episode to a new file; return its path."""
    handle, path = tempfile.mkstemp(_SUFFIX, f"env{episode.env_id}-step{episode.step_id}-", folder)
    with os.fdopen(handle, "wb") as file:
        pickle.dump((_FORMAT, episode), file, protocol=5)
    return path


def load(path: str | os.PathLike[str]) -> Reproducer:
    """Read an episode. Like every pickle it can run any code: load your own files only.

    Raises:
        ValueError: the file is no episode, or one of another version of vecenv.
    """
    with open(path, "rb") as file:
        try:
            version, episode = pickle.load(file)
        except (pickle.UnpicklingError, TypeError, ValueError, EOFError) as error:
            raise ValueError(f"{path}: not an episode that vecenv has written ({error})") from error
    if version != _FORMAT or not isinstance(episode, Reproducer):
        raise ValueError(f"{path}: written by another version of vecenv")
    return episode
