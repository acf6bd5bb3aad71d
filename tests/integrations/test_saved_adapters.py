"""Adapters of frameworks that are saved, killed and continued give the results of an undisturbed program.

Each row of ADAPTERS is the loop of one framework. Its `round` returns the results that must be equal.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.faults.traces import end, frozen
from vecenv import ConfigError, StateError, VectorEnv

NUM_ENVS = 4
NUM_ROUNDS = 44
#: The first backend, and those that the program continues with, one after the other.
WORKERS, OTHERS = {"num_workers": 2}, [{"num_workers": 1}, {"backend": "serial"}]

CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=9)


class Adapter:
    """The loop of one framework. The objects of a loop are copied when a state is loaded into the same envs."""

    def make(self, **options: Any) -> Any:
        raise NotImplementedError

    def begin(self, envs: Any) -> Any:
        """Seed and reset; return the results."""
        raise NotImplementedError

    def round(self, envs: Any, number: int) -> Any:
        raise NotImplementedError

    def state_dict(self, envs: Any) -> Any:
        return envs.state_dict()

    def load_state_dict(self, envs: Any, state: Any) -> None:
        envs.load_state_dict(state)

    def end(self, envs: Any) -> list[Any]:
        """Return results that have no fixed round."""
        return []

    def vector_env(self, envs: Any) -> Any:
        return envs.vector_env


def actions_of(number: int, env_ids: Any = range(NUM_ENVS)) -> Any:
    return np.array([(number * 7 + int(env_id) * 3) % 5 % 2 for env_id in env_ids])


class SB3(Adapter):
    """Seeds and options wait for the next reset; actions are drawn by the action space."""

    def make(self, **options: Any) -> Any:
        module = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
        return module.SB3VecEnv([CARTPOLE] * NUM_ENVS, **options)

    def begin(self, envs: Any) -> Any:
        envs.action_space.seed(3)
        envs.seed(1)
        return envs.reset()

    def round(self, envs: Any, number: int) -> Any:
        if number % 13 == 6:
            envs.seed(number)
            envs.set_options([{"low": -0.01 * (i + 1), "high": 0.0} for i in range(NUM_ENVS)])
        if number % 13 == 9:
            return envs.reset()
        obs, rewards, dones, infos = envs.step([envs.action_space.sample() for _ in range(NUM_ENVS)])
        finals = [info["terminal_observation"] for info in infos if "terminal_observation" in info]
        return obs, rewards, dones, finals, len(envs.reset_infos)


class SB3Agents(SB3):
    def make(self, **options: Any) -> Any:
        pytest.importorskip("pettingzoo", exc_type=ImportError)
        module = pytest.importorskip("vecenv.integrations.sb3_agents", exc_type=ImportError)
        from tests.integrations.zoo import Walk

        return module.SB3AgentVecEnv(functools.partial(Walk, (5, 7, 7)), 2, black_death=True, **options)

    def round(self, envs: Any, number: int) -> Any:
        if number % 13 == 9:
            envs.seed(number)
            return envs.reset()
        obs, rewards, dones, _ = envs.step([envs.action_space.sample() for _ in range(envs.num_envs)])
        return obs, rewards, dones, envs.vector_env.alive

    def vector_env(self, envs: Any) -> Any:
        return envs.vector_env.batched


class PettingZoo(Adapter):
    def make(self, **options: Any) -> Any:
        pytest.importorskip("pettingzoo", exc_type=ImportError)
        from tests.integrations.zoo import Walk
        from vecenv.integrations.pettingzoo import PettingZooVectorEnv

        return PettingZooVectorEnv(functools.partial(Walk, (5, 7, 7)), 2, black_death=True, **options)

    def begin(self, envs: Any) -> Any:
        envs.action_space.seed(3)
        return envs.reset(seed=2)[0]

    def round(self, envs: Any, number: int) -> Any:
        alive = envs.alive.copy()
        return *envs.step(envs.action_space.sample())[:4], alive, envs.alive

    def vector_env(self, envs: Any) -> Any:
        return envs.batched


class Tianshou(Adapter):
    """Ended envs are reset in the next round; some rounds step some envs."""

    def make(self, **options: Any) -> Any:
        module = pytest.importorskip("vecenv.integrations.tianshou", exc_type=ImportError)
        return module.VecenvVectorEnv([CARTPOLE] * NUM_ENVS, **options)

    def begin(self, envs: Any) -> Any:
        self.ended: Any = []
        envs.seed(1)
        return envs.reset()[0]

    def round(self, envs: Any, number: int) -> Any:
        if len(self.ended):
            ended, self.ended = self.ended, []
            return envs.reset(ended)[0]
        ids = np.arange(NUM_ENVS)[:: 1 + number % 2]
        results = envs.step(actions_of(number, ids), ids)[:4]
        self.ended = ids[results[2] | results[3]]
        return results


class ByFinish(Adapter):
    """A loop in which envs finish in any order: `rows` of each env are compared."""

    def begin(self, envs: Any) -> Any:
        self.rows: list[list[Any]] = [[] for _ in range(NUM_ENVS)]

    def note(self, env_ids: Any, *columns: Any) -> None:
        for row, env_id in enumerate(env_ids):
            self.rows[env_id].append(frozen([column[row] for column in columns]))

    def actions(self, env_ids: Any) -> Any:
        return np.array([len(self.rows[env_id]) // 2 % 2 for env_id in env_ids])

    def end(self, envs: Any) -> list[Any]:
        assert min(map(len, self.rows)) > 10
        return [rows[:10] for rows in self.rows]


class TianshouAsync(ByFinish):
    def make(self, **options: Any) -> Any:
        module = pytest.importorskip("vecenv.integrations.tianshou", exc_type=ImportError)
        return module.VecenvVectorEnv([CARTPOLE] * NUM_ENVS, wait_num=2, **options)

    def begin(self, envs: Any) -> Any:
        super().begin(envs)
        envs.seed(1)
        self.note(range(NUM_ENVS), envs.reset()[0])
        self.ready, self.has_ended = list(range(NUM_ENVS)), np.zeros(NUM_ENVS, bool)

    def round(self, envs: Any, number: int) -> Any:
        ended = [env_id for env_id in self.ready if self.has_ended[env_id]]
        if ended:
            self.note(ended, envs.reset(ended)[0])
            self.has_ended[ended] = False
        obs, rewards, terminated, truncated, infos = envs.step(
            self.actions(self.ready) if self.ready else None, self.ready
        )
        self.ready = [info["env_id"] for info in infos]
        self.note(self.ready, obs, rewards, terminated, truncated)
        self.has_ended[self.ready] = terminated | truncated


class TorchRL(Adapter):
    """The state is saved between the end of an episode and the reset of TorchRL, too."""

    def make(self, **options: Any) -> Any:
        module = pytest.importorskip("vecenv.integrations.torchrl", exc_type=ImportError)
        return module.VecenvEnv([CARTPOLE] * NUM_ENVS, categorical_action_encoding=True, **options)

    def state_dict(self, envs: Any) -> Any:
        assert not envs.state_dict()  # that of a module without parameters
        return envs.env_state_dict()

    def load_state_dict(self, envs: Any, state: Any) -> None:
        envs.load_env_state_dict(state)

    def begin(self, envs: Any) -> Any:
        envs.set_seed(1)
        self.tensors: Any = envs.reset()
        self.must_reset = False
        return self.columns(self.tensors)

    def columns(self, tensors: Any) -> Any:
        return [tensors[name].numpy().copy() for name in ("observation", "done", "terminated", "truncated")]

    def round(self, envs: Any, number: int) -> Any:
        import torch

        if self.must_reset:
            self.must_reset = False
            self.tensors["_reset"] = self.tensors["done"]
            self.tensors = envs.reset(self.tensors)
            return self.columns(self.tensors)
        tensors = self.tensors.select("observation", "done", "terminated", "truncated")
        tensors["action"] = torch.from_numpy(actions_of(number))
        self.tensors = envs.step(tensors)["next"]
        self.must_reset = bool(self.tensors["done"].any())
        return *self.columns(self.tensors), self.tensors["reward"].numpy()


class TorchRLAsync(ByFinish):
    """Rows have arrived that were not asked for yet."""

    make, state_dict, load_state_dict = TorchRL.make, TorchRL.state_dict, TorchRL.load_state_dict  # type: ignore[assignment]

    def begin(self, envs: Any) -> Any:
        super().begin(envs)
        envs.set_seed(1)
        envs.async_reset_send()
        self.is_reset = [True] * NUM_ENVS

    def round(self, envs: Any, number: int) -> Any:
        import torch

        env_id = number % NUM_ENVS
        if self.is_reset[env_id]:
            tensors = envs.async_reset_recv(env_index=env_id)
            self.note([env_id], tensors["observation"].numpy()[None])
            self.is_reset[env_id] = False
        else:
            tensors = envs.async_step_recv(env_index=env_id)
            following = tensors["next"]
            self.note([env_id], following["observation"].numpy()[None], following["reward"].numpy()[None])
            self.is_reset[env_id] = bool(following["done"])
        if self.is_reset[env_id]:
            envs.async_reset_send(env_index=env_id)
        else:
            tensors = tensors.select()
            tensors["action"] = torch.from_numpy(self.actions([env_id]))[0]
            envs.async_step_send(tensors, env_index=env_id)


class PufferLib(Adapter):
    batch_size = NUM_ENVS

    def make(self, **options: Any) -> Any:
        module = pytest.importorskip("vecenv.integrations.pufferlib", exc_type=ImportError)
        import pufferlib.vector

        backend = functools.partial(module.VecenvBackend, **options)
        return pufferlib.vector.make(puffer_env, backend=backend, num_envs=NUM_ENVS, batch_size=self.batch_size)

    def begin(self, envs: Any) -> Any:
        envs.action_space.seed(1)
        envs.async_reset(3)
        return self.received(envs)

    def received(self, envs: Any) -> Any:
        obs, rewards, terminals, truncations, *_, ids, masks = envs.recv()
        return [column.copy() for column in (obs, rewards, terminals, truncations, ids, masks)]

    def round(self, envs: Any, number: int) -> Any:
        envs.send(envs.action_space.sample())
        return self.received(envs)


class PufferLibBlocks(PufferLib):
    """Two batches take turns, so that one of them is always under way."""

    batch_size = 2


def puffer_env(buf: Any = None, seed: int = 0) -> Any:
    from pufferlib.emulation import GymnasiumPufferEnv

    return GymnasiumPufferEnv(CARTPOLE(), buf=buf, seed=seed)


class EnvPool(Adapter):
    """Actions are drawn by the action space; some rows are sent in one round and received in the next one."""

    env_type = "gymnasium"

    def make(self, **options: Any) -> Any:
        from vecenv.integrations import envpool

        pytest.importorskip({"dm": "dm_env", "old_gym": "gym"}.get(self.env_type, "numpy"), exc_type=ImportError)
        return envpool.make("CartPole-v1", self.env_type, num_envs=NUM_ENVS, max_episode_steps=9, seed=4, **options)

    def draw(self, envs: Any, count: int = NUM_ENVS) -> Any:
        return np.array([envs.action_space.sample() for _ in range(count)])

    def begin(self, envs: Any) -> Any:
        with contextlib.suppress(AttributeError):
            envs.action_space.seed(3)
        self.is_sent = False
        return self.columns(envs.reset([3, 1]))  # the seeds of the others wait

    def columns(self, found: Any) -> Any:
        *arrays, infos = found
        return *arrays, infos["env_id"], infos["elapsed_step"]

    def round(self, envs: Any, number: int) -> Any:
        if number % 29 == 5:
            return self.columns(envs.reset(np.array([0, 2])))
        if number < 5:
            return self.columns(envs.step(self.draw(envs, 2), np.array([1, 3])))
        if self.is_sent:
            self.is_sent = False
            return self.columns(envs.recv())
        if number % 6 == 1:
            envs.send(self.draw(envs), np.array([2, 0, 3, 1]))
            self.is_sent = True
            return None
        return self.columns(envs.step(self.draw(envs)))


class EnvPoolDM(EnvPool):
    env_type = "dm"

    def draw(self, envs: Any, count: int = NUM_ENVS) -> Any:
        return actions_of(count)[:count]

    def columns(self, found: Any) -> Any:
        state = found.observation
        return found.step_type, found.reward, found.discount, state.obs, state.env_id


class EnvPoolOldGym(EnvPool):
    env_type = "old_gym"

    def columns(self, found: Any) -> Any:
        return super().columns(found) if isinstance(found, tuple) else found


class EnvPoolAsync(ByFinish):
    def make(self, **options: Any) -> Any:
        from vecenv.integrations import envpool

        return envpool.make("CartPole-v1", num_envs=NUM_ENVS, batch_size=2, max_episode_steps=9, **options)

    def begin(self, envs: Any) -> Any:
        super().begin(envs)
        envs.async_reset()

    def round(self, envs: Any, number: int) -> Any:
        obs, rewards, terminated, truncated, info = envs.recv()
        ids = info["env_id"]
        self.note(ids, obs, rewards, terminated, truncated, info["elapsed_step"])
        envs.send(self.actions(ids), ids)


class XuanCe(Adapter):
    def make(self, **options: Any) -> Any:
        module = pytest.importorskip("vecenv.integrations.xuance", exc_type=ImportError)
        return module.VecenvVecEnv([xuance_env] * NUM_ENVS, 5, **options)

    def begin(self, envs: Any) -> Any:
        return envs.reset()[0]

    def round(self, envs: Any, number: int) -> Any:
        obs, rewards, terminated, truncated, infos = envs.step(actions_of(number))
        buffer = envs.buf_obs.copy()
        for env_id, info in enumerate(infos):
            if "reset_obs" in info:
                envs.buf_obs[env_id] = info["reset_obs"]
        return obs, rewards, terminated, truncated, buffer, envs.buf_obs


def xuance_env(env_seed: int) -> Any:
    from xuance.environment import XuanCeEnvWrapper

    env = XuanCeEnvWrapper(CARTPOLE())
    env.env.reset(seed=env_seed)
    env.max_episode_steps = 9
    return env


class RlGames(Adapter):
    """The seeds wait for the first reset."""

    def make(self, **options: Any) -> Any:
        pytest.importorskip("vecenv.integrations.rl_games", exc_type=ImportError)
        from rl_games.common import vecenv as vecenv_of_rl_games
        from rl_games.common.env_configurations import configurations

        from tests.integrations.seeded_cartpole import SeededCartPole

        configurations["test"] = {"env_creator": SeededCartPole, "vecenv_type": "VECENV"}
        return vecenv_of_rl_games.create_vec_env("test", NUM_ENVS, seed=5, max_episode_steps=9, vecenv_config=options)

    def begin(self, envs: Any) -> Any:
        return None

    def round(self, envs: Any, number: int) -> Any:
        return envs.reset() if number % 30 == 4 else envs.step(actions_of(number))[:3] if number > 4 else None


ADAPTERS: dict[str, type[Adapter]] = {
    "SB3VecEnv": SB3,
    "SB3AgentVecEnv": SB3Agents,
    "PettingZooVectorEnv": PettingZoo,
    "Tianshou": Tianshou,
    "Tianshou, wait_num": TianshouAsync,
    "TorchRL": TorchRL,
    "TorchRL, async": TorchRLAsync,
    "PufferLib": PufferLib,
    "PufferLib, blocks": PufferLibBlocks,
    "EnvPool": EnvPool,
    "EnvPool, dm": EnvPoolDM,
    "EnvPool, old gym": EnvPoolOldGym,
    "EnvPool, batch_size": EnvPoolAsync,
    "XuanCe": XuanCe,
    "rl_games": RlGames,
}


class Program:
    """Plays the loop of an adapter. `folder`: for files of states; None: nothing disturbs the program."""

    def __init__(self, adapter: Adapter, folder: Path | None) -> None:
        self.adapter, self.folder = adapter, folder
        self.others = iter(OTHERS)
        self.envs = adapter.make(**({"backend": "serial"} if folder is None else WORKERS))
        self.results: list[Any] = []

    def play(self) -> list[Any]:
        try:
            self.results.append(frozen(self.adapter.begin(self.envs)))
            for number in range(NUM_ROUNDS):
                if self.folder is not None:
                    self.disturb(number)
                self.results.append(frozen(self.adapter.round(self.envs, number)))
            return [*self.results, *self.adapter.end(self.envs)]
        finally:
            self.envs.close()

    def disturb(self, number: int) -> None:
        if number in (19, 33):
            self.continue_elsewhere(self.folder / "state")  # type: ignore[operator]
        if number == 11:
            end(self.adapter.vector_env(self.envs).worker_pids[0])
        if number in (3, 12):
            self.continue_here()

    def continue_elsewhere(self, path: Path) -> None:
        self.envs.save(path)
        self.envs.close()
        self.envs = self.adapter.make(**next(self.others), resume=path)

    def continue_here(self) -> None:
        state, saved = self.adapter.state_dict(self.envs), copy.deepcopy(self.adapter)
        for number in range(5):
            self.adapter.round(self.envs, 34 + number)
        self.adapter = saved
        self.adapter.load_state_dict(self.envs, state)


@pytest.mark.parametrize("name", ADAPTERS)
def test_saved_adapter_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    expected = Program(ADAPTERS[name](), None).play()
    assert Program(ADAPTERS[name](), tmp_path).play() == expected


@pytest.mark.parametrize("name", ["SB3VecEnv", "SB3AgentVecEnv", "EnvPool", "TorchRL"])
def test_state_of_a_vector_env_alone_does_not_continue_an_adapter(name: str, tmp_path: Path) -> None:
    """It lacks what the adapter would need; the workers of the refused adapter end."""
    adapter = ADAPTERS[name]()
    with contextlib.closing(adapter.make(num_workers=1)) as envs:
        adapter.vector_env(envs).save(tmp_path / "state")
    with pytest.raises(ConfigError, match="resume: the state was not saved by a vecenv.integrations"):
        adapter.make(**WORKERS, resume=tmp_path / "state")


def test_vector_env_of_the_caller_may_have_been_resumed(tmp_path: Path) -> None:
    sb3 = pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError)
    options: dict[str, Any] = {"autoreset_mode": "SameStep", "backend": "serial"}
    with VectorEnv([CARTPOLE] * 2, **options) as envs:
        envs.reset(seed=0)
        envs.save(tmp_path / "state")
    with contextlib.closing(sb3.SB3VecEnv(VectorEnv([CARTPOLE] * 2, **options, resume=tmp_path / "state"))) as envs:
        assert envs.step([0, 1])[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["PufferLib", "XuanCe"])
def test_step_under_way_is_not_saved(name: str) -> None:
    """A load makes such steps again, and their rows would come in another order."""
    adapter = ADAPTERS[name]()
    with contextlib.closing(adapter.make(**WORKERS)) as envs:
        adapter.begin(envs)
        envs.send(actions_of(0)) if name == "PufferLib" else envs.step_async(actions_of(0))
        with pytest.raises(StateError, match="state_dict: a step is under way; receive its results first"):
            envs.state_dict()
