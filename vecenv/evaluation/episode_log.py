"""EpisodeLog: a file with the results of episodes, from which an evaluation continues after its program was killed.

    line 1          {"vecenv episodes": 1, "env": "CartPole-v1", "max_steps": null, ...}
    other lines     {"policy": 0, "seed": 7, "result": "gASV..."}    pickles of `EpisodeResult`, as base64

A line is added when an episode has ended. A last line without its end, after a kill or on a full disk, is cut off.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError, WrongTypeError
from ..values.pickling import dump_by_name, load
from .result import EpisodeResult

__all__ = ["EpisodeLog"]

_FORMAT = 1
_MARK = "vecenv episodes"


class EpisodeLog:
    """The episodes in a file.

    Args:
        path: None: there is no file, and no episode in it.
        seeds: the seeds of the evaluation.

    Attributes:
        is_continued: whether an earlier program has begun the file.

    Raises:
        WrongTypeError: it is no path (also a ConfigError and a TypeError).
        ConfigError: the file is not one of an evaluation, or damaged, or it has an episode of another seed.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str] | None, seeds: Iterable[int]) -> None:
        if path is not None and not isinstance(path, str | os.PathLike):
            raise WrongTypeError(f"resume: expected the path of a file, got {path!r}", key="resume")
        self._path = None if path is None else Path(path)
        self._file: Any = None
        self._settings: dict[str, Any] | None = None
        self._results: dict[tuple[int, int], str] = {}
        self._nbytes = 0  # of the complete lines
        if self._path is not None and self._path.is_file():
            self._read(self._path.read_bytes())
        others = sorted({seed for _, seed in self._results} - set(seeds))
        if others:
            raise self._error(f"has the episode of seed {others[0]}, which is not among the seeds")
        self.is_continued = self._settings is not None

    def _read(self, data: bytes) -> None:
        mark = json.dumps({_MARK: _FORMAT})[:-1].encode()
        if data[: len(mark)] != mark[: len(data)]:
            raise self._error(f"is not a file of an evaluation in format {_FORMAT}; choose another name")
        *lines, rest = data.split(b"\n")
        self._nbytes = len(data) - len(rest)
        for number, line in enumerate(lines):
            try:
                fields = json.loads(line)
                if number:
                    self._results[fields["policy"], fields["seed"]] = fields["result"]
                else:
                    self._settings = fields
            except (ValueError, KeyError, TypeError) as error:
                raise self._error(f"is damaged in line {number + 1}: {error}") from error

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"resume: {self._path} {text}", key="resume")

    def seeds(self, policy: int) -> set[int]:
        """Return the seeds whose episodes the policy of this index has played."""
        return {seed for number, seed in self._results if number == policy}

    @contextlib.contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Check that the episodes were played with these settings, and write those that `add` gets.

        Raises:
            ConfigError: a setting differs.
            OSError: the file cannot be written.
        """
        if self._path is None:
            yield
            return
        header = json.loads(json.dumps({_MARK: _FORMAT, **settings}))
        if self._settings is not None:
            for name, value in header.items():
                if self._settings.get(name) != value:
                    raise self._error(f"was begun with {name}={self._settings.get(name)!r}, and this is {value!r}")
        with open(self._path, "r+b" if self._path.is_file() else "xb", buffering=0) as self._file:
            self._file.truncate(self._nbytes)
            self._file.seek(self._nbytes)
            if self._settings is None:
                self._write(header)
            yield

    def results(self, policy: int) -> dict[int, EpisodeResult]:
        """Return the episodes of a policy by seed; this runs their pickles."""
        chosen = {seed: text for (number, seed), text in self._results.items() if number == policy}
        return {seed: load(base64.b64decode(text)) for seed, text in chosen.items()}

    def add(self, policy: int, episode: EpisodeResult) -> None:
        if self._file is not None:
            text = base64.b64encode(dump_by_name(episode)).decode()
            self._write({"policy": policy, "seed": episode.seed, "result": text})

    def _write(self, fields: Mapping[str, Any]) -> None:
        line = json.dumps(fields).encode() + b"\n"
        while line:
            line = line[self._file.write(line) :]  # a disk that is nearly full takes a part
