"""`vecenv bench`: step one env in every mode, in turns, print a table and a verdict.

Only the options are here; the env is built in `target`, the time is measured in `measure`, the table is printed in
`report`, the last sentence is made in `verdict`. These modules are imported when the command runs, so that
`vecenv --version` and wrong options answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vecenv.cli.exit_codes import wrap_foreign_errors
from vecenv.cli.json_output import JsonOutput
from vecenv.cli.options import AddArgument, add_shared, bounded, check_workers, count, seconds
from vecenv.cli.ray_connection import connected_ray
from vecenv.cli.result_file import ResultFile
from vecenv.errors import ConfigError, require

if TYPE_CHECKING:
    from vecenv.envs.factory import EnvFactory
    from vecenv.measurement.measure import Mode, Window
    from vecenv.report import Report
    from vecenv.statistics import Statistics

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

_MODES = ("plain", "ceiling", "gymnasium", "sync", "async")
_PLOT_SUFFIXES = (".png", ".svg", ".pdf")

_DEFAULT_ENV = "CartPole-v1"
_MAX_ROUNDS = 10_000
_MAX_SECONDS = 86_400.0
# A shorter window holds too few steps for a rate.
_MIN_WINDOW_SECONDS = 0.001

HELP = "steps per second of an env: plain loop, Gymnasium's AsyncVectorEnv, vecenv"
DESCRIPTION = (
    "Step an env in a plain loop, in gymnasium.vector.AsyncVectorEnv and in vecenv, in "
    "windows that take turns, and compare medians. The ceiling is one plain loop per usable core, all at once. "
    "For one mode of vecenv alone, also print its times, and one line per cause of lost time: the measured number, "
    "the setting to change, and the gain to expect."
)


def add_arguments(add: AddArgument) -> None:
    about = f"registered id, or module:factory, a function or class that builds the env (default: {_DEFAULT_ENV})"
    add_shared(add, "env", nargs="?", help=about)
    add("--env", dest="env_option", metavar="ENV", help="old form of ENV")
    add_shared(add, "--envs", "--workers")
    about = "answers that the async mode waits for (default: half the envs)"
    add("--wait-num", type=count, metavar="K", help=about)
    add("--seconds", type=seconds, default=3.0, metavar="S", help="time for each mode (default: %(default)s)")
    rounds = bounded(1, _MAX_ROUNDS)
    add("--rounds", type=rounds, default=5, metavar="R", help="windows per mode, in turns (default: %(default)s)")
    add_shared(add, "--env-kwarg", "--policy-ms")
    add("--atari", action="store_true", help="84x84 grey frames in stacks of 4, of a registered id")
    add("--copy", action=argparse.BooleanOptionalAction, default=True, help="hand out copies (default) or views")
    add("--skip", action="append", choices=_MODES, default=[], help="leave a mode out; repeatable")
    add("--only", choices=_MODES, help="leave all other modes out")
    add(
        "--ray",
        action="store_true",
        help="measure backend='ray', too, on the cluster that `ray.init()` joins (RAY_ADDRESS) or a local Ray, and "
        "print when to use it",
    )
    add_shared(add, "--json")
    add("--plot", metavar="FILE.png", help="draw a bar chart")
    add_shared(add, "--overwrite", help="replace files of --json and --plot that exist")


def run(options: argparse.Namespace) -> int:
    """Measure, print, write; return exit code 0."""
    if options.only:
        options.skip += [mode for mode in _MODES if mode != options.only]
    if options.policy_ms:  # the loops have no policy
        options.skip += ["plain", "ceiling"]
    _check(options)
    if options.ray:
        require("ray", "ray")
    if options.plot is not None:
        require("matplotlib", "cli")
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(JsonOutput(options.json, overwrite=options.overwrite))
        plot: ResultFile | None = None
        if options.plot is not None:
            plot = ResultFile("--plot", Path(options.plot), overwrite=options.overwrite)
            stack.callback(plot.close)
        _measure(options, output, plot)
    return 0


def _measure(options: argparse.Namespace, output: JsonOutput, plot: ResultFile | None) -> None:
    from vecenv.cli.ray_rule import ray_rule
    from vecenv.cli.verdict import verdict
    from vecenv.measurement import machine, measure, report

    env_name = options.env or options.env_option or _DEFAULT_ENV
    kwargs = dict(options.env_kwarg)
    factory = _find_env(env_name, kwargs, atari=options.atari)
    settings = {
        "env": env_name,
        "env_kwargs": kwargs,
        "atari": options.atari,
        "envs": options.envs,
        "workers": options.workers or min(options.envs, machine.usable_cores()),
        "wait_num": options.wait_num or max(1, options.envs // 2),
        "copy": options.copy,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "policy_ms": options.policy_ms,
        "ray": options.ray,
    }
    about = machine.describe_machine()
    text_file = output.text_file
    report.print_header(settings, about, text_file)
    skip = list(options.skip)
    if "gymnasium" not in skip and options.envs > measure.gymnasium_limit():
        skip.append("gymnasium")
        report.print_text(
            f"Gymnasium's AsyncVectorEnv is left out: it would start {options.envs:,} processes, one per env, and the "
            f"limit here is {measure.gymnasium_limit():,} (see also: ulimit -n).",
            text_file,
        )
    windows: dict[str, list[Window]] = {}
    found: tuple[Statistics, Report] | None = None
    with wrap_foreign_errors(), contextlib.ExitStack() as stack:
        modes = _open_modes(stack, factory, settings, skip)
        window_seconds = options.seconds / options.rounds
        steal = machine.StealMeter()
        with report.progress(len(modes) * options.rounds) as advance:
            for name, window in measure.interleave(modes, window_seconds, options.rounds):
                windows.setdefault(name, []).append(window)
                advance(name)
        about["stolen"] = steal.share()
        if len(modes) == 1 and modes[0].implementation:  # else the caller's time contains the other modes
            envs = modes[0].envs
            found = (envs.statistics(), envs.report())
    results = measure.summarise(modes, windows)
    sentence, rule = verdict(results, settings), ray_rule(results, settings)
    more: dict[str, Any] = {"verdict": sentence, "ray_rule": rule}
    if found is not None:
        statistics, verdicts = found
        more["statistics"] = {"choice": statistics.choice, **statistics.as_dict()}
        more.update(verdicts.as_dict())
    text = report.results_json(settings, about, results, **more)

    def show() -> None:
        try:
            if plot is not None:  # first, since the output may be closed
                figure = report.draw_plot(settings, about, results)
                kind = Path(options.plot).suffix.lower().removeprefix(".")
                plot.write(functools.partial(figure.savefig, format=kind, dpi=120))
        finally:
            report.print_table(results, about["stolen"], text_file)
            if found is not None:
                print(statistics, "", sep="\n", file=text_file, flush=True)
                for line in str(verdicts).splitlines():
                    report.print_text(line, text_file)
            report.print_text(sentence, text_file)
            if rule:
                report.print_text(rule, text_file)

    output.write(lambda: text, show)


def _find_env(env_name: str, kwargs: dict[str, Any], *, atari: bool) -> EnvFactory:
    """Find the env's constructor and try it; envs with old calls get Gymnasium's, so that every mode can step them."""
    from vecenv.envs.adapt import adapt_and_build
    from vecenv.envs.factory import EnvFactory
    from vecenv.measurement.env_names import find_env_fn
    from vecenv.measurement.target import check_env

    factory = check_env(find_env_fn(env_name, kwargs, checks_results=True, atari=atari), env_name)
    return EnvFactory(factory, wrappers=(adapt_and_build,))


def _open_modes(
    stack: contextlib.ExitStack, factory: EnvFactory, settings: dict[str, Any], skip: Sequence[str]
) -> list[Mode]:
    from vecenv.measurement import measure

    env_fns = [factory] * settings["envs"]
    own = {"num_workers": settings["workers"], "copy": settings["copy"]}
    policy = measure.BusyPolicy(settings["policy_ms"], settings["envs"])
    openers: dict[str, Callable[[], Mode]] = {
        "plain": lambda: measure.plain_loop(env_fns),
        "ceiling": lambda: measure.ceiling_loops(env_fns),
        "gymnasium": lambda: measure.gymnasium_async(env_fns, copy=settings["copy"]),
        "sync": lambda: measure.vecenv_sync(env_fns, **own),
        "async": lambda: measure.vecenv_async(env_fns, wait_num=settings["wait_num"], **own),
    }
    if settings["ray"]:  # the last one: Gymnasium forks, and Ray has threads
        openers["ray"] = lambda: _open_ray(stack, env_fns, settings)
    modes = []
    for name, opener in openers.items():
        if name not in skip:
            modes.append(opener())
            stack.callback(modes[-1].close)
            if settings["policy_ms"]:
                modes[-1].policy = policy
    return modes


def _open_ray(stack: contextlib.ExitStack, env_fns: Sequence[EnvFactory], settings: dict[str, Any]) -> Mode:
    """Connect to a cluster for the time of the stack, and build the envs there; add its shards to the settings."""
    from vecenv.measurement.measure import vecenv_sync

    stack.enter_context(connected_ray())
    mode = vecenv_sync(env_fns, name="vecenv ray", backend="ray", copy=settings["copy"])
    settings.update(ray_shards=len(mode.envs.shards()), ray_workers=mode.envs.statistics()["num_workers"])
    return mode


def _check(options: argparse.Namespace) -> None:
    if options.wait_num and options.wait_num > options.envs:
        raise ConfigError(f"--wait-num {options.wait_num} is more than --envs {options.envs}")
    check_workers(options)
    if set(options.skip) == set(_MODES) and not options.ray:
        raise ConfigError("every mode is skipped; nothing is left to measure")
    if options.seconds > _MAX_SECONDS:
        raise ConfigError(f"--seconds {options.seconds:g}: expected at most {_MAX_SECONDS:g}, which is a day")
    if options.seconds / options.rounds < _MIN_WINDOW_SECONDS:
        raise ConfigError(
            f"--seconds {options.seconds:g} in --rounds {options.rounds}: expected windows of at least "
            f"{_MIN_WINDOW_SECONDS} s, got {options.seconds / options.rounds:.2g} s"
        )
    if options.env is not None and options.env_option is not None:
        raise ConfigError(f"ENV was given twice: {options.env}, and --env {options.env_option}; leave --env out")
    if options.json and options.plot and Path(options.json).resolve() == Path(options.plot).resolve():
        raise ConfigError(f"--json and --plot both name {options.plot}; the second would overwrite the first")
    if options.plot is not None and Path(options.plot).suffix.lower() not in _PLOT_SUFFIXES:
        raise ConfigError(f"--plot {options.plot}: expected a name ending in {', '.join(_PLOT_SUFFIXES)}")
