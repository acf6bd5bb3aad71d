"""`python -m benchmarks.timing`: the cost of timing one operation of an env, in nanoseconds.

The worker reads the monotonic clock for each operation in any case; these numbers are the cost of everything else. A
short operation is measured by the slow clocks once in 64 times, a long one (1 ms or more) each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_NATIVE = _HERE.parent / "native"
_UNITS = ("clock.c", "timing.c")


def main() -> int:
    """Build the C program, run it, print its numbers."""
    with tempfile.TemporaryDirectory(prefix="timing-") as folder:
        program = Path(folder, "timing")
        units = [str(_NATIVE / "shm" / name) for name in _UNITS]
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-std=c11", "-O3", f"-I{_NATIVE}", "-o", str(program), str(_HERE / "timing.c"), *units]
        subprocess.run(command, check=True)
        found = json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    if found["delay_file"] < 1:
        print("this system does not count run-queue delays: operations are not measured, only counted")
    print(f"short operation {found['short_ns']:.1f} ns, operation of 1 ms or more {found['long_ns']:.0f} ns")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
