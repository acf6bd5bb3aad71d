"""`python -m benchmarks.peers`: the same envs in vecenv and in the libraries people come from, in turns, in one run."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.modes import ManagerMode, SB3VecEnvMode, StableBaselines3Mode
from vecenv.cli import machine, measure, report
from vecenv.cli.exit_codes import run_command
from vecenv.cli.measure import Mode, Window
from vecenv.cli.options import check_file, count, seconds
from vecenv.cli.target import check_env, registered_env
from vecenv.envs.factory import EnvFactory


def main() -> None:
    """Measure, print the table and how many times faster vecenv is than each peer."""
    options = _parse()
    if options.json:
        check_file("--json", options.json)
    settings = {
        "env": options.env,
        "env_kwargs": {},
        "atari": options.atari,
        "envs": options.envs,
        "workers": min(options.envs, machine.usable_cores()),
        "wait_num": max(1, options.envs // 2),
        "copy": True,
        "seconds": options.seconds,
        "rounds": options.rounds,
    }
    about = machine.describe_machine()
    report.print_header(settings, about)
    windows: dict[str, list[Window]] = {}
    with contextlib.ExitStack() as stack:
        modes = []
        for opener in _openers(check_env(registered_env(options.env, atari=options.atari), options.env), options.envs):
            modes.append(opener())
            stack.callback(modes[-1].close)
        with report.progress(len(modes) * options.rounds) as advance:
            for name, window in measure.interleave(modes, options.seconds / options.rounds, options.rounds):
                windows.setdefault(name, []).append(window)
                advance(name)
    results = measure.summarise(modes, windows)
    report.print_table(results)
    _print_ratios(windows)
    if options.json:
        options.json.write_text(report.json_text(settings, about, results))


def _openers(factory: EnvFactory, num_envs: int) -> list[Callable[[], Mode]]:
    env_fns = [factory] * num_envs
    openers: list[Callable[[], Mode]] = [
        lambda: measure.plain_loop(env_fns),
        lambda: measure.ceiling_loops(env_fns),
        lambda: measure.gymnasium_async(env_fns),
        lambda: measure.vecenv_sync(env_fns),
        lambda: measure.vecenv_async(env_fns, wait_num=max(1, num_envs // 2)),
        lambda: ManagerMode(env_fns),
    ]
    if importlib.util.find_spec("stable_baselines3"):
        openers.insert(0, lambda: StableBaselines3Mode(env_fns))
        openers.append(lambda: SB3VecEnvMode(env_fns))
    else:
        print('stable_baselines3 is not installed, its rows are left out: pip install "vecenv[sb3]"')
    return openers


def _print_ratios(windows: dict[str, list[Window]]) -> None:
    ours = [name for name in windows if name.startswith("vecenv")]
    peers = [name for name in windows if name not in ours and name not in ("plain loop", "ceiling")]
    for name in ours:
        for peer in peers:
            pairs = zip(windows[name], windows[peer], strict=True)
            ratio = statistics.median(own.rate / other.rate for own, other in pairs)
            print(f"{name} : {peer} = {ratio:.1f}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Compare vecenv with its peers.")
    parser.add_argument("--env", default="CartPole-v1", help="registered env (default: %(default)s)")
    parser.add_argument("--atari", action="store_true", help="84x84 grey frames in stacks of 4")
    parser.add_argument("--envs", type=count, default=64, help="number of envs (default: %(default)s)")
    parser.add_argument("--seconds", type=seconds, default=5.0, help="time for each mode (default: %(default)s)")
    parser.add_argument("--rounds", type=count, default=5, help="windows per mode, in turns (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.peers", main))
