"""JsonOutput: the option `--json FILE` of a command that also prints its results; `-` is standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TextIO

from vecenv.cli.result_file import ResultFile

__all__ = ["STDOUT", "JsonOutput"]

#: The value of the option that means standard output.
STDOUT = "-"


class JsonOutput:
    """Writes and prints the results of a command. To be used with `with`; arguments are those of `ResultFile`.

    Attributes:
        text_file: where a command prints: standard error if the JSON goes to standard output, else standard output.
    """

    def __init__(self, path: str | None, *, overwrite: bool) -> None:
        self._is_stdout = path == STDOUT
        has_file = path is not None and not self._is_stdout
        self._file = ResultFile("--json", Path(str(path)), overwrite=overwrite) if has_file else None
        self.text_file: TextIO = sys.stderr if self._is_stdout else sys.stdout

    def __enter__(self) -> JsonOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, make_text: Callable[[], str], show: Callable[[], None]) -> None:
        """Write the JSON of `make_text` to the file, then print by `show`; both are tried, as either may be full.

        Raises:
            ConfigError: the file cannot be written.
            OSError: the output cannot be written.
        """
        try:
            if self._file is not None:
                text = make_text()
                self._file.write(lambda file: file.write(text.encode()))
        finally:
            show()
        if self._is_stdout:
            print(make_text(), end="", flush=True)
