"""The parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from vecenv.cli.arguments import COMMANDS
from vecenv.cli.exit_codes import USAGE_ERROR, one_line
from vecenv.values.checks import nearest

__all__ = ["Parser", "build_parser"]


class Parser(argparse.ArgumentParser):
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


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the program, and the parsers of its commands by their names."""
    parser = Parser(prog="vecenv", description="Step many reinforcement-learning environments in parallel.")
    parser.add_argument("--version", action="store_true", help="print the version, and whether steps are done in C")
    subparsers = parser.add_subparsers(dest="command", metavar="command")
    for name, command in COMMANDS.items():
        child = subparsers.add_parser(name, allow_abbrev=False, help=command.help, description=command.description)
        command.add_arguments(child.add_argument)
    return parser, dict(subparsers.choices)
