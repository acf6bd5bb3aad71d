"""Checks of common arguments: accepted values, refused values, and the error messages."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from vecenv import ConfigError
from vecenv.values.checks import check_callable, check_callables, check_choice, check_flag, check_whole


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)], ids=repr)
def test_whole_number_becomes_an_int(value):
    assert check_whole("count", value, 1) == 3 and type(check_whole("count", value, 1)) is int


@pytest.mark.parametrize("value", [0, True, 3.0, "3", None, np.array([3])], ids=repr)
def test_integer_of_another_kind_or_size_is_refused(value):
    with pytest.raises(ConfigError, match="^count: expected a whole number of at least 1, got") as caught:
        check_whole("count", value, 1)
    assert caught.value.key == "count"


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_], ids=repr)
def test_flag_becomes_a_bool(value):
    assert check_flag("copy", value) is bool(value)


@pytest.mark.parametrize("value", ["no", 0, 1, None, [], np.array([True])], ids=repr)
def test_flag_of_another_kind_is_refused(value):
    with pytest.raises(ConfigError, match="^copy: expected True or False, got") as caught:
        check_flag("copy", value)
    assert caught.value.key == "copy"


def test_choice_is_checked():
    check_choice("mode", "b", ["a", "b"])
    for value in ("c", ["a"], None):  # one that has no hash, too
        with pytest.raises(ConfigError, match=r"^mode: expected one of \('a', 'b'\), got"):
            check_choice("mode", value, ["a", "b"])


def test_callables_are_checked():
    check_callable("env_fn", dict)
    assert check_callables("wrappers", []) == () and check_callables("wrappers", iter([dict])) == (dict,)
    for value in (5, [5], "abc", None, dict, functools.partial(dict)):
        with pytest.raises(ConfigError, match="^wrappers: expected a list of callables, got"):
            check_callables("wrappers", value)
    with pytest.raises(ConfigError, match="^env_fn: expected a callable, got 5$"):
        check_callable("env_fn", 5)
