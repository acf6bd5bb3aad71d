"""Files that a command writes at the end of a long run: made before it, renamed after it."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

from vecenv.cli.arguments import STDOUT
from vecenv.cli.options import check_file
from vecenv.errors import ConfigError

__all__ = ["JsonOutput", "ResultFile"]


class ResultFile(contextlib.AbstractContextManager["ResultFile"]):
    """A file that appears complete or not at all.

    The content goes to a temporary file in the same folder, which is made at once: that proves the folder writable.
    """

    def __init__(self, flag: str, path: Path, *, overwrite: bool = False) -> None:
        """Make the temporary file of the option `flag`; a symbolic link is followed.

        ConfigError is raised if the file exists without `overwrite`, is not a regular file, or cannot be made.
        """
        check_file(flag, path)
        if path.exists() and not path.is_file():
            raise ConfigError(f"{flag} {path}: is not a regular file")
        if path.exists() and not overwrite:
            raise ConfigError(f"{flag} {path}: exists; choose another name, or add --overwrite")
        self._name = f"{flag} {path}"
        self._path = path.resolve()
        self._temporary = self._path.with_name(f".{self._path.name[:100]}.{secrets.token_hex(4)}.tmp")
        try:
            os.close(os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            raise ConfigError(f"{self._name}: cannot be written: {error.strerror}") from error

    def write(self, fill: Callable[[BinaryIO], object]) -> None:
        """Let `fill` write the content, then give the file its name; ConfigError if it cannot be written."""
        try:
            with self._temporary.open("wb") as file:
                fill(file)
            self._temporary.replace(self._path)
        except OSError as error:
            raise ConfigError(f"{self._name}: cannot be written: {error.strerror or error}") from error

    def __exit__(self, *_error: object) -> None:
        """Remove the temporary file, if `write` has not renamed it."""
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()


class JsonOutput(contextlib.ExitStack):
    """The option `--json FILE` of a command that also prints its results; arguments are those of `ResultFile`.

    Attributes:
        text_file: where a command prints: standard error if the JSON goes to standard output, else standard output.
    """

    def __init__(self, path: str | None, *, overwrite: bool) -> None:
        super().__init__()
        self._is_stdout = path == STDOUT
        self._file: ResultFile | None = None
        if path is not None and not self._is_stdout:
            self._file = self.enter_context(ResultFile("--json", Path(path), overwrite=overwrite))
        self.text_file: TextIO = sys.stderr if self._is_stdout else sys.stdout

    def write(self, make_text: Callable[[], str], show: Callable[[], None]) -> None:
        """Write the JSON of `make_text` to the file, then print by `show`; both are tried, as either may be full.

        ConfigError is raised if the file cannot be written, OSError if the output cannot.
        """
        try:
            if self._file is not None:
                text = make_text()
                self._file.write(lambda file: file.write(text.encode()))
        finally:
            show()
        if self._is_stdout:
            print(make_text(), end="", flush=True)
