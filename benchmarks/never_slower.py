"""`python -m benchmarks.never_slower`: vecenv with default settings beside the classes that a user has today.

    Gymnasium, 8 CartPoles    first run of each one, then by turns:
    round 1: VectorEnv | AsyncVectorEnv | SyncVectorEnv     round 2: the other way round     median of the ratios

A cell of the grid is a framework, a kind of env and a number of envs. All classes of a cell are open at the same time,
each in a process of its own, as in `benchmarks.peers`. A ratio is the speed of vecenv divided by that of the better
class of the framework in the same round. Envs that sleep have two cells: the 5 seconds that begin with the first step,
and the time afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.clients import CLIENTS, Client, Comparison, InstalledPeers, find_peers, open_client
from benchmarks.peer_modes import Task
from benchmarks.peers import machine_line, parse_measuring
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import check_file, natural
from vecenv.envs.toys import BusyEnv, FixedSleepEnv, NullEnv
from vecenv.errors import ConfigError, DependencyError
from vecenv.measurement import machine, report
from vecenv.measurement.target import EnvFn, check_env, registered_env

_LEAST_RATIO = 0.97
FIRST_SECONDS, _WARM_UP_SECONDS = 5.0, 0.1
#: Least number of rounds, and of episodes that end, in a window. Envs that sleep have fewer and longer windows.
_LEAST_ROUNDS, _SLEEPING_WINDOWS = 10, 3
_FIRST = ", first 5 s"


class Kind(NamedTuple):
    """A kind of env.

    Attributes:
        env_fn: builds one.
        sleeps: whether its time is not that of a core.
        episode: steps of an episode, if its end takes long; else 0.
    """

    env_fn: EnvFn
    sleeps: bool = False
    episode: int = 0


KINDS = {
    "cartpole": Kind(registered_env("CartPole-v1")),
    "busy-50us": Kind(functools.partial(BusyEnv, busy_us=50)),
    "busy-200us": Kind(functools.partial(BusyEnv, busy_us=200)),
    "cheetah": Kind(registered_env("HalfCheetah-v5", quiet=True)),
    "sleep-1ms": Kind(functools.partial(FixedSleepEnv, 1.0), True),
    "sleep-10ms-reset-100ms": Kind(functools.partial(FixedSleepEnv, 10.0, 100.0), True, 25),
    "null-20-infos": Kind(functools.partial(NullEnv, info={f"key_{index}": float(index) for index in range(20)})),
}
_NUM_ENVS = (1, 2, 4, 8, 16, 64)

#: (name of the kind, number of envs)
Place = tuple[str, int]

_ALL_PLACES: tuple[Place, ...] = tuple((name, num_envs) for name in KINDS for num_envs in _NUM_ENVS)
_THREE_PLACES: tuple[Place, ...] = (("cartpole", 8), ("busy-50us", 16), ("sleep-1ms", 16))
#: The grid, by the framework of `benchmarks.clients`.
GRID = {
    "Gymnasium": _ALL_PLACES,
    "Stable-Baselines3": _ALL_PLACES,
    **dict.fromkeys(("TorchRL", "Tianshou", "RLlib", "PufferLib", "DI-engine, LightZero"), _THREE_PLACES),
}

#: A program that computes until its parent, whose id is its argument, has ended.
_BUSY_PROGRAM = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))"


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[list[int]]:
    """Start this many processes that compute without a pause, and kill them at the end; yield their ids."""
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(count):
            with machine.no_interrupts():
                command = [sys.executable, "-c", _BUSY_PROGRAM, str(os.getpid())]
                process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL))
                stack.callback(process.kill)
            pids.append(process.pid)
        yield pids


def main() -> None:
    """Measure the chosen cells; print a table per framework, and the number of cells in which vecenv is slower."""
    options = _parse()
    if options.json:
        check_file("--json", options.json)
    chosen = {client: _choose(client, options) for client in CLIENTS if client.framework in GRID}
    chosen = {client: places for client, places in chosen.items() if places}
    if not chosen:
        raise ConfigError("no cell of the grid has this framework, this kind of env and this number of envs")
    about = machine.describe_machine()
    versions: dict[str, None] = {}
    found: list[Comparison] = []
    num_missing = 0
    with busy_loops(options.busy):
        peers = find_peers(chosen, options)
        env_fns = _check_kinds(name for places in chosen.values() for name, _ in places)
        for client, places in chosen.items():
            cells: dict[str, Comparison | None] = {}
            for name, num_envs in places:
                cells |= _measure(client, name, num_envs, env_fns.get(name), peers, options, versions)
            print("", *_table(client, places, cells), "", sep="\n", flush=True)
            found += filter(None, cells.values())
            num_missing += sum(cell is None for cell in cells.values())
    if options.json:
        options.json.write_text(report.results_json(vars(options), {**about, "peers": list(versions)}, found))
    report.print_text(f"busy loops of other programs: {options.busy}; {machine_line(about, list(versions))}")
    num_slower = sum(cell.quartiles[1] < _LEAST_RATIO for cell in found)
    print(f"cells below {_LEAST_RATIO}: {num_slower} of {len(found)}; not measured: {num_missing}")


def _choose(client: Client, options: argparse.Namespace) -> list[Place]:
    if options.face and not any(part.lower() in client.framework.lower() for part in options.face):
        return []
    names, counts = options.row or KINDS, options.envs or _NUM_ENVS
    return [(name, num_envs) for name, num_envs in GRID[client.framework] if name in names and num_envs in counts]


def _check_kinds(names: Iterable[str]) -> dict[str, EnvFn]:
    """Build one env of each kind; return the constructors of those that can be built, and print why others cannot."""
    env_fns: dict[str, EnvFn] = {}
    for name in dict.fromkeys(names):
        try:
            env_fns[name] = check_env(KINDS[name].env_fn, name)
        except (ConfigError, DependencyError) as error:
            report.print_text(f"{name} is not measured: {error}")
    return env_fns


def _measure(
    client: Client,
    name: str,
    num_envs: int,
    env_fn: EnvFn | None,
    peers: InstalledPeers,
    options: argparse.Namespace,
    versions: dict[str, None],
) -> dict[str, Comparison | None]:
    """Return the cells of one place by their titles; None stands for one that cannot be measured."""
    kind, title = KINDS[name], _title(name, num_envs)
    cells: dict[str, Comparison | None] = {title: None}
    if kind.sleeps:
        cells = {title + _FIRST: None, **cells}
    with contextlib.ExitStack() as stack:
        modes = [] if env_fn is None else open_client(client, Task(title, env_fn, num_envs), peers, stack)
        if not modes:
            return cells
        versions |= dict.fromkeys(mode.version for mode in modes)
        start, steal = time.monotonic(), machine.StealMeter()
        first = {mode.name: mode.run(FIRST_SECONDS if kind.sleeps else _WARM_UP_SECONDS) for mode in modes}
        num_windows = min(options.rounds, _SLEEPING_WINDOWS) if kind.sleeps else options.rounds
        least_steps = _LEAST_ROUNDS * max(num_envs, kind.episode)
        rates: dict[str, list[float]] = {mode.name: [] for mode in modes}
        for index in range(num_windows):
            for mode in modes[:: -1 if index % 2 else 1]:
                seconds = max(options.seconds / options.rounds, least_steps / max(1.0, first[mode.name].rate))
                rates[mode.name].append(mode.run(seconds).rate)
    if kind.sleeps:
        cells[title + _FIRST] = _compare(client, title + _FIRST, {one: [first[one].rate] for one in first})
    cells[title] = _compare(client, title, rates)
    for cell in filter(None, cells.values()):
        low, middle, high = cell.quartiles
        text = f"{cell.framework}, {cell.task}: {middle:.2f} ({low:.2f}-{high:.2f}) of {cell.theirs}"
        about = f"{time.monotonic() - start:.0f} s, {steal.share():.1%} stolen"
        print(f"{text}; {about}", file=sys.stderr, flush=True)
    return cells


def _title(name: str, num_envs: int) -> str:
    return f"{name} x {num_envs}"


def _compare(client: Client, title: str, rates: dict[str, list[float]]) -> Comparison:
    """Compare with the better class of the framework: the one with the higher median speed."""
    ours = rates[client.ours]
    theirs = max((name for name in rates if name != client.ours), key=lambda name: statistics.median(rates[name]))
    ratios = [mine / max(other, 1e-9) for mine, other in zip(ours, rates[theirs], strict=True)]
    return Comparison(
        client.framework, theirs, title, statistics.median(rates[theirs]), statistics.median(ours), ratios
    )


def _table(client: Client, places: Sequence[Place], cells: dict[str, Comparison | None]) -> list[str]:
    """Return a line per kind of env and a column per number of envs, as Markdown.

    A "p" marks ratios to the class with worker processes. A cell that was not measured is "-".
    """
    counts = sorted({num_envs for _, num_envs in places})
    lines = [f"| {client.framework} | {' | '.join(map(str, counts))} |", "|---" + "|--:" * len(counts) + "|"]
    for name in dict.fromkeys(name for name, _ in places):
        for part in (_FIRST, "") if KINDS[name].sleeps else ("",):
            titles = [_title(name, num_envs) + part for num_envs in counts]
            texts = [_text(client, cells[title]) if title in cells else "" for title in titles]
            lines.append(f"| {name}{part} | {' | '.join(texts)} |")
    return lines


def _text(client: Client, cell: Comparison | None) -> str:
    if cell is None:
        return "-"
    return f"{cell.quartiles[1]:.2f}{' p' if cell.theirs == client.processes else ''}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.never_slower",
        description="Compare vecenv with the better class of each framework, with default settings.",
    )
    add = parser.add_argument
    add("--face", action="append", metavar="PART", help="only frameworks whose name contains PART")
    kinds = f"measure this kind of env only; may be repeated: {' '.join(KINDS)}"
    add("--row", action="append", choices=KINDS, metavar="KIND", help=kinds)
    counts = f"measure this number of envs only; may be repeated: {' '.join(map(str, _NUM_ENVS))}"
    add("--envs", action="append", type=int, choices=_NUM_ENVS, metavar="N", help=counts)
    add("--busy", type=natural, default=0, metavar="N", help="run N busy loops of other programs (default: 0)")
    return parse_measuring(parser)


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.never_slower", main))
