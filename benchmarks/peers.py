"""`python -m benchmarks.peers`: the same envs in vecenv and in the libraries people come from, alternately in one run.

    round 1: plain loop | ceiling | each peer that is installed     round 2: the same     medians of ratios

All are built before the first window. Each one is a process of its own (`peer_process`), which is stopped while the
others are measured. Peers that are not installed are listed with the command that installs them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peer_modes import PEERS, Peer, Task
from benchmarks.peer_process import open_peers
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import check_file, count, seconds
from vecenv.envs.toys import BusyEnv
from vecenv.measurement import machine, measure, report
from vecenv.measurement.measure import Mode, Result, Window
from vecenv.measurement.target import check_env, registered_env

#: The tasks of a run without --env, by the name for --row.
_TASKS = {
    "cartpole": Task("CartPole-v1, 64 envs", registered_env("CartPole-v1"), 64, "CartPole-v1"),
    "busy": Task("busy 50 us, 16 envs", functools.partial(BusyEnv, busy_us=50), 16),
    "pong": Task("ALE/Pong-v5 84x84x4, 8 envs", registered_env("ALE/Pong-v5", atari=True), 8, "Pong-v5"),
}


def main() -> None:
    """Measure each row of the table; print it, and at the end all ratios to the plain loop as Markdown."""
    options = _parse()
    if options.json:
        check_file("--json", options.json)
    tasks = _tasks(options)
    chosen = [peer for peer in PEERS if _is_chosen(peer, options)]
    peers = list(find_installed(chosen, options))
    about = machine.describe_machine()
    versions: dict[str, None] = {}  # keys in the order of the peers
    found: dict[str, list[Result]] = {}
    for task in tasks:
        report.print_text(f"{task.title}; {about['processor']}, {about['usable_cores']} usable cores")
        found[task.title] = _measure(task, peers, options, versions)
        report.print_table(found[task.title])
    print(*_markdown(found, about, list(versions)), sep="\n")
    if options.json:
        rows = {title: [result.as_dict() for result in results] for title, results in found.items()}
        options.json.write_text(report.results_json(vars(options), {**about, "peers": list(versions)}, [], rows=rows))


def _tasks(options: argparse.Namespace) -> list[Task]:
    if options.env:
        env_fn = check_env(registered_env(options.env, atari=options.atari), options.env)
        return [Task(f"{options.env}, {options.envs} envs", env_fn, options.envs)]
    return [_TASKS[name]._replace(env_fn=check_env(_TASKS[name].env_fn, name)) for name in options.row or _TASKS]


def _is_chosen(peer: Peer, options: argparse.Namespace) -> bool:
    return not options.peer or any(part.lower() in peer.name.lower() for part in options.peer)


def find_installed(peers: Sequence[Peer], options: argparse.Namespace) -> Iterator[tuple[Peer, str]]:
    """Yield the peers that can be measured, each with its interpreter; print those that are missing.

    Args:
        peers: the peers that are wanted.
        options: `python` contains interpreters by module.
    """
    missing: dict[str, str] = {}
    for peer in peers:
        python = options.python.get(peer.module)
        if python or importlib.util.find_spec(peer.module):
            yield peer, python or sys.executable
        else:
            missing[peer.module] = peer.install
    for module, install in missing.items():
        report.print_text(f"{module} is not installed, its rows are left out: {install}")


def _measure(
    task: Task, peers: Sequence[tuple[Peer, str]], options: argparse.Namespace, versions: dict[str, None]
) -> list[Result]:
    windows: dict[str, list[Window]] = {}
    with contextlib.ExitStack() as stack:
        modes: list[Mode] = []
        for build in (measure.plain_loop, measure.ceiling_loops):
            modes.append(build(task.env_fns))
            stack.callback(modes[-1].close)
        processes = open_peers(peers, task, stack)
        modes += processes
        versions |= dict.fromkeys(mode.version for mode in processes)
        with report.progress(len(modes) * options.rounds) as advance:
            for name, window in measure.interleave(modes, options.seconds / options.rounds, options.rounds):
                windows.setdefault(name, []).append(window)
                advance(name)
    return measure.summarise(modes, windows)


def _markdown(found: dict[str, list[Result]], about: dict[str, Any], versions: Sequence[str]) -> list[str]:
    """Return a table of the ratios to the plain loop, one line per mode, and a line about the machine."""
    ratios = {title: {result.name: result.ratio_to_plain for result in results} for title, results in found.items()}
    names = dict.fromkeys(name for of_modes in ratios.values() for name in of_modes if name != "plain loop")
    lines = [f"| x plain loop | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    for name in names:
        cells = [of_modes.get(name) for of_modes in ratios.values()]
        lines.append(f"| {name} | " + " | ".join("-" if cell is None else f"{cell:.2f}" for cell in cells) + " |")
    return [*lines, "", machine_line(about, versions)]


def machine_line(about: dict[str, Any], versions: Sequence[str]) -> str:
    """Return a line with the machine and the versions of the libraries, for below a table."""
    release = about["system"].partition("-")[0]
    system = f"{about['processor']}, {about['usable_cores']} usable cores, {release}, Python {about['python']}"
    return f"{system}; {', '.join(versions)}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Compare vecenv with its peers.")
    parser.add_argument("--row", action="append", choices=_TASKS, help="measure this row only; may be repeated")
    parser.add_argument("--env", help="registered env to measure instead of the rows")
    parser.add_argument("--atari", action="store_true", help="of --env: 84x84 grey frames in stacks of 4")
    parser.add_argument("--envs", type=count, default=64, help="of --env: number of envs (default: %(default)s)")
    parser.add_argument("--peer", action="append", metavar="PART", help="only modes whose name contains PART")
    return parse_measuring(parser)


def parse_measuring(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the options that say how modes of several libraries are measured, and parse the command line."""
    parser.add_argument(
        "--python",
        action="append",
        type=_module_and_file,
        default=[],
        metavar="MODULE=FILE",
        help="another interpreter for the modes of a library, such as ding=.venv-ding/bin/python",
    )
    parser.add_argument("--seconds", type=seconds, default=5.0, help="time for each mode (default: %(default)s)")
    parser.add_argument(
        "--rounds", "--repeats", type=count, default=10, help="windows per mode, by turns (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number")
    options = parser.parse_args()
    options.python = dict(options.python)
    return options


def _module_and_file(text: str) -> tuple[str, str]:
    """Read an option MODULE=FILE."""
    module, equals, file = text.partition("=")
    if not equals or not Path(file).is_file():
        raise argparse.ArgumentTypeError(f"expected MODULE=FILE, with an interpreter as FILE, got {text!r}")
    return module, file


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.peers", main))
