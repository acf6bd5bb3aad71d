"""The summaries of `Evaluation` and `Comparison`: intervals, tables, dicts, and errors of `compare`."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.envs import SeedEnv, length_of
from vecenv import Comparison, ConfigError, EpisodeResult, Evaluation, compare
from vecenv.evaluation.result import mean_interval


def zeros(obs, env_id):
    return np.zeros(len(obs), np.int64)


def ones(obs, env_id):
    return np.ones(len(obs), np.int64)


def evaluation_of(returns):
    seeds = range(len(returns))
    episodes = {
        seed: EpisodeResult(seed, value, 3, True, False, "", 0.5, {"x": seed}) for seed, value in zip(seeds, returns)
    }
    return Evaluation.of("Toy-v0", seeds, episodes)


@pytest.mark.extended
def test_interval_covers_the_mean_as_often_as_its_level():
    generator = np.random.default_rng(7)
    samples = generator.normal(3.0, 2.0, (200, 40))
    covered = sum(low <= 3.0 <= high for low, high in map(mean_interval, samples))
    assert 0.88 <= covered / len(samples) <= 0.99


@pytest.mark.extended
def test_interval_repeats_and_is_drawn_in_parts(monkeypatch):
    values = np.arange(1000.0)
    whole = mean_interval(values)
    assert whole == mean_interval(values) and whole[0] < values.mean() < whole[1]
    error = values.std(ddof=1) / np.sqrt(1000)
    assert (whole[1] - whole[0]) / (2 * 1.96 * error) == pytest.approx(1.0, abs=0.05)


def test_summary_of_few_episodes():
    one, none = evaluation_of([4.0]), evaluation_of([])
    assert one.mean == 4.0 and math.isnan(one.standard_error) and all(map(math.isnan, one.confidence_interval))
    assert "nan" not in str(one)
    assert math.isnan(none.mean) and str(none) == "Toy-v0: 0 episodes"
    assert json.loads(json.dumps(none.as_dict()))["mean"] is None


def test_summary_of_several_episodes():
    result = evaluation_of([1.0, 3.0, 8.0])
    assert result.mean == 4.0 and result.standard_error == pytest.approx(np.std([1, 3, 8], ddof=1) / np.sqrt(3))
    low, high = result.confidence_interval
    assert 1.0 <= low < 4.0 < high <= 8.0
    assert str(result).splitlines()[1].startswith("return: mean 4, standard error 2.08, 95 % interval ")
    assert str(result).splitlines()[-1].split() == ["2", "8", "3", "terminated"]
    assert repr(result) == "Evaluation(Toy-v0, num_episodes=3, mean=4)"


def test_table_is_short():
    lines = str(evaluation_of(np.arange(100.0))).splitlines()
    assert len(lines) == 27 and lines[-1] == "... and 80 further episodes"


def test_results_cannot_be_changed():
    result = evaluation_of([1.0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.returns = None
    with pytest.raises(ValueError, match="read-only"):
        result.returns[0] = 2.0


def test_dict_contains_all_episodes():
    found = json.loads(json.dumps(evaluation_of([1.0, 3.0]).as_dict()))
    assert found["returns"] == [1.0, 3.0] and found["seeds"] == [0, 1] and found["seconds"] == [0.5, 0.5]
    assert found["mean"] == 2.0 and found["infos"] == [{"x": 0}, {"x": 1}] and found["cut"] == ["", ""]


def test_videos_are_those_that_exist(tmp_path):
    paths = {0: tmp_path / "a.mp4", 1: tmp_path / "b.mp4"}
    paths[1].write_bytes(b"")
    assert Evaluation.of("Toy-v0", [0, 1], {}, paths).videos == (Path(tmp_path / "b.mp4"),)


# ---- comparison ------------------------------------------------------------------------------


def test_compare_subtracts_episode_by_episode():
    seeds = [5, 3, 8]
    found = compare(SeedEnv, zeros, ones, zeros, seeds=seeds, num_envs=2, backend="serial")
    assert found.names == ("zeros", "ones", "zeros") and len(found.evaluations) == 3
    lengths = list(map(length_of, seeds))  # the second policy gets 1 more per step
    assert found.differences == pytest.approx(np.array([lengths, [0, 0, 0]]))
    assert found.means == pytest.approx([np.mean(lengths), 0.0])
    assert found.standard_errors[1] == 0.0 and found.confidence_intervals.shape == (2, 2)
    assert found.confidence_intervals[0, 0] <= found.means[0] <= found.confidence_intervals[0, 1]
    assert "ones - zeros: mean difference 4, standard error" in str(found)
    assert json.loads(json.dumps(found.as_dict()))["means"] == found.means.tolist()
    assert repr(found) == "Comparison(zeros, ones, zeros, num_episodes=3)"


def test_comparison_of_one_episode_has_no_interval():
    found = Comparison(("a", "b"), (evaluation_of([1.0]), evaluation_of([3.0])))
    assert found.means.tolist() == [2.0] and found.as_dict()["confidence_intervals"] == [[None, None]]
    assert str(found).splitlines()[-1] == "b - a: mean difference 2"


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, of inf - inf
def test_as_dict_of_a_comparison_of_infinite_returns_has_no_nan():
    found = Comparison(("a", "b"), (evaluation_of([math.inf, 1.0]), evaluation_of([math.inf, 3.0])))
    content = found.as_dict()
    assert content["means"] == [None] and content["differences"] == [[None, 2.0]]
    assert content["standard_errors"] == [None] and content["confidence_intervals"] == [[None, None]]


def test_compare_gives_the_results_so_far_on_the_exception():
    def fails(obs, env_id):
        if 3 in obs[:, 2]:
            raise ZeroDivisionError
        return zeros(obs, env_id)

    with pytest.raises(ZeroDivisionError) as caught:
        compare(SeedEnv, ones, fails, seeds=[5, 3], num_envs=1, backend="serial")
    assert [one.num_episodes for one in caught.value.results] == [2, 1]


@pytest.mark.parametrize(
    "policies, arguments, says",
    [
        ([zeros], {"seeds": [1]}, "at least two policies, got 1"),
        ([zeros, None], {"seeds": [1]}, "policy: expected a callable"),
        ([zeros, ones], {"seeds": [1, 1]}, "given twice"),
        ([zeros, ones], {"seeds": [1], "videos": 1}, "no option 'videos'"),
    ],
)
def test_compare_refuses_wrong_arguments(policies, arguments, says):
    with pytest.raises(ConfigError, match=says):
        compare(SeedEnv, *policies, **arguments)
