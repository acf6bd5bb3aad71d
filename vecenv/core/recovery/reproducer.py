"""Save the episode of one env in a file, so that it can be run again in one process until it fails.

A file is written when an env fails a second time in the same command. It contains the env factory by value, the newest
restore point, and every command since, including the one that failed. It lists the folders of modules that are pickled
by name, but no environment variables, which may contain secrets.
"""

from __future__ import annotations

import bdb
import contextlib
import functools
import os
import pickle
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...errors import ConfigError, DependencyError
from ...gymnasium_api.registrations import registered
from ...gymnasium_api.replaying import replaying
from ...values.pickling import load_with_main
from ..fallback.values import load_action
from ..host.caught import CaughtExceptions, repeat_call
from ..host.checks import shorten
from ..host.executor import Answer, Executor
from ..host.global_rngs import GlobalRngs, torch_imports
from ..host.replay import Snapshotter
from ..layout import messages
from ..layout.commands import Entry, GivenState, LastingCall, RestorePlan, RestorePoint, reset_kwargs
from ..layout.flags import FORM_MASK, Autoreset, CommandFlag, Op, RowFlag
from ..layout.spec import Array, Spec
from ..options import PoolOptions
from ..processes.builder import build_env, call_worker_init
from .journal import Journal

__all__ = [
    "FailureContext",
    "ReplayedAnswer",
    "Reproducer",
    "failure_context",
    "describe",
    "load",
    "shorten",
    "write",
]

#: Version of the file format. 10: other modules of envs, and more state of ALF envs; 9: other modules, and the version
#: in a pickle of its own, which any release can read; 7: other states of global random generators; 6: constructors as
#: `pickling.dump_with_main` returns them, and calls with their effects; 5: other flags of commands, and more of
#: Gymnasium's settings in `registrations`; 4: other names of the fields; 3: registrations as `pickle_registrations`
#: returns them; 2: env factories as the worker received them, sys.path and the working directory.
_FORMAT = 10
_SUFFIX = ".vecenv-episode"
#: Most actions in an error, and the characters for all of them in its text.
_MOST_ACTIONS, _ACTIONS_WIDTH = 8, 100


class ReplayedAnswer(NamedTuple):
    """The result of one repeated command; `op` is 'step', 'reset', 'autoreset', 'call' or 'error'.

    A step has its `action`, and a reset its `seed` if it had one. An 'error' is an exception that the env raised, as
    text in `info["error"]`.
    """

    step_id: int
    op: str
    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    action: Any = None
    seed: int | None = None


class FailureContext(NamedTuple):
    """The seed and last actions of an env that failed, for the error; see `errors.WorkerError`.

    `save` writes the reproducer file, given the text of the error, and returns its path.
    """

    seed: int | None
    actions: tuple[Any, ...]
    save: Callable[[str], str]


@dataclass
class Reproducer:
    """An episode that can be run again.

    Attributes:
        env_fns, worker_init, adapt, snapshotter, registrations: pickled as workers receive them, see
            `pickling.dump_with_main`.
        env_id, step_id: the env that failed, and its command.
        why: text of the error.
        restore_point, entries, lasting_calls: as in `commands.RestorePlan`; the last entry is the one that failed.
        path, cwd: sys.path and working directory of the workers; `cwd` is None if it did not exist.
        first_env_id: number of env 0 in messages and for the global random generators.
        exception_limit: see `PoolFailurePolicy.exception_limit`.
        rng_entropy: see `PoolOptions`.
        versions: versions of Python and NumPy where the file was written.
    """

    env_fns: bytes
    worker_init: bytes
    adapt: bytes
    snapshotter: bytes
    registrations: bytes
    autoreset: Autoreset
    env_id: int
    step_id: int
    why: str
    restore_point: RestorePoint
    entries: list[Entry]
    lasting_calls: list[LastingCall]
    path: list[str]
    cwd: str | None
    first_env_id: int = 0
    exception_limit: tuple[int, float] | None = None
    rng_entropy: int = 0
    versions: dict[str, str] = field(
        default_factory=lambda: {"python": platform.python_version(), "numpy": np.__version__}
    )

    def run(self, until: int | None = None, pause: Callable[[], object] | None = None) -> Iterator[ReplayedAnswer]:
        """Build the env and repeat its commands in this process, one per item of the iterator.

        Until the iterator is closed, this process works in `cwd`, if that still exists, can import the modules of
        `path`, and has the Gymnasium registry of the program that wrote the file.

        Args:
            until: stop before the command with this step_id; None: run to the end.
            pause: if given, it is called at that point, right before the env is called, and the run continues. A
                debugger that traces from there on, and skips vecenv.core, stops in the env's code.

        Raises:
            DependencyError: a module that the env needs cannot be imported.
            ConfigError: such a module lacks an object that it had.
            Exception: any exception of the env.
        """
        env_id, rngs = self.env_id, GlobalRngs(self.first_env_id, self.rng_entropy)
        with self._original_cwd_and_path(), torch_imports, contextlib.ExitStack() as settings:
            executor, snapshotter = self._build(rngs, settings)
            try:
                with replaying():
                    for call in self.lasting_calls:
                        if executor.caught is not None:
                            executor.caught.note_call(env_id, call)
                        with rngs:
                            repeat_call(env_id, executor.envs[env_id], call, rngs, snapshotter)
                    if self.restore_point.state is not None and snapshotter is not None:
                        state = rngs.unpack_state(env_id, self.restore_point.state)
                        snapshotter.restore(executor.envs[env_id], state)
                    yield from self._repeat(executor, rngs, until, pause)
            finally:
                with replaying(), rngs:  # an episode that was stopped early stops inside `replaying` too
                    rngs.call_swapped(env_id, executor.envs[env_id].close)

    @contextlib.contextmanager
    def _original_cwd_and_path(self) -> Iterator[None]:
        """Use the working directory and modules of the program that wrote the file, after those of this process."""
        added = self._extend_path()
        try:
            before: str | None = os.getcwd()
        except OSError:  # it was removed
            before = None
        # it was moved or removed since; an env that needs it will raise its own error
        with contextlib.suppress(OSError):
            if self.cwd is not None:
                os.chdir(self.cwd)
        try:
            yield
        finally:
            for entry in added:
                with contextlib.suppress(ValueError):  # the env has removed it
                    sys.path.remove(entry)
            if before is not None:
                os.chdir(before)

    def _extend_path(self) -> list[str]:
        """Add the missing entries of `path` to sys.path, in their old order; return the added ones.

        So a project's modules precede those of site-packages, as before. The standard library of another Python, of
        which no entry is the same, comes last.
        """
        added = []
        position = len(sys.path)
        for entry in reversed(self.path):
            if entry not in sys.path and self.cwd is not None:  # '' and other relative entries mean a folder in `cwd`
                entry = os.path.normpath(os.path.join(self.cwd, entry))
            if entry in sys.path:
                position = sys.path.index(entry)
            elif os.path.exists(entry):
                sys.path.insert(position, entry)
                added.append(entry)
        return added

    def _build(self, rngs: GlobalRngs, settings: contextlib.ExitStack) -> tuple[Executor, Snapshotter | None]:
        folder = self.cwd or "a folder since removed"
        prefix = f"env {self.first_env_id + self.env_id}, which was built in {folder}, cannot be built here"
        try:
            try:
                settings.enter_context(registered(self.registrations))
                call_worker_init(load_with_main(self.worker_init))
                env_fn = load_with_main(self.env_fns)[self.env_id]
                adapt: Callable[[Any], Any] = load_with_main(self.adapt)
                snapshotter: Snapshotter | None = load_with_main(self.snapshotter)
            except AttributeError as error:  # a module has changed; later AttributeErrors are the env's own
                raise ConfigError(f"{prefix}: {error}", key="file") from error

            def build(env_id: int) -> Any:
                return build_env(env_fn, adapt, rngs.of(env_id))

            with rngs:
                executor = Executor({self.env_id: build(self.env_id)}, self.autoreset, rngs)
        except ImportError as error:
            raise DependencyError(f"{prefix}: {error}", package=error.name) from error
        if self.exception_limit is not None:
            executor.caught = CaughtExceptions(self.exception_limit, build, rngs, None, snapshotter)
        return executor, snapshotter

    def _repeat(
        self, executor: Executor, rngs: GlobalRngs, until: int | None, pause: Callable[[], object] | None
    ) -> Iterator[ReplayedAnswer]:
        spec = Spec(executor.envs[self.env_id].action_space, "action")
        executor.needs_reset = self.restore_point.state is not None and not self.restore_point.is_mid_episode
        for entry in self.entries:
            if entry.op == Op.CALL and entry.payload is None:  # it is not repeated, because it ended its worker
                continue
            before_call: list[Callable[[], object]] = []
            if until is not None and entry.step_id >= until:
                if pause is None:
                    return
                until, before_call = None, [pause]
            yield from self._answers_to(entry, executor, rngs, spec, before_call)

    def _answers_to(
        self, entry: Entry, executor: Executor, rngs: GlobalRngs, spec: Spec, before_call: list[Callable[[], object]]
    ) -> Iterator[ReplayedAnswer]:
        caught, num_raised = executor.caught, 0
        executor.begin(self.env_id, entry.op, entry.step_id)
        given = _given(spec, entry)
        if entry.op == Op.CALL and caught is not None:
            payload: messages.Payload = messages.load(entry.payload)  # type: ignore[arg-type]
            caught.note_call(self.env_id, LastingCall(entry.step_id, payload, name=payload.name))
        run: Callable[[], Answer] = functools.partial(executor.execute, entry.flags, entry.argument, given)
        while True:
            try:
                with rngs:
                    while before_call:
                        before_call.pop()()
                    answer = run()
            except Exception as error:
                # the last failure, or the user quits the debugger
                if (entry.step_id == self.step_id and caught is None) or isinstance(error, bdb.BdbQuit):
                    raise
                message = f"{type(error).__name__}: {error}"
                yield ReplayedAnswer(entry.step_id, "error", None, 0.0, False, False, {"error": message})
                num_raised += 1
                is_caught = caught is not None and entry.op != Op.CALL and num_raised <= caught.most
                run = functools.partial(executor.answer_exception, is_caught)
                continue
            if not answer.flags & RowFlag.REPEATS:
                seed = answer.seed if answer.doing == "reset" else None
                action = _given(spec, entry) if answer.doing == "step" else None  # the env may have changed its own
                yield ReplayedAnswer(entry.step_id, *answer[:6], action, seed)
            if not answer.needs_autoreset:
                return
            run = executor.autoreset


# ---- commands ---------------------------------------------------------------------------


def _given(spec: Spec, entry: Entry) -> Any:
    """Return the action, the keyword arguments or the function of a command as a new object."""
    if isinstance(entry.payload, bytes):
        return messages.load(entry.payload).given(entry.op)
    if entry.payload is None:
        return None
    columns = [
        np.frombuffer(data, leaf.dtype).reshape((1, *leaf.shape)) for data, leaf in zip(entry.payload, spec.leaves)
    ]
    return load_action(spec.root, columns, 0, entry.flags & FORM_MASK)


# ---- for errors -------------------------------------------------------------------------


def failure_context(
    journal: Journal,
    env_id: int,
    op: int,
    step_id: int,
    *,
    spec: Spec,
    records: Array,
    options: PoolOptions,
    **made: Any,
) -> FailureContext:
    """Return the seed and last actions of an env that failed, and the function that saves its episode.

    The episode begins with the newest restore point. It has all commands since, also those that are not answered, but
    not those that were cancelled before that.

    Args:
        journal: of the pool.
        env_id, op, step_id: of the command that failed.
        spec: the spec of actions.
        records: the env's records in the arena, which describe its last answers.
        options: of the pool.
        **made: the fields of `Reproducer` that describe how and where the env was built.
    """
    history = journal.history(env_id, ())
    newest = history.attempts[0] if history.attempts else RestorePlan(RestorePoint(0), [], history.lasting_calls)
    answered = (*records["step_id"].tolist(), step_id)
    entries = [one for one in newest.entries if not one.flags & CommandFlag.CANCELLED or one.step_id in answered]
    episode = Reproducer(
        autoreset=options.autoreset,
        env_id=env_id,
        step_id=step_id,
        why="",
        restore_point=newest.restore_point,
        entries=entries,
        lasting_calls=newest.lasting_calls,
        exception_limit=options.failures.exception_limit,
        rng_entropy=options.rng_entropy,
        **made,
    )

    def save(why: str) -> str:
        if not episode.entries:
            raise ValueError("the commands of the env were dropped, because they exceed max_log_bytes")
        episode.why = why
        return write(episode, options.failures.reproducer_dir)

    return FailureContext(*_last_asked(episode, op, spec, records), save)


def _last_asked(episode: Reproducer, op: int, spec: Spec, records: Array) -> tuple[int | None, tuple[Any, ...]]:
    """Return the seed of an env's present episode, and its newest actions.

    The journal does not contain the positions of autoresets, but the record of each answer has its position
    in the episode.
    """
    if op == Op.RESET:
        resets = [entry for entry in episode.entries if entry.step_id == episode.step_id and entry.op == Op.RESET]
        if not resets:  # an autoreset, or the reset of a replay
            return None, ()
        failed = resets[-1]
        given = _given(spec, failed) or {}
        if isinstance(given, GivenState):
            return given.seed, ()
        return reset_kwargs(None, given, failed.flags, failed.argument).get("seed"), ()
    answers = [record for record in records if 0 < int(record["step_id"]) < episode.step_id]
    if not answers:
        return None, ()
    newest = max(answers, key=lambda record: int(record["step_id"]))
    steps = [entry for entry in episode.entries if entry.op == Op.STEP and entry.step_id <= episode.step_id]
    is_under_way = bool(steps) and steps[-1].step_id == episode.step_id
    count = min(len(steps), int(newest["length"]) + is_under_way, _MOST_ACTIONS)
    actions = tuple(_given(spec, entry) for entry in steps[len(steps) - count :])
    return None if newest["seed"] < 0 else int(newest["seed"]), actions


def describe(seed: int | None, actions: tuple[Any, ...]) -> str:
    """Return a text with the seed and the last actions of an env, as far as they are known.

    >>> describe(5, (0, 1, 1)), describe(None, ())
    ('seed 5, last actions [0, 1, 1]', '')
    """
    texts: list[str] = []
    for action in reversed(actions):
        texts.insert(0, shorten(action))
        if sum(map(len, texts)) > _ACTIONS_WIDTH:
            break
    if len(texts) < len(actions):
        texts.insert(0, "...")
    parts = [f"seed {seed}"] if seed is not None else []
    parts += [f"last actions [{', '.join(texts)}]"] if texts else []
    return ", ".join(parts)


# ---- files ------------------------------------------------------------------------------


def write(episode: Reproducer, folder: str | None) -> str:
    """Write an episode to a new file in a folder (None: that of the system for temporary files); return its path.

    The name of the file contains the env id and the step_id of the command that failed.

    Raises:
        OSError: the file cannot be written; an incomplete file is removed.
    """
    data = pickle.dumps(_FORMAT, protocol=5) + pickle.dumps(episode, protocol=5)
    prefix = f"env{episode.first_env_id + episode.env_id}-step{episode.step_id}-"
    file = tempfile.NamedTemporaryFile(dir=folder, prefix=prefix, suffix=_SUFFIX, delete=False)  # noqa: SIM115
    try:
        with file:
            file.write(data)
    except OSError:  # remove an incomplete file
        os.unlink(file.name)
        raise
    return file.name


def load(path: str | os.PathLike[str]) -> Reproducer:
    """Read an episode from a file.

    Like every pickle, the file can run any code: load only your own files.

    Raises:
        ValueError: the file is not an episode, or was written by another version of vecenv.
    """
    with open(path, "rb") as file:
        try:
            version, episode = pickle.load(file), None
            if isinstance(version, tuple):  # before 9: (format, episode)
                version, _ = version
            elif version == _FORMAT:
                episode = pickle.load(file)
            elif not file.read(1):
                raise EOFError("it contains no episode")
        except Exception as error:  # other bytes, or a pickle of missing classes, may raise anything
            raise ValueError(
                f"{path}: not an episode that this version of vecenv can read ({error}); if another version has "
                "written it, replay it with that version"
            ) from error
    if not isinstance(episode, Reproducer):
        raise ValueError(
            f"{path}: written by another version of vecenv: its format is {version}, this one reads {_FORMAT}; replay "
            "it with that version"
        )
    return episode
