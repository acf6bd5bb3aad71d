"""Benchmarks: `python -m benchmarks.speed`, `.peers`, `.memory`, and `python -m pytest benchmarks/micro`.

What each number means stands in README.md of this folder.
"""

import os

# Policies that stand between recv and send may use two threads, on any machine. NumPy reads this when it loads; workers
# would take the variables over.
_NAMES = [name for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS") if name not in os.environ]
os.environ.update(dict.fromkeys(_NAMES, "2"))
import numpy  # noqa: E402, F401

for _name in _NAMES:
    del os.environ[_name]
