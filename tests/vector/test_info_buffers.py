"""InfoBuffers: infos whose arrays are filled again, and never while somebody holds them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.memory_maps import segments
from vecenv.core.layout.native import load
from vecenv.envs.toys import NullEnv
from vecenv.vector import VectorEnv
from vecenv.vector.info_buffers import _MAX_BATCHES, _MAX_BUFFERS, _MAX_MISSES

needs_native = pytest.mark.skipif(load() is None, reason="the extension was not built")
ACTIONS = np.zeros(3, np.int64)


class TellingEnv(NullEnv):
    """Tells its own number, 100 times its step, and more of other types; `change` may tell another thing."""

    def __init__(self, number: int, more: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.number, self.count, self.more = number, 0, more or {}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        self.count += 1
        info = {
            "x": np.float64(100 * self.count + self.number),
            "n": self.count,
            "small": np.float32(self.number / 2),
            "is_odd": bool(self.count % 2),
            **self.more,
        }
        return obs, reward, terminated, truncated, info


def change(env: Any, more: dict[str, Any]) -> None:
    env.unwrapped.more = more


@pytest.fixture(params=["serial", "process"])
def envs(request: pytest.FixtureRequest) -> Iterator[VectorEnv]:
    made = VectorEnv([lambda i=i: TellingEnv(i) for i in range(3)], backend=request.param, num_workers=2)
    made.reset(seed=0)
    for _ in range(3):  # cells and sheets are found by the first steps
        made.step(ACTIONS)
    yield made
    made.close()


def check(infos: dict[str, Any], count: int) -> None:
    assert list(infos) == ["x", "_x", "n", "_n", "small", "_small", "is_odd", "_is_odd"]
    np.testing.assert_array_equal(infos["x"], 100.0 * count + np.arange(3))
    np.testing.assert_array_equal(infos["n"], np.full(3, count))
    np.testing.assert_array_equal(infos["small"], np.arange(3, dtype=np.float32) / 2)
    np.testing.assert_array_equal(infos["is_odd"], np.full(3, bool(count % 2)))
    kinds = {"x": np.float64, "n": np.int64, "small": np.float32, "is_odd": np.bool_}
    for key, dtype in kinds.items():
        assert infos[key].dtype == dtype
        assert infos[f"_{key}"].dtype == np.bool_ and infos[f"_{key}"].all()


def step(envs: VectorEnv) -> dict[str, Any]:
    return envs.step(ACTIONS)[4]


@needs_native
def test_arrays_are_used_again_once_they_were_dropped(envs: VectorEnv) -> None:
    seen = []
    for count in range(4, 24):
        infos = step(envs)
        check(infos, count)
        seen.append(infos["x"].ctypes.data)
    assert len(set(seen[-10:])) == 2, "those that the caller has, and those before"


def test_infos_that_are_kept_stay_what_they_were(envs: VectorEnv) -> None:
    kept = [step(envs) for _ in range(2 * _MAX_MISSES + 3 * _MAX_BUFFERS)]
    for count, infos in enumerate(kept, 4):
        check(infos, count)
    addresses = [infos["x"].ctypes.data for infos in kept]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize(
    "take",
    [
        lambda infos: infos["x"],
        lambda infos: infos["x"][1:],
        lambda infos: infos["x"][1:].view(np.uint64)[::2],
        lambda infos: memoryview(infos["x"]),
        lambda infos: np.asarray(memoryview(infos["x"])[1:]),
        lambda infos: infos["x"].reshape(3, 1).T,
        lambda infos: infos["_x"],
        lambda infos: [infos["is_odd"]],
        lambda infos: {**infos},
        lambda infos: (infos["small"].base, infos["x"].base),
    ],
)
def test_whatever_of_them_is_kept_stays_what_it_was(envs: VectorEnv, take: Any) -> None:
    kept = [take(step(envs)) for _ in range(10)]
    before = [bytes(part) if isinstance(part, memoryview) else repr(part) for part in kept]
    for _ in range(10):
        step(envs)
    assert [bytes(part) if isinstance(part, memoryview) else repr(part) for part in kept] == before


def test_what_the_caller_writes_into_a_part_of_a_mask_stays_there(envs: VectorEnv) -> None:
    kept = [step(envs)["_x"][1:] for _ in range(10)]
    for part in kept:
        part[...] = False
    for _ in range(10):
        step(envs)
    assert not any(part.any() for part in kept)


def test_what_the_caller_writes_into_them_is_gone_in_the_next(envs: VectorEnv) -> None:
    for count in range(4, 12):
        infos = step(envs)
        check(infos, count)
        for array in infos.values():
            array[...] = 0
        infos["mine"] = 1
        del infos["x"]


def test_other_keys_and_types_are_told_as_they_come(envs: VectorEnv) -> None:
    check(step(envs), 4)
    envs._pool.call_each([lambda env: change(env, {"n": 0.5})] * 3)
    assert step(envs)["n"].tolist() == [0.5] * 3
    envs._pool.call_each([lambda env, i=i: change(env, {"late": i} if i == 1 else {}) for i in range(3)])
    for _ in range(3):
        infos = step(envs)
        assert infos["_late"].tolist() == [False, True, False] and infos["late"].tolist() == [0, 1, 0]
        assert infos["_x"].all()
    envs._pool.call_each([lambda env: change(env, {})] * 3)
    for count in range(9, 13):
        check(step(envs), count)


def test_a_key_that_is_the_name_of_a_mask_is_told_as_ever() -> None:
    envs = VectorEnv([lambda i=i: TellingEnv(i, {"_x": 7}) for i in range(3)], backend="serial")
    envs.reset(seed=0)
    for count in range(1, 8):
        infos = step(envs)
        assert infos["_x"].tolist() == [7] * 3 and infos["__x"].all()
        assert infos["x"].tolist() == [100.0 * count + i for i in range(3)]
    envs.close()


def test_batches_of_some_envs_have_sheets_too() -> None:
    envs = VectorEnv([lambda i=i: TellingEnv(i) for i in range(4)], num_workers=2)
    envs.reset(seed=0)
    envs.send(np.zeros(4, np.int64))
    counts = np.zeros(4, np.int64)
    for _ in range(60):
        *_, infos = envs.recv(2)
        env_ids = infos["env_id"]
        counts[env_ids] += 1
        np.testing.assert_array_equal(infos["n"], counts[env_ids])
        np.testing.assert_array_equal(infos["x"], 100.0 * counts[env_ids] + env_ids)
        envs.send(np.zeros(len(env_ids), np.int64), env_ids)
    envs.close()


def step_some(envs: VectorEnv, size: int) -> dict[str, Any]:
    """Step the first envs, and check what they tell."""
    before = envs.get_attr("count")[:size]
    envs.send(np.zeros(size, np.int64), np.arange(size))
    infos = envs.recv()[4]
    counts = np.array(before) + 1
    np.testing.assert_array_equal(infos["n"], counts)
    np.testing.assert_array_equal(infos["x"], 100.0 * counts + np.arange(size))
    return infos


@pytest.mark.filterwarnings("ignore:Setting the (shape|dtype) on a NumPy array:DeprecationWarning")  # since NumPy 2.5
@pytest.mark.parametrize(
    "alter",
    [
        lambda array: setattr(array, "shape", (3, 1)),
        lambda array: setattr(array, "dtype", np.int64),
        lambda array: setattr(array.flags, "writeable", False),
    ],
    ids=["shape", "dtype", "flags"],
)
def test_what_a_caller_changes_in_place_is_not_shown_again(envs: VectorEnv, alter: Any) -> None:
    """It came back with later steps: numbers of another type, arrays that nobody could write into."""
    for count in range(4, 12):
        infos = envs.step(ACTIONS)[4]
        check(infos, count)
        assert infos["x"].dtype == np.float64 and infos["x"].flags.writeable and infos["_x"].all()
        if count == 6:
            alter(infos["x"])
        del infos


@needs_native
def test_sizes_that_take_turns_keep_their_sheets() -> None:
    """Each time that the size changed new ones were made, which took as long as all the rest of a small batch."""
    envs = VectorEnv([lambda i=i: TellingEnv(i) for i in range(4)], backend="serial")
    envs.reset(seed=0)
    buffers = envs._results._infos._buffers
    for size in [2, 3, 4] * 3:
        step_some(envs, size)
    made = {size: list(kind.buffers) for size, kind in buffers._kinds.items()}
    for size in [2, 3, 4] * 5:
        step_some(envs, size)
    assert buffers._kinds.keys() == made.keys() == {2, 3, 4}
    for size, kind in buffers._kinds.items():
        assert len(kind.buffers) == len(made[size])
        assert all(one is other for one, other in zip(kind.buffers, made[size]))
    envs.close()


@needs_native
def test_many_sizes_have_no_more_rows_than_some_batches() -> None:
    num_envs = 12
    envs = VectorEnv([lambda i=i: TellingEnv(i) for i in range(num_envs)], backend="serial")
    envs.reset(seed=0)
    kept = [step_some(envs, size) for size in range(1, num_envs + 1) for _ in range(2 * _MAX_BUFFERS)]
    kinds = envs._results._infos._buffers._kinds
    num_rows = sum(size * len(kind.buffers) for size, kind in kinds.items())
    assert num_envs < num_rows <= _MAX_BATCHES * num_envs < sum(len(infos["n"]) for infos in kept[::2])
    assert num_envs in kinds and 1 not in kinds
    envs.close()


@needs_native
def test_a_sheet_that_does_not_fit_its_rows_is_refused() -> None:
    native = load()
    rows = np.ones(2, np.uint32), np.ones((2, 4), np.uint8), np.zeros((2, 4), np.uint64)

    def fill(
        fields: list[int], rows: Any = rows, signature: bytes = b"\1" * 4, *, flag: Any = 1, is_empty: bool = False
    ) -> Any:
        def info_buffer() -> Any:
            values, masks = np.empty(16, np.uint8), np.empty((1, 2), np.bool_)
            infos = {} if is_empty else {"x": values.view(np.float64), "_x": masks[0]}
            dtypes = tuple(array.dtype for array in infos.values())
            return infos, dtypes, values, masks, np.array(fields, np.uint32).tobytes(), signature

        return native.fill_info_buffer(info_buffer(), rows, flag)

    with pytest.raises(TypeError):
        native.fill_info_buffer((), rows, 1)
    assert fill([0, 0, 8])["x"].tolist() == [0.0, 0.0]
    assert fill([0, 0, 8], signature=b"\2" * 4) is None
    assert fill([0, 0, 8], rows=(np.zeros(2, np.uint32), *rows[1:])) is None
    assert fill([0, 0, 8], rows=tuple(part[:1] for part in rows)) is None
    for fields in ([4, 0, 8], [0, 8, 8], [0, 0, 9], [0, 0]):
        with pytest.raises(ValueError, match="fit together"):
            fill(fields)
    for part in (1, 2):
        short = tuple(column[:1] if number == part else column for number, column in enumerate(rows))
        with pytest.raises(ValueError, match="fit together"):
            fill([0, 0, 8], rows=short)
    with pytest.raises(TypeError, match="int"):
        fill([0, 0, 8], flag="1")
    with pytest.raises(TypeError, match="bytes-like"):
        fill([0, 0, 8], rows=(rows[0], "no buffer", rows[2]))
    assert fill([], is_empty=True) is None


@needs_native
def test_after_close_the_memory_is_let_go_of() -> None:
    before = segments()
    made = VectorEnv([lambda i=i: TellingEnv(i) for i in range(3)], num_workers=1)
    made.reset(seed=0)
    for _ in range(6):
        made.step(ACTIONS)
    assert segments() > before
    made.close()
    gc.collect()
    assert segments() <= before
