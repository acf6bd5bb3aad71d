"""SavedState: the state of a vector env, with a header that can be read without running a pickle.

state_dict() -> SavedState -> write -> one zip file: header.json, state.pickle
file or dict -> SavedState.read -> check -> value
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import time
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space

from . import __version__
from .errors import ConfigError, WrongTypeError, add_notes
from .own_log import own_logger
from .values.pickling import dump_by_name, load

__all__ = ["FORMAT", "SavedState", "StateLike", "fingerprint"]

#: Version of the pickled classes; a release with other ones increases it.
FORMAT = 1
#: A saved state, as `SavedState.read` accepts it.
StateLike = Mapping[str, Any] | str | os.PathLike[str]

#: Of zlib: 105 KB of 64 CartPoles become 34 KB in 2 ms.
_LEVEL = 1
_HEADER, _DATA = "header.json", "state.pickle"
_LOG = own_logger()
#: Field of the header -> the text of the error if it differs: the old value, and the present one.
_CHECKED = {
    "kind": "it was saved by {}, and this is {}",
    "num_envs": "it contains {} envs, and there are {} env_fns",
    "num_spare_envs": "it contains {} spare envs, and there are {}",
    "autoreset_mode": "it was saved with autoreset_mode {}, and this one is {}",
}


@dataclass(frozen=True)
class SavedState:
    """A saved state.

    Attributes:
        header: format, kind (the class that was saved), num_envs, num_spare_envs, autoreset_mode, env (its name),
            observation_space and action_space (texts), spaces (digest), implementation, num_repeated (commands that are
            repeated when it is loaded), the versions of vecenv, gymnasium, numpy and python, saved_at (local time),
            nbytes and sha256 of the data.
        data: the pickled state, compressed.
    """

    header: dict[str, Any]
    data: bytes

    @classmethod
    def of(cls, value: Any, **fields: Any) -> SavedState:
        """Return the saved state of a value that can be pickled; `fields` are those of the header that differ."""
        data = zlib.compress(dump_by_name(value), _LEVEL)
        header = {
            "format": FORMAT,
            **fields,
            **_versions(),
            "saved_at": time.strftime("%Y-%m-%d %H:%M:%S"),
            "nbytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        return cls(header, data)

    @classmethod
    def read(cls, source: StateLike) -> SavedState:
        """Return the state in a file, or in the result of `as_dict`. No pickle is run.

        Raises:
            ConfigError: it is no saved state, it is damaged, or a newer release of vecenv has written it.
            WrongTypeError: it is neither a path nor a dict (also a ConfigError and a TypeError).
            OSError: the file cannot be read.
        """
        if not isinstance(source, Mapping | str | os.PathLike):
            raise WrongTypeError(f"resume: expected a file or the result of state_dict, got {source!r}", key="resume")
        where = "the state" if isinstance(source, Mapping) else os.fspath(source)
        try:
            if isinstance(source, Mapping):
                header, data = dict(source["header"]), source["data"]
            else:
                with zipfile.ZipFile(source) as file:
                    header, data = json.loads(file.read(_HEADER)), file.read(_DATA)
            newest = header["format"]
            is_whole = hashlib.sha256(data).hexdigest() == header["sha256"]
        except (zipfile.BadZipFile, KeyError, TypeError, ValueError, EOFError) as error:
            raise ConfigError(f"resume: {where} is not a saved state of vecenv, or it is damaged: {error}") from error
        if not is_whole:
            raise ConfigError(f"resume: {where} is damaged: the checksum of its data differs")
        if newest > FORMAT:
            raise ConfigError(
                f"resume: vecenv {header['vecenv']} has saved {where} in format {newest}, and this release reads "
                f"formats up to {FORMAT}; install that release"
            )
        return cls(header, data)

    def around(self, kind: str, values: Any) -> SavedState:
        """Return the state of an object of this kind that stands on the one of this state, and has these values."""
        return SavedState.of((self.as_dict(), values), **{**self.header, "kind": kind})

    def as_dict(self) -> dict[str, Any]:
        """Return the state as a dict of plain values, for `torch.save` and the like."""
        return {"header": dict(self.header), "data": self.data}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the state into one file, which replaces an older one at once when everything is written.

        Raises:
            OSError: the file cannot be written; an older file is unchanged.
        """
        path = Path(path)
        beside = path.with_name(f".{path.name}.part")  # one name, so that the next save replaces it after a kill
        try:
            with open(beside, "wb") as stream:
                with zipfile.ZipFile(stream, "w") as file:
                    file.writestr(_HEADER, json.dumps(self.header, indent=1))
                    file.writestr(_DATA, self.data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(beside, path)
        except OSError as error:
            add_notes(error, [f"the state needs {len(self.data):,} bytes; an older file {path} is unchanged"])
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()

    def check(self, **present: Any) -> None:
        """Raise ConfigError if the state does not fit; `present` contains fields of the header of the new object."""
        for name, value in present.items():
            if self.header.get(name) != value:
                raise ConfigError(f"resume: {_CHECKED[name].format(self.header.get(name), value)}", key="resume")
        for name, version in _versions().items():
            if name in ("gymnasium", "numpy") and self.header[name] != version:
                text = "the envs were saved with %s %s, and this is %s: they may behave differently from now on"
                _LOG.warning(text, name, self.header[name], version)

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any], implementation: str) -> None:
        """Raise ConfigError if the envs have other spaces, or if repeated commands would give other digests."""
        for name, space in (("observation_space", observation_space), ("action_space", action_space)):
            if self.header[name] != str(space):
                text = f"resume: it was saved with the {name} {self.header[name]}, and these envs have {space}"
                raise ConfigError(text, key="resume")
        if self.header["spaces"] != fingerprint(observation_space, action_space):
            raise ConfigError("resume: it was saved with other bounds of the observation or action space", key="resume")
        if self.header["num_repeated"] and self.header["implementation"] != implementation:
            raise ConfigError(
                f"resume: it was saved with implementation={self.header['implementation']!r}, and this is "
                f"{implementation!r}; {self.header['num_repeated']} commands must be repeated, whose results could not "
                "be compared",
                key="resume",
            )

    @functools.cached_property
    def value(self) -> Any:
        """The value; the first read runs the pickle, after `check` and `check_spaces`."""
        return load(zlib.decompress(self.data))


def _versions() -> dict[str, str]:
    releases = {"vecenv": __version__, "gymnasium": gymnasium.__version__, "numpy": np.__version__}
    return {**releases, "python": platform.python_version()}


def fingerprint(*spaces: Space[Any]) -> str:
    """Return a digest of the classes, shapes, dtypes and bounds of spaces, without their random generators."""
    digest = hashlib.sha256()
    for space in spaces:
        for part in _parts(space):
            digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> list[bytes]:
    if isinstance(value, np.ndarray):
        return [value.dtype.str.encode(), str(value.shape).encode(), np.ascontiguousarray(value).tobytes()]
    if isinstance(value, Space):
        fields = {name: part for name, part in vars(value).items() if name != "_np_random"}
        return [type(value).__name__.encode(), *_parts(fields)]
    if isinstance(value, Mapping):
        return [part for key in sorted(value, key=str) for part in (str(key).encode(), *_parts(value[key]))]
    if isinstance(value, list | tuple):
        return [b"%d" % len(value), *(part for one in value for part in _parts(one))]
    return [str(value).encode()] if isinstance(value, int | float | str | np.generic | np.dtype) else []
