"""Envs that start helper processes, for tests of the ends of these processes."""

from __future__ import annotations

import functools
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.faults.four_step_env import FourStepEnv
from tests.faults.traces import end, wait_until


class WithHelpers(FourStepEnv):
    """Starts a helper that ends at once, and one that outlives its worker.

    The latter has a session of its own and an empty environment, so that it is not found as a process of its worker.

    Args:
        folder: each new env notes its worker and its helper in a file of its number there. The helper reads from the
            pipe 'end' there, so that it ends with the test even if its worker was killed before it noted the helper.
    """

    def __init__(self, folder: str, number: int) -> None:
        super().__init__()
        subprocess.run(["true"], check=True)
        self.helper = subprocess.Popen(["cat", os.path.join(folder, "end")], start_new_session=True, env={})
        with open(os.path.join(folder, str(number)), "a") as file:
            file.write(f"{os.getpid()} {self.helper.pid}\n")

    def reward(self, action: Any) -> float:
        return super().reward(action) + action

    def close(self) -> None:
        self.helper.kill()
        self.helper.wait()


class Helpers:
    """The two envs of a front end, their workers and their helpers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open_end()
        self.env_fns = [functools.partial(WithHelpers, str(folder), number) for number in range(2)]

    def _pids(self, number: int) -> list[tuple[int, int]]:
        lines = (self.folder / str(number)).read_text().splitlines()
        return [(int(worker), int(helper)) for worker, helper in map(str.split, lines)]

    def end_helper(self, number: int, at: int = -1) -> None:
        """End a helper of an env, and wait until the thread that relays its output has ended.

        Args:
            number: of the env.
            at: which one of its helpers, in their order.
        """
        before = _relays()
        end(self._pids(number)[at][1])
        if at == -1 and before:  # the threads of shards are in other processes
            wait_until(lambda: len(_relays()) < len(before))

    def kill_worker(self, number: int) -> None:
        """Kill the worker of an env."""
        end(self._pids(number)[-1][0])

    def end_all(self) -> None:
        """End every helper that is left; further envs may be built."""
        self.close()
        self._open_end()
        for number in range(2):
            for _, helper in self._pids(number) if (self.folder / str(number)).exists() else ():
                end(helper)

    def _open_end(self) -> None:
        os.mkfifo(self.folder / "end")
        self._end = os.open(self.folder / "end", os.O_RDWR)

    def close(self) -> None:
        """End the helpers that were not noted, too."""
        os.close(self._end)
        os.unlink(self.folder / "end")

    def disturb(self, front_end: Any, step: int) -> None:
        """End helpers before, during and after the death of their worker; the hook of `front_ends.play`."""
        if step == 1:
            self.end_helper(0)
            self.kill_worker(0)
        elif step == 3:
            self.kill_worker(1)  # its helper outlives it
        elif step == 5:
            self.end_helper(1, 0)
            self.kill_worker(0)
            end(self._pids(0)[-1][1])  # perhaps before its worker is found dead
        elif step == 7:
            self.end_helper(1)  # its worker ends with the pool


def _relays() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "vecenv output"]
