"""Command line: parses `vecenv <command> ...` and turns errors into one line and an exit code.

A command is a module of this package with one function `add_parser(subparsers)`, which adds its parser and
sets `run` (a function from the parsed options to an exit code) as a default on it. To add a command, write the
module and name it in `_COMMANDS`.

Exit codes: 0 done, 1 the run failed, 2 the request made no sense or something is not installed, 130 interrupted, 141
the output was closed.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Sequence
from typing import NoReturn

from vecenv import __version__
from vecenv.cli import bench, check, record, replay
from vecenv.cli.exit_codes import USAGE_ERROR, one_line, run_command

__all__ = ["main"]

_COMMANDS = (bench, check, record, replay)


class _Parser(argparse.ArgumentParser):
    """Prints an error in one line, without the usage text of argparse."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {one_line(message)}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the words after the program's name; None takes those of this process.

    Raises:
        SystemExit: for `--help`, `--version` and options that do not parse.
    """
    return run_command("vecenv", functools.partial(_main, argv))


def _main(argv: Sequence[str] | None) -> int:
    options = _build_parser().parse_args(argv)
    # else SDL, with which many envs draw, takes SIGTERM for a window to be closed, and the command goes on
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")
    return run_command(f"vecenv {options.command}", functools.partial(options.run, options))


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="vecenv", description="Step many reinforcement-learning environments in parallel.")
    parser.add_argument("--version", action="version", version=f"vecenv {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    for command in _COMMANDS:
        command.add_parser(subparsers)
    return parser
