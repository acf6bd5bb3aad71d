"""The argument `options` of an env's reset.

Gymnasium's vector envs pass `options=None` to every env, which fails for a `reset` without that parameter. Here such
an env gets no `options`.
"""

from __future__ import annotations

from typing import Any

from ..values.class_cache import class_cache
from ..values.signatures import parameters_of

__all__ = ["accepts_options"]


def accepts_options(env: Any) -> bool:
    """Return whether `env.reset` accepts `options`.

    If a wrapper's `reset` only passes on `**kwargs`, the env inside decides. True if a signature cannot be read.
    """
    accepted = None
    while env is not None and (accepted := _accepts(getattr(env.reset, "__func__", env.reset))) is None:
        env = getattr(env, "env", None)
    return accepted is not False


@class_cache
def _accepts(reset: Any) -> bool | None:
    """Return whether a function has a parameter `options`; None if it only has `**kwargs`."""
    parameters = parameters_of(reset)
    if parameters is None or "options" in parameters:
        return True
    return None if any(one.kind is one.VAR_KEYWORD for one in parameters.values()) else False
