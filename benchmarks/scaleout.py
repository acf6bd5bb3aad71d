"""`python -m benchmarks.scaleout`: backend="ray" on a simulated cluster, each row with the asked and the reached value.

    growth      round 1: 1 shard | 2 shards | 4 shards      round 2: the same      medians of ratios

All nodes are processes of this machine and share its cores, so rows are ratios. Only envs that sleep can grow with the
number of nodes: their sleep stands for the core of another machine.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import sys
from collections.abc import Callable

from benchmarks import ray_rows
from benchmarks.promises import Row, add_row_options, finish, measure_row, rows_to_measure
from benchmarks.ray_peers import RLlibRunnersMode, TorchRLCollectorMode
from benchmarks.ray_rows import NODE_CPUS, Bench, Readings
from benchmarks.rows import Effort
from benchmarks.simulated_cluster import simulated_cluster
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import count, seconds
from vecenv.envs.toys import BusyEnv
from vecenv.errors import require
from vecenv.measurement import machine
from vecenv.measurement.measure import Mode
from vecenv.measurement.target import EnvFn


def _rows(
    measure_rows: Callable[[Bench], Readings], unit: str, *promises: tuple[str, float], at_least: bool = True
) -> list[Row]:
    """Return the rows that one function measures, each with its name and the asked value."""

    def reader(index: int) -> Callable[[Bench], list[float]]:
        return lambda bench: bench.readings(measure_rows, index)

    return [Row(name, asked, reader(index), unit, at_least) for index, (name, asked) in enumerate(promises)]


def _plain_rows(env_fn: EnvFn, name: str, num_envs: int, num_steps: int, asked: float) -> list[Row]:
    """Return the rows of collectors in shards next to plain actors, RLlib and TorchRL."""
    measure_rows = functools.partial(ray_rows.plain_ratio, env_fn, num_envs, num_steps)
    speed, cpu = "x plain actors", "us per transition"

    def reader(index: int) -> Callable[[Bench], list[float]]:
        return lambda bench: bench.readings(measure_rows, index)

    def peer_row(peer: str, mode: Callable[..., Mode]) -> Row:
        measure_row = functools.partial(ray_rows.peer_ratio, mode, peer, env_fn, num_envs, num_steps)
        about = f"the same, {name}, {num_envs} envs each: speed next to {peer}"
        return Row(about, 1.0, lambda bench: bench.readings(measure_row, 0), f"x {peer}")

    return [
        Row(f"collector, 2 shards x 1 CPU, {name}, {num_envs} envs each", asked, reader(0), speed),
        Row(
            f"the same, {name}, {num_envs} envs each: CPU of the driver minus plain actors'", 0.2, reader(1), cpu, False
        ),
        peer_row("RLlib", RLlibRunnersMode),
        peer_row("TorchRL", TorchRLCollectorMode),
    ]


# Rows that add or remove nodes are the last ones.
_ROWS = [
    *_rows(
        ray_rows.added_round_time,
        "null actor calls",
        ("CartPole-v1, 64 envs, 1 shard x 2 workers: round minus that of processes", 2.0),
        ("CartPole-v1, 64 envs, 2 shards x 1 worker: round minus that of processes", 3.0),
        at_least=False,
    ),
    *_rows(
        ray_rows.busy_ratios,
        "x processes",
        ("busy 50 us, 256 envs, 1 shard x 2 workers", 0.8),
        ("busy 50 us, 256 envs, 2 shards x 1 worker", 0.75),
    ),
    *_rows(ray_rows.large_ratio, "x processes", ("CartPole-v1, 1024 envs, 1 shard x 2 workers", 0.6)),
    *_rows(ray_rows.split_gain, "x unsplit", ("frames of 28 KiB, 64 envs, replies in pieces", 1.5)),
    *_rows(
        ray_rows.driver_cpu_us,
        "us per env step",
        ("CPU of the driver, CartPole-v1, 2 shards x 128 envs", 5.0),
        at_least=False,
    ),
    *_rows(ray_rows.async_gain, "x lockstep", ("recv(32) of 48 envs, one of three shards ten times slower", 3.5)),
    *_rows(
        functools.partial(ray_rows.collector_ratio, 64, 128),
        "x local collector",
        ("collector in 2 shards, CartPole-v1, 64 envs, T = 128", 0.9),
    ),
    *_rows(
        functools.partial(ray_rows.collector_ratio, 256, 64),
        "x local collector",
        ("collector in 2 shards, CartPole-v1, 256 envs, T = 64", 0.8),
    ),
    *_plain_rows(ray_rows.CARTPOLE, "CartPole-v1", 32, 128, 0.95),
    *_plain_rows(ray_rows.CARTPOLE, "CartPole-v1", 128, 128, 1.0),
    *_plain_rows(ray_rows.CARTPOLE, "CartPole-v1", 512, 64, 1.0),
    *_plain_rows(functools.partial(BusyEnv, busy_us=1000), "busy 1 ms", 16, 16, 1.0),
    *_rows(
        ray_rows.replacement_seconds,
        "s",
        ("SIGKILL of an actor to the next answer, 32 CartPoles", 2.0),
        at_least=False,
    ),
    *_rows(
        ray_rows.growth,
        "x linear",
        ("growth, 1 to 2 nodes, 16 envs of 1 ms each", 0.93),
        ("growth, 1 to 4 nodes, 16 envs of 1 ms each", 0.87),
    ),
    *_rows(
        ray_rows.node_seconds,
        "s",
        ("removal of a node to the next answer, 32 CartPoles", 5.0),
        at_least=False,
    ),
]


def main() -> int:
    """Measure the rows asked for, print the table, return 1 if a promise is broken.

    Raises:
        DependencyError: Ray is not installed.
    """
    options = _parse()
    chosen = rows_to_measure(_ROWS, options)
    if not chosen:
        return 0
    ray = require("ray", "ray")
    about = machine.describe_machine() | {"ray": ray.__version__}
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    logging.getLogger("vecenv").setLevel(logging.ERROR)  # a line per death
    # Ray prints the end of a dead node's log to standard output.
    with contextlib.redirect_stdout(sys.stderr), simulated_cluster(num_cpus=NODE_CPUS) as cluster:
        bench = Bench(cluster, Effort(options.rounds, options.seconds / options.rounds))
        entries = [measure_row(row, functools.partial(row.measure, bench)) for row in chosen]
    return finish(entries, about, options.json)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaleout", description="Measure backend='ray' on a simulated cluster."
    )
    add_row_options(parser)
    add = parser.add_argument
    add("--seconds", type=seconds, default=5.0, help="time for each side of a row (default: %(default)s)")
    add("--rounds", type=count, default=5, help="windows per side, by turns (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.scaleout", main))
