"""Arrays in shared memory, and pickling of objects that pickle alone refuses."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest

from vecenv.ding import CloudPickleWrapper, ShmBuffer, ShmBufferContainer

# multiprocessing never unmaps its memory or closes its descriptors, so it starts here and not in a test.
KEPT = ShmBuffer(np.uint8, (1,))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_buffer_of_every_dtype_and_shape(dtype, shape):
    """W33: float16 was a KeyError."""
    array = np.ones(shape, dtype)
    buffer = ShmBuffer(dtype, shape)
    assert buffer.get().dtype == dtype and not buffer.get().any()
    buffer.fill(array)
    assert np.array_equal(buffer.get(), array) and buffer.get().shape == shape


def test_buffer_returns_copies_or_views():
    copying, sharing = ShmBuffer(np.float32, (2,)), ShmBuffer(np.float32, (2,), copy_on_get=False)
    before = copying.get(), sharing.get()
    for buffer in (copying, sharing):
        buffer.fill(np.ones(2, np.float32))
    assert before[0].tolist() == [0, 0] and before[1].tolist() == [1, 1]
    assert np.shares_memory(sharing.get(), sharing.get()) and not np.shares_memory(copying.get(), copying.get())


@pytest.mark.parametrize(
    "wrong", [[0.0, 0.0], 1.0, None, np.zeros(1, np.float32), np.zeros(2), np.zeros((1, 2), np.float32)]
)
def test_w33_misfit_data_are_refused_and_not_broadcast(wrong):
    buffer = ShmBuffer(np.float32, (2,))
    with pytest.raises(AssertionError, match=r"expected an array float32 \(2,\)"):
        buffer.fill(wrong)


def test_buffer_containers_nest():
    container = ShmBufferContainer({"a": np.float32, "b": np.uint8}, {"a": (2,), "b": {"c": (1,), "d": ()}})
    data = {"a": np.ones(2, np.float32), "b": {"c": np.full(1, 7, np.uint8), "d": np.array(3, np.uint8)}}
    container.fill(data)
    assert container.get()["b"]["d"] == 3 and container.get()["a"].tolist() == [1, 1]
    for wrong in ({"a": data["a"]}, data["a"], {**data, "x": 1}):
        with pytest.raises(AssertionError, match="expected a dict"):
            container.fill(wrong)


def _fill(container):
    container.fill({"x": np.arange(3)})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_buffer_is_filled_by_a_child_process(method):
    container = ShmBufferContainer(np.int64, {"x": (3,)})
    child = multiprocessing.get_context(method).Process(target=_fill, args=(container,))
    child.start()
    child.join()
    assert child.exitcode == 0 and container.get()["x"].tolist() == [0, 1, 2]
    child.close()


def test_lambdas_pickle_in_a_wrapper():
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(lambda: 1)
    offset = 4
    assert pickle.loads(pickle.dumps(CloudPickleWrapper([lambda x: x + offset]))).data[0](1) == 5
