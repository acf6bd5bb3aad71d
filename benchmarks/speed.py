"""`python -m benchmarks.speed`: the table of promised speeds, each row with the asked and the reached value."""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from benchmarks import rows
from benchmarks.alf import AlfMode, spare_env_gain
from benchmarks.collection import collector_to_bare_loop, overlap_to_lockstep
from benchmarks.kernel import switch_us
from benchmarks.leases import lease_ms, leased_to_own, own_start_to_lease
from benchmarks.modes import BatchedMode, ManagerMode, SB3VecEnvMode, StableBaselines3Mode, VectorLoopMode
from benchmarks.promises import Row, add_row_options, finish, measure_row, rows_to_measure
from benchmarks.rows import Effort, Readings
from benchmarks.spares import vector_spare_env_gain
from benchmarks.states import get_states_ms, set_states_ms
from vecenv.alf import load
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import count, seconds
from vecenv.envs.toys import BusyEnv, FrameEnv, NullEnv, SleepEnv
from vecenv.measurement import machine, measure
from vecenv.measurement.target import EnvFn, registered_env

_CARTPOLE = registered_env("CartPole-v1")
_PONG = registered_env("ALE/Pong-v5", atari=True, quiet=True)
_EXACT_PONG = registered_env("ALE/Pong-v5", {"repeat_action_probability": 0.0}, atari=True, quiet=True)
_CHEETAH = registered_env("HalfCheetah-v5", quiet=True)
_BUSY_50 = functools.partial(BusyEnv, busy_us=50)
_BUSY_200 = functools.partial(BusyEnv, busy_us=200)
_SLEEP = functools.partial(SleepEnv, mean_ms=1.0)


def _to_ceiling(env_fn: EnvFn, num_envs: int, **kwargs: Any) -> Callable[[Effort], Readings]:
    env_fns = [env_fn] * num_envs
    return functools.partial(rows.to_ceiling, functools.partial(measure.vecenv_sync, env_fns, **kwargs), env_fns)


def _async_to_ceiling(env_fn: EnvFn, num_envs: int, **kwargs: Any) -> Callable[[Effort], list[float]]:
    env_fns = [env_fn] * num_envs
    return functools.partial(
        rows.ratio,
        functools.partial(measure.vecenv_async, env_fns, **kwargs),
        functools.partial(measure.ceiling_loops, env_fns),
    )


def _manager_to_ceiling(env_fn: EnvFn, num_envs: int) -> Callable[[Effort], Readings]:
    env_fns = [env_fn] * num_envs
    return functools.partial(rows.to_ceiling, functools.partial(ManagerMode, env_fns), env_fns)


def _alf_to_ceiling(env_name: str, num_envs: int) -> Callable[[Effort], Readings]:
    ours = functools.partial(AlfMode, [functools.partial(load, env_name)] * num_envs)
    return functools.partial(rows.to_ceiling, ours, [registered_env(env_name)] * num_envs)


def _frames_to_stored_loop(effort: Effort) -> list[float]:
    env_fns = [FrameEnv] * 64
    return rows.ratio(
        functools.partial(measure.vecenv_sync, env_fns, copy=False),
        functools.partial(measure.plain_loop, env_fns, store=True),
        effort,
    )


def _cartpole_to_gymnasium(effort: Effort) -> list[float]:
    env_fns = [_CARTPOLE] * 64
    return rows.ratio(
        functools.partial(measure.vecenv_sync, env_fns), functools.partial(measure.gymnasium_async, env_fns), effort
    )


def _sb3_to_subproc(effort: Effort) -> list[float]:
    env_fns = [_CARTPOLE] * 64
    return rows.ratio(
        functools.partial(SB3VecEnvMode, env_fns), functools.partial(StableBaselines3Mode, env_fns), effort
    )


def _batched_to_one_process(sizes: list[int], effort: Effort) -> list[float]:
    """Compare 2 workers x 1024 vectorised envs with vectorised envs of these sizes in one process."""
    ours = [functools.partial(CartPoleVectorEnv, 1024)] * 2
    theirs = [functools.partial(CartPoleVectorEnv, size) for size in sizes]
    return rows.ratio(functools.partial(BatchedMode, ours), functools.partial(VectorLoopMode, theirs), effort)


def _round_trip(opener: Callable[[], Any]) -> Callable[[Effort], list[float]]:
    return functools.partial(rows.round_trip_us, opener)


def _sleepers(**kwargs: Any) -> Callable[[Effort], list[float]]:
    return functools.partial(rows.sleep_efficiency, [_SLEEP] * 64, 32, **kwargs)


def _memory_growth(effort: Effort) -> list[float]:
    # in an interpreter of its own: what other rows have left to the allocator would count as well
    program = "import json; from benchmarks import memory; print(json.dumps(memory.growth()))"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=600)
    return [max(json.loads(output.stdout).values())]


_ROWS = [
    Row("CartPole-v1, 64 envs", 0.85, _to_ceiling(_CARTPOLE, 64)),
    Row("CartPole-v1, 64 envs, copy=False", 0.90, _to_ceiling(_CARTPOLE, 64, copy=False)),
    Row("CartPole-v1, 64 envs, episode statistics", 0.85, _to_ceiling(_CARTPOLE, 64, episode_statistics=True)),
    Row("CartPole-v1, 256 envs", 0.88, _to_ceiling(_CARTPOLE, 256)),
    Row("busy 50 us, 8 envs", 0.90, _to_ceiling(_BUSY_50, 8)),
    Row("busy 50 us, 64 envs", 0.96, _to_ceiling(_BUSY_50, 64)),
    Row("busy 200 us, 8 envs", 0.97, _to_ceiling(_BUSY_200, 8)),
    Row("ALE/Pong-v5 84x84x4, 8 envs", 0.93, _to_ceiling(_PONG, 8)),
    Row("HalfCheetah-v5, 32 envs", 0.93, _to_ceiling(_CHEETAH, 32)),
    Row("frames, null step, 64 envs, copy=False", 1.5, _frames_to_stored_loop, "x stored loop"),
    Row(
        "round trip, 8 null envs",
        8.0,
        _round_trip(functools.partial(rows.vector_env_round, [NullEnv] * 8)),
        "us",
        at_least=False,
    ),
    Row(
        "round trip, 8 null envs, Pool level",
        5.0,
        _round_trip(functools.partial(rows.pool_round, [NullEnv] * 8, 2)),
        "us",
        at_least=False,
    ),
    Row(
        "infos of Pong in columns, 64 null envs",
        0.5,
        functools.partial(rows.info_cost_us, 64),
        "us per env step",
        at_least=False,
    ),
    Row("manager, CartPole-v1, 64 envs", 0.70, _manager_to_ceiling(_CARTPOLE, 64)),
    Row("ParallelAlfEnvironment, CartPole-v1, 64 envs", 0.60, _alf_to_ceiling("CartPole-v1", 64)),
    Row(
        "ParallelAlfEnvironment, resets of 50 ms, 8 envs and 8 spare ones",
        2.0,
        functools.partial(spare_env_gain, 8, 8),
        "x without spares",
    ),
    Row(
        "VectorEnv, resets of 50 ms, 8 envs and 8 spare ones",
        5.0,
        functools.partial(vector_spare_env_gain, 8, 8),
        "x without spares",
    ),
    Row(
        "2 ms policy on one thread, 8 envs of 50 us",
        100.0,
        functools.partial(rows.spin_policy_overhead, [_BUSY_50] * 8, 50.0),
        "us over ideal",
        at_least=False,
    ),
    Row(
        "BLAS policy on two threads, 8 envs of 50 us",
        150.0,
        functools.partial(rows.blas_policy_overhead, [_BUSY_50] * 8, 50.0),
        "us over ideal",
        at_least=False,
    ),
    Row("against AsyncVectorEnv, CartPole-v1, 64 envs", 10.0, _cartpole_to_gymnasium, "x gymnasium"),
    Row("SB3VecEnv against SubprocVecEnv, CartPole-v1, 64 envs", 6.0, _sb3_to_subproc, "x subproc"),
    Row(
        "vectorised CartPole, 2 workers x 1024 envs, against 2 x 1024 in one process",
        1.6,
        functools.partial(_batched_to_one_process, [1024, 1024]),
        "x one process",
    ),
    Row("async, 64 sleeping envs, 64 workers", 0.90, _sleepers(num_workers=64), "x closed form"),
    Row(
        "async, 64 sleeping envs, 2 workers with 32 threads",
        0.90,
        _sleepers(num_workers=2, threads_per_worker=32),
        "x closed form",
    ),
    Row("async, CartPole-v1, 64 envs, wait_num 32", 0.80, _async_to_ceiling(_CARTPOLE, 64, wait_num=32)),
    Row(
        "collector, CartPole-v1, 64 envs", 0.9, functools.partial(collector_to_bare_loop, _CARTPOLE, 64), "x bare loop"
    ),
    Row(
        "collector, overlap, 2 ms policy, rounds of 2 ms",
        1.6,
        functools.partial(overlap_to_lockstep, 8),
        "x lockstep",
    ),
    Row("start-up, 64 envs in 2 workers", 0.6, functools.partial(rows.start_up_seconds, 64, 2), "s", at_least=False),
    Row("start-up, 64 envs in 64 workers", 2.0, functools.partial(rows.start_up_seconds, 64, 64), "s", at_least=False),
    Row("start-up, 4096 envs", 2.0, functools.partial(rows.start_up_seconds, 4096, 2), "s", at_least=False),
    Row("start-up per env, 16384 envs against 4096", 1.2, rows.start_up_growth, "x of 4096 envs", at_least=False),
    Row("second start-up, envs that import torch", 0.3, rows.second_start_up_seconds, "s", at_least=False),
    Row("the same against the first", 0.3, rows.second_start_up_ratio, "x of the first", at_least=False),
    Row("64 CartPoles of an env server, time of a lease", 20.0, functools.partial(lease_ms, 64), "ms", at_least=False),
    Row("the same, speed of steps", 0.97, functools.partial(leased_to_own, 64), "x own workers"),
    Row("64 envs of an env server, constructors of 50 ms", 50.0, functools.partial(own_start_to_lease, 64), "x sooner"),
    Row("get_states, 64 CartPoles", 1.0, functools.partial(get_states_ms, _CARTPOLE, 64), "ms", at_least=False),
    Row("set_states, 64 CartPoles", 1.0, functools.partial(set_states_ms, _CARTPOLE, 64), "ms", at_least=False),
    Row("get_states, 8 Pongs", 5.0, functools.partial(get_states_ms, _EXACT_PONG, 8), "ms", at_least=False),
    Row("set_states, 8 Pongs", 5.0, functools.partial(set_states_ms, _EXACT_PONG, 8), "ms", at_least=False),
    Row("memory per env in a worker, 4096 CartPoles", 20.0, rows.memory_per_env_kib, "KiB", at_least=False),
    Row("idle workers", 0.1, functools.partial(rows.idle_cpu_percent, [_CARTPOLE] * 64), "% of a core", at_least=False),
    Row("memory growth, step 100,000 to 1,100,000", 1.0, _memory_growth, "MiB", at_least=False),
]


def main() -> int:
    """Measure the rows asked for, print the table, return 1 if a promise is broken."""
    options = _parse()
    chosen = rows_to_measure(_ROWS, options)
    if not chosen:
        return 0
    about = machine.describe_machine() | {"us_per_switch": round(switch_us(), 2)}
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    effort = Effort(options.repeats, options.seconds)
    entries = [measure_row(row, functools.partial(row.measure, effort)) for row in chosen]
    return finish(entries, about, options.json)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    add_row_options(parser)
    parser.add_argument("--repeats", type=count, default=5, help="windows per side, in turns (default: %(default)s)")
    parser.add_argument("--seconds", type=seconds, default=1.0, help="length of a window (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.speed", main))
