"""`vecenv serve`: keeps the workers of slow envs warm, and lends them to the programs of this user."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from vecenv.errors import ConfigError
from vecenv.serving.catalog import CatalogEntry, read_catalog
from vecenv.serving.requests import ask_server, socket_path

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Serve until the server is stopped; return exit code 0."""
    path = options.socket or socket_path()
    if options.stop:
        ask_server(path, {"do": "stop"})
        print("the env server ends; leased workers end with their leases")
        return 0
    if options.source is None:
        raise ConfigError("expected a TOML file or an env, such as vecenv serve sims.toml")
    from vecenv.serving.server import EnvServer

    logging.basicConfig(level=logging.INFO, format="vecenv serve: %(message)s", stream=sys.stderr)
    server = EnvServer(_entries(options), path)
    print(f"serving at {path}", flush=True)
    server.run()
    return 0


def _entries(options: argparse.Namespace) -> list[CatalogEntry]:
    if options.source.endswith(".toml"):
        return read_catalog(Path(options.source))
    return [
        CatalogEntry(
            options.source,
            options.source,
            options.workers,
            options.envs_per_worker,
            options.env_kwargs,
            options.rebuild,
            reserve=options.reserve,
        )
    ]
