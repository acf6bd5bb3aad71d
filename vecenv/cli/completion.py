"""`vecenv completion`: prints the script with which a shell completes commands, options and names of files."""

from __future__ import annotations

import argparse

from vecenv.cli.parser import build_parser
from vecenv.errors import require

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Print the script for a shell.

    Raises:
        DependencyError: `shtab` is not installed.
    """
    shtab = require("shtab", "cli")
    parser, commands = build_parser()
    for command in commands.values():
        for action in command._actions:  # argparse has no public list of them
            if str(action.metavar).startswith("FILE"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0
