"""`vecenv replay`: run the episode of a reproducer file again, in this process, until it fails."""

from __future__ import annotations

import argparse
import bdb
import faulthandler
import pdb  # what --pdb asks for
import sys
from pathlib import Path
from typing import Any

from vecenv.cli.options import AddArgument, natural
from vecenv.errors import ConfigError

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

_QUIT = 1
#: Modules between a command and the code of an env: the debugger does not stop in them.
_SKIP = (
    "vecenv.core.*", "vecenv.cli.*", "vecenv.envs.adapt", "vecenv.gymnasium_api.replaying",
    "vecenv.gymnasium_api.first_seeds", "vecenv.gymnasium_api.reset_options", "inspect",
    "gymnasium.core", "gymnasium.wrappers.*", "gymnasium.utils.*",
)  # fmt: skip

HELP = "run a failed episode again"
DESCRIPTION = (
    "Run the episode of a reproducer file again, in this process: if the env crashed, this crashes. "
    "The file is a pickle and can run any code; use it on your own files."
)


def add_arguments(add: AddArgument) -> None:
    add("file", metavar="FILE", type=Path, help="as named by the error or the warning")
    add("--until", type=natural, metavar="COMMAND", help="stop before the command with this number")
    add("--pdb", action="store_true", help="debug the env from its last command on, or from the one of --until")
    add("--quiet", action="store_true", help="print no line per command")


def run(options: argparse.Namespace) -> int:
    """Repeat the episode; return exit code 0 if it did not fail this time, 1 if the debugger was quit."""
    from vecenv.core.recovery import reproducer

    try:
        episode = reproducer.load(options.file)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error), key="file") from error
    print(f"env {episode.first_env_id + episode.env_id}: {episode.why.partition(chr(10))[0]}")
    print(f"{len(episode.entries)} commands, the last is {episode.step_id}; written with {_versions(episode.versions)}")
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


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _line(event: Any) -> str:
    from vecenv.core.recovery.reproducer import shorten

    end = " terminated" * event.terminated + " truncated" * event.truncated
    if event.op == "step":
        return f"{event.step_id}: step, action {shorten(event.action)}, reward {event.reward}{end}"
    if event.op == "error":
        return f"{event.step_id}: raised {event.info['error']}"
    return f"{event.step_id}: {event.op}" + (f", seed {event.seed}" if event.seed is not None else "")
