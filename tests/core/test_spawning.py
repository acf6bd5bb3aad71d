"""Fork servers: what they have loaded, and which one is asked."""

from __future__ import annotations

import functools
import os
import signal
import sys

import pytest

from vecenv.core import spawning
from vecenv.envs.adapt import adapt_built
from vecenv.envs.state import KEEPER

LOOK = "import os, sys; open({path!r}, 'w').write(' '.join([str(os.getppid()), *sys.modules]))"


@pytest.fixture
def servers(monkeypatch):
    """The list of fork servers, empty; those that a test starts end with it."""
    started = []
    monkeypatch.setattr(spawning, "_servers", started)
    yield started
    for _, server in started:
        server._stop()


def look(tmp_path, *modules):
    """Start a process; return the pid of its fork server, and the modules that it finds loaded."""
    path = tmp_path / "found"
    process = spawning.make_process("forkserver", exec, (LOOK.format(path=str(path)),), "look", frozenset(modules))
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()
    pid, *found = path.read_text().split()
    return int(pid), found


def test_a_server_has_what_is_asked_for_and_one_does_for_all_who_ask_for_less(servers, tmp_path):
    adapt, state, batched = "vecenv.envs.adapt", "vecenv.envs.state", "vecenv.envs.batched"
    first, found = look(tmp_path, adapt, state)
    assert {"vecenv.core.worker", "numpy", "gymnasium", adapt, state} <= set(found)
    assert batched not in found and "vecenv.managers" not in found
    assert look(tmp_path, state)[0] == look(tmp_path)[0] == first
    second, found = look(tmp_path, batched)
    assert second != first and {adapt, state, batched} <= set(found)
    assert look(tmp_path, adapt)[0] == first and look(tmp_path, adapt, batched)[0] == second
    assert [server._forkserver_pid for _, server in servers] == [first, second]


def test_a_server_that_was_killed_is_replaced(servers, tmp_path):
    first, _ = look(tmp_path, "vecenv.envs.adapt")
    os.kill(first, signal.SIGKILL)
    second, found = look(tmp_path, "vecenv.envs.adapt")
    assert second != first and "vecenv.envs.adapt" in found
    assert look(tmp_path)[0] == second


def test_only_modules_of_this_package_are_loaded_early():
    """What others do when they are imported, a process that forks may not survive."""
    values = adapt_built, KEEPER, None, functools.partial(print), test_only_modules_of_this_package_are_loaded_early
    assert spawning.modules_of(*values) == {"vecenv.envs.adapt", "vecenv.envs.state"}
    assert spawning.modules_of() == frozenset()
    assert all(name in sys.modules for name in spawning.modules_of(*values))
