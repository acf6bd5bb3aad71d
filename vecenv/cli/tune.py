"""`vecenv tune`: try settings of a vector env for an env, print a table and the call to paste.

Only the options are here; the search is in `tuning`, the text in `tuning.result`, imported when the command runs.
"""

from __future__ import annotations

import argparse
from typing import Any

from vecenv.cli.json_output import JsonOutput
from vecenv.cli.options import AddArgument, add_shared, key_value, seconds

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "the fastest options of VectorEnv for an env, and the call to paste"
DESCRIPTION = (
    "Step an env with different backends, workers, threads, calls and options of VectorEnv, in windows "
    "that take turns; the better half goes on with longer windows. Print a table and the call to paste."
)


def add_arguments(add: AddArgument) -> None:
    add_shared(add, "env", "--envs", "--policy-ms")
    add("--seconds", type=seconds, default=30.0, metavar="S", help="time for the search (default: %(default)s)")
    add("--lockstep", action="store_true", help="try step() only, not send() and recv()")
    add_shared(add, "--env-kwarg")
    about = "option of VectorEnv that all settings have, such as infos=all; repeatable"
    add("--option", type=key_value, action="append", default=[], metavar="KEY=VALUE", help=about)
    add_shared(add, "--json", "--overwrite")


def run(options: argparse.Namespace) -> int:
    """Search, print, write; return exit code 0."""
    from vecenv.measurement import machine, report
    from vecenv.tuning.search import tune

    with JsonOutput(options.json, overwrite=options.overwrite) as output:
        steal = machine.StealMeter()
        result = tune(
            options.env,
            options.envs,
            env_kwargs=dict(options.env_kwarg),
            policy_ms=options.policy_ms,
            seconds=options.seconds,
            lockstep=options.lockstep,
            options=dict(options.option),
        )
        about = {**machine.describe_machine(), "stolen": steal.share()}
        more = result.as_dict()
        del more["candidates"]  # the results
        text = report.results_json(_settings(options), about, result.candidates, **more)
        output.write(
            lambda: text,
            lambda: print(result.text(report.width_of(output.text_file)), file=output.text_file, flush=True),
        )
    return 0


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    names = ("env", "envs", "policy_ms", "seconds", "lockstep")
    given = {"env_kwargs": dict(options.env_kwarg), "options": dict(options.option)}
    return {**{name: getattr(options, name) for name in names}, **given}
