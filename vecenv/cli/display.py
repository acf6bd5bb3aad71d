"""Settings of libraries that draw, for machines without a display."""

from __future__ import annotations

import ctypes.util
import os

__all__ = ["draw_without_display"]

#: Values of MUJOCO_GL that need no display -> the library that each loads.
_OFFSCREEN = {"egl": "EGL", "osmesa": "OSMesa"}


def draw_without_display() -> None:
    """If there is no display, have SDL and MuJoCo draw into memory; workers inherit this. Settings of the user stay.

    Call it before the libraries are loaded.
    """
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if not os.environ.get("MUJOCO_GL"):
        found = [name for name, library in _OFFSCREEN.items() if ctypes.util.find_library(library)]
        if found:
            os.environ["MUJOCO_GL"] = found[0]
