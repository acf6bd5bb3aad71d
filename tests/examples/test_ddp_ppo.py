"""The example `ddp_ppo`: ranks with pools of their own train one agent."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", exc_type=ImportError)

from tests.programs import run_python


@pytest.mark.extended
def test_two_ranks_have_equal_weights_and_learn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "returns.png"
    options = ["--target", "100", "--steps", "60000", "--plot", str(plot)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    done = run_python(*launcher, "vecenv.examples.ddp_ppo", *options, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("weights of all ranks: equal\n")
    mean_return, steps = float(done.stdout.split()[2]), int(done.stdout.split()[4])
    assert mean_return >= 100 and steps < 60_000
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_ddp_program_without_torchrun_names_the_command() -> None:
    done = run_python("-m", "vecenv.examples.ddp_ppo")
    assert done.returncode == 2 and "start it by torchrun" in done.stderr
