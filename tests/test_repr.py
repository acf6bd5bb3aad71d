"""The repr of each front end: env, counts, workers, threads, implementation, and whether it is closed."""

from __future__ import annotations

import contextlib
import functools
import html

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

import vecenv
from tests.managers.fakes import IN_PROCESS, WITH_WORKERS
from vecenv.envs.toys import CountEnv, ToyEnv

CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1")


def sb3_vec_env(*args, **options):
    return pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError).SB3VecEnv(*args, **options)


SERIAL = "backend='serial', implementation='{}', closed={}"
WORKERS = "num_workers=2, threads_per_worker=2, implementation='{}', closed={}"


@pytest.mark.parametrize(
    "build, text",
    [
        (functools.partial(vecenv.VectorEnv, [CARTPOLE] * 3), "VectorEnv(CartPole-v1, num_envs=3, {})"),
        (functools.partial(vecenv.VectorEnv, [ToyEnv] * 3), "VectorEnv(ToyEnv, num_envs=3, {})"),
        (functools.partial(vecenv.make_vec, "CartPole-v1", 3), "VectorEnv(CartPole-v1, num_envs=3, {})"),
        (functools.partial(sb3_vec_env, [CARTPOLE] * 3), "SB3VecEnv(CartPole-v1, num_envs=3, {})"),
        (
            functools.partial(vecenv.alf.create_environment, "CartPole-v1", num_parallel_environments=3),
            "ParallelAlfEnvironment(CartPole-v1, num_envs=3, {})",
        ),
    ],
    ids=["VectorEnv", "bare", "make_vec", "SB3VecEnv", "alf"],
)
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_repr_shows_env_counts_and_state(build, text, backend):
    options = {"backend": "serial"} if backend == "serial" else {"num_workers": 2, "threads_per_worker": 2}
    shown = text.format(SERIAL if backend == "serial" else WORKERS)
    with contextlib.closing(build(**options)) as envs:
        implementation = getattr(envs, "vector_env", envs).implementation
        assert repr(envs) == shown.format(implementation, False)
    assert repr(envs) == shown.format(implementation, True)


def test_repr_of_batched_vector_env_counts_envs():
    with vecenv.BatchedVectorEnv([functools.partial(CartPoleVectorEnv, 4)] * 2, backend="serial") as envs:
        shown = SERIAL.format(envs.implementation, False)
        assert repr(envs) == f"BatchedVectorEnv(CartPoleVectorEnv, num_envs=8, {shown})"


@pytest.mark.parametrize("env_fn, name", [(CARTPOLE, "CartPole-v1"), (CountEnv, "CountEnv")])
@pytest.mark.parametrize("manager_cls", [*IN_PROCESS, *WITH_WORKERS])
def test_repr_of_a_manager(manager_cls, env_fn, name):
    manager = manager_cls([env_fn] * 2, {"num_workers": 1} if manager_cls in WITH_WORKERS else {})
    closed = f"{manager_cls.__name__}(num_envs=2, closed=True)"
    assert repr(manager) == closed
    manager.launch()
    where = "num_workers=1, threads_per_worker=1" if manager_cls in WITH_WORKERS else "backend='serial'"
    assert repr(manager).startswith(f"{manager_cls.__name__}({name}, num_envs=2, {where}, implementation=")
    assert repr(manager).endswith(", closed=False)")
    manager.close()
    assert repr(manager) == closed


def test_repr_of_a_gym_vector_manager_is_that_of_its_vector_env():
    manager = vecenv.ding.GymVectorEnvManager([CARTPOLE] * 2, {"backend": "serial"})
    assert repr(manager).startswith("GymVectorEnvManager(VectorEnv(CartPole-v1, num_envs=2, backend='serial', ")
    manager.close()
    assert repr(manager) == "GymVectorEnvManager(closed=True)"


def test_repr_works_where_the_constructor_failed():
    assert repr(vecenv.VectorEnv.__new__(vecenv.VectorEnv)) == "VectorEnv(not built)"
    assert repr(vecenv.ding.BaseEnvManager.__new__(vecenv.ding.BaseEnvManager)) == "BaseEnvManager(not built)"


def test_results_are_shown_as_text_in_a_notebook() -> None:
    """A report as the last value of a cell was one long line of fields."""
    with vecenv.make_vec("CartPole-v1", num_envs=2, backend="serial") as envs:
        envs.reset(seed=0)
        results = [envs.report(), envs.statistics()]
    results += [
        vecenv.evaluate("CartPole-v1", lambda obs, _: np.zeros(len(obs), np.int64), seeds=[1], backend="serial")
    ]
    for result in results:
        printer = PrettyPrinter()
        result._repr_pretty_(printer, False)
        assert printer.shown == str(result)
        assert result._repr_html_() == f"<pre>{html.escape(str(result))}</pre>"


class PrettyPrinter:
    """Has the method of IPython's printers that shows a text."""

    shown = ""

    def text(self, text: str) -> None:
        self.shown += text
