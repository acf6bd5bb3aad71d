"""One round of rows in one process: send, step envs that cost nothing, receive; in C and in Python.

No process sleeps or is woken, so this is the cost to pack actions and observations.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete

from vecenv.core.fallback.local import make_local_pair
from vecenv.core.layout.arena import ArenaPlan
from vecenv.core.layout.flags import Autoreset, Form
from vecenv.core.layout.native import load
from vecenv.core.layout.spec import Spec
from vecenv.core.parent.hub import Hub, NativeHub
from vecenv.core.processes.worker_main import Attach, make_slot
from vecenv.core.system.clock import NEVER_NS
from vecenv.core.system.segment import private_segment

NUM_ENVS = 64
SPACES: dict[str, Space[Any]] = {
    "4 floats": Box(-1.0, 1.0, (4,), np.float32),
    "4 x 84 x 84": Box(0, 255, (4, 84, 84), np.uint8),
    "dict of 8": Dict({f"part {i}": Box(-1.0, 1.0, (3,), np.float32) for i in range(8)}),
}
_Opener = Callable[[Attach], tuple[Hub, Any]]


@pytest.fixture(params=["native", "python"])
def open_ends(request: pytest.FixtureRequest) -> Iterator[_Opener]:
    """Open both ends of one slot that does not wait."""
    if request.param == "native" and load() is None:
        pytest.skip("the extension was not built")
    event_fd, epoll = os.eventfd(0, os.EFD_NONBLOCK), select.epoll()

    def open_both(attach: Attach) -> tuple[Hub, Any]:
        memory = private_segment(attach.plan.nbytes)
        attach.plan.write_header(memory)
        counters = private_segment(attach.plan.counters.nbytes)
        attach.plan.counters.write_header(counters)
        slots = [0] * attach.plan.num_envs
        if request.param == "python":
            return make_local_pair(attach, memory, counters, slots)
        hub = NativeHub(attach.plan, memory, counters, slots, event_fd, epoll.fileno(), 0)
        return hub, make_slot(attach, 0, memory, counters, event_fd, False)

    yield open_both
    epoll.close()
    os.close(event_fd)


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "as they finish"])
@pytest.mark.parametrize("name", SPACES)
def test_round(benchmark: Any, open_ends: _Opener, name: str, ordered: bool) -> None:
    plan = ArenaPlan(NUM_ENVS, 1, Spec(SPACES[name], "obs"), Spec(Discrete(6), "action"), (), 3, False, NUM_ENVS)
    hub, slot = open_ends(Attach(plan, [(0, list(range(NUM_ENVS)))], Autoreset.NEXT_STEP, 0))
    result = (SPACES[name].sample(), 1.0, False, False, {})
    for env_id in range(NUM_ENVS):
        slot.host(env_id, lambda action: result)
    actions = (np.zeros(NUM_ENVS, np.int64),)

    def one_round() -> None:
        hub.send(actions, None, ordered, Form.NATIVE)
        slot.serve()
        hub.recv(NUM_ENVS, NUM_ENVS, NEVER_NS)

    benchmark(one_round)
