"""Players for any board game here: Monte-Carlo tree search, alpha-beta search, and the base of all bots."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

from vecenv.checks import check_whole
from vecenv.envs.board.positions import PLAYERS, Position
from vecenv.errors import ConfigError, StateError

__all__ = ["AlphaBetaBot", "MCTSBot"]

WIN = 1.0
#: Added to a win for each ply of search left, so that the nearest win is the best one.
PLY = 0.001


class Bot(ABC):
    """Chooses actions in positions of one game."""

    def __init__(self, env: Any, seed: int | None = None) -> None:
        """Take the rules of the env; the env itself is not kept.

        Args:
            env: a board env.
            seed: of the bot's own generator, used where none is handed in; None for fresh entropy.
        """
        self.rules = env.rules
        self._generator = random.Random(seed)

    @abstractmethod
    def choose(self, position: Position, generator: random.Random) -> int:
        """Give a legal action of a position that is not over; equal generators give equal choices."""

    def get_actions(self, state: Any, player_index: int) -> int:
        """Give an action for the player of this index to move in a state.

        Args:
            state: what the game's `init_state` may be, such as a board (height, width) of 0, 1 and 2.
            player_index: 0 or 1.

        Raises:
            ConfigError: no such state.
            StateError: the game is over in it.
        """
        position = self.rules.restore(state, player_index)
        if position.is_over:
            raise StateError("the game is over: there is no action to choose")
        return self.choose(position, self._generator)

    def get_rule_bot_action(self, board: Any, player: int) -> int:
        """As `get_actions`, for player 1 or 2."""
        if player not in PLAYERS:
            raise ConfigError(f"player: expected 1 or 2, got {player!r}", key="player")
        return self.get_actions(board, PLAYERS.index(player))


class RandomBot(Bot):
    """Plays any legal action."""

    def choose(self, position: Position, generator: random.Random) -> int:
        """Draw one."""
        return generator.choice(position.legal_actions())


class _Node:
    """A position in the search tree. Values are seen by the player who moved into it."""

    __slots__ = ("action", "children", "parent", "position", "proven", "total", "untried", "visits")

    def __init__(self, position: Position, parent: _Node | None, action: int) -> None:
        self.position, self.parent, self.action = position, parent, action
        self.children: list[_Node] = []
        self.untried = position.legal_actions()
        self.visits = 0
        self.total = 0.0
        self.proven: float | None = None
        """The result with best play, once it is known."""
        if position.is_over:
            self.proven = 0.0 if position.winner is None else 1.0 if position.winner != position.player else -1.0

    @property
    def mean(self) -> float:
        return self.total / self.visits if self.proven is None else self.proven


class MCTSBot(Bot):
    """Monte-Carlo tree search with random rollouts, by the UCB1 rule.

    Results that are certain are handed up the tree as such, so a forced win or loss within it is never a
    matter of luck.

    Example:
        >>> from vecenv import TicTacToeEnv
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
        """Set up.

        Args:
            env: a board env, for its rules.
            name: for the user's own use.
            num_simulation: rollouts per action.
            seed: of the bot's own generator.
            exploration: weight of the uncertainty in UCB1.

        Raises:
            ConfigError: less than one simulation.
        """
        super().__init__(env, seed)
        self.num_simulation = check_whole("num_simulation", num_simulation, 1)
        self.name, self.exploration = name, exploration

    def choose(self, position: Position, generator: random.Random) -> int:
        """Search, then give the action tried most often, or one proven better."""
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
        self._hand_up(node, value)

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

    def _hand_up(self, node: _Node, value: float) -> None:
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
        """Conclude what can be from a child that has just been proven."""
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
    """Alpha-beta search; exact where it reaches the end of the game, else by the position's own estimate.

    Prefers the nearest win and the farthest loss. Among equals the generator decides.

    Example:
        >>> from vecenv import TicTacToeEnv
        >>> bot = AlphaBetaBot(TicTacToeEnv(), seed=0)
        >>> bot.get_actions([0, 0, 0, 0, 1, 0, 0, 0, 0], player_index=1) in (0, 2, 6, 8)  # edges lose
        True
    """

    def __init__(self, env: Any, depth: int | None = None, seed: int | None = None) -> None:
        """Set up.

        Args:
            env: a board env, for its rules.
            depth: plies to look ahead; None for as many as there are actions.
            seed: of the bot's own generator.

        Raises:
            ConfigError: a depth below 1.
        """
        super().__init__(env, seed)
        self.depth: int = env.rules.num_actions if depth is None else check_whole("depth", depth, 1)
        # Bounds on values, for the search under way: key -> (depth, lower, upper).
        self._table: dict[Hashable, tuple[int, float, float]] = {}

    def choose(self, position: Position, generator: random.Random) -> int:
        """Search each action and give the best."""
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
        """Give the value for the player to move: exact within (alpha, beta), else a bound."""
        if position.is_over:
            if position.winner is None:
                return 0.0
            value = WIN + PLY * depth
            return value if position.winner == position.player else -value
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


def _mcts(env: Any) -> MCTSBot:
    return MCTSBot(env, "mcts", env._cfg.num_simulation)


COMMON_BOTS: dict[str, Callable[[Any], Bot]] = {"mcts": _mcts, "random": RandomBot}
"""The bots that every game has."""
