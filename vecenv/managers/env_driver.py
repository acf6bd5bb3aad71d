"""The env driver: stands beside an env in its worker and applies seeds, reset parameters and recordings to it.

    manager -> ResetRequest (payload of a reset) -> EnvDriver -> adapted env -> env

So an autoreset in the worker gives the same episode as a reset that the manager sends. Plain steps do not pass
through the driver: the worker calls the env's own `step`.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ..core.host.global_rngs import reseed_running_env
from ..envs.adapt import AdaptedEnv, adapt_and_build, reward_space_of
from ..envs.seeding import EpisodeSeeds, episode_seed
from ..envs.spaces import ObjectSpace
from ..envs.state.state import SNAPSHOTTER, Snapshot
from ..envs.video import EpisodeRecorder, enable_env_recording, unique_name
from ..errors import ConfigError, EnvError, locate
from ..gymnasium_api.first_seeds import seed_generators
from ..values.own_attributes import get_own_attr
from ..values.pickling import dump_by_value, load
from .env_spaces import SPACES_REMEDY
from .side_values import ABNORMAL, move_reward_to_info

__all__ = [
    "DriverSettings",
    "DriverSnapshotter",
    "EnvDriver",
    "ResetRequest",
    "request_for_spare",
]


@dataclass(frozen=True)
class DriverSettings:
    """Settings of an env driver that do not change.

    Attributes:
        autoreset: a reset without a request is an autoreset of the worker.
        abnormal_ends: an abnormal timestep may end an episode; else it never does.
        has_columns: observations and rewards fit their spaces; else they travel as objects, the env may lack spaces,
            and without an action space actions travel as objects too.
    """

    autoreset: bool
    abnormal_ends: bool
    has_columns: bool = True


class ResetRequest(NamedTuple):
    """A manager's request of a reset; most of it also applies to later autoresets.

    Attributes:
        params: keyword arguments of the env's reset.
        seed: (seed, dynamic_seed) that begins a new sequence of seeds; None to continue the present one.
        episodes_left: number of episodes after which the worker makes no more autoresets; None: no limit.
        replay_path: folder for videos; None for no change.
        replay_token: part of the names of the videos; it stays the same if the env moves to another worker.
        is_complete: the request is sufficient for an env that is new.
        episode: index of the episode in its sequence of seeds; None: the one after the last episode of this driver.
        stride: the distance to the index of the driver's next episode. With k spare envs it is k + 1.
        spare: position of the driver among those of its env, 0 for the one that begins.
        seeds_generators: the states of the global random generators begin from the seed, too. Those of an env that was
            built again do not: its sequence of seeds may be the same as before.
    """

    params: dict[str, Any]
    seed: tuple[int, bool | None] | None = None
    episodes_left: float | None = None
    replay_path: str | None = None
    replay_token: str = ""
    is_complete: bool = True
    episode: int | None = None
    stride: int = 1
    spare: int = 0
    seeds_generators: bool = True


def request_for_spare(kwargs: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the arguments of the reset of spare env 1, 2, ... of an env, for `SpareRule`.

    `kwargs` are those of the env's reset. Spare env k gets the episode that comes k episodes later.
    """
    request: ResetRequest = kwargs["request"]
    assert request.episode is not None, "with spare envs each request has an episode"
    return {"request": request._replace(episode=request.episode + number, spare=number)}


#: Attributes of a driver that last longer than an episode.
_STATE_NAMES = (
    *("_params", "_seed", "_episodes_left", "_first_seed", "_is_autoreset_disabled", "_replay_token"),
    *("_num_recorders", "_is_gone", "_has_request", "_spare"),
)


class DriverSnapshotter:
    """`core.host.replay.Snapshotter` of env drivers: their own state, and that of their envs."""

    def spans_episodes(self, driver: EnvDriver) -> bool:
        """Return True: a seeded reset does not replace the whole state, since requests apply to later resets too."""
        return True

    def capture(self, driver: EnvDriver, *, within_episode: bool = False) -> Snapshot | None:
        if driver.is_gone:  # the driver's own state is all that there is
            return Snapshot(dump_by_value((driver.get_state(), None)), True)
        inner = SNAPSHOTTER.capture(driver.env, within_episode=within_episode)
        if inner is None:
            return None
        return Snapshot(dump_by_value((driver.get_state(), inner.state)), inner.is_complete, inner.holds_calls)

    def is_built_alike(self, driver: EnvDriver) -> bool:
        return driver.is_gone or SNAPSHOTTER.is_built_alike(driver.env)

    def restore(self, driver: EnvDriver, state: bytes) -> None:
        own, inner = load(state)
        driver.set_state(own)
        if inner is not None:
            SNAPSHOTTER.restore(driver.env, inner)

    def watch(self, driver: EnvDriver, *, is_deep: bool) -> Any:
        return SNAPSHOTTER.watch(driver.env, is_deep=is_deep)

    def changes(self, driver: EnvDriver, watch: Any) -> dict[tuple[int, str], bytes] | None:
        return SNAPSHOTTER.changes(driver.env, watch)

    def set_attributes(self, driver: EnvDriver, changes: dict[tuple[int, str], bytes]) -> None:
        SNAPSHOTTER.set_attributes(driver.env, changes)


class EnvDriver:
    """An env with Gymnasium's calls that applies its manager's requests.

    Attributes:
        built: the result of `env_fn`.
        env: the env with Gymnasium's calls, from `envs.adapt`.
    """

    def __init__(self, env_fn: Callable[[], Any], env_id: int, settings: DriverSettings) -> None:
        self._env_fn = env_fn
        self._env_id = env_id
        self._settings = settings
        self._params: dict[str, Any] = {}
        self._seed: tuple[int, bool | None] | None = None
        self._seeds = EpisodeSeeds()  # for envs that cannot follow a sequence of seeds themselves
        self._spare = 0  # position of the driver among those of its env
        self._episodes_left: float | None = None
        self._replay_path: str | None = None
        self._replay_token = ""
        self._num_recorders = 0
        self._recorder: EpisodeRecorder | None = None
        self._first_seed: int | None = None  # drawn, for the generator of the env
        self._has_request = False  # else the driver is new
        self._is_autoreset_disabled = False  # the manager sends all resets; autoresets return a placeholder
        self._placeholder_obs: Any = None
        self._is_gone = False  # the env was closed, and the next reset builds a new one
        self._build()

    @property
    def is_gone(self) -> bool:
        """Whether there is no env until the next reset builds one."""
        return self._is_gone

    @property
    def unwrapped(self) -> Any:
        """The innermost env, by which the engine finds envs that were given twice."""
        return getattr(self.built, "unwrapped", self.built)

    def _build(self) -> None:
        env = self.built = self._env_fn()
        self._bind(adapt_and_build(env, needed=self._settings.has_columns, remedy=SPACES_REMEDY))

    def _bind(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self._adapted = _find_adapted(env)
        # An env with an older interface may return None for an observation; others may not.
        if self._adapted is not None:
            self._adapted.notes_agents = True

    @property
    def steps_by(self) -> gymnasium.Env[Any, Any] | None:
        """The env that has the same `step`, for `core.host.shortcut`; None if the driver changes results of steps."""
        return self.env if self._adapted is None and self._settings.has_columns else None

    # ---- calls of the worker -------------------------------------------------------------

    def reset(self, *, request: ResetRequest | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Args:
            request: the manager's request; None for an autoreset, which uses the last one.

        Returns:
            (obs, info) of the env's reset. The observation is a placeholder where no episode begins: the env is new
            and needs a complete request, has no episodes left, or autoresets are disabled.

        Raises:
            EnvError: an autoreset failed; `op` is 'reset'.
            Exception: raised by the env in a requested reset.
        """
        if self._is_gone:
            self._build_successor()
        if not self._has_request and (request is None or not request.is_complete):
            return self._placeholder(), {}  # the manager notices that the env is new, and sends a complete request
        if request is not None:
            self._apply(request)
        elif self._settings.autoreset:
            return self._autoreset()
        return self._begin_episode()

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if self._adapted is not None and result[4].get("abnormal", False):
            return self._move_to_info(*result)
        return result if self._settings.has_columns else move_reward_to_info(result)

    def measured_reset(self) -> tuple[Any, dict[str, Any]]:
        """Begin an episode without a manager, for `core.processes.measure`."""
        return self.reset(request=ResetRequest({}))

    def _autoreset(self) -> tuple[Any, dict[str, Any]]:
        if self._is_autoreset_disabled:
            return self._placeholder(), {}
        if self._episodes_left is not None:
            self._episodes_left -= 1
            if self._episodes_left <= 0:
                return self._placeholder(), {}
        try:
            return self._begin_episode()
        except Exception as error:
            # The step that ended the episode has succeeded; the error must not be taken for one of the step.
            name = type(error).__name__
            failure = EnvError(f"automatic reset of env {self._env_id} raised {name}: {error}", exception_type=name)
            raise locate(failure, env_ids=(self._env_id,), op="reset") from error

    def _begin_episode(self) -> tuple[Any, dict[str, Any]]:
        params = dict(self._params)
        with self._seeds.for_reset() as seed:
            if self._adapted is None and seed is not None:
                params.setdefault("seed", seed)
            result: tuple[Any, dict[str, Any]] = self.env.reset(**params)
            return result

    def generator_owners(self, first: int) -> list[Any]:
        """Keep the drawn seed for successors of the env, and return the env with the generator; see `first_seeds`."""
        self._first_seed = first
        return [] if self._is_gone else [self.env if self._adapted is None else self._adapted]

    def disable_autoreset(self) -> None:
        """Leave all later resets to the manager."""
        self._is_autoreset_disabled = True

    def close(self) -> None:
        if not self._is_gone:
            self.env.close()

    # ---- requests ------------------------------------------------------------------------

    def _apply(self, request: ResetRequest) -> None:
        self._has_request = True
        self._params = request.params
        self._episodes_left = request.episodes_left
        if request.replay_path is not None and request.replay_path != self._replay_path:
            self._replay_token = request.replay_token
            self._record_to(request.replay_path)
        self._spare = request.spare
        if request.seed is not None:
            if request.seeds_generators:
                reseed_running_env(request.seed[0], request.spare)
            self._start_seeds(request.seed)
        if request.episode is not None:
            self._seeds.go_to(request.episode, request.stride)

    def _start_seeds(self, seed: tuple[int, bool | None]) -> None:
        self._seed = seed
        number, dynamic = seed
        self._seeds.seed(number, dynamic is not False)
        if self._adapted is not None:  # it makes the seeds of episodes itself, and must not repeat those of others
            self._adapted.seed(
                episode_seed(number, self._spare, dynamic is not False) if self._spare else number, dynamic
            )

    def _record_to(self, folder: str) -> None:
        """Record videos to a folder; if that fails, the next request tries again."""
        number = self._num_recorders + 1  # each recorder counts its episodes from 0
        token = f"{self._replay_token}-{number}"
        if not enable_env_recording(self.env, folder, token):
            self._put_recorder(folder, token)
        self._replay_path, self._num_recorders = folder, number

    def _put_recorder(self, folder: str, token: str) -> None:
        recorder = self._recorder
        if recorder is not None and recorder is self.env:  # it records to another folder
            if recorder.recording:
                recorder.stop_recording()
            self._bind(recorder.env)
            self._replay_path = None
        try:
            self._recorder = EpisodeRecorder(self.env, folder, unique_name(self.env, token))
            self._bind(self._recorder)
        except ConfigError as error:
            raise ConfigError(f"env {self._env_id}: {error}", key=error.key) from error

    def rebuild(self) -> None:
        """Replace the env by a new one that continues with the same request and sequence of seeds.

        Raises:
            Exception: raised by the constructor. The old env is closed, and the next reset tries again.
        """
        if not self._is_gone:
            self._discard()
        self._build_successor()

    def _discard(self) -> None:
        """Close the env, and ignore exceptions of its `close`."""
        self._is_gone = True
        with contextlib.suppress(Exception):
            self.env.close()

    def _build_successor(self) -> None:
        self._build()
        self._is_gone = False
        episode = self._seeds.episode
        try:
            if self._replay_path is not None:
                self._record_to(self._replay_path)
            if self._seed is not None:
                number, dynamic = self._seed
                # A sequence that starts at 0 again would repeat episodes. One with a derived seed does not.
                self._start_seeds((episode_seed(number, episode, dynamic is not False), dynamic))
            if self._first_seed is not None:  # the same seed would give the same episode again
                seed_generators(self, episode_seed(self._first_seed, episode))
        except Exception:
            self._discard()
            raise

    # ---- state between episodes -----------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the driver's state, without that of the env."""
        state = {name: getattr(self, name) for name in _STATE_NAMES}
        return {**state, "_seeds": self._seeds.get_state(), "_replay_path": self._replay_path}

    def set_state(self, state: dict[str, Any]) -> None:
        """Set a state that `get_state` returned; put a recorder around the env if there was one."""
        for name in _STATE_NAMES:
            setattr(self, name, state[name])
        self._seeds.set_state(state["_seeds"])
        if self._is_gone:
            self._replay_path = state["_replay_path"]
            self._discard()
        elif state["_replay_path"] is not None:
            self._num_recorders -= 1  # `_record_to` counts the same recorder again
            self._record_to(state["_replay_path"])

    # ---- side values ----------------------------------------------------------------------

    def _move_to_info(self, obs: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]) -> Any:
        """Return an abnormal timestep with its values in the info."""
        ends = self._settings.abnormal_ends
        shape = getattr(self.reward_space, "shape", None)
        if reward is not None and self._settings.has_columns:
            reward = np.asarray(reward, np.float32)
            reward = reward.reshape(1) if reward.shape == () and shape != () else reward
        info = {**info, ABNORMAL: (obs, reward, terminated, truncated)}
        return self._placeholder(), np.zeros(shape or ()), terminated and ends, truncated and ends, info

    def _placeholder(self) -> Any:
        """Return a placeholder: an observation that fits the space, for rows that need one."""
        if self._placeholder_obs is None:
            # A copy, since sampling changes a space's generator; seeded, so that a new env has the same placeholder.
            space = copy.deepcopy(getattr(self.env, "observation_space", None))
            if space is not None:
                space.seed(0)
                self._placeholder_obs = space.sample()
        return self._placeholder_obs

    # ---- attributes that a pool reads -----------------------------------------------------

    metadata = property(operator.attrgetter("env.metadata"))
    spec = property(operator.attrgetter("env.spec"))
    render_mode = property(operator.attrgetter("env.render_mode"))

    @property
    def observation_space(self) -> Any:
        """The env's observation space; an untyped space where observations have no layout."""
        if self._settings.has_columns:
            return self.env.observation_space
        return ObjectSpace(getattr(self.env, "observation_space", None))

    @property
    def action_space(self) -> Any:
        """The env's action space; an untyped space if it has none and needs none."""
        if self._settings.has_columns:
            return self.env.action_space
        space = getattr(self.env, "action_space", None)
        return ObjectSpace(None) if space is None else space

    @property
    def reward_space(self) -> Any:
        """The reward space that the env or a wrapper declares, or None; untyped where rewards have no layout."""
        space = reward_space_of(self.env)
        return space if space is None or self._settings.has_columns else ObjectSpace(space)


def _find_adapted(env: Any) -> AdaptedEnv | None:
    """Return the adapter of an env with an older interface; it may be inside a recorder."""
    while env is not None:
        if isinstance(env, AdaptedEnv):
            return env
        env = get_own_attr(env, "env")
    return None
