"""The manager's hand in the worker: seeds, reset parameters and replays are applied beside the env.

    manager -> Orders (a payload with a reset) -> ManagedEnv -> adapt -> env

A manager's env is rebuilt, seeded and told its reset parameters here, so that a reset that the
worker makes by itself when an episode ends is the same as one that the manager asks for. Plain
steps do not pass through: the worker calls the env's own `step`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from ..envs.adapt import AdaptedEnv, adapt_and_build, has_generator, reward_space_of
from ..envs.own_attributes import get_own_attr
from ..envs.seeding import EpisodeSeeds, episode_seed
from ..envs.spaces import ObjectSpace
from ..envs.state.state import SNAPSHOTTER, Snapshot
from ..envs.video import EpisodeRecorder, enable_env_recording, unique_name
from ..errors import ConfigError, EnvError
from .side_values import ABNORMAL, move_reward_to_info

__all__ = [
    "EnvMaker",
    "ManagedEnv",
    "ManagedSnapshotter",
    "Orders",
    "Settings",
]


@dataclass(frozen=True)
class Settings:
    """What an env must know of its manager from the start.

    Attributes:
        autoresets: a reset without orders is the worker's own, at the end of an episode.
        abnormal_ends: an abnormal timestep may end an episode; else it never does.
        has_columns: observations and rewards are as their spaces say; else they travel as objects. Then there need
            be no spaces, and actions travel as objects too if theirs is missing.
    """

    autoresets: bool
    abnormal_ends: bool
    has_columns: bool = True


@dataclass(frozen=True)
class Orders:
    """What a manager tells an env together with a reset; it stays in force for later ones.

    Attributes:
        params: keyword arguments of the env's reset.
        seed: (seed, dynamic) to begin a sequence of seeds with, or None to go on as before.
        episodes_left: episodes after which the worker stops resetting by itself; None: never.
        replay_path: folder for videos, or None for no change.
        replay_token: for the names of the videos; the same as long as the env is, whatever worker it is in.
        first_seed: for the env's first reset if nothing else seeds it; later ones go on from there.
        is_whole: they say all that an env must know that has just been built.
    """

    params: dict[str, Any]
    seed: tuple[int, bool | None] | None = None
    episodes_left: float | None = None
    replay_path: str | None = None
    replay_token: str = ""
    first_seed: int | None = None
    is_whole: bool = True


#: What a managed env remembers from one episode to the next.
_BOOKS = (
    *("_params", "_seed", "_episodes_left", "_first_seed", "_is_begun", "_waits", "_replay_token", "_num_recorders"),
    *("_is_gone", "_has_orders"),
)


class ManagedSnapshotter:
    """Captures and restores managed envs between episodes, for `Pool`; see `envs.state`."""

    def spans_episodes(self, managed: ManagedEnv) -> bool:
        """Whether a seeded reset leaves something as it was: orders stay in force."""
        return True

    def capture(self, managed: ManagedEnv) -> Snapshot | None:
        """Take the state out; None if there is no way."""
        if managed.is_gone:  # what comes is made from nothing but the books
            return Snapshot(cloudpickle.dumps((managed.get_books(), None)), True)
        inner = SNAPSHOTTER.capture(managed.env)
        if inner is None:
            return None
        return Snapshot(cloudpickle.dumps((managed.get_books(), inner.state)), inner.is_complete)

    def restore(self, managed: ManagedEnv, state: bytes) -> None:
        """Put a captured state into an env that was built anew."""
        books, inner = cloudpickle.loads(state)
        managed.set_books(books)
        if inner is not None:
            SNAPSHOTTER.restore(managed.env, inner)


class EnvMaker:
    """Builds one managed env, in the worker; travels by value like the function it holds."""

    def __init__(self, env_fn: Callable[[], Any], env_id: int, settings: Settings) -> None:
        self.env_fn = env_fn
        self.env_id = env_id
        self.settings = settings

    def __call__(self) -> ManagedEnv:
        """Build the env."""
        return ManagedEnv(self.env_fn, self.env_id, self.settings)


class ManagedEnv:
    """An env with Gymnasium's calls that follows its manager's orders.

    Attributes:
        env: the env in Gymnasium's dialect, as `envs.adapt` gives it.
        step: the env's own step, bound anew whenever the env is replaced.
    """

    step: Callable[[Any], Any]

    def __init__(self, env_fn: Callable[[], Any], env_id: int, settings: Settings) -> None:
        self._env_fn = env_fn
        self._env_id = env_id
        self._settings = settings
        self._params: dict[str, Any] = {}
        self._seed: tuple[int, bool | None] | None = None
        self._seeds = EpisodeSeeds()  # for envs that cannot follow a sequence of seeds themselves
        self._episodes_left: float | None = None
        self._replay_path: str | None = None
        self._replay_token = ""
        self._num_recorders = 0
        self._recorder: EpisodeRecorder | None = None
        self._first_seed: int | None = None
        self._is_begun = False  # has been reset, so its generator is there
        self._has_orders = False  # else it has just been built
        self._waits = False  # the manager resets; the worker leaves a filler in its row
        self._filler: Any = None
        self._is_gone = False  # the env was closed for a new one, which could not be built yet
        self._build()

    @property
    def is_gone(self) -> bool:
        """Whether there is no env until the next reset builds one."""
        return self._is_gone

    def _build(self) -> None:
        env = self._env_fn()
        self._came_seeded = has_generator(env)  # else it gets its first seed here, also if it makes itself at a reset
        self._bind(adapt_and_build(env, needed=self._settings.has_columns))

    def _bind(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self._adapted = _find_adapted(env)
        # Envs of the old dialect may return None where a row needs an observation; others cannot.
        if self._adapted is not None:
            self._adapted.notes_agents = True
            self.step = self._step_old_dialect
        else:
            self.step = env.step if self._settings.has_columns else self._step_untyped

    @property
    def steps_by(self) -> gymnasium.Env[Any, Any] | None:
        """The env whose `step` is this one's as it is, for `core.shortcut`; None if its results are looked at here."""
        return self.env if self._adapted is None and self._settings.has_columns else None

    # ---- what the worker calls -----------------------------------------------------------

    def reset(self, *, orders: Orders | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode by the orders given now or before.

        Raises:
            EnvError: an automatic reset failed; `op` is 'reset'.
        """
        if self._is_gone:
            self._build_successor()
        if not self._has_orders and (orders is None or not orders.is_whole):
            return self._fill(), {}  # built anew, as its episode is lost: the manager hears of that, and says all again
        if orders is not None:
            self._obey(orders)
        elif self._settings.autoresets:
            return self._reset_by_itself()
        return self._begin_episode()

    def _reset_by_itself(self) -> tuple[Any, dict[str, Any]]:
        if self._waits:
            return self._fill(), {}
        if self._episodes_left is not None:
            self._episodes_left -= 1
            if self._episodes_left <= 0:
                return self._fill(), {}  # all episodes had: nobody looks at this observation
        try:
            return self._begin_episode()
        except Exception as error:
            # The step that ended the episode succeeded; whoever reads this must not take it for the culprit.
            name = type(error).__name__
            raise EnvError(
                f"automatic reset of env {self._env_id} raised {name}: {error}",
                exception_type=name,
                env_ids=(self._env_id,),
                op="reset",
            ) from error

    def _begin_episode(self) -> tuple[Any, dict[str, Any]]:
        with self._seeds.for_reset() as seed:
            return self._reset_env(seed)

    def _reset_env(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        params = dict(self._params)
        first_seed = None if self._is_begun or self._came_seeded else self._first_seed
        if self._adapted is None:
            if seed is None:
                seed = first_seed
            if seed is not None:
                params.setdefault("seed", seed)
        elif seed is None and first_seed is not None and "seed" not in params:
            self._adapted.offer_seed(first_seed)
        result: tuple[Any, dict[str, Any]] = self.env.reset(**params)
        self._is_begun = True
        return result

    def leave_resets(self) -> None:
        """Leave it to the manager to begin episodes, from now on."""
        self._waits = True

    def close(self) -> None:
        """Close the env."""
        if not self._is_gone:
            self.env.close()

    # ---- orders --------------------------------------------------------------------------

    def _obey(self, orders: Orders) -> None:
        self._has_orders = True
        self._params = orders.params
        self._episodes_left = orders.episodes_left
        if orders.first_seed is not None:
            self._first_seed = orders.first_seed
        if orders.replay_path is not None and orders.replay_path != self._replay_path:
            self._replay_token = orders.replay_token
            self._record_to(orders.replay_path)
        if orders.seed is not None:
            self._start_seeds(orders.seed)

    def _start_seeds(self, seed: tuple[int, bool | None]) -> None:
        self._seed = seed
        number, dynamic = seed
        self._seeds.seed(number, dynamic is not False)
        if self._adapted is not None:
            self._adapted.seed(number, dynamic)

    def _record_to(self, folder: str) -> None:
        """Begin to record there; where that fails nothing is said to be recorded, and the next orders try again."""
        number = self._num_recorders + 1  # each counts its episodes from 0
        token = f"{self._replay_token}-{number}"
        if not enable_env_recording(self.env, folder, token):
            self._put_recorder(folder, token)
        self._replay_path, self._num_recorders = folder, number

    def _put_recorder(self, folder: str, token: str) -> None:
        recorder = self._recorder
        if recorder is not None and recorder is self.env:  # of another folder, until now
            if recorder.recording:
                recorder.stop_recording()
            self._bind(recorder.env)
            self._replay_path = None
        try:
            self._recorder = EpisodeRecorder(self.env, folder, unique_name(self.env, token))
            self._bind(self._recorder)
        except ConfigError as error:
            raise ConfigError(f"env {self._env_id}: {error}", key=error.key) from error

    def renew(self) -> None:
        """Replace the env by a new one that goes on with the same orders, seeds included.

        Raises:
            Exception: what the constructor raised; the old env is gone then, and the next reset builds the new one.
        """
        if not self._is_gone:
            self._leave()
        self._build_successor()

    def _leave(self) -> None:
        """Close the env, whatever that raises: it is given up."""
        self._is_gone = True
        with contextlib.suppress(Exception):
            self.env.close()

    def _build_successor(self) -> None:
        self._build()
        self._is_gone = False
        self._is_begun = False
        episode = self._seeds.episode
        try:
            if self._replay_path is not None:
                self._record_to(self._replay_path)
            if self._seed is not None:
                number, dynamic = self._seed
                # A sequence that starts at 0 again would repeat episodes; one from a derived seed does not.
                self._start_seeds((episode_seed(number, episode, dynamic is not False), dynamic))
        except Exception:
            self._leave()
            raise
        if self._first_seed is not None:  # with the same seed the same episode would come again
            self._first_seed = episode_seed(self._first_seed, episode)

    # ---- state between episodes -----------------------------------------------------------

    def get_books(self) -> dict[str, Any]:
        """Return what stands here beside the env's own state."""
        books = {name: getattr(self, name) for name in _BOOKS}
        return {**books, "_seeds": self._seeds.get_state(), "_replay_path": self._replay_path}

    def set_books(self, books: dict[str, Any]) -> None:
        """Go on from what `get_books` returned, with a recorder around the env if there was one."""
        for name in _BOOKS:
            setattr(self, name, books[name])
        self._seeds.set_state(books["_seeds"])
        if self._is_gone:
            self._replay_path = books["_replay_path"]
            self._leave()
        elif books["_replay_path"] is not None:
            self._num_recorders -= 1  # the same one again
            self._record_to(books["_replay_path"])

    # ---- what no row holds ----------------------------------------------------------------

    def _step_untyped(self, action: Any) -> Any:
        return move_reward_to_info(self.env.step(action))

    def _step_old_dialect(self, action: Any) -> Any:
        result = self.env.step(action)
        if result[4].get("abnormal", False):
            obs, reward, terminated, truncated, info = result
            ends = self._settings.abnormal_ends
            shape = getattr(self.reward_space, "shape", None)
            if reward is not None and self._settings.has_columns:
                reward = np.asarray(reward, np.float32)
                reward = reward.reshape(1) if reward.shape == () and shape != () else reward
            info = {**info, ABNORMAL: (obs, reward, terminated, truncated)}
            return self._fill(), np.zeros(shape or ()), terminated and ends, truncated and ends, info
        return result if self._settings.has_columns else move_reward_to_info(result)

    def _fill(self) -> Any:
        """Give any observation that fits the space, for rows that need one."""
        if self._filler is None:
            # A copy, because sampling moves the generator of a space; seeded, so that a rebuilt env fills alike.
            space = copy.deepcopy(self._find("observation_space"))
            if space is not None:
                space.seed(0)
                self._filler = space.sample()
        return self._filler

    # ---- what a pool reads ----------------------------------------------------------------

    @property
    def observation_space(self) -> Any:
        """The env's own, or what stands for it where observations have no layout."""
        return (
            self.env.observation_space if self._settings.has_columns else ObjectSpace(self._find("observation_space"))
        )

    @property
    def action_space(self) -> Any:
        """The env's own, or what stands for it where actions have no layout because it has none."""
        if self._settings.has_columns:
            return self.env.action_space
        space = self._find("action_space")
        return ObjectSpace(None) if space is None else space

    def _find(self, name: str) -> Any:
        return getattr(self.env, name, None)

    @property
    def reward_space(self) -> Any:
        """What the env or a layer of it declares, or None; or what stands for it, as for observations."""
        space = reward_space_of(self.env)
        return space if space is None or self._settings.has_columns else ObjectSpace(space)

    @property
    def metadata(self) -> Any:
        """The env's own."""
        return self.env.metadata

    @property
    def spec(self) -> Any:
        """The env's own."""
        return self.env.spec

    @property
    def render_mode(self) -> Any:
        """The env's own."""
        return self.env.render_mode


def _find_adapted(env: Any) -> AdaptedEnv | None:
    """Give the layer that translates the old dialect, under a recorder if there is one."""
    while env is not None:
        if isinstance(env, AdaptedEnv):
            return env
        env = get_own_attr(env, "env")
    return None
