"""`vecenv.tune`: find the fastest way to step an env here, by measurements.

measure env 0 in a worker of its own  ->  leave out settings that the estimate rules out  ->  open the others
backend, workers, threads, `step` or `recv`: successive halving  ->  `copy` and `infos` of the best: halving again
"""

from __future__ import annotations

import contextlib
import math
import numbers
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import psutil

from vecenv.core.advice.auto import workload_of
from vecenv.core.advice.sizing import SERIAL, Setting, Workload, choose_setting, round_ns
from vecenv.core.options import DEFAULT_START_METHOD, Limits, PoolOptions, resolve
from vecenv.core.pool.backends import measure_first_env
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.factory import EnvFactory
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.errors import ConfigError, EnvError, VecenvError, WorkerError
from vecenv.measurement import report
from vecenv.measurement.machine import usable_cores
from vecenv.measurement.measure import AsyncMode, BusyPolicy, Mode, VecenvSyncMode, gymnasium_sync, vecenv_serial
from vecenv.measurement.target import foreign_errors, quietly
from vecenv.options import given_fields, read_engine, read_timeouts
from vecenv.tuning.candidates import Candidate, calls, likely_settings, settings, spare_settings, variants
from vecenv.tuning.env_code import EnvCode
from vecenv.tuning.halving import Halving, OpenCandidate
from vecenv.tuning.result import TuneCandidate, TuneResult
from vecenv.values.checks import check_flag, check_seconds, check_whole
from vecenv.vector.env import VectorEnv, check_options
from vecenv.vector.options import move_options

__all__ = ["tune"]

#: Options that the search chooses, or that its loops cannot use.
_CHOSEN = ("backend", "num_workers", "threads_per_worker", "max_concurrency", "batch_size", "autoreset_mode")
#: Options of the engine of all candidates, unless they are given.
_ENGINE = {"timings": False, "worker_output": "none"}
#: Shares of the time: until they have passed, candidates are opened, workers are compared, variants are opened.
_OPEN_UNTIL, _WORKERS_UNTIL, _VARIANTS_OPEN_UNTIL = 0.35, 0.65, 0.8
#: The share of the time that the windows of a part have at least.
_LEAST_SHARE = 0.1
#: The plain loop is measured if the estimate of a round is below this share of the time.
_MOST_PLAIN_SHARE = 0.02
#: Rounds of all envs that a candidate takes in the first rungs, warm-ups included; slow envs get fewer candidates.
_STEPS_PER_CANDIDATE, _LEAST_CANDIDATES = 6, 4
#: Further candidates are opened while this share of the memory that was free at the start is left.
_MEMORY_LEFT = 0.5
_PLAIN = Candidate(None)


def tune(
    env: str | Callable[[], Any],
    num_envs: int = 64,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    policy_ms: float = 0.0,
    seconds: float = 30.0,
    lockstep: bool = False,
    options: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> TuneResult:
    """Find the fastest options of `VectorEnv` for an env, by measurements on this machine.

    Backend, workers, threads, and `step` or `send` with `recv(min_count)` are compared first, `copy` and `infos` of the
    best ones after that. All candidates step with random actions in short windows that take turns; the better half
    is measured again in longer ones. Spare envs are tried if a reset takes as long as three steps. Threads are not
    tried for an env that draws from global random generators. Nothing is stored.

    All envs live in other processes: a candidate whose env crashes is left out, and the search goes on. A candidate
    that was measured for less than 1 s, or less than ten slow resets, gets no rank.

    Args:
        env: registered id, `module:factory`, or a function that builds an env.
        num_envs: how many envs are stepped.
        env_kwargs: arguments for the constructor of the env.
        policy_ms: milliseconds in which one thread of the caller computes the actions of all envs. It is busy for that
            long per step of all envs. A part of the envs takes that part of the time.
        seconds: time for the search, after one env has been measured. A short search and an env that takes long to
            build, reset or step need more: each candidate that is opened makes at least one step of all envs in each
            rung, and the last ones run long enough for a rank.
        lockstep: try `step` only, for programs that cannot use `send` and `recv`.
        options: options of `VectorEnv` that all candidates have, such as `{"infos": "all"}`; they are not varied.
        progress: show a progress bar if standard error is a terminal.

    Example:
        >>> import vecenv
        >>> result = vecenv.tune("CartPole-v1", num_envs=2, seconds=1.0, lockstep=True)
        >>> envs = vecenv.make_vec("CartPole-v1", num_envs=2, **result.options)
        >>> envs.close()

    Raises:
        ConfigError: an argument is wrong, there is no such env, or it cannot be built, reset or stepped.
        DependencyError: the env needs a package that is not installed.
        WorkerDiedError, WorkerTimeoutError: the constructor of the env crashed or hung, or its steps did so with each
            candidate.
    """
    num_envs = check_whole("num_envs", num_envs, 1)
    seconds = check_seconds("seconds", seconds)
    if not math.isfinite(seconds):
        raise ConfigError(f"seconds: expected a finite number, got {seconds!r}", key="seconds")
    given = dict(options or {})
    check_options("options", given)
    given = move_options(given)
    for name in _CHOSEN:
        if name in given:
            raise ConfigError(f"options: {name!r} cannot be given here", key=name)
    policy_ms = _check_milliseconds(policy_ms)
    code = EnvCode.of(env, dict(env_kwargs or {}))
    lockstep = check_flag("lockstep", lockstep)
    shows = report.progress(seconds, is_wanted=check_flag("progress", progress))
    with shows as advance, _Search(code, num_envs, policy_ms, seconds, lockstep, given, advance) as search:
        return search.run()


def _check_milliseconds(value: Any) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) < math.inf:
        raise ConfigError(f"policy_ms: expected milliseconds of at least 0, got {value!r}", key="policy_ms")
    return float(value)


@dataclass
class _Search(contextlib.AbstractContextManager["_Search"]):
    """One search: opens candidates, compares them, closes all at the end. Its fields are arguments of `tune`."""

    code: EnvCode
    num_envs: int
    policy_ms: float
    seconds: float
    lockstep: bool
    options: dict[str, Any]
    show: Callable[..., object]

    def __post_init__(self) -> None:
        self._env_fn = EnvFactory(self.code.env_fn, wrappers=(adapt_and_build,))
        self._policy = BusyPolicy(self.policy_ms, self.num_envs) if self.policy_ms else None
        self._cores = usable_cores()
        self._called = self._began = self._shown = time.monotonic()
        self._free_memory = psutil.virtual_memory().available
        self._load_seconds = 0.0  # the slowest start so far, per process on a core
        self._start_seconds: dict[Setting | None, float] = {}  # the slowest start with this setting
        self._halving = Halving(self._advance, self._keep, self._drop)  # of an env without slow resets
        self._first_error: WorkerError | None = None
        self._entries: list[OpenCandidate] = []
        self._modes: dict[Candidate, Mode] = {}  # one for each vector env that is open
        self._failures: dict[Candidate, str] = {}

    def __exit__(self, *_error: object) -> None:
        self._keep(())

    def run(self) -> TuneResult:
        failure = f"{self.code.name!r} cannot be measured"
        with foreign_errors(failure, VecenvError):
            try:
                return self._compare(*self._measure_env())
            except (EnvError, gymnasium.error.Error) as error:
                raise ConfigError(f"{failure}: {error}") from error

    def _compare(self, workload: Workload, may_thread: bool) -> TuneResult:
        entries = self._open(self._first_candidates(workload, may_thread), _OPEN_UNTIL)
        reset_seconds = 1e-9 * workload.slow_ns
        self._halving = Halving(self._advance, self._keep, self._drop, reset_seconds)
        finalists = self._run(entries, self._seconds_until(_WORKERS_UNTIL))
        base = finalists[0]
        own = next((entry for entry in finalists if entry.candidate.setting is not None), base)
        kept = dict.fromkeys([base, own, _first_step(finalists)])
        self._keep(kept)
        if own.candidate.setting is not None:
            further = self._open(variants(own.candidate, self.options), _VARIANTS_OPEN_UNTIL)
            finalists = self._run([*kept, *further], self._seconds_until(1.0), base)
        return self._make_result(finalists, base if base in finalists else finalists[0])

    def _run(self, *arguments: Any) -> list[OpenCandidate]:
        finalists = self._halving.run(*arguments)
        if not finalists:
            assert self._first_error is not None
            raise self._first_error
        return finalists

    # ---- candidates --------------------------------------------------------------------------

    def _measure_env(self) -> tuple[Workload, bool]:
        """Return the cost of a step, and whether several envs may step at once in one process."""
        given = self.options
        options = PoolOptions(
            context=given.get("context") or DEFAULT_START_METHOD,
            limits=resolve(read_timeouts(given.get("timeouts")), Limits()),
            worker_init=read_engine(given.get("engine")).worker_init,
        )
        found = measure_first_env([self._env_fn], options, adapt=adapt_and_build, snapshotter=SNAPSHOTTER)
        workload = workload_of(found)
        if found.failure or workload is None:
            raise ConfigError(f"{self.code.name!r} cannot be measured: {found.failure or 'it made no step'}")
        self._began = self._shown = time.monotonic()
        return workload, not found.draws

    def _first_candidates(self, workload: Workload, may_thread: bool) -> list[Candidate]:
        """Return the candidates with `copy` and `infos` as given or by default; the best estimate comes first."""
        num_envs, cores, policy_ns = self.num_envs, self._cores, 1e6 * self.policy_ms
        every = {SERIAL, *settings(num_envs, cores, may_thread=may_thread)}
        every.add(choose_setting(workload, num_envs, cores, may_thread=may_thread))
        if self._policy is not None and cores > 1:  # a core for the policy
            every.update(settings(num_envs, cores - 1, may_thread=may_thread))
        if "num_spare_envs" not in self.options:
            every.update(spare_settings(workload, num_envs))
        likely = likely_settings(every, workload, num_envs, cores, policy_ns)
        same = {name: self.options[name] for name in ("copy", "infos") if name in self.options}
        for setting in every.difference(likely):
            self._failures[Candidate(setting, **same)] = "the estimate is less than half the speed of the best"
        found = [
            Candidate(setting, min_count, **same)
            for setting in likely
            for min_count in calls(num_envs, lockstep=self.lockstep or self._is_lockstep(setting))
        ]
        plain_seconds, seconds = (
            1e-9 * (policy_ns + round_ns(workload, num_envs, setting, cores)) for setting in (SERIAL, likely[0])
        )
        if plain_seconds < _MOST_PLAIN_SHARE * self.seconds:
            found.insert(1, _PLAIN)
        else:
            self._failures[_PLAIN] = f"a step of all envs takes about {plain_seconds:.2g} s"
        most = max(_LEAST_CANDIDATES, int(_WORKERS_UNTIL * self.seconds / (_STEPS_PER_CANDIDATE * seconds)))
        for candidate in found[most:]:
            self._failures[candidate] = "a step takes too long to try more settings in this time"
        return found[:most]

    def _is_lockstep(self, setting: Setting) -> bool:
        """Return whether a setting can be used by `step` only: rows that share spare envs are received together."""
        return setting == SERIAL or setting.num_spares % self.num_envs > 0

    def _open(self, candidates: Sequence[Candidate], until: float) -> list[OpenCandidate]:
        """Open the first candidate of each backend, and others until this share of the time has passed.

        If no `VectorEnv` can be opened, the error of the first one is raised.
        """
        groups: dict[Candidate, list[Candidate]] = {}
        for candidate in candidates:
            groups.setdefault(candidate.open_key, []).append(candidate)
        entries: list[OpenCandidate] = []
        first_error: VecenvError | None = None
        for key, group in groups.items():
            is_first = key.backend not in {entry.candidate.backend for entry in self._entries}
            reason = "" if is_first else self._reason_to_skip(key, until)
            if not reason:
                try:
                    entries += self._open_group(key, group)
                except (ConfigError, WorkerError) as error:  # there may be too few descriptors
                    reason, first_error = str(error), first_error or error
            if reason:
                self._failures[key] = reason
        if first_error is not None and all(entry.candidate == _PLAIN for entry in self._entries):
            raise first_error
        return entries

    def _reason_to_skip(self, key: Candidate, until: float) -> str:
        seconds = self._start_seconds.get(key.setting, self._load_seconds * self._load_of(key))
        if time.monotonic() - self._began + seconds > until * self.seconds:
            return "there was no time left to open it"
        if psutil.virtual_memory().available < _MEMORY_LEFT * self._free_memory:
            return "the other settings use half of the free memory"
        return ""

    def _load_of(self, key: Candidate) -> float:
        return max(1.0, key.setting.num_workers / self._cores) if key.setting is not None else 1.0

    def _open_group(self, key: Candidate, group: Sequence[Candidate]) -> list[OpenCandidate]:
        self._advance(f"opening {key}")
        began = time.monotonic()
        entries: list[OpenCandidate] = []
        for candidate, mode in self._make_modes(key, group):
            self._modes.setdefault(key, mode)
            entries.append(OpenCandidate(candidate, mode))
        seconds = time.monotonic() - began
        self._start_seconds[key.setting] = max(seconds, self._start_seconds.get(key.setting, 0.0))
        self._load_seconds = max(self._load_seconds, seconds / self._load_of(key))
        self._entries += entries
        return entries

    def _make_modes(self, key: Candidate, group: Sequence[Candidate]) -> Iterator[tuple[Candidate, Mode]]:
        quiet = [quietly(self._env_fn)] * self.num_envs
        if key.backend == "gymnasium":
            with foreign_errors("it cannot be built"):  # its spaces may be of a kind that only vecenv has
                yield key, gymnasium_sync(quiet, name=str(key), policy=self._policy)
            return
        engine = {**_ENGINE, **given_fields(read_engine(self.options.get("engine")))}
        options = {**self.options, **key.options, "engine": engine}
        if key.backend == "serial":
            yield key, vecenv_serial(quiet, name=str(key), policy=self._policy, **options)
            return
        envs = VectorEnv([self._env_fn] * self.num_envs, **options)
        for number, candidate in enumerate(group):
            mode: Mode
            if candidate.min_count is None:
                mode = VecenvSyncMode(str(candidate), envs, envs.worker_pids, is_reset=number > 0)
            else:
                mode = AsyncMode(str(candidate), envs, candidate.min_count, is_reset=number > 0)
            mode.policy = self._policy
            yield candidate, mode

    def _drop(self, entry: OpenCandidate, error: WorkerError) -> None:
        self._failures[entry.candidate] = str(error)
        self._first_error = self._first_error or error
        self._entries.remove(entry)
        mode = self._modes.pop(entry.candidate.open_key, None)
        if mode is not None:
            mode.close()

    def _keep(self, entries: Collection[OpenCandidate]) -> None:
        kept = {entry.candidate.open_key for entry in entries}
        with contextlib.ExitStack() as stack:
            for key in self._modes.keys() - kept:
                stack.callback(self._modes.pop(key).close)

    # ---- time and result ---------------------------------------------------------------------

    def _seconds_until(self, share: float) -> float:
        left = share * self.seconds - (time.monotonic() - self._began)
        return max(left, _LEAST_SHARE * self.seconds)

    def _advance(self, text: str) -> None:
        before, self._shown = self._shown, time.monotonic()
        self.show(text, min(self._shown, self._began + self.seconds) - min(before, self._began + self.seconds))

    def _make_result(self, finalists: Sequence[OpenCandidate], base: OpenCandidate) -> TuneResult:
        """Return the result; the first finalist is the fastest, and `base` has a window in each round."""
        best, best_step = finalists[0], _first_step(finalists)
        best_ratio = best.ratio_to(base)
        found = {}
        for entry in self._entries:
            ratio = entry.ratio_to(base) / best_ratio
            rate = best.rate() * ratio  # in the rounds of the best
            is_ranked = entry.seconds >= self._halving.least_seconds
            found[entry] = _describe(entry.candidate, rate, ratio if is_ranked else math.nan, seconds=entry.seconds)
        others = [one for entry, one in found.items() if entry is not best]
        others.sort(key=lambda one: (math.isnan(one.ratio), -one.ratio, -one.steps_per_second))
        missing = [_describe(candidate, failure=reason) for candidate, reason in self._failures.items()]
        plain = next((one for one in found.values() if one.backend == "gymnasium"), None)
        options = {**self.options, **best.candidate.options}
        plain_call = self.code.plain_loop(self.num_envs)
        is_plain = best.candidate.backend == "gymnasium"
        return TuneResult(
            env=self.code.name,
            num_envs=self.num_envs,
            policy_ms=self.policy_ms,
            candidates=(found[best], *others, *missing),
            best=found[best],
            best_step=found[best_step],
            options=options,
            call=plain_call if is_plain else self.code.vector_env(self.num_envs, options),
            plain_call=plain_call,
            ratio_to_plain=found[best].steps_per_second / plain.steps_per_second if plain is not None else math.nan,
            elapsed=time.monotonic() - self._called,
        )


def _first_step(entries: Sequence[OpenCandidate]) -> OpenCandidate:
    return next((entry for entry in entries if entry.candidate.min_count is None), entries[0])


def _describe(candidate: Candidate, rate: float = math.nan, ratio: float = math.nan, **fields: Any) -> TuneCandidate:
    return TuneCandidate(
        backend=candidate.backend,
        options=candidate.options,
        min_count=candidate.min_count,
        steps_per_second=rate,
        ratio=ratio,
        name=str(candidate),
        **{"seconds": 0.0, "failure": "", **fields},
    )
