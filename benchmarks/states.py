"""States of single envs: the time in which `get_states` reads those of all envs, and `set_states` puts them back."""

from __future__ import annotations

import statistics
import time

from benchmarks.rows import Effort
from vecenv import VectorEnv
from vecenv.measurement.target import EnvFn

__all__ = ["get_states_ms", "set_states_ms"]


def get_states_ms(env_fn: EnvFn, num_envs: int, effort: Effort) -> list[float]:
    """Return the median milliseconds of `get_states` within episodes, for envs in the default number of workers."""
    return [got for got, _ in _read(env_fn, num_envs, effort)]


def set_states_ms(env_fn: EnvFn, num_envs: int, effort: Effort) -> list[float]:
    """Return the same for `set_states`."""
    return [put for _, put in _read(env_fn, num_envs, effort)]


def _read(env_fn: EnvFn, num_envs: int, effort: Effort) -> list[tuple[float, float]]:
    readings = []
    with VectorEnv([env_fn] * num_envs) as envs:
        envs.reset(seed=0)
        for _ in range(5):
            envs.step(envs.action_space.sample())
        for _ in range(effort.repeats):
            got: list[float] = []
            put: list[float] = []
            end = time.perf_counter() + effort.seconds
            while time.perf_counter() < end:
                began = time.perf_counter()
                states = envs.get_states()
                got.append(time.perf_counter() - began)
                envs.set_states(states)
                put.append(time.perf_counter() - began - got[-1])
            readings.append((1e3 * statistics.median(got), 1e3 * statistics.median(put)))
    return readings
