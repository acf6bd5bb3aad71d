"""The ALF rollout prints a batch whose step types and discounts agree; a seed repeats it."""

from __future__ import annotations

import re

import pytest

from vecenv.examples.alf_rollout import main


@pytest.mark.extended
def test_rollout_prints_step_types_and_discounts(capsys: pytest.CaptureFixture[str]):
    outputs = []
    for _ in range(2):
        main(["--envs", "4", "--steps", "50", "--limit", "15", "--seed", "3"])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    rows = re.findall(r"^ *(\d+)  ([F.L]{4})(.*)$", outputs[0], flags=re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(51))
    for env_id in range(4):
        kinds = "".join(types[env_id] for _, types, _ in rows)
        assert re.fullmatch(r"(F\.*L)*(F\.*)?", kinds), "every episode goes from FIRST to LAST"
        for (_, types, told), length in zip(rows, range(51)):
            assert (types[env_id] == "L") == (f"env {env_id}: " in told), length
    ended, cut_off = map(int, re.search(r"(\d+) episodes ended .* (\d+) were cut off", outputs[0]).groups())
    assert [ended, cut_off] == [sum(told.count(f": {d}") for *_, told in rows) for d in (0, 1)]
    assert ended and cut_off, "both kinds of end are shown"
