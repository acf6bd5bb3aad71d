"""Fixtures of the tests of vector envs."""

from __future__ import annotations

import pytest

from vecenv.core.layout.native import load

BACKENDS = [("serial", "native"), ("serial", "python"), ("process", "native"), ("process", "python")]


@pytest.fixture(params=BACKENDS, ids="-".join)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each backend with each implementation: set the implementation, and return the name of the backend."""
    name, implementation = request.param
    if implementation == "native" and load() is None:
        pytest.skip("the extension was not built")
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    return str(name)
