"""The contract of all managers, with dicts or batches, over any pool; each manager has a subclass of this suite."""

from __future__ import annotations

import copy
import functools
import pickle

import gymnasium
import numpy as np
import pytest

from tests.inside import config_of
from tests.managers.fakes import actors
from vecenv import StateError
from vecenv.ding import BaseEnvTimestep, EnvState, HybridEnv, TreeArray, TwoAgentEnv
from vecenv.envs.toys import CountEnv, KeepsAction, SpaceEnv, ToyEnv

RUN, DONE, ERROR, VOID, NEED_RESET = (
    EnvState.RUN,
    EnvState.DONE,
    EnvState.ERROR,
    EnvState.VOID,
    EnvState.NEED_RESET,
)


def as_dict(manager, timesteps):
    """Return V2's list of trees as a dict of timesteps, like that of the other managers."""
    if isinstance(timesteps, dict):
        return timesteps
    found = {}
    for tree in timesteps:
        info = {key: _native(value) for key, value in tree.info.json().items()}
        found[tree.env_id.item()] = BaseEnvTimestep(tree.obs, tree.reward, tree.done.item(), info)
    return found


def _native(value):
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


class Painted(ToyEnv):
    """An env that renders grey frames."""

    metadata = {"render_modes": ["rgb_array"]}

    def render(self):
        return np.full((4, 6, 3), 128, np.uint8)


class ManagerContract:
    """Subclasses set `manager_cls`, and `cfg` so that a step waits for all envs."""

    manager_cls: type
    cfg: dict = {}
    in_process = False
    step_error: type = LookupError  # the error of `step` after a LookupError in an env
    closes_on_step_error = True

    @pytest.fixture
    def make(self):
        made = []

        def make(env_fn=None, count=3, **cfg):
            env_fn = actors(count) if env_fn is None else env_fn
            manager = self.manager_cls(env_fn=env_fn, cfg={**self.cfg, **cfg})
            made.append(manager)
            return manager

        yield make
        for manager in made:
            manager.close()

    @pytest.fixture
    def launched(self, make):
        def launched(*args, **kwargs):
            manager = make(*args, **kwargs)
            manager.launch()
            return manager

        return launched

    @staticmethod
    def settle(manager):
        """Wait for automatic resets: in the asynchronous manager they may take longer than the step."""
        while EnvState.RESET in manager.env_states.values():
            manager.step({})

    def step(self, manager, actions=None):
        """Wait for automatic resets, step all ready envs or these, and return a dict of timesteps."""
        self.settle(manager)
        if actions is None:
            actions = dict.fromkeys(manager.ready_obs_id, 0)
        return as_dict(manager, manager.step(actions))

    def ready(self, manager):
        """Return the observations of ready envs by env id, also for V2."""
        self.settle(manager)
        obs = manager.ready_obs
        return obs if isinstance(obs, dict) else dict(zip(manager.ready_obs_id, obs))

    # ---- construction, launch, close ------------------------------------------------------

    @pytest.mark.parametrize("cfg", [None, {}, {"episode_num": 2}])
    def test_config_is_merged_over_the_defaults(self, cfg):
        manager = self.manager_cls(actors(2), cfg)
        assert manager._max_retry == 1 and manager.closed
        assert self.manager_cls.default_config().cfg_type == f"{self.manager_cls.__name__}Dict"

    def test_config_keeps_unknown_keys_and_warns_about_misspelled_ones(self):
        assert config_of(self.manager_cls(actors(1), {"my_own_key": 1})).my_own_key == 1
        with pytest.warns(UserWarning, match="did you mean 'step_timeout'"):
            self.manager_cls(actors(1), {"step_timout": 1})

    @pytest.mark.parametrize(
        "cfg",
        [{"retry_type": "again"}, {"step_timeout": 0}, {"episode_num": 0}, {"on_step_error": "x"}],
    )
    def test_config_with_a_wrong_value_raises_assertion_error(self, cfg):
        with pytest.raises(AssertionError):
            self.manager_cls(actors(1), cfg)

    @pytest.mark.parametrize("env_fn", [[], [None], ["CartPole-v1"]])
    def test_env_fn_of_a_wrong_form_raises(self, env_fn):
        with pytest.raises(ValueError, match="env_fn"):
            self.manager_cls(env_fn, {})

    def test_spaces_are_known_before_and_after_launch(self, make):
        manager = make()
        before = manager.observation_space, manager.action_space, manager.reward_space
        manager.launch()
        assert before == (manager.observation_space, manager.action_space, manager.reward_space)
        assert manager.env_ref.name == "actor 0" and manager.env_num == 3

    def test_calls_before_launch_raise_assertion_error(self, make):
        manager = make()
        assert manager.closed and manager.env_states == dict.fromkeys(range(3), VOID)
        for call in (manager.reset, lambda: manager.reset([]), lambda: manager.step([]), lambda: manager.step({})):
            with pytest.raises(AssertionError):
                call()
        manager.launch()
        assert not manager.closed
        with pytest.raises(AssertionError):
            manager.launch()

    def test_launch_with_parameters_of_some_envs_raises(self, make):
        with pytest.raises(AssertionError):
            make().launch({0: {"stat": "x"}})

    def test_close_and_relaunch(self, launched):
        manager = launched(episode_num=2)
        self.step(manager)
        pids = manager.worker_pids
        manager.close()
        manager.close()
        assert manager.closed and manager.env_states == dict.fromkeys(range(3), VOID)
        for call in (manager.reset, lambda: manager.reset([]), lambda: manager.step([])):
            with pytest.raises(AssertionError):
                call()
        manager.launch()
        assert self.ready(manager)[1].tolist() == [1, 0, 1]
        assert manager.env_episode_count == {0: 0, 1: 0, 2: 0}
        assert self.in_process or not set(pids) & set(manager.worker_pids)

    def test_manager_is_a_context_manager_and_cannot_be_pickled(self, make):
        with make() as manager:
            manager.launch()
            for function in (pickle.dumps, copy.copy):
                with pytest.raises(TypeError, match="cannot be pickled"):
                    function(manager)
        assert manager.closed

    def test_getattr_before_init_does_not_recurse(self):
        bare = object.__new__(self.manager_cls)
        with pytest.raises(AttributeError):
            bare.anything  # noqa: B018

    # ---- steps ----------------------------------------------------------------------------

    def test_timestep_has_the_documented_types(self, launched):
        manager = launched()
        timestep = self.step(manager)[2]
        assert timestep.obs.dtype == np.float32 and timestep.obs.tolist() == [2, 1, 1]
        assert timestep.reward.dtype == np.float32 and timestep.reward.shape == (1,)
        assert timestep.done is False and timestep.info["name"] == "actor 2"

    def test_last_timestep_has_the_final_observation_and_ready_obs_the_next(self, launched):
        manager = launched(actors(2, length=2))
        self.step(manager)
        timesteps = self.step(manager)
        for env_id in (0, 1):
            timestep = timesteps[env_id]
            assert timestep.done is True and timestep.obs.tolist() == [env_id, 2, 1]
            assert timestep.info["eval_episode_return"] == 2.0
            assert timestep.info["terminated"] and not timestep.info["truncated"]
            assert self.ready(manager)[env_id].tolist() == [env_id, 0, 2]
        assert manager.env_episode_count == {0: 1, 1: 1}

    def test_info_of_a_gymnasium_env_has_end_flags(self, launched):
        manager = launched([functools.partial(CountEnv, 1, truncate=True)] * 2)
        timestep = self.step(manager)[0]
        assert timestep.done is True and timestep.info["truncated"] is True
        assert timestep.info["TimeLimit.truncated" if "TimeLimit.truncated" in timestep.info else "TimeLimit_truncated"]
        assert timestep.obs[0] == 1 and timestep.info["steps"] == 1
        assert timestep.reward.shape == (1,)

    def test_steps_lose_and_double_no_timestep(self, launched):
        manager = launched(actors(3, length=3), episode_num=4)
        counts = dict.fromkeys(range(3), 0)
        episodes = dict.fromkeys(range(3), 0)
        while not manager.done:
            assert len(manager.ready_obs)
            timesteps = self.step(manager)
            assert timesteps
            for env_id, timestep in timesteps.items():
                counts[env_id] += 1
                episodes[env_id] += timestep.done
        assert manager.data_count == list(counts.values()) == [12, 12, 12]
        assert episodes == manager.env_episode_count == {0: 4, 1: 4, 2: 4}
        assert all(manager.env_state_done(env_id) for env_id in range(3))
        assert manager.episodes == [4, 4, 4]  # no env is reset again

    def test_observations_are_not_overwritten(self, launched):
        manager = launched()
        seen = []
        for _ in range(8):
            seen += [timestep.obs for timestep in self.step(manager).values()]
            seen += self.ready(manager).values()
        expected = [obs.copy() for obs in seen]
        for _ in range(8):
            self.step(manager)
        assert all(np.array_equal(a, b) for a, b in zip(seen, expected))

    @pytest.mark.parametrize("action", [1, np.int64(1), np.array([1]), np.array(1), [1]], ids=repr)
    def test_actions_keep_their_type(self, launched, action):
        manager = launched(count=2)
        self.step(manager, {0: action, 1: action})
        for (kept,) in manager.kept:
            assert type(kept) is type(action) and np.array_equal(kept, action)
            assert not isinstance(kept, np.ndarray) or kept.shape == action.shape

    @pytest.mark.parametrize(
        "space",
        [
            gymnasium.spaces.Box(-1, 1, (2,), np.float32),
            gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(0, 1, (2,), np.float32)]),
            gymnasium.spaces.Dict(a=gymnasium.spaces.MultiBinary(3), b=gymnasium.spaces.Discrete(2)),
            gymnasium.spaces.Text(4),
        ],
        ids=lambda space: type(space).__name__,
    )
    def test_actions_of_all_spaces_arrive(self, launched, space):
        manager = launched([functools.partial(KeepsAction, space)] * 2)
        manager.seed(1)
        actions = manager.random_action()
        self.step(manager, actions)
        for env_id, (kept,) in enumerate(manager.kept):
            assert repr(kept) == repr(actions[env_id])

    def test_action_keys_keep_their_order(self, launched):
        space = gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(2), b=gymnasium.spaces.Discrete(2))
        manager = launched([functools.partial(KeepsAction, space)] * 2)
        self.step(manager, {env_id: {"b": np.int64(1), "a": np.int64(0)} for env_id in (0, 1)})
        assert [list(kept) for (kept,) in manager.kept] == [["b", "a"]] * 2

    @pytest.mark.parametrize(
        "space",
        [
            gymnasium.spaces.Discrete(5),
            gymnasium.spaces.Dict(x=gymnasium.spaces.Box(0, 255, (2, 2), np.uint8), y=gymnasium.spaces.Discrete(3)),
            gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3), gymnasium.spaces.MultiBinary(2)]),
            gymnasium.spaces.Dict(n=gymnasium.spaces.Text(6), z=gymnasium.spaces.Discrete(2)),
        ],
        ids=["discrete", "dict", "tuple", "text"],
    )
    def test_observations_of_all_spaces_come_back(self, launched, space):
        manager = launched([functools.partial(SpaceEnv, space, length=2)] * 2)
        for _ in range(4):
            for timestep in self.step(manager).values():
                obs = timestep.obs
                if not isinstance(obs, TreeArray):
                    assert obs in space
            self.settle(manager)
            assert len(manager.ready_obs_id) == 2 and manager.ready_obs is not None

    @pytest.mark.parametrize("form", ["tuple", "dict", "stack"])
    def test_two_agents_play_all_episodes(self, launched, form):
        manager = launched([functools.partial(TwoAgentEnv, {"form": form, "max_steps": 3})] * 2, episode_num=2)
        manager.seed(2)
        manager.reset()
        while not manager.done:
            for timestep in self.step(manager, manager.random_action()).values():
                assert timestep.reward.shape == (2,) and timestep.reward.dtype == np.float32
                assert np.asarray(timestep.info["agent_done"]).shape == (2,)
            self.settle(manager)

    def test_hybrid_actions_play_all_episodes(self, launched):
        manager = launched([HybridEnv] * 2, episode_num=1)
        manager.seed(2)
        manager.reset()
        while not manager.done:
            self.step(manager, manager.random_action())

    def test_step_of_an_env_not_in_run_raises(self, launched):
        manager = launched(actors(2, length=1), episode_num=1)
        self.step(manager, {0: 0})
        assert manager.env_states == {0: DONE, 1: RUN}
        with pytest.raises(AssertionError, match="DONE"):
            manager.step({0: 0, 1: 0})
        assert manager.ready_obs_id == [1] and list(self.ready(manager)) == [1]
        self.step(manager, {1: 0})
        assert manager.done and not manager.ready_obs_id
        assert len(manager.ready_obs) == 0  # it returns at once

    # ---- resets -----------------------------------------------------------------------------

    def test_reset_of_one_env_leaves_the_others_alone(self, launched):
        manager = launched()
        self.step(manager)
        manager.reset({1: None})
        obs = self.ready(manager)
        assert [obs[env_id].tolist() for env_id in range(3)] == [[0, 1, 1], [1, 0, 2], [2, 1, 1]]

    def test_reset_parameters_are_remembered(self, launched):
        manager = launched(actors(2, length=1))
        manager.reset({1: {"stat": "mine"}})
        self.step(manager)
        assert manager.stat == [None, "mine"] and manager.episodes == [2, 3]
        manager.reset()
        assert manager.stat == [None, "mine"]
        manager.reset({1: None})
        self.step(manager)
        assert manager.stat == [None, None]

    @pytest.mark.parametrize("param", [[], {0: 3}, {7: None}, "x"])
    def test_reset_with_a_wrong_parameter_raises_assertion_error(self, launched, param):
        with pytest.raises(AssertionError):
            launched().reset(param)

    def test_reset_of_a_done_env_gives_one_more_episode(self, launched):
        manager = launched(actors(2, length=2), episode_num=1)
        while not manager.done:
            self.step(manager)
        manager.reset({0: None})
        assert manager.env_states == {0: RUN, 1: DONE}
        while not manager.done:
            self.step(manager)
        assert manager.env_episode_count == {0: 2, 1: 1} and manager.episodes == [2, 1]

    def test_auto_reset_false_leaves_resets_to_the_caller(self, launched):
        manager = launched(actors(2, length=1), auto_reset=False, episode_num=2)
        self.step(manager)
        assert set(manager.env_states.values()) == {NEED_RESET}
        assert len(manager.ready_obs) == 0
        manager.reset({0: None})
        manager.reset({1: {}})
        self.step(manager)
        assert manager.done

    @pytest.mark.parametrize("extra", [{}, {"step_timeout": 20}, {"max_retry": 2}], ids=["in row", "limit", "retry"])
    def test_autoresets_and_reset_commands_give_the_same_episodes(self, launched, extra):
        manager = launched([functools.partial(CountEnv, 2)] * 2, episode_num=3, **extra)
        manager.seed(5)
        manager.reset()
        seen = {0: [], 1: []}
        while not manager.done:
            for env_id, timestep in self.step(manager).items():
                seen[env_id].append((timestep.obs[:2].tolist(), timestep.done, timestep.info["seed"]))
        plain = self.manager_cls([functools.partial(CountEnv, 2)] * 2, {**self.cfg, "episode_num": 3})
        with plain:
            plain.seed(5)
            plain.launch()
            expected = {0: [], 1: []}
            while not plain.done:
                for env_id, timestep in self.step(plain).items():
                    expected[env_id].append((timestep.obs[:2].tolist(), timestep.done, timestep.info["seed"]))
        assert seen == expected and len(seen[0]) == 6

    # ---- seeds ------------------------------------------------------------------------------

    def test_seed_of_an_integer_is_counted_up_and_used_once(self, launched):
        manager = launched()
        assert manager.last_seed == [None] * 3
        manager.seed(10)
        assert manager.last_seed == [None] * 3
        manager.reset()
        assert manager.last_seed == [10, 11, 12]
        manager.reset()
        assert [len(calls) for calls in manager.seed_calls] == [1, 1, 1]
        manager.close()
        manager.launch()
        assert manager.last_seed == [None] * 3

    def test_seed_in_reset_param_comes_first(self, make):
        manager = make([CountEnv] * 2)
        manager.seed(3)
        manager.launch({0: {"seed": 77}, 1: None})
        assert manager.seed_given[0] == 77 != manager.seed_given[1]

    def test_seed_takes_lists_and_dicts_and_does_not_change_them(self, launched):
        manager = launched()
        seeds = [7, 3, 9]
        manager.seed(seeds, dynamic_seed=False)
        manager.reset({0: None, 2: None})
        assert manager.last_seed == [7, None, 9] and seeds == [7, 3, 9]
        manager.seed({1: 5})
        manager.reset()
        assert manager.last_seed == [7, 5, 9] and manager.last_dynamic_seed == [False, True, False]

    @pytest.mark.parametrize(
        "seed, error",
        [([1, 2], AssertionError), (-1, AssertionError), ({9: 1}, AssertionError), ("1", TypeError), (1.5, TypeError)],
    )
    def test_seed_with_a_wrong_argument_raises(self, make, seed, error):
        with pytest.raises(error):
            make().seed(seed)

    @pytest.mark.parametrize("dynamic", [None, True, False])
    def test_seeds_of_gymnasium_envs_are_a_function_of_seed_and_episode(self, launched, dynamic):
        first, again = [], []
        for seen in (first, again):
            manager = launched([functools.partial(CountEnv, 1)] * 2)
            manager.seed(3, dynamic)
            manager.reset()
            for _ in range(3):
                seen.append([self.step(manager)[env_id].info["seed"] for env_id in (0, 1)])
        assert first == again
        different = {tuple(seeds) for seeds in first}
        assert len(different) == (1 if dynamic is False else 3)
        if dynamic is False:
            assert first[0] == [3, 4]

    def test_seed_determines_random_actions(self, make):
        samples = []
        for _ in range(2):
            manager = make()
            manager.seed(4)
            manager.launch()
            samples.append([manager.random_action() for _ in range(5)])
        assert samples[0] == samples[1] and list(samples[0][0]) == [0, 1, 2]

    # ---- attributes ---------------------------------------------------------------------------

    def test_attributes_come_as_a_list(self, launched):
        manager = launched()
        assert manager.name == manager._name == ["actor 0", "actor 1", "actor 2"]
        assert len(set(manager.time_id)) == 3

    def test_attributes_that_are_missing_and_unlisted_methods_raise(self, launched):
        manager = launched()
        with pytest.raises(AttributeError):
            manager.xyz  # noqa: B018
        with pytest.raises(RuntimeError):
            manager.user_defined  # noqa: B018
        manager.close()
        with pytest.raises(AssertionError):
            manager.name  # noqa: B018

    def test_enable_save_figure_and_reward_shaping_reach_one_env(self, launched):
        manager = launched()
        manager.enable_save_figure(1, "somewhere")
        assert manager.figure_path == [None, "somewhere", None]
        assert manager.reward_shaping(0, [1.0, 2.0]) == [2.0, 4.0]
        with pytest.raises(AssertionError):
            manager.enable_save_figure(1, None)

    def test_ready_imgs_has_frames_of_ready_envs(self, launched):
        env_fn = functools.partial(Painted, render_mode="rgb_array")
        manager = launched([env_fn] * 2)  # without pygame, which cannot be initialised in two threads at once
        frames = manager.ready_imgs
        assert list(frames) == [0, 1] and frames[0].ndim == 3 and frames[0].dtype == np.uint8
        with pytest.raises(StateError, match="human"):
            manager.render("human")

    # ---- failures -----------------------------------------------------------------------------

    def test_reset_error_closes_and_launch_works_again(self, make):
        manager = make(max_retry=2, retry_waiting_time=0)
        with pytest.raises(RuntimeError, match=r"env \d could not be reset in 2 attempts"):
            manager.launch({env_id: {"stat": "error"} for env_id in range(3)})
        assert manager.closed
        manager.launch({env_id: {"stat": "fine"} for env_id in range(3)})
        assert not manager.closed and len(self.step(manager)) == 3

    @pytest.mark.parametrize("retry_type, same", [("reset", True), ("renew", False)])
    def test_reset_that_fails_once_has_another_attempt(self, launched, retry_type, same):
        manager = launched(max_retry=3, retry_type=retry_type, retry_waiting_time=0)
        manager.seed(8, dynamic_seed=False)
        before = manager.time_id
        if same:
            manager.reset({0: {"stat": "error_once"}})
        else:
            with pytest.raises(RuntimeError):
                manager.reset({0: {"stat": "error"}})
            return
        after = manager.time_id
        assert (after[0] == before[0]) is same and after[1:] == before[1:]
        assert manager.last_seed[0] == 8 and manager.env_states[0] is RUN

    def test_renewed_env_keeps_seed_and_parameters(self, launched, tmp_path):
        flag = tmp_path / "failed"
        manager = launched(
            [functools.partial(FailsOnce, flag), functools.partial(FailsOnce, None)],
            max_retry=2,
            retry_type="renew",
            retry_waiting_time=0,
        )
        before = manager.time_id
        manager.seed(8, dynamic_seed=False)
        manager.reset({0: {"stat": "mine"}})
        after = manager.time_id
        assert after[0] != before[0] and after[1] == before[1]
        assert manager.last_seed == [8, None] and manager.stat[0] == "mine"

    def test_abnormal_timestep_is_returned(self, launched):
        manager = launched()
        timesteps = self.step(manager, {0: "abnormal", 1: 0, 2: 0})
        assert timesteps[0].info["abnormal"] and timesteps[0].obs is None and timesteps[0].reward is None
        assert timesteps[1].obs.tolist() == [1, 1, 1]
        if self.in_process:
            assert set(manager.env_states.values()) == {RUN} and len(manager.ready_obs) == 3
        else:
            assert manager.env_states == {0: ERROR, 1: RUN, 2: RUN} and manager.ready_obs_id == [1, 2]
            assert len(manager.ready_obs) == 2
            manager.reset({0: None})
        assert manager.env_episode_count[0] == 0
        assert len(self.step(manager)) == 3

    def test_step_error_sets_the_documented_states(self, launched):
        manager = launched()
        with pytest.raises(self.step_error, match="actor 1 cannot step"):
            manager.step({0: 0, 1: "error", 2: 0})
        assert manager.closed is self.closes_on_step_error
        if self.closes_on_step_error:
            with pytest.raises(AssertionError):
                manager.step({0: 0})
            manager.launch()
        else:
            assert manager.env_states == {0: RUN, 1: ERROR, 2: RUN}
            with pytest.raises(AssertionError):
                manager.step({1: 0})
            manager.reset({1: None})
        assert len(self.step(manager)) == 3

    @pytest.mark.parametrize("policy", ["error", "renew"])
    def test_on_step_error_keeps_the_manager_open(self, launched, policy):
        manager = launched(on_step_error=policy)
        before = manager.time_id
        with pytest.raises(self.step_error):
            manager.step({1: "error", 2: "error"})
        assert manager.env_states == {0: RUN, 1: ERROR, 2: ERROR}
        is_new = [now != then for now, then in zip(manager.time_id, before)]
        assert is_new == [False, *[policy == "renew"] * 2]
        manager.reset({1: None, 2: None})
        assert len(self.step(manager)) == 3

    def test_hung_reset_raises_and_closes(self, make):
        manager = make(reset_timeout=1.0)
        with pytest.raises(RuntimeError, match="env 1"):
            manager.launch({0: None, 1: {"stat": "block"}, 2: None})
        assert manager.closed
        manager.launch()
        assert len(self.step(manager)) == 3

    def test_automatic_reset_error_is_raised(self, make):
        manager = make(actors(2, length=1))
        manager.launch({0: {"stat": "error_later"}, 1: None})
        with pytest.raises(RuntimeError, match="cannot reset again"):
            for _ in range(3):
                self.step(manager)
        assert manager.closed


class FailsOnce:
    """Makes an env whose first reset with a parameter raises once, in any process."""

    def __new__(cls, flag):
        from tests.managers.fakes import ActorEnv

        class Once(ActorEnv):
            def reset(self, stat=None):
                if stat is not None and flag is not None and not flag.exists():
                    flag.touch()
                    raise ZeroDivisionError("once")
                return super().reset(stat)

        return Once({})
