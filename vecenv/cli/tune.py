"""`vecenv tune`: try settings of a vector env for an env, print a table and the call to paste."""

from __future__ import annotations

import argparse

from vecenv.cli.result_file import JsonOutput
from vecenv.measurement import machine, report
from vecenv.tuning.search import tune

__all__ = ["run"]

_SETTINGS = ("env", "envs", "env_kwargs", "policy_ms", "seconds", "lockstep", "options")


def run(options: argparse.Namespace) -> int:
    """Search, print, write; return exit code 0."""
    with JsonOutput(options.json, overwrite=options.overwrite) as output:
        steal = machine.StealMeter()
        settings = {name: getattr(options, name) for name in _SETTINGS}
        result = tune(num_envs=options.envs, **{name: value for name, value in settings.items() if name != "envs"})
        about = {**machine.describe_machine(), "stolen": steal.share()}
        more = result.as_dict()
        del more["candidates"]  # the results
        text = report.results_json(settings, about, result.candidates, **more)
        output.write(
            lambda: text,
            lambda: print(result.text(report.width_of(output.text_file)), file=output.text_file, flush=True),
        )
    return 0
