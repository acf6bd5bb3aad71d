"""Limit the threads that numeric libraries start inside a worker.

Workers already fill the cores. A BLAS that starts one thread per core in each worker slows down every env.
Environment variables work only before a library is loaded, so libraries that are already loaded (by fork or by the
preload of the fork server) are limited by a call. A variable that the program or its user has set is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping

__all__ = ["THREAD_VARIABLES", "cap_environment", "cap_loaded_libraries"]

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

#: The variable that the other libraries read, too, if their own is not set.
_COMMON = THREAD_VARIABLES[0]
#: Part of a library's file name -> its variable, and its functions that set the number of threads.
#: NumPy and SciPy ship OpenBLAS with prefixed names.
_SETTERS = {
    "openblas": (
        "OPENBLAS_NUM_THREADS",
        (
            "openblas_set_num_threads",
            "openblas_set_num_threads64_",
            "scipy_openblas_set_num_threads",
            "scipy_openblas_set_num_threads64_",
        ),
    ),
    "mkl_rt": ("MKL_NUM_THREADS", ("MKL_Set_Num_Threads",)),
    "blis": ("BLIS_NUM_THREADS", ("bli_thread_set_num_threads",)),
    "libgomp": (_COMMON, ("omp_set_num_threads",)),
    "libiomp": (_COMMON, ("omp_set_num_threads",)),
    "libomp": (_COMMON, ("omp_set_num_threads",)),
}


def cap_environment(num_threads: int, environ: Mapping[str, str]) -> None:
    """Set the environment variables that numeric libraries read when they are loaded.

    Args:
        num_threads: the value of those that the program has not set.
        environ: the variables of the program.
    """
    common = environ.get(_COMMON) or str(num_threads)
    for name in THREAD_VARIABLES:
        os.environ[name] = environ.get(name) or common


def cap_loaded_libraries() -> None:
    """Limit the threads of every numeric library that this process has already loaded to its environment variable."""
    for path in _loaded_libraries():
        name = os.path.basename(path)
        for part, (variable, setters) in _SETTERS.items():
            if part in name:
                _call_first(path, setters, _number_in(variable))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(_number_in(_COMMON))
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(_number_in(_COMMON))


def _number_in(variable: str) -> int:
    """Return the number of threads in an environment variable; 1 if it contains none.

    `OMP_NUM_THREADS` may be a list, whose first number counts.
    """
    first = os.environ[variable].partition(",")[0].strip()
    return max(int(first), 1) if first.isdecimal() else 1


def _call_first(path: str, setters: tuple[str, ...], num_threads: int) -> None:
    library = ctypes.CDLL(path)
    for name in setters:
        setter = getattr(library, name, None)
        if setter is not None:
            setter(ctypes.c_int(num_threads))
            return


def _loaded_libraries() -> Iterator[str]:
    seen = set()
    with contextlib.suppress(FileNotFoundError), open("/proc/self/maps") as maps:  # without /proc, they are not known
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if ".so" in path and path not in seen:
                seen.add(path)
                yield f"/{path}"
