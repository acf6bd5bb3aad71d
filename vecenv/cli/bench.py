"""`vecenv bench`: step one registered env in every mode, in turns, and print a table.

Only the options are here; the env is built in `target`, the time is measured in `measure`, the table is printed in
`report`. These modules are imported when the command runs, so that `vecenv --version` and wrong options answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vecenv.cli.options import check_file, count, key_value, seconds
from vecenv.errors import ConfigError, EnvError, VecenvError, locate, place_of, require

if TYPE_CHECKING:
    from vecenv.cli.measure import Mode, Window
    from vecenv.envs.factory import EnvFactory

__all__ = ["add_parser"]

_MODES = ("plain", "ceiling", "gymnasium", "sync", "async")
_PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` and its options."""
    parser = subparsers.add_parser(
        "bench",
        allow_abbrev=False,
        help="steps per second of an env: plain loop, Gymnasium's AsyncVectorEnv, vecenv",
        description="Step a registered env in a plain loop, in gymnasium.vector.AsyncVectorEnv and in vecenv, in "
        "windows that take turns, and compare medians. The ceiling is one plain loop per usable core, all at once.",
    )
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="NAME", help="registered env (default: %(default)s)")
    add("--envs", type=count, default=64, metavar="N", help="number of envs (default: %(default)s)")
    add("--workers", type=count, metavar="W", help="vecenv's worker processes (default: one per usable core)")
    add("--wait-num", type=count, metavar="K", help="answers that the async mode waits for (default: half the envs)")
    add("--seconds", type=seconds, default=3.0, metavar="S", help="time for each mode (default: %(default)s)")
    add("--rounds", type=count, default=5, metavar="R", help="windows per mode, in turns (default: %(default)s)")
    add("--env-kwarg", type=key_value, action="append", default=[], metavar="KEY=VALUE", help="repeatable")
    add("--atari", action="store_true", help="84x84 grey frames in stacks of 4")
    add("--copy", action=argparse.BooleanOptionalAction, default=True, help="hand out copies (default) or views")
    add("--skip", action="append", choices=_MODES, default=[], help="leave a mode out; repeatable")
    add("--json", type=Path, metavar="FILE", help="write every number")
    add("--plot", type=Path, metavar="FILE.png", help="draw a bar chart")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, print, write; return exit code 0.

    Raises:
        EnvError: an env raised while it was stepped or reset.
        ConfigError: options that contradict each other, an env that cannot be made, a file that cannot be written.
        DependencyError: rich, matplotlib or a package of the env is missing.
    """
    _check(options)
    require("rich", "cli")
    if options.plot:
        require("matplotlib", "cli")
    from vecenv.cli import machine, measure, report, target

    kwargs = dict(options.env_kwarg)
    factory = target.check_env(target.registered_env(options.env, kwargs, atari=options.atari))
    settings = {
        "env": options.env,
        "env_kwargs": kwargs,
        "atari": options.atari,
        "envs": options.envs,
        "workers": options.workers or min(options.envs, machine.usable_cores()),
        "wait_num": options.wait_num or max(1, options.envs // 2),
        "copy": options.copy,
        "seconds": options.seconds,
        "rounds": options.rounds,
    }
    about = machine.describe_machine()
    report.print_header(settings, about)
    windows: dict[str, list[Window]] = {}
    with _wrap_foreign_errors(), contextlib.ExitStack() as stack:
        modes = _open_modes(stack, factory, settings, options.skip)
        window_seconds = options.seconds / options.rounds
        steal = machine.StealMeter()
        with report.progress(len(modes) * options.rounds) as advance:
            for name, window in measure.interleave(modes, window_seconds, options.rounds):
                windows.setdefault(name, []).append(window)
                advance(name)
        about["stolen"] = steal.share()
    results = measure.summarise(modes, windows)
    report.print_table(results, about["stolen"])
    if options.json:
        with _file_errors("--json", options.json):
            report.write_json(options.json, settings, about, results)
    if options.plot:
        with _file_errors("--plot", options.plot):
            report.write_plot(options.plot, settings, about, results)
    return 0


def _open_modes(
    stack: contextlib.ExitStack, factory: EnvFactory, settings: dict[str, Any], skip: Sequence[str]
) -> list[Mode]:
    from vecenv.cli import measure

    env_fns = [factory] * settings["envs"]
    own = {"num_workers": settings["workers"], "copy": settings["copy"]}
    openers: dict[str, Callable[[], Mode]] = {
        "plain": lambda: measure.plain_loop(env_fns),
        "ceiling": lambda: measure.ceiling_loops(env_fns),
        "gymnasium": lambda: measure.gymnasium_async(env_fns, copy=settings["copy"]),
        "sync": lambda: measure.vecenv_sync(env_fns, **own),
        "async": lambda: measure.vecenv_async(env_fns, wait_num=settings["wait_num"], **own),
    }
    modes = []
    for name in _MODES:
        if name not in skip:
            modes.append(openers[name]())
            stack.callback(modes[-1].close)
    return modes


def _check(options: argparse.Namespace) -> None:
    if options.wait_num and options.wait_num > options.envs:
        raise ConfigError(f"--wait-num {options.wait_num} is more than --envs {options.envs}")
    if options.workers and options.workers > options.envs:
        raise ConfigError(f"--workers {options.workers} is more than --envs {options.envs}")
    if set(options.skip) == set(_MODES):
        raise ConfigError("every mode is skipped; nothing is left to measure")
    for flag, path in (("--json", options.json), ("--plot", options.plot)):
        if path is not None:
            check_file(flag, path)
    if options.json and options.plot and options.json.resolve() == options.plot.resolve():
        raise ConfigError(f"--json and --plot both name {options.plot}; the second would overwrite the first")
    if options.plot and options.plot.suffix.lower() not in _PLOT_SUFFIXES:
        raise ConfigError(f"--plot {options.plot}: expected a name ending in {', '.join(_PLOT_SUFFIXES)}")


@contextlib.contextmanager
def _wrap_foreign_errors() -> Iterator[None]:
    """Turn any exception of a mode, such as one of the env, into an error with a text of one line."""
    try:
        yield
    except (VecenvError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, too: it would end the program without a word
        failure = EnvError(f"{type(error).__name__} raised: {error}")
        raise locate(failure, **place_of(error)) from error


@contextlib.contextmanager
def _file_errors(flag: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from error
