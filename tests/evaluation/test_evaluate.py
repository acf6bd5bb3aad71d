"""`evaluate`: one episode per seed, the same results for any number of envs, cuts, failures, wrong arguments."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import vecenv
from tests.evaluation.envs import SeedEnv, crash, hang, length_of
from vecenv import ConfigError, SpaceError, StateError, VectorEnv, compare, evaluate
from vecenv.core.system import clock
from vecenv.envs.toys import SpaceEnv, ToyEnv
from vecenv.evaluation import episodes

SEEDS = [9, 2, 5, 30, 1, 7, 4]
MODES = [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def upright(obs, env_id):
    return (obs[:, 2] > 0).astype(np.int64)


def zeros(obs, env_id):
    return np.zeros(len(obs), np.int64)


def by_draw(obs, env_id):
    """A policy of the toy envs whose answer differs from step to step."""
    return (obs[:, 3] > 0.5).astype(np.int64)


def rows_of(result):
    """The content of a result, except the seconds."""
    columns = (result.seeds, result.returns, result.lengths, result.terminated, result.truncated, result.cut)
    return [column.tolist() for column in columns], list(map(dict, result.infos)), str(result)


def play_alone(env, policy, seed):
    """Return and length of one episode, by a plain loop."""
    obs, _ = env.reset(seed=seed)
    total, length, is_over = 0.0, 0, False
    while not is_over:
        obs, reward, terminated, truncated, info = env.step(int(policy(obs[None], np.zeros(1, np.int64))[0]))
        total, length, is_over = total + float(reward), length + 1, terminated or truncated
    return total, length, terminated, truncated, info


# ---- results ---------------------------------------------------------------------------------


def test_table_is_the_same_for_any_number_of_envs(backend):
    results = [evaluate(SeedEnv, by_draw, seeds=SEEDS, num_envs=count, backend=backend) for count in (1, 2, 8)]
    alone = [play_alone(SeedEnv(), by_draw, seed) for seed in SEEDS]
    for result in results:
        assert rows_of(result) == rows_of(results[0])
    result = results[0]
    assert result.seeds.tolist() == SEEDS and len(set(result.returns)) == len(SEEDS)
    assert result.returns.tolist() == [one[0] for one in alone]
    assert result.lengths.tolist() == list(map(length_of, SEEDS)) == [one[1] for one in alone]
    assert result.terminated.tolist() == [one[2] for one in alone]
    assert result.truncated.tolist() == [one[3] for one in alone]
    assert list(map(dict, result.infos)) == [one[4] for one in alone]
    assert (result.cut == "").all() and (result.seconds > 0).all()


@pytest.mark.extended
@pytest.mark.parametrize("num_workers", [1, 3])
def test_table_of_cartpole_is_that_of_a_plain_loop(num_workers):
    seeds = range(1000, 1020)
    result = evaluate("CartPole-v1", upright, seeds=seeds, num_workers=num_workers)
    env = gymnasium.make("CartPole-v1")
    alone = [play_alone(env, upright, seed) for seed in seeds]
    assert result.returns.tolist() == [one[0] for one in alone]
    assert result.env_name == "CartPole-v1"


@pytest.mark.parametrize("mode", MODES)
def test_infos_have_the_statistics_of_each_episode(mode):
    options = {"episode_statistics": True, "autoreset_mode": mode, "backend": "serial"}
    result = evaluate("CartPole-v1", upright, seeds=SEEDS, num_envs=2, **options)
    assert [info["episode"]["r"] for info in result.infos] == result.returns.tolist()
    assert [info["episode"]["l"] for info in result.infos] == result.lengths.tolist()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [2, 4])
def test_envs_of_the_caller_play_each_seed_once_and_stay_usable(mode, num_envs):
    with VectorEnv([SeedEnv] * num_envs, backend="serial", autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        before = sum(env.num_steps for env in envs.envs)
        result = evaluate(envs, by_draw, seeds=SEEDS)
        assert sum(env.num_steps for env in envs.envs) - before == result.lengths.sum()
        assert rows_of(result) == rows_of(evaluate(SeedEnv, by_draw, seeds=SEEDS, backend="serial"))
        assert [info["seed"] for info in result.infos] == SEEDS
        obs, _ = envs.reset(seed=3)
        assert obs[:, 2].tolist() == [3 + env_id for env_id in range(num_envs)]
        envs.step(np.zeros(num_envs, np.int64))


@pytest.mark.parametrize("mode", MODES)
def test_envs_without_a_seed_are_neither_reset_nor_stepped(mode):
    with VectorEnv([SeedEnv] * 4, backend="serial", autoreset_mode=mode) as envs:
        evaluate(envs, zeros, seeds=[4, 8])  # 6 and 5 steps
        assert [env.num_steps for env in envs.envs] == [6, 5, 0, 0]
        if mode != AutoresetMode.SAME_STEP:
            assert [env.num_resets for env in envs.envs] == [1, 1, 0, 0]


def test_free_env_takes_the_next_seed():
    played = []

    def policy(obs, env_id):
        played.append(list(zip(env_id.tolist(), obs[:, 2].astype(int).tolist())))
        return zeros(obs, env_id)

    evaluate(SeedEnv, policy, seeds=[4, 5, 6], num_envs=2, backend="serial")  # 6, 2 and 3 steps
    assert played == [[(0, 4), (1, 5)]] * 2 + [[(0, 4)]] + [[(0, 4), (1, 6)]] * 3


def test_episodes_are_the_first_seeds():
    assert evaluate(SeedEnv, zeros, episodes=3, backend="serial").seeds.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5),
        spaces.Text(4),
        spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 9, (), np.int64)])),
    ],
    ids=["Discrete", "Text", "Dict"],
)
def test_policy_gets_nested_observations_of_envs_that_run(space):
    seen = []

    def policy(obs, env_id):
        seen.append((obs, env_id.tolist()))
        return zeros(env_id, env_id)

    env_fn = functools.partial(SpaceEnv, space, length=2)
    evaluate(env_fn, policy, seeds=[3, 4, 5], num_envs=2, backend="serial")
    assert [env_ids for _, env_ids in seen] == [[0, 1], [0, 1], [0], [0]]
    env = env_fn()
    for row, seed in enumerate([3, 4]):
        first, _ = env.reset(seed=seed)
        rows = list(gymnasium.vector.utils.iterate(gymnasium.vector.utils.batch_space(space, 2), seen[0][0]))
        assert vecenv.values.nested.equal(rows[row], first)


# ---- policies --------------------------------------------------------------------------------


class Recurrent:
    """Counts the steps of each env since its episode began."""

    def __init__(self):
        self.steps = {}

    def begin(self, env_ids):
        self.steps.update(dict.fromkeys(env_ids.tolist(), 0))

    def __call__(self, obs, env_id):
        assert [self.steps[one] for one in env_id.tolist()] == obs[:, 0].tolist()
        for one in set(env_id.tolist()):
            self.steps[one] += 1
        return zeros(obs, env_id), {"values": np.ones(len(obs))}


@pytest.mark.parametrize("batch_rows", [None, 3])
def test_recurrent_policy_begins_each_episode_before_its_first_observation(batch_rows):
    result = evaluate(SeedEnv, Recurrent(), seeds=SEEDS, num_envs=4, batch_rows=batch_rows, backend="serial")
    assert result.lengths.tolist() == list(map(length_of, SEEDS))


@pytest.mark.parametrize("batch_rows", [1, 3, 16])
def test_batch_rows_gives_every_call_the_same_number_of_rows(batch_rows):
    def policy(obs, env_id):
        assert len(obs) == len(env_id) == batch_rows
        return by_draw(obs, env_id)

    result = evaluate(SeedEnv, policy, seeds=SEEDS, num_envs=5, batch_rows=batch_rows, backend="serial")
    assert rows_of(result) == rows_of(evaluate(SeedEnv, by_draw, seeds=SEEDS, backend="serial"))


@pytest.mark.parametrize("batch_rows", [None, 3])
def test_generators_make_a_stochastic_policy_repeatable(batch_rows):
    def policy(obs, env_id, generators):
        assert len(obs) == len(env_id) == len(generators)
        return np.array([generator.integers(2) for generator in generators])

    options = {"seeds": SEEDS, "rng": "per-episode", "backend": "serial"}
    one, *others = [evaluate(SeedEnv, policy, num_envs=n, batch_rows=batch_rows, **options) for n in (1, 2, 8)]
    assert [rows_of(other) for other in others] == [rows_of(one)] * 2


def test_generators_differ_from_those_of_envs():
    drawn = []

    def policy(obs, env_id, generators):
        drawn.append(np.float32(generators[0].random()))
        return zeros(obs, env_id)

    evaluate(SeedEnv, policy, seeds=[3], rng="per-episode", backend="serial")
    env_random, _ = gymnasium.utils.seeding.np_random(3)
    assert drawn[0] != np.float32(env_random.random())


def test_torch_module_is_a_policy():
    torch = pytest.importorskip("torch", exc_type=ImportError)

    class Net(torch.nn.Module):
        def forward(self, obs, env_id):
            return (obs[:, 3] > 0.5).long()

    result = evaluate(SeedEnv, Net(), seeds=SEEDS, backend="serial")
    assert rows_of(result) == rows_of(evaluate(SeedEnv, by_draw, seeds=SEEDS, backend="serial"))


def make_net(torch):
    """Return a module with batch norm and dropout, whose batch norm of the second layer is in evaluation mode."""
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4))
    net[2].eval()
    return net


def act(torch, net, obs):
    obs = torch.as_tensor(obs, dtype=torch.float32)
    return (net(obs).sum(1) > 1).long()


class Holder:
    """A policy that keeps its networks in a list."""

    def __init__(self, torch, net):
        self.torch, self.nets = torch, [net]

    def __call__(self, obs, env_id):
        return act(self.torch, self.nets[0], obs)

    def method(self, obs, env_id):
        return self(obs, env_id)


def torch_policies(torch, net):
    """Return policies of every form that uses a module."""

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, obs, env_id):
            return act(torch, self.net, obs)

        def choose(self, obs, env_id):
            return self(obs, env_id)

    def closure(obs, env_id):
        return act(torch, net, obs)

    def needs_net(net, obs, env_id):
        return act(torch, net, obs)

    holder, module = Holder(torch, net), Module()
    module.train()
    net[2].eval()
    return {
        "module": module,
        "method of a module": module.choose,
        "closure": closure,
        "object": holder,
        "method of an object": holder.method,
        "partial": functools.partial(needs_net, net),
    }


@pytest.mark.parametrize(
    "form", ["module", "method of a module", "closure", "object", "method of an object", "partial"]
)
def test_torch_module_in_training_mode_is_evaluated_and_put_back(form):
    """The statistics of batch norm changed, dropout was active, and repeats differed."""
    torch = pytest.importorskip("torch", exc_type=ImportError)
    net = make_net(torch)
    policy = torch_policies(torch, net)[form]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    first, second = (rows_of(evaluate(SeedEnv, policy, seeds=SEEDS, num_envs=2, backend="serial")) for _ in range(2))
    assert first == second
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [part.training for part in net.modules()] == [True, True, True, False]


def test_torch_module_is_put_back_after_an_exception():
    torch = pytest.importorskip("torch", exc_type=ImportError)
    net = make_net(torch)

    def policy(obs, env_id):
        assert not any(part.training for part in net.modules())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluate(SeedEnv, policy, seeds=SEEDS, backend="serial")
    assert [part.training for part in net.modules()] == [True, True, True, False]


def test_torch_module_gets_generators_in_evaluation_mode():
    torch = pytest.importorskip("torch", exc_type=ImportError)

    class Net(torch.nn.Module):
        def forward(self, obs, env_id, generators):
            assert not self.training
            return np.zeros(len(env_id), np.int64)

    net = Net()
    evaluate(SeedEnv, net, seeds=SEEDS, rng="per-episode", backend="serial")
    assert net.training


def test_collect_leaves_a_torch_module_in_its_mode():
    torch = pytest.importorskip("torch", exc_type=ImportError)

    class Net(torch.nn.Module):
        def forward(self, obs, env_id):
            assert self.training
            return torch.zeros(len(env_id), dtype=torch.int64)

    with VectorEnv([SeedEnv] * 2, backend="serial") as envs:
        vecenv.collect(envs, Net(), steps=4)


# ---- cuts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_max_steps_cuts_longer_episodes_and_marks_them(mode):
    with VectorEnv([SeedEnv] * 2, backend="serial", autoreset_mode=mode) as envs:
        result = evaluate(envs, by_draw, seeds=[5, 6, 7, 8], max_steps=3)  # 2, 3, 4 and 5 steps
    assert result.lengths.tolist() == [2, 3, 3, 3]
    assert result.cut.tolist() == ["", "", "max_steps", "max_steps"]
    assert (result.terminated | result.truncated).tolist() == [True, True, False, False]
    assert [info["steps"] for info in result.infos] == [2, 3, 3, 3]
    assert "2 cut (max_steps)" in str(result)


@pytest.mark.extended
def test_hung_env_is_cut_and_others_go_on():
    env_fn = functools.partial(SeedEnv, {2: hang})
    result = evaluate(env_fn, by_draw, seeds=SEEDS, num_envs=2, num_workers=2, timeout=1.5)
    expected = evaluate(SeedEnv, by_draw, seeds=SEEDS, num_envs=2)
    late = SEEDS.index(2)
    assert result.cut.tolist() == ["timeout" if row == late else "" for row in range(len(SEEDS))]
    assert result.lengths[late] == 1 and result.seconds[late] >= 1.5 and result.infos[late] == {}
    others = [row for row in range(len(SEEDS)) if row != late]
    assert result.returns[others].tolist() == expected.returns[others].tolist()


@pytest.mark.extended
def test_env_that_hangs_again_and_again_comes_back():
    env_fn = functools.partial(SeedEnv, {2: hang, 5: hang})
    result = evaluate(env_fn, by_draw, seeds=SEEDS, num_envs=1, timeout=0.5)
    assert result.seeds[result.cut == "timeout"].tolist() == [2, 5]
    assert result.lengths.tolist() == [1 if seed in (2, 5) else length_of(seed) for seed in SEEDS]


def test_slow_episode_is_cut_between_its_steps(monkeypatch):
    now = 0

    def now_ns():
        nonlocal now
        now += 100_000_000
        return now

    monkeypatch.setattr(episodes, "now_ns", now_ns)
    with VectorEnv([SeedEnv], backend="serial") as envs:
        result = evaluate(envs, zeros, seeds=[9, 4], timeout=0.45)
    assert result.cut.tolist() == ["timeout", "timeout"] and (result.lengths < [6, 6]).all()
    assert (result.lengths > 0).all() and [info["steps"] for info in result.infos] == result.lengths.tolist()


@pytest.mark.extended
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_episode_lost_in_a_crash_is_marked(mode):
    env_fn = functools.partial(SeedEnv, {2: crash})
    result = evaluate(env_fn, by_draw, seeds=SEEDS, num_envs=2, autoreset_mode=mode)
    expected = evaluate(SeedEnv, by_draw, seeds=SEEDS, num_envs=2)
    lost = SEEDS.index(2)
    assert result.cut.tolist() == ["failure" if row == lost else "" for row in range(len(SEEDS))]
    others = [row for row in range(len(SEEDS)) if row != lost]
    assert result.returns[others].tolist() == expected.returns[others].tolist()


def test_episode_without_end_is_reported_once(monkeypatch):
    monkeypatch.setattr(episodes, "MANY_STEPS", 50)
    with pytest.warns(RuntimeWarning, match="seed 1 has lasted 50 steps.*max_steps") as caught:
        evaluate(functools.partial(ToyEnv, 60), zeros, seeds=[1, 2], backend="serial")
    assert len(caught) == 1 and caught[0].filename == __file__
    evaluate(functools.partial(ToyEnv, 60), zeros, seeds=[1, 2], max_steps=55, backend="serial")


# ---- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [ZeroDivisionError, KeyboardInterrupt])
def test_exception_has_the_episodes_that_had_ended(raised):
    def policy(obs, env_id):
        if 1 in obs[:, 2]:
            raise raised
        return by_draw(obs, env_id)

    complete = evaluate(SeedEnv, by_draw, seeds=SEEDS, backend="serial")
    with VectorEnv([SeedEnv] * 2, backend="serial") as envs:
        with pytest.raises(raised) as caught:
            evaluate(envs, policy, seeds=SEEDS)
        result = caught.value.result
        assert result.seeds.tolist() == SEEDS[: result.num_episodes] and 0 < result.num_episodes < 5
        assert result.returns.tolist() == complete.returns[: result.num_episodes].tolist()
        assert result.num_planned == len(SEEDS) and f"of {len(SEEDS)} episodes" in str(result)
        assert any("error.result" in note for note in caught.value.__notes__)
        assert rows_of(evaluate(envs, by_draw, seeds=SEEDS)) == rows_of(complete)


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda count: np.zeros(count - 1, np.int64), r"\(2,\)"),
        (lambda count: np.zeros((count, 1), np.int64), r"\(2,\)"),
        (lambda count: np.zeros(count), "float64"),
        (lambda count: 0, "action"),
        (lambda count: None, "action"),
    ],
)
def test_wrong_actions_are_refused(answer, says):
    with pytest.raises(SpaceError, match=says) as caught:
        evaluate(SeedEnv, lambda obs, env_id: answer(len(obs)), seeds=[1, 2], backend="serial")
    assert caught.value.result.num_episodes == 0


def test_nan_actions_are_refused():
    env_fn = functools.partial(SpaceEnv, action_space=spaces.Box(-1, 1, (2,)))
    with pytest.raises(SpaceError, match="NaN"):
        evaluate(env_fn, lambda obs, env_id: np.full((len(obs), 2), np.nan, np.float32), seeds=[1], backend="serial")


def never_built():
    pytest.fail("the env was built")


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({}, "got neither"),
        ({"seeds": [1], "episodes": 2}, "got both"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [4, 1, 4, 2, 1]}, "4, 1 given twice"),
        ({"seeds": [-1]}, "from 0 to 2147483647, got -1"),
        ({"seeds": [2**31]}, "got 2147483648"),
        ({"seeds": [1.0]}, "whole numbers"),
        ({"seeds": [True]}, "whole numbers"),
        ({"seeds": "12"}, "a list"),
        ({"seeds": 12}, "a list"),
        ({"episodes": 0}, "at least 1"),
        ({"seeds": [1], "num_envs": 0}, "num_envs"),
        ({"seeds": [1], "timeout": 0}, "timeout"),
        ({"seeds": [1], "timeout": math.nan}, "timeout"),
        ({"seeds": [1], "max_steps": 0}, "max_steps"),
        ({"seeds": [1], "batch_rows": 0}, "batch_rows"),
        ({"seeds": [1], "rng": "per-env"}, "rng"),
        ({"seeds": [1], "videos": [2]}, "seed 2 has no episode"),
        ({"seeds": [1], "videos": -1}, "videos"),
        ({"seeds": [1], "videos": [1, 1]}, "videos: 1 given twice"),
        ({"seeds": [1], "overwrite": 1}, "overwrite"),
        ({"seeds": [1], "on_episode": 1}, "on_episode"),
        ({"seeds": [1], "num_worker": 1}, "did you mean 'num_workers'"),
        ({"seeds": [1], "num_env": 1}, "evaluate: VectorEnv has no option 'num_env'; did you mean 'num_envs'"),
        ({"seed": 1}, "did you mean 'seeds'"),
        ({"seeds": [1], "policy": None}, "policy: expected a callable"),
    ],
)
def test_wrong_arguments_are_refused_before_the_env_is_built(arguments, says):
    with pytest.raises(ConfigError, match=says):
        evaluate(never_built, **{"policy": zeros, **arguments})


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: "CartPol-v1", gymnasium.error.NameNotFound, "CartPole"),
        (lambda: 3, ConfigError, "env: expected the id of an env"),
        (ToyEnv, ConfigError, "built already"),
        (lambda: gymnasium.make_vec("CartPole-v1"), ConfigError, "vecenv.VectorEnv"),
        (lambda: gymnasium.vector.SyncVectorEnv([SeedEnv]), ConfigError, "vecenv.VectorEnv, got SyncVectorEnv$"),
        (lambda: gymnasium.spec("CartPole-v1"), ConfigError, "write its method make$"),
    ],
)
def test_wrong_env_is_refused(make, error, says):
    with pytest.raises(error, match=says):
        evaluate(make(), zeros, seeds=[1])


def test_wrapped_vector_env_is_refused_by_its_unwrapped():
    with VectorEnv([SeedEnv], backend="serial") as envs:
        wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
        for call in (lambda: evaluate(wrapped, zeros, seeds=[1]), lambda: vecenv.collect(wrapped, zeros, steps=1)):
            with pytest.raises(ConfigError, match="got RecordEpisodeStatistics, a wrapper .* its `unwrapped`"):
                call()


@pytest.mark.parametrize("arguments", [{"num_workers": 2}, {"videos": 1}])
def test_options_of_a_built_vector_env_are_refused(arguments):
    with VectorEnv([SeedEnv], backend="serial") as envs, pytest.raises(ConfigError, match="has been built"):
        evaluate(envs, zeros, seeds=[1], **arguments)


def test_infinite_timeout_is_no_limit():
    assert evaluate(SeedEnv, zeros, seeds=[1], timeout=math.inf, backend="serial").cut.tolist() == [""]
    assert clock.limit_of(math.inf) is None


@pytest.mark.parametrize("by", ["policy", "on_episode"])
def test_evaluated_envs_that_others_use_are_refused(by):
    """Episodes continued from states that other code had left."""
    with VectorEnv([SeedEnv] * 3, backend="serial") as envs:

        def use(*_):
            envs.reset(seed=1)
            return zeros(*_) if by == "policy" else None

        policy = use if by == "policy" else zeros
        with pytest.raises(StateError, match="the policy or `on_episode` has stepped or reset"):
            evaluate(envs, policy, seeds=SEEDS, on_episode=use if by == "on_episode" else None)
        assert rows_of(evaluate(envs, zeros, seeds=SEEDS)) == rows_of(evaluate(SeedEnv, zeros, seeds=SEEDS, num_envs=3))


def send_some(envs):
    envs.send(np.zeros(2, np.int64), [0, 2])


def begin_step(envs):
    envs.step_async(np.zeros(3, np.int64))


def begin_reset(envs):
    envs.async_reset([1])


OUTSTANDING = {"send": (send_some, 2), "step_async": (begin_step, 3), "async_reset": (begin_reset, 1)}


@pytest.mark.parametrize(("begin", "count"), OUTSTANDING.values(), ids=OUTSTANDING)
def test_outstanding_commands_are_refused(begin, count, backend):
    """Their results were dropped in silence."""
    with VectorEnv([SeedEnv] * 3, backend=backend) as envs:
        envs.reset(seed=0)
        begin(envs)
        for call in (evaluate, lambda *args, **kwargs: compare(*args, zeros, **kwargs)):
            with pytest.raises(StateError, match=f"evaluate: {count} envs owe the results of earlier calls; receive"):
                call(envs, zeros, seeds=SEEDS)
        received = envs.step_wait() if begin is begin_step else envs.recv()
        assert len(received[1]) == count
        assert evaluate(envs, zeros, seeds=SEEDS).num_episodes == len(SEEDS)


def test_evaluation_after_a_failed_one_drops_its_commands():
    with VectorEnv([SeedEnv] * 3, backend="serial") as envs:
        calls = itertools.count()

        def policy(obs, env_id):
            if next(calls) == 2:
                raise KeyboardInterrupt
            return zeros(obs, env_id)

        with pytest.raises(KeyboardInterrupt):
            evaluate(envs, policy, seeds=SEEDS)
        assert rows_of(evaluate(envs, zeros, seeds=SEEDS)) == rows_of(evaluate(SeedEnv, zeros, seeds=SEEDS, num_envs=3))


def test_evaluation_drops_the_reset_of_an_env_that_the_last_one_has_cut():
    with VectorEnv([functools.partial(SeedEnv, {1: hang})], timeouts={"step": 2.0}) as envs:
        for _ in range(2):
            assert evaluate(envs, zeros, seeds=[1], timeout=0.2).cut.tolist() == ["timeout"]
            assert envs.num_outstanding == 1
            assert evaluate(envs, zeros, seeds=[2]).lengths.tolist() == [length_of(2)]
        evaluate(envs, zeros, seeds=[1], timeout=0.2)
        envs.recv()
        envs.async_reset()  # this request is the caller's
        with pytest.raises(StateError, match="evaluate: 1 envs owe the results"):
            evaluate(envs, zeros, seeds=[2])


def test_on_episode_gets_each_episode_once():
    got = []
    result = evaluate(SeedEnv, zeros, seeds=SEEDS, on_episode=got.append, backend="serial")
    assert sorted(one.seed for one in got) == sorted(SEEDS)
    assert {one.seed: one.episode_return for one in got} == dict(zip(SEEDS, result.returns.tolist()))


def test_failed_evaluation_leaves_no_worker():
    with contextlib.suppress(ZeroDivisionError):
        evaluate(SeedEnv, lambda obs, env_id: 1 / 0, seeds=SEEDS)  # the guard of leaks finds workers that are left


def test_closed_vector_env_is_named():
    envs = vecenv.VectorEnv([SeedEnv], backend="serial")
    envs.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError, match=r"^evaluate: the vector env is closed$"):
        evaluate(envs, lambda obs, env_id: np.zeros(len(env_id), np.int64), seeds=[1])
