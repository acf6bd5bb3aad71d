"""The stop-watch: ways to step the same envs, each run in short windows that take turns.

    round 1: plain | ceiling | gymnasium | sync | async     round 2: plain | ceiling | ...     medians

A shared machine changes its speed from one second to the next, so the median round of each mode is reported. Ratios are
quotients of these medians. All modes are built before the first window. Steps that only reset an env (Gymnasium's
NEXT_STEP autoreset) do not count.
"""

from __future__ import annotations

import abc
import functools
import math
import os
import resource
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from vecenv.core.layout.native import implementation
from vecenv.errors import ConfigError
from vecenv.measurement.loops import LoopProcesses
from vecenv.measurement.machine import cpu_seconds, no_interrupts, usable_cores
from vecenv.measurement.report import rate_digits
from vecenv.measurement.target import EnvFn, action_batches, take_rows
from vecenv.vector.env import VectorEnv

__all__ = [
    "AsyncMode",
    "BusyPolicy",
    "LoopMode",
    "Mode",
    "ProcessMode",
    "SyncMode",
    "VecenvSyncMode",
    "Window",
    "Result",
    "ceiling_loops",
    "gymnasium_async",
    "gymnasium_limit",
    "gymnasium_sync",
    "interleave",
    "plain_loop",
    "summarise",
    "vecenv_async",
    "vecenv_serial",
    "vecenv_sync",
]

_WARM_UP_SECONDS = 0.1
# Batches to receive before an asynchronous window starts, so that the envs are as out of step as they will stay.
_WARM_UP_BATCHES = 4
# Gymnasium's AsyncVectorEnv has one process per env, and keeps this many descriptors open for each.
_MAX_GYMNASIUM_PROCESSES, _DESCRIPTORS_PER_PROCESS = 1024, 3
_TERMINATION = (signal.SIGTERM, signal.SIGHUP)
# Descriptors of everything else: imported files, the fork server, vecenv's workers, plain loops.
_OTHER_DESCRIPTORS = 200


class Window(NamedTuple):
    """The result of one mode in one window.

    Attributes:
        cpu_seconds: of the parent and its processes together; NaN if they may run on other machines.
        lockstep: of loops, the share of the rate that would remain if they waited for each other after every round of
            their envs, and waiting took no time. Uneven envs and cores cost every lockstep that much.
            None if it was not measured.
    """

    steps: int
    batches: float
    seconds: float
    cpu_seconds: float
    lockstep: float | None = None

    @property
    def rate(self) -> float:
        """Env steps per second."""
        return self.steps / self.seconds


class Mode(abc.ABC):
    """One way to step the envs.

    Attributes:
        name: as shown in tables.
        implementation: 'native' or 'python', which half of vecenv ran; None for others.
        envs: the vector env; None for plain loops, which step single envs.
        policy: vector modes call it with the number of rows after each batch, to spend the time of a policy.
    """

    implementation: str | None = None
    envs: Any = None
    policy: Callable[[int], object] | None = None

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def run(self, seconds: float) -> Window:
        """Step for about `seconds`; on return nothing of this mode is running."""

    @abc.abstractmethod
    def close(self) -> None:
        """End every process of this mode."""


class LoopMode(Mode):
    """Plain loops in processes of their own, all at once; with `time_rounds`, windows have `lockstep`."""

    def __init__(
        self, name: str, shares: Sequence[Sequence[EnvFn]], *, store: bool = False, time_rounds: bool = False
    ) -> None:
        super().__init__(name)
        self._num_envs = sum(len(share) for share in shares)
        self._processes = LoopProcesses(shares, store=store, time_rounds=time_rounds)

    def run(self, seconds: float) -> Window:
        results = self._processes.run(seconds)
        steps = sum(result.steps for result in results)
        # The loops end a millisecond apart: add up their rates, not their ends.
        elapsed = steps / sum(result.steps / result.seconds for result in results)
        lockstep = None
        if all(result.round_seconds for result in results):
            slowest = [max(round_seconds) for round_seconds in zip(*(result.round_seconds for result in results))]
            lockstep = self._num_envs / statistics.mean(slowest) / (steps / elapsed)
        cpu_seconds = sum(result.cpu_seconds for result in results)
        return Window(steps, steps / self._num_envs, elapsed, cpu_seconds, lockstep)

    def close(self) -> None:
        self._processes.close()


class ProcessMode(Mode):
    """A mode without workers, in a process of its own: an env that crashes ends only that process.

    Args:
        make: builds the mode from the env_fns, in that process. It gives the mode its policy.
        is_own: whether vecenv steps the envs.
    """

    def __init__(
        self, name: str, env_fns: Sequence[EnvFn], make: Callable[[Sequence[EnvFn]], Mode], *, is_own: bool = True
    ) -> None:
        super().__init__(name)
        self.implementation = implementation() if is_own else None
        self._processes = LoopProcesses([env_fns], make=make, what=name)

    def run(self, seconds: float) -> Window:
        (window,) = self._processes.run(seconds)
        assert isinstance(window, Window)
        return window

    def close(self) -> None:
        self._processes.close()


class BusyPolicy:
    """Computes for as long as a policy would; `milliseconds` is the time for all envs."""

    def __init__(self, milliseconds: float, num_envs: int) -> None:
        self._ns_per_row = 1e6 * milliseconds / num_envs

    def __call__(self, num_rows: int) -> None:
        """Compute for the time of these rows. It is CPU time: a policy that has to share its core takes longer."""
        until = time.thread_time_ns() + self._ns_per_row * num_rows
        while time.thread_time_ns() < until:
            pass


class _VectorMode(Mode):
    """Base of the synchronous and the asynchronous mode; `pids` of its processes are None if they may run elsewhere."""

    def __init__(self, name: str, envs: Any, pids: Sequence[int] | None, *, is_reset: bool = False) -> None:
        super().__init__(name)
        self.implementation = getattr(envs, "implementation", None)
        self.envs = envs
        self._pids = None if pids is None else tuple(pids)
        self._actions = action_batches(envs.single_action_space, envs.num_envs)
        if is_reset:
            return
        try:
            envs.reset(seed=0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if isinstance(self.envs, AsyncVectorEnv):
            _end_processes(self.envs)
        else:
            self.envs.close()

    def _cpu_seconds(self) -> float:
        if self._pids is None:
            return math.nan
        return time.process_time() + sum(cpu_seconds(pid) for pid in self._pids)


class SyncMode(_VectorMode):
    """`step()` of any `gymnasium.vector.VectorEnv` with NEXT_STEP autoreset."""

    def __init__(self, name: str, envs: Any, pids: Sequence[int], **options: Any) -> None:
        super().__init__(name, envs, pids, **options)
        # True where the env's next step will only reset it.
        self._ended = np.zeros(envs.num_envs, dtype=np.bool_)

    def run(self, seconds: float) -> Window:
        step, actions, ended, clock = self.envs.step, self._actions, self._ended, time.perf_counter
        policy = self.policy
        batches, num_ended, ended_before = 0, 0, int(np.count_nonzero(ended))
        cpu, start = self._cpu_seconds(), clock()
        now, deadline = start, start + seconds
        while now < deadline:
            _, _, terminated, truncated, _ = step(next(actions))
            np.logical_or(terminated, truncated, out=ended)
            num_ended += int(np.count_nonzero(ended))
            if policy is not None:
                policy(ended.size)
            batches += 1
            now = clock()
        # Every episode's end is followed by one step that only resets: all ends in the window and just before it,
        # less those whose reset is still to come.
        resets = num_ended + ended_before - int(np.count_nonzero(ended))
        return Window(batches * ended.size - resets, batches, now - start, self._cpu_seconds() - cpu)


class VecenvSyncMode(_VectorMode):
    """`step()` of `vecenv.VectorEnv`."""

    def run(self, seconds: float) -> Window:
        step, actions, clock = self.envs.step, self._actions, time.perf_counter
        policy, num_envs = self.policy, self.envs.num_envs
        batches = 0
        cpu, before, start = self._cpu_seconds(), _num_steps(self.envs), clock()
        now, deadline = start, start + seconds
        while now < deadline:
            step(next(actions))
            if policy is not None:
                policy(num_envs)
            batches += 1
            now = clock()
        return Window(_num_steps(self.envs) - before, batches, now - start, self._cpu_seconds() - cpu)


class AsyncMode(_VectorMode):
    """`send` and `recv` of `vecenv.VectorEnv`; each batch has the first `wait_num` envs that answer."""

    def __init__(self, name: str, envs: VectorEnv, wait_num: int, **options: Any) -> None:
        super().__init__(name, envs, envs.worker_pids, **options)
        self._wait_num = wait_num

    def run(self, seconds: float) -> Window:
        """Keep all envs busy; a batch is one `recv`. At both ends of the window some steps are under way."""
        clock = time.perf_counter
        self.envs.send(next(self._actions))
        for _ in range(_WARM_UP_BATCHES):
            self._turn()
        batches = 0
        cpu, before, start = self._cpu_seconds(), _num_steps(self.envs), clock()
        now, deadline = start, start + seconds
        while now < deadline:
            self._turn()
            batches += 1
            now = clock()
        window = Window(_num_steps(self.envs) - before, batches, now - start, self._cpu_seconds() - cpu)
        self._drain()
        return window

    def _turn(self) -> None:
        env_ids = self.envs.recv(self._wait_num)[4]["env_id"]
        if self.policy is not None:
            self.policy(len(env_ids))
        self.envs.send(take_rows(self.envs.single_action_space, next(self._actions), env_ids), env_ids)

    def _drain(self) -> None:
        owed = self.envs.num_envs
        while owed:
            owed -= len(self.envs.recv(owed)[4]["env_id"])


def _num_steps(envs: VectorEnv) -> int:
    """Return the number of steps that the workers counted, so that the measured loop only steps."""
    return int(envs.statistics()["steps"])


def plain_loop(env_fns: Sequence[EnvFn], *, store: bool = False) -> LoopMode:
    """Build the plain loop: one process that steps all envs one after another."""
    return LoopMode("plain loop", [env_fns], store=store)


def ceiling_loops(env_fns: Sequence[EnvFn]) -> LoopMode:
    """Build the ceiling: one plain loop per usable core, all at once; each has its share of the envs, at least one.

    The loops share nothing and wait for nothing, so a vector env is faster only by chance.
    """
    cores = usable_cores()
    return LoopMode("ceiling", [env_fns[core::cores] or env_fns[:1] for core in range(cores)], time_rounds=True)


def gymnasium_async(env_fns: Sequence[EnvFn], *, copy: bool = True) -> SyncMode:
    """Build Gymnasium's `AsyncVectorEnv`, one process per env; raise ConfigError if it cannot be built."""
    envs: Any = None
    env_fns = [functools.partial(_build_unblocked, env_fn, os.getpid()) for env_fn in env_fns]
    try:
        with no_interrupts(_TERMINATION):
            envs = AsyncVectorEnv(env_fns, copy=copy)
    except KeyboardInterrupt:
        if envs is not None:
            _end_processes(envs)
        raise
    except BaseException as error:  # TypeError, ValueError, or any exception of the user's space or constructor
        raise ConfigError(
            f"Gymnasium's AsyncVectorEnv cannot be built: {type(error).__name__}: {error} Leave it out with "
            "--skip gymnasium"
        ) from error
    return SyncMode("gymnasium async", envs, [process.pid for process in envs.processes if process.pid])


def gymnasium_sync(
    env_fns: Sequence[EnvFn], *, name: str, policy: Callable[[int], object] | None = None
) -> ProcessMode:
    """Build Gymnasium's `SyncVectorEnv` in a process of its own."""
    return ProcessMode(name, env_fns, functools.partial(_make_sync, policy=policy), is_own=False)


def _make_sync(env_fns: Sequence[EnvFn], policy: Callable[[int], object] | None) -> Mode:
    mode = SyncMode("SyncVectorEnv", SyncVectorEnv(env_fns), ())
    mode.policy = policy
    return mode


def gymnasium_limit() -> int:
    """Return the largest number of envs for which Gymnasium's `AsyncVectorEnv` is measured in this process."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MAX_GYMNASIUM_PROCESSES
    return max(0, min(_MAX_GYMNASIUM_PROCESSES, (descriptors - _OTHER_DESCRIPTORS) // _DESCRIPTORS_PER_PROCESS))


def _build_unblocked(env_fn: EnvFn, parent_pid: int) -> Any:
    """Build an env; in a process of Gymnasium's, unblock the signals that end it first."""
    if os.getpid() != parent_pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERMINATION)
    return env_fn()


def _end_processes(envs: AsyncVectorEnv) -> None:
    """End Gymnasium's processes. Its own `close` waits for a step under way, and raises if a process is gone."""
    for process in envs.processes:
        process.kill()
    for process in envs.processes:
        process.join()
    for pipe in envs.parent_pipes:
        pipe.close()
    envs.closed = True


def vecenv_sync(env_fns: Sequence[EnvFn], *, name: str = "vecenv sync", **kwargs: Any) -> VecenvSyncMode:
    """Build `vecenv.VectorEnv`, stepped by `step`; `kwargs` are its own."""
    envs = VectorEnv(env_fns, **kwargs)
    return VecenvSyncMode(name, envs, None if envs.shards() else envs.worker_pids)


def vecenv_serial(
    env_fns: Sequence[EnvFn],
    *,
    name: str = "vecenv serial",
    policy: Callable[[int], object] | None = None,
    **kwargs: Any,
) -> ProcessMode:
    """Build `vecenv.VectorEnv` with the serial backend, stepped by `step`; `kwargs` are its own."""
    make = functools.partial(_make_serial, policy=policy, **{**kwargs, "backend": "serial"})
    return ProcessMode(name, env_fns, make)


def _make_serial(env_fns: Sequence[EnvFn], policy: Callable[[int], object] | None, **kwargs: Any) -> Mode:
    mode = vecenv_sync(env_fns, **kwargs)
    mode.policy = policy
    return mode


def vecenv_async(env_fns: Sequence[EnvFn], *, wait_num: int, name: str = "vecenv async", **kwargs: Any) -> AsyncMode:
    """Build `vecenv.VectorEnv`, stepped by `send` and `recv`; `kwargs` are its own."""
    return AsyncMode(name, VectorEnv(env_fns, **kwargs), wait_num)


def interleave(modes: Sequence[Mode], seconds: float, rounds: int) -> Iterator[tuple[str, Window]]:
    """Run every mode once per round, `seconds` each, after a short warm-up; yield windows as they end."""
    for mode in modes:
        mode.run(min(seconds, _WARM_UP_SECONDS))
    for _ in range(rounds):
        for mode in modes:
            yield mode.name, mode.run(seconds)


@dataclass(frozen=True)
class Result:
    """One line of the table. Ratios are None without the mode that they refer to; `lockstep` is that of windows.

    `cpu_seconds_per_1000_steps` is None if the processes may run on other machines.
    """

    name: str
    implementation: str | None
    steps_per_second: float
    us_per_batch: float
    ratio_to_plain: float | None
    ratio_to_ceiling: float | None
    cpu_seconds_per_1000_steps: float | None
    lockstep: float | None
    rounds: list[float]
    ratio_to_gymnasium: float | None = None

    @property
    def us_per_env_step(self) -> float | None:
        """Wall time of one env step in microseconds; None if no step ended."""
        return 1e6 / self.steps_per_second if self.steps_per_second else None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON; `rounds` are the env steps per second of each round."""
        return {**asdict(self), "us_per_env_step": self.us_per_env_step}


def summarise(modes: Sequence[Mode], windows: dict[str, list[Window]]) -> list[Result]:
    """Reduce each mode's windows to medians. Ratios are quotients of the rates, which have the digits of the table."""
    rates = {mode.name: _median_rate(windows[mode.name]) for mode in modes}
    results = []
    for mode in modes:
        own = windows[mode.name]
        cpu_seconds_per_step = sum(w.cpu_seconds for w in own) / max(1, sum(w.steps for w in own))
        results.append(
            Result(
                name=mode.name,
                implementation=mode.implementation,
                steps_per_second=rates[mode.name],
                us_per_batch=statistics.median(1e6 * window.seconds / window.batches for window in own),
                ratio_to_plain=_ratio(rates, mode.name, "plain loop"),
                ratio_to_ceiling=_ratio(rates, mode.name, "ceiling"),
                cpu_seconds_per_1000_steps=None if math.isnan(cpu_seconds_per_step) else 1000 * cpu_seconds_per_step,
                lockstep=_median([window.lockstep for window in own if window.lockstep is not None]),
                rounds=[window.rate for window in own],
                ratio_to_gymnasium=_ratio(rates, mode.name, "gymnasium async"),
            )
        )
    return results


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _median_rate(windows: Sequence[Window]) -> float:
    rate = statistics.median(window.rate for window in windows)
    return round(rate, rate_digits(rate))


def _ratio(rates: dict[str, float], name: str, other: str) -> float | None:
    # In a short window of slow envs, all steps may be resets: its rate is 0.
    return rates[name] / rates[other] if rates.get(other) else None
