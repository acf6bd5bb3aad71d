"""`vecenv replay`: run the episode of a reproducer file again, in this process, until it fails."""

from __future__ import annotations

import argparse
import bdb
import faulthandler
import pdb  # the option --pdb starts it
import sys
from typing import Any

from vecenv.core.recovery import reproducer
from vecenv.errors import ConfigError

__all__ = ["run"]

_QUIT = 1
#: Modules between a command and the code of an env: the debugger does not stop in them.
_SKIP = (
    "vecenv.core.*", "vecenv.cli.*", "vecenv.envs.adapt", "vecenv.gymnasium_api.replaying",
    "vecenv.gymnasium_api.first_seeds", "vecenv.gymnasium_api.reset_options", "inspect",
    "gymnasium.core", "gymnasium.wrappers.*", "gymnasium.utils.*",
)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Repeat the episode; return exit code 0 if it did not fail this time, 1 if the debugger was quit."""
    try:
        episode = reproducer.load(options.file)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error), key="file") from error
    versions = ", ".join(f"{name} {version}" for name, version in episode.versions.items())
    print(f"env {episode.first_env_id + episode.env_id}: {episode.why.partition(chr(10))[0]}")
    print(f"{len(episode.entries)} commands, the last is {episode.step_id}; written with {versions}")
    sys.stdout.flush()
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # where in the env C code ends this process
    stop = episode.step_id if options.pdb and options.until is None else options.until
    pause = pdb.Pdb(skip=_SKIP).set_trace if options.pdb else None
    try:
        for event in episode.run(stop, pause):
            if not options.quiet:
                print(_line(event))
                sys.stdout.flush()  # the next command may end this process
    except bdb.BdbQuit:
        return _QUIT
    if options.until is None:
        print("the episode was repeated to its end; nothing failed this time")
    return 0


def _line(event: Any) -> str:
    end = " terminated" * event.terminated + " truncated" * event.truncated
    if event.op == "step":
        return f"{event.step_id}: step, action {reproducer.shorten(event.action)}, reward {event.reward}{end}"
    if event.op == "error":
        return f"{event.step_id}: raised {event.info['error']}"
    return f"{event.step_id}: {event.op}" + (f", seed {event.seed}" if event.seed is not None else "")
