"""A program whose env overwrites memory that its worker shares with other processes, like C code with a wrong pointer.

    python stray_program.py FIRST LAST      one vector env for each seed from FIRST to LAST - 1

For each seed it prints 'finished', or the error of vecenv that has ended its loop. Any other exception ends it, and a
vector env that takes longer than a minute kills it.
"""

from __future__ import annotations

import ctypes
import logging
import random
import signal
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import vecenv

#: The words are written before this step of each life of env 0.
STEP = 3
VALUES = (2**64 - 1, 1 << 63, 2**63 - 1, (1 << 40) + 3, 0)


class Stray(gymnasium.Env[Any, Any]):
    """Env 0 overwrites random words of the shared memory of its worker, with infos in cells and in messages."""

    observation_space, action_space = spaces.Box(-9, 99, (5,), np.float32), spaces.Discrete(2)

    def __init__(self, number: int, seed: int) -> None:
        self.number, self.seed, self.num_steps = number, seed, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(5, np.float32), {"lives": 1, "text": "reset"}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        if self.number == 0 and self.num_steps == STEP:
            self.write()
        info = {"lives": self.num_steps, "text": "text" * (self.num_steps % 3)}
        return np.full(5, self.num_steps, np.float32), 1.0, self.num_steps % 7 == 0, False, info

    def write(self) -> None:
        rng, areas = random.Random(self.seed), []
        with open("/proc/self/maps") as maps:
            for line in maps:
                fields = line.split()
                if len(fields) > 5 and fields[1].startswith("rw-s") and "vecenv" in line:
                    areas.append([int(end, 16) for end in fields[0].split("-")])
        for _ in range(rng.choice([1, 40, 400])):
            start, stop = rng.choice(areas)
            stop = min(stop, start + 65536 * rng.choice([1, 1, 8, 1 << 20]))  # most words stand at the start
            at = start + 8 * rng.randrange((stop - start) // 8)
            value = rng.choice([*VALUES, rng.getrandbits(64), rng.getrandbits(32), rng.getrandbits(8)])
            ctypes.c_uint64.from_address(at).value = value

    def number_of(self) -> int:
        return self.number


def run(seed: int) -> str:
    """Return the outcome of one vector env."""
    made = [lambda number=number: Stray(number, seed) for number in range(4)]
    limits = vecenv.Timeouts(step=2.0, call=2.0, reset=2.0, close=2.0)
    envs = vecenv.VectorEnv(made, num_workers=2, failures={"max_restarts": 3}, timeouts=limits)
    envs.reset(seed=0)
    zeros = np.zeros(4, np.int64)
    try:
        for number in range(12):
            if number % 4 == 3:
                envs.call("number_of")
            if number % 3 == 2:
                envs.send(zeros)
                while envs.num_outstanding:
                    envs.recv(1)
            else:
                envs.step(zeros)
    except vecenv.VecenvError as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    finally:
        envs.close()
    return "finished"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("vecenv").setLevel(logging.CRITICAL)
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        signal.alarm(60)
        print(seed, run(seed), flush=True)
