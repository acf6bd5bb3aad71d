"""Symptoms of other managers that the contract does not cover; `tests/test_weaknesses.py` lists all of them."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
import warnings

import gymnasium
import numpy as np
import pytest

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS, ActorEnv, actors
from vecenv import ClosedError, StateError
from vecenv.ding import BaseEnvManager, EnvState, SyncSubprocessEnvManager
from vecenv.envs.toys import CountEnv

MANAGERS = [*IN_PROCESS, *WITH_WORKERS]
WAITS_FOR_ALL = {"wait_num": 100, "step_wait_timeout": None, "num_workers": 2}


@pytest.fixture(params=MANAGERS)
def manager_cls(request):
    return request.param


def make(manager_cls, env_fn, **cfg):
    own = WAITS_FOR_ALL if manager_cls in WITH_WORKERS else {}
    return manager_cls(env_fn, {**own, **cfg})


class Odd(ActorEnv):
    """An env that fails as `cfg['wrong']` says, and writes its resets and closes to files."""

    def __init__(self, cfg):
        if cfg.get("wrong") == "init":
            raise LookupError("no license for this env")
        super().__init__(cfg)
        if cfg.get("wrong") == "spaces":
            self.observation_space = None

    def note(self, what):
        with open(os.path.join(self._cfg["notes"], what), "a") as file:
            file.write(f"{os.getpid()} {self.time_id}\n")

    def seed(self, seed, dynamic_seed=True):
        if self._cfg.get("wrong") == "seed":
            raise ZeroDivisionError("cannot be seeded")
        super().seed(seed, dynamic_seed)

    def reset(self, stat=None):
        if "notes" in self._cfg:
            self.note("resets")
        if self._cfg.get("wrong") == "spaces":
            raise LookupError("no spaces for this env")
        return super().reset(stat)

    def close(self):
        if "notes" in self._cfg:
            self.note("closes")
        if self._cfg.get("wrong") == "spaces":
            raise OSError("cannot be closed")
        if self._cfg.get("wrong") == "close":
            threading.Event().wait(60)


def odd(**cfg):
    return functools.partial(Odd, cfg)


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


# ---- W11: the reference env ----------------------------------------------------------------


def test_reference_env_error_is_raised(manager_cls):
    manager = manager_cls([odd(wrong="init")] * 2)
    with pytest.raises(LookupError, match="no license"):
        manager.observation_space  # noqa: B018
    with pytest.raises(LookupError, match="no license"):
        manager.launch()
    assert manager.closed


@pytest.mark.parametrize("name", ["env_ref", "observation_space"])
def test_constructor_attribute_error_is_raised_by_properties(manager_cls, name):
    """Regression: it was called again until the recursion limit."""
    calls = []

    def make_env():
        calls.append(1)
        return ActorEnv().no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        getattr(manager_cls([make_env]), name)
    assert len(calls) == 1


def test_reference_env_is_closed_with_the_manager(manager_cls, tmp_path):
    manager = manager_cls([odd(notes=str(tmp_path))] * 2)
    mine = manager.env_ref.time_id
    manager.close()
    assert lines(tmp_path / "closes") == [f"{os.getpid()} {mine}"] and lines(tmp_path / "resets") == []


@pytest.mark.parametrize("read", ["env_ref", "launch"])
def test_env_without_spaces_is_closed(manager_cls, tmp_path, read):
    """Regression: an env whose first reset raised stayed open."""
    manager = manager_cls([odd(wrong="spaces", notes=str(tmp_path))])
    with manager, pytest.raises(LookupError, match="no spaces for this env"):
        manager.launch() if read == "launch" else manager.env_ref
    assert len(lines(tmp_path / "closes")) == 1


# ---- W12: rendering ------------------------------------------------------------------------


class OldRender(ActorEnv):
    """An env without an inner `_env`, whose `render` has a mode."""

    def render(self, mode="human"):
        return np.full((4, 4, 3), {"rgb_array": 7, "depth": 9}[mode], np.uint8)


class BlindEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}


def test_render_with_a_mode_argument(manager_cls):
    with make(manager_cls, [functools.partial(OldRender, {})] * 2) as manager:
        manager.launch()
        assert list(manager.ready_imgs) == [0, 1] and manager.ready_imgs[1].max() == 7
        assert manager.render("depth", [1])[1].max() == 9


class RendersWhatItLacks(ActorEnv):
    render_mode = "rgb_array"

    def render(self):
        return self.no_such_thing


def test_render_attribute_error_is_raised_by_ready_imgs(manager_cls):
    """Regression: the message was that the manager has no `ready_imgs`."""
    with make(manager_cls, [RendersWhatItLacks]) as manager:
        manager.launch()
        with pytest.raises(AttributeError, match="no_such_thing"):
            manager.ready_imgs  # noqa: B018


def test_render_without_a_render_mode_raises(manager_cls):
    with make(manager_cls, [BlindEnv]) as manager:
        manager.launch()
        with pytest.raises(StateError, match="render_mode='rgb_array'"):
            manager.ready_imgs  # noqa: B018


# ---- W13: ready_obs without an env to wait for ----------------------------------------------


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_ready_obs_is_empty_if_all_envs_are_in_error(manager_cls):
    with make(manager_cls, actors(2), on_step_error="error") as manager:
        manager.launch()
        for env_id in (0, 1):
            with pytest.raises((LookupError, RuntimeError)):
                manager.step({env_id: "error"})
        assert set(manager.env_states.values()) == {EnvState.ERROR}
        assert len(manager.ready_obs) == 0 and manager.ready_obs_id == []
        manager.reset()
        assert len(manager.ready_obs) == 2


# ---- W17: errors of `seed` ------------------------------------------------------------------


def test_seed_error_of_an_env_has_its_id(manager_cls):
    with make(manager_cls, [odd(), odd(wrong="seed")]) as manager:
        manager.launch()
        manager.seed(3)
        with pytest.raises(RuntimeError, match="env 1.*cannot be seeded"):
            manager.reset()
        assert manager.closed


# ---- W19: methods of envs --------------------------------------------------------------------


def test_method_name_list_can_be_extended(manager_cls):
    class Extended(manager_cls):
        @property
        def method_name_list(self):
            return [*super().method_name_list, "double"]

    with make(Extended, [functools.partial(Doubles, {"number": number}) for number in range(2)]) as manager:
        manager.launch()
        assert manager.double(by=2) == [0, 2]
        with pytest.raises(RuntimeError, match="method_name_list"):
            manager.user_defined  # noqa: B018


class Doubles(ActorEnv):
    """An env with a method, and with an attribute that cannot be pickled."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.lock = threading.Lock()

    def double(self, by):
        return self._cfg["number"] * by


# ---- W21: closing ----------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_close_waits_once_for_all_hung_envs(manager_cls):
    manager = make(manager_cls, [odd(wrong="close")] * 6, num_workers=6, close_timeout=1.0)
    manager.launch()
    pids = manager.worker_pids
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        manager.close()
    assert time.monotonic() - began < 6 * 5  # the symptom was 5 s for each env
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# ---- W22: a failed reset ---------------------------------------------------------------------


def test_reset_retry_does_not_close_the_env(manager_cls, tmp_path):
    with make(manager_cls, [odd(notes=str(tmp_path))], max_retry=3, retry_waiting_time=0) as manager:
        manager.launch({0: {"stat": "error_once"}})
        assert len(lines(tmp_path / "resets")) == 2 and lines(tmp_path / "closes") == []
        assert len({line.split()[1] for line in lines(tmp_path / "resets")}) == 1


# ---- W26: renewed envs -----------------------------------------------------------------------


class RendersAfterAll(ActorEnv):
    """An env that renders; its first reset with a parameter raises, in any process."""

    render_mode = "rgb_array"
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)

    def reset(self, stat=None):
        if stat is not None and not os.path.exists(stat):
            open(stat, "w").close()
            raise ZeroDivisionError("once")
        return super().reset()


class FailsOnce(CountEnv):
    """An env whose second reset raises, once for all envs that are built."""

    def __init__(self, flag):
        super().__init__()
        self.flag = flag

    def reset(self, *, seed=None, options=None):
        if self.episode and not self.flag.exists():
            self.flag.touch()
            raise ZeroDivisionError("not this time")
        return super().reset(seed=seed, options=options)


def test_renewed_unseeded_env_begins_with_another_seed(manager_cls, tmp_path):
    cfg = {"max_retry": 2, "retry_type": "renew", "retry_waiting_time": 0}
    with make(manager_cls, [functools.partial(FailsOnce, tmp_path / "failed")], **cfg) as manager:
        manager.launch()
        (first,) = manager.np_random_seed
        manager.reset()
        (second,) = manager.np_random_seed
    assert 0 <= first < 2**31 and 0 <= second < 2**31 and first != second


def built_once(flag):
    if flag.exists():
        raise OSError("there is only one")
    flag.touch()
    return ActorEnv()


def test_renewed_env_constructor_error_uses_an_attempt(manager_cls, tmp_path):
    cfg = {"max_retry": 2, "retry_type": "renew", "retry_waiting_time": 0}
    with make(manager_cls, [functools.partial(built_once, tmp_path / "built")], **cfg) as manager:
        manager.launch()
        with pytest.raises(RuntimeError, match="2 attempts.*OSError: there is only one"):
            manager.reset({0: {"stat": "error"}})


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_renewed_env_continues_recording(manager_cls, tmp_path):
    pytest.importorskip("moviepy")
    env_fn = functools.partial(RendersAfterAll, {"length": 3})
    cfg = {"max_retry": 2, "retry_type": "renew", "retry_waiting_time": 0, "episode_num": 1}
    with make(manager_cls, [env_fn], **cfg) as manager:
        manager.enable_save_replay(str(tmp_path / "videos"))
        manager.launch({0: {"stat": str(tmp_path / "failed")}})
        while not manager.done:
            manager.step({0: 0})
    assert (tmp_path / "failed").exists()
    assert len(list((tmp_path / "videos").glob("*.mp4"))) == 1


# ---- W27: time limits ------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_step_timeout_works_in_any_thread_and_leaves_sigalrm_alone(manager_cls):
    def mine(number, frame):
        raise AssertionError("nobody set an alarm")

    before = signal.signal(signal.SIGALRM, mine)
    caught = []

    def run():
        with make(manager_cls, actors(2), step_timeout=1.0) as manager:
            manager.launch()
            try:
                manager.step({0: 0, 1: "block"})
            except TimeoutError as error:
                caught.append(str(error))

    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGALRM) is mine
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(caught) == 1 and "within 1.0 s" in caught[0] and "env 1" in caught[0]


def test_step_timeout_in_process_restores_the_signal_handler():
    def mine(number, frame):
        raise AssertionError("nobody set an alarm")

    before = signal.signal(signal.SIGALRM, mine)
    try:
        with BaseEnvManager(actors(1), {"step_timeout": 0.25}) as manager:
            manager.launch()
            with pytest.raises(RuntimeError):
                manager.step({0: "block"})
        assert signal.getsignal(signal.SIGALRM) is mine
    finally:
        signal.signal(signal.SIGALRM, before)


def test_envs_of_managers_in_this_process(manager_cls):
    """DI-engine's base managers have the list as `_envs`."""
    manager = make(manager_cls, [CountEnv] * 2)
    with pytest.raises(ClosedError if manager_cls in IN_PROCESS else AttributeError):
        _ = manager.envs
    manager.launch()
    if manager_cls in WITH_WORKERS:
        with pytest.raises(AttributeError, match="in its workers"):
            _ = manager.envs
        assert not hasattr(manager, "_envs")
    else:
        assert [type(env) for env in manager.envs] == [CountEnv, CountEnv]
        assert manager._envs == manager.envs
        env, actions = manager.envs[1], []
        step = env.step
        env.step = lambda action: (actions.append(action), step(action))[1]
        manager.step([0, 1] if "V2" in manager_cls.__name__ else {0: 0, 1: 1})
        assert actions == [1]
    manager.close()


def test_envs_of_managers_in_this_process_remain_after_close(tmp_path):
    """DI-engine's programs read states of closed envs, as they can with `SyncVectorEnv.envs`."""
    manager = BaseEnvManager([odd(notes=str(tmp_path))] * 2)
    manager.launch()
    before = manager.envs
    manager.close()
    assert manager.envs == manager._envs == before and len(lines(tmp_path / "closes")) == 2
    manager.launch()
    assert not {id(env) for env in manager.envs} & {id(env) for env in before}
    manager.close()


def test_reference_env_has_the_name_of_di_engine(manager_cls):
    with manager_cls([CountEnv] * 2) as manager:
        assert manager._env_ref is manager.env_ref
