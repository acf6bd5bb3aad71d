"""Wrappers above time steps for several tasks in one environment, and for a curriculum that chooses the tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.environment import AlfEnvironment
from vecenv.alf.base.spec import BoundedTensorSpec, TensorSpec
from vecenv.alf.base.timestep import TimeStep
from vecenv.alf.wrappers.base import AlfEnvironmentBaseWrapper
from vecenv.alf.wrappers.batch import SeveralEnvs
from vecenv.errors import ConfigError, SpaceError
from vecenv.wrappers.base import own_generator

_TINY = 1e-30


class MultitaskWrapper(SeveralEnvs):
    """Several envs as one; each action chooses the env: {'task_id': its index, 'action': the action for it}.

    If task_id differs from the last one, the step starts an episode of the new task and ignores the action. The other
    task's episode is left unfinished.
    """

    state_names: ClassVar[tuple[str, ...]] = ("_task_id",)

    def __init__(self, envs: Sequence[AlfEnvironment], task_names: Sequence[str], env_id: int | None = None) -> None:
        """Build one environment of these tasks.

        Args:
            envs: single envs with equal specs.
            task_names: one name per env, all different.
            env_id: value of the field `env_id` in time steps. None (default): 0.

        Raises:
            ConfigError: there are no envs, the names are not one per env or not different, or specs differ.
        """
        if not envs or len(envs) != len(task_names) or len(set(task_names)) != len(task_names):
            raise ConfigError(f"expected envs and as many different task names, got {list(task_names)}")
        super().__init__(envs, [f"task {name}" for name in task_names])
        self._names = list(task_names)
        self.num_tasks = len(task_names)
        self._env_id = np.int32(0 if env_id is None else env_id)
        self._task_id = 0

    @staticmethod
    def load(
        load_fn: Callable[..., AlfEnvironment],
        environment_name: Sequence[str],
        env_id: int | None = None,
        **kwargs: Any,
    ) -> MultitaskWrapper:
        """Load each environment of a list of names by `load_fn(name, **kwargs)`; return them as one."""
        return MultitaskWrapper([load_fn(name, **kwargs) for name in environment_name], environment_name, env_id)

    @property
    def task_names(self) -> list[str]:
        return self._names

    def action_spec(self) -> Any:
        """Return {'task_id': spec, 'action': specs}."""
        task_id = BoundedTensorSpec((), np.int64, 0, len(self._envs) - 1)
        return {"task_id": task_id, "action": self._specs.prev_action}

    def seed(self, seed: int) -> None:
        """Set this seed for the next reset of every task."""
        for env in self._envs:
            env.seed(seed)

    def render(self, mode: str = "rgb_array") -> Any:
        """Render the current task."""
        return self._envs[self._task_id].render(mode)

    def _reset(self) -> TimeStep:
        return self._named(self._envs[self._task_id].reset())

    def _step(self, action: Any) -> TimeStep:
        task_id = int(action["task_id"])
        if not 0 <= task_id < len(self._envs):
            raise SpaceError(f"task_id: expected 0 .. {len(self._envs) - 1}, got {task_id}", path="task_id")
        if task_id != self._task_id:
            self._task_id = task_id
            return self._named(self._envs[task_id].reset())
        return self._named(self._envs[task_id].step(action["action"]))

    def _named(self, time_step: TimeStep) -> TimeStep:
        prev_action = {"task_id": np.int64(self._task_id), "action": time_step.prev_action}
        return time_step._replace(env_id=self._env_id, prev_action=prev_action)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"MultitaskWrapper has no attribute {name!r}")
        return getattr(self._envs[self._task_id], name)


class CurriculumWrapper(AlfEnvironmentBaseWrapper):
    """Chooses the task of each episode; tasks whose returns increase fastest are chosen most often.

    The progress of a task is (recent score - earlier score) / mean episode length. Both scores are running means of
    returns, with different update rates. `env_info` contains `curriculum_task_count`, `curriculum_task_score` and
    `curriculum_task_prob`, each a dict from task name to float32 (B,), nonzero only in rows of LAST steps.

    Attributes:
        task_probs: float64 (num_tasks,), the current probability of each task.
    """

    state_names: ClassVar[tuple[str, ...]] = (
        *("_generator", "_task_ids", "task_probs"),
        *("_counts", "_scores", "_mean_lengths", "_returns", "_lengths"),
    )

    def __init__(
        self,
        env: AlfEnvironment,
        progress_favor: float = 10.0,
        current_score_update_rate: float = 1e-3,
        past_score_update_rate: float = 5e-4,
        warmup_period: int = 100,
        seed: int | None = None,
    ) -> None:
        """Wrap a batched environment.

        Args:
            env: a batch of `MultitaskWrapper`s.
            progress_favor: ratio of the probabilities of the task with the most progress and a task without progress,
                10 by default.
            current_score_update_rate, past_score_update_rate: update rates of the recent and the earlier score, 1e-3
                and 5e-4 by default.
            warmup_period: number of episodes per task until progress_favor has its full effect, 100 by default.
            seed: seed of the choices. None (default): a random one.

        Raises:
            ConfigError: the env is not batched, or its actions have no task_id.
        """
        super().__init__(env)
        spec = env.action_spec()
        if not env.batched or not isinstance(spec, dict) or spec.keys() != {"task_id", "action"}:
            raise ConfigError("CurriculumWrapper: expected a batch of multitask envs, with task_id and action")
        self._action_spec = spec["action"]
        size, tasks = env.batch_size, env.num_tasks
        self._returns, self._lengths = np.zeros(size), np.zeros(size)
        self._rates = np.array([[current_score_update_rate], [past_score_update_rate]])
        self._scale = math.log(progress_favor)
        self._warmup = max(1, warmup_period * tasks)
        self._scores = np.zeros((2, tasks))
        self._mean_lengths = np.zeros(tasks)
        self._counts = np.zeros(tasks)
        self.task_probs = np.full(tasks, 1 / tasks)
        self._generator = own_generator(seed, "curriculum")
        self._task_ids = self._choose(size)

    def _choose(self, count: int) -> Any:
        return self._generator.choice(len(self.task_probs), count, p=self.task_probs)

    def action_spec(self) -> Any:
        """Return the specs of the tasks' actions, without task_id."""
        return self._action_spec

    def env_info_spec(self) -> Any:
        """Return the wrapped environment's specs and those of the curriculum's infos."""
        scalars = dict.fromkeys(self.task_names, TensorSpec(()))
        return {**self._env.env_info_spec(), **{key: dict(scalars) for key in _CURRICULUM_KEYS}}

    def _reset(self) -> TimeStep:
        self._returns[:] = self._lengths[:] = 0
        return self._add_curriculum_info(self._env.reset())

    def _step(self, action: Any) -> TimeStep:
        task_ids = self._task_ids.copy()
        given = tensors.to_tensors(task_ids) if self.is_tensor_based else task_ids
        time_step = self._env.step({"task_id": given, "action": action})
        first, last, reward = (
            tensors.to_arrays(leaf) for leaf in (time_step.is_first(), time_step.is_last(), time_step.reward)
        )
        self._returns[first] = self._lengths[first] = 0
        self._returns += reward.reshape(len(reward), -1).sum(1)
        self._lengths += ~first
        ended = np.flatnonzero(last)
        if len(ended):
            for task, score, length in zip(task_ids[ended], self._returns[ended], self._lengths[ended]):
                self._learn(task, score, length)
            self._favour_progress()
            self._task_ids[ended] = self._choose(len(ended))
        return self._add_curriculum_info(time_step, last)

    def _learn(self, task: int, score: float, length: float) -> None:
        self._counts[task] += 1
        self._scores[:, task] += self._rates[:, 0] * (score - self._scores[:, task])
        self._mean_lengths[task] += self._rates[0, 0] * (length - self._mean_lengths[task])

    def _means(self) -> tuple[Any, Any]:
        """Return the two scores (2, num_tasks) and the mean lengths (num_tasks,), corrected for their start at zero."""
        weights = 1 - (1 - self._rates) ** self._counts + _TINY
        return self._scores / weights, self._mean_lengths / weights[0]

    def _favour_progress(self) -> None:
        (recent, earlier), lengths = self._means()
        progress = np.maximum(recent - earlier, 0) / (lengths + _TINY)
        progress /= progress.max() + _TINY
        weights = np.exp(self._scale * min(1.0, self._counts.sum() / self._warmup) * progress)
        self.task_probs = weights / weights.sum()

    def _add_curriculum_info(self, time_step: TimeStep, last: Any = None) -> TimeStep:
        mask = np.zeros(len(self._task_ids), np.float32) if last is None else last.astype(np.float32)
        values = (self._counts, self._means()[0][0], self.task_probs)
        curriculum_info = {
            key: {name: mask * np.float32(value) for name, value in zip(self.task_names, row)}
            for key, row in zip(_CURRICULUM_KEYS, values)
        }
        info = {
            **time_step.env_info,
            **(tensors.to_tensors(curriculum_info) if self.is_tensor_based else curriculum_info),
        }
        return time_step._replace(prev_action=time_step.prev_action["action"], env_info=info)


_CURRICULUM_KEYS = ("curriculum_task_count", "curriculum_task_score", "curriculum_task_prob")
