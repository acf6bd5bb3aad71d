"""Command line: parses `vecenv <command> ...` and turns errors into one line and an exit code.

A command is a module of this package with a function `run(options)`, which returns an exit code, and an entry of
`arguments.COMMANDS`. Its module is imported when it runs, so that `vecenv --version` and wrong options answer at once.

Exit codes: 0 done, 1 the run failed, 2 the request made no sense or something is not installed, 130 interrupted, 141
the output was closed, 129 and 143 ended by SIGHUP and SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from vecenv import __version__
from vecenv.cli.arguments import COMMANDS
from vecenv.cli.exit_codes import USAGE_ERROR, one_line, run_command
from vecenv.values.checks import nearest

__all__ = ["main"]

#: Earlier names of commands, which work until the next release -> the words that replace them.
_MOVED = {"profile": ("bench", "--only", "sync", "--rounds", "1", "--seconds", "5")}


class _Parser(argparse.ArgumentParser):
    """Prints an error in one line, without the usage text of argparse; `option_strings` has every option."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.option_strings: list[str] = []
        super().__init__(*args, **kwargs)

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        action = super().add_argument(*args, **kwargs)
        self.option_strings.extend(action.option_strings)
        return action

    def report_unknown(self, words: Sequence[str]) -> NoReturn:
        """End the program with an error about words that no argument takes, with a guess for misspelt options."""
        guesses = {word: nearest(word.partition("=")[0], self.option_strings) for word in words if word[:1] == "-"}
        found = ", ".join(guess for guess in guesses.values() if guess)
        self.error(f"unrecognized arguments: {' '.join(words)}" + (f"; did you mean {found}?" if found else ""))

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {one_line(message)}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` are the words after the program's name (None: of this process).

    SystemExit is raised for `--help` and options that do not parse.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    name = _MOVED.get(words[0], words)[0] if words else ""
    return run_command(f"vecenv {name}" if name in COMMANDS else "vecenv", functools.partial(_main, words))


def _main(words: list[str]) -> int:
    parser, commands = _build_parser()
    command = words[0] if words and not words[0].startswith("-") else None
    if command in _MOVED:
        words[:1] = _MOVED[command]
        with contextlib.suppress(OSError):  # the terminal is gone
            print(f"vecenv {command}: deprecated, use vecenv {' '.join(_MOVED[command])}", file=sys.stderr)
        command = words[0]
    if command is not None and command not in commands:
        guess = nearest(command, commands)
        expected = f"did you mean {guess}?" if guess else f"expected one of {', '.join(commands)}"
        parser.error(f"unknown command {command!r}; {expected}")
    options, unknown = parser.parse_known_args(words)
    if unknown:
        commands.get(options.command, parser).report_unknown(unknown)
    if options.version:
        print(_version())
        return 0
    if options.command is None:
        parser.print_help()
        return 0
    # otherwise SDL, with which many envs draw, closes a window at SIGTERM, and the command does not end
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")
    code: int = importlib.import_module(f"vecenv.cli.{options.command}").run(options)
    return code


def _version() -> str:
    from vecenv.core.layout.native import implementation

    work = {"native": "native: steps in C", "python": "Python: steps without C, which is slower"}
    return f"vecenv {__version__} ({work[implementation()]})"


def _build_parser() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(prog="vecenv", description="Step many reinforcement-learning environments in parallel.")
    parser.add_argument("--version", action="store_true", help="print the version, and whether steps are done in C")
    subparsers = parser.add_subparsers(dest="command", metavar="command")
    for name, command in COMMANDS.items():
        child = subparsers.add_parser(name, allow_abbrev=False, help=command.help, description=command.description)
        command.add_arguments(child.add_argument)
    return parser, dict(subparsers.choices)
