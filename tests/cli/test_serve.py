"""`vecenv serve` and `vecenv leases`: the lines that they print, and wrong arguments."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.programs import run_python
from tests.serving.programs import serving
from vecenv import VectorEnv


def vecenv(*words: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "vecenv", *words)


def test_leases_are_listed_and_the_server_is_stopped() -> None:
    with serving(workers=2, rebuild='"never"') as server:
        with VectorEnv(server.lease(1, client="eval")):
            found = vecenv("leases", "--socket", server.socket)
            assert found.stdout.splitlines()[0] == f"{'env':20} 1 idle, 1 leased"
            line = f"  eval (process {os.getpid()}) has 1 workers of env since "
            assert found.stdout.splitlines()[1].startswith(line) and "not rebuilt" in found.stdout
            [lease] = json.loads(vecenv("leases", "--socket", server.socket, "--json").stdout)["leases"]
            assert (lease["client"], lease["workers"], lease["is_granted"]) == ("eval", 1, True)
        assert "the env server ends" in vecenv("serve", "--stop", "--socket", server.socket).stdout
        assert server.process.wait(30) == 0
        assert not os.path.exists(server.socket)


@pytest.mark.parametrize(
    "words, text",
    [
        (["serve"], "expected a TOML file or an env"),
        (["serve", "none.toml"], "none.toml"),
        (["serve", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["serve", "--stop"], "no env server answers at"),
        (["leases"], "no env server answers at"),
    ],
)
def test_wrong_arguments_end_in_one_line(tmp_path: Path, words: list[str], text: str) -> None:
    found = vecenv(*words, "--socket", str(tmp_path / "s"))
    assert found.returncode == 2 and found.stdout == ""
    assert text in found.stderr and len(found.stderr.splitlines()) == 1


def test_folder_of_the_socket_must_be_private(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    found = vecenv("serve", "CartPole-v1", "--socket", str(folder / "s"))
    assert found.returncode == 2 and "its mode is 0755, expected 0700" in found.stderr


def test_path_of_a_socket_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    found = vecenv("serve", "CartPole-v1", "--socket", str(tmp_path / ("s" * 110)))
    assert found.returncode == 2 and "107 bytes" in found.stderr
