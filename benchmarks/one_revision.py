"""Measures one row with the vecenv of the interpreter that runs this: a child process of `benchmarks.against`.

    python one_revision.py ROW     prints which half of vecenv runs; then for each line of standard input, a number of
                                   seconds, the env steps per second of a window that long

The child may run an old revision, so it uses names that all revisions have, and nothing else of `benchmarks`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["DEFAULT_ROWS", "ROWS"]

_WARM_UP_SECONDS = 0.05  # before each window: the workers have slept since the last one
_NUM_BATCHES = 64

#: One round of a row. It returns the number of env steps.
Round = Callable[[], int]


def _gym(env_name: str, **kwargs: Any) -> Callable[[], Any]:
    import gymnasium

    if env_name.startswith("ALE/"):
        return _make_atari
    return functools.partial(gymnasium.make, env_name, **kwargs)


def _make_atari() -> Any:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1), screen_size=84)
    return gymnasium.wrappers.FrameStackObservation(env, 4)


def _toy(name: str, **kwargs: Any) -> Callable[[], Any]:
    from vecenv.envs import toys

    return functools.partial(getattr(toys, name), **kwargs)


def _null_with_infos() -> Any:
    env = _toy("NullEnv")()
    info = {"lives": 0, "episode_frame_number": 1234, "frame_number": 56789}  # the keys of Pong
    env._result = (*env._result[:4], info)
    return env


@contextlib.contextmanager
def _step(make_env_fn: Callable[[], Any], num_envs: int, **kwargs: Any) -> Iterator[Round]:
    """Open a VectorEnv whose round is one `step`."""
    with _vector_env(make_env_fn, num_envs, **kwargs) as (envs, actions):

        def one_round() -> int:
            envs.step(next(actions))
            return num_envs

        yield one_round


@contextlib.contextmanager
def _policy(make_env_fn: Callable[[], Any], num_envs: int, policy: Callable[[], Any]) -> Iterator[Round]:
    """Open a VectorEnv whose round is `send`, `recv` and a policy."""
    with _vector_env(make_env_fn, num_envs) as (envs, actions):

        def one_round() -> int:
            envs.send(next(actions))
            envs.recv()
            policy()
            return num_envs

        yield one_round


@contextlib.contextmanager
def _first(make_env_fn: Callable[[], Any], num_envs: int, wait_num: int, **kwargs: Any) -> Iterator[Round]:
    """Open a VectorEnv whose round is `recv` of the first `wait_num` envs and `send` to those."""
    with _vector_env(make_env_fn, num_envs, **kwargs) as (envs, actions):
        envs.send(next(actions))

        def one_round() -> int:
            env_ids = envs.recv(wait_num)[4]["env_id"]
            envs.send(next(actions)[env_ids], env_ids)
            return len(env_ids)

        yield one_round


@contextlib.contextmanager
def _vector_env(make_env_fn: Callable[[], Any], num_envs: int, **kwargs: Any) -> Iterator[tuple[Any, Iterator[Any]]]:
    import vecenv

    with contextlib.closing(vecenv.VectorEnv([make_env_fn()] * num_envs, **kwargs)) as envs:
        envs.reset(seed=0)
        yield envs, _actions(envs.single_action_space, num_envs)


@contextlib.contextmanager
def _pool_round(num_envs: int) -> Iterator[Round]:
    """Open a pool of null envs whose round is `send` and `recv`."""
    from vecenv.core.options import PoolOptions

    try:
        from vecenv.core.pool.process import ProcessPool
    except ImportError:  # before the modules of `core` stood in folders
        from vecenv.core.process import ProcessPool

    with ProcessPool([_toy("NullEnv")] * num_envs, PoolOptions(num_workers=2)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        actions = _actions(pool.action_space, num_envs)

        def one_round() -> int:
            pool.send(next(actions))
            pool.recv()
            return num_envs

        yield one_round


@contextlib.contextmanager
def _manager(env_name: str, num_envs: int) -> Iterator[Round]:
    """Open a manager whose round is one `step`, with the resets in it."""
    import vecenv

    env_fn = _gym(env_name)
    manager = vecenv.managers.SyncSubprocessEnvManager(env_fn=[env_fn] * num_envs, cfg={})
    with contextlib.closing(manager):
        manager.launch()
        batches = itertools.islice(_actions(env_fn().action_space, num_envs), _NUM_BATCHES)
        actions = itertools.cycle([dict(enumerate(batch)) for batch in batches])
        yield lambda: len(manager.step(next(actions)))


def _actions(space: Any, num_envs: int) -> Iterator[Any]:
    from gymnasium.vector.utils import batch_space

    batched = batch_space(space, num_envs)
    batched.seed(0)
    return itertools.cycle([batched.sample() for _ in range(_NUM_BATCHES)])


def _spin_policy(seconds: float = 2e-3) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@functools.cache
def _factors() -> Any:
    import numpy as np

    return np.random.default_rng(0).random((2, 384, 384), dtype=np.float32)


def _blas_policy() -> None:
    left, right = _factors()
    left @ right


_CARTPOLE = functools.partial(_gym, "CartPole-v1")
_BUSY = functools.partial(_toy, "BusyEnv", busy_us=50)
_SLEEP = functools.partial(_toy, "SleepEnv", mean_ms=1.0)

#: Name -> how to open the row.
ROWS: dict[str, Callable[[], contextlib.AbstractContextManager[Round]]] = {
    "cartpole-64": functools.partial(_step, _CARTPOLE, 64),
    "cartpole-256": functools.partial(_step, _CARTPOLE, 256),
    "cheetah-32": functools.partial(_step, functools.partial(_gym, "HalfCheetah-v5"), 32),
    "frames-64": functools.partial(_step, functools.partial(_toy, "FrameEnv"), 64, copy=False),
    "pool-null-8": functools.partial(_pool_round, 8),
    "manager-64": functools.partial(_manager, "CartPole-v1", 64),
    "cartpole-64-statistics": functools.partial(_step, _CARTPOLE, 64, episode_statistics=True),
    "cartpole-async-64": functools.partial(_first, _CARTPOLE, 64, 32),
    "pong-8": functools.partial(_step, functools.partial(_gym, "ALE/Pong-v5"), 8),
    "null-64": functools.partial(_step, functools.partial(_toy, "NullEnv"), 64),
    "infos-null-64": functools.partial(_step, lambda: _null_with_infos, 64),
    "busy-8": functools.partial(_step, _BUSY, 8),
    "busy-64": functools.partial(_step, _BUSY, 64),
    "spin-policy-8": functools.partial(_policy, _BUSY, 8, _spin_policy),
    "blas-policy-8": functools.partial(_policy, _BUSY, 8, _blas_policy),
    "sleepers-64": functools.partial(_first, _SLEEP, 64, 32, num_workers=64),
    "sleepers-threads-64": functools.partial(_first, _SLEEP, 64, 32, num_workers=2, threads_per_worker=32),
}

#: Rows that are measured where none is named.
DEFAULT_ROWS = ("cartpole-64", "cartpole-256", "cheetah-32", "frames-64", "pool-null-8", "manager-64")


def _rate(one_round: Round, seconds: float, uses_median: bool) -> float:
    """Return env steps per second. With `uses_median` a few slow rounds of very short ones do not count."""
    clock = time.perf_counter
    steps, times = 0, []
    start = now = clock()
    while now < start + seconds:
        before = now
        steps += one_round()
        now = clock()
        times.append(now - before)
    return steps / len(times) / statistics.median(times) if uses_median else steps / (now - start)


def main() -> None:
    """Open the row that is the first argument; measure a window for each line of standard input."""
    name = sys.argv[1]
    importlib.import_module("numpy")  # with the threads of policies; workers would take the variables over
    for variable in [variable for variable in os.environ if variable.endswith("_NUM_THREADS")]:
        del os.environ[variable]
    with ROWS[name]() as one_round:
        _rate(one_round, 4 * _WARM_UP_SECONDS, False)
        print("native" if importlib.util.find_spec("vecenv._native") else "python", flush=True)
        for line in sys.stdin:
            _rate(one_round, _WARM_UP_SECONDS, False)
            print(_rate(one_round, float(line), "null" in name), flush=True)


if __name__ == "__main__":
    main()
