"""Fixtures of the tests of commands."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def drawing_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the settings that commands choose for machines without a display."""
    for name in ("SDL_VIDEODRIVER", "MUJOCO_GL"):
        monkeypatch.setenv(name, "")  # remembered by monkeypatch, also if it is missing
        monkeypatch.delenv(name)
