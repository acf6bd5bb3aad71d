"""Catalog of an env server: the envs that it builds, their workers, and the limits of clients.

[carla]                          # the name for `vecenv.lease`
factory = "my.sims:make"         # or a registered id of Gymnasium
workers = 8
envs_per_worker = 1
kwargs = {town = 3}
rebuild = "if-needed"            # "always", "never"
max_seconds = 86400              # longest lease
close_seconds = 5
max = {collect = 6}              # most workers of a client
reserve = {eval = 2}             # workers that no other client gets
nice = {collect = 5}             # priority of the workers of a client
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from ..errors import ConfigError, require
from ..measurement.env_names import find_env_fn
from ..measurement.target import foreign_errors
from ..values.checks import check_choice, check_seconds, check_whole, nearest

__all__ = ["CatalogEntry", "read_catalog"]

_REBUILDS = ("if-needed", "always", "never")


@dataclass(frozen=True)
class CatalogEntry:
    """One env of a server.

    Attributes:
        name: for `vecenv.lease`.
        factory: a registered id, or 'module:function'.
        workers: worker processes.
        envs_per_worker: envs that each worker has built.
        kwargs: arguments of the factory.
        rebuild: whether used envs are replaced by new ones; see `EnvStock`.
        max_seconds: longest lease; None: no limit.
        close_seconds: how long a step may take after the end of a lease, and `close` of the envs.
        max: most workers that a client has at the same time, by its name; others have no limit.
        reserve: workers that only this client gets, by its name.
        nice: niceness of the workers of a client above that of the server, from 0 to 19, by its name.

    Raises:
        ConfigError: a value is wrong.
    """

    name: str
    factory: str
    workers: int = 1
    envs_per_worker: int = 1
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    rebuild: str = "if-needed"
    max_seconds: float | None = None
    close_seconds: float = 5.0
    max: Mapping[str, int] = field(default_factory=dict)
    reserve: Mapping[str, int] = field(default_factory=dict)
    nice: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"[{self.name}]"
        for key in ("name", "factory"):
            if not isinstance(getattr(self, key), str) or not getattr(self, key):
                raise ConfigError(f"{where} {key}: expected a text, got {getattr(self, key)!r}", key=key)
        for key in ("workers", "envs_per_worker"):
            check_whole(f"{where} {key}", getattr(self, key), 1)
        check_choice(f"{where} rebuild", self.rebuild, _REBUILDS)
        check_seconds(f"{where} close_seconds", self.close_seconds)
        if self.max_seconds is not None:
            check_seconds(f"{where} max_seconds", self.max_seconds)
        for key in ("kwargs", "max", "reserve", "nice"):
            value = getattr(self, key)
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where} {key}: expected a table, got {value!r}", key=key)
            for client in value if key != "kwargs" else ():
                check_whole(f"{where} {key}.{client}", value[client], 0)
        if max(self.nice.values(), default=0) > 19:
            raise ConfigError(f"{where} nice: expected numbers from 0 to 19, got {dict(self.nice)}", key="nice")
        if sum(self.reserve.values()) > self.workers:
            raise ConfigError(
                f"{where} reserve: {sum(self.reserve.values())} workers are reserved, and there are {self.workers}",
                key="reserve",
            )

    def env_fn(self) -> Callable[[], Any]:
        """Return the constructor of the env; ConfigError if there is none."""
        if ":" not in self.factory:
            with foreign_errors(f"[{self.name}] factory", ConfigError):
                gymnasium.spec(self.factory)
        return find_env_fn(self.factory, self.kwargs)


def read_catalog(path: Path) -> list[CatalogEntry]:
    """Read the entries of a TOML file.

    Raises:
        ConfigError: the file cannot be read, or an entry is wrong.
        DependencyError: this Python reads TOML only with the package `tomli`.
    """
    try:
        toml: Any = require("tomllib", "serve")
    except ImportError:
        toml = require("tomli", "serve")
    try:
        with open(path, "rb") as file:
            tables = toml.load(file)
    except (OSError, ValueError) as error:  # also bytes that are no UTF-8
        raise ConfigError(f"{path}: {error}") from error
    found = [_read_entry(path, name, table) for name, table in tables.items()]
    if not found:
        raise ConfigError(f"{path}: it has no env; an entry is a table such as [carla]")
    return found


def _read_entry(path: Path, name: str, table: Any) -> CatalogEntry:
    known = set(CatalogEntry.__dataclass_fields__) - {"name"}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: expected tables, got {name} = {table!r}; an entry is a table such as [carla]")
    for key in table.keys() - known:
        guess = nearest(key, known)
        raise ConfigError(f"{path}: [{name}] has an unknown key {key!r}{f'; did you mean {guess}?' if guess else ''}")
    if "factory" not in table:
        raise ConfigError(f"{path}: [{name}] lacks factory, a registered id or 'module:function'")
    return CatalogEntry(name, **table)
