"""Files that a command writes at the end of a long run: made before it, renamed into place after it."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from vecenv.cli.options import check_file
from vecenv.errors import ConfigError

__all__ = ["ResultFile"]


class ResultFile:
    """A file that appears complete or not at all.

    The content goes to a temporary file in the same folder, which is made at once: that proves the folder writable.
    """

    def __init__(self, flag: str, path: Path, *, overwrite: bool = False) -> None:
        """Make the temporary file of the option `flag`; a symbolic link is followed.

        Raises:
            ConfigError: the file exists and `overwrite` is False, is not a regular file, or cannot be made.
        """
        check_file(flag, path)
        if path.exists() and not path.is_file():
            raise ConfigError(f"{flag} {path}: is not a regular file")
        if path.exists() and not overwrite:
            raise ConfigError(f"{flag} {path}: exists; choose another name, or add --overwrite")
        self._place = f"{flag} {path}"
        self._path = path.resolve()
        self._temporary = self._path.with_name(f".{self._path.name[:100]}.{secrets.token_hex(4)}.tmp")
        try:
            os.close(os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            raise ConfigError(f"{self._place}: cannot be written: {error.strerror}") from error

    def write(self, fill: Callable[[BinaryIO], object]) -> None:
        """Let `fill` write the content, then give the file its name; ConfigError if it cannot be written."""
        try:
            with self._temporary.open("wb") as file:
                fill(file)
            self._temporary.replace(self._path)
        except OSError as error:
            raise ConfigError(f"{self._place}: cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Remove the temporary file, if `write` has not renamed it."""
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()
