"""Programs that measure `backend="ray"`: without Ray, their rows, and the rule that `vecenv bench --ray` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaleout
from benchmarks.promises import choose_rows
from tests.programs import run_python
from vecenv.cli.verdict import ray_rule
from vecenv.errors import ConfigError
from vecenv.measurement.measure import Result

ROOT = Path(__file__).parents[2]

WITHOUT_RAY = """
import runpy, sys
sys.modules["ray"] = None
module, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.mark.extended
@pytest.mark.parametrize("command", ["benchmarks.scaleout", "benchmarks.ray_soak", "vecenv bench --ray"])
def test_missing_ray_is_one_line_with_its_install_command(command: str) -> None:
    done = run_python("-c", WITHOUT_RAY, *command.split(), cwd=ROOT)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "package 'ray'" in done.stderr and 'pip install "ray>=2.50"' in done.stderr


def test_rows_of_one_function_are_measured_once() -> None:
    calls = []

    def measure_rows(bench: Any) -> tuple[list[float], ...]:
        calls.append(bench)
        return [1.0, 2.0], [3.0]

    first, second = scaleout._rows(measure_rows, "x", ("first", 2.0), ("second", 3.0), at_least=False)
    bench = scaleout.Bench(None, scaleout.Effort(1, 0.1))  # type: ignore[arg-type]
    assert (first.measure(bench), second.measure(bench), calls) == ([1.0, 2.0], [3.0], [bench])
    assert first.is_met(1.9) and not first.is_met(2.1) and second.is_met(2.1)


def test_unknown_part_of_a_row_is_an_error() -> None:
    assert len(choose_rows(scaleout._ROWS, ["growth"])) == 2
    with pytest.raises(ConfigError, match="no row contains 'grwoth'; try --list"):
        choose_rows(scaleout._ROWS, ["grwoth"])


def _result(name: str, us_per_batch: float) -> Result:
    return Result(name, "native", 1.0, us_per_batch, None, None, None, None, [1.0])


def test_ray_rule_compares_with_as_many_local_workers() -> None:
    results = [_result("vecenv sync", 12_000.0), _result("vecenv ray", 5_000.0)]
    settings = {"envs": 64, "workers": 2, "ray_shards": 3, "ray_workers": 6}
    rule = ray_rule(results, settings)
    assert "took 12 ms with the process pool (2 workers) and 5 ms over Ray (3 shards, 6 workers)" in rule
    assert "adds about 1 ms, so lockstep over Ray reaches w / (w + 1 ms)" in rule
    assert "rounds above 10 ms (this one is longer)" in rule and "always for pixels" in rule
    quick = ray_rule([_result("vecenv sync", 200.0), _result("vecenv ray", 1_300.0)], {**settings, "ray_workers": 2})
    assert "adds about 1.1 ms" in quick and "(this one is shorter)" in quick


def test_ray_rule_needs_both_pools() -> None:
    assert ray_rule([_result("vecenv sync", 1.0)], {}) == ray_rule([_result("vecenv ray", 1.0)], {}) == ""
