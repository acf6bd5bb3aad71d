"""`python -m benchmarks.managers`: env steps per second of the managers beside Gymnasium and the plain loop.

Every manager in both APIs, dicts and batches (V2), over worker processes; the asynchronous one with dicts. All modes
of one number of envs are built first and then take turns. The last columns are the cost of a manager's
call per env beyond the batch API, on envs that take no time, in this process, without other load.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from rich.console import Console
from rich.table import Table

from benchmarks.modes import AsyncManagerMode, ManagerMode, TreeManagerMode
from benchmarks.rows import Effort, median_times
from vecenv import VectorEnv
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import check_file, count, seconds
from vecenv.ding import BaseEnvManager, BaseEnvManagerV2
from vecenv.envs.toys import NullEnv
from vecenv.measurement import machine, measure
from vecenv.measurement.measure import Mode, Window
from vecenv.measurement.target import check_env, registered_env

_SIZES = (8, 64, 256)
_MANY_PROCESSES = 64  # Gymnasium starts one per env; beyond this the machine is the limit


def main() -> int:
    """Measure, print the tables, write the requested file."""
    options = _parse()
    if options.json:
        check_file("--json", options.json)
    check_env(registered_env(options.env), options.env)
    effort = Effort(options.repeats, options.seconds)
    about = machine.describe_machine()
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    console = Console(width=None if sys.stdout.isatty() else 140)
    steps = {num_envs: _measure(options.env, num_envs, effort) for num_envs in options.envs}
    calls = {num_envs: _call_costs(num_envs, effort) for num_envs in options.envs}
    for num_envs, results in steps.items():
        console.print(_table(f"{options.env}, {num_envs} envs", results))
    console.print(_cost_table(calls))
    if options.json:
        data = {"machine": about, "steps": steps, "us": calls}
        options.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return 0


def _measure(env: str, num_envs: int, effort: Effort) -> list[dict[str, Any]]:
    """Return env steps per second and ratios to the plain loop and to the ceiling, one entry per mode."""
    env_fns = [registered_env(env)] * num_envs
    openers: list[Callable[[Sequence[Any]], Mode]] = [
        measure.plain_loop,
        measure.ceiling_loops,
        ManagerMode,
        TreeManagerMode,
        AsyncManagerMode,
    ]
    if num_envs <= _MANY_PROCESSES:
        openers.insert(2, measure.gymnasium_async)
    windows: dict[str, list[Window]] = {}
    with contextlib.ExitStack() as stack:
        modes = []
        for opener in openers:
            modes.append(opener(env_fns))
            stack.callback(modes[-1].close)
        for name, window in measure.interleave(modes, effort.seconds, effort.repeats):
            windows.setdefault(name, []).append(window)
        return [result.as_dict() for result in measure.summarise(modes, windows)]


def _call_costs(num_envs: int, effort: Effort) -> dict[str, float]:
    """Return microseconds: of a step of each API, per env beyond the batch API, and of reading `ready_obs`."""
    env_fns = [NullEnv] * num_envs
    batch = np.zeros(num_envs, np.int64)
    by_id = dict(enumerate(batch))
    one_repeat = Effort(1, effort.seconds / 4)
    readings: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        envs = stack.enter_context(
            contextlib.closing(VectorEnv(env_fns, backend="serial", autoreset_mode=AutoresetMode.SAME_STEP))
        )
        envs.reset(seed=0)
        dicts, trees = (stack.enter_context(cls(env_fns)) for cls in (BaseEnvManager, BaseEnvManagerV2))
        dicts.launch()
        trees.launch()
        calls: dict[str, Callable[[], Any]] = {
            "batch step": lambda: envs.step(batch),
            "dict step": lambda: dicts.step(by_id),
            "V2 step": lambda: trees.step(batch),
            "dict ready_obs": lambda: dicts.ready_obs,
            "V2 ready_obs": lambda: trees.ready_obs,
        }
        for _ in range(effort.repeats):
            for name, call in calls.items():
                readings.setdefault(name, []).extend(1e6 * seconds for seconds in median_times(call, one_repeat))
    costs = {name: statistics.median(values) for name, values in readings.items()}
    for name in ("dict", "V2"):
        costs[f"{name} step, per env beyond batch"] = (costs[f"{name} step"] - costs["batch step"]) / num_envs
    return costs


def _table(title: str, results: list[dict[str, Any]]) -> Table:
    table = Table("mode", "env steps/s", "us per batch", "x plain loop", "x ceiling", title=title)
    for result in results:
        table.add_row(
            result["name"],
            f"{result['steps_per_second']:,.0f}",
            f"{result['us_per_batch']:.1f}",
            f"{result['ratio_to_plain']:.2f}",
            f"{result['ratio_to_ceiling']:.2f}",
        )
    return table


def _cost_table(calls: dict[int, dict[str, float]]) -> Table:
    table = Table("us", *(f"{num_envs} envs" for num_envs in calls), title="null envs in this process")
    for name in next(iter(calls.values())):
        table.add_row(name, *(f"{costs[name]:.2f}" for costs in calls.values()))
    return table


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.managers", description=__doc__.split("\n")[0])
    parser.add_argument("--env", default="CartPole-v1", help="a registered env (default: %(default)s)")
    parser.add_argument("--envs", type=count, nargs="+", default=_SIZES, metavar="N", help="numbers of envs")
    parser.add_argument("--repeats", type=count, default=5, help="windows per mode, in turns (default: %(default)s)")
    parser.add_argument("--seconds", type=seconds, default=1.0, help="length of a window (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.managers", main))
