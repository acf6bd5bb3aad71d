"""Evaluations with policies in shards: the table is that of a policy in this process, also if shards are lost."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.collection.sharded import ShardedVectorEnv
from tests.core.shards.model_carrier import ModelCarrier
from tests.evaluation.envs import SeedEnv, crash
from tests.evaluation.test_resume import InfoEnv, Killed, columns_of, kill_after
from tests.faults.traces import frozen
from vecenv import Collector, ConfigError, Evaluation, StateError, VectorEnv, WorkerDiedError, compare, evaluate
from vecenv.core.advice.sizing import SERIAL, Setting
from vecenv.core.shards.local_carrier import LocalCarrier
from vecenv.envs.toys import ToyEnv
from vecenv.evaluation import episodes as episodes_module

NUM_ENVS, SEEDS = 5, (11, 3, 8, 0, 25, 7, 14, 9, 2, 16, 5, 20, 13)


class CountingPolicy:
    """Recurrent: actions depend on the number of steps of each episode, and on the observation."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def begin(self, env_ids: np.ndarray) -> None:
        self.counts.update(dict.fromkeys(env_ids.tolist(), 0))

    def __call__(self, obs: np.ndarray, env_id: np.ndarray) -> Any:
        for env in set(env_id.tolist()):  # rows may be repeated
            self.counts[env] += 1
        counts = np.array([self.counts[env] for env in env_id.tolist()])
        return (counts + (obs[:, 3] > 0.5)) % 2


class DrawingPolicy:
    """Draws actions from the generators of the episodes."""

    def __call__(self, obs: np.ndarray, env_id: np.ndarray, generators: list[np.random.Generator]) -> Any:
        return np.array([generator.integers(2) for generator in generators])


class LeftPolicy:
    def __call__(self, obs: np.ndarray, env_id: np.ndarray) -> Any:
        return np.zeros(len(obs), np.int64)


def sharded(num_shards: int = 2, carrier: Any = None, env_fn: Any = SeedEnv, **options: Any) -> ShardedVectorEnv:
    return ShardedVectorEnv([env_fn] * NUM_ENVS, num_shards, carrier or ModelCarrier(), **options)


def play(envs: Any, make_policy: Callable[[], Any] = CountingPolicy, **options: Any) -> Evaluation:
    return evaluate(envs, where="shards", make_policy=make_policy, **{"seeds": SEEDS, **options})


def play_here(env_fn: Any = SeedEnv, policy: Any = None, **options: Any) -> Evaluation:
    policy = policy or CountingPolicy()
    return evaluate(env_fn, policy, **{"seeds": SEEDS, "num_envs": 3, "backend": "serial", **options})


def assert_equal(ours: Evaluation, theirs: Evaluation) -> None:
    """Fail unless all columns have the same bits, and all infos the same values."""
    assert frozen(columns_of(ours)) == frozen(columns_of(theirs))
    assert str(ours) == str(theirs)


# ---- the same table --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "num_shards, mode",
    [
        (2, AutoresetMode.DISABLED),
        *(
            pytest.param(count, mode, marks=pytest.mark.extended)
            for count, mode in [(1, "NextStep"), (3, "SameStep"), (5, "Disabled")]
        ),
    ],
)
@pytest.mark.parametrize("env_fn", [SeedEnv, InfoEnv])
def test_table_equals_that_of_a_local_policy(env_fn: Any, num_shards: int, mode: Any) -> None:
    with sharded(num_shards, env_fn=env_fn, autoreset_mode=AutoresetMode(mode)) as envs:
        assert_equal(play(envs), play_here(env_fn))
        assert_equal(play(envs, seeds=[4]), play_here(env_fn, seeds=[4]))


@pytest.mark.parametrize("options", [{"max_steps": 3}, {"batch_rows": 2}, {"rng": "per-episode", "batch_rows": 4}])
def test_options_have_the_effect_of_a_local_evaluation(options: dict[str, Any]) -> None:
    make_policy = DrawingPolicy if "rng" in options else CountingPolicy
    with sharded() as envs:
        assert_equal(play(envs, make_policy, **options), play_here(policy=make_policy(), **options))


@pytest.mark.extended
def test_child_processes_play_the_same_episodes() -> None:
    with sharded(carrier=LocalCarrier()) as envs:
        assert_equal(play(envs), play_here())


def test_statistics_of_episodes_are_in_the_infos() -> None:
    theirs = play_here("CartPole-v1", LeftPolicy(), episode_statistics=True)
    with sharded(env_fn=functools.partial(gymnasium.make, "CartPole-v1"), episode_statistics=True) as envs:
        ours = play(envs, LeftPolicy)
    for result in (ours, theirs):
        for info in result.infos:
            assert info["episode"].pop("t") > 0  # the duration differs
    assert_equal(ours, theirs)
    assert all(set(info["episode"]) == {"r", "l"} for info in theirs.infos)


def test_episodes_of_many_calls_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenv.evaluation.shard_player.CALL_NS", 0)
    seeds: list[int] = []
    with sharded() as envs:
        assert_equal(play(envs, on_episode=lambda one: seeds.append(one.seed)), play_here())
    assert sorted(seeds) == sorted(SEEDS)


def test_comparison_equals_that_of_local_policies() -> None:
    theirs = compare(SeedEnv, CountingPolicy(), LeftPolicy(), seeds=SEEDS, num_envs=2, backend="serial")
    with sharded() as envs:
        ours = compare(envs, where="shards", make_policies=[CountingPolicy, functools.partial(LeftPolicy)], seeds=SEEDS)
    assert ours.names == theirs.names == ("CountingPolicy", "LeftPolicy")
    assert str(ours) == str(theirs) and ours.differences.tobytes() == theirs.differences.tobytes()


def test_collector_begins_with_a_reset_after_an_evaluation() -> None:
    with sharded(autoreset_mode=AutoresetMode.NEXT_STEP, env_fn=ToyEnv) as envs:
        collector = Collector(envs, where="shards", make_policy=LeftPolicy, batch_steps=NUM_ENVS * 3, seed=3)
        next(collector)
        play(envs)
        assert envs.observations is None
        assert next(collector).step[:NUM_ENVS].tolist() == [0] * NUM_ENVS
        play(envs)
        envs.reset(seed=0)
        assert envs.observations is not None


def test_long_episode_is_a_warning_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes_module, "MANY_STEPS", 5)
    with sharded(1) as envs, pytest.warns(RuntimeWarning, match="the episode of seed 14 has lasted 5 steps") as caught:
        play(envs, seeds=[14])
    assert caught[0].filename == __file__


# ---- losses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [pytest.param(None, id="worker"), pytest.param(SERIAL, id="no worker")])
@pytest.mark.parametrize("fault", ["dead before", "dead after"])
def test_episodes_of_a_lost_shard_are_played_by_its_successor(
    fault: str, setting: Setting | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard is lost once per evaluation, at one of its requests."""
    monkeypatch.setattr("vecenv.evaluation.shard_player.CALL_NS", 0)
    theirs = play_here()
    num_lost = 0
    for number in (1, 3, 6):
        carrier = ModelCarrier()
        seeds: list[int] = []
        with sharded(carrier=carrier, setting=setting, failures={"max_restarts": 99}) as envs:
            carrier.fault = once_per_shard(fault, number)
            assert_equal(play(envs, on_episode=lambda one, seeds=seeds: seeds.append(one.seed)), theirs)
            num_lost += sum(shard.restarts for shard in envs.shards())
        assert sorted(seeds) == sorted(SEEDS)
    assert num_lost >= 4


def once_per_shard(fault: str, number: int) -> Callable[[int, int], str]:
    """Return a fault of the request with this number, counted from now, of each shard."""
    counts: Counter[int] = Counter()

    def choose(shard: int, seq: int) -> str:
        counts[shard] += 1
        return fault if counts[shard] == number else ""

    return choose


class KillingPolicy(CountingPolicy):
    """Kills its process once, in the call with this number."""

    def __init__(self, mark: Path, number: int) -> None:
        super().__init__()
        self.mark, self.number, self.num_calls = mark, number, 0

    def __call__(self, obs: np.ndarray, env_id: np.ndarray) -> Any:
        self.num_calls += 1
        if self.num_calls == self.number and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(obs, env_id)


def test_killed_process_of_a_shard_is_replaced(tmp_path: Path) -> None:
    seeds: list[int] = []
    with sharded(carrier=LocalCarrier()) as envs:
        make_policy = functools.partial(KillingPolicy, tmp_path / "killed", 7)
        assert_equal(play(envs, make_policy, on_episode=lambda one: seeds.append(one.seed)), play_here())
        assert sum(shard.restarts for shard in envs.shards()) == 1
    assert sorted(seeds) == sorted(SEEDS)


def crash_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        crash()


def test_worker_that_dies_in_a_shard_is_replaced(tmp_path: Path) -> None:
    faults = {seed: functools.partial(crash_once, tmp_path / str(seed)) for seed in SEEDS[4:8]}
    with sharded(env_fn=functools.partial(SeedEnv, faults)) as envs:
        ours = play(envs)
        assert envs.statistics()["restarts"] == 4 and not any(shard.restarts for shard in envs.shards())
    theirs = play_here(backend="process", num_workers=1)
    assert ours.returns.tobytes() == theirs.returns.tobytes() and ours.cut.tolist() == [""] * len(SEEDS)


def test_shard_that_is_not_replaced_is_an_error_with_the_episodes_of_the_others() -> None:
    carrier = ModelCarrier()
    with sharded(carrier=carrier, failures={"max_restarts": 0}) as envs:
        carrier.fault = lambda shard, seq: "dead before" if shard == 0 else ""
        with pytest.raises(WorkerDiedError, match="shard 0 .* was lost") as caught:
            play(envs)
    found: Any = caught.value
    assert found.shard.shard == 0 and set(found.result.seeds) <= set(SEEDS)


# ---- continued evaluations -------------------------------------------------------------------


@pytest.mark.parametrize("first", ["shards", "caller"])
def test_seeds_in_the_file_are_not_played_again(first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenv.evaluation.shard_player.CALL_NS", 0)
    path, played = tmp_path / "episodes", []
    with sharded() as envs:
        with pytest.raises(Killed) as caught:
            if first == "shards":
                play(envs, on_episode=kill_after(4), resume=path)
            else:
                play_here(on_episode=kill_after(4), resume=path)
        assert caught.value.result.num_episodes == 4  # type: ignore[attr-defined]
        ours = play(envs, on_episode=lambda one: played.append(one.seed), resume=path)
        assert_equal(ours, play_here())
        assert len(played) == len(SEEDS) - 4 and not set(played) & set(caught.value.result.seeds)  # type: ignore[attr-defined]
        assert_equal(play_here(on_episode=pytest.fail, resume=path), ours)
        assert_equal(play(envs, on_episode=pytest.fail, resume=path), ours)


class InterruptingPolicy(LeftPolicy):
    """Sends Ctrl-C to a process once, after a file has been made."""

    def __init__(self, pid: int, mark: Path) -> None:
        self.pid, self.mark, self.has_sent = pid, mark, False

    def __call__(self, obs: np.ndarray, env_id: np.ndarray) -> Any:
        if not self.has_sent and self.mark.exists():
            self.has_sent = True
            os.kill(self.pid, signal.SIGINT)
        return super().__call__(obs, env_id)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def test_interrupt_keeps_the_episodes_that_have_arrived(interrupts: None, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with sharded(1, LocalCarrier()) as envs:
        with pytest.raises(KeyboardInterrupt) as caught:
            make_policy = functools.partial(InterruptingPolicy, os.getpid(), mark)
            play(envs, make_policy, seeds=range(40_000), on_episode=lambda one: mark.touch())
        result = caught.value.result  # type: ignore[attr-defined]
        assert 0 < result.num_episodes < 40_000
        assert "of 40000 episodes had ended" in caught.value.__notes__[0]
        assert_equal(play(envs), play_here())


# ---- errors ----------------------------------------------------------------------------------


class OddNumber(Exception):
    """Raised by a policy."""


class RaisingPolicy(CountingPolicy):
    """Raises in a call that has env 3, if one of its episodes has reached this number of steps."""

    def __call__(self, obs: np.ndarray, env_id: np.ndarray) -> Any:
        actions = super().__call__(obs, env_id)
        if 3 in env_id and self.counts[3] == 4:
            raise OddNumber(4)
        return actions


def test_exception_of_a_policy_names_its_shard_and_has_the_episodes_that_had_ended() -> None:
    with sharded() as envs:
        with pytest.raises(OddNumber, match="4") as caught:
            play(envs, RaisingPolicy)
        error: Any = caught.value
        assert error.__notes__[0] == f"raised in shard 1 (envs 3-4), process {os.getpid()}"
        assert error.shard.shard == 1
        expected = play_here()
        for row, seed in enumerate(error.result.seeds.tolist()):
            at = SEEDS.index(seed)
            assert error.result.returns[row] == expected.returns[at]
        assert 0 < error.result.num_episodes < len(SEEDS)
        assert_equal(play(envs), expected)


def fail() -> Any:
    raise OddNumber("no policy today")


def _raise() -> None:
    raise ZeroDivisionError("odd")


def test_exception_of_an_env_names_the_env_and_its_shard() -> None:
    with sharded(env_fn=functools.partial(SeedEnv, {SEEDS[-1]: _raise})) as envs:
        with pytest.raises(ZeroDivisionError, match="odd") as caught:
            play(envs)
        notes = "\n".join(caught.value.__notes__)
        assert "raised in shard" in notes and "step of env" in notes
        assert caught.value.result.num_episodes >= 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "make_policy, error, message",
    [
        (fail, OddNumber, "no policy today"),
        (dict, ConfigError, r"policy: expected a callable policy\(obs, env_id\), got \{\}"),
        (functools.partial(exec, "raise SystemExit(3)"), Exception, "SystemExit"),
    ],
)
def test_policy_that_cannot_be_made_is_an_error(make_policy: Any, error: type[Exception], message: str) -> None:
    with sharded() as envs:
        with pytest.raises(error, match=message) as caught:
            play(envs, make_policy)
        assert "raised in shard 0 (envs 0-2), process" in caught.value.__notes__[0]
        assert caught.value.result.num_episodes == 0  # type: ignore[attr-defined]
        assert_equal(play(envs), play_here())


def test_wrong_arguments_are_refused() -> None:
    lock = threading.Lock()
    with sharded(1) as envs:
        for arguments, message in [
            ({"policy": LeftPolicy()}, "give make_policy=..., which makes a policy in each shard"),
            ({"make_policy": None}, "make_policy: expected a callable, got None"),
            ({"make_policy": lambda: lock}, "make_policy cannot be sent to shards: cannot pickle"),
            ({"timeout": 3.0}, "where='shards': timeout is for policies in this process"),
            ({"where": "actors"}, r"where: expected one of \('caller', 'shards'\), got 'actors'"),
            ({"where": "caller"}, "make_policy needs where='shards'"),
            ({"where": "caller", "make_policy": None}, "policy: expected a callable .* got None"),
        ]:
            with pytest.raises(ConfigError, match=message):
                evaluate(envs, **{"where": "shards", "make_policy": LeftPolicy, "episodes": 2, **arguments})
        for policies, arguments, message in [
            ([LeftPolicy()], {}, r"give make_policies=\[...\] in the place of the policies"),
            ([], {"make_policies": [LeftPolicy]}, "expected at least two make_policies, got 1"),
            ([], {"make_policies": None}, "expected at least two make_policies, got 0"),
            ([], {"make_policies": [LeftPolicy, 3]}, "make_policy: expected a callable, got 3"),
            ([LeftPolicy()] * 2, {"where": "caller"}, "make_policies needs where='shards'"),
        ]:
            with pytest.raises(ConfigError, match=message):
                given = {"where": "shards", "make_policies": [LeftPolicy] * 2, "episodes": 2, **arguments}
                compare(envs, *policies, **given)
        envs.async_reset()
        with pytest.raises(StateError, match="5 envs owe the results of earlier calls"):
            play(envs)
        envs.recv()


def test_envs_without_shards_are_refused_before_a_file_is_made(tmp_path: Path) -> None:
    message = r"needs envs with backend='ray'; for these, use evaluate\(env, policy\)"
    with pytest.raises(ConfigError, match=message):
        play(SeedEnv, backend="serial", resume=tmp_path / "episodes")
    with VectorEnv([SeedEnv], backend="serial") as envs, pytest.raises(ConfigError, match=message):
        compare(envs, where="shards", make_policies=[LeftPolicy] * 2, episodes=2)
    assert not list(tmp_path.iterdir())
