"""Fixtures of the tests of evaluations."""

from __future__ import annotations

from tests.vector.conftest import backend

__all__ = ["backend"]
