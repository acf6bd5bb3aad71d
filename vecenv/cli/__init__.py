"""Command line: parses `vecenv <command> ...` and turns errors into one line and an exit code.

A command is a module of this package with a function `run(options)`, which returns an exit code, and an entry of
`arguments.COMMANDS`. Its module is imported when it runs, so that `vecenv --version` and wrong options answer at once.

Exit codes: 0 done, 1 the run failed, 2 the request made no sense or something is not installed, 130 interrupted, 141
the output was closed, 129 and 143 ended by SIGHUP and SIGTERM.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Sequence

from vecenv import __version__
from vecenv.cli.arguments import COMMANDS
from vecenv.cli.exit_codes import run_command
from vecenv.cli.parser import build_parser
from vecenv.values.checks import nearest

__all__ = ["main"]

#: Earlier names of commands, which work until the next release -> the words that replace them.
_MOVED = {"profile": ("bench", "--only", "sync", "--rounds", "1", "--seconds", "5")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` are the words after the program's name (None: of this process).

    SystemExit is raised for `--help` and options that do not parse.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    name = _MOVED.get(words[0], words)[0] if words else ""
    return run_command(f"vecenv {name}" if name in COMMANDS else "vecenv", functools.partial(_main, words))


def _main(words: list[str]) -> int:
    parser, commands = build_parser()
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
