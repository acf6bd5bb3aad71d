"""`SeedRecorder`: records the episodes of chosen seeds, in the worker of the env; a file is named by env and seed."""

from __future__ import annotations

import os
from collections.abc import Set
from typing import Any

import gymnasium

from vecenv.envs.video import EpisodeRecorder, safe_name

__all__ = ["SeedRecorder", "file_name"]


class SeedRecorder(EpisodeRecorder):
    """Record the episodes that begin with a reset with one of these seeds, to `<folder>/<name of the env>-seed<k>.mp4`.

    Other episodes are neither recorded nor rendered.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], folder: str | os.PathLike[str], seeds: Set[int]) -> None:
        """Check everything a recording needs, then wrap; arguments and errors are those of `EpisodeRecorder`."""
        super().__init__(env, folder, safe_name(env))
        self._seeds = seeds

    def _choose_name(self, seed: int | None) -> str | None:
        return file_name(self.name_prefix, seed) if seed in self._seeds and seed is not None else None


def file_name(env_name: str, seed: int) -> str:
    """Return the name of a video without its suffix.

    >>> file_name("CartPole-v1", 1000)
    'CartPole-v1-seed1000'
    """
    return f"{env_name}-seed{seed}"
