"""Random programs on managers that are saved and killed at random moments; see `test_fuzz`, whose model they match."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS
from tests.managers.test_fuzz import Player
from vecenv import StateError
from vecenv.ding import AsyncSubprocessEnvManager
from vecenv.saved_state import SavedState

#: Classes that continue each other's states, and have the same results.
KINDS = (IN_PROCESS, [AsyncSubprocessEnvManager], [cls for cls in WITH_WORKERS if cls is not AsyncSubprocessEnvManager])


class SavingPlayer(Player):
    """A player that often saves its manager, and continues with another one."""

    def __init__(self, manager_cls: type, seed: int, folder: Path) -> None:
        super().__init__(manager_cls, seed, kills=manager_cls in WITH_WORKERS)
        self.path, self.saver, self.num_saves = folder / "state", random.Random(seed), 0
        self.classes: Any = next(kind for kind in KINDS if manager_cls in kind)

    def look(self) -> None:
        if self.saver.random() < 0.2 and not self.manager.closed and self.save():
            self.num_saves += 1
            self.go_back() if self.saver.random() < 0.3 else self.go_on()
        super().look()

    def save(self) -> bool:
        """Save, unless envs in this process have no state."""
        try:
            self.manager.save(self.path)
        except StateError as error:
            if self.cfg["has_workers"] or "save: env" not in str(error):
                raise
            return False
        return True

    def go_back(self) -> None:
        """Load the state into the same manager, after changes of everything."""
        manager = self.manager
        manager.seed(self.saver.randrange(99))
        self.ask(lambda: manager.reset({env_id: {"options": {"length": 1}} for env_id in range(4)}))
        self.ask(lambda: manager.step(dict.fromkeys(manager.ready_obs_id, 0)))
        manager.load_state_dict(SavedState.read(self.path).as_dict())

    def go_on(self) -> None:
        """Continue with another manager."""
        self.manager.close()
        saver = self.saver
        others = {"num_workers": saver.randint(1, 4), "max_retry": saver.choice([1, 2]), "resume": self.path}
        self.manager = saver.choice(self.classes)(self.env_fns, {**self.cfg, **others})
        self.manager.seed(saver.randrange(99))  # the state replaces it
        self.manager.launch()


def check(manager_cls: type, seed: int, folder: Path, num_requests: int) -> None:
    player = SavingPlayer(manager_cls, seed, folder)
    try:
        player.play(num_requests)
    finally:
        player.manager.close()
    assert player.num_saves or manager_cls in IN_PROCESS, "nothing was saved: the program shows nothing"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("manager_cls", IN_PROCESS + WITH_WORKERS)
def test_saved_program_matches_the_model(manager_cls: type, seed: int, tmp_path: Path) -> None:
    check(manager_cls, seed, tmp_path, 50)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 212))
@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_further_saved_program_matches_the_model(
    manager_cls: type, seed: int, implementation: str, tmp_path: Path
) -> None:
    check(manager_cls, seed, tmp_path, 120)
