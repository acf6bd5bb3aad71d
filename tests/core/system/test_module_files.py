"""Files of loaded modules: noted when they are loaded, and compared with those of other processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from vecenv.core.system.module_files import ModuleFile, ModuleFiles, note_modules, noted_modules


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the file of a module that can be imported by the name of the folder."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / f"module_{tmp_path.name}.py"
    path.write_text("VALUE = 1")
    yield path
    sys.modules.pop(path.stem, None)


def test_modules_are_noted_when_they_are_loaded(source: Path) -> None:
    note_modules()
    __import__(source.stem)
    new = note_modules()
    assert new[source.stem].path == str(source) and "os" not in new
    source.write_text("VALUE = 23")
    assert note_modules() == {} and noted_modules()[source.stem] == new[source.stem]


def test_module_that_was_loaded_again_is_noted_again(source: Path) -> None:
    __import__(source.stem)
    note_modules()
    old = noted_modules()[source.stem]
    source.write_text("VALUE = 23")
    del sys.modules[source.stem]
    note_modules([source.stem])
    __import__(source.stem)
    note_modules()
    assert not noted_modules()[source.stem].is_like(old)


def test_touched_file_has_not_changed(source: Path) -> None:
    __import__(source.stem)
    note_modules()
    noted = noted_modules()[source.stem]
    os.utime(source, ns=(0, 0))
    assert noted.digest and noted.is_like(noted._replace(stamp=(0, 9)))


def test_files_without_digest_are_compared_by_time_and_size() -> None:
    file = ModuleFile("/site-packages/games.py", (5, 100))
    assert file.is_like(ModuleFile("/elsewhere/games.py", (5, 100)))
    assert not file.is_like(file._replace(stamp=(6, 100)))


def test_changed_modules_are_named_once() -> None:
    one, two = ModuleFile("/one.py", (1, 1)), ModuleFile("/two.py", (1, 1))
    files = ModuleFiles()
    files.add({"one": one, "two": two})
    files.add({"two": two._replace(stamp=(2, 2))})  # other first processes have another file of this name
    assert files.changed({"two": two, "three": one}) == []
    later = {"one": one._replace(stamp=(3, 3)), "three": two._replace(stamp=(3, 3)), "two": two._replace(stamp=(2, 2))}
    assert files.changed(later) == ["one", "three"]
    assert files.describe_new(["one"]) == "one (/one.py)"
    assert files.describe_new(["one", "three"]) == "three (/one.py)"
