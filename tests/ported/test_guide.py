"""The migration guide, section by section, on real games: envs in its form behave as it promises."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np
import pytest

EasyDict = pytest.importorskip("easydict").EasyDict
for module in ("ale_py", "cv2", "mujoco"):
    pytest.importorskip(module)

from tests.inside import config_of  # noqa: E402
from tests.ported.guide import AtariEnv, CartpoleEnv, MujocoEnv, OlderCartpoleEnv, make_old_env  # noqa: E402
from vecenv import check_all  # noqa: E402
from vecenv.ding import (  # noqa: E402
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvManagerV2,
    ClipRewardEnv,
    DingEnvWrapper,
    FrameStack,
    GymHybridDictActionWrapper,
    GymToGymnasiumWrapper,
    HybridEnv,
    MaxAndSkipEnv,
    NoopResetEnv,
    ObsNormEnv,
    ObsTransposeWrapper,
    RamWrapper,
    RewardNormEnv,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
    create_env_manager,
    demonstrate_correct_procedure,
    get_vec_env_setting,
)

MANAGERS = [
    BaseEnvManager,
    BaseEnvManagerV2,
    SyncSubprocessEnvManager,
    AsyncSubprocessEnvManager,
    SubprocessEnvManagerV2,
]
ENVS = {"atari": AtariEnv, "mujoco": MujocoEnv, "cartpole": CartpoleEnv}


@pytest.fixture(params=ENVS)
def env_cls(request):
    if request.param == "atari":
        pytest.importorskip("ale_py")
        pytest.importorskip("cv2")
    if request.param == "mujoco":
        pytest.importorskip("mujoco")
    return ENVS[request.param]


@pytest.fixture
def env(env_cls):
    env = env_cls({})
    yield env
    env.close()


@pytest.fixture
def pong():
    pytest.importorskip("ale_py")
    env = make_old_env("ALE/Pong-v5", max_episode_steps=100)
    yield env
    env.close()


# ---- basic ---------------------------------------------------------------------------------


def test_env_is_built_at_the_first_reset(env):
    assert env._init_flag is False and not hasattr(env, "_env")
    env.reset()
    assert env._init_flag


@pytest.mark.extended
def test_data_have_the_forms_of_the_guide(env):
    env.seed(0)
    obs = env.reset()
    timestep = env.step(env.random_action())
    for data in (obs, timestep.obs):
        assert isinstance(data, np.ndarray) and data.dtype in (np.float32, np.float64)
    assert timestep.reward.shape == (1,) and timestep.reward.dtype == np.float32
    assert type(timestep.done) is bool and isinstance(timestep.info, dict)


@pytest.mark.extended
def test_score_is_a_python_number_at_the_end(env):
    env.seed(0)
    env.reset()
    total, done = 0.0, False
    while not done:
        obs, reward, done, info = env.step(env.random_action())
        total += reward.item()
    assert type(info["eval_episode_return"]) is float and info["eval_episode_return"] == pytest.approx(total, rel=1e-5)
    assert isinstance(info["TimeLimit.truncated"], bool)


def start(env):
    """Return the first observations of an episode without actions."""
    seen = [env.reset()]
    still = np.zeros_like(env.random_action())
    num_steps = 12 if seen[0].ndim == 3 else 6  # a ball moves visibly later than a pole
    return np.stack([*seen, *(env.step(still).obs for _ in range(num_steps))])


@pytest.mark.extended
def test_static_seeds_start_every_episode_alike_dynamic_ones_do_not(env_cls):
    env = env_cls({"is_train": False})  # a lost life ends an episode in training, and a game continues over resets
    env.seed(7, dynamic_seed=False)
    assert np.array_equal(start(env), start(env))
    env.seed(7)
    first = [start(env) for _ in range(4)]
    assert not all(np.array_equal(first[0], other) for other in first[1:])
    env.seed(7)
    assert all(np.array_equal(one, start(env)) for one in first)
    env.close()


# ---- advanced ------------------------------------------------------------------------------


def test_wrappers_by_their_older_names_keep_the_old_api(pong):
    env = NoopResetEnv(pong)
    env = MaxAndSkipEnv(env, skip=4)
    env = ClipRewardEnv(env)
    env.seed(1)
    obs = env.reset()
    assert isinstance(obs, np.ndarray) and obs.shape == (210, 160, 3)
    obs, reward, done, info = env.step(0)
    assert reward in (-1.0, 0.0, 1.0) and type(done) is bool and isinstance(info, dict)
    assert env.observation_space.shape == (210, 160, 3)


@pytest.mark.parametrize(
    "wrap, shape",
    [
        (ObsNormEnv, (4,)),
        (functools.partial(RewardNormEnv, reward_discount=0.99), (4,)),
        (FrameStack, (4, 4)),
        (RamWrapper, (4, 1, 1)),
    ],
)
def test_wrappers_change_their_space_with_their_data(wrap, shape):
    env = wrap(make_old_env("CartPole-v1"))
    assert env.reset().shape == shape == env.observation_space.shape
    assert env.step(0)[0].shape == shape
    env.close()


def test_transposed_images(pong):
    env = ObsTransposeWrapper(pong)
    assert env.reset().shape == (3, 210, 160) == env.observation_space.shape


def test_hybrid_actions_by_the_wrapper():
    env = GymHybridDictActionWrapper(GymToGymnasiumWrapper(HybridEnv()))
    assert set(env.action_space.spaces) == {"type", "mask", "args"}
    env.reset()
    assert len(env.step(env.action_space.sample())) == 4


def test_three_spaces_are_defined(env):
    env.reset()
    assert env.observation_space.contains(env.step(env.random_action()).obs)
    assert env.reward_space.shape == (1,)
    assert env.action_space.contains(env.action_space.sample())


def test_replay_in_the_order_of_the_guide(env_cls, tmp_path):
    pytest.importorskip("moviepy")
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    if env_cls is MujocoEnv:
        pytest.skip("rendering MuJoCo takes a display or EGL")
    env = env_cls(EasyDict({"max_episode_steps": 80} if env_cls is AtariEnv else {}))
    env.seed(413)
    env.enable_save_replay(str(tmp_path / "replay_video"))
    env.reset()
    steps, done = 0, False
    while not done:
        done = env.step(env.random_action()).done
        steps += 1
    env.close()
    (video,) = (tmp_path / "replay_video").iterdir()
    assert video.name == f"rl-video-{id(env)}-episode-0.mp4"
    assert imageio_ffmpeg.count_frames_and_secs(str(video))[0] == steps + 1


@pytest.mark.extended
def test_configs_for_training_and_evaluation():
    pytest.importorskip("ale_py")
    cfg = EasyDict(type="ported_atari", import_names=["tests.ported.guide"], collector_env_num=2, evaluator_env_num=1)
    env_cls, collector_cfgs, evaluator_cfgs = get_vec_env_setting(cfg)
    assert env_cls is AtariEnv and cfg.collector_env_num == 2
    assert [one.is_train for one in collector_cfgs] == [True, True] and [one.is_train for one in evaluator_cfgs] == [
        False
    ]
    collector, evaluator = env_cls(collector_cfgs[0]), env_cls(evaluator_cfgs[0])
    for env, clips in ((collector, True), (evaluator, False)):
        env.seed(0)
        env.reset()
        assert env.observation_space.shape == (4, 84, 84) and env.observation_space.dtype == np.float32
        layers = str(env._env)
        assert ("ClipReward" in layers) is clips and ("EpisodicLife" in layers) is clips
        env.close()


def test_default_config_is_merged_under_the_users():
    assert MujocoEnv.default_config().cfg_type == "MujocoEnvDict"
    env = MujocoEnv(EasyDict(use_act_scale=True))
    assert config_of(env).use_act_scale is True and config_of(env).delay_reward_step == 0
    assert MujocoEnv.config["use_act_scale"] is False


@pytest.mark.extended
def test_check_tool_passes(env_cls):
    env = env_cls({"max_episode_steps": 60} if env_cls is AtariEnv else {})
    check_all(env, spawn=False)
    env.close()


def test_correct_procedure_passes():
    demonstrate_correct_procedure(CartpoleEnv)


# ---- in managers ---------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_guide_env_in_every_manager(manager_cls, env_cls):
    cfg = {"max_episode_steps": 60} if env_cls is AtariEnv else {}
    with manager_cls([functools.partial(env_cls, cfg)] * 3, {"episode_num": 1, "num_workers": 2}) as manager:
        manager.seed(3)
        manager.launch()
        scores = {}
        while not manager.done:
            manager.ready_obs  # noqa: B018  # waits where there is something to wait for
            ids = manager.ready_obs_id
            actions = {env_id: np.atleast_1d(manager.action_space.sample()) for env_id in ids}
            found = manager.step(actions)
            for env_id, timestep in found.items() if isinstance(found, dict) else ((t.env_id.item(), t) for t in found):
                assert timestep.obs.dtype == np.float32 and timestep.reward.shape == (1,)
                if timestep.done:
                    info = timestep.info
                    scores[env_id] = float(info["eval_episode_return"])
        assert sorted(scores) == [0, 1, 2]


@pytest.mark.parametrize("type_name", ["base", "subprocess", "async_subprocess"])
def test_program_by_config(type_name):
    env_cls, cfgs, _ = get_vec_env_setting(
        EasyDict(type="ported_cartpole", import_names=["tests.ported.guide"], collector_env_num=4), eval_=False
    )
    env_fn = [functools.partial(env_cls, cfg=cfg) for cfg in cfgs]
    manager = create_env_manager(EasyDict(type=type_name, episode_num=2), env_fn)
    manager.seed(0)
    manager.launch()
    returns = []
    while not manager.done:
        obs = manager.ready_obs
        actions = {env_id: np.array([int(one[2] > 0)]) for env_id, one in obs.items()}
        timesteps = manager.step(actions)
        returns += [timestep.info["eval_episode_return"] for timestep in timesteps.values() if timestep.done]
    manager.close()
    assert len(returns) == 8 and np.mean(returns) > 20  # better than a random policy


def test_ding_env_wrapper_of_the_simple_families():
    for env in (
        DingEnvWrapper(gym.make("CartPole-v1")),
        DingEnvWrapper(make_old_env("CartPole-v1")),
        DingEnvWrapper(cfg={"env_id": "Pendulum-v1", "act_scale": True}),
        DingEnvWrapper(HybridEnv(), cfg={"env_wrapper": "gym_hybrid_default"}),
    ):
        env.seed(0, dynamic_seed=False)
        assert np.array_equal(env.reset(), env.reset())
        assert env.step(env.random_action()).reward.shape == (1,)
        env.close()


def test_box2d_env_by_the_wrapper():
    pytest.importorskip("Box2D")
    env = DingEnvWrapper(cfg={"env_id": "LunarLander-v3"})
    env.seed(0)
    env.reset()
    while not (timestep := env.step(env.random_action())).done:
        pass
    assert isinstance(timestep.info["eval_episode_return"], float)
    env.close()


# ---- the older edition ---------------------------------------------------------------------


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_eval_episode_return_by_its_older_name_is_passed_on(manager_cls):
    with manager_cls([OlderCartpoleEnv] * 2, {"episode_num": 1}) as manager:
        manager.seed(0)
        manager.launch()
        scores = []
        while not manager.done:
            timesteps = manager.step({env_id: np.array([0]) for env_id in manager.ready_obs})
            scores += [timestep.info["final_eval_reward"] for timestep in timesteps.values() if timestep.done]
    assert len(scores) == 2 and all(type(score) is float and score >= 8 for score in scores)


def test_check_accepts_the_older_name():
    with pytest.raises(AssertionError, match="'final_eval_reward' is its older name"):
        check_all(OlderCartpoleEnv(), spawn=False)


def test_wrapper_writes_the_older_name_on_request():
    env = DingEnvWrapper(
        cfg={
            "env_id": "CartPole-v1",
            "env_wrapper": [{"type": "eval_episode_return", "kwargs": {"older_key": True}}],
        }
    )
    env.reset()
    while not (timestep := env.step(0)).done:
        pass
    env.close()
    assert timestep.info["final_eval_reward"] == timestep.info["eval_episode_return"] >= 8.0
