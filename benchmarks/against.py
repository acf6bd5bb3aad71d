"""`python -m benchmarks.against REV`: is this folder slower than the revision REV? Measured in pairs of short windows.

Each revision is installed in a virtual environment of its own, in a temporary folder. In each pair every revision has a
fresh process, and REV has two: the ratio of these two shows how large a difference chance makes. The processes take
turns, A B A' A' B A, so a machine that becomes slower or faster favours none of them. A pair begins when other
processes use little of the machine, and is measured again if they use more at its end.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.one_revision import DEFAULT_ROWS, ROWS
from vecenv.cli.exit_codes import run_command
from vecenv.cli.options import count, seconds
from vecenv.errors import ConfigError, VecenvError
from vecenv.measurement.machine import StealMeter, no_interrupts

_ROOT = Path(__file__).resolve().parent.parent
_CHILD = Path(__file__).with_name("one_revision.py")
_FOLDER = "this folder"
_CLOSE_SECONDS = 10
_QUIET_PERCENT, _LOOK_SECONDS = 10, 0.2  # others may use this share of all cores
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class MeasureError(VecenvError):
    """A revision cannot be installed, or a row of it cannot be measured."""


class _Child:
    """A process that measures one row of one revision.

    Args:
        python: interpreter of the revision's virtual environment.
        row: key of `ROWS`.
        name: the revision, for messages.
        errors: an empty file for the standard error of the process.
    """

    def __init__(self, python: Path, row: str, name: str, errors: IO[str]) -> None:
        self._name = name
        self._errors = errors
        with no_interrupts():
            self._process = subprocess.Popen(
                [python, "-I", "-W", "ignore", _CHILD, row],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=python.parent,
                env=os.environ | dict.fromkeys(_THREADS, "2"),
            )

    def read(self) -> str:
        """Return the next line that the process prints: the first one once its row is open.

        Raises:
            MeasureError: the process has ended.
        """
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            self._errors.seek(0)
            raise MeasureError(f"{self._name}: {self._errors.read().strip()[-600:] or 'the process ended'}")
        return line.strip()

    def measure(self, window: float) -> float:
        """Return the env steps per second of a window of that many seconds."""
        with contextlib.suppress(BrokenPipeError):  # `read` raises then
            print(window, file=self._process.stdin, flush=True)
        return float(self.read())

    def end(self) -> None:
        """Ask the process to end, without a wait."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin:
                self._process.stdin.close()

    def close(self) -> None:
        """End the process; its workers end with it."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", _ROOT, *arguments], capture_output=True)
    if done.returncode != 0:
        raise ConfigError(f"git {arguments[0]} failed in {_ROOT}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def _check_revision(revision: str) -> None:
    try:
        _git("rev-parse", "--quiet", "--verify", f"{revision}^{{commit}}")
    except ConfigError:
        raise ConfigError(f"{revision!r} is not a revision that Git knows in {_ROOT}") from None


def _write_source(folder: Path, revision: str) -> None:
    """Write the files of a revision into a new folder, or those of this folder that Git does not ignore."""
    folder.mkdir()
    if revision != _FOLDER:
        subprocess.run(["tar", "-x", "-C", folder], input=_git("archive", revision), check=True)
        return
    for name in _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0"):
        if name and (_ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_ROOT / name, folder / name)


def _install(folder: Path, source: Path, revision: str) -> Path:
    """Install `source` in a new virtual environment that shares all other packages; return its interpreter.

    Raises:
        MeasureError: pip failed.
    """
    venv.EnvBuilder(symlinks=True).create(folder)
    python = folder / "bin" / "python"
    shared = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "shared.pth").write_text("".join(f"{path}\n" for path in shared), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--ignore-installed", str(source)]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        if int(importlib.metadata.version("setuptools").split(".")[0]) >= 77:  # pyproject.toml asks for it
            command += ["--no-build-isolation", "--no-index"]  # nothing is downloaded
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise MeasureError(f"{revision} cannot be installed: {done.stderr.strip()[-600:]}")
    return python


def _measure_pair(row: str, sides: Sequence[tuple[str, Path]], first: int, options: Any) -> tuple[list[float], bool]:
    """Return the env steps per second of each side, by turns that begin with side `first`; and if it was quiet."""
    with contextlib.ExitStack() as stack:
        children = []
        for name, python in sides:
            errors = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
            children.append(_Child(python, row, name, errors))
            stack.callback(children[-1].close)
        stack.callback(lambda: [child.end() for child in children])  # all at once, before the waits
        if len({child.read() for child in children}) > 1:
            raise MeasureError(f"some of {', '.join(dict(sides))} run without the C extension")
        turn = [(first + index) % len(sides) for index in range(len(sides))]
        deadline = time.monotonic() + options.wait
        while True:
            while not (is_quiet := _is_quiet()) and time.monotonic() < deadline:
                pass
            rates = [0.0] * len(sides)
            for index in turn + turn[::-1]:
                rates[index] += children[index].measure(options.seconds / 2) / 2
            is_quiet = is_quiet and _is_quiet()
            if is_quiet or time.monotonic() >= deadline:
                return rates, is_quiet


def _is_quiet() -> bool:
    return psutil.cpu_percent(_LOOK_SECONDS) < _QUIET_PERCENT


def _measure(row: str, sides: Sequence[tuple[str, Path]], options: Any) -> None:
    """Measure a row and print how fast each side is beside the first one."""
    pairs = [_measure_pair(row, sides, pair, options) for pair in range(options.pairs)]
    num_quiet = sum(is_quiet for _, is_quiet in pairs)
    for index, (name, _) in enumerate(sides[1:], 1):
        ratios = [rates[index] / rates[0] for rates, _ in pairs]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        spread = f"{low:.3f} to {high:.3f}"
        print(f"{row:<24}{name:<24}{statistics.median(ratios):>7.3f}   {spread:<18}{num_quiet}", flush=True)


def main() -> int:
    """Install the revisions, measure the rows, return 1 if one could not be measured."""
    options = _parse()
    base, others = options.rev, options.others or [_FOLDER]
    revisions = list(dict.fromkeys([base, *others]))
    for revision in revisions:
        if revision != _FOLDER:
            _check_revision(revision)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="against-") as temporary:
        pythons = {}
        for index, revision in enumerate(revisions):
            print(f"installing {revision}", file=sys.stderr, flush=True)
            folder = Path(temporary, str(index))
            folder.mkdir()
            _write_source(folder / "source", revision)
            pythons[revision] = _install(folder / "venv", folder / "source", revision)
        sides = [(base, pythons[base]), (f"{base} again", pythons[base])]
        sides += [(revision, pythons[revision]) for revision in others]
        print(f"speed beside {base}, {options.pairs} pairs; above 1 is faster")
        print(f"{'row':<24}{'revision':<24}{'median':>7}   {'quartiles':<18}quiet pairs", flush=True)
        steal = StealMeter()
        for row in options.rows:
            try:
                _measure(row, sides, options)
            except MeasureError as error:
                print(f"{row}: not measured: {error}", file=sys.stderr, flush=True)
                failed = 1
        print(f"stolen by the machine below: {steal.share():.1%}")
    return failed


def _parse() -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("rev", metavar="REV", help="what to compare with: a commit, a branch, a tag")
    parser.add_argument("others", nargs="*", metavar="REV2", help="compare these with REV (default: this folder)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=DEFAULT_ROWS, metavar="ROW", help=" ".join(ROWS))
    parser.add_argument("--pairs", type=count, default=20, help="windows of each side (default: %(default)s)")
    parser.add_argument("--seconds", type=seconds, default=0.6, help="length of a window (default: %(default)s)")
    parser.add_argument("--wait", type=seconds, default=10, help="for a quiet machine, per pair (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.against", main))
