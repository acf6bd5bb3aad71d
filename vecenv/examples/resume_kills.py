"""Kill the example `resume` at random instants: `python -m vecenv.examples.resume_kills --kills 5 --plot FILE.png`.

Two runs of it are made, one undisturbed and one that is killed. Their weights must be equal. The picture has the mean
returns of both.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vecenv.cli.options import count, natural
from vecenv.errors import require

__all__ = ["main", "run"]

torch: Any = require("torch", "torch")


def run(path: Path, num_iterations: int, num_kills: int) -> dict[str, Any]:
    """Run the example, killed so often within its first seconds and continued; return its last state."""
    rng = random.Random(0)
    words = ["--state", str(path), "--iterations", str(num_iterations), "--save", "0.1"]
    for number in range(num_kills + 1):
        process = subprocess.Popen([sys.executable, "-m", "vecenv.examples.resume", *words], stdout=subprocess.DEVNULL)
        try:
            process.wait(rng.uniform(2.0, 6.0) if number < num_kills else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    state: dict[str, Any] = torch.load(path, weights_only=False)
    return state


def main(argv: Sequence[str] | None = None) -> None:
    """Make both runs, compare and draw them."""
    parser = argparse.ArgumentParser(description="Compare a training that is killed with one that is not.")
    parser.add_argument("--kills", type=natural, default=5, help="how often one run is killed (default: %(default)s)")
    parser.add_argument("--iterations", type=count, default=200, help="of both runs (default: %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the mean returns of both runs")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        one = run(Path(folder, "undisturbed.pt"), options.iterations, 0)
        other = run(Path(folder, "killed.pt"), options.iterations, options.kills)
    are_equal = all(torch.equal(value, other["agent"][name]) for name, value in one["agent"].items())
    print(f"weights after {options.kills} kills:", "equal" if are_equal else "different")
    if options.plot is not None:
        figure = require("matplotlib.figure", "cli").Figure(figsize=(8, 4))
        axes = figure.subplots()
        axes.plot(one["means"], linewidth=5, alpha=0.4, label="undisturbed")
        axes.plot(other["means"], linewidth=1, label=f"killed {options.kills} times")
        axes.set(xlabel="iteration", ylabel="mean return", title="PPO on CartPole-v1")
        axes.legend()
        figure.savefig(options.plot)


if __name__ == "__main__":
    main()
