"""`vecenv profile`: step an env with the default settings; print statistics, and verdicts about lost time."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING, Any

from vecenv.cli.exit_codes import wrap_foreign_errors
from vecenv.cli.json_output import JsonOutput
from vecenv.cli.options import bounded, key_value, milliseconds, seconds
from vecenv.errors import ConfigError

if TYPE_CHECKING:
    from vecenv.report import Report
    from vecenv.statistics import Statistics
    from vecenv.vector import VectorEnv

__all__ = ["add_parser"]

_MAX_ENVS = 65_535  # of a pool
_MAX_SECONDS = 86_400.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `profile` and its options."""
    parser = subparsers.add_parser(
        "profile",
        allow_abbrev=False,
        help="why an env is slow, and which setting to change",
        description="Step envs in a VectorEnv with its default settings and random actions. Print a table of times, "
        "then one line per cause of lost time: the measured number, the setting to change, and the gain to expect.",
    )
    add = parser.add_argument
    add("env", metavar="ENV", help="registered id, or module:factory (a function or class that builds the env)")
    add("--envs", type=bounded(1, _MAX_ENVS), default=64, metavar="N", help="number of envs (default: %(default)s)")
    add("--seconds", type=seconds, default=5.0, metavar="S", help="time to step the envs (default: %(default)s)")
    about = "time in which the policy computes the actions of all envs, on one thread (default: %(default)s)"
    add("--policy-ms", type=milliseconds, default=0.0, metavar="X", help=about)
    add("--env-kwarg", type=key_value, action="append", default=[], metavar="KEY=VALUE", help="repeatable")
    add("--json", metavar="FILE", help="write every number; - is standard output, and the table goes to standard error")
    add("--overwrite", action="store_true", help="replace the file of --json if it exists")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Step, print, write; return exit code 0.

    Raises:
        EnvError: an env raised while it was stepped or reset.
        ConfigError: an option is wrong, the env cannot be made, or the file cannot be written.
        DependencyError: a package of the env is missing.
    """
    from vecenv.measurement import machine, report
    from vecenv.measurement.env_names import find_env_fn
    from vecenv.measurement.target import check_env
    from vecenv.vector import VectorEnv

    if options.seconds > _MAX_SECONDS:
        raise ConfigError(f"--seconds {options.seconds:g}: expected at most {_MAX_SECONDS:g}, which is a day")
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(JsonOutput(options.json, overwrite=options.overwrite))
        text_file = output.text_file
        kwargs = dict(options.env_kwarg)
        factory = check_env(find_env_fn(options.env, kwargs, checks_results=True), options.env)
        with wrap_foreign_errors():
            envs = stack.enter_context(VectorEnv([factory] * options.envs))
        # errors of the output are not those of the env
        report.print_text(f"{options.env}: {envs.num_envs} envs in {envs.statistics().num_workers} workers", text_file)
        with wrap_foreign_errors(), envs:
            _step(envs, options.seconds, options.policy_ms / 1e3)
            statistics, verdicts = envs.statistics(), envs.report()

        def show() -> None:
            print("", statistics, "", sep="\n", file=text_file, flush=True)
            for line in str(verdicts).splitlines():
                report.print_text(line, text_file)

        output.write(lambda: _json_text(options, machine.describe_machine(), statistics, verdicts), show)
    return 0


def _step(envs: VectorEnv, duration: float, policy_seconds: float) -> None:
    """Step all envs in lockstep until the time is up; compute for `policy_seconds` before each step."""
    from vecenv.measurement.target import action_batches

    actions = action_batches(envs.single_action_space, envs.num_envs)
    envs.reset(seed=0)
    until = time.monotonic() + duration
    while time.monotonic() < until:
        acted = time.monotonic() + policy_seconds
        while time.monotonic() < acted:
            pass
        envs.step(next(actions))


def _json_text(options: argparse.Namespace, machine: dict[str, Any], statistics: Statistics, verdicts: Report) -> str:
    from vecenv.json_text import json_text

    names = ("env", "envs", "seconds", "policy_ms")
    settings = {**{name: getattr(options, name) for name in names}, "env_kwargs": dict(options.env_kwarg)}
    found = {"choice": statistics.choice, **statistics.as_dict()}
    content = {"settings": settings, "machine": machine, "statistics": found, **verdicts.as_dict()}
    return json_text(content)
