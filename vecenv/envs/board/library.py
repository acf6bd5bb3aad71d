"""Two-player games of PettingZoo as board envs: a class that names the game's module, and it has modes and bots.

Importing this registers `chess` and needs nothing; making an env needs PettingZoo and what the game asks for.
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
from vecenv.envs.board.env import BoardEnv, BotMaker
from vecenv.envs.board.positions import Array, Position, Rules
from vecenv.errors import ConfigError, StateError, require
from vecenv.registry import ENV_REGISTRY

__all__ = ["ChessEnv", "LibraryEnv"]


class LibraryRules(Rules):
    """Makes games of one PettingZoo module; of a game's two agents the first one moves first."""

    def __init__(self, module_name: str) -> None:
        """Look at the game.

        Raises:
            DependencyError: the module or something it needs is missing.
            ConfigError: no game for two with action masks.
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
        """Make a game at its beginning."""
        game = require(self.module_name, "board").raw_env(render_mode=render_mode)
        game.reset(seed=0)
        return game

    def start(self, player: int) -> LibraryPosition:
        return LibraryPosition(self, self.make_game(), player, [])

    def restore(self, state: Any, player: int) -> LibraryPosition:
        """Give the position after a sequence of actions, of which the last one was the other player's."""
        actions = np.asarray(state, np.int64).ravel().tolist()
        position = self.start(player if len(actions) % 2 == 0 else 1 - player)
        for number, action in enumerate(actions):
            if action not in position.legal_actions():
                raise ConfigError(f"init_state: action {action} at place {number} is not legal there")
            position = position.advance(action)
        return position


class LibraryPosition(Position):
    """A game of PettingZoo at one moment; `history` are the actions since its start."""

    __slots__ = ("game", "history", "is_over", "player", "rules", "winner", "_legal", "_started")

    def __init__(self, rules: LibraryRules, game: Any, starter: int, history: list[int]) -> None:
        """Look at a game that is the position's own from now on; `starter` is the player who began it."""
        self.rules, self.game, self.history, self._started = rules, game, history, starter
        self._update()

    def __reduce__(self) -> Any:
        return self.rules.restore, (self.history, self.player)

    def _copy(self) -> LibraryPosition:
        # Not by copying the game itself: PettingZoo's copy and pickle by their constructor, at the beginning.
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
        """Give what the player to move sees."""
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


class LibraryEnv(BoardEnv):
    """Base of PettingZoo's games: a subclass sets `library_module`, and is registered if a config shall name it.

    `observation` is the game's own as float32; there is no `board`. `init_state` is a sequence of actions. The
    keys `channel_last` and `scale` have no effect. Bots: 'mcts', which copies games and so is slow, and 'random'.

    Example:
        >>> class OtherConnectFour(LibraryEnv):
        ...     library_module = "pettingzoo.classic.connect_four.connect_four"
        >>> obs = OtherConnectFour().reset()
        >>> obs["observation"].shape, obs["to_play"]
        ((6, 7, 2), 1)
    """

    library_module: ClassVar[str]
    """Dotted name of the module that has the game's `raw_env`."""
    bots: ClassVar[Mapping[str, BotMaker]] = COMMON_BOTS

    rules: LibraryRules

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        """As `BoardEnv`.

        Raises:
            DependencyError: PettingZoo or something the game needs is missing.
        """
        self._pictures: dict[str, tuple[Any, list[int]]] = {}  # games that render, and the actions they have seen
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
        """Render in a mode of the library's, by a second game that is brought to the same position.

        The game played has no pictures in it, so that copying it stays cheap.
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
        """Draw as the library does."""
        return np.ascontiguousarray(self._render_game("rgb_array"), np.uint8)

    def board_to_string(self) -> str:
        """Give the library's text.

        Raises:
            StateError: the game has none.
        """
        modes = require(self.library_module, "board").raw_env.metadata["render_modes"]
        if "ansi" not in modes:
            raise StateError(f"{self!r} has no text: {self.library_module} renders as {modes}")
        return str(self._render_game("ansi"))

    def __getstate__(self) -> dict[str, Any]:
        # Copied or pickled, these games would be at their beginning, unlike what is noted of them.
        return {**super().__getstate__(), "_pictures": {}}

    def close(self) -> None:
        # The games that rendered are not closed: they have no window, and closing one ends pygame for all.
        self._pictures = {}
        super().close()


@ENV_REGISTRY.register("chess")
class ChessEnv(LibraryEnv):
    """Chess by PettingZoo and python-chess: 4672 actions, `observation` (8, 8, 111), as AlphaZero's.

    Example:
        >>> env = ChessEnv({"battle_mode": "play_with_bot_mode"})
        >>> env.seed(0)
        >>> int(env.reset()["action_mask"].sum())
        20
    """

    library_module: ClassVar[str] = "pettingzoo.classic.chess.chess"
    config: ClassVar[dict[str, Any]] = {**BoardEnv.config, "env_id": "Chess"}
