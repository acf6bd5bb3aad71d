"""A policy's answer is checked, and torch modules are called with tensors."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from vecenv import ConfigError, SpaceError
from vecenv.policies import PolicyCaller

IDS = np.array([0, 2, 5])
OBS = np.arange(12.0, dtype=np.float32).reshape(3, 4)
DISCRETE = spaces.Discrete(3)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def act(policy: Any, space: spaces.Space[Any] = DISCRETE) -> Any:
    return PolicyCaller(policy, space, "collect").act(OBS, IDS)


def test_policy_gets_observations_and_env_ids():
    seen = []
    answer = act(lambda obs, env_id: seen.append((obs, env_id)) or np.array([2, 0, 1]))
    assert seen[0][0] is OBS and seen[0][1] is IDS
    assert answer.actions[0].tolist() == [2, 0, 1] and answer.actions[0].dtype == np.int64 and answer.extras == {}


def test_lists_are_actions_and_extras_become_arrays():
    answer = act(lambda obs, env_id: ([0, 1, 2], {"value": [0.5, 1.0, 1.5], "state": np.zeros((3, 7))}))
    assert answer.actions[0].tolist() == [0, 1, 2]
    assert answer.extras["value"].dtype == np.float64 and answer.extras["state"].shape == (3, 7)


def test_nested_actions_have_one_array_per_leaf():
    space = spaces.Dict(a=DISCRETE, b=spaces.Tuple([BOX, DISCRETE]))
    zeros = np.zeros(3, np.int64)
    caller = PolicyCaller(lambda obs, env_id: {"a": zeros, "b": (np.ones((3, 2), np.float32), zeros)}, space, "collect")
    answer = caller.act(OBS, IDS)
    assert [leaf.shape for leaf in answer.actions] == [(3,), (3, 2), (3,)]
    nested = caller.spec.batch(lambda leaf: answer.actions[leaf.index], lambda node: None)
    assert nested["b"][0].tolist() == [[1.0, 1.0]] * 3


def test_none_means_no_extras():
    """The answer of `predict` in Stable-Baselines3 was an error about an inhomogeneous array."""
    answer = act(lambda obs, env_id: (np.array([2, 0, 1]), None))
    assert answer.actions[0].tolist() == [2, 0, 1] and answer.extras == {}


def test_pair_of_actions_with_a_dict_is_no_extras():
    """The second action of this space is a dict, too. Its keys decide."""
    space = spaces.Tuple([DISCRETE, spaces.Dict(a=DISCRETE)])
    actions = (np.zeros(3, np.int64), {"a": np.ones(3, np.int64)})
    assert act(lambda obs, env_id: actions, space).extras == {}
    answer = act(lambda obs, env_id: (actions, {"value": np.zeros(3)}), space)
    assert len(answer.actions) == 2 and list(answer.extras) == ["value"]


@pytest.mark.parametrize(
    "answer, space, message",
    [
        ([0, 1], DISCRETE, r"actions of the policy: expected int64 \(3,\), got int64 \(2,\)"),
        (np.zeros((3, 2)), DISCRETE, r"actions of the policy: expected int64 \(3,\), got float64 \(3, 2\)"),
        (1, DISCRETE, "actions of the policy: expected int64 "),
        (None, DISCRETE, "actions of the policy: expected int64 .*, got None"),
        (np.float32([[0, 0], [0, np.nan], [np.nan, 0]]), BOX, r"actions of the policy: NaN for envs \[2, 5\]"),
        (([0, 1, 2], {"value": np.zeros(2)}), DISCRETE, r"'value': expected an array with 3 rows, got float64 \(2,\)"),
        (([0, 1, 2], {"value": 0.5}), DISCRETE, r"'value': expected an array with 3 rows, got float64 \(\)"),
        (([0, 1, 2], {7: np.zeros(3)}), DISCRETE, "extras of the policy: 7: expected an array with 3 rows"),
        ({"a": [0, 1, 2]}, DISCRETE, "actions of the policy: expected int64 .*, got a dict"),
    ],
)
def test_wrong_answers_are_refused(answer: Any, space: spaces.Space[Any], message: str):
    with pytest.raises(SpaceError, match=message):
        act(lambda obs, env_id: answer, space)


def test_policy_must_be_callable_and_actions_must_have_a_layout():
    with pytest.raises(ConfigError, match=r"collect: policy: expected a callable policy\(obs, env_id\), got 'random'"):
        PolicyCaller("random", DISCRETE, "collect")
    with pytest.raises(ConfigError, match="collect: actions of Text.* have no fixed dtype and shape"):
        PolicyCaller(print, spaces.Text(3), "collect")


class Recurrent:
    def __init__(self) -> None:
        self.begun: list[list[int]] = []

    def begin(self, env_ids: np.ndarray) -> None:
        self.begun.append(env_ids.tolist())

    def bootstrap(self, obs: Any, env_id: np.ndarray) -> Any:
        return obs[:, 0]

    def __call__(self, obs: Any, env_id: np.ndarray) -> Any:
        return env_id % 2


def test_begin_and_bootstrap_are_optional():
    policy = Recurrent()
    caller = PolicyCaller(policy, DISCRETE, "collect")
    caller.begin(IDS)
    caller.begin(IDS[:0])
    assert policy.begun == [[0, 2, 5]]
    assert caller.can_bootstrap and caller.bootstrap(OBS, IDS).tolist() == [0.0, 4.0, 8.0]
    with pytest.raises(SpaceError, match=r"bootstrap of the policy: expected shape \(2,\), got \(3,\)"):
        caller.bootstrap(OBS, IDS[:2])
    plain = PolicyCaller(lambda obs, env_id: env_id, DISCRETE, "collect")
    plain.begin(IDS)
    assert not plain.can_bootstrap


def test_exceptions_of_policies_are_passed_on():
    def broken(obs: Any, env_id: Any) -> Any:
        raise ZeroDivisionError("no such network")

    with pytest.raises(ZeroDivisionError, match="no such network"):
        act(broken)


# ---- torch -----------------------------------------------------------------------------------


def make_module(*, takes_ids: bool) -> Any:
    pytest.importorskip("torch", exc_type=ImportError)
    torch: Any = importlib.import_module("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)
            self.calls: list[Any] = []

        def bootstrap(self, obs: Any, env_id: Any) -> Any:
            return self.linear(obs)[:, 0]

        def answer(self, obs: Any) -> Any:
            self.calls.append(obs)
            logits = self.linear(obs)
            return logits.argmax(1), {"value": logits[:, 0]}

        if takes_ids:

            def forward(self, obs: Any, env_id: Any) -> Any:
                assert env_id.tolist() == IDS.tolist()
                return self.answer(obs)

        else:

            def forward(self, obs: Any) -> Any:
                return self.answer(obs)

    return Net()


@pytest.mark.parametrize("takes_ids", [False, True])
def test_module_is_called_with_tensors_and_without_gradients(takes_ids: bool):
    module = make_module(takes_ids=takes_ids)
    caller = PolicyCaller(module, DISCRETE, "collect")
    answer = caller.act(OBS, IDS)
    tensor = module.calls[0]
    assert type(tensor).__name__ == "Tensor" and tensor.data_ptr() == OBS.ctypes.data, "the memory is shared"
    expected = module.linear(tensor.clone()).detach().numpy()
    assert type(answer.actions[0]) is np.ndarray and answer.actions[0].tolist() == expected.argmax(1).tolist()
    assert answer.extras["value"].tolist() == expected[:, 0].tolist()
    assert caller.bootstrap(OBS, IDS).tolist() == expected[:, 0].tolist()


def test_method_of_a_module_is_called_as_the_module():
    module = make_module(takes_ids=False)
    answer = PolicyCaller(module.answer, DISCRETE, "collect").act(OBS, IDS)
    assert type(module.calls[0]).__name__ == "Tensor" and answer.actions[0].shape == (3,)


def test_callables_may_return_tensors():
    torch: Any = pytest.importorskip("torch", exc_type=ImportError)
    answer = act(lambda obs, env_id: torch.tensor([0, 1, 2]))
    assert answer.actions[0].tolist() == [0, 1, 2]
    space = spaces.Dict(a=DISCRETE)
    assert act(lambda obs, env_id: {"a": torch.tensor([2, 1, 0])}, space).actions[0].tolist() == [2, 1, 0]


# ---- agents ------------------------------------------------------------------------------------


class Agent:
    """Has `predict` with the parameters of Stable-Baselines3."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        return np.full(len(observation), 2 if deterministic else 1), state


class CallableAgent(Agent):
    """Its call has another meaning, as that of a policy of Stable-Baselines3."""

    def __call__(self, observation: Any, deterministic: bool = False) -> Any:
        raise AssertionError("the forward pass of a training")


class RecurrentAgent(Agent):
    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        return np.zeros(len(observation), np.int64), (np.zeros(3),)


@pytest.mark.parametrize("policy", [Agent(), Agent().predict, CallableAgent(), CallableAgent().predict])
def test_agent_answers_by_its_predict(policy: Any) -> None:
    """A model, its policy and its `predict` were refused, or got the env ids as states."""
    assert act(policy).actions[0].tolist() == [2, 2, 2]


def test_state_of_a_recurrent_agent_is_not_dropped_in_silence() -> None:
    with pytest.raises(ConfigError, match="predict returned a state: write a function that keeps it"):
        act(RecurrentAgent())


def test_function_of_observations_alone_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"does not take \(obs, env_id\); write lambda obs, env_id"):
        PolicyCaller(lambda obs: obs, DISCRETE, "collect")


def test_logits_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        SpaceError, match=r"expected int64 \(3,\), got float32 \(3, 3\); return actions, such as logits.argmax"
    ):
        act(lambda obs, env_id: np.zeros((3, 3), np.float32))
