"""Tables of known env and wrapper classes, with the state that each keeps from one episode to the next.

The tables contain only names of classes and attributes, so the classes are not imported. `envs.state` reads them. The
lifetime of state is one of three values:

    EPISODE   every reset initialises it; it matters only if a game continues after a reset
    SEED      a reset with a seed initialises it, a reset without a seed continues from it
    LIFE      a reset never changes it
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from vecenv.envs.adapt import inner_env
from vecenv.envs.state.effects import is_plain
from vecenv.errors import StateError
from vecenv.values.class_cache import class_cache
from vecenv.values.own_attributes import attributes_of, read_attributes, set_own_attr

EPISODE, SEED, LIFE = "episode", "seed", "life"


@dataclass(frozen=True)
class StateAdapter:
    """The functions that capture and restore the state of one class, and the extent of that state.

    Attributes:
        capture: returns the layer's own state, picklable; None if its only state is random generators.
        restore: puts such a state into a new layer of the class.
        lifetime: EPISODE, SEED or LIFE, or a function of the layer that returns one of them.
        is_whole: True: the state is complete also during an episode; False: only between two episodes.
        holds_inner: True: the state includes the state of all layers inside.
        with_subclasses: True: subclasses in the packages of `TRUSTED` have no further state.
        find_gap: returns the reason why a certain object is not covered, or None if it is.
        only_between_episodes: True: snapshots are taken between two episodes only. False: the layer contains several
            envs, some of which are always within an episode.
    """

    capture: Callable[[Any], Any] | None = None
    restore: Callable[[Any, Any], None] | None = None
    lifetime: str | Callable[[Any], str] = EPISODE
    is_whole: bool = True
    holds_inner: bool = False
    with_subclasses: bool = False
    find_gap: Callable[[Any], str | None] | None = None
    only_between_episodes: bool = True


TRUSTED = frozenset({"gymnasium", "ale_py", "vecenv"})  # packages whose classes were checked for these tables


def attributes(*names: str, lifetime: str, **more: Any) -> StateAdapter:
    """Return the adapter of a class whose state is these attributes; attributes that a layer lacks are left out."""

    def capture(layer: Any) -> dict[str, Any]:
        return read_attributes(layer, names)

    def restore(layer: Any, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(layer, name, value)

    return StateAdapter(capture, restore, lifetime, **more)


def _capture_form(env: Any) -> Any:
    return env.reset_form  # the first step shows the form of steps


def _restore_form(env: Any, form: Any) -> None:
    env.reset_form = form


def _capture_ale(env: Any) -> Any:
    return env.ale.cloneSystemState()  # includes the generator, unlike cloneState


def _restore_ale(env: Any, state: Any) -> None:
    env.ale.restoreSystemState(state)


def _capture_mujoco(env: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    import mujoco  # the env has imported it

    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(env.model, spec))
    mujoco.mj_getState(env.model, env.data, state, spec)
    # Positions of bodies, which rewards depend on, are those from before the last integration.
    cls: Any = type(env.data)
    derived = {name: getattr(env.data, name) for name in _names_of_arrays(cls)}
    arrays = {name: value.copy() for name, value in derived.items() if isinstance(value, np.ndarray)}
    return state, arrays, {name: value for name, value in attributes_of(env).items() if is_plain(value)}


def _restore_mujoco(env: Any, captured: tuple[Any, dict[str, Any], dict[str, Any]]) -> None:
    import mujoco

    state, arrays, plain = captured
    mujoco.mj_setState(env.model, env.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    for name, value in arrays.items():
        mine = getattr(env.data, name)
        if mine.shape == value.shape:  # else it belongs to contacts, which each step finds again
            mine[...] = value
    for name, value in plain.items():
        set_own_attr(env, name, value)


@class_cache
def _names_of_arrays(cls: Any) -> tuple[str, ...]:
    return tuple([name for name, member in vars(cls).items() if isinstance(member, property) and name[0] != "_"])


def _find_sticky_action(env: Any) -> str | None:
    # The emulator's state includes its generator but not the action that it may repeat. That is the last action
    # that was not a repetition; it is kept over resets, and ALE has no function to read or set it.
    if env.ale.getFloat("repeat_action_probability") > 0:
        return "ALE's state does not include the action that it may repeat next (repeat_action_probability)"
    return None


def _capture_map(env: Any) -> list[list[bytes]]:
    cells: list[list[bytes]] = env.desc.tolist()
    return cells


def _check_map(env: Any, cells: list[list[bytes]]) -> None:
    if env.desc.tolist() != cells:
        raise StateError("FrozenLakeEnv: the new env has another map; name one by map_name or desc")


def _find_lost_frames(layer: Any) -> str | None:
    frames = len(layer.recorded_frames) if layer.recording else 0
    return f"{frames} frames of a video that are not written yet would be lost" if frames > 1 else None


_RECORDING = ("recording", "recorded_frames", "_video_name")


def _recorder(*names: str, **more: Any) -> StateAdapter:
    """Return the adapter of a class that records videos: these attributes, and a recording of up to one frame."""
    adapter = attributes(*names, *_RECORDING, lifetime=LIFE, find_gap=_find_lost_frames, **more)

    def capture(layer: Any) -> dict[str, Any]:
        kept = names if _find_lost_frames(layer) else (*names, *_RECORDING)
        return {name: getattr(layer, name) for name in kept}

    return replace(adapter, capture=capture)


def _find_unread_frames(layer: Any) -> str | None:
    unread = 0 if layer.reset_clean else len(layer.frame_list)
    return f"{unread} collected frames that are not read yet would be lost" if unread else None


_IMMUTABLE = (int, float, complex, str, bytes, bool, type(None), np.generic, np.dtype, type, types.ModuleType)


def _find_hidden_state(layer: Any) -> str | None:
    """Return the reason if the function of a Transform wrapper may have state of its own, else None."""
    return None if _is_pure(layer.func) else "its function may hold state of its own"


def _is_pure(value: Any, depth: int = 0) -> bool:
    if isinstance(value, types.FunctionType) and depth < 4:
        if _stores_outside(value.__code__, value.__code__.co_freevars):
            return False
        captured = [cell.cell_contents for cell in value.__closure__ or ()]
        captured += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return all(_is_pure(part, depth + 1) for part in captured)
    if isinstance(value, (tuple, frozenset)):
        return all(_is_pure(part, depth) for part in value)
    return isinstance(value, (*_IMMUTABLE, types.BuiltinFunctionType, np.ufunc))


@class_cache
def _stores_outside(code: types.CodeType, outer_names: tuple[str, ...]) -> bool:
    """Return whether a function, or one inside it, sets an attribute, a global or one of these outer variables."""
    return any(
        step.opname in ("STORE_ATTR", "STORE_GLOBAL") or (step.opname == "STORE_DEREF" and step.argval in outer_names)
        for step in dis.get_instructions(code)
    ) or any(_stores_outside(part, outer_names) for part in code.co_consts if isinstance(part, types.CodeType))


def _window_lifetime(layer: Any) -> str:
    return EPISODE if layer.window is None else LIFE


# ---- classes registered by `register_pickled_state`: all attributes, with the env in them ------------------------


def _capture_all(layer: Any) -> dict[str, Any]:
    # Not the object's own pickling, because `EzPickle` replaces that by one that keeps only the arguments.
    return dict(vars(layer))


def _restore_all(layer: Any, state: dict[str, Any]) -> None:
    vars(layer).clear()
    vars(layer).update(state)


def _find_rebuilt(layer: Any) -> str | None:
    """Return the reason if pickle would rebuild a layer inside and lose its state, else None."""
    inner = inner_env(layer)
    while inner is not None:
        if isinstance(inner, gymnasium.utils.EzPickle):
            return f"pickle rebuilds the {type(inner).__name__} inside it from its arguments (EzPickle)"
        inner = inner_env(inner)
    return None


#: The most general and most expensive adapter. Only the owner of a class can know whether pickle covers its state.
PICKLED = StateAdapter(_capture_all, _restore_all, LIFE, holds_inner=True, find_gap=_find_rebuilt)

# ---- the tables ---------------------------------------------------------------------------------

_STATELESS = StateAdapter()
_GENERATORS_ONLY = StateAdapter(is_whole=False)  # between two episodes, their only state is generators
_GENERATORS_ONLY_FAMILY = StateAdapter(is_whole=False, with_subclasses=True)
_TRANSFORM = StateAdapter(find_gap=_find_hidden_state)

_WRAPPERS = "gymnasium.wrappers."
_ENVS = "gymnasium.envs."

STATE_ADAPTERS: dict[str, StateAdapter] = {
    **{f"gymnasium.core.{name}": _STATELESS for name in ("Wrapper", "ObservationWrapper", "ActionWrapper")},
    "gymnasium.core.RewardWrapper": _STATELESS,
    # ---- gymnasium.wrappers ----
    _WRAPPERS + "common.TimeLimit": attributes("_elapsed_steps", lifetime=EPISODE),
    _WRAPPERS + "common.Autoreset": attributes("autoreset", lifetime=EPISODE),
    # The checks that it has done already; its warnings depend on them, its data do not.
    _WRAPPERS + "common.PassiveEnvChecker": attributes(
        *("checked_reset", "checked_step", "checked_render", "checked_data_reuse", "_previous_data"), lifetime=EPISODE
    ),
    _WRAPPERS + "common.OrderEnforcing": attributes("_has_reset", lifetime=EPISODE),
    _WRAPPERS + "common.RecordEpisodeStatistics": attributes(
        *("episode_count", "episode_start_time", "episode_returns", "episode_lengths"),
        *("time_queue", "return_queue", "length_queue"),
        lifetime=LIFE,
    ),
    _WRAPPERS + "stateful_observation.DelayObservation": attributes("observation_queue", lifetime=EPISODE),
    _WRAPPERS + "stateful_observation.TimeAwareObservation": attributes("timesteps", lifetime=EPISODE),
    _WRAPPERS + "stateful_observation.FrameStackObservation": attributes(
        "obs_queue", "padding_value", lifetime=EPISODE
    ),
    _WRAPPERS + "stateful_observation.NormalizeObservation": attributes(
        "obs_rms", "_update_running_mean", lifetime=LIFE
    ),
    # If an episode ends within its first few frames, its observation contains frames of the previous episode.
    _WRAPPERS + "stateful_observation.MaxAndSkipObservation": attributes("_obs_buffer", lifetime=LIFE),
    _WRAPPERS + "stateful_reward.NormalizeReward": attributes(
        *("return_rms", "discounted_reward", "_update_running_mean"), lifetime=LIFE
    ),
    _WRAPPERS + "stateful_action.StickyAction": attributes(
        *("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"), lifetime=EPISODE
    ),
    _WRAPPERS + "stateful_action.RepeatAction": _STATELESS,
    _WRAPPERS + "atari_preprocessing.AtariPreprocessing": attributes(
        "obs_buffer", "lives", "game_over", lifetime=EPISODE
    ),
    _WRAPPERS + "transform_observation.TransformObservation": _TRANSFORM,
    **{
        f"{_WRAPPERS}transform_observation.{name}": _STATELESS
        for name in (
            *("AddRenderObservation", "DiscretizeObservation", "DtypeObservation", "FilterObservation"),
            *("FlattenObservation", "GrayscaleObservation", "RescaleObservation", "ReshapeObservation"),
            "ResizeObservation",
        )
    },
    _WRAPPERS + "transform_action.TransformAction": _TRANSFORM,
    **{
        f"{_WRAPPERS}transform_action.{name}": _STATELESS
        for name in ("ClipAction", "DiscretizeAction", "RescaleAction")
    },
    _WRAPPERS + "transform_reward.TransformReward": _TRANSFORM,
    _WRAPPERS + "transform_reward.ClipReward": _STATELESS,
    # Their noise is drawn from the env's generator; a new layer opens a new window.
    **{f"{_WRAPPERS}rendering.{name}": _STATELESS for name in ("AddWhiteNoise", "HumanRendering", "ObstructView")},
    _WRAPPERS + "rendering.RenderCollection": StateAdapter(is_whole=False, find_gap=_find_unread_frames),
    _WRAPPERS + "rendering.RecordVideo": _recorder("step_id", "episode_id"),
    **{
        _WRAPPERS + name: _STATELESS
        for name in (
            *("array_conversion.ArrayConversion", "jax_to_numpy.JaxToNumpy", "jax_to_torch.JaxToTorch"),
            "numpy_to_torch.NumpyToTorch",
        )
    },
    # ---- gymnasium.wrappers.vector, and vector envs ----
    **{
        f"gymnasium.vector.vector_env.Vector{name}": _STATELESS
        for name in ("Wrapper", "ObservationWrapper", "ActionWrapper", "RewardWrapper")
    },
    _WRAPPERS + "vector.common.RecordEpisodeStatistics": attributes(
        *("episode_count", "episode_start_times", "episode_returns", "episode_lengths", "prev_dones"),
        *("time_queue", "return_queue", "length_queue"),
        lifetime=LIFE,
    ),
    _WRAPPERS + "vector.stateful_observation.NormalizeObservation": attributes(
        *("obs_rms", "_update_running_mean"), lifetime=LIFE
    ),
    _WRAPPERS + "vector.stateful_reward.NormalizeReward": attributes(
        *("return_rms", "accumulated_reward", "_prev_dones", "_update_running_mean"), lifetime=LIFE
    ),
    _ENVS + "classic_control.cartpole.CartPoleVectorEnv": attributes(
        *("state", "steps", "prev_done", "steps_beyond_terminated", "low", "high"), lifetime=EPISODE
    ),
    "vecenv.envs.batched.BatchedEnv": attributes("has_begun", lifetime=SEED, only_between_episodes=False),
    # ---- envs ----
    **{
        f"{_ENVS}{name}": _GENERATORS_ONLY
        for name in (
            *("classic_control.acrobot.AcrobotEnv", "classic_control.cartpole.CartPoleEnv"),
            "classic_control.continuous_mountain_car.Continuous_MountainCarEnv",
            *("classic_control.mountain_car.MountainCarEnv", "classic_control.pendulum.PendulumEnv"),
            *("toy_text.blackjack.BlackjackEnv", "toy_text.cliffwalking.CliffWalkingEnv", "toy_text.taxi.TaxiEnv"),
        )
    },
    # Without a map name its constructor draws a random map.
    _ENVS + "toy_text.frozen_lake.FrozenLakeEnv": StateAdapter(_capture_map, _check_map, LIFE, is_whole=False),
    # Every reset calls mj_resetData, which also clears controls, warm starts and time.
    _ENVS + "mujoco.mujoco_env.MujocoEnv": StateAdapter(
        _capture_mujoco, _restore_mujoco, EPISODE, with_subclasses=True
    ),
    # A reset with a seed loads the game again; a reset without a seed continues the emulator's generator.
    "ale_py.env.AtariEnv": StateAdapter(_capture_ale, _restore_ale, SEED, find_gap=_find_sticky_action),
    "vecenv.envs.adapt.AdaptedEnv": StateAdapter(_capture_form, _restore_form, EPISODE),
    "vecenv.envs.video.EpisodeRecorder": _recorder(
        *("step_id", "episode_id", "name_prefix", "video_paths"), with_subclasses=True
    ),
    "vecenv.envs.agents.TwoAgentEnv": _GENERATORS_ONLY,
    "vecenv.envs.agents.HybridEnv": _GENERATORS_ONLY,
    # Bots use the env's generator; their own generator is used only when they are called without an env.
    "vecenv.envs.board.env.BoardEnv": StateAdapter(_capture_all, _restore_all, EPISODE, with_subclasses=True),
    "vecenv.envs.toys.plain.ToyEnv": _GENERATORS_ONLY_FAMILY,
    "vecenv.envs.toys.plain.CountEnv": attributes(
        *("seed_given", "episode"), lifetime=SEED, is_whole=False, with_subclasses=True
    ),
    "vecenv.envs.remote.ShapeOnlyEnv": _STATELESS,
}

#: Lifetime of the state that `get_state` of a vecenv class returns: the first entry of its bases, else LIFE.
HOOK_LIFETIMES: dict[str, str | Callable[[Any], str]] = {
    "vecenv.wrappers.episode.NoopResetWrapper": SEED,
    "vecenv.wrappers.episode.EpisodicLifeWrapper": LIFE,
    "vecenv.wrappers.episode.TimeLimitWrapper": EPISODE,
    "vecenv.wrappers.norm.ObsNormWrapper": _window_lifetime,
    "vecenv.wrappers.norm.RewardNormWrapper": _window_lifetime,
    "vecenv.wrappers.observation.FrameStackWrapper": EPISODE,
    "vecenv.wrappers.observation.ObsPlusPrevActRewWrapper": EPISODE,
    "vecenv.wrappers.reward.DelayRewardWrapper": EPISODE,
    "vecenv.wrappers.reward.EvalEpisodeReturnWrapper": EPISODE,
    "vecenv.alf.batched.adapter._Adapter": EPISODE,
    "vecenv.alf.base.environment.AlfEnvironment": EPISODE,
    "vecenv.alf.wrappers.action.TemporallyCorrelatedNoiseWrapper": LIFE,
    "vecenv.alf.wrappers.batch.SeveralEnvs": LIFE,
    "vecenv.alf.wrappers.episode.RandomFirstEpisodeLength": LIFE,
    "vecenv.alf.wrappers.task.CurriculumWrapper": LIFE,
}

#: Classes of the packages in `TRUSTED` whose state is not covered, with the reason.
UNCOVERED: dict[str, str] = {
    _ENVS + "box2d.bipedal_walker.BipedalWalker": "its physics world is kept over resets, inside Box2D",
    _ENVS + "box2d.car_racing.CarRacing": "its physics world is kept over resets, inside Box2D",
    _ENVS + "box2d.lunar_lander.LunarLander": "not verified",
    _ENVS + "functional_jax_env.FunctionalJaxEnv": "holds a JAX key",
}
