"""Global generators: the numbers that an env draws from them depend only on its own calls."""

from __future__ import annotations

import functools
import os
import pickle
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from vecenv.core.host import generator_states
from vecenv.core.host.global_rngs import GlobalRngs
from vecenv.core.layout.flags import Autoreset
from vecenv.core.layout.native import load
from vecenv.core.options import PoolFailurePolicy, PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.envs.toys import CountEnv, NoisyGlobal, ToyEnv

KINDS = {
    "random": lambda: random.random(),
    "numpy": lambda: np.random.random(),
    "gauss": lambda: random.gauss(0.0, 1.0),  # each second number is the cached half of a pair
    "normal": lambda: np.random.normal(),
    "integers": lambda: np.random.randint(1 << 30),
    # several refills of the generator's state
    "bytes": lambda: float(len(np.random.bytes(10_000))) + np.random.random(),
    "seeding": lambda: (random.seed(5), np.random.seed(5), random.random() + np.random.random())[-1],
}


class Draws(ToyEnv):
    """Draws in the calls named by `moments`; in steps only at every `every`-th one from step `first` on."""

    def __init__(self, kind: str, moments: str = "step", first: int = 1, every: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.draw, self.moments, self.first, self.every = KINDS[kind], moments, first, every
        self.built = self.draw() if "construct" in moments else 0.0
        self.drawn = 0.0

    def reset(self, **kwargs: Any) -> Any:
        self.drawn = self.draw() if "reset" in self.moments else 0.0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        due = self.num_steps + 1 - self.first
        if "step" in self.moments and due >= 0 and due % self.every == 0:
            self.drawn = self.draw()
        return super().step(action)

    def ask(self) -> float:
        return self.draw() if "call" in self.moments else 0.0

    def make_info(self) -> dict[str, Any]:
        return {"drawn": float(self.built + self.drawn)}


def ask(env: Any) -> float:
    value: float = env.ask()
    return value


def play(pool: Any, steps: int = 15, before: Callable[[int], None] = lambda step: None) -> list[list[float]]:
    """Return the numbers that each env has drawn up to each of its answers."""
    seen: list[list[float]] = [[] for _ in range(pool.num_envs)]

    def note(batch: Any) -> None:
        for env_id, info in zip(batch.env_ids, batch.infos()):
            seen[env_id].append(info["drawn"])

    with pool:
        pool.start()
        pool.reset(seeds=list(range(pool.num_envs)))
        note(pool.recv())
        for step in range(steps):
            before(step)
            pool.send(np.zeros(pool.num_envs, np.int64))
            note(pool.recv())
            if step % 7 == 3:
                for env_id, value in enumerate(pool.call(ask)):
                    seen[env_id].append(value)
    return seen


def some_envs(seed: int, count: int = 3) -> list[Callable[[], Draws]]:
    rng = random.Random(seed)
    moments = ["construct", "reset", "step", "call", "nothing", "reset step", "construct step call"]
    both = rng.choice(list(KINDS))  # two envs that meet in the neutral state, and two others
    chosen = [(both, "step"), (both, "step"), *((rng.choice(list(KINDS)), rng.choice(moments)) for _ in range(count))]
    return [
        functools.partial(Draws, kind, moment, rng.randint(1, 6), rng.randint(1, 3), length=rng.randint(2, 9))
        for kind, moment in chosen
    ]


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP])
def test_draws_do_not_depend_on_the_other_envs_of_a_process(
    monkeypatch: pytest.MonkeyPatch, seed: int, autoreset: Autoreset
) -> None:
    env_fns = some_envs(seed)
    options = functools.partial(
        PoolOptions, autoreset=autoreset, final_obs=autoreset is Autoreset.SAME_STEP, rng_entropy=3
    )
    expected = play(ProcessPool(env_fns, options(num_workers=len(env_fns))))
    assert play(ProcessPool(env_fns, options(num_workers=2))) == expected
    assert play(ProcessPool(env_fns, options(num_workers=1, context="spawn" if seed == 0 else "fork"))) == expected
    assert play(SerialPool(env_fns, options())) == expected
    if load() is not None:
        monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")
        assert play(ProcessPool(env_fns, options(num_workers=1))) == expected
        assert play(SerialPool(env_fns, options())) == expected


class DrawsInLaterResets(Draws):
    def reset(self, **kwargs: Any) -> Any:
        self.drawn = self.draw() if self.num_steps else 0.0
        return ToyEnv.reset(self, **kwargs)


@pytest.mark.extended
@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP])
def test_first_draw_in_an_autoreset_is_noticed(autoreset: Autoreset, implementation: str) -> None:
    env_fns = [functools.partial(DrawsInLaterResets, "random", "nothing", length=3)] * 2
    options = functools.partial(PoolOptions, autoreset=autoreset, rng_entropy=3)
    expected = play(ProcessPool(env_fns, options(num_workers=2)))
    assert play(ProcessPool(env_fns, options(num_workers=1))) == expected


def test_envs_of_one_kind_draw_different_numbers() -> None:
    env_fns = [functools.partial(Draws, "random", "construct reset step call")] * 4
    seen = play(SerialPool(env_fns))
    drawn = [value for stream in seen for value in stream]
    assert len(set(drawn)) == len(drawn)


SMALL = sorted(KINDS.keys() - {"bytes"})  # kinds that take few words in a call


#: Steps without a draw before the first one: in most, the state is still swapped in then, or no longer.
QUIET = [0, 15, 16, 39]


def call_quietly(rngs: GlobalRngs, env_id: int, times: int) -> None:
    for _ in range(times):
        rngs.call_lazily(env_id, int)
    assert not rngs.has_drawn(env_id)


@pytest.mark.parametrize("quiet", QUIET)
@pytest.mark.parametrize("kind", SMALL)
def test_first_draws_in_steps_are_the_envs_own(kind: str, quiet: int) -> None:
    with GlobalRngs(entropy=3) as rngs:
        call_quietly(rngs, 1, quiet)
        lazily = [rngs.call_lazily(1, KINDS[kind]) for _ in range(5)]
    with GlobalRngs(entropy=3) as rngs:
        assert [rngs.call_swapped(1, KINDS[kind]) for _ in range(5)] == lazily


@pytest.mark.parametrize("kind", SMALL)
def test_envs_draw_the_same_numbers_whenever_they_begin_to(kind: str, implementation: str) -> None:
    def drawn(first: int) -> list[list[float]]:
        pool = SerialPool([functools.partial(Draws, kind, "step", first)] * 2)
        return [list(dict.fromkeys(filter(None, stream)))[:4] for stream in play(pool, steps=9)]

    assert drawn(1) == drawn(3)


def draw_many(count: int) -> list[list[float]]:
    return [[random.random() for _ in range(count)], np.random.random(count).tolist()]


@pytest.mark.parametrize("count", [30, 311, 1000, 5000])
@pytest.mark.parametrize("quiet", QUIET)
def test_env_continues_its_own_numbers_after_a_long_first_draw(quiet: int, count: int) -> None:
    with GlobalRngs(entropy=3) as rngs:
        expected = [rngs.call_swapped(1, draw_many, one) for one in (count, 8)]
    with GlobalRngs(entropy=3) as rngs:
        call_quietly(rngs, 1, quiet)
        first, second = (rngs.call_lazily(1, draw_many, one) for one in (count, 8))
    num_own = count if quiet < 16 else 4  # two words each
    assert [row[:num_own] for row in first] == [row[:num_own] for row in expected[0]]
    assert second == expected[1]


@pytest.mark.parametrize("quiet", [16, 39])
def test_env_that_seeds_a_generator_in_a_late_step_has_that_seed(quiet: int) -> None:
    def seed() -> list[float]:
        np.random.seed(5), random.seed(5)
        return draw_many(1000)[0][-1:]

    with GlobalRngs(entropy=3) as rngs:
        call_quietly(rngs, 1, quiet)
        found = rngs.call_lazily(1, seed), rngs.call_lazily(1, draw_many, 3)
    with GlobalRngs(entropy=4) as rngs:
        assert (rngs.call_swapped(2, seed), rngs.call_swapped(2, draw_many, 3)) == found


def test_reset_with_a_seed_begins_the_streams_anew() -> None:
    with GlobalRngs(entropy=3) as rngs, GlobalRngs(entropy=4) as others:
        streams = []
        for seed, pool, env_id in (
            (7, rngs, 0),
            (np.int64(7), others, 5),
            (8, rngs, 0),
            ([7, 8], rngs, 0),
            (None, rngs, 0),
        ):
            pool.reseed(env_id, seed)
            streams.append([pool.call_lazily(env_id, random.random), pool.call_lazily(env_id, np.random.random)])
    assert streams[0] == streams[1], "of another pool"
    assert len({stream[0] for stream in streams}) == 4


def test_generators_of_the_caller_are_restored_after_an_env_draws() -> None:
    random.seed(1), np.random.seed(1)
    expected = [(random.gauss(0, 1), np.random.normal()) for _ in range(4)]
    random.seed(1), np.random.seed(1)
    got = [(random.gauss(0, 1), np.random.normal())]  # both have a cached second Gaussian
    with SerialPool([functools.partial(NoisyGlobal, 3)] * 3) as pool:
        pool.start()
        got.append((random.gauss(0, 1), np.random.normal()))
        pool.reset()
        pool.recv()
        got.append((random.gauss(0, 1), np.random.normal()))
        pool.send(np.zeros(3, np.int64))
        pool.recv()
    got.append((random.gauss(0, 1), np.random.normal()))
    assert got == expected


class FailsAfterDrawing(ToyEnv):
    def step(self, action: Any) -> Any:
        value = random.random()
        super().step(action)
        raise LookupError(value)


@pytest.mark.parametrize("num_workers", [None, 1, 2])
def test_step_that_draws_and_raises(num_workers: int | None) -> None:
    engine: Any = SerialPool if num_workers is None else ProcessPool
    with engine([FailsAfterDrawing] * 2, PoolOptions(num_workers=num_workers)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        values = []
        for _ in range(2):
            pool.send(np.zeros(2, np.int64))
            values.append([error.args[0] for error in pool.recv().errors().values()])
    assert len({*values[0], *values[1]}) == 4


def test_quick_call_that_draws_and_raises_keeps_the_neutral_state() -> None:
    def fail() -> None:
        raise LookupError(random.random())

    with GlobalRngs() as rngs:
        values = []
        for _ in range(2):
            with pytest.raises(LookupError) as caught:
                rngs.call_lazily(1, fail)
            values += caught.value.args
        assert rngs.has_drawn(1) and not rngs.restore_neutral()
    with GlobalRngs() as rngs:
        assert [rngs.call_swapped(1, random.random) for _ in range(2)] == values


def test_streams_go_on_from_a_state() -> None:
    rngs, others = GlobalRngs(), GlobalRngs()
    with rngs, rngs.of(3):
        random.gauss(0, 1), np.random.normal()
    assert others.unpack_state(5, rngs.pack_state(3, b"state")) == b"state"
    with rngs, rngs.of(3):
        expected = random.gauss(0, 1), np.random.normal(), random.random()
    with others, others.of(5):
        assert (random.gauss(0, 1), np.random.normal(), random.random()) == expected
    assert others.has_drawn(5)


def test_state_contains_how_many_calls_there_were() -> None:
    rngs, others = GlobalRngs(entropy=3), GlobalRngs(entropy=3)
    with rngs:
        call_quietly(rngs, 3, 10)
    others.unpack_state(3, rngs.pack_state(3, b""))
    found = []
    for one in rngs, others:
        with one:
            call_quietly(one, 3, 6)
            found.append(one.call_lazily(3, draw_many, 30))
    assert found[0] == found[1]


def test_cached_second_gaussian_stays_with_its_env() -> None:
    with GlobalRngs() as rngs:
        alone = rngs.call_lazily(1, random.gauss, 0, 1)
    random.gauss(0, 1)
    with GlobalRngs() as rngs:
        assert rngs.call_lazily(1, random.gauss, 0, 1) == alone, "the caller has one left over"
    with GlobalRngs() as rngs:
        rngs.call_swapped(0, random.gauss, 0, 1)
        assert rngs.call_lazily(1, random.gauss, 0, 1) == alone, "env 0 has one left over"


def test_forgotten_env_draws_from_its_first_state_again() -> None:
    drawn = []
    with GlobalRngs() as rngs:
        for _ in range(2):
            drawn.append(rngs.call_swapped(0, random.random))
            assert rngs.has_drawn(0)
            rngs.forget(0)
            assert not rngs.has_drawn(0)
    assert drawn[0] == drawn[1]


def test_pools_within_the_envs_of_a_pool_leave_their_streams_alone() -> None:
    outer, inner = GlobalRngs(), GlobalRngs()
    with outer, outer.of(0):
        expected = [random.random(), random.random()]
    again = GlobalRngs()
    with again, again.of(0):
        got = [random.random()]
        with inner, inner.of(0):
            assert random.random() == expected[0]
        got.append(random.random())
    assert got == expected


def test_second_thread_gets_no_streams() -> None:
    state = random.getstate()
    entered: list[bool] = []
    with GlobalRngs():

        def enter() -> None:
            with GlobalRngs() as second:
                entered.append(second.is_active)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert entered == [False] and random.getstate() == state


def test_workers_forked_beside_a_thread_that_serves_have_their_streams() -> None:
    env_fns = [functools.partial(Draws, "random")] * 2
    expected = play(SerialPool(env_fns))
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with GlobalRngs():
            inside.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        assert play(ProcessPool(env_fns, PoolOptions(num_workers=1, context="fork"))) == expected
    finally:
        done.set()
        thread.join()


def test_generators_of_another_layout_are_swapped_by_their_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    env_fns = [functools.partial(Draws, kind, "construct reset step call", length=4) for kind in KINDS]
    expected = play(SerialPool(env_fns, PoolOptions(rng_entropy=3)))
    monkeypatch.setattr(generator_states, "_gauss_offset", lambda: None)
    assert GlobalRngs().watched_words == ()
    assert play(SerialPool(env_fns, PoolOptions(rng_entropy=3))) == expected


@pytest.mark.native
def test_layout_of_generators_is_known_on_this_platform() -> None:
    assert len(GlobalRngs().watched_words) in (4, 6), "with torch"


def test_threads_that_draw_are_warned_about_once() -> None:
    env_fns = [functools.partial(Draws, "numpy")] * 4
    with ProcessPool(env_fns, PoolOptions(num_workers=1, threads_per_worker=2)) as pool:
        pool.start()
        pool.reset()
        pool.recv()

        def step_and_ask() -> None:
            pool.send(np.zeros(4, np.int64))
            pool.recv()
            pool.call(ask)  # reads all messages

        with pytest.warns(UserWarning, match="global random generators"):
            step_and_ask()
        step_and_ask()  # warnings are errors, so a second one would raise


class Threads(CountEnv):
    """Records the thread of each call."""

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.seen = {"construct": threading.get_ident()}

    def reset(self, **kwargs: Any) -> Any:
        self.seen["reset"] = threading.get_ident()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.seen["step"] = threading.get_ident()
        return super().step(action)

    def report(self) -> tuple[int, dict[str, int]]:
        self.seen["call"] = threading.get_ident()
        return os.getpid(), self.seen

    def close(self) -> None:
        with open(self.path, "w") as file:
            file.write(str(threading.get_ident()))


@pytest.mark.parametrize("implementation", ["native", "python"])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_call_of_an_env_runs_in_one_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, implementation: str, threads: int
) -> None:
    if implementation == "native" and load() is None:
        pytest.skip("the extension was not built")
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    env_fns = [functools.partial(Threads, str(tmp_path / f"{env_id}"), length=2) for env_id in range(8)]
    with ProcessPool(env_fns, PoolOptions(num_workers=2, threads_per_worker=threads)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        for _ in range(5):  # autoresets too
            pool.send(np.zeros(8, np.int64))
            pool.recv()
        reports = pool.call(Threads.report)
    closed = [int((tmp_path / f"{env_id}").read_text()) for env_id in range(8)]
    for (_, seen), ident in zip(reports, closed):
        assert set(seen) == {"construct", "reset", "step", "call"}
        assert {*seen.values(), ident} == {ident}
    workers = {pid: {seen["call"] for other, seen in reports if other == pid} for pid, _ in reports}
    assert [len(idents) for idents in workers.values()] == [threads, threads]


class Kept(NamedTuple):
    state: bytes
    is_complete: bool = True
    holds_calls: bool = False


class DrawsSnapshotter:
    """Captures the whole of a `Draws` that draws in every step.

    Without the global generators, a seeded reset would be enough.
    """

    def spans_episodes(self, env: Any) -> bool:
        return False

    def capture(self, env: Any, *, within_episode: bool = False) -> Kept:
        return Kept(pickle.dumps(env.unwrapped.np_random))

    def restore(self, env: Any, state: bytes) -> None:
        env.unwrapped.np_random = pickle.loads(state)


@pytest.mark.extended
@pytest.mark.native
@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP])
@pytest.mark.parametrize("moments", ["step", "reset", "construct reset step call"])
def test_killed_worker_continues_its_draws(autoreset: Autoreset, moments: str) -> None:
    if load() is None:
        pytest.skip("recovery needs the extension")
    env_fns = [functools.partial(Draws, kind, moments, length=4 + 13 * (i % 3)) for i, kind in enumerate(KINDS)]
    failures = PoolFailurePolicy(on_failure="recover", max_restarts=100)
    options = PoolOptions(autoreset=autoreset, final_obs=True)
    killed: list[int] = []

    def reset_sometimes(pool: Any, step: int) -> None:
        if step in (8, 19):
            pool.reset(seeds=[step] * pool.num_envs)
            pool.recv()

    def kill_sometimes(pool: Any, step: int) -> None:
        reset_sometimes(pool, step)
        if step % 6 == 5:
            killed.append(pool.worker_pids[step % 4 // 2])
            os.kill(killed[-1], signal.SIGKILL)

    alone = SerialPool(env_fns, options)
    expected = play(alone, 30, functools.partial(reset_sometimes, alone))
    recovering_pool = ProcessPool(
        env_fns, replace(options, num_workers=2, failures=failures), snapshotter=DrawsSnapshotter()
    )
    assert play(recovering_pool, 30, functools.partial(kill_sometimes, recovering_pool)) == expected
    assert len(set(killed)) == 5
