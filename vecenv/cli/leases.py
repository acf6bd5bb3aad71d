"""`vecenv leases`: prints the envs of the env server of this user, and their leases."""

from __future__ import annotations

import argparse

from vecenv.serving.requests import ask_server, socket_path
from vecenv.statistics import time_text
from vecenv.values.json_text import json_text

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Print one line per env and one per lease; return exit code 0."""
    found = ask_server(options.socket or socket_path(), {"do": "list"})
    if options.json:
        print(json_text(found, indent=None), end="")
        return 0
    for env in found["envs"]:
        counts = ", ".join(f"{env[state]} {state}" for state in ("idle", "leased", "building", "ending") if env[state])
        print(f"{env['env']:20} {counts or 'no workers'}")
    for one in found["leases"]:
        state = "has" if one["is_granted"] else "waits for"
        mark = "; not rebuilt, so its envs continue those of earlier leases" if one["is_marked"] else ""
        print(
            f"  {one['client']} (process {one['pid']}) {state} {one['workers']} workers of {one['env']} "
            f"since {time_text(one['seconds'])}{mark}"
        )
    return 0
