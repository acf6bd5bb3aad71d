"""EnvManager: the calls and properties that all managers share, over the parts that hold their state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gymnasium import Space

from ..config import Config, deep_merge_dicts
from ..envs.adapt import original
from ..envs.remote import CallEnvMethod, Render, ShapeRewards
from ..errors import ConfigError, StateError
from .env_spaces import ReferenceSpaces
from .episode_counts import EpisodeCounts
from .states import EnvState

__all__ = ["EnvManager", "env_property"]


if TYPE_CHECKING:
    env_property = property
else:

    def env_property(getter: Callable[[Any], Any]) -> property:
        """Make a property of a manager that raises AttributeErrors of envs.

        Python takes such an error for a missing attribute, and calls `__getattr__`, which raises it again.
        """

        def read(manager: Any) -> Any:
            try:
                return getter(manager)
            except AttributeError as error:
                manager.__dict__["_raised"] = error
                raise

        return property(read, doc=getter.__doc__)


class EnvManager:
    """Base of all managers.

    `manager.x`, for a name that the manager lacks, is the list of that attribute of all envs, in the order of
    their ids.

    Args:
        counts: states of the envs, and counts of their episodes.
        spaces: spaces of one env, and the reference env.
    """

    config: ClassVar[dict[str, Any]]

    # DI-engine's managers have these attributes, and tests written for them read them.
    _closed = property(lambda self: self._counts.closed)
    _env_states = property(lambda self: self._counts.states)
    _env_episode_count = property(lambda self: self._counts.counts)

    def __init__(self, counts: EpisodeCounts, spaces: ReferenceSpaces) -> None:
        self._counts = counts
        self._spaces = spaces

    @classmethod
    def default_config(cls) -> Config:
        """Return a copy of the class's config, with `cfg_type`, the name of the class."""
        config = deep_merge_dicts(cls.config, None)
        config["cfg_type"] = f"{cls.__name__}Dict"
        return config

    # ---- states and counts -----------------------------------------------------------------

    @property
    def env_num(self) -> int:
        """Number of envs."""
        return len(self._counts.all_ids)

    @property
    def closed(self) -> bool:
        """Whether there are no envs to step: before launch (`gym_vector`: before reset) and after close."""
        return self._counts.closed

    @property
    def done(self) -> bool:
        """Whether every env has ended its `episode_num` episodes."""
        return all(state is EnvState.DONE for state in self._counts.states.values())

    @property
    def env_states(self) -> dict[int, EnvState]:
        """State of each env, {env_id: state}; a copy."""
        return dict(self._counts.states)

    @property
    def env_episode_count(self) -> dict[int, int]:
        """Number of episodes that each env has ended since launch (`gym_vector`: since reset), {env_id: count}."""
        return dict(self._counts.counts)

    def env_state_done(self, env_id: int) -> bool:
        """Return whether this env has ended its `episode_num` episodes."""
        return self._counts.states[env_id] is EnvState.DONE

    @property
    def ready_obs_id(self) -> list[int]:
        """Ids of the envs that can be stepped, ascending."""
        return self._counts.running_ids()

    # ---- spaces ----------------------------------------------------------------------------

    @env_property
    def env_ref(self) -> Any:
        """The reference env: an env in this process that the first `env_fn` builds and that is never stepped.

        It is built when it is first read, and closed with the manager. The global random generators are left as
        they were.
        """
        return original(self._spaces.reference())

    _env_ref = env_ref  # DI-engine's name

    @env_property
    def observation_space(self) -> Space[Any]:
        """Observation space of one env. Before the first launch the reference env is built to read it.

        With shared_memory=False an env may lack spaces; then this and `action_space` are None.
        """
        return self._spaces.get()[0]

    @env_property
    def action_space(self) -> Space[Any]:
        """Action space of one env: a copy that the manager owns, seeded with the first seed of `seed`."""
        return self._spaces.get()[1]

    @env_property
    def reward_space(self) -> Space[Any]:
        """Reward space of one env; unbounded float32 (1,) if the env declares none."""
        return self._spaces.get()[2]

    def random_action(self) -> dict[int, Any]:
        """Sample an action for each env that can be stepped: {env_id: action}.

        Raises:
            StateError: the envs have no action space.
        """
        action_space = self.action_space
        if action_space is None:
            raise StateError(f"random_action: the envs of {type(self).__name__} declare no action_space")
        return {env_id: action_space.sample() for env_id in self.ready_obs_id}

    # ---- attributes and methods of envs ----------------------------------------------------

    @property
    def method_name_list(self) -> list[str]:
        """Names of the env methods that can be called through the manager."""
        return [
            *("reset", "step", "seed", "close", "enable_save_replay", "render", "reward_shaping"),
            "enable_save_figure",
        ]

    def _read_attribute(self, name: str) -> Any:
        """Return the list of an attribute of all envs, or a function that calls a method of all envs."""
        raise NotImplementedError

    def _call_envs(self, function: Callable[[Any], Any], what: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Call a function with the `EnvDriver` of each of these envs, or of all; return the results in their order.

        Raises:
            ClosedError: the manager has not been launched, or is closed. The message begins with `what`.
            WorkerTimeoutError, WorkerDiedError: a worker failed; a manager with workers is closed then.
            Exception: raised by the function, for the env with the lowest id.
        """
        raise NotImplementedError

    def _render_envs(self, mode: str, env_ids: Sequence[int]) -> list[Any]:
        """Return a frame of each of these envs."""
        return self._call_envs(Render(mode), "render", env_ids)

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling read names before `__init__` has run.
        if (name.startswith("__") and name.endswith("__")) or "_spaces" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raised = self.__dict__.pop("_raised", None)
        if raised is not None:
            raise raised
        return self._read_attribute(name)

    @env_property
    def ready_imgs(self) -> dict[int, Any]:
        """Frames of the envs that can be stepped, {env_id: uint8 (H, W, 3)}.

        Raises:
            StateError, ClosedError: as `render`.
        """
        return self.render("rgb_array")

    def render(self, mode: str = "rgb_array", env_ids: Sequence[int] | None = None) -> dict[int, Any]:
        """Render envs where they live, after the steps that they have begun.

        Args:
            mode: the render mode; a Gymnasium env must have been made with it.
            env_ids: envs to render; None for all that can be stepped.

        Returns:
            {env_id: frame}; a frame is uint8 (H, W, 3) in mode 'rgb_array'.

        Raises:
            StateError: an env renders in another mode.
            ClosedError: the manager has not been launched, or is closed.
        """
        ids = self.ready_obs_id if env_ids is None else list(env_ids)
        return dict(zip(ids, self._render_envs(mode, ids)))

    def enable_save_figure(self, env_id: int, figure_path: str) -> None:
        """Set the folder that one env saves figures in.

        Raises:
            ConfigError: `figure_path` is None.
            AttributeError: the env has no method `enable_save_figure`.
            ClosedError: the manager has not been launched, or is closed.
        """
        if figure_path is None:
            raise ConfigError("enable_save_figure: figure_path is None; name a folder", key="figure_path")
        self._call_envs(CallEnvMethod("enable_save_figure", (figure_path,)), "enable_save_figure", [env_id])

    def reward_shaping(self, env_id: int, transitions: list[Any]) -> Any:
        """Call one env's `reward_shaping` with the transitions of an episode.

        An env may edit the list: in this process it gets the caller's list itself. In a worker it gets a copy, and
        then the contents of the caller's list are replaced by the list that the env returned or, if it returned
        None, by its edited copy. A list of another length is not written back.

        Returns:
            The result of the env's method.

        Raises:
            AttributeError: the env has no method `reward_shaping`.
            ClosedError: the manager has not been launched, or is closed.
        """
        call = ShapeRewards("reward_shaping", (transitions,))
        result, edited = self._call_envs(call, "reward_shaping", [env_id])[0]
        if edited is not transitions and isinstance(transitions, list):
            shaped = edited if result is None else result
            if isinstance(shaped, list) and len(shaped) == len(transitions):
                transitions[:] = shaped
        return result
