"""The weaknesses of the systems that vecenv replaces, by their numbers, and the tests in which they do not show.

A test that is renamed or dropped has to be found again here.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import vecenv

TESTS = Path(__file__).parent

CONTRACT = "contracts/manager_contract.py"
SYMPTOMS = "managers/test_symptoms.py"

# Number -> (description, [file::test, ...])
WEAKNESSES = {
    1: (
        "config factories change what they get",
        ["envs/test_base.py::test_w1_env_cfg_factories_do_not_mutate_or_alias"],
    ),
    2: (
        "dynamic seeds from the global generator",
        [
            "wrappers/test_ding.py::test_w2_resets_leave_numpys_global_generator_alone",
            "wrappers/test_ding.py::test_w2_two_envs_do_not_share_a_stream",
        ],
    ),
    3: (
        "a constructor's KeyError taken for an unknown name",
        ["test_registry.py::test_key_error_of_a_constructor_is_raised_unchanged"],
    ),
    4: (
        "a space's dtype edited in place",
        ["wrappers/test_ding.py::test_w4_float64_space_is_declared_float32_and_the_original_unchanged"],
    ),
    5: ("int32 actions refused", ["wrappers/test_ding.py::test_w5_integer_actions_of_every_type_reach_the_env_as_int"]),
    6: ("no reset after close", ["wrappers/test_ding.py::test_w6_reset_after_close_rebuilds_the_env"]),
    7: ("a clone that shares its env", ["wrappers/test_ding.py::test_w7_clone_shares_nothing"]),
    8: (
        "truncation lost",
        [
            "envs/test_adapt.py::test_w8_truncation_is_not_lost",
            "wrappers/test_ding.py::test_w8_time_limit_is_in_info",
        ],
    ),
    9: ("Gymnasium by id broken", ["wrappers/test_ding.py::test_w9_gymnasium_env_by_id_needs_no_reward_range"]),
    10: (
        "callers unchecked, single lives in evaluation",
        [
            "wrappers/test_ding.py::test_w10_unknown_caller_is_refused",
            "wrappers/test_ding.py::test_w10_evaluation_plays_whole_games",
        ],
    ),
    11: (
        "errors of the reference env swallowed, the env left open",
        [
            f"{SYMPTOMS}::test_reference_env_error_is_raised",
            f"{SYMPTOMS}::test_reference_env_is_closed_with_the_manager",
        ],
    ),
    12: (
        "rendering of Gymnasium's envs, of envs without an inner one, in other modes",
        [
            f"{CONTRACT}::test_ready_imgs_has_frames_of_ready_envs",
            f"{SYMPTOMS}::test_render_with_a_mode_argument",
        ],
    ),
    13: (
        "ready_obs spins for ever",
        [
            f"{CONTRACT}::test_step_of_an_env_not_in_run_raises",
            f"{CONTRACT}::test_auto_reset_false_leaves_resets_to_the_caller",
            f"{SYMPTOMS}::test_ready_obs_is_empty_if_all_envs_are_in_error",
        ],
    ),
    14: ("finished envs stepped on", [f"{CONTRACT}::test_step_of_an_env_not_in_run_raises"]),
    15: ("figures and shaping out of reach", [f"{CONTRACT}::test_enable_save_figure_and_reward_shaping_reach_one_env"]),
    16: ("the caller's seeds overwritten", [f"{CONTRACT}::test_seed_takes_lists_and_dicts_and_does_not_change_them"]),
    17: (
        "a refused seed closes in silence",
        [f"{SYMPTOMS}::test_seed_error_of_an_env_has_its_id"],
    ),
    18: (
        "an attribute takes a pending timestep",
        ["managers/test_async.py::test_attributes_leave_a_pending_timestep"],
    ),
    19: ("methods pickled", [f"{SYMPTOMS}::test_method_name_list_can_be_extended"]),
    20: ("endless recursion", [f"{CONTRACT}::test_getattr_before_init_does_not_recurse"]),
    21: (
        "close breaks off, or waits for each env in turn",
        [
            "managers/test_subprocess.py::test_close_with_a_killed_worker_does_not_raise",
            f"{SYMPTOMS}::test_close_waits_once_for_all_hung_envs",
        ],
    ),
    22: ("an env closed and then reset", [f"{SYMPTOMS}::test_reset_retry_does_not_close_the_env"]),
    23: (
        "a failing automatic reset swallowed",
        ["managers/test_async.py::test_automatic_reset_error_is_raised_by_ready_obs"],
    ),
    24: (
        "a dead worker is a bare EOFError",
        ["managers/test_subprocess.py::test_dead_worker_raises_and_closes"],
    ),
    25: (
        "an exception kills the worker",
        ["managers/test_subprocess.py::test_exception_that_pickle_refuses_arrives_as_its_own_class"],
    ),
    26: (
        "a renewed env has neither seed nor folder",
        [
            f"{CONTRACT}::test_renewed_env_keeps_seed_and_parameters",
            f"{SYMPTOMS}::test_renewed_env_continues_recording",
        ],
    ),
    27: (
        "limits by SIGALRM",
        [
            f"{SYMPTOMS}::test_step_timeout_works_in_any_thread_and_leaves_sigalrm_alone",
            "managers/test_subprocess.py::test_hung_step_in_c_raises_timeout_error",
            "managers/test_subprocess.py::test_limits_may_change_on_a_running_manager",
        ],
    ),
    28: ("lists of infos", ["envs/test_adapt.py::test_w28_lists_of_infos_of_any_length"]),
    29: ("an old observation for an abnormal step", [f"{CONTRACT}::test_abnormal_timestep_is_returned"]),
    30: (
        "reset_inplace loses observation and parameters",
        ["managers/test_subprocess.py::test_reset_inplace_keeps_the_final_observation_and_the_parameters"],
    ),
    31: ("an env stepped twice", ["managers/test_async.py::test_step_of_an_unanswered_env_raises"]),
    32: ("any order of ids, busy waits", ["managers/test_async.py::test_async_steps_lose_no_timestep"]),
    33: (
        "few spaces in shared memory, silent broadcasts",
        [
            f"{CONTRACT}::test_observations_of_all_spaces_come_back",
            "envs/test_buffers.py::test_w33_misfit_data_are_refused_and_not_broadcast",
        ],
    ),
    34: ("IndexError for nothing ready", ["managers/test_v2.py::test_ready_obs_is_one_batch"]),
    35: (
        "keys as actions, a batch cut off",
        [
            "managers/test_v2.py::test_step_with_a_wrong_number_of_actions_raises",
            "managers/test_v2.py::test_step_with_a_dict_steps_these_envs",
        ],
    ),
    36: (
        "gym_vector resets at the wrong time",
        ["managers/test_gym_vector.py::test_gym_vector_counts_episodes_and_returns"],
    ),
    37: (
        "the check refuses images, lets bounds and views pass, never ends",
        [
            "envs/check/test_check.py::test_w37_uint8_images_are_allowed",
            "envs/check/test_check.py::test_w37_discrete_bounds_are_exact",
            "envs/check/test_check.py::test_w37_endless_episode_is_found",
            "envs/check/test_check.py::test_w37_views_of_one_buffer_share_memory",
        ],
    ),
    38: (
        "channels guessed, the process ended for want of OpenCV",
        [
            "wrappers/test_observation.py::test_w38_channel_first_and_small_frames_match_the_space",
            "wrappers/test_observation.py::test_w38_missing_opencv_is_an_error_and_does_not_end_the_process",
        ],
    ),
    39: (
        "a mean over features",
        ["wrappers/test_norm.py::test_w39_single_observation_is_not_averaged_over_its_features"],
    ),
    40: (
        "the previous action one step late",
        [
            "wrappers/test_observation.py::test_w40_previous_action_and_reward_are_those_just_taken",
            "wrappers/test_observation.py::test_w40_reset_clears_previous_action_and_reward",
        ],
    ),
    41: ("a time limit out of reach for configs", ["wrappers/test_episode.py::test_w41_time_limit_is_registered"]),
    42: (
        "shapes evaluated as code and never computed",
        [
            "wrappers/test_wrappers.py::test_w42_update_shape_computes_shapes",
            "wrappers/test_wrappers.py::test_w42_update_shape_evaluates_nothing",
        ],
    ),
    43: (
        "a time limit taken for a real end",
        [
            "alf/gym/test_wrapper.py::test_time_out_signalled_by_the_env_is_not_a_termination",
            "alf/batched/test_parallel.py::test_time_out_is_not_a_termination_in_a_batch",
        ],
    ),
    44: (
        "envs stepped to learn their infos, late keys break batches",
        [
            "alf/gym/test_wrapper.py::test_constructor_neither_resets_nor_steps_the_env",
            "alf/gym/test_wrapper.py::test_declared_info_is_in_every_step_and_late_keys_are_kept",
        ],
    ),
    45: (
        "a close without limit, errors about tuples, answers to other calls",
        [
            "alf/batched/test_faults.py::test_hanging_env_times_out_and_close_does_not_wait",
            "alf/batched/test_faults.py::test_constructor_errors_keep_their_type",
            "alf/batched/test_parallel.py::test_calls_between_steps_return_their_own_results",
            "alf/batched/test_parallel.py::test_num_spare_envs_can_be_read",
        ],
    ),
    46: ("illegal moves never refused", ["envs/board/test_games.py::test_illegal_action_raises_on_request"]),
    47: (
        "a tree search that cannot be called",
        ["envs/board/test_bots.py::test_mcts_is_called_with_a_state_and_a_player_index"],
    ),
    48: ("configs that miss a key", ["envs/board/test_games.py::test_configs_may_leave_keys_out"]),
    49: (
        "spaces that do not contain the data",
        [
            "envs/board/test_games.py::test_spaces_contain_every_step_of_many_games",
            "envs/board/test_games.py::test_to_play_space_contains_possible_players_only",
        ],
    ),
    50: (
        "the score of the wrong player",
        ["envs/board/test_games.py::test_agent_is_player_1_whoever_starts"],
    ),
    51: (
        "a game without the three modes",
        [
            "envs/board/test_rendering.py::test_text_of_each_game",
            "envs/board/test_rendering.py::test_pictures_show_each_stone_in_its_cell",
        ],
    ),
    52: (
        "replays written over, frames left from an unfinished game, unknown modes drawn",
        [
            "envs/board/test_rendering.py::test_each_game_has_its_own_file",
            "envs/board/test_rendering.py::test_frames_of_an_unfinished_game_are_dropped",
            "envs/board/test_rendering.py::test_replay_without_a_path_uses_the_current_folder",
            "envs/board/test_rendering.py::test_unknown_mode_draws_nothing",
        ],
    ),
    53: (
        "a space that is right after a reset only",
        [
            "wrappers/test_lightzero.py::test_spaces_are_right_from_the_start_and_contain_every_step",
            "wrappers/test_lightzero.py::test_masks_are_new_arrays",
        ],
    ),
    54: (
        "discrete actions that never reach the upper bound",
        ["wrappers/test_lightzero.py::test_discrete_actions_reach_both_bounds"],
    ),
}

# Names that programs import from the other system, by the part that contains them.
NAMES = {
    "env base": "BaseEnv BaseEnvTimestep get_vec_env_setting get_env_cls DingEnvWrapper get_default_wrappers",
    "managers": "create_env_manager get_env_manager_cls BaseEnvManager BaseEnvManagerV2 SyncSubprocessEnvManager "
    "SubprocessEnvManagerV2 AsyncSubprocessEnvManager GymVectorEnvManager EnvState",
    "wrappers": "create_env_wrapper update_shape NoopResetWrapper MaxAndSkipWrapper WarpFrameWrapper "
    "ScaledFloatFrameWrapper ClipRewardWrapper ActionRepeatWrapper DelayRewardWrapper FrameStackWrapper "
    "ObsTransposeWrapper ObsNormWrapper StaticObsNormWrapper RewardNormWrapper RamWrapper EpisodicLifeWrapper "
    "FireResetWrapper EvalEpisodeReturnWrapper GymHybridDictActionWrapper ObsPlusPrevActRewWrapper TransposeWrapper "
    "TimeLimitWrapper FlatObsWrapper GymToGymnasiumWrapper AllinObsWrapper RunningMeanStd",
    "older wrappers": "NoopResetEnv MaxAndSkipEnv WarpFrame ScaledFloatFrame ClipRewardEnv FrameStack ObsNormEnv "
    "RewardNormEnv EpisodicLifeEnv FireResetEnv",
    "registries": "ENV_REGISTRY ENV_MANAGER_REGISTRY ENV_WRAPPER_REGISTRY",
    "check tool": "check_space_dtype check_array_space check_reset check_step check_different_memory "
    "check_obs_deepcopy check_all demonstrate_correct_procedure",
    "helpers": "to_ndarray deep_merge_dicts affine_transform ShmBuffer ShmBufferContainer CloudPickleWrapper",
}


@functools.cache
def functions_in(file):
    """Names of all functions of a test file, those of classes too."""
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_weakness_numbers_are_complete():
    assert list(WEAKNESSES) == list(range(1, 55))


@pytest.mark.parametrize("number", WEAKNESSES)
def test_weakness_tests_exist(number):
    _, tests = WEAKNESSES[number]
    assert tests
    for test in tests:
        file, _, name = test.partition("::")
        assert name in functions_in(file), test


@pytest.mark.parametrize("part", NAMES)
def test_old_names_are_importable(part):
    for name in NAMES[part].split():
        assert name in vecenv.ding.__all__ and getattr(vecenv.ding, name) is not None
