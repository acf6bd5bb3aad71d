"""Frames: rows of every space survive the way through one buffer, and buffers that through pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.spaces import ALL_SPACES
from vecenv.core.layout.arena import PRIVATE_BLOCK, RECORD, ArenaPlan
from vecenv.core.layout.flags import RowFlag
from vecenv.core.layout.rows import BlockRows, RowRange
from vecenv.core.layout.spec import Spec
from vecenv.core.shards import frames
from vecenv.core.shards.frames import FrameKind, FrameLayout

EVERYTHING = RowFlag.INFO | RowFlag.FINAL | RowFlag.FINAL_INFO | RowFlag.MESSAGE


def plan_for(space: Any, num_envs: int, *, has_final: bool = True, reward_shape: tuple[int, ...] = ()) -> ArenaPlan:
    obs, action = Spec(space, "obs"), Spec(ALL_SPACES["discrete"], "action")
    return ArenaPlan(num_envs, 1, obs, action, reward_shape, 2, has_final, num_envs)


def random_rows(plan: ArenaPlan, row_flags: int, seed: int = 0) -> RowRange:
    """Return a block full of random bytes, whose rows have these flags and 0 alternately."""
    rng = np.random.default_rng(seed)
    views = BlockRows(plan, rng.bytes(plan.words["block_stride"]), PRIVATE_BLOCK)
    views = BlockRows(plan, bytearray(views.data.tobytes()), PRIVATE_BLOCK)
    views.columns["flags"][:] = np.where(np.arange(plan.num_envs) % 2, 0, row_flags)
    return RowRange(views, 0, plan.num_envs)


def bits(array: np.ndarray) -> bytes:
    """Return the bytes of an array, without those between fields."""
    names = array.dtype.names
    return b"".join(bits(array[name]) for name in names) if names else np.ascontiguousarray(array).tobytes()


def assert_same(rows: RowRange, records: np.ndarray | None, frame: frames.Frame, layout: FrameLayout) -> None:
    assert frame.count == rows.count
    assert frame.flags == (int(np.bitwise_or.reduce(rows.column("flags"))) if rows.count else 0)
    for part in (frame.rows.view(layout.row), *(cells for cells in frame.cells if len(cells))):
        for name in part.dtype.names or ():
            assert bits(part[name]) == bits(records if name == "record" else rows.column(name)), name
    final_rows = np.flatnonzero(rows.column("flags") & RowFlag.FINAL)
    assert frame.final_rows.tolist() == final_rows.tolist()
    obs, final = frame.obs.view(layout.obs), frame.final.view(layout.obs)
    assert len(layout.obs.names or ()) == len(rows.leaves)
    for leaf, ours in enumerate(rows.leaves):
        assert bits(obs[str(leaf)]) == bits(ours)
        assert obs[str(leaf)].dtype == ours.dtype and obs[str(leaf)].shape == ours.shape
        if len(final_rows):
            assert bits(final[str(leaf)]) == bits(rows.final(leaf)[final_rows])


@pytest.mark.parametrize("name", ALL_SPACES)
def test_rows_of_every_space_survive_a_frame(name: str) -> None:
    for num_envs, flags, has_final in ((1, 0, False), (5, EVERYTHING, True), (5, RowFlag.INFO, False)):
        plan = plan_for(ALL_SPACES[name], num_envs, has_final=has_final, reward_shape=(3,) if has_final else ())
        layout = FrameLayout(plan, has_records=has_final)
        rows = random_rows(plan, flags)
        records = np.zeros(num_envs, RECORD)  # without the bytes between its fields, which are not copied
        records[...] = np.frombuffer(np.random.default_rng(1).bytes(num_envs * RECORD.itemsize), RECORD)
        data = layout.pack(7, rows, records, num_steps=11, attachment=b"attachment")
        frame = layout.unpack(data)
        assert (frame.seq, frame.kind, frame.num_steps, bytes(frame.attachment)) == (
            7,
            FrameKind.EXECUTED,
            11,
            b"attachment",
        )
        assert_same(rows, records, frame, layout)
        assert len(data) - len(b"attachment") <= layout.most_nbytes(num_envs)


def test_plain_steps_carry_no_cells_and_no_attachment() -> None:
    plan = plan_for(ALL_SPACES["box_float32"], 4)
    layout = FrameLayout(plan, has_records=False)
    plain, full = layout.pack(1, random_rows(plan, 0)), layout.pack(1, random_rows(plan, EVERYTHING))
    assert [len(cells) for cells in layout.unpack(plain).cells] == [0, 0]
    assert len(full) > len(plain) + 4 * 32 * 9


@pytest.mark.parametrize("change", [-1, 1])
def test_frame_of_another_size_than_its_header_says_is_refused(change: int) -> None:
    plan = plan_for(ALL_SPACES["box_float32"], 4)
    layout = FrameLayout(plan, has_records=False)
    data = bytes(layout.pack(1, random_rows(plan, EVERYTHING)))
    with pytest.raises(ValueError, match=f"request 1 has {len(data) + change} bytes, and {len(data)} by its header"):
        layout.unpack(data[:change] if change < 0 else data + b"\0")


def test_frame_without_rows_needs_no_layout() -> None:
    plan = plan_for(ALL_SPACES["dict_nested"], 4)
    layout = FrameLayout(plan, has_records=True)
    for data in (layout.pack(3, None, attachment=b"abc"), frames.pack_bare(3, FrameKind.EXECUTED, b"abc")):
        for frame in (layout.unpack(data), frames.unpack_bare(data)):
            assert (frame.seq, frame.count, bytes(frame.attachment)) == (3, 0, b"abc")
    refused = layout.unpack(frames.pack_bare(4, FrameKind.REFUSED))
    assert (refused.seq, refused.kind, len(refused.attachment)) == (4, FrameKind.REFUSED, 0)


def test_frame_holds_65535_rows() -> None:
    plan = plan_for(ALL_SPACES["box_0d"], 65_535)
    layout = FrameLayout(plan, has_records=False)
    rows = random_rows(plan, RowFlag.FINAL)
    assert_same(rows, None, layout.unpack(frames.join(frames.split(layout.pack(1, rows), 1))), layout)


PIECE, MOST = frames.PIECE_NBYTES, frames.MOST_SPLIT_NBYTES


@pytest.mark.parametrize(
    ("nbytes", "num_pieces"),
    [(0, 1), (1, 1), (PIECE - 1, 1), (PIECE, 1), (PIECE + 1, 2), (2 * PIECE, 2), (2 * PIECE + 1, 3)]
    + [(MOST - 1, 86), (MOST, 86), (MOST + 1, 1)],
)
def test_pieces_join_to_the_same_bytes(nbytes: int, num_pieces: int) -> None:
    data = np.random.default_rng(nbytes).bytes(nbytes)
    assert frames.count_pieces(nbytes) == num_pieces
    pieces = frames.split(data, num_pieces)
    assert len(pieces) == num_pieces
    assert num_pieces == 1 or max(map(len, pieces)) <= PIECE
    assert bytes(frames.join(pieces)) == data


def test_reply_of_another_size_than_planned_is_split_all_the_same() -> None:
    data = bytes(range(256)) * 1024
    for num_pieces in (1, 2, 9):
        pieces = frames.split(data, num_pieces)
        assert [len(piece) > 0 for piece in pieces] == [number * PIECE < len(data) for number in range(num_pieces)]
        assert bytes(frames.join(pieces)) == data
