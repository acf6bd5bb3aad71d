"""Exit codes: a command ends with at most one line of output and an exit code, also after an error or a signal."""

from __future__ import annotations

import codecs
import contextlib
import io
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from vecenv.errors import ConfigError, DependencyError, EnvError, VecenvError, locate, place_of

__all__ = ["USAGE_ERROR", "run_command", "one_line", "wrap_foreign_errors"]

_FAILED, USAGE_ERROR, _INTERRUPTED, _PIPE_CLOSED = 1, 2, 130, 141
_SIGNAL_BASE = 128  # a shell's exit code of a program that a signal ended, less the signal's number
# A further signal within this time is ignored, since it would interrupt the closing of envs; `timeout` sends two.
_CLOSING_SECONDS = 10.0
_ERRORS = "vecenv.readable"  # the name of a handler of encoding errors
_DRAWN_IN_ASCII = str.maketrans("█─", "#-")  # bars of histograms, lines of tables


class _Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP. Its base is Ctrl-C's exception, so that code which passes that one on passes this one on."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def run_command(where: str, command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code; None counts as 0.

    SIGTERM and SIGHUP end the command as Ctrl-C does: it closes its envs, ends its processes and removes its
    temporary files. A signal that the caller handles or ignores (`nohup`) keeps its meaning.

    SystemExit and exceptions that are neither errors of vecenv nor of standard output are raised.
    """
    codecs.register_error(_ERRORS, _encode_readably)
    with _usable_streams():
        try:
            try:
                with _termination_raised():
                    exit_code = _run(where, command)
            except SystemExit:  # the parser has printed its help
                sys.stdout.flush()
                raise
            sys.stdout.flush()  # errors at the interpreter's exit cannot be handled
            return exit_code
        except OSError as error:
            if error.filename is not None or not _is_output_blocked():
                raise
            _discard_output()
            if isinstance(error, BrokenPipeError):
                return _PIPE_CLOSED  # a shell gives this code to a program that SIGPIPE ends
            return _fail(where, f"standard output cannot be written: {error.strerror}", _FAILED)


def one_line(message: object) -> str:
    return " ".join(str(message).split())


@contextlib.contextmanager
def wrap_foreign_errors(policy_name: str = "") -> Iterator[None]:
    """Turn any exception of an env, or of the named policy, into an `EnvError` with a text of one line."""
    try:
        yield
    except (VecenvError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, too: it would end the program without a word
        text, place = f"{type(error).__name__} raised: {error}", place_of(error)
        if policy_name and not place:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = f"policy {policy_name}: {text} ({frame.filename}:{frame.lineno})"
        raise locate(EnvError(text), **place) from error


def _run(where: str, command: Callable[[], int | None]) -> int:
    try:
        return command() or 0
    except _Terminated as error:
        name = signal.Signals(error.signal_number).name
        return _fail(where, f"ended by {name}", _SIGNAL_BASE + error.signal_number)
    except KeyboardInterrupt:
        return _fail(where, "interrupted", _INTERRUPTED)
    except (ConfigError, DependencyError) as error:
        return _fail(where, error, USAGE_ERROR)
    except VecenvError as error:
        return _fail(where, error, _FAILED)


def _fail(where: str, message: object, exit_code: int) -> int:
    with contextlib.suppress(OSError):  # the terminal is gone
        print(f"{where}: {one_line(message)}", file=sys.stderr)
    return exit_code


@contextlib.contextmanager
def _termination_raised() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise `_Terminated` in the main thread, unless they have a handler or are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    owner, last = os.getpid(), -math.inf

    def handle(number: int, _frame: Any) -> None:
        if os.getpid() != owner:  # a forked process of another library, which would print a traceback
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > _CLOSING_SECONDS:
            raise _Terminated(number)

    for number in wanted:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in wanted:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _usable_streams() -> Iterator[None]:
    """Have standard output and error accept any text until the end of a command.

    The null device replaces a stream whose descriptor was closed from the start.
    """
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:
                stack.callback(setattr, sys, name, None)
                setattr(sys, name, stack.enter_context(open(os.devnull, "w")))
            elif isinstance(stream, io.TextIOWrapper):  # else the program has replaced it
                stack.callback(_set_errors, stream, stream.errors)
                _set_errors(stream, _ERRORS)
        yield


def _set_errors(stream: io.TextIOWrapper, errors: str | None) -> None:
    with contextlib.suppress(OSError, ValueError):  # it flushes, and the stream may be blocked or closed
        stream.reconfigure(errors=errors)


def _encode_readably(error: UnicodeError) -> tuple[str | bytes, int]:
    """Handle characters that a stream cannot encode: keep the bytes of file names; draw in ASCII; escape all others."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_DRAWN_IN_ASCII)
    with contextlib.suppress(UnicodeEncodeError):
        return text.encode("ascii", "surrogateescape"), error.end
    return text.encode("ascii", "backslashreplace"), error.end


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
