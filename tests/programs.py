"""Programs that tests run in an interpreter of their own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def run_python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python with these arguments for at most 120 seconds; return the exit code and the output as text.

    `options`: further arguments of `subprocess.run`.
    """
    command = [sys.executable, *arguments]
    return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 120, **options})
