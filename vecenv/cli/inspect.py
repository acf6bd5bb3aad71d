"""`vecenv inspect`: prints the header of a saved state, without running the pickle in it."""

from __future__ import annotations

import argparse

from vecenv.errors import ConfigError
from vecenv.saved_state import SavedState

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Print one line per field of the header; return exit code 0."""
    try:
        header = SavedState.read(options.file).header
    except OSError as error:
        raise ConfigError(str(error), key="file") from error
    for name, value in header.items():
        if name not in ("rng_entropy", "spaces"):  # numbers without a meaning for readers
            print(f"{name:18} {value}")
    return 0
