"""Run a program whose env overwrites shared memory with the extension built under sanitizers, if there is a compiler.

Each report of a sanitizer ends the process that it is about. In a worker that is a crash like any other, and in the
program it fails the test.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest

import vecenv
from tests.faults.test_stray_writes import run_seeds
from tests.native.test_native import NATIVE, WARNINGS, can_sanitize, compiler
from vecenv.core.layout.native import load

SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

pytestmark = [
    pytest.mark.extended,
    pytest.mark.native,
    pytest.mark.skipif(load() is None, reason="the extension was not built"),
    pytest.mark.skipif(not NATIVE.is_dir(), reason="the C sources are missing"),
]


@cache
def build(folder: Path) -> dict[str, str]:
    """Copy the package with such an extension to a folder; return the environment in which programs import it."""
    package = folder / "vecenv"
    shutil.copytree(Path(vecenv.__file__).parent, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    output = package / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    options = ["-std=c11", "-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-shared", "-fPIC", *WARNINGS]
    includes = [f"-I{NATIVE}", "-isystem", sysconfig.get_paths()["include"]]
    sources = sorted(map(str, NATIVE.rglob("*.c")))
    command = [compiler(), *options, *SANITIZERS, *includes, *sources, "-o", str(output)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    libraries = [
        subprocess.run([compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        "PYTHONPATH": str(folder),
        "LD_PRELOAD": " ".join(map(str.strip, libraries)),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter itself leaves memory at its end
        "VECENV_IMPLEMENTATION": "native",
    }


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_stray_writes_violate_no_sanitizer(first: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    if "clang" in compiler() or not can_sanitize("asan_ubsan", base):
        pytest.skip("the compiler does not support asan_ubsan")
    (base / "sanitized").mkdir(exist_ok=True)
    run_seeds(first, first + 50, **build(base / "sanitized"))
