"""One round of VectorEnv with envs that cost nothing: all time is that of the engine and the front end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from vecenv.envs.toys import FrameEnv, NullEnv
from vecenv.measurement.target import EnvFn, action_batches
from vecenv.vector import VectorEnv

_Opener = Callable[..., VectorEnv]


@pytest.fixture(params=["process", "serial"])
def opener(request: pytest.FixtureRequest) -> Iterator[_Opener]:
    """Open vector envs that are reset, and close them in the end."""
    opened: list[VectorEnv] = []

    def open_envs(env_fns: Sequence[EnvFn], **kwargs: Any) -> VectorEnv:
        envs = VectorEnv(env_fns, backend=request.param, **kwargs)
        opened.append(envs)
        envs.reset(seed=0)
        return envs

    yield open_envs
    for envs in opened:
        envs.close()


@pytest.mark.parametrize("num_envs", [8, 64, 256])
def test_step(benchmark: Any, opener: _Opener, num_envs: int) -> None:
    envs = opener([NullEnv] * num_envs)
    actions = next(action_batches(envs.single_action_space, num_envs))
    benchmark(envs.step, actions)


class ShortEnv(NullEnv):
    """Episodes of 5 steps with an info of 5 numbers at each, like Pong's."""

    num_steps = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.num_steps = 0
        return super().reset(**kwargs)[0], self.make_info()

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        obs, reward, *_ = super().step(action)
        return obs, reward, self.num_steps == 5, False, self.make_info()

    def make_info(self) -> dict[str, Any]:
        count = self.num_steps
        return {"lives": 0, "episode_frame_number": count, "frame_number": 4 * count, "score": 3, "level": 1}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_infos_of_short_episodes(benchmark: Any, opener: _Opener, mode: str) -> None:
    """In SAME_STEP a fifth of the rows have a final observation and two infos."""
    envs = opener([ShortEnv] * 64, autoreset_mode=mode)
    actions = next(action_batches(envs.single_action_space, 64))
    for _ in range(50):  # the columns are known then
        envs.step(actions)
    benchmark(envs.step, actions)


@pytest.mark.parametrize("copy", [True, False], ids=["copy", "view"])
def test_step_with_frames(benchmark: Any, opener: _Opener, copy: bool) -> None:
    envs = opener([FrameEnv] * 64, copy=copy)
    actions = next(action_batches(envs.single_action_space, 64))
    benchmark(envs.step, actions)


@pytest.mark.parametrize("num_envs", [1, 8])
def test_round_trip(benchmark: Any, opener: _Opener, num_envs: int) -> None:
    """`send` and `recv`: the cost to wake the workers and to receive their answers."""
    envs = opener([NullEnv] * num_envs)
    actions = next(action_batches(envs.single_action_space, num_envs))

    def round_trip() -> None:
        envs.send(actions)
        envs.recv()

    benchmark(round_trip)


def test_async_turn(benchmark: Any, opener: _Opener) -> None:
    """Receive half of 64 envs and send them on."""
    envs = opener([NullEnv] * 64)
    actions = next(action_batches(envs.single_action_space, 64))
    envs.send(actions)

    def turn() -> None:
        env_ids = envs.recv(32)[4]["env_id"]
        envs.send(actions[env_ids], env_ids)

    benchmark(turn)
