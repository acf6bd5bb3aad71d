"""`vecenv completion` prints a script with which bash completes commands, options, choices and names of files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vecenv.cli import main

#: Prints the completions of the last of the words that follow the name of the script.
COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
$(complete -p vecenv | sed 's/.*-F \\([^ ]*\\).*/\\1/')
echo "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "completion.sh"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize(
    "words, expected",
    [
        (["ev"], "evaluate"),
        (["bench", "--on"], "--only"),
        (["bench", "--only", "s"], "serial sync"),
        (["replay", "crash"], "crash.pkl"),
        (["bench", "--json", "crash"], "crash.pkl"),
        (["record", "--out", "vid"], "videos"),
    ],
)
def test_words_are_completed(words: list[str], expected: str, script: Path, tmp_path: Path) -> None:
    (tmp_path / "crash.pkl").touch()
    (tmp_path / "videos").mkdir()
    command = ["bash", "-euc", COMPLETE, "bash", str(script), "vecenv", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == (expected, "")


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_scripts_of_other_shells_name_all_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    assert "evaluate" in capsys.readouterr().out
