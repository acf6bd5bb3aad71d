"""A simulation of the rounds of a pool, by events; the model of `sizing` is compared with it.

Slots run their commands one after the other. A command first waits, then computes. The cores are shared evenly by all
slots that compute. A round ends when all rows have answered.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from vecenv.core.advice.sizing import Setting


@dataclass(frozen=True)
class EnvCost:
    """Times of one env: the parts of a step and of a reset in which it waits and computes, in nanoseconds.

    Attributes:
        episode: steps of an episode.
        ends: of `ENDS`: all envs at once, equal lengths with other phases, or any step may be the last.
    """

    step_wait: float
    step_busy: float
    reset_wait: float = 0.0
    reset_busy: float = 0.0
    episode: int = 10**9
    ends: str = "aligned"


@dataclass
class _Slot:
    commands: deque[tuple[int, float, float]] = field(default_factory=deque)  # env, wait, busy


class Rounds:
    """Steps rows in lockstep.

    Args:
        cost: of each env.
        num_envs: how many rows.
        setting: of the pool; spare envs have queues of their own, or share one, as in `SpareQueues`.
        cores: how many cores there are.
        load: how many threads of other programs always compute.
        overhead: busy time of each command.
    """

    def __init__(
        self, cost: EnvCost, num_envs: int, setting: Setting, cores: int, load: float = 0.0, overhead: float = 0.0
    ) -> None:
        self._cost, self._num_envs, self._cores, self._load, self._overhead = cost, num_envs, cores, load, overhead
        self._random = random.Random(0)
        hosted = num_envs + setting.num_spares
        self._slots = [_Slot() for _ in range(min(hosted, max(1, setting.num_workers) * setting.threads_per_worker))]
        self._slot_of = [env * len(self._slots) // hosted for env in range(hosted)]
        if setting.num_spares and len(self._slots) < hosted:  # rows spread evenly, as at the start
            self._slot_of = [env % len(self._slots) for env in range(hosted)]
        self._env_of = list(range(num_envs))
        shared: deque[int] = deque(range(num_envs, hosted))
        is_own = setting.num_spares % num_envs == 0
        self._queues = [deque(list(shared)[row::num_envs]) if is_own else shared for row in range(num_envs)]
        self._has_spares = setting.num_spares > 0
        phases = [row * cost.episode // num_envs if cost.ends == "spread" else 0 for row in range(num_envs)]
        self._left = [cost.episode - phase for phase in phases]
        self._is_over = [False] * num_envs
        self._under_reset: set[int] = set()
        self.now = 0.0

    def run(self, num_rounds: int) -> float:
        """Return the time of an env step of each row, in the mean, in nanoseconds."""
        began, steps = self.now, 0
        for _ in range(num_rounds):
            steps += self._round()
        return (self.now - began) * self._num_envs / steps

    def _push(self, env: int, wait: float, busy: float) -> None:
        self._slots[self._slot_of[env]].commands.append((env, wait, busy + self._overhead))

    def _round(self) -> int:
        cost, stepping = self._cost, []
        awaited: set[int] = set()
        for row in range(self._num_envs):
            if not self._is_over[row]:
                stepping.append(row)
                awaited.add(self._env_of[row])
                self._push(self._env_of[row], cost.step_wait, cost.step_busy)
                continue
            if not self._has_spares:
                self._push(self._env_of[row], cost.reset_wait, cost.reset_busy)
            awaited.add(self._env_of[row])
        pending = {env for env in awaited if any(env == one[0] for slot in self._slots for one in slot.commands)}
        while pending:
            pending.discard(self._next_event())
        for row in range(self._num_envs):
            if self._is_over[row]:
                self._is_over[row] = False
                self._left[row] = cost.episode
        for row in stepping:
            self._left[row] -= 1
            ended = self._random.random() * cost.episode < 1 if cost.ends == "random" else self._left[row] == 0
            if ended:
                self._is_over[row] = True
                if self._has_spares:
                    env = self._env_of[row]
                    self._push(env, cost.reset_wait, cost.reset_busy)
                    self._queues[row].append(env)
        for row in range(self._num_envs):
            if self._is_over[row] and self._has_spares:
                self._env_of[row] = self._queues[row].popleft()
        return len(stepping)

    def _next_event(self) -> int:
        """Let time pass until a part of a command ends; return the env whose command is done, -1 if none is."""
        heads = [slot for slot in self._slots if slot.commands]
        computing = sum(slot.commands[0][1] <= 0 for slot in heads)
        share = min(1.0, self._cores / (computing + self._load)) if computing else 1.0
        times = [slot.commands[0][1] if slot.commands[0][1] > 0 else slot.commands[0][2] / share for slot in heads]
        passed = min(times)
        self.now += passed
        done = -1
        for slot, time in zip(heads, times):
            env, wait, busy = slot.commands[0]
            is_next = time == passed and done < 0
            if wait > 0:
                slot.commands[0] = (env, 0.0 if is_next else wait - passed, busy)
                if is_next:
                    done = -2
            elif is_next:
                slot.commands.popleft()
                done = env
            else:
                slot.commands[0] = (env, wait, max(0.0, busy - passed * share))
        return max(done, -1)
