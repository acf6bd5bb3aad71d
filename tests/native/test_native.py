"""Build and run the C tests of this folder, if there is a C compiler."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
PLAIN_UNITS = sorted(str(path) for path in (NATIVE / "shm").glob("*.c"))  # these do not include Python.h
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
SANITIZERS = {
    "plain": [],
    "asan_ubsan": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-fsanitize=thread", "-Wno-error=tsan"],
}
PROGRAMS = sorted(path.stem for path in HERE.glob("test_*.c"))
#: Builds without a sanitizer find nothing that the others do not: one is enough, where compilers have no sanitizers.
CASES = [
    pytest.param(name, kind, marks=pytest.mark.slow if kind == "plain" and name != PROGRAMS[0] else ())
    for name in PROGRAMS
    for kind in SANITIZERS
]
SECONDS = 120

pytestmark = pytest.mark.skipif(not NATIVE.is_dir(), reason="the C sources are missing")


def compiler() -> str:
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if found is None or platform.system() != "Linux":
        pytest.skip("there is no C compiler")
    return found


@cache
def can_sanitize(kind: str, folder: Path) -> bool:
    """Return whether a program built with this sanitizer can run here."""
    source = folder / f"probe_{kind}.c"
    source.write_text("int main(void) { return 0; }\n")
    program = folder / f"probe_{kind}"
    built = subprocess.run([compiler(), *SANITIZERS[kind][:1], "-o", str(program), str(source)], capture_output=True)
    return built.returncode == 0 and subprocess.run(command_for(program), capture_output=True).returncode == 0


def command_for(program: Path) -> list[str]:
    # Under some kernels the thread sanitizer cannot map its shadow memory if addresses are randomized.
    setarch = shutil.which("setarch")
    return [*([setarch, "-R"] if setarch else []), str(program)]


def options_for(kind: str) -> list[str]:
    options = ["-std=c11", "-g", "-O1", "-fno-omit-frame-pointer", "-pthread", *WARNINGS, *SANITIZERS[kind]]
    if "-Wno-error=tsan" in options and "clang" in compiler():
        options.remove("-Wno-error=tsan")
    return [*options, f"-I{NATIVE}"]


@cache
def objects_of(kind: str, folder: Path) -> list[str]:
    """Compile the units, once for all programs of this kind; return the object files."""
    (folder / kind).mkdir()
    command = [compiler(), *options_for(kind), "-c", *PLAIN_UNITS]
    built = subprocess.run(command, cwd=folder / kind, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return sorted(str(path) for path in (folder / kind).glob("*.o"))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_native_program_passes(name: str, kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    source, folder = HERE / f"{name}.c", tmp_path_factory.getbasetemp()
    if kind == "tsan" and "pthread_create" not in source.read_text():
        pytest.skip("the program has one thread")
    if not can_sanitize(kind, folder):
        pytest.skip(f"the compiler does not support {kind}")
    program = tmp_path / name
    command = [compiler(), *options_for(kind), "-o", str(program), str(source), *objects_of(kind, folder)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run(command_for(program), capture_output=True, text=True, timeout=SECONDS)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
