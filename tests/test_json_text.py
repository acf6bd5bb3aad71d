"""JSON of results with keys and numbers that JSON does not have."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from vecenv.values.json_text import json_text


@pytest.mark.parametrize(
    "value, expected",
    [
        ({np.int64(1): 2, (0, 1): 3, None: 4}, {"1": 2, "(0, 1)": 3, "None": 4}),
        ([math.nan, math.inf, np.float32(-math.inf), 0.5], [None, None, None, 0.5]),
        ({"array": np.array([[1, 2]], np.int8), "scalar": np.True_}, {"array": [[1, 2]], "scalar": True}),
        ({"nested": ({"path": Path("a/b")}, np.array(["x"], object))}, {"nested": [{"path": "a/b"}, ["x"]]}),
        ([True, None, 2**70, "text"], [True, None, 2**70, "text"]),
    ],
    ids=["keys", "numbers", "numpy", "objects", "json"],
)
def test_json_is_read_by_every_parser(value, expected):
    def refuse(name):
        raise ValueError(name)

    for indent in (2, None):
        assert json.loads(json_text(value, indent), parse_constant=refuse) == expected
    assert json_text(value, None).count("\n") == 1
