"""Tapes: streams, digests and reproducers of today, as hashes that every later version must reproduce bit for bit.

    program of a tape    resets with seeds, options and by force; steps of all envs and of some; calls that last;
                         exceptions; episodes that end; global generators
    its stream           the answers of each env, see `tests.faults.traces`; the same over every engine, kills included
    its digests          the newest records of the envs, with which a recovery compares its repeated answers
    its reproducer       the results of `Reproducer.run`

The env uses only raw output of generators and integers, which no release of NumPy or Gymnasium changes.
A hash may change only with a decision that old streams end there, which CHANGELOG.md names.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.core.shards.local_pools import LocalPool
from tests.faults.traces import Traces, frozen, kill, recovering_pool
from tests.inside import engine_of, force_spreading
from vecenv.core.layout.flags import Autoreset, Op
from vecenv.core.layout.native import load as load_native
from vecenv.core.options import PoolFailurePolicy, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.core.recovery import reproducer
from vecenv.envs.adapt import adapt_and_build

NUM_ENVS, NUM_ROUNDS = 4, 36

#: By mode of autoreset: SHA-256 of the answers of all envs.
STREAMS = {
    Autoreset.DISABLED: "094ef893d1a026ece3cb85e1fb793e06ed4d2d70687d399115738569c1f3844a",
    Autoreset.NEXT_STEP: "290a2e692c24c4606b1020ec54a17027e9a51491503914462d3cd15cacee0acc",
    Autoreset.SAME_STEP: "ab412c940d5157598f20bfbb31d4e157e1d50d17e47dbb5da53740d30e271dd3",
}
#: By implementation and mode of autoreset: the digests of the two newest records of each env.
DIGESTS: dict[tuple[str, Autoreset], list[list[int]]] = {
    ("native", Autoreset.DISABLED): [
        [6446780376930476907, 3912749875945805834],
        [2787213707479605650, 16614431398474233093],
        [10268523557695390781, 11861176990449468721],
        [6077041901456021992, 1973372692972549870],
    ],
    ("native", Autoreset.NEXT_STEP): [
        [15177232515112073601, 9826092204965768444],
        [6994636542042992987, 3031344584678901641],
        [1844268740358369775, 13482067555242596720],
        [10552986536897875626, 9454261736384682805],
    ],
    ("native", Autoreset.SAME_STEP): [
        [6969152181995715207, 4980937232125146485],
        [10772612288430854344, 4975288178065628019],
        [1844268740358369775, 13482067555242596720],
        [1838882764590338330, 14461238371449703745],
    ],
    ("python", Autoreset.DISABLED): [
        [921293995, 2251441390],
        [2591568828, 4170765833],
        [159470351, 3124126093],
        [2890770834, 1400966208],
    ],
    ("python", Autoreset.NEXT_STEP): [
        [72316583, 3689635528],
        [2058681501, 3078188953],
        [3377625661, 1659023865],
        [3746866210, 3896674497],
    ],
    ("python", Autoreset.SAME_STEP): [
        [833332182, 687381039],
        [2591268223, 4197404965],
        [3377625661, 1659023865],
        [4033514804, 1623495956],
    ],
}
#: By mode of autoreset: SHA-256 of the results of the reproducer of env 1.
REPRODUCERS = {
    Autoreset.DISABLED: "5e0e3c57ab364c98877de6f343b2c6008b84cad367951cdb613dd83014f43303",
    Autoreset.NEXT_STEP: "f56b60ac90f5ece490f08d4cf9e856e4531da74bfd14c6e888e49f93c21c2b6d",
    Autoreset.SAME_STEP: "8120c7a35d625d487bf3d0ca59a7b9d4e266ab31ec5ebdef69bf94b61ffdcc48",
}


class TapeEnv(gymnasium.Env[Any, Any]):
    """Mixes seeds, options, actions, attributes, calls and global generators into one number, which it observes."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (64, 64), np.uint8),  # larger than leaves whose digest covers the whole
            "pair": spaces.Tuple((spaces.Discrete(1000), spaces.Box(-1.0, 1.0, (2,), np.float64))),
        }
    )
    action_space = spaces.Dict({"turn": spaces.Discrete(7), "push": spaces.Box(-1.0, 1.0, (2,), np.float32)})

    def __init__(self, length: int) -> None:
        self.length, self.elapsed, self.state, self.bonus = length, 0, 1, 0

    def mix(self, *values: Any) -> int:
        """Mix values into the state of the env; return it."""
        text = repr((self.state, self.bonus, *values))
        self.state = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "little")
        return self.state

    def observe(self) -> dict[str, Any]:
        image = np.full((64, 64), self.state % 251, np.uint8)
        image[self.state % 64] = self.elapsed
        pair = self.state % 1000, np.array([(self.state % 97) / 97, self.elapsed / 64])
        return {"image": image, "pair": pair}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.elapsed = 0
        if seed is not None:
            self.state = 1  # a seed determines the episode, as Gymnasium demands
        self.mix("reset", self.np_random.bit_generator.random_raw(), options, random.getrandbits(32))
        return self.observe(), {"start": self.state % 31, "name": f"n{self.state % 5}"}

    def step(self, action: Any) -> Any:
        self.elapsed += 1
        push = [float(one) for one in action["push"]]
        self.mix(int(action["turn"]), push, self.np_random.bit_generator.random_raw(), random.getrandbits(32))
        if self.state % 23 == 0:
            raise ValueError(f"state {self.state}")
        is_over, is_cut = self.elapsed == self.length, self.elapsed == self.length - 2 and self.state % 3 == 0
        info = {"state": self.state % 31} if self.state % 2 else {"list": [self.state % 7], "text": "odd"}
        return self.observe(), (self.state % 101) / 4, is_over, is_cut, info


def give_bonus(amount: int, env: TapeEnv) -> int:
    """Change an env by a call that lasts."""
    env.bonus += amount
    return env.mix("call")


def actions_of(round_number: int, env_ids: list[int]) -> dict[str, Any]:
    """Return the actions of a round, which depend on nothing else."""
    turns = [(3 * round_number + 5 * env_id) % 7 for env_id in env_ids]
    pushes = [[(round_number % 9) / 8 - 0.5, (env_id % 5) / 8] for env_id in env_ids]
    return {"turn": np.array(turns), "push": np.array(pushes, np.float32)}


def record(pool: Pool, autoreset: Autoreset, kills: dict[int, Callable[[], object]]) -> Traces:
    """Play the program of a tape; a kill happens while the commands of its round are under way."""
    traces = Traces([[] for _ in range(NUM_ENVS)], [[] for _ in range(NUM_ENVS)])
    everyone, is_over = list(range(NUM_ENVS)), [False] * NUM_ENVS
    pool.start()
    for number in range(NUM_ROUNDS):
        if number == 0:
            pool.reset(seeds=[11, 12, 13, 14])
        elif number in (9, 27):  # resets within episodes
            pool.reset([2, 0], seeds=[number, None], kwargs=[{"options": {"level": number}}, None])
        elif number in (5, 20):
            calls = [functools.partial(give_bonus, number + env_id) for env_id in (1, 3)]
            pool.submit_calls(calls, [1, 3], name="bonus")
        elif autoreset == Autoreset.DISABLED and any(is_over):
            pool.reset([env_id for env_id in everyone if is_over[env_id]])
        else:
            asked = everyone if number % 4 else [3, 1]
            pool.send(actions_of(number, asked), asked)
        if number in kills:
            kills[number]()
        if number in (5, 20):
            pool.collect_calls()
            continue
        traces.take(pool.recv())
        is_over = [any(rows[-1].ended) or rows[-1].obs is None for rows in traces.rows]
    return traces


def hash_of(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def stream_of(traces: Traces) -> str:
    """Return the hash of all answers; of an exception, the hash covers that the row is one."""
    return hash_of([[tuple(row._replace(error=str(row.obs is None))) for row in rows] for rows in traces.rows])


def env_fns() -> list[Any]:
    return [functools.partial(TapeEnv, 6 + env_id) for env_id in range(NUM_ENVS)]


@contextlib.contextmanager
def serial(autoreset: Autoreset) -> Iterator[tuple[Any, dict[int, Any]]]:
    with SerialPool(env_fns(), PoolOptions(autoreset=autoreset), adapt=adapt_and_build) as pool:
        yield pool, {}


@contextlib.contextmanager
def workers(autoreset: Autoreset, rounds: tuple[int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    with recovering_pool(env_fns(), autoreset=autoreset) as pool:
        yield pool, {number: functools.partial(kill, pool, number % 2) for number in rounds}


@contextlib.contextmanager
def moving(autoreset: Autoreset, after: int, rounds: tuple[int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Make a pool that moves its envs to further workers."""
    with pytest.MonkeyPatch.context() as patch:
        force_spreading(patch, after)
        with recovering_pool(env_fns(), autoreset=autoreset, num_workers=None) as pool:
            yield pool, {number: functools.partial(kill, pool, number % 2) for number in rounds}
            assert len(pool.worker_pids) == NUM_ENVS


@contextlib.contextmanager
def shards(autoreset: Autoreset, rounds: tuple[int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    with LocalPool(env_fns(), autoreset=autoreset) as pool:
        yield pool, {number: functools.partial(pool.kill_shard, number % 2) for number in rounds}


KILLS = (0, 5, 9, 14, 20, 27, 28, 35)
PLACES = {
    "serial": serial,
    "workers": workers,
    "killed workers": functools.partial(workers, rounds=KILLS),
    **{f"moving after {after}": functools.partial(moving, after=after) for after in (0, 1, 6, 13, 25)},
    "killed and moving": functools.partial(moving, after=7, rounds=KILLS),
    "shards": shards,
    "killed shards": functools.partial(shards, rounds=KILLS[1::2]),
}
IMPLEMENTATIONS = [
    pytest.param("native", marks=pytest.mark.skipif(load_native() is None, reason="the extension was not built")),
    "python",
]


@pytest.mark.parametrize("autoreset", list(Autoreset), ids=lambda mode: mode.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("place", PLACES)
def test_stream_equals_its_tape(
    place: str, implementation: str, autoreset: Autoreset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    with PLACES[place](autoreset) as (pool, kills):
        traces = record(pool, autoreset, kills)
    assert any(row.obs is None for rows in traces.rows for row in rows), "some step raises"
    assert stream_of(traces) == STREAMS[autoreset]


@pytest.mark.parametrize("autoreset", list(Autoreset), ids=lambda mode: mode.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_digests_and_reproducer_equal_their_tapes(
    implementation: str, autoreset: Autoreset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    # Snapshots of states are taken by time, and start a digest again.
    failures = PoolFailurePolicy(on_failure="recover", reproducer_dir=str(tmp_path))
    options = PoolOptions(num_workers=2, autoreset=autoreset, failures=failures)
    with ProcessPool(env_fns(), options, adapt=adapt_and_build) as pool:
        record(pool, autoreset, {})
        digests = pool.read_records()["digest"].tolist()
        path = engine_of(pool).reproduce(1, Op.STEP, 999).save("because")
    results = [frozen(tuple(result)) for result in reproducer.load(path).run()]
    assert digests == DIGESTS[implementation, autoreset]
    assert hash_of(results) == REPRODUCERS[autoreset]
