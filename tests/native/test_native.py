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


@pytest.mark.parametrize("kind", list(SANITIZERS))
@pytest.mark.parametrize("name", PROGRAMS)
def test_native_program_passes(name: str, kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = HERE / f"{name}.c"
    if kind == "tsan" and "pthread_create" not in source.read_text():
        pytest.skip("the program has one thread")
    if not can_sanitize(kind, tmp_path_factory.getbasetemp()):
        pytest.skip(f"the compiler does not support {kind}")
    program = tmp_path / name
    arguments = ["-std=c11", "-g", "-O1", "-fno-omit-frame-pointer", "-pthread", *WARNINGS, *SANITIZERS[kind]]
    if "-Wno-error=tsan" in arguments and "clang" in compiler():
        arguments.remove("-Wno-error=tsan")
    built = subprocess.run(
        [compiler(), *arguments, f"-I{NATIVE}", "-o", str(program), str(source), *PLAIN_UNITS],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    ran = subprocess.run(command_for(program), capture_output=True, text=True, timeout=SECONDS)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
