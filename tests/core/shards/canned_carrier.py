"""CannedCarrier: shards whose replies are made in this process without envs, to see the work of the driver alone."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.core.layout import messages
from vecenv.core.layout.arena import RECORD
from vecenv.core.layout.flags import RowFlag
from vecenv.core.layout.rows import Rows
from vecenv.core.operations.engine import EnvSpaces
from vecenv.core.options import PoolOptions
from vecenv.core.shards.carrier import CarrierEvent, Replied, ShardPlace
from vecenv.core.shards.frames import FrameKind, FrameLayout, pack_bare
from vecenv.core.shards.requests import ShardBoot, ShardReport, Steps, unpack_request
from vecenv.core.system.module_files import ModuleFiles

SPACE = spaces.Box(-1.0, 1.0, (4,), np.float32)


class CannedCarrier:
    """Answers requests at once with rows of zeros; see `carrier.Carrier`. A wait returns as few events as it may."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._events: deque[CarrierEvent] = deque()
        self._first: dict[int, int] = {}
        self._layout: FrameLayout | None = None

    def start(self, shard: int, boot: bytes) -> None:
        loaded: ShardBoot = pickle.loads(boot)
        self._first[shard] = loaded.first_env_id
        report = ShardReport(SPACE, spaces.Discrete(2), None, {"name": "Canned"}, "python", ModuleFiles())
        if self._layout is None:
            plan = EnvSpaces.of(report, self._options).plan_arena(1, 1, 1, self._options)
            self._actions = plan.action.leaves
            self._layout = FrameLayout(plan, has_records=self._options.failures.recovers)
            self._spec, self._reward_shape = plan.obs, plan.reward_shape
        self._events.append(Replied(shard, pack_bare(0, FrameKind.OPENED, messages.dump(report))))

    def ask(self, shard: int, seq: int, request: bytes, most_nbytes: int, shared: Sequence[Any] = ()) -> None:
        asked = unpack_request(request, self._actions)
        frames = [self._reply(shard, seq, op) for op in asked.ops]
        self._events.append(Replied(shard, frames[0] if frames else pack_bare(seq, FrameKind.EXECUTED)))

    def _reply(self, shard: int, seq: int, op: Any) -> bytearray:
        if not hasattr(op, "step_ids") and not hasattr(op, "table"):
            return pack_bare(seq, FrameKind.EXECUTED)
        step_ids = np.array(op.step_ids) if isinstance(op, Steps) else op.table["step_id"]
        assert self._layout is not None
        rows = Rows.zeros(len(step_ids), self._spec, self._reward_shape)
        rows.columns["step_id"][:] = step_ids
        rows.columns["env_id"][:] = self._first[shard] + np.arange(len(step_ids))
        if not isinstance(op, Steps):
            rows.columns["flags"][:] = RowFlag.RESET
        records = np.zeros(len(step_ids), RECORD) if self._options.failures.recovers else None
        return self._layout.pack(seq, rows, records)

    def wait(self, deadline_ns: int, count: int = 1) -> list[CarrierEvent]:
        return [self._events.popleft() for _ in range(min(count, len(self._events)))]

    def share(self, data: bytes) -> Any:
        return data

    def kill(self, shard: int) -> None:
        pass

    def waiting_for(self, shard: int) -> str:
        return ""

    def place_of(self, shard: int) -> ShardPlace | None:
        return ShardPlace(1)

    def describe(self, shard: int) -> str:
        return "no process"

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        self._events.clear()

    end_if_unclosed: Callable[[], None] = close  # type: ignore[assignment]
