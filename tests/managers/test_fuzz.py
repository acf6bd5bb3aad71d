"""Random programs on managers, with workers killed at random moments: the results of each env match a model.

A program is a list of requests: steps of some envs, resets with parameters, seeds, reads, closing and launching again.
The order of answers of the asynchronous manager differs from run to run. So each env has a model, the same env in this
process, which follows the rules of the contract. All results of the manager must be those of the model.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS
from tests.managers.reference_model import RAISE, Old, Optional, ReferenceEnv, plain, plain_answer
from vecenv.ding import AsyncSubprocessEnvManager, EnvState

EVERYONE = range(4)


class Player:
    """Runs a program on one manager and on the models of its envs."""

    def __init__(self, manager_cls: type, seed: int, *, kills: bool) -> None:
        self.rng = rng = random.Random(seed)
        self.killer = random.Random(seed) if kills else None
        auto_reset = rng.random() < 0.8
        self.cfg = {
            "episode_num": rng.choice([2, 5, math.inf]),
            "auto_reset": auto_reset,
            "reset_inplace": auto_reset and rng.random() < 0.4,
            "on_step_error": "error",
            "max_retry": rng.choice([1, 2]),  # resets are autoresets of the worker, or commands of the manager
            "retry_waiting_time": 0,
            "num_workers": 1 + seed % 3,
            "wait_num": rng.choice([1, 2, 3]),
            "step_wait_timeout": rng.choice([None, 0, 1e-6, 1e-3]),
            "copy_on_get": rng.random() < 0.7,
            "max_restarts": 1000,
        }
        env_class = rng.choice([Optional, Old])
        self.actions = range(9 if env_class is Optional else 10)
        self.env_fns = [functools.partial(env_class, 2 + env_id) for env_id in EVERYONE]
        self.manager = manager_cls(self.env_fns, self.cfg)
        self.cfg["has_workers"] = manager_cls in WITH_WORKERS
        self.kept: list[tuple[Any, Any]] = []
        self.num_kills = 0

    def kill_a_worker(self) -> None:
        if self.killer is not None and self.killer.random() < 0.1 and self.manager.worker_pids:
            with contextlib.suppress(ProcessLookupError):  # killed earlier, and not noticed yet
                os.kill(self.killer.choice(self.manager.worker_pids), signal.SIGKILL)
                self.num_kills += 1

    def ask(self, request: Callable[[], Any]) -> Any:
        """Make a request, and kill workers before and during it; any request may raise an exception of a step."""
        self.kill_a_worker()
        thread = threading.Thread(target=self.kill_a_worker)
        thread.start()
        try:
            return request()
        except (LookupError, RuntimeError) as error:
            if "this step was to raise" not in str(error):
                raise
            return vars(error)["timesteps"]
        finally:
            thread.join()

    @property
    def active(self) -> list[int]:
        """Return the envs that have not answered."""
        return self.manager.active_env if isinstance(self.manager, AsyncSubprocessEnvManager) else []

    def launch(self) -> None:
        self.references = [ReferenceEnv(env_fn, self.cfg) for env_fn in self.env_fns]
        self.seed()
        params = self.draw_params(EVERYONE)
        self.ask(lambda: self.manager.launch(params))
        for reference, own in zip(self.references, params.values()):
            reference.reset(own)

    def draw_params(self, env_ids: Iterable[int]) -> dict[int, Any]:
        choices = [None, {}, {"options": {"length": 1}}, {"options": {"length": 3}}]
        return {env_id: self.rng.choice(choices) for env_id in env_ids}

    def seed(self) -> None:
        first, dynamic = self.rng.randrange(1000), self.rng.random() < 0.5
        self.manager.seed(first, dynamic)
        for env_id, reference in enumerate(self.references):
            reference.pending = (first + env_id, dynamic)

    def reset(self) -> None:
        # An env that has not answered may have made the step or not.
        idle = [env_id for env_id in EVERYONE if self.references[env_id].due is None]
        params = self.draw_params(self.rng.sample(idle, self.rng.randint(0, len(idle))))
        self.ask(lambda: self.manager.reset(params))
        for env_id, own in params.items():
            self.references[env_id].reset(own)

    def step(self, actions: dict[int, int]) -> None:
        for env_id, action in actions.items():
            self.references[env_id].step(action)
        timesteps = self.ask(lambda: self.manager.step(actions))
        if isinstance(timesteps, list):
            timesteps = {tree["env_id"].item(): tree for tree in timesteps}
        for env_id, timestep in timesteps.items():
            reference = self.references[env_id]
            expected, reference.due = plain_answer(reference.due), None
            assert plain_answer(timestep) == expected, f"env {env_id}"
            self.kept.append((timestep, expected))

    def look(self) -> None:
        """Compare states and counts, and sometimes observations, with the models."""
        manager = self.manager
        ready = self.ask(lambda: manager.ready_obs) if self.rng.random() < 0.7 else {}
        if not isinstance(ready, dict):
            ids = manager.ready_obs_id
            ready = dict(zip(ids, ready.split())) if ids else {}
        for env_id, obs in ready.items():
            assert plain(obs) == plain(self.references[env_id].obs), f"env {env_id}"
        for env_id in set(EVERYONE).difference(self.active):
            reference, state = self.references[env_id], manager.env_states[env_id]
            if reference.due == RAISE:
                reference.due = None
            assert reference.due is None, f"the answer of env {env_id} is lost"
            is_on_its_way = state is EnvState.RESET and reference.state is EnvState.RUN
            assert is_on_its_way or state is reference.state, f"env {env_id}"
            assert manager.env_episode_count[env_id] == reference.count, f"env {env_id}"

    def play(self, num_requests: int) -> None:
        self.launch()
        for _ in range(num_requests):
            kind, ready = self.rng.random(), self.manager.ready_obs_id
            if kind < 0.8 and (ready or self.active):
                some = self.rng.sample(ready, self.rng.randint(0, len(ready)))
                self.step({env_id: self.rng.choice(self.actions) for env_id in some})
            elif kind < 0.88:
                self.reset()
            elif kind < 0.92:
                self.seed()
            elif kind < 0.97:
                with pytest.raises(AttributeError):
                    self.ask(lambda: self.manager.no_such_name)
            else:
                self.manager.close()
                self.launch()
            self.look()
        assert len(self.kept) > num_requests / 4, "hardly any step: the program shows nothing"
        assert self.killer is None or self.num_kills > 0, "nothing was killed: the program shows nothing"
        assert all(plain_answer(timestep) == expected for timestep, expected in self.kept)


def check(manager_cls: type, seed: int, num_requests: int) -> None:
    player = Player(manager_cls, seed, kills=manager_cls in WITH_WORKERS)
    with player.manager:
        player.play(num_requests)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
def test_random_programs_match_the_model(manager_cls: type, seed: int) -> None:
    check(manager_cls, seed, 50)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_more_random_programs_match_the_model(manager_cls: type, seed: int, implementation: str) -> None:
    check(manager_cls, seed, 120)
