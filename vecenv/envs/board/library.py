"""Two-player games of PettingZoo as board envs with modes and bots; an env class names only the game's module.

Importing this module registers `chess` and does not need PettingZoo. Making an env needs PettingZoo and the packages
that the game imports.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from gymnasium import spaces

from vecenv.envs.board.bots import COMMON_BOTS
from vecenv.envs.board.env import BoardEnv, BoardPart, BotMaker
from vecenv.envs.board.positions import Array, Position, Rules
from vecenv.errors import ConfigError, StateError, require
from vecenv.registry import ENV_REGISTRY

__all__ = ["ChessEnv", "LibraryEnv"]


class LibraryRules(Rules):
    """The rules of one PettingZoo module; the first of the game's two agents moves first."""

    def __init__(self, module_name: str) -> None:
        """Import the module and read the game's spaces.

        Raises:
            DependencyError: the module or one of its dependencies is missing.
            ConfigError: the game does not have two agents and action masks.
        """
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        self.module_name = module_name
        game = self.make_game()
        agents = list(game.possible_agents)
        space = game.observation_space(agents[0])
        masked = isinstance(space, spaces.Dict) and {"observation", "action_mask"} <= set(space.spaces)
        if len(agents) != 2 or not masked:
            raise ConfigError(f"{module_name}: expected two agents and an action mask, got {len(agents)} and {space}")
        self.num_actions = int(game.action_space(agents[0]).n)
        self.observation_space = cast(spaces.Box, space["observation"])

    def make_game(self, render_mode: str | None = None) -> Any:
        game = require(self.module_name, "board").raw_env(render_mode=render_mode)
        game.reset(seed=0)
        return game

    def start(self, player: int) -> LibraryPosition:
        return LibraryPosition(self, self.make_game(), player, [])

    def restore(self, state: Any, player: int) -> LibraryPosition:
        """Return the position after a sequence of actions; `player` is the index of the player to move then."""
        actions = np.asarray(state, np.int64).ravel().tolist()
        position = self.start(player if len(actions) % 2 == 0 else 1 - player)
        for number, action in enumerate(actions):
            if action not in position.legal_actions():
                raise ConfigError(f"init_state: action {action} at index {number} is not legal there")
            position = position.advance(action)
        return position


class LibraryPosition(Position):
    """A position of a PettingZoo game; `history` contains the actions since its start."""

    __slots__ = ("game", "history", "is_over", "player", "rules", "winner", "_legal", "_started")

    def __init__(self, rules: LibraryRules, game: Any, starter: int, history: list[int]) -> None:
        """Take ownership of a game; `starter` is the index of the player who made the first move."""
        self.rules, self.game, self.history, self._started = rules, game, history, starter
        self._update()

    def __reduce__(self) -> Any:
        return self.rules.restore, (self.history, self.player)

    def _copy(self) -> LibraryPosition:
        # copy.deepcopy(game) would call the constructor and return a game in its first position.
        game = object.__new__(type(self.game))
        vars(game).update(copy.deepcopy(vars(self.game)))
        return LibraryPosition(self.rules, game, self._started, list(self.history))

    def _update(self) -> None:
        game, agents = self.game, list(self.game.possible_agents)
        players = {agent: (place + self._started) % 2 for place, agent in enumerate(agents)}
        self.is_over = all(game.terminations[agent] or game.truncations[agent] for agent in agents)
        best = max(agents, key=lambda agent: game.rewards[agent])
        self.winner: int | None = players[best] if self.is_over and game.rewards[best] > 0 else None
        self.player = players[game.agent_selection]
        self._legal: list[int] | None = None

    def observe(self) -> Array:
        return np.asarray(self.game.observe(self.game.agent_selection)["observation"])

    def legal_actions(self) -> list[int]:
        if self._legal is None:
            mask = self.game.observe(self.game.agent_selection)["action_mask"]
            self._legal = [] if self.is_over else np.flatnonzero(mask).tolist()
        return list(self._legal)

    def play(self, action: int) -> LibraryPosition:
        return self._copy().advance(action)

    def advance(self, action: int) -> LibraryPosition:
        self.game.step(action)
        self.history.append(action)
        self._update()
        return self

    def rollout(self, generator: random.Random) -> int | None:
        position = self._copy()
        while not position.is_over:
            position.advance(generator.choice(position.legal_actions()))
        return position.winner


class LibraryMixin(BoardPart):
    """Part of PettingZoo's games; a game names this class before `BoardEnv` in its list of bases."""

    #: Dotted name of the module that contains the game's `raw_env`.
    library_module: ClassVar[str]
    bots: ClassVar[Mapping[str, BotMaker]] = COMMON_BOTS

    rules: LibraryRules

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        """Check the configuration like `BoardEnv`, and import the game; DependencyError if it lacks a package."""
        self._pictures: dict[str, tuple[Any, list[int]]] = {}  # mode -> (game that renders, actions played)
        super().__init__(cfg)

    def _make_rules(self) -> LibraryRules:
        return LibraryRules(self.library_module)

    def _shown_spaces(self) -> dict[str, spaces.Space[Any]]:
        space = self.rules.observation_space
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        return {"observation": spaces.Box(low, high, dtype=np.float32)}

    def _show(self, position: Position) -> dict[str, Any]:
        return {"observation": cast(LibraryPosition, position).observe().astype(np.float32)}

    def _render_game(self, mode: str) -> Any:
        """Render in one of PettingZoo's modes, with a second game that is brought to the same position.

        The game that is played does not load pictures, so copies of it stay cheap.
        """
        history: Sequence[int] = cast(LibraryPosition, self.position).history
        game, seen = self._pictures.get(mode, (None, []))
        if game is None:
            game = self.rules.make_game(mode)
        if seen != history[: len(seen)]:
            game.reset(seed=0)
            seen = []
        for action in history[len(seen) :]:
            game.step(action)
        self._pictures[mode] = game, list(history)
        return game.render()

    def draw(self) -> Array:
        return np.ascontiguousarray(self._render_game("rgb_array"), np.uint8)

    def board_to_string(self) -> str:
        """Return PettingZoo's text of the board; StateError if the game does not render as text."""
        modes = require(self.library_module, "board").raw_env.metadata["render_modes"]
        if "ansi" not in modes:
            raise StateError(f"{self!r} has no text: {self.library_module} renders as {modes}")
        return str(self._render_game("ansi"))

    def __getstate__(self) -> dict[str, Any]:
        # Copies of these games would be in their first position and would not match the recorded actions.
        return {**super().__getstate__(), "_pictures": {}}

    def close(self) -> None:
        # The games that render are not closed: they have no window, and closing one quits pygame in this process.
        self._pictures = {}
        super().close()


class LibraryEnv(LibraryMixin, BoardEnv):
    """Base of PettingZoo's games; a subclass sets `library_module`, and is registered to be usable by name.

    `observation` is the game's own observation as float32; there is no `board`. `init_state` is a sequence of actions.
    The config keys `channel_last` and `scale` have no effect. Bots: 'random', and 'mcts', which is slow because it
    copies games.

    Example:
        >>> class OtherConnectFour(LibraryEnv):
        ...     library_module = "pettingzoo.classic.connect_four.connect_four"
        >>> obs = OtherConnectFour().reset()
        >>> obs["observation"].shape, obs["to_play"]
        ((6, 7, 2), 1)
    """


@ENV_REGISTRY.register("chess")
class ChessEnv(LibraryMixin, BoardEnv):
    """Chess by PettingZoo and python-chess: 4672 actions, `observation` (8, 8, 111), as in AlphaZero.

    Example:
        >>> env = ChessEnv({"battle_mode": "play_with_bot_mode"})
        >>> env.seed(0)
        >>> int(env.reset()["action_mask"].sum())
        20
    """

    library_module: ClassVar[str] = "pettingzoo.classic.chess.chess"
    config: ClassVar[dict[str, Any]] = {**BoardEnv.config, "env_id": "Chess"}
