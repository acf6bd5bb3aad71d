"""`vecenv bench`: step one env in all modes alternately, print a table and a verdict."""

from __future__ import annotations

import argparse
import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vecenv.cli.arguments import BENCH_MODES, DEFAULT_ENV
from vecenv.cli.exit_codes import wrap_foreign_errors
from vecenv.cli.options import check_workers
from vecenv.cli.result_file import JsonOutput, ResultFile
from vecenv.cli.verdict import ray_rule, verdict
from vecenv.core.advice.auto import workload_of
from vecenv.core.advice.sizing import Workload, choose_setting
from vecenv.core.options import PoolOptions
from vecenv.core.pool.backends import measure_first_env
from vecenv.core.processes.measure import Measurement
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.factory import EnvFactory
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.errors import ConfigError, VecenvError, require
from vecenv.measurement import machine, measure, report
from vecenv.measurement.env_names import find_env_fn
from vecenv.measurement.target import check_env, foreign_errors
from vecenv.statistics import Statistics, time_text

__all__ = ["choose_workers", "run"]

#: Options of the command that are settings of the run.
_NAMES = ("env", "env_kwargs", "atari", "envs", "workers", "wait_num", "copy", "seconds", "rounds", "policy_ms", "ray")
_PLOT_SUFFIXES = (".png", ".svg", ".pdf")
_MAX_SECONDS = 86_400.0
#: A shorter window holds too few steps for a rate.
_MIN_WINDOW_SECONDS = 0.001
#: A window is at least as long as this number of resets.
_RESETS = 10


def run(options: argparse.Namespace) -> int:
    """Measure, print, write; return exit code 0."""
    if options.only:
        options.skip += [mode for mode in BENCH_MODES if mode != options.only]
    if options.policy_ms:  # the loops have no policy
        options.skip += ["plain", "ceiling"]
    _check(options)
    options.env = options.env or options.env_option or DEFAULT_ENV
    options.wait_num = options.wait_num or max(1, options.envs // 2)
    with JsonOutput(options.json, overwrite=options.overwrite) as output:
        plot: ResultFile | None = None
        if options.plot is not None:
            plot = output.enter_context(ResultFile("--plot", options.plot, overwrite=options.overwrite))
        _measure(options, output, plot)
    return 0


def _measure(options: argparse.Namespace, output: JsonOutput, plot: ResultFile | None) -> None:
    env_fn = find_env_fn(options.env, options.env_kwargs, checks_results=True, atari=options.atari)
    # envs with old calls get Gymnasium's, so that every mode can step them
    factory = EnvFactory(check_env(env_fn, options.env), wrappers=(adapt_and_build,))
    about, text_file = machine.describe_machine(), output.text_file
    found = _measure_env(factory)
    options.workers = options.workers or choose_workers(found, options.envs)
    settings = {name: getattr(options, name) for name in _NAMES}
    report.print_header(settings, about, text_file)
    seconds, resets = options.seconds / options.rounds, found.resets if found.resets.num else found.first_reset
    reset_seconds = resets.means()[0] / 1e9
    if seconds < _RESETS * reset_seconds:
        seconds = _RESETS * reset_seconds
        rounds = settings["rounds"] = max(1, min(options.rounds, int(options.seconds / seconds)))
        text = f"A window takes {time_text(seconds)}, as long as {_RESETS} resets, and each mode has {rounds}."
        report.print_text(text, text_file)
    skip = list(options.skip)
    if "gymnasium" not in skip and options.envs > measure.gymnasium_limit():
        skip.append("gymnasium")
        report.print_text(
            f"Gymnasium's AsyncVectorEnv is left out: it would start {options.envs:,} processes, one per env, and the "
            f"limit here is {measure.gymnasium_limit():,} (see also: ulimit -n).",
            text_file,
        )
    windows: dict[str, list[measure.Window]] = {}
    more: dict[str, Any] = {}
    statistics: Statistics | None = None
    causes: list[str] = []
    with wrap_foreign_errors(), contextlib.ExitStack() as stack:
        modes = _open_modes(stack, factory, settings, skip)
        steal = machine.StealMeter()
        with report.progress(len(modes) * settings["rounds"]) as advance:
            for name, window in measure.interleave(modes, seconds, settings["rounds"]):
                windows.setdefault(name, []).append(window)
                advance(name)
        about["stolen"] = steal.share()
        # with other modes, the caller's time contains theirs
        if len(modes) == 1 and modes[0].implementation and modes[0].envs is not None:
            statistics, verdicts = modes[0].envs.statistics(), modes[0].envs.report()
            more = {"statistics": {"choice": statistics.choice, **statistics.as_dict()}, **verdicts.as_dict()}
            causes = str(verdicts).splitlines()
    results = measure.summarise(modes, windows)
    sentences = {"verdict": verdict(results, settings), "ray_rule": ray_rule(results, settings)}
    text = report.results_json(settings, about, results, **sentences, **more)

    def show() -> None:
        try:
            if plot is not None:  # first, since the output may be closed
                figure = report.draw_plot(settings, about, results)
                kind = options.plot.suffix.lower().removeprefix(".")
                plot.write(functools.partial(figure.savefig, format=kind, dpi=120))
        finally:
            report.print_table(results, about["stolen"], text_file)
            if statistics is not None:
                print(statistics, "", sep="\n", file=text_file, flush=True)
            for line in filter(None, [*causes, *sentences.values()]):
                report.print_text(line, text_file)

    output.write(lambda: text, show)


def _measure_env(factory: EnvFactory) -> Measurement:
    """Measure one env in a worker of its own. If it fails, the modes report that."""
    with contextlib.suppress(VecenvError), foreign_errors("the env cannot be measured"):
        return measure_first_env([factory], PoolOptions(), adapt=adapt_and_build, snapshotter=SNAPSHOTTER)
    return Measurement()


def choose_workers(found: Measurement, num_envs: int) -> int:
    """Return a worker per usable core, or more if the env waits, but not more processes than Gymnasium may have."""
    cores, workload = machine.usable_cores(), workload_of(found) or Workload(0.0, 0.0)
    most = max(cores, measure.gymnasium_limit())
    chosen = choose_setting(workload, num_envs, cores, may_thread=False)
    return min(chosen.num_workers, most)


def _open_modes(
    stack: contextlib.ExitStack, factory: EnvFactory, settings: dict[str, Any], skip: Sequence[str]
) -> list[measure.Mode]:
    env_fns = [factory] * settings["envs"]
    own = {"num_workers": settings["workers"], "copy": settings["copy"]}
    policy = measure.BusyPolicy(settings["policy_ms"], settings["envs"])
    openers: dict[str, Callable[[], measure.Mode]] = {
        "plain": lambda: measure.plain_loop(env_fns),
        "ceiling": lambda: measure.ceiling_loops(env_fns),
        "gymnasium": lambda: measure.gymnasium_async(env_fns, copy=settings["copy"]),
        "serial": lambda: measure.vecenv_serial(
            env_fns, copy=settings["copy"], policy=policy if settings["policy_ms"] else None
        ),
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


def _open_ray(stack: contextlib.ExitStack, env_fns: Sequence[Any], settings: dict[str, Any]) -> measure.Mode:
    """Connect to a cluster for the time of the stack, and build the envs there; add its shards to the settings."""
    stack.enter_context(_connected_ray())
    mode = measure.vecenv_sync(env_fns, name="vecenv ray", backend="ray", copy=settings["copy"])
    settings.update(ray_shards=len(mode.envs.shards()), ray_workers=mode.envs.statistics()["num_workers"])
    return mode


@contextlib.contextmanager
def _connected_ray() -> Iterator[None]:
    """Call `ray.init()`, which joins the cluster of RAY_ADDRESS or starts a local Ray; disconnect at the end."""
    ray = require("ray", "ray")
    is_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            raise ConfigError(f"ray.init(): {error}") from error
        if is_main_thread:  # Ray has installed a handler of its own
            signal.signal(signal.SIGTERM, handler)
        yield
    finally:
        ray.shutdown()


def _check(options: argparse.Namespace) -> None:
    if options.wait_num and options.wait_num > options.envs:
        raise ConfigError(f"--wait-num {options.wait_num} is more than --envs {options.envs}")
    check_workers(options)
    if set(options.skip) == set(BENCH_MODES) and not options.ray:
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
    if options.json and options.plot is not None and Path(options.json).resolve() == options.plot.resolve():
        raise ConfigError(f"--json and --plot both name {options.plot}; the second would overwrite the first")
    if options.plot is not None and options.plot.suffix.lower() not in _PLOT_SUFFIXES:
        raise ConfigError(f"--plot {options.plot}: expected a name ending in {', '.join(_PLOT_SUFFIXES)}")
    if options.ray:
        require("ray", "ray")
    if options.plot is not None:
        require("matplotlib", "cli")
