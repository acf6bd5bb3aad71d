"""The layout of the arena: groups and columns do not overlap, are aligned, and lie within it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.spaces import ALL_SPACES, FIXED_SPACES
from vecenv.core.layout import arena
from vecenv.core.layout.arena import HEADER_WORDS, ArenaPlan
from vecenv.core.layout.rows import BlockRows
from vecenv.core.layout.spec import Spec
from vecenv.core.system.segment import private_segment


def plan_for(space, *, num_envs=5, num_slots=2, reward_shape=(), depth=3, has_final=True, envs_per_slot=3):
    obs, action = Spec(space, "obs"), Spec(FIXED_SPACES["dict_nested"], "action")
    return ArenaPlan(num_envs, num_slots, obs, action, reward_shape, depth, has_final, envs_per_slot)


def opened(plan):
    memory = private_segment(plan.nbytes)
    plan.write_header(memory)
    return memory


def all_views(plan, memory):
    """Return every array over the arena, blocks and actions included, each once."""
    views = [
        plan.view(memory, offset, leaf.dtype, (plan.num_envs, *leaf.shape))
        for offset, leaf in zip(plan.action_offsets, plan.action.leaves)
    ]
    for block in range(plan.words["num_blocks"]):
        blocks = BlockRows(plan, memory, block)
        columns = [column for name, column in blocks.columns.items() if name in HEADER_WORDS]
        views += [*columns, *blocks.leaves, *blocks.final_leaves]
    return views


@pytest.mark.parametrize("name", ALL_SPACES)
@pytest.mark.parametrize("reward_shape", [(), (3,)])
def test_columns_share_no_byte(name, reward_shape):
    plan = plan_for(ALL_SPACES[name], reward_shape=reward_shape)
    memory = opened(plan)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    spans = sorted((view.ctypes.data - start, view.nbytes) for view in all_views(plan, memory) if view.nbytes)
    for (offset, nbytes), (following, _) in itertools.pairwise(spans):
        assert offset + nbytes <= following
    assert spans[-1][0] + spans[-1][1] <= plan.nbytes == len(memory)
    assert spans[0][0] >= plan.words["byte_rings_down"] + plan.num_slots * plan.words["byte_ring_nbytes"]


@pytest.mark.parametrize("name", FIXED_SPACES)
def test_groups_start_on_lines_and_blocks_on_pages(name):
    plan = plan_for(FIXED_SPACES[name])
    words = plan.words
    groups = ["control", "info_keys", "queues", "newest", "byte_rings_up", "byte_rings_down"]
    starts = [words[group] for group in groups]
    assert starts == sorted(starts)
    assert all(start % arena.LINE == 0 for start in [*starts, *plan.obs_offsets, *plan.final_offsets])
    assert words["blocks"] % arena.PAGE == words["block_stride"] % arena.PAGE == 0
    assert words["total_nbytes"] == words["blocks"] + words["num_blocks"] * words["block_stride"]


def test_header_matches_the_table_of_words():
    plan = plan_for(FIXED_SPACES["dict"])
    memory = opened(plan)
    header = np.frombuffer(memory, np.int64, len(HEADER_WORDS)).tolist()
    assert dict(zip(HEADER_WORDS, header)) == plan.words
    assert header[:2] == [arena.MAGIC, arena.ABI]


def test_final_columns_exist_only_where_asked_for():
    with_final, without = plan_for(FIXED_SPACES["dict"]), plan_for(FIXED_SPACES["dict"], has_final=False)
    assert len(with_final.final_offsets) == 2
    assert without.final_offsets == []
    assert [column.name for column in with_final.columns if column not in without.columns] == [
        "final_tags",
        "final_values",
    ]
    assert without.words["block_stride"] <= with_final.words["block_stride"]


def test_move_of_a_row_copies_all_but_owner_and_cell():
    plan = plan_for(FIXED_SPACES["box_uint8_image"], reward_shape=(2,))
    offsets = [offset for offset, _ in plan.row_columns()]
    assert plan.words["owner"] not in offsets and plan.words["cell"] not in offsets
    assert {plan.words[name] for name in ("step_id", "env_id", "reward", "flags")} <= set(offsets)
    assert (plan.words["reward"], 16) in plan.row_columns()
    assert (plan.obs_offsets[0], 3 * 16 * 16) in plan.row_columns()
    assert len(set(offsets)) == len(offsets)


def test_columns_without_bytes_do_not_move():
    plan = plan_for(FIXED_SPACES["box_empty"])
    assert all(nbytes > 0 for _, nbytes in plan.row_columns())


@pytest.mark.parametrize("envs_per_slot", [1, 2, 7, 15, 64])
def test_queue_size_is_a_power_of_two_with_room_for_all_commands(envs_per_slot):
    size = plan_for(FIXED_SPACES["discrete"], envs_per_slot=envs_per_slot).words["queue_size"]
    assert size & (size - 1) == 0
    assert size > 4 * envs_per_slot


def test_block_views_are_apart_and_keep_the_mapping_alive():
    plan = plan_for(FIXED_SPACES["box_float32"])
    memory = opened(plan)
    first, second = BlockRows(plan, memory, 0), BlockRows(plan, memory, 1)
    del memory
    first.columns["reward"][:] = 1.5
    first.leaves[0][:] = 2.0
    assert not second.columns["reward"].any() and not second.leaves[0].any()
    assert first.columns["reward"].tolist() == [1.5] * 5
