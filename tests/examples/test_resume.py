"""The example `resume` continues with the weights of a run that was never killed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from vecenv.examples.resume import train
from vecenv.examples.resume_kills import main


def test_training_in_two_parts_has_the_returns_of_one(tmp_path: Path) -> None:
    expected = train(tmp_path / "whole.pt", 6, 0, 60.0)
    train(tmp_path / "parts.pt", 2, 0, 60.0)
    assert train(tmp_path / "parts.pt", 6, 0, 60.0) == expected


@pytest.mark.slow
def test_killed_run_has_equal_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--kills", "2", "--iterations", "40", "--plot", str(tmp_path / "picture.png")])
    assert capsys.readouterr().out == "weights after 2 kills: equal\n"
    assert (tmp_path / "picture.png").stat().st_size > 10_000
