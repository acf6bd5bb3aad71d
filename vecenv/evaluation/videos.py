"""Videos of an evaluation: the seeds that are recorded, and their files."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..envs.adapt import adapt_and_build
from ..envs.factory import EnvFactory
from ..envs.video import SeedRecorder, file_name
from ..errors import ConfigError
from ..values.checks import check_flag, check_whole
from ..vector.env import VectorEnv
from .seeds import read_seeds

__all__ = ["Videos"]


class Videos:
    """The videos of some episodes; arguments are those of `evaluate`.

    Attributes:
        seeds: those that are recorded, in the order of all seeds.
        paths: path of the video of each seed; {} until `find_paths`.

    Raises:
        ConfigError: an argument is wrong, or a seed has no episode.
    """

    def __init__(
        self, videos: int | Iterable[int] | None, seeds: tuple[int, ...], out: str | os.PathLike[str], overwrite: bool
    ) -> None:
        self._overwrite = check_flag("overwrite", overwrite)
        if not isinstance(out, str | os.PathLike):
            raise ConfigError(f"out: expected a folder, got {out!r}", key="out")
        self._folder = Path(out)
        self.paths: dict[int, Path] = {}
        if videos is None:
            self.seeds: tuple[int, ...] = ()
            return
        if not isinstance(videos, Iterable):
            self.seeds = seeds[: check_whole("videos", videos, 0)]
            return
        chosen = set(read_seeds(videos, None, name="videos"))
        if missing := sorted(chosen - set(seeds)):
            raise ConfigError(f"videos: seed {missing[0]} has no episode; it is not among the seeds", key="videos")
        self.seeds = tuple(seed for seed in seeds if seed in chosen)

    def record(self, env_fn: Callable[[], Any]) -> EnvFactory:
        """Return a constructor of the same env that records the episodes of these seeds."""
        recorder = functools.partial(SeedRecorder, folder=str(self._folder), seeds=frozenset(self.seeds))
        return EnvFactory(env_fn, wrappers=(adapt_and_build, recorder))

    def find_paths(self, envs: VectorEnv) -> None:
        """Set `paths` from the constructors that `record` returned; ConfigError if one of the files exists."""
        if not self.seeds:
            return
        name = envs.get_attr("name_prefix")[0]
        self.paths = {seed: self._folder / f"{file_name(name, seed)}.mp4" for seed in self.seeds}
        existing = [path for path in self.paths.values() if path.exists()]
        if existing and not self._overwrite:
            more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
            raise ConfigError(
                f"videos: {existing[0]}{more} exists; choose another folder, or overwrite=True (--overwrite)",
                key="overwrite",
            )
