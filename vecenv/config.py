"""Configs: dicts with attribute access that managers and envs are built from."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from vecenv.errors import ConfigError, warn_caller

__all__ = ["Config", "deep_merge_dicts"]

# Two names this alike are taken for one name and a slip of the finger. At 0.8
# `step_timout` is found for `step_timeout`, and `n_episode`, another key, is not taken for `episode_num`.
_MISSPELLING_RATIO = 0.8


class Config(dict[str, Any]):
    """A dict whose keys are attributes too, in all its nested dicts.

    Nested dicts of any class (EasyDict included) become Configs, also inside lists and tuples; every other value stays
    the object that it is. A key that is the name of a dict method, such as `copy`, is reached as an item only.

    >>> cfg = Config({"env": {"id": "CartPole-v1"}}, episode_num=3)
    >>> cfg.env.id, cfg.episode_num
    ('CartPole-v1', 3)
    """

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        if args and args[0] is None:  # `cfg=None` means an empty config in every constructor
            args = args[1:]
        self.update(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"config has no key {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(dict, name):
            raise AttributeError(f"{name!r} is a method of dict; set cfg[{name!r}] instead")
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"config has no key {name!r}") from None

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _convert(value))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set many keys, each converted as a single one would be."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value under `key`, setting it to `default` first if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> Config:
        """Copy this level; nested configs are shared, as with dict.copy."""
        return Config(self)

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Mapping):
            return NotImplemented
        merged = self.copy()
        merged.update(other)
        return merged

    def __ror__(self, other: Any) -> Any:
        return Config(other) | self if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Any) -> Config:  # type: ignore[override]  # dict's overloads, one body
        self.update(other)
        return self

    def __repr__(self) -> str:
        return f"Config({super().__repr__()})"


def deep_merge_dicts(original: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Config:
    """Merge `new` over `original` key by key, dicts within dicts included.

    Where both sides hold a dict the two are merged; other values in `new` replace. Neither argument is changed, and no
    dict, list or tuple of the result is shared with them; other values (spaces, arrays, functions) are.

    Raises:
        ConfigError: an argument is neither None nor a mapping.
    """
    for value in (original, new):
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"expected a mapping to merge, got {type(value).__name__}")
    merged = Config({key: _copy_containers(value) for key, value in (original or {}).items()})
    for key, value in (new or {}).items():
        if isinstance(value, _DICTS) and isinstance(merged.get(key), dict):
            merged[key] = deep_merge_dicts(merged[key], value)
        else:
            merged[key] = _copy_containers(value)
    return merged


def warn_unknown_keys(cfg: Mapping[str, Any], known: Iterable[str], owner: str) -> None:
    """Warn of each top-level key of `cfg` that looks like a misspelling of a known key of the class `owner`.

    Other unknown keys are ignored: configs have keys of many owners.

    Raises:
        ConfigError: `cfg` is no mapping.
    """
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"{owner}: cfg: expected a dict, got {cfg!r}", key="cfg")
    by_spelling = {_normalise(name): name for name in known}
    names = set(by_spelling.values())
    for key in cfg:
        if not isinstance(key, str) or key in names:
            continue
        close = difflib.get_close_matches(_normalise(key), by_spelling, n=1, cutoff=_MISSPELLING_RATIO)
        if close:
            warn_caller(f"unknown key {key!r} for {owner}; did you mean {by_spelling[close[0]]!r}?")


# Not every Mapping: gymnasium.spaces.Dict is one and has to stay a space.
_DICTS = (dict, MappingProxyType)


def _convert(value: Any) -> Any:
    """Turn dicts into Configs, also inside plain lists and tuples."""
    if isinstance(value, Config):
        return value
    if isinstance(value, _DICTS):
        return Config(value)
    if type(value) in (list, tuple) and any(isinstance(item, (list, tuple, *_DICTS)) for item in value):
        return type(value)(_convert(item) for item in value)
    return value


def _copy_containers(value: Any) -> Any:
    """Copy dicts, lists and tuples at every depth, nothing else."""
    if isinstance(value, _DICTS):
        return Config({key: _copy_containers(item) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_copy_containers(item) for item in value)
    return value


def _normalise(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
