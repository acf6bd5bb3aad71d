"""Checks of the vector envs' arguments, and their conversion to the engine's types."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from ..core.layout.differences import first_difference
from ..core.layout.info_cells import Infos
from ..core.layout.spec import Array
from ..errors import ConfigError, DifferentSpacesError

__all__ = [
    "ResetOptionsLike",
    "SeedsLike",
    "check_without_mask",
    "combine_spaces",
    "one_of",
    "read_autoreset_mode",
    "read_count",
    "read_env_ids",
    "read_infos",
    "read_mask",
    "read_options",
    "read_seeds",
    "wants_same_spaces",
]


#: Arguments of resets: a seed or one per env; options for all envs, or one dict or None for each.
SeedsLike = int | Sequence[int | None] | None
ResetOptionsLike = dict[str, Any] | Sequence[dict[str, Any] | None] | None


def read_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Return an autoreset mode, given as the enum or as its value, such as 'NextStep'; ConfigError if there is none."""
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        known = [known.value for known in AutoresetMode]
        raise ConfigError(f"autoreset_mode: expected one of {known}, got {mode!r}", key="autoreset_mode") from None


def read_infos(infos: str, mode: AutoresetMode) -> Infos:
    """Return the `Infos` constant of this lower-case name: which infos the workers send; for 'legacy' all.

    Raises:
        ConfigError: there is no such name, or 'legacy' is given for another autoreset mode than SAME_STEP.
    """
    known = [*(known.name.lower() for known in Infos), "legacy"]
    if infos == "legacy":
        if mode != AutoresetMode.SAME_STEP:
            raise ConfigError(
                "infos='legacy': Gymnasium 0.29 resets an env in the step that ends its episode; add "
                f"autoreset_mode='SameStep' (it is {mode.value!r})",
                key="infos",
            )
        return Infos.ALL
    if infos not in known:
        raise ConfigError(f"infos: expected one of {known}, got {infos!r}", key="infos")
    return Infos[infos.upper()]


def read_count(name: str, count: Any, most: int | None = None) -> int | None:
    """Return `count` if it is a whole number from 1 to `most`, or None; else raise ConfigError."""
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1 or (most and count > most):
        expected = "a whole number of at least 1" + (f" and at most {most}" if most else "")
        raise ConfigError(f"{name}: expected {expected}, or None, got {count!r}", key=name)
    return int(count)


def read_seeds(seed: Any, num_envs: int) -> list[int | None]:
    """Return one seed per env: `seed + env_id` for an int, the items of a list, or None for each.

    Raises:
        ConfigError: the list does not have `num_envs` items.
        TypeError: a seed is not a whole number.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + env_id for env_id in range(num_envs)]
    # An array without dimensions also has `__len__`.
    if not hasattr(seed, "__len__") or isinstance(seed, str) or getattr(seed, "ndim", 1) == 0:
        raise TypeError(f"seed: expected an int, a list of {num_envs} or None, got {type(seed).__name__}")
    if len(seed) != num_envs:
        raise ConfigError(f"seed: expected {num_envs} seeds, one per env, got {len(seed)}", key="seed")
    try:
        return [None if one is None else operator.index(one) for one in seed]
    except TypeError:
        raise TypeError(f"seed: expected a list of {num_envs}, each an int or None, got {seed!r}") from None


def one_of(what: str, env_id: Any, env_ids: Any) -> Any:
    """Return `env_id` or its alias `env_ids`, whichever is not None; ConfigError if both are given."""
    if env_ids is None:
        return env_id
    if env_id is not None:
        raise ConfigError(f"{what}: env_id and env_ids are two names of one argument; give one", key="env_ids")
    return env_ids


def read_env_ids(what: str, env_id: Any, num_envs: int) -> Array | None:
    """Return env ids as int64 (B,); a single id becomes an array of one, None stays None.

    Raises:
        ConfigError: an id is not a whole number or is named twice, or there is no such env. Texts begin with `what`.
    """
    if env_id is None:
        return None
    ids: Array = np.atleast_1d(env_id)
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        raise ConfigError(f"{what}: env_id: expected an int or a non-empty list of them, got {env_id!r}", key="env_id")
    wrong = ids[(ids < 0) | (ids >= num_envs)]
    if len(wrong):
        raise ConfigError(f"{what}: env_id {int(wrong[0])} is not in 0..{num_envs - 1}", key="env_id")
    if len(ids) > 1 and len(set(ids.tolist())) < len(ids):
        raise ConfigError(f"{what}: env_id: an env is named twice in {ids.tolist()}", key="env_id")
    return ids.astype(np.int64, copy=False)


def check_without_mask(what: str, options: Any) -> None:
    """Raise ConfigError if options contain a `reset_mask` beside an `env_id`; `what` names the calling method."""
    if isinstance(options, Mapping) and "reset_mask" in options:
        raise ConfigError(f"{what}: env_id and reset_mask both select envs; give one of them", key="reset_mask")


def read_options(what: str, options: Any, count: int) -> list[dict[str, Any] | None]:
    """Return the options of `count` resets, from one dict for all or from a list with one dict or None for each.

    Raises:
        ConfigError: the list does not have `count` items, or an item is not a dict or None.
    """
    is_each = isinstance(options, list | tuple)
    each = list(options) if is_each else [options]
    if is_each and len(each) != count:
        raise ConfigError(
            f"{what}: options: expected a dict, or a list of {count}, got {len(each)} items", key="options"
        )
    for one in each:
        if one is not None and not isinstance(one, Mapping):
            raise ConfigError(f"options: expected a dict, got {one!r}", key="options")
    return each if is_each else each * count


def read_mask(options: dict[str, Any] | None, num_envs: int) -> tuple[Array | None, dict[str, Any] | None]:
    """Separate `reset_mask` from the other options of a reset.

    Returns:
        The ids of the envs to reset, int64 (B,), or None for all envs; and the options without the mask.

    Raises:
        TypeError: the mask is not a bool array.
        ConfigError: the mask has another shape than (num_envs,) or contains only False, or the options are not a
            dict.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(f"options: expected a dict, got {options!r}", key="options")
    if options is None or "reset_mask" not in options:
        return None, options
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}; write np.array(mask, bool)")
    if mask.shape != (num_envs,):  # before the dtype, as in Gymnasium
        raise ConfigError(
            f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}; it has one bool per env",
            key="reset_mask",
        )
    if mask.dtype != np.bool_:
        raise TypeError(
            f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}; write mask.astype(bool)"
        )
    if not mask.any():
        raise ConfigError(
            "`options['reset_mask']` must contain a boolean array with at least one True value, got "
            f"reset_mask={mask}; True selects the envs to reset",
            key="reset_mask",
        )
    rest = {key: value for key, value in options.items() if key != "reset_mask"}
    return (None if mask.all() else np.flatnonzero(mask)), rest


def wants_same_spaces(mode: Any) -> bool:
    """Return whether this `observation_mode` requires equal observation spaces of all envs.

    Raises:
        TypeError: the mode is a pair, but not of spaces.
        ConfigError: there is no such mode.
    """
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(f"observation_mode: expected two spaces, got {[type(space).__name__ for space in mode]}")
        return False
    if mode not in ("same", "different"):
        raise ConfigError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}; a tuple is (observation_space, single_observation_space)",
            key="observation_mode",
        )
    return bool(mode == "same")


def combine_spaces(mode: Any, found: list[Space[Any]]) -> tuple[Space[Any], Space[Any]]:
    """Return the batched and the single space for an `observation_mode`, from the observation space of each env.

    The mode is 'different', or a pair of spaces. DifferentSpacesError: their shapes or dtypes differ.
    """
    single = mode[1] if isinstance(mode, tuple) else found[0]
    for env_id, space in enumerate(found):
        if space != single and not is_space_dtype_shape_equiv(space, single):
            owner = "observation_mode" if isinstance(mode, tuple) else "env 0"
            path, text = first_difference(space, single, "observation_space", owner, has_bounds=False) or (
                "observation_space",
                f"observation_space: {space} and {single} of {owner} differ",
            )
            raise DifferentSpacesError(f"env {env_id}: {text}", path=path)
    if isinstance(mode, tuple):
        return mode
    if all(space == single for space in found):  # also spaces that Gymnasium cannot combine
        return batch_space(single, len(found)), single
    return batch_differing_spaces(found), single
