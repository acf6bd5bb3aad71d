"""Benchmarks: `python -m benchmarks.speed`, `.peers`, `.memory`, and `python -m pytest benchmarks/micro`.

What each number means stands in README.md of this folder.
"""

import os

# Policies that stand between recv and send may use two threads, on any machine. NumPy reads this when it loads.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "2")
