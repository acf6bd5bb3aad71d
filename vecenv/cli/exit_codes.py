"""Exit codes: a command ends with at most one line of output and an exit code, also after an error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

from vecenv.errors import ConfigError, DependencyError, VecenvError

__all__ = ["USAGE_ERROR", "run_command", "one_line"]

_FAILED, USAGE_ERROR, _INTERRUPTED, _PIPE_CLOSED = 1, 2, 130, 141


def run_command(where: str, command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code; None counts as 0.

    Args:
        where: how lines on standard error begin.

    Raises:
        SystemExit: as the command does.
        Exception: an exception that is neither an error of vecenv nor one of standard output.
    """
    try:
        try:
            exit_code = _run(where, command)
        except SystemExit:  # of a parser that has printed its help
            _flush()
            raise
        _flush()  # not at the interpreter's exit, where errors cannot be handled
        return exit_code
    except OSError as error:
        if error.filename is not None or not _is_output_blocked():
            raise
        _discard_output()
        if isinstance(error, BrokenPipeError):
            return _PIPE_CLOSED  # as of a program that SIGPIPE ends, as by `| head`
        return _fail(where, f"standard output cannot be written: {error.strerror}", _FAILED)


def one_line(message: object) -> str:
    """Return a message without line breaks."""
    return " ".join(str(message).split())


def _run(where: str, command: Callable[[], int | None]) -> int:
    try:
        return command() or 0
    except KeyboardInterrupt:
        return _fail(where, "interrupted", _INTERRUPTED)
    except (ConfigError, DependencyError) as error:
        return _fail(where, error, USAGE_ERROR)
    except VecenvError as error:
        return _fail(where, error, _FAILED)


def _fail(where: str, message: object, exit_code: int) -> int:
    print(f"{where}: {one_line(message)}", file=sys.stderr)
    return exit_code


def _flush() -> None:
    if sys.stdout is not None:  # it is None where the descriptor was closed from the start
        sys.stdout.flush()


def _is_output_blocked() -> bool:
    """Return whether standard output is blocked, since an OSError may have another cause; else write a line break.

    Output that could not be written is not kept, so a flush alone does not fail.
    """
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _discard_output() -> None:
    """Have what standard output still holds go nowhere, so that the interpreter's last flush has nothing to say."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
