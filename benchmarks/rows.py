"""How each kind of row in the table of speeds is measured: every function returns one reading per repeat.

Where a row compares two things, both are built first and then take turns, A B A B, so that each reading is formed
from two neighbouring windows.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.envs.toys import NullEnv
from vecenv.errors import require
from vecenv.measurement import measure
from vecenv.measurement.machine import cpu_seconds, usable_cores
from vecenv.measurement.measure import Mode, Window
from vecenv.measurement.target import EnvFn, action_batches
from vecenv.vector import VectorEnv

__all__ = [
    "Effort",
    "Readings",
    "blas_policy_overhead",
    "idle_cpu_percent",
    "info_cost_us",
    "median_times",
    "pool_round",
    "ratio",
    "round_trip_us",
    "sleep_efficiency",
    "spin_policy_overhead",
    "second_start_up_ratio",
    "second_start_up_seconds",
    "start_up_seconds",
    "to_ceiling",
    "vector_env_round",
]

# Durations of the shared policies, as in the table.
_SPIN_POLICY_SECONDS, _BLAS_POLICY_SECONDS = 2e-3, 1e-3
_WINDOWS = 5  # per repeat, for a policy alone and with rounds: a core may be slow for half a second
_SETTLE_SECONDS, _IDLE_SECONDS = 1.0, 5.0

_START_UP = """
import functools, time
import cloudpickle, gymnasium, numpy, psutil
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.vector import VectorEnv
env_fns = [functools.partial(gymnasium.make, "CartPole-v1")] * {num_envs}
start = time.perf_counter()
envs = VectorEnv(env_fns, num_workers={num_workers})
envs.reset(seed=0)
print(time.perf_counter() - start)
print(sum(psutil.Process(pid).memory_full_info().uss for pid in envs.worker_pids))
envs.close()
"""


#: The env function imports torch, and the program has imported it, too, as a training program has.
_TORCH_START_UPS = """
import time
import cloudpickle, gymnasium, numpy, psutil, torch
from vecenv.vector import VectorEnv
def make():
    import torch
    return gymnasium.make("CartPole-v1")
for _ in range(2):
    start = time.perf_counter()
    with VectorEnv([make] * 8, num_workers=2) as envs:
        envs.reset(seed=0)
        print(time.perf_counter() - start)
"""


#: A null env with the info dict that ale-py's Pong returns at every step.
_PONG_INFOS = functools.partial(NullEnv, info={"lives": 0, "episode_frame_number": 1234, "frame_number": 56789})


class Readings(NamedTuple):
    """The values of a row, one per repeat, and the values that a lockstep could reach on this machine."""

    values: list[float]
    lockstep: list[float]


class Effort(NamedTuple):
    """How long to measure: `repeats` windows of `seconds` for each side."""

    repeats: int
    seconds: float


def ratio(ours: Callable[[], Mode], theirs: Callable[[], Mode], effort: Effort) -> list[float]:
    """Return how many times faster ours is than theirs, one ratio per pair of windows."""
    with contextlib.ExitStack() as stack:
        modes = []
        for opener in (theirs, ours):
            modes.append(opener())
            stack.callback(modes[-1].close)
        base, own = _turns(*modes, effort)
    return _ratios(base, own)


def to_ceiling(ours: Callable[[], Mode], env_fns: Sequence[EnvFn], effort: Effort) -> Readings:
    """Return ours in shares of the ceiling, and what would be left of the ceiling in lockstep."""
    with contextlib.ExitStack() as stack:
        ceiling = measure.ceiling_loops(env_fns)
        stack.callback(ceiling.close)
        mode = ours()
        stack.callback(mode.close)
        base, own = _turns(ceiling, mode, effort)
    return Readings(_ratios(base, own), [window.lockstep for window in base if window.lockstep is not None])


def _turns(theirs: Mode, ours: Mode, effort: Effort) -> tuple[list[Window], list[Window]]:
    windows: dict[str, list[Window]] = {theirs.name: [], ours.name: []}
    for name, window in measure.interleave([theirs, ours], effort.seconds, effort.repeats):
        windows[name].append(window)
    return windows[theirs.name], windows[ours.name]


def _ratios(theirs: list[Window], ours: list[Window]) -> list[float]:
    return [fast.rate / slow.rate for fast, slow in zip(ours, theirs, strict=True)]


def sleep_efficiency(
    env_fns: Sequence[EnvFn], wait_num: int, effort: Effort, *, num_loops: int = 8, **kwargs: Any
) -> list[float]:
    """Return async throughput as a share of the closed form for memoryless sleepers; `kwargs` go to VectorEnv.

    With N envs whose sleeps are exponential, the mean time until `wait_num` of them have ended is
    mean * (H(N) - H(N - wait_num)), H the harmonic number. The mean sleep is measured alternately with that, by
    plain loops over the same envs in `num_loops` processes, as the system's timer adds to the requested time.
    """
    num_envs = len(env_fns)
    readings = []
    with contextlib.ExitStack() as stack:
        loops = measure.LoopMode("sleepers", [[env_fn] for env_fn in env_fns[:num_loops]])
        stack.callback(loops.close)
        envs = measure.vecenv_async(env_fns, wait_num=wait_num, **kwargs)
        stack.callback(envs.close)
        rates = {"sleepers": 0.0}
        for name, window in measure.interleave([loops, envs], effort.seconds, effort.repeats):
            rates[name] = window.rate
            if name == envs.name:
                mean_sleep = num_loops / rates["sleepers"]
                ideal = wait_num / (mean_sleep * (_harmonic(num_envs) - _harmonic(num_envs - wait_num)))
                readings.append(window.rate / ideal)
    return readings


def round_trip_us(
    opener: Callable[[], contextlib.AbstractContextManager[Callable[[], None]]], effort: Effort
) -> list[float]:
    """Return the median time of what `opener` gives, one round of `send` and `recv`, in microseconds, per repeat."""
    with opener() as round_trip:
        return [1e6 * seconds for seconds in median_times(round_trip, effort)]


@contextlib.contextmanager
def vector_env_round(
    env_fns: Sequence[EnvFn], policy: Callable[[], None] | None = None, **kwargs: Any
) -> Iterator[Callable[[], None]]:
    """Open a VectorEnv and give one round of it: `send`, `recv` of all, then the policy if there is one."""
    with contextlib.closing(VectorEnv(env_fns, **kwargs)) as envs:
        envs.reset(seed=0)
        actions = action_batches(envs.single_action_space, len(env_fns))

        def one_round() -> None:
            envs.send(next(actions))
            envs.recv()
            if policy is not None:
                policy()

        yield one_round


def info_cost_us(num_envs: int, effort: Effort) -> list[float]:
    """Return what Pong's infos add to one env's step, in microseconds.

    Worker and parent are one thread here, so that the difference to `infos='none'` is the work of both.
    """
    readings = []
    with contextlib.ExitStack() as stack:
        rounds = []
        for infos in ("none", "all"):
            envs = stack.enter_context(
                contextlib.closing(VectorEnv([_PONG_INFOS] * num_envs, backend="serial", infos=infos))
            )
            envs.reset(seed=0)
            rounds.append(functools.partial(envs.step, np.zeros(num_envs, np.int64)))
        for _ in range(effort.repeats):
            # the quickest of short windows that take turns: load of other programs is not a cost of infos
            windows = [[median_times(one, Effort(1, effort.seconds / 20))[0] for one in rounds] for _ in range(10)]
            without, with_infos = (min(times) for times in zip(*windows))
            readings.append(1e6 * (with_infos - without) / num_envs)
    return readings


@contextlib.contextmanager
def pool_round(env_fns: Sequence[EnvFn], num_workers: int) -> Iterator[Callable[[], None]]:
    """Open a ProcessPool and give one round of it: `send`, `recv` of all, without a front end."""
    with ProcessPool(env_fns, PoolOptions(num_workers=num_workers)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        actions = action_batches(pool.action_space, len(env_fns))

        def one_round() -> None:
            pool.send(next(actions))
            pool.recv()

        yield one_round


def median_times(call: Callable[[], Any], effort: Effort) -> list[float]:
    """Return the median duration of `call` in seconds, one per repeat, after a warm-up."""
    list(_times(call, min(effort.seconds, 0.1)))
    return [statistics.median(_times(call, effort.seconds)) for _ in range(effort.repeats)]


def spin_policy_overhead(env_fns: Sequence[EnvFn], busy_us: float, effort: Effort) -> list[float]:
    """Return the time of a round beyond its ideal, in microseconds, with a one-thread policy of 2 ms in each round.

    The ideal is the nominal one: the policy, and the envs' busy time spread over the cores.
    """

    def policy() -> None:
        end = time.perf_counter() + _SPIN_POLICY_SECONDS
        while time.perf_counter() < end:
            pass

    ideal = _SPIN_POLICY_SECONDS + _env_seconds(env_fns, busy_us)
    with vector_env_round(env_fns, policy) as one_round:
        return [1e6 * (seconds - ideal) for seconds in median_times(one_round, effort)]


def blas_policy_overhead(env_fns: Sequence[EnvFn], busy_us: float, effort: Effort) -> list[float]:
    """Return the overhead of a matrix product of about 1 ms on two threads, whose own time is measured alternately."""
    policy = _matmul_policy(_BLAS_POLICY_SECONDS)
    env_seconds = _env_seconds(env_fns, busy_us)
    window = Effort(1, effort.seconds / _WINDOWS)
    readings = []
    with vector_env_round(env_fns, policy) as one_round:
        for _ in range(effort.repeats):
            times = [median_times(policy, window) + median_times(one_round, window) for _ in range(_WINDOWS)]
            alone, together = zip(*times)
            # The quickest window is the policy undisturbed; a slow one would make the rounds look good.
            readings.append(statistics.median(together) - min(alone) - env_seconds)
    return [1e6 * seconds for seconds in readings]


def start_up_seconds(num_envs: int, num_workers: int, effort: Effort) -> list[float]:
    """Return the time from construction to the first observation, imports done before, in fresh interpreters."""
    return [_start_up(num_envs, num_workers)[0] for _ in range(effort.repeats)]


def start_up_growth(effort: Effort) -> list[float]:
    """Return the start-up time per env of 16384 envs in two workers, as a multiple of that of 4096.

    The time of 64 envs, which is mostly that of two processes, is subtracted before.
    """
    growths = []
    for _ in range(effort.repeats):
        fixed, some, many = (_start_up(num_envs, 2)[0] for num_envs in (64, 4096, 16384))
        growths.append((many - fixed) / (16384 - 64) / ((some - fixed) / (4096 - 64)))
    return growths


def second_start_up_seconds(effort: Effort) -> list[float]:
    """Return the start-up time of the second `VectorEnv` of a program whose envs import torch."""
    return [_torch_start_ups()[1] for _ in range(effort.repeats)]


def second_start_up_ratio(effort: Effort) -> list[float]:
    """Return the same as a multiple of the time of the first `VectorEnv`."""
    return [second / first for first, second in (_torch_start_ups() for _ in range(effort.repeats))]


def _torch_start_ups() -> list[float]:
    require("torch", "torch")
    command = [sys.executable, "-c", _TORCH_START_UPS]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return [float(line) for line in output.stdout.split()]


def memory_per_env_kib(effort: Effort) -> list[float]:
    """Return the growth of the workers' private memory from 64 to 4096 CartPoles, in KiB per env."""
    growths = (_start_up(4096, 2)[1] - _start_up(64, 2)[1] for _ in range(effort.repeats))
    return [growth / 1024 / (4096 - 64) for growth in growths]


def _start_up(num_envs: int, num_workers: int) -> tuple[float, int]:
    """Return the start-up time in seconds, and the private memory of all workers in bytes."""
    program = _START_UP.format(num_envs=num_envs, num_workers=num_workers)
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    seconds, nbytes = output.stdout.split()
    return float(seconds), int(nbytes)


def idle_cpu_percent(env_fns: Sequence[EnvFn], effort: Effort) -> list[float]:
    """Return the CPU use of the busiest worker while nothing is asked of it, in percent of a core."""
    with contextlib.closing(VectorEnv(env_fns)) as envs:
        actions = action_batches(envs.single_action_space, len(env_fns))
        envs.reset(seed=0)
        for batch in itertools.islice(actions, 100):
            envs.step(batch)
        time.sleep(_SETTLE_SECONDS)
        readings = []
        for _ in range(effort.repeats):
            before = [cpu_seconds(pid) for pid in envs.worker_pids]
            time.sleep(_IDLE_SECONDS)
            after = [cpu_seconds(pid) for pid in envs.worker_pids]
            readings.append(100 * max(end - start for start, end in zip(before, after, strict=True)) / _IDLE_SECONDS)
    return readings


def _times(call: Callable[[], Any], seconds: float) -> list[float]:
    clock = time.perf_counter
    times = []
    now = clock()
    deadline = now + seconds
    while now < deadline:
        start = clock()
        call()
        now = clock()
        times.append(now - start)
    return times


def _env_seconds(env_fns: Sequence[EnvFn], busy_us: float) -> float:
    return 1e-6 * busy_us * len(env_fns) / min(len(env_fns), usable_cores())


def _matmul_policy(seconds: float) -> Callable[[], None]:
    """Return a matrix product of about that duration on this machine."""
    size = 256
    for _ in range(4):
        took = _fastest(_matmul(size))
        size = max(32, round(size * (seconds / took) ** (1 / 3) / 8) * 8)
    return _matmul(size)


def _matmul(size: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    left, right = rng.random((2, size, size), dtype=np.float32)
    out = np.empty((size, size), np.float32)

    def multiply() -> None:
        np.matmul(left, right, out=out)

    return multiply


def _fastest(call: Callable[[], Any]) -> float:
    # In bursts: two threads that the system has put on one core stay there, spinning at each other, until they pause.
    best = float("inf")
    for _ in range(5):
        best = min(best, *_times(call, 0.02))
        time.sleep(0.02)
    return best


def _harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))
