"""Files that announce pools: the mode and owner of their folder, and their removal."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from vecenv.core.system.monitor_files import MonitorFile, read_monitor_files
from vecenv.core.system.process_stat import started_at


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runtime, temporary = tmp_path / "runtime", tmp_path / "temporary"
    runtime.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return runtime / "vecenv"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_file_and_folder_belong_to_the_user_alone(folder: Path) -> None:
    file = MonitorFile({"name": "CartPole-v1"})
    assert (mode_of(folder), mode_of(Path(file.path))) == (0o700, 0o600)
    (found,) = read_monitor_files()
    assert (found["pid"], found["started"]) == (os.getpid(), started_at(os.getpid()))
    assert found["name"] == "CartPole-v1"
    other = MonitorFile({})
    assert [one["number"] for one in read_monitor_files()] == [found["number"], found["number"] + 1]
    file.remove()
    file.remove()
    other.remove()
    assert read_monitor_files() == [] and list(folder.iterdir()) == []


@pytest.mark.parametrize("runtime", ["", "relative", "/nonexistent"])
def test_temporary_folder_without_a_runtime_folder(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    file = MonitorFile({})
    assert Path(file.path).parent == tmp_path / "temporary" / f"vecenv-{os.getuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    assert len(read_monitor_files()) == 1  # a reader with other variables finds it, too
    file.remove()


@pytest.mark.parametrize("runtime", [True, False])
def test_machine_without_a_temporary_folder_warns_once_or_uses_the_other_one(
    runtime: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
    if not runtime:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    files = [MonitorFile({}) for _ in range(2)]
    assert len(read_monitor_files()) == (2 if runtime else 0)
    assert [bool(file.path) for file in files] == [runtime] * 2
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == (0 if runtime else 2), "one line of the pools, one of their reader"
    assert all("No usable temporary directory" in text and "Set TMPDIR or XDG_RUNTIME_DIR" in text for text in found)
    for file in files:
        file.remove()


def link(folder: Path) -> None:
    target = folder.with_name("target")
    target.mkdir(0o700)
    folder.symlink_to(target)


def open_to_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o750)


def of_another_user(folder: Path) -> None:
    folder.mkdir(0o700)
    os.chown(folder, 65534, 65534)


def plain_file(folder: Path) -> None:
    folder.write_text("")


@pytest.mark.parametrize(
    "make, reason",
    [
        (link, "not a folder"),
        (plain_file, "not a folder"),
        (open_to_others, "mode is 0750, expected 0700"),
        *([(of_another_user, "belongs to user 65534")] if os.getuid() == 0 else []),
    ],
)
def test_unsafe_folder_is_not_used(
    make: Callable[[Path], None], reason: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(folder)
    with caplog.at_level(logging.WARNING, "vecenv"):
        file = MonitorFile({})
    assert file.path == "" and (not folder.is_dir() or list(folder.iterdir()) == [])
    (record,) = caplog.records
    assert reason in record.getMessage() and str(folder) in record.getMessage()
    file.remove()
    assert read_monitor_files() == []


def test_files_of_ended_processes_are_removed(folder: Path) -> None:
    folder.mkdir(0o700)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        started = started_at(process.pid)
        namespace = os.readlink("/proc/self/ns/pid")
        content = json.dumps({"pid_namespace": namespace})
        alive, reused = folder / f"{process.pid}-{started}-1.json", folder / f"{process.pid}-{int(started) - 1}-1.json"
        elsewhere = folder / f"{process.pid}-{int(started) - 2}-1.json"
        unrelated, broken = folder / "notes.json", folder / f"{process.pid}-{int(started) - 3}-1.json"
        for path in (alive, reused, unrelated):
            path.write_text(content)
        elsewhere.write_text(json.dumps({"pid_namespace": "pid:[1]"}))
        broken.write_text("{")
        assert [one["pid"] for one in read_monitor_files()] == [process.pid]
        assert set(folder.iterdir()) == {alive, elsewhere, unrelated}
        process.communicate()
    MonitorFile({}).remove()
    assert set(folder.iterdir()) == {elsewhere, unrelated}
