"""Envs that write to wrong addresses of the memory that their workers share: workers die, and the program continues."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.faults.traces import play, recovering_pool, undisturbed
from tests.programs import run_python
from vecenv.core.layout.arena import HEADER_WORDS, LINE, MAGIC
from vecenv.core.layout.counters import COUNTERS_MAGIC, COUNTERS_WORDS
from vecenv.core.layout.native import load
from vecenv.core.options import Limits
from vecenv.envs import toys

PROGRAM = Path(__file__).with_name("stray_program.py")
OUTCOME = re.compile(r"\d+ (finished|\w+: .+)")


def run_seeds(first: int, last: int, **environ: str) -> None:
    """Run the program with these seeds, and check that it ends by itself with errors of vecenv only."""
    done = run_python(str(PROGRAM), str(first), str(last), env={**os.environ, **environ}, cwd="/", timeout=None)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"the last outcome was {lines[-1:]}; {done.stderr[-3000:]}"
    assert len(lines) == last - first and all(map(OUTCOME.fullmatch, lines)), lines


@pytest.mark.parametrize("implementation", ["native", "python"])
def test_stray_writes_end_workers_and_not_the_program(implementation: str) -> None:
    if implementation == "native" and load() is None:
        pytest.skip("the extension was not built")
    run_seeds(0, 8, VECENV_IMPLEMENTATION=implementation)


# ---- one group of words ---------------------------------------------------------------------


class Overwriting(toys.CountEnv):
    """Overwrites words of the shared memory of its worker in one step, unless a file shows that it has done so."""

    def __init__(self, file: str, words: str) -> None:
        super().__init__()
        self.file, self.words, self.num_steps = file, words, 0

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        if self.words and self.num_steps == 3 and not os.path.exists(self.file):
            Path(self.file).touch()
            overwrite(self.words)
        return super().step(action)


def mapped(magic: int, names: tuple[str, ...]) -> tuple[int, dict[str, int]]:
    """Return the address of the shared segment with this magic word, and the words of its header by name."""
    with open("/proc/self/maps") as maps:
        starts = [int(line.split("-")[0], 16) for line in maps if " rw-s " in line and "vecenv" in line]
    for start in starts:
        header = (ctypes.c_int64 * len(names)).from_address(start)
        if header[0] == magic:
            return start, dict(zip(names, header))
    raise LookupError("no such segment")


def overwrite(what: str) -> None:
    arena, words = mapped(MAGIC, HEADER_WORDS)
    counters, more = mapped(COUNTERS_MAGIC, COUNTERS_WORDS)
    blocks = [arena + words["blocks"] + i * words["block_stride"] for i in range(words["num_blocks"])]
    slot = counters + more["slots"]
    nbytes = {
        "header": [(arena, 8 * len(HEADER_WORDS), 0), (counters, 8 * len(COUNTERS_WORDS), 0xFF)],
        "open row": [(arena + words["control"], 8, 0x7F)],
        "stop": [(arena + words["control"] + 2 * LINE, 4, 1)],
        "info keys": [(arena + words["info_keys"], 2048, 0xFF), (arena + words["control"] + 3 * LINE, 4, 0xFF)],
        "queues": [(arena + words["queues"], words["num_slots"] * words["queue_size"] * 32, 0xFF)],
        "newest commands": [(arena + words["newest"], 8 * words["num_envs"], 0xFF)],
        "messages": [(arena + words["byte_rings_up"], words["num_slots"] * words["byte_ring_nbytes"], 0xFF)],
        "owners": [(block + words["owner"], 8 * words["rows"], 0x7F) for block in blocks],
        "cells": [(block + words["cell"], 8 * words["rows"], 0) for block in blocks],
        "links": [(block, 8, 0x7F) for block in blocks],
        "env ids": [(block + words["env_id"], 8 * words["rows"], 0x7F) for block in blocks],
        "step ids": [(block + words["step_id"], 8 * words["rows"], 0) for block in blocks],
        "flags": [(block + words["flags"], 4 * words["rows"], 0xFF) for block in blocks],
        "head": [(slot + LINE, 4, 0x7F)],
        "operation": [(slot + LINE + 4, 20, 0x7F)],
        "counters of messages": [(slot + LINE + 32, 16, 0x7F)],
        "tail": [(slot, 4, 0x7F)],
    }
    for start, count, value in nbytes[what]:
        ctypes.memset(start, value, count)


WORDS = (
    *("header", "open row", "stop", "info keys", "queues", "newest commands", "messages", "owners", "cells", "links"),
    *("env ids", "step ids", "flags", "head", "operation", "counters of messages", "tail"),
)


@pytest.mark.native
@pytest.mark.skipif(load() is None, reason="the extension was not built")
@pytest.mark.parametrize(
    ("words", "in_order"),
    [
        (words, in_order)
        for words in WORDS
        for in_order in (True, False)
        if in_order or words != "flags"  # else rows change that are delivered already, see docs/trust.md
    ],
)
def test_overwritten_words_change_no_answer(words: str, in_order: bool, tmp_path: Path) -> None:
    file = str(tmp_path / "written")
    env_fns = [functools.partial(Overwriting, file, words if number == 1 else "") for number in range(4)]
    limits = Limits(step=5.0, reset=5.0)
    with recovering_pool(env_fns, limits=limits, autoreset=1) as pool:
        found = play(pool, 12, in_order=in_order)
    quiet = undisturbed([functools.partial(Overwriting, file, "")] * 4, 12)
    assert os.path.exists(file) and found.rows == quiet.rows
