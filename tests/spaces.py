"""One list of spaces for all tests: those with a fixed layout, and those without."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple

# Every sample has the same leaves, shapes and dtypes: they fit columns of shared memory.
FIXED_SPACES: dict[str, spaces.Space[Any]] = {
    "box_float32": Box(-1.0, 1.0, (3,), np.float32),
    "box_float16": Box(-2.0, 2.0, (2, 2), np.float16),
    "box_float64": Box(-np.inf, np.inf, (5,), np.float64),
    "box_uint8_image": Box(0, 255, (3, 16, 16), np.uint8),
    "box_int32": Box(-100, 100, (2, 3), np.int32),
    "box_int64_bounds": Box(np.array([0, -5]), np.array([10, 5]), dtype=np.int64),
    "box_bool": Box(0, 1, (4,), np.bool_),
    "box_0d": Box(-1.0, 1.0, (), np.float32),
    "box_empty": Box(-1.0, 1.0, (0,), np.float32),
    "discrete": Discrete(6),
    "discrete_start": Discrete(5, start=-2),
    "multi_discrete": MultiDiscrete([3, 4, 5]),
    "multi_discrete_2d": MultiDiscrete([[2, 3], [4, 5]]),
    "multi_discrete_start": MultiDiscrete([3, 3], start=[-1, 10], dtype=np.int32),
    "multi_binary": MultiBinary(7),
    "multi_binary_2d": MultiBinary((2, 3)),
    "dict": Dict({"position": Box(-1.0, 1.0, (2,), np.float32), "gear": Discrete(5)}),
    "dict_unsorted": Dict([("z", Discrete(3)), ("a", Box(0, 255, (4,), np.uint8))]),
    "dict_odd_keys": Dict({"a.b": Discrete(2), "c/d": Discrete(3), "class": Discrete(4)}),
    "dict_nested": Dict(
        {
            "camera": Dict(left=Box(0, 255, (3, 8, 8), np.uint8), right=Box(0, 255, (3, 8, 8), np.uint8)),
            "inner": Dict(flags=MultiBinary(3), deep=Dict(pair=Tuple((Discrete(2), Box(-1.0, 1.0, (1,), np.float64))))),
        }
    ),
    "tuple": Tuple((Discrete(3), Box(-1.0, 1.0, (2,), np.float32))),
    "tuple_nested": Tuple((Tuple((Discrete(2), MultiBinary(2))), Dict(a=MultiDiscrete([2, 2])))),
    "tuple_of_one": Tuple((Box(-1.0, 1.0, (2,), np.float32),)),
}

# Samples differ in size or structure, or hold something that is no array.
OTHER_SPACES: dict[str, spaces.Space[Any]] = {
    "text": Text(12),
    "text_charset": Text(min_length=2, max_length=5, charset="abc"),
    "graph": Graph(Box(-1.0, 1.0, (3,), np.float32), Discrete(4)),
    "graph_no_edges": Graph(Box(-1.0, 1.0, (3,), np.float32), None),
    "sequence": Sequence(Box(-1.0, 1.0, (2,), np.float32)),
    "sequence_stacked": Sequence(Box(-1.0, 1.0, (2,), np.float32), stack=True),
    "one_of": OneOf((Discrete(3), Box(-1.0, 1.0, (2,), np.float32))),
    "dict_mixed": Dict(name=Text(5), position=Box(-1.0, 1.0, (2,), np.float32)),
    "tuple_mixed": Tuple((Sequence(Discrete(4)), Discrete(2))),
}

ALL_SPACES = {**FIXED_SPACES, **OTHER_SPACES}
