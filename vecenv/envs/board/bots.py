"""Bots for all board games of this package: Monte-Carlo tree search, alpha-beta search, and the base of all bots."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

from vecenv.envs.board.positions import PLAYERS, Position
from vecenv.errors import ConfigError, StateError
from vecenv.values.checks import check_whole

__all__ = ["AlphaBetaBot", "MCTSBot"]

WIN = 1.0
#: Added to the value of a win for each remaining ply of search, so that the nearest win is the best one.
PLY = 0.001


class Bot(ABC):
    """Base of the bots, which choose actions in positions of one game."""

    def __init__(self, env: Any, seed: int | None = None) -> None:
        """Take the rules from a board env, without keeping the env.

        The seed is that of the bot's own generator, which only `get_actions` and `get_rule_bot_action` use; None for
        fresh entropy.
        """
        self.rules = env.rules
        self._generator = random.Random(seed)

    @abstractmethod
    def choose(self, position: Position, generator: random.Random) -> int:
        """Return a legal action of a position that is not over; random choices use this generator only."""

    def get_actions(self, state: Any, player_index: int) -> int:
        """Return an action for a player in a state of the game.

        Args:
            state: any value that the game's `init_state` accepts, such as a board (height, width) of 0, 1 and 2.
            player_index: index of the player to move, 0 or 1.

        Raises:
            ConfigError: the state is not valid.
            StateError: the game is over in this state.
        """
        position = self.rules.restore(state, player_index)
        if position.is_over:
            raise StateError("the game is over: there is no action to choose")
        return self.choose(position, self._generator)

    def get_rule_bot_action(self, board: Any, player: int) -> int:
        """Return an action for player 1 or 2; like `get_actions`, with the player's number instead of the index."""
        if player not in PLAYERS:
            raise ConfigError(f"player: expected 1 or 2, got {player!r}", key="player")
        return self.get_actions(board, PLAYERS.index(player))


class RandomBot(Bot):
    """Chooses legal actions at random."""

    def choose(self, position: Position, generator: random.Random) -> int:
        return generator.choice(position.legal_actions())


class _Node:
    """A position in the search tree. Values are those for the player whose move led to it."""

    __slots__ = ("action", "children", "parent", "position", "proven", "total", "untried", "visits")

    def __init__(self, position: Position, parent: _Node | None, action: int) -> None:
        self.position, self.parent, self.action = position, parent, action
        self.children: list[_Node] = []
        self.untried = position.legal_actions()
        self.visits = 0
        self.total = 0.0
        #: The result with best play of both players; None while it is unknown.
        self.proven = position.result(1 - position.player) if position.is_over else None

    @property
    def mean(self) -> float:
        return self.total / self.visits if self.proven is None else self.proven


class MCTSBot(Bot):
    """Monte-Carlo tree search with random rollouts and the UCB1 rule.

    Proven results are passed up the tree as proven. So a forced win or loss inside the tree is always found.

    Example:
        >>> from vecenv.ding import TicTacToeEnv
        >>> bot = MCTSBot(TicTacToeEnv(), "bot", num_simulation=100, seed=0)
        >>> bot.get_actions([1, 1, 0, 2, 2, 0, 0, 0, 0], player_index=1)
        5
    """

    def __init__(
        self,
        env: Any,
        name: str = "mcts",
        num_simulation: int = 50,
        seed: int | None = None,
        exploration: float = 1.4,
    ) -> None:
        """Make a bot for the game of `env`, a board env.

        Args:
            env, seed: as for all bots.
            name: stored for the caller's own use.
            num_simulation: rollouts per action; ConfigError if it is below 1.
            exploration: weight of the uncertainty in UCB1.
        """
        super().__init__(env, seed)
        self.num_simulation = check_whole("num_simulation", num_simulation, 1)
        self.name, self.exploration = name, exploration

    def choose(self, position: Position, generator: random.Random) -> int:
        """Search, then return the action that was tried most often, or a proven action with a better value."""
        root = _Node(position, None, -1)
        for _ in range(self.num_simulation):
            if root.proven is not None:
                break
            self._simulate(root, generator)
        return self._best(root)

    def _simulate(self, root: _Node, generator: random.Random) -> None:
        node = root
        while node.proven is None and not node.untried:
            node = self._select(node)
        if node.proven is None:
            action = node.untried.pop(generator.randrange(len(node.untried)))
            child = _Node(node.position.play(action), node, action)
            node.children.append(child)
            node = child
        if node.proven is None:
            winner = node.position.rollout(generator)
            value = 0.0 if winner is None else 1.0 if winner != node.position.player else -1.0
        else:
            value = node.proven
        self._propagate(node, value)

    def _select(self, node: _Node) -> _Node:
        spread = self.exploration * math.sqrt(math.log(node.visits))
        best, best_score = None, -math.inf
        for child in node.children:
            if child.proven is None:
                score = child.total / child.visits + spread / math.sqrt(child.visits)
                if score > best_score:
                    best, best_score = child, score
        assert best is not None, "a node whose children are all proven is proven itself"
        return best

    def _propagate(self, node: _Node, value: float) -> None:
        walker: _Node | None = node
        while walker is not None:
            walker.visits += 1
            walker.total += value
            value = -value
            parent = walker.parent
            if parent is not None and parent.proven is None and walker.proven is not None:
                self._prove(parent, walker.proven)
            walker = parent

    def _prove(self, node: _Node, child_value: float) -> None:
        """Prove a node, if possible, from the value of a child that was just proven."""
        if child_value == 1.0:  # the player to move can win
            node.proven = -1.0
        elif not node.untried and all(child.proven is not None for child in node.children):
            node.proven = -max(child.mean for child in node.children)

    def _best(self, root: _Node) -> int:
        open_children = [child for child in root.children if child.proven is None]
        proven = [child for child in root.children if child.proven is not None]
        best = max(proven, key=lambda child: (child.mean, child.visits), default=None)
        if open_children:
            most = max(open_children, key=lambda child: child.visits)
            if best is None or best.mean < most.mean:
                best = most
        assert best is not None, "no simulation was run"
        return best.action


class AlphaBetaBot(Bot):
    """Alpha-beta search, which is exact if it reaches the end of the game and else uses `Position.evaluate`.

    It prefers the nearest win and the latest loss. The generator chooses among equal actions.

    Example:
        >>> from vecenv.ding import TicTacToeEnv
        >>> bot = AlphaBetaBot(TicTacToeEnv(), seed=0)
        >>> bot.get_actions([0, 0, 0, 0, 1, 0, 0, 0, 0], player_index=1) in (0, 2, 6, 8)  # edges lose
        True
    """

    def __init__(self, env: Any, depth: int | None = None, seed: int | None = None) -> None:
        """Make a bot for the game of `env`, a board env.

        Args:
            env, seed: as for all bots.
            depth: plies to look ahead; None means the number of actions of the game. ConfigError if it is below 1.
        """
        super().__init__(env, seed)
        self.depth: int = env.rules.num_actions if depth is None else check_whole("depth", depth, 1)
        # Bounds of values, valid during one search: key -> (depth, lower, upper).
        self._table: dict[Hashable, tuple[int, float, float]] = {}

    def choose(self, position: Position, generator: random.Random) -> int:
        self._table.clear()
        actions = position.candidates()
        generator.shuffle(actions)
        children = [(action, position.play(action)) for action in actions]
        children.sort(key=lambda pair: -WIN if pair[1].is_over and pair[1].winner is not None else pair[1].evaluate())
        best_action, best = children[0][0], -math.inf
        for action, child in children:
            value = -self._search(child, self.depth - 1, -math.inf, -best)
            if value > best:
                best_action, best = action, value
        self._table.clear()
        return best_action

    def _search(self, position: Position, depth: int, alpha: float, beta: float) -> float:
        """Return the value for the player to move: exact if it is between alpha and beta, else a bound."""
        if position.is_over:
            return position.result(position.player) * (WIN + PLY * depth)
        if depth == 0:
            return position.evaluate()
        key = position.key
        known = self._table.get(key) if key is not None else None
        lower, upper = -math.inf, math.inf
        if known is not None and known[0] == depth:
            _, lower, upper = known
            if lower >= beta or lower == upper:
                return lower
            if upper <= alpha:
                return upper
        value, limit = -math.inf, alpha
        for action in position.candidates():
            value = max(value, -self._search(position.play(action), depth - 1, -beta, -limit))
            limit = max(limit, value)
            if value >= beta:
                break
        if key is not None:
            if value > alpha:
                lower = value
            if value < beta:
                upper = value
            self._table[key] = depth, lower, upper
        return value


#: Constructors of the bots that all games have.
COMMON_BOTS: dict[str, Callable[[Any], Bot]] = {
    "mcts": lambda env: MCTSBot(env, "mcts", env._cfg.num_simulation),
    "random": RandomBot,
}
