"""Random programs over a `VectorEnv` that is saved and killed; results are those of serial envs without that."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.collection.sharded import ShardedVectorEnv
from tests.core.pool.test_saved_pools import UnknownEnv
from tests.vector.killed_program import open_envs, operate
from vecenv import VectorEnv
from vecenv.core.layout.native import load
from vecenv.envs.toys import ToyEnv

ROOT = Path(__file__).parents[2]
#: Operations that leave the results as they are.
DISTURBANCES = ("kill", "save")


class Program(NamedTuple):
    mode: str
    env_fns: list[Any]
    num_spare_envs: int
    operations: list[tuple[Any, ...]]

    @classmethod
    def random(cls, seed: int) -> Program:
        rng = random.Random(seed)
        count = rng.randint(1, 4)
        is_known = rng.random() < 0.5
        env_fns = [functools.partial(ToyEnv, 4 + i) if is_known else UnknownEnv for i in range(count)]
        names = ["step"] * 9 + ["send", "send", "reset some", "sample", "kill", "save", "save", "save"]
        num_spare_envs = rng.choice([0, 0, 1, count, 2 * count])
        names += ["set length"] if is_known else []
        names += ["branch", "branch"] if is_known else []
        operations: list[tuple[Any, ...]] = [("reset", rng.randint(0, 99))]
        for _ in range(rng.randint(15, 40)):
            name = rng.choice(names)
            some = sorted(rng.sample(range(count), rng.randint(1, count)))
            actions = [rng.randint(0, 1) for _ in range(count)]
            where = rng.choice([1, 2, "serial", "shards"])
            seed_or_none = rng.choice([None, rng.randint(0, 99)])
            operations.append((name, actions, some, where, seed_or_none, rng.random() < 0.5))
        return cls(rng.choice(["NextStep", "SameStep", "Disabled"]), env_fns, num_spare_envs, operations)


class Player:
    """Runs a program; `results` has all arrays. `folder`: for saved files; None: nothing disturbs the program."""

    def __init__(self, program: Program, folder: Path | None) -> None:
        self.program, self.folder = program, folder
        self.results: list[Any] = []
        self.sent: list[int] = []
        self.is_serial = folder is None
        self.changes_envs = any(operation[0] == "set length" for operation in program.operations)
        self.envs = self.open("serial" if folder is None else 2)
        self.envs.action_space.seed(5)

    def open(self, where: Any, **options: Any) -> VectorEnv:
        self.is_serial = where == "serial"
        options["num_spare_envs"] = self.program.num_spare_envs
        options["autoreset_mode"] = self.program.mode
        if where == "shards":
            return ShardedVectorEnv(self.program.env_fns, **options)
        options |= {"backend": "serial"} if self.is_serial else {"num_workers": where}
        return VectorEnv(self.program.env_fns, **options)

    def run(self) -> list[Any]:
        with self:
            for name, *arguments in self.program.operations:
                if name in DISTURBANCES:
                    if self.folder is not None:
                        getattr(self, f"do_{name}")(*arguments)
                    continue
                self.receive()
                getattr(self, f"do_{name.replace(' ', '_')}")(*arguments)
            self.receive()
        return self.results

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: Any) -> None:
        self.envs.close()

    def receive(self) -> None:
        if self.sent:
            ids, self.sent = self.sent, []
            *arrays, _ = self.envs.recv(env_ids=ids)
            self.keep(arrays, ids)

    def keep(self, arrays: list[Any], ids: list[int]) -> None:
        self.results.append([array.tolist() for array in arrays])
        ended = [env_id for env_id, done in zip(ids, (arrays[2] | arrays[3]).tolist()) if done]
        if ended and self.program.mode == "Disabled":
            self.results.append(self.envs.reset(env_id=ended)[0].tolist())

    def do_reset(self, seed: int) -> None:
        self.results.append(self.envs.reset(seed=seed)[0].tolist())

    def do_step(self, actions: list[int], *_: Any) -> None:
        *arrays, _ = self.envs.step(actions)
        self.keep(arrays, list(range(len(actions))))

    def do_send(self, actions: list[int], some: list[int], *_: Any) -> None:
        self.envs.send([actions[i] for i in some], some)
        self.sent = some

    def do_reset_some(self, _: Any, some: list[int], where: Any, seed: int | None, __: bool) -> None:
        self.results.append(self.envs.reset(env_id=some, seed=seed)[0].tolist())

    def do_set_length(self, actions: list[int], *_: Any) -> None:
        self.envs.set_attr("length", [3 + sum(actions)] * len(actions))

    def do_branch(self, actions: list[int], some: list[int], *_: Any) -> None:
        (state,) = self.envs.get_states([sum(actions) % len(actions)])
        if not (state.is_over and self.program.mode == "Disabled"):
            self.results.append(self.envs.set_states(state, some).tolist())

    def do_sample(self, *_: Any) -> None:
        self.results.append(self.envs.action_space.sample().tolist())

    def do_kill(self, *_: Any) -> None:
        if not self.is_serial:
            is_sharded = isinstance(self.envs, ShardedVectorEnv)
            pid = self.envs.carrier.pid_of(0) if is_sharded else self.envs.worker_pids[0]
            with contextlib.suppress(ProcessLookupError):  # it was killed right before
                os.kill(pid, signal.SIGKILL)

    def do_save(self, actions: list[int], _: Any, where: Any, __: Any, in_file: bool) -> None:
        is_sent = self.sent and not self.program.num_spare_envs
        is_refused = is_sent or self.changes_envs or self.program.env_fns[0] is UnknownEnv
        if self.is_serial and is_refused:
            return
        assert self.folder is not None
        if in_file:
            self.envs.save(self.folder / "state")
            self.envs.close()
            self.envs = self.open(where, resume=self.folder / "state")
        else:
            state = self.envs.state_dict()
            self.envs.reset(seed=sum(actions))
            self.envs.load_state_dict(state)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(60))
def test_saved_program_has_the_results_of_an_undisturbed_one(seed: int, tmp_path: Path) -> None:
    program = Program.random(seed)
    assert Player(program, tmp_path).run() == Player(program, None).run()


def run_until_killed(arguments: list[str], implementation: str, rng: random.Random, *, in_save: bool) -> list[Any]:
    """Run `killed_program` and kill it at a random instant, in a save if possible; return its complete lines."""
    num_saves, lines = rng.randint(1, 6), []
    command = [sys.executable, "-m", "tests.vector.killed_program", *arguments]
    environ = {**os.environ, "VECENV_IMPLEMENTATION": implementation}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ) as process:
        timer = threading.Timer(60.0 if in_save else rng.uniform(0.2, 2.5), process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:  # its workers have the other end, too: this ends with the last of them
            if line.endswith("\n"):
                lines.append(json.loads(line))
            if in_save and lines[-1] == "save" and lines.count("save") == num_saves:
                time.sleep(rng.choice([0.0, rng.uniform(0.0, 0.01)]))
                process.kill()
        timer.cancel()
        timer.join()
    assert process.returncode == -signal.SIGKILL
    return lines


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["known", "unknown"])
@pytest.mark.parametrize(
    ("seed", "num_kills"), [(0, 5), *(pytest.param(seed, 25, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_run_that_is_killed_at_random_instants_continues_bit_for_bit(
    seed: int, num_kills: int, kind: str, tmp_path: Path
) -> None:
    """Each part of the run has other workers, and another implementation if no commands are repeated."""
    rng, path = random.Random(seed), tmp_path / "state"
    places = itertools.cycle(["2", "serial", "1"] if kind == "known" else ["2", "1", "3"])
    both = kind == "known" and load() is not None
    implementations = itertools.cycle(["native", "python"] if both else ["python" if load() is None else "native"])
    at, num_in_save = 0, 0
    saved = {at}  # numbers of results after which the file may have been saved
    with open_envs(kind, "serial") as undisturbed:
        expected = [[undisturbed.observations.tolist()]]
        for number in range(3 * num_kills):
            if number >= num_kills and num_in_save >= num_kills // 5:
                break
            arguments = [str(path), kind, next(places)]
            lines = run_until_killed(arguments, next(implementations), rng, in_save=number % 2 == 0)
            if lines:
                (at,) = saved = {one for one in saved if expected[one][0] == lines[0][0]}
            for line in lines[1:]:
                if line == "save":
                    saved = {*saved, at}
                elif line == "saved":
                    saved = {at}
                else:
                    at += 1
                    while len(expected) <= at:
                        expected.append(operate(undisturbed))
                    assert line == expected[at]
            num_in_save += lines[-1:] == ["save"]
            assert {*os.listdir(tmp_path)} <= {"state", ".state.part"}
    assert num_in_save >= num_kills // 5 and at > num_kills
