"""Large observations arrive without a copy, and the caller owns them nevertheless."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import mmap
import os
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.inside import hub_of, opened_envs
from tests.vector.comparison import assert_same
from vecenv import BatchedVectorEnv, ClosedError, StateError, VectorEnv
from vecenv.core.layout.native import load
from vecenv.core.options import PoolOptions
from vecenv.core.parent.leases import NUM_LEASES
from vecenv.core.pool.serial import SerialPool

pytestmark = pytest.mark.skipif(load() is None, reason="blocks are lent by the extension only")

FRAME = Box(0, 255, (64, 64), np.uint8)
#: The number of batches after which every block of the ring has been used.
A_RING = 30


class Frames(gymnasium.Env):
    """Observes frames drawn from its generator; episodes have nine steps."""

    observation_space = FRAME
    action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        self.count += 1
        return self.observe(), float(self.np_random.integers(9)), self.count == 9, bool(action == 3), {}

    def observe(self):
        return self.np_random.integers(0, 256, (64, 64), np.uint8)


class Nested(Frames):
    observation_space = Dict(low=FRAME, high=Dict(frame=FRAME, count=Discrete(10)))

    def observe(self):
        return {"low": super().observe(), "high": {"frame": super().observe(), "count": self.count}}


class Unseeded(Frames):
    """Continues with frames that a replacement env cannot draw again."""

    def observe(self):
        return np.random.default_rng().integers(0, 256, (64, 64), np.uint8)


def leaf(obs):
    return obs["low"] if isinstance(obs, dict) else obs


def is_lent(envs, obs):
    """Return whether an array is a view of the ring and not a copy."""
    return np.may_share_memory(leaf(obs), envs.pool.memory)


def snapshot(result):
    """Return a copy of a step's results without infos."""
    return [array.copy() for array in result[:4]]


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("env_fn", [Frames, Nested], ids=["plain", "nested"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.value)
def test_leased_batches_do_not_change(backend, env_fn, mode):
    """Batches are lent while blocks are free and copied after that; SyncVectorEnv gives the expected values."""
    with (
        contextlib.closing(VectorEnv([env_fn] * 6, backend=backend, autoreset_mode=mode)) as ours,
        contextlib.closing(SyncVectorEnv([env_fn] * 6, autoreset_mode=mode)) as theirs,
    ):
        actions = MultiDiscrete([4] * 6, seed=7)
        results = [(ours.reset(seed=1), theirs.reset(seed=1))]
        for _ in range(A_RING):
            action = actions.sample()
            results.append((ours.step(action), theirs.step(action)))
        lent = [is_lent(ours, mine[0]) for mine, _ in results]
        assert lent == [True] * NUM_LEASES + [False] * (A_RING + 1 - NUM_LEASES)
        for i, pair in enumerate(results):
            assert_same(*pair, f"batch {i}")
        del pair, results[1:]  # the first one stays lent
        for i in range(A_RING):  # like most loops, this one holds two batches at a time
            action = actions.sample()
            result = ours.step(action)
            assert_same(result, theirs.step(action), f"batch {i}")
            assert is_lent(ours, result[0])
        assert_same(*results[0], "the first batch")


@pytest.mark.extended
@pytest.mark.parametrize("part", ["obs", "row", "rewards", "terminations", "tensor"])
def test_lease_is_held_by_any_part_of_a_batch(part):
    with contextlib.closing(VectorEnv([Frames] * 6)) as envs:
        envs.reset(seed=1)
        result = envs.step([0] * 6)
        obs, rewards, terminations, _, _ = result
        kept = {
            "obs": obs,
            "row": obs[2:3, ::2].reshape(-1, 8)[1:],
            "rewards": rewards[1:],
            "terminations": terminations,
            "tensor": memoryview(obs),
        }[part]
        before = np.array(kept)
        del obs, rewards, terminations, result
        for _ in range(A_RING):
            assert is_lent(envs, envs.step([0] * 6)[0])
        assert np.array_equal(kept, before)
        del kept
        results = [envs.step([0] * 6) for _ in range(NUM_LEASES + 1)]
        assert [is_lent(envs, result[0]) for result in results] == [True] * NUM_LEASES + [False]


@pytest.mark.extended
def test_lease_writes_of_the_caller_reach_no_env():
    with (
        contextlib.closing(VectorEnv([Frames] * 6)) as envs,
        contextlib.closing(VectorEnv([Frames] * 6, copy=False)) as undisturbed,
    ):
        envs.reset(seed=1)
        undisturbed.reset(seed=1)
        for i in range(A_RING):
            result, expected = envs.step([0] * 6), undisturbed.step([0] * 6)
            assert_same(result, expected, f"batch {i}")
            assert is_lent(envs, result[0])
            for array in result[:4]:
                array[...] = 1


@pytest.mark.extended
@pytest.mark.parametrize("env_fn", [Frames, Nested], ids=["plain", "nested"])
def test_lease_of_vector_env_batches(env_fn):
    inner = functools.partial(SyncVectorEnv, [env_fn] * 3)
    with (
        contextlib.closing(BatchedVectorEnv([inner] * 2)) as ours,
        contextlib.closing(SyncVectorEnv([env_fn] * 6)) as theirs,
    ):
        assert_same(ours.reset(seed=1), theirs.reset(seed=1), "reset")
        results = [(ours.step([0] * 6), theirs.step([0] * 6)) for _ in range(A_RING)]
        assert [is_lent(ours, mine[0]) for mine, _ in results] == [True] * NUM_LEASES + [False] * (A_RING - NUM_LEASES)
        for i, pair in enumerate(results):
            assert_same(*pair, f"batch {i}")


@pytest.mark.extended
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_lease_with_resets_by_mask_copies(batched):
    """Rows outside the mask repeat the last observations, also if the caller has modified their arrays."""
    mode = AutoresetMode.DISABLED
    inner = functools.partial(SyncVectorEnv, [Frames] * 3, autoreset_mode=mode)
    make = functools.partial(BatchedVectorEnv, [inner] * 2) if batched else functools.partial(VectorEnv, [Frames] * 6)
    with contextlib.closing(make() if batched else make(autoreset_mode=mode)) as envs:
        envs.reset(seed=1)
        obs = envs.step([0] * 6)[0]
        before = obs.copy()
        obs[...] = 0
        again, _ = envs.reset(options={"reset_mask": np.arange(6) == 0})
        assert np.array_equal(again[3:], before[3:])
        assert not np.array_equal(again[0], before[0])


@pytest.mark.extended
@pytest.mark.parametrize(
    "options", [{"copy": False}, {"checks": "debug"}, {"num_envs": 3}], ids=["views", "debug", "small"]
)
def test_lease_is_not_used_for_these_options(options):
    """Views need no lease, debug mode overwrites old blocks, and small batches are cheap to copy."""
    with contextlib.closing(VectorEnv([Frames] * options.pop("num_envs", 6), **options)) as envs:
        assert opened_envs(envs.pool).plan.leases == 0
        assert envs.results._leases is None


@pytest.mark.extended
@pytest.mark.parametrize("env_fn", [Frames, Nested], ids=["plain", "nested"])
def test_lease_of_partial_batches(env_fn):
    """Rows are lent if their size is worth it, at any position in a block; each env's stream equals a plain loop's."""
    with (
        contextlib.closing(VectorEnv([env_fn] * 8)) as ours,
        contextlib.closing(SyncVectorEnv([env_fn] * 8)) as theirs,
    ):
        theirs.reset(seed=1)
        expected = [theirs.step([0] * 8)[:2] for _ in range(4 * A_RING)]
        counts = [0] * 8
        ours.reset(seed=1)
        ours.send([0] * 8)
        kept = []
        least = 4 if env_fn is Frames else 2  # rows of 16 KiB
        for i in range(A_RING):
            obs, rewards, _, _, infos = ours.recv(4 if i % 3 else 1)
            assert is_lent(ours, obs) == (len(rewards) >= least)
            kept = [*kept, (obs, rewards, [(env_id, counts[env_id]) for env_id in infos["env_id"].tolist()])][-2:]
            for env_id in infos["env_id"].tolist():
                counts[env_id] += 1
            ours.send([0] * len(rewards), infos["env_id"])
            for obs, rewards, rows in kept:
                for row, (env_id, count) in enumerate(rows):
                    then, reward = expected[count]
                    assert np.array_equal(leaf(obs)[row], leaf(then)[env_id])
                    assert rewards[row] == reward[env_id]
            del obs, rewards


@pytest.mark.parametrize("locked", [False, True], ids=["", "locked"])
def test_lease_outlasts_close_and_free_blocks_return_memory(locked):
    """Locked pages cannot be returned, so the test allows for them."""
    envs = VectorEnv([Frames] * 6)
    memory = envs.pool.memory
    words = opened_envs(envs.pool).plan.words
    blocks = memory[words["blocks"] :].reshape(words["num_blocks"], words["block_stride"])
    envs.reset(seed=1)
    for _ in range(A_RING):
        obs, rewards = envs.step([0] * 6)[:2]
    before = obs.copy(), rewards.copy()
    num_used = blocks.any(1).sum()
    libc = ctypes.CDLL(None, use_errno=True)
    if locked and libc.mlock(ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes)):
        envs.close()
        pytest.skip(f"mlock: {os.strerror(ctypes.get_errno())}")
    envs.close()
    assert envs.closed
    assert np.array_equal(obs, before[0]) and np.array_equal(rewards, before[1])
    if locked:
        assert blocks.any(1).sum() == num_used
    else:
        assert 0 < blocks.any(1).sum() < num_used


@pytest.mark.parametrize("num_pages", range(2, 6))
def test_lease_of_huge_pages_returns_only_whole_pages(num_pages, monkeypatch):
    envs = VectorEnv([Frames] * 6, backend="serial")
    envs.reset(seed=1)
    results = [envs.step([0] * 6) for _ in range(A_RING)]
    kept = results[1][:4]
    before = snapshot(kept)
    assert is_lent(envs, kept[0])
    del results
    monkeypatch.setattr(mmap, "PAGESIZE", num_pages * mmap.PAGESIZE)
    envs.close()
    for array, then in zip(kept, before):
        assert np.array_equal(array, then)


def test_lease_received_before_another_thread_closed():
    envs = VectorEnv([Frames] * 6)
    envs.reset(seed=1)
    kept = envs.step([0] * 6)
    batch = envs.pool.step(np.zeros(6, np.int64))
    expected = batch.obs.copy()
    envs.close()
    assert kept is not None and np.array_equal(batch.obs, expected)


@pytest.mark.parametrize("vec_env", ["single", "batched"])
def test_vector_env_without_a_reference_is_closed_at_once(vec_env):
    """The pool keeps the views of its blocks, and this must not keep the vector env alive."""
    if vec_env == "single":
        envs = VectorEnv([Frames] * 6)
    else:
        envs = BatchedVectorEnv([functools.partial(SyncVectorEnv, [Frames] * 3)] * 2)
    envs.reset(seed=1)
    obs = envs.step([0] * 6)[0]
    pool = envs.pool
    gc.disable()
    try:
        del envs
        assert pool.closed and obs.any()
    finally:
        gc.enable()


def test_lease_survives_a_forked_child_that_exits():
    envs = VectorEnv([Frames] * 6, backend="serial")
    with contextlib.closing(envs):
        envs.reset(seed=1)
        kept = [envs.step([0] * 6) for _ in range(2)]
        before = [snapshot(result) for result in kept]
        pid = os.fork()
        if pid == 0:
            envs.close()
            envs.__del__()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert_same([snapshot(result) for result in kept], before, "kept")
        assert envs.pool.memory.any()


def test_lease_in_a_forked_child_does_not_change():
    """The parent cannot count references in a child, and the child uses the parent's memory."""
    with contextlib.closing(VectorEnv([Frames] * 6, backend="serial")) as envs:
        envs.reset(seed=1)
        obs = envs.step([0] * 6)[0]
        go_on = os.pipe()
        before = obs.copy()
        pid = os.fork()
        if pid == 0:
            os.close(go_on[1])
            os.read(go_on[0], 1)  # the parent has then used every block of the ring
            os._exit(0 if np.array_equal(obs, before) else 1)
        del obs
        results = [is_lent(envs, envs.step([0] * 6)[0]) for _ in range(A_RING)]
        for descriptor in go_on:
            os.close(descriptor)
        assert os.waitpid(pid, 0)[1] == 0
        assert all(results)  # other blocks are free to lend
        for _ in range(NUM_LEASES):  # no reference to any of them is left
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            assert is_lent(envs, envs.step([0] * 6)[0])


@pytest.mark.extended
@pytest.mark.parametrize("env_fn", [Frames, Unseeded], ids=["replayed", "abandoned"])
def test_lease_outlasts_killed_workers(env_fn):
    with contextlib.closing(VectorEnv([env_fn] * 6, num_workers=2)) as envs:
        envs.reset(seed=1)
        kept = [envs.step([0] * 6) for _ in range(NUM_LEASES)]
        before = [snapshot(result) for result in kept]
        killed = envs.worker_pids[0]
        os.kill(killed, signal.SIGKILL)
        for i in range(A_RING):
            result = envs.step([0] * 6)
            if "recovered" in result[4]:
                found, last = result[4]["recovered"], i
        assert found.tolist()[0] == ("replayed" if env_fn is Frames else "restarted"), last
        assert envs.worker_pids[0] != killed
        assert_same([snapshot(result) for result in kept], before, "kept")


def test_free_block_is_not_lent():
    with contextlib.closing(VectorEnv([Frames] * 6, backend="serial")) as envs:
        envs.reset(seed=1)
        hub, count = hub_of(envs.pool), opened_envs(envs.pool).plan.words["num_blocks"]
        lent = [block for block in range(count) if hub.lend(block)]
        assert 0 < len(lent) < count
        free = next(block for block in range(count) if block not in lent)
        with pytest.raises(ValueError, match="the block is free"):
            hub.take_back(free)
        for block in lent:
            hub.take_back(block)
        with pytest.raises(ValueError, match="block out of range"):
            hub.lend(count)


def test_expired_rows_are_not_lent():
    with SerialPool([Frames] * 6, PoolOptions(leases=30)) as pool:
        pool.start()
        leases = pool.lend(lambda batch: batch.obs)
        pool.reset(seeds=list(range(6)))
        pool.recv()
        expired, *valid = [pool.step(np.zeros(6, np.int64)).rows for _ in range(3)]
        assert leases.take(expired) is None
        assert all(leases.take(rows) is not None for rows in valid)


def test_pool_lends_once_and_only_while_open():
    options = PoolOptions(leases=1)
    pool = SerialPool([Frames] * 6, options)
    with pytest.raises(StateError, match="start the pool first"):
        pool.lend(lambda batch: batch.obs)
    with pool:
        pool.start()
        leases = pool.lend(lambda batch: batch.obs)
        with pytest.raises(StateError, match="lends already"):
            pool.lend(lambda batch: batch.obs)
        pool.reset(seeds=list(range(6)))
        first = leases.take(pool.recv().rows)[:]
        before = first.copy()
        later = []
        for _ in range(A_RING):
            pool.send(np.zeros(6, np.int64))
            later.append(leases.take(pool.recv().rows))
        assert later == [None] * A_RING and np.array_equal(first, before)
    with pytest.raises(ClosedError):
        pool.lend(lambda batch: batch.obs)
