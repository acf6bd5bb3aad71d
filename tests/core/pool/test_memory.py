"""The arena as bytes: the memory that a program may register with a device."""

from __future__ import annotations

import pytest

from tests.inside import opened_envs
from vecenv import ClosedError, StateError
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.envs.toys import ToyEnv


@pytest.mark.parametrize("pool_class", [SerialPool, ProcessPool])
def test_memory_of_a_pool(pool_class):
    pool = pool_class([ToyEnv] * 2)
    with pytest.raises(StateError, match="start the pool first"):
        _ = pool.memory
    with pool:
        pool.start()
        memory = pool.memory
        assert memory.nbytes == opened_envs(pool).plan.nbytes
        assert memory.ctypes.data % 4096 == 0
        assert not memory.flags.writeable
        pool.reset(seeds=[1, 2])
        obs = pool.recv().obs
        if pool.implementation == "native":  # the Python implementation builds its batches elsewhere
            start = obs.ctypes.data - memory.ctypes.data
            assert memory[start : start + obs.nbytes].tobytes() == obs.tobytes()
    assert memory.tobytes()  # still mapped
    with pytest.raises(ClosedError):
        _ = pool.memory
