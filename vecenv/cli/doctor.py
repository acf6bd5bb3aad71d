"""`vecenv doctor`: prints the parts that vecenv finds on a machine, and the cost of each missing part."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import math
import os
import platform
import resource
import select
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psutil

from vecenv import __version__
from vecenv.core.layout.native import implementation, install_command
from vecenv.core.processes.worker import core_limit, room_for_descriptors, usable_cores
from vecenv.core.system.process_stat import has_proc
from vecenv.core.system.room import memory_left, processes_left
from vecenv.envs.toys import CountEnv
from vecenv.errors import EXTRAS, VecenvError
from vecenv.measurement.report import width_of
from vecenv.vector.env import VectorEnv

__all__ = ["run"]

_FAILED = 1
_SHM = "/dev/shm"
_MIB = 1 << 20
#: Less memory than this is worth a word: that of a small pool.
_FEW_BYTES = 64 * _MIB
#: Share of the cores that other programs may use before measured speeds are too low.
_BUSY = 0.25
_INDENT = 8


class _Finding(NamedTuple):
    """A part of the machine or the installation, and the cost if it is missing or too small."""

    is_good: bool
    found: str
    cost: str = ""


def run(_options: argparse.Namespace) -> int:
    """Print the findings; return 0 if a pool of two workers runs here, else 1."""
    width = (width_of(sys.stdout) or 100) - 1
    parts = [_of_installation, _of_folders, _of_system]
    if has_proc() or not sys.platform.startswith("linux"):
        parts.insert(1, _of_machine)
    else:
        cost = "no pool with workers can be made, and cores, memory and limits are not known here; mount it"
        _print_finding("note", _Finding(False, "/proc is missing", cost), width)
    for part in parts:
        for finding in part():
            _print_finding("ok" if finding.is_good else "note", finding, width)
    began = time.monotonic()
    try:
        with VectorEnv([CountEnv] * 2, num_workers=2) as envs:
            envs.reset(seed=0)
            envs.step(envs.action_space.sample())
    except VecenvError as error:
        _print_finding("FAILED", _Finding(False, "two workers do not run here", str(error)), width)
        return _FAILED
    _print_finding("ok", _Finding(True, f"two workers start, step and end in {time.monotonic() - began:.2f} s"), width)
    return 0


def _print_finding(state: str, finding: _Finding, width: int) -> None:
    text = finding.found + (f": {finding.cost}" if not finding.is_good else "")
    lines = textwrap.wrap(text, max(20, width - _INDENT), break_on_hyphens=False)
    print(f"{state:<{_INDENT}}" + ("\n" + " " * _INDENT).join(lines), flush=True)


def _of_installation() -> Iterator[_Finding]:
    versions = [
        f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "gymnasium", "cloudpickle", "psutil")
    ]
    yield _Finding(True, f"vecenv {__version__}, Python {platform.python_version()}, {', '.join(versions)}")
    cost = f"each step takes several times longer; install a C compiler, then run: {install_command()}"
    is_native = implementation() == "native"
    yield _Finding(is_native, "steps are made in C" if is_native else "the C extension is missing", cost)
    has_compiler = any(map(shutil.which, filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))))
    if not is_native:
        yield _Finding(has_compiler, "a C compiler", "the extension cannot be built; install gcc or clang")
    installed = sorted(extra for extra, needed in EXTRAS.items() if all(map(_is_installed, needed)))
    yield _Finding(True, f"extras: {', '.join(installed) or 'none'}")


def _is_installed(requirement: str) -> bool:
    name = requirement.partition(">")[0].partition("[")[0]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(name))
    return False


def _of_machine() -> Iterator[_Finding]:
    cores, reason = usable_cores(), core_limit()
    limited = f", limited by {reason}" if reason else ""
    yield _Finding(True, f"{cores} of {os.cpu_count()} cores{limited}; default pools have one worker per core")
    busy = psutil.cpu_percent(0.5) / 100
    yield _Finding(busy < _BUSY, f"other programs use {busy:.0%} of the cores", "steps and measurements are slower")
    memory = memory_left()
    cost = "workers may be killed by the system; use fewer workers or smaller observations"
    yield _Finding(memory > _FEW_BYTES, f"{memory / _MIB:,.0f} MiB of memory left", cost)
    descriptors = room_for_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cost = f"a pool with more workers is refused; raise it by ulimit -n {hard}"
    yield _Finding(descriptors >= cores, f"descriptors for {descriptors} workers (ulimit -n {soft})", cost)
    processes = processes_left()
    count = "no limit of processes" if math.isinf(processes) else f"{processes:,.0f} processes left"
    yield _Finding(processes > 4 * cores, count, "pools are refused; raise ulimit -u, or pids.max of the cgroup")


def _of_folders() -> Iterator[_Finding]:
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(_SHM).free
        cost = "pools with large observations do not fit; a container needs a larger --shm-size"
        yield _Finding(free > _FEW_BYTES, f"{free / _MIB:,.0f} MiB left in {_SHM}", cost)
    is_writable = os.access(_SHM, os.W_OK)
    cost = "no pool with workers can be made; mount it, or use backend='serial'"
    yield _Finding(is_writable, f"{_SHM} {'can' if is_writable else 'cannot'} be written", cost)
    try:
        yield _Finding(True, f"temporary files are written to {tempfile.gettempdir()}")
    except FileNotFoundError:
        cost = "`vecenv top` finds no pool, and checks and reproducers fail; set TMPDIR"
        yield _Finding(False, "no folder for temporary files can be written", cost)


def _of_system() -> Iterator[_Finding]:
    """Yield the features of the kernel and of Python that vecenv uses where they exist."""
    cost = "the death of a worker is noticed through a pipe, which its children may keep open; no `vecenv serve`"
    yield _Finding(_opens("pidfd_open", os.getpid()), "pidfd_open", cost)
    cost = "stacks of workers and counters are kept in temporary files"
    yield _Finding(_opens("memfd_create", "vecenv doctor"), "memfd_create", cost)
    cost = "steps are made in Python, and take several times longer"
    yield _Finding(hasattr(select, "epoll") and hasattr(os, "eventfd"), "epoll", cost)
    is_counted = os.access("/proc/thread-self/schedstat", os.R_OK)
    yield _Finding(is_counted, "schedstat", "times of envs contain the waits for a core, so advice is less exact")


def _opens(call: str, argument: Any) -> bool:
    """Return whether a function of `os`, of this name, returns a descriptor."""
    try:
        os.close(getattr(os, call)(argument))
    except (AttributeError, OSError):  # not in this Python, this kernel, or forbidden by seccomp
        return False
    return True
