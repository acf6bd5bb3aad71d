"""`-m tests.vector.killed_program FILE KIND WHERE`: an endless program over a `VectorEnv`, killed by a test.

The program continues from the file if it exists, and saves to it again and again. All its operations are drawn from the
generator of the action space, which the file contains. So they are those of a program that was never killed.

Lines on the standard output, as JSON: the observations at the start; the result of each operation, which begins with
all observations; "save" before each save and "saved" after it.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import gymnasium

from tests.core.pool.test_saved_pools import UnknownEnv
from vecenv import VectorEnv

#: Constructors of envs and the autoreset mode, by kind. The states of known envs are saved, and the commands of others.
KINDS: dict[str, tuple[list[Any], str]] = {
    "known": ([lambda: gymnasium.make("CartPole-v1")] * 8, "NextStep"),
    "unknown": ([UnknownEnv] * 3, "SameStep"),
}


def open_envs(kind: str, where: str, resume: Path | None = None) -> VectorEnv:
    """Return the envs of a kind; `where` is 'serial' or a number of workers."""
    env_fns, mode = KINDS[kind]
    options: dict[str, Any] = {"backend": "serial"} if where == "serial" else {"num_workers": int(where)}
    envs = VectorEnv(env_fns, autoreset_mode=mode, resume=resume, **options)
    if resume is None:
        envs.action_space.seed(0)
        envs.reset(seed=4)
    return envs


def operate(envs: VectorEnv) -> list[Any]:
    """Step all envs, or reset some of them; return the result."""
    rng = envs.action_space.np_random
    if rng.random() < 0.2:
        mask = rng.permutation(envs.num_envs) <= rng.integers(envs.num_envs)
        seed = int(rng.integers(1 << 31)) if rng.random() < 0.5 else None
        return [envs.reset(seed=seed, options={"reset_mask": mask})[0].tolist()]
    return [array.tolist() for array in envs.step(envs.action_space.sample())[:4]]


def main(path: Path, kind: str, where: str) -> None:
    """Run until the program is killed."""
    envs = open_envs(kind, where, path if path.exists() else None)
    tell([envs.observations.tolist()])
    while True:
        tell(operate(envs))
        if random.random() < 0.3:
            tell("save")
            envs.save(path)
            tell("saved")


def tell(value: Any) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
