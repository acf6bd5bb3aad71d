"""A board game as an env with LightZero's calls: its modes, players, bots and rewards.

    self_play_mode       one step is one move of the player to move; the winning move has reward 1
    play_with_bot_mode   one step is a move of player 1, the agent, and the reply of player 2, the bot
    eval_mode            the same, but player 2 may also be a human at the terminal

The rules are in `positions`, the bots in `bots` and `rule_bots`.
"""

from __future__ import annotations

import copy
import numbers
import random
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces

from vecenv.config import deep_merge_dicts, warn_unknown_keys
from vecenv.envs.arrays import normalise_action
from vecenv.envs.base import BaseEnv, BaseEnvTimestep, copy_env_cfg
from vecenv.envs.board.bots import Bot
from vecenv.envs.board.positions import PLAYERS, Position, Rules
from vecenv.envs.board.recording import RENDER_MODES, SAVED_FORMATS, GameWindow, save_frames
from vecenv.envs.seeding import EpisodeSeeds
from vecenv.envs.video import DEFAULT_FOLDER
from vecenv.errors import ConfigError, SpaceError, StateError, warn_caller
from vecenv.gymnasium_api.replaying import is_replaying
from vecenv.values.checks import check_choice

__all__ = ["BoardEnv"]

SELF_PLAY, PLAY_WITH_BOT, EVAL = MODES = ("self_play_mode", "play_with_bot_mode", "eval_mode")
#: The values that some config keys may have.
CHOICES: dict[str, tuple[Any, ...]] = {
    "battle_mode": MODES,
    "battle_mode_in_simulation_env": MODES,
    "illegal_action": ("random", "raise"),
    "render_mode": (None, *RENDER_MODES),
    "replay_format": SAVED_FORMATS,
}
#: Value of `to_play` in the modes in which the agent is always player 1.
ONE_SEAT = -1
# Keys that configs of envs may contain in addition to those in an env's `config`.
OTHER_KEYS = ("type", "import_names", "collector_env_num", "evaluator_env_num", "is_train", "cfg_type")

BotMaker = Callable[["BoardEnv"], Bot]


class BoardEnv(BaseEnv):
    """Base of the board games, in which two players, 1 and 2, take turns.

    Observations are dicts with these keys:
        observation: array of the game's own form.
        action_mask: int8 (num_actions,), 1 for each legal action; all 0 when the game is over.
        current_player_index: 0 or 1.
        to_play: the player to move (1 or 2) in self play, and -1 in the modes in which the env plays player 2.

    Rewards are float32 (1,). The last info has `eval_episode_return`: 1.0 if player 1 won, -1.0 if player 2 won, else
    0.0. If the env played another action than the given one, it is in `info['played_action']`.

    Config keys of all games:
        battle_mode: 'self_play_mode', 'play_with_bot_mode' or 'eval_mode'.
        battle_mode_in_simulation_env: mode of the envs that `simulate_action` makes.
        bot_action_type: name of the bot, a key of the game's `bots`.
        num_simulation: rollouts per action of the bot 'mcts'.
        agent_vs_human: in eval_mode, read player 2's moves from the terminal.
        illegal_action: 'random' plays a legal action instead, with a warning the first time; 'raise' raises SpaceError.
        prob_random_agent, prob_expert_agent: in self play, the probability that a random action, or the bot's action,
            is played instead of the given one; at most one of them may be above 0.
        prob_random_action_in_bot: the probability that a move of the bot is random.
        render_mode: how each move is shown, see `render`; None shows nothing.
        replay_path: folder for the files of 'image_savefile_mode'; None for the working directory.
        replay_format: 'gif' or 'mp4'.
        screen_scaling: size of pictures; a cell is `8 * screen_scaling` pixels wide.
        channel_last: True puts the planes of `observation` on the last axis.
        scale: True divides the planes of `observation` by 2 (games on a grid).
        stop_value: a score for the caller's own use.

    Example:
        >>> from vecenv.ding import TicTacToeEnv
        >>> env = TicTacToeEnv()
        >>> isinstance(env, BoardEnv), sorted(env.bots)
        (True, ['alpha_beta_pruning', 'mcts', 'random', 'v0'])
        >>> env.reset()["to_play"], env.step(4).obs["to_play"]
        (1, 2)
    """

    config: ClassVar[dict[str, Any]] = {
        "env_id": None,
        "battle_mode": SELF_PLAY,
        "battle_mode_in_simulation_env": SELF_PLAY,
        "bot_action_type": "random",
        "num_simulation": 50,
        "agent_vs_human": False,
        "illegal_action": "random",
        "prob_random_agent": 0.0,
        "prob_expert_agent": 0.0,
        "prob_random_action_in_bot": 0.0,
        "render_mode": None,
        "replay_path": None,
        "replay_format": "gif",
        "screen_scaling": 9,
        "channel_last": False,
        "scale": False,
        "stop_value": 1,
    }
    #: Constructors of the bots, by the names that `bot_action_type` accepts.
    bots: ClassVar[Mapping[str, BotMaker]] = {}

    metadata: ClassVar[dict[str, Any]] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # type: ignore[misc]

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        """Check the configuration and set the spaces; `reset` starts a game.

        The config is merged over the class's `config`, so any key may be left out. ConfigError is raised if a value is
        not valid, NotImplementedError if the game does not have the bot.
        """
        warn_unknown_keys(cfg or {}, (*self.config, *OTHER_KEYS), type(self).__name__)
        self._cfg = deep_merge_dicts(self.config, dict(cfg or {}))
        self._check_config()
        self.battle_mode: str = self._cfg.battle_mode
        self.render_mode: str | None = self._cfg.render_mode
        self.rules: Rules = self._make_rules()
        self.bot: Bot = self.bots[self._cfg.bot_action_type](self)
        self._seeds = EpisodeSeeds()
        self._generator = random.Random()
        self._position: Position | None = None
        self.start_player_index = 0
        self._warned = False
        #: Pictures of the current game, uint8 (height, width, 3), collected in 'image_savefile_mode'.
        self.frames: list[Any] = []
        #: Path of the last file that `save_render_output` wrote.
        self.saved_path: str | None = None
        self._video_folder: str | None = None  # used from the next reset; None for no change
        self._window: GameWindow | None = None
        self._set_spaces()

    def _check_config(self) -> None:
        cfg, bot = self._cfg, self._cfg.bot_action_type
        for key, allowed in CHOICES.items():
            check_choice(key, cfg[key], allowed)
        for key in ("prob_random_agent", "prob_expert_agent", "prob_random_action_in_bot"):
            if not isinstance(cfg[key], numbers.Real) or not 0 <= cfg[key] <= 1:
                raise ConfigError(f"{key}: expected 0 to 1, got {cfg[key]!r}", key=key)
        if cfg.prob_random_agent > 0 and cfg.prob_expert_agent > 0:
            raise ConfigError("prob_random_agent and prob_expert_agent: only one may be above 0")
        if bot not in self.bots:
            raise NotImplementedError(f"{type(self).__name__} has no bot {bot!r}; there are {sorted(self.bots)}")

    # ---- defined by each game --------------------------------------------------------------

    @abstractmethod
    def _make_rules(self) -> Rules:
        """Make the rules from the config."""

    @abstractmethod
    def _shown_spaces(self) -> dict[str, spaces.Space[Any]]:
        """Return the spaces of the values that `_show` returns."""

    @abstractmethod
    def _show(self, position: Position) -> dict[str, Any]:
        """Return the game's own parts of the observation, as new arrays."""

    @abstractmethod
    def draw(self) -> Any:
        """Return a picture of the board, uint8 (height, width, 3)."""

    @abstractmethod
    def board_to_string(self) -> str:
        """Return the board as text, one line per row."""

    def action_to_string(self, action: int) -> str:
        """Return an action in the form that a human enters for `human_to_action`."""
        return str(action + 1)

    def _parse_human(self, text: str) -> int:
        """Convert a human's input to an action, which need not be legal; ValueError if it is not an action."""
        return int(text) - 1

    human_prompt: ClassVar[str] = "action"

    @property
    def _divisor(self) -> int:
        """Number by which the planes of `observation` are divided."""
        return 1

    # ---- spaces ------------------------------------------------------------------------------

    def _set_spaces(self) -> None:
        count = self.rules.num_actions
        in_turn = self.battle_mode == SELF_PLAY
        parts = {
            **self._shown_spaces(),
            "action_mask": spaces.Box(0, 1, (count,), np.int8),
            "current_player_index": spaces.Discrete(2),
            "to_play": spaces.Discrete(2, start=1) if in_turn else spaces.Discrete(1, start=ONE_SEAT),
        }
        self.observation_space: Any = spaces.Dict(parts)
        self.action_space: Any = spaces.Discrete(count)
        self.reward_space: Any = spaces.Box(0.0 if in_turn else -1.0, 1.0, (1,), np.float32)

    def _observe(self) -> dict[str, Any]:
        position = self.position
        mask = np.zeros(self.rules.num_actions, np.int8)
        mask[position.legal_actions()] = 1
        to_play = PLAYERS[position.player] if self.battle_mode == SELF_PLAY else ONE_SEAT
        return {
            **self._show(position),
            "action_mask": mask,
            "current_player_index": position.player,
            "to_play": to_play,
        }

    # ---- playing -----------------------------------------------------------------------------

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Set the seed from which the seeds of games are computed; all random choices, also the bots', follow it."""
        super().seed(seed, dynamic_seed)
        self._seeds.seed(seed, dynamic_seed)

    def reset(  # type: ignore[override]  # BaseEnv's signature
        self, start_player_index: int = 0, init_state: Any = None, options: Mapping[str, Any] | None = None
    ) -> Any:
        """Start a game and return the first observation.

        If player 2 moves first and the env plays player 2, its first move is made here.

        Args:
            start_player_index: 0 if player 1 moves first, 1 if player 2 does.
            init_state: the first board, (height, width) or flat, of 0 (empty), 1 and 2; None for an empty board.
            options: the same two arguments by name, for callers of Gymnasium's `reset`.

        Raises:
            ConfigError: the player or board is not valid, or the game is over on this board.
        """
        if options:
            start_player_index = options.get("start_player_index", start_player_index)
            init_state = options.get("init_state", init_state)
        if start_player_index not in (0, 1):
            message = f"start_player_index: expected 0 or 1, got {start_player_index!r}"
            raise ConfigError(message, key="start_player_index")
        player = int(start_player_index)
        position = self.rules.start(player) if init_state is None else self.rules.restore(init_state, player)
        if position.is_over:
            raise ConfigError("init_state: the game is over on this board", key="init_state")
        seed = self._seeds.advance()
        if seed is not None:
            self._generator = random.Random(seed)
        self.start_player_index = player
        self._position = position
        self.frames = []
        if self._video_folder is not None:
            self._cfg.replay_path, self._video_folder = self._video_folder, None
            self.render_mode = "image_savefile_mode"
        self._show_move()
        if self.battle_mode != SELF_PLAY and player == 1:
            self._play(self._other_action())
            if self.position.is_over:
                raise ConfigError("init_state: player 2's first move ends the game on this board", key="init_state")
        return self._observe()

    def step(self, action: Any) -> BaseEnvTimestep:  # type: ignore[override]  # BaseEnv's signature
        """Play a move; in the modes against a bot or human, also play the reply.

        Args:
            action: an int, or an integer array of one element.

        Raises:
            StateError: called before a reset, or the game is over.
            SpaceError: the action is illegal and illegal_action is 'raise', or it is an array of several elements.
            TypeError: the action has another type.
        """
        if self._position is None or self._position.is_over:
            when = "before a reset" if self._position is None else "after the end of the game; reset it"
            raise StateError(f"step of {self!r} {when}")
        given = normalise_action(action, self.action_space)
        if not isinstance(given, int):
            expected = "an int, or an integer array of one element"
            raise SpaceError(f"action: expected {expected}, got {action!r}", path="action", expected=expected)
        played = self._replace_action(given)
        self._play(played)
        if self.battle_mode != SELF_PLAY and not self._position.is_over:
            self._play(self._other_action())
        info: dict[str, Any] = {} if played == given else {"played_action": played}
        score = self.get_done_reward()
        reward = 0.0
        if score is not None:
            info.update(eval_episode_return=score, terminated=True, truncated=False)
            reward = abs(score) if self.battle_mode == SELF_PLAY else score
            if is_replaying():
                self.frames = []  # the file was written when the game was first played
            elif self.render_mode == "image_savefile_mode":
                self.save_render_output(replay_path=self._cfg.replay_path, format=self._cfg.replay_format)
        return BaseEnvTimestep(self._observe(), np.array([reward], np.float32), score is not None, info)

    def _replace_action(self, action: Any) -> int:
        """Return the action to play: the given one, or another one by chance or because the given one is illegal."""
        if self.battle_mode == SELF_PLAY:
            if self._chance(self._cfg.prob_random_agent):
                return self.random_action()
            if self._chance(self._cfg.prob_expert_agent):
                return self.bot_action()
        legal = self.position.legal_actions()
        if action in legal:
            return int(action)
        message = f"action: expected one of the legal {legal}, got {action!r}"
        if self._cfg.illegal_action == "raise":
            raise SpaceError(message, path="action", expected=str(legal), got=repr(action))
        if not self._warned:  # a policy that ignores the mask does it often
            self._warned = True
            text = f"{message}; a random legal one is played instead, here and later: see info['played_action']"
            warn_caller(text)
        return self.random_action()

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self._generator.random() < probability

    def _play(self, action: int) -> None:
        self._position = self.position.advance(action)
        self._show_move()

    def _other_action(self) -> int:
        if self.battle_mode == EVAL and self._cfg.agent_vs_human:
            return self.human_to_action()
        return self.bot_action()

    def random_action(self) -> int:
        """Return a legal action, drawn uniformly; StateError before a reset, or if the game is over."""
        legal = self.legal_actions
        if not legal:
            raise StateError(f"{self!r} has no legal action: the game is over")
        return self._generator.choice(legal)

    def bot_action(self) -> int:
        """Return the bot's action for the player to move; with `prob_random_action_in_bot` it is random."""
        if self._chance(self._cfg.prob_random_action_in_bot):
            return self.random_action()
        return self.bot.choose(self.position, self._generator)

    def human_to_action(self) -> int:
        """Read an action from the terminal, repeatedly until it is legal; blocks. Numbers are entered from 1.

        StateError is raised if there is no terminal, as in a worker.
        """
        if self.render_mode in (None, "image_savefile_mode"):
            self.render("state_realtime_mode")
        legal = self.legal_actions
        while True:
            try:
                text = input(f"player {self.current_player}, {self.human_prompt}: ")
            except EOFError as error:
                message = "agent_vs_human needs a terminal; run the env outside of workers"
                raise StateError(message) from error
            try:
                action = self._parse_human(text)
            except ValueError:
                action = -1
            if action in legal:
                return action
            shown = ", ".join(map(self.action_to_string, legal))
            sys.stdout.write(f"{text!r} is not a legal action; the legal ones are {shown}\n")

    # ---- state of the game -------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The current position; StateError before the first reset."""
        if self._position is None:
            raise StateError(f"{self!r} has no game yet; reset it first")
        return self._position

    @property
    def legal_actions(self) -> list[int]:
        """The legal actions, ascending; empty when the game is over."""
        return self.position.legal_actions()

    @property
    def current_player_index(self) -> int:
        """Index of the player to move, 0 or 1."""
        return self.position.player

    @property
    def current_player(self) -> int:
        """The player to move, 1 or 2."""
        return PLAYERS[self.position.player]

    def current_state(self) -> tuple[Any, Any]:
        """Return (raw, scaled) planes of `observation`, for LightZero's AlphaZero; they differ if `scale` is set."""
        shown = self._show(self.position)["observation"]
        return shown * self._divisor, shown

    def get_done_winner(self) -> tuple[bool, int]:
        """Return (whether the game is over, winner), where the winner is 1, 2, or -1 if there is none."""
        position = self.position
        return position.is_over, -1 if position.winner is None else PLAYERS[position.winner]

    def get_done_reward(self) -> float | None:
        """Return the result for player 1, 1.0 (won), -1.0 (lost) or 0.0 (draw); None if the game is not over."""
        return self.position.result(0) if self.position.is_over else None

    def simulate_action(self, action: int) -> BoardEnv:
        """Return a copy of this env after one more move; this env is not changed. SpaceError: the action is not legal.

        The copy has mode `battle_mode_in_simulation_env`, does not render, and continues with a copy of this env's
        random generator.
        """
        legal = self.legal_actions
        if action not in legal:
            raise SpaceError(f"simulate_action: expected one of the legal {legal}, got {action!r}", path="action")
        other = copy.copy(self)
        other._position = self.position.play(int(action))
        other._seeds = copy.copy(self._seeds)
        other._generator = copy.copy(self._generator)
        other.render_mode, other._video_folder, other.frames = None, None, []
        if self.battle_mode != self._cfg.battle_mode_in_simulation_env:
            other.battle_mode = self._cfg.battle_mode_in_simulation_env
            other._set_spaces()
        return other

    # ---- rendering ---------------------------------------------------------------------------

    def _show_move(self) -> None:
        mode = self.render_mode
        if mode == "image_savefile_mode" or (mode not in (None, "rgb_array") and not is_replaying()):
            self.render(mode)

    def render(self, mode: str | None = None) -> Any:
        """Show the board.

        Args:
            mode: 'state_realtime_mode' prints the board, 'image_realtime_mode' shows it in a window,
                'image_savefile_mode' appends a picture to `frames`, 'rgb_array' returns a picture. None means the
                env's `render_mode`, or 'rgb_array' if it has none.

        Returns:
            A picture, uint8 (height, width, 3), in mode 'rgb_array'; else None.

        Raises:
            ConfigError: the mode is unknown.
            StateError: called before the first reset.
            DependencyError: pygame, which the window needs, is missing.
        """
        mode = mode or self.render_mode or "rgb_array"
        if mode not in RENDER_MODES:
            raise ConfigError(f"mode: expected one of {RENDER_MODES}, got {mode!r}", key="mode")
        if mode == "state_realtime_mode":
            sys.stdout.write(self.board_to_string() + "\n")
            return None
        picture = self.draw()
        if mode == "rgb_array":
            return picture
        if mode == "image_savefile_mode":
            self.frames.append(picture)
        else:
            if self._window is None:
                self._window = GameWindow(str(self))
            self._window.show(picture)
        return None

    def save_render_output(
        self, replay_name_suffix: str = "", replay_path: str | None = None, format: str = "gif"
    ) -> str:
        """Write `frames` to a new file, then clear them; return its path.

        `replay_name_suffix` is added to the name of the env in the file name. The other arguments are the folder and
        the format of `save_frames`, which also raises the errors.
        """
        name = str(self._cfg.env_id or type(self).__name__)
        if replay_name_suffix:
            name += f"-{replay_name_suffix}"
        self.saved_path = save_frames(self.frames, name, replay_path, format, self.metadata["render_fps"])
        self.frames = []
        return self.saved_path

    def enable_save_replay(self, replay_path: str | None = None) -> None:
        """Save a file for each game, starting at the next reset; None means the folder './video'."""
        self._video_folder = DEFAULT_FOLDER if replay_path is None else replay_path

    def close(self) -> None:
        """Close the window and drop the game; a later reset starts a new game."""
        self._position = None
        self.frames = []
        if self._window is not None:
            self._window.close()
            self._window = None

    @staticmethod
    def create_evaluator_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one config per evaluator env, like `BaseEnv`, with `battle_mode` 'eval_mode' in each."""
        return copy_env_cfg(cfg, "evaluator_env_num", battle_mode=EVAL)

    def __getstate__(self) -> dict[str, Any]:
        # A window belongs to this process and cannot be copied; a copy opens its own with its first picture.
        return {**vars(self), "_window": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.battle_mode})"


if TYPE_CHECKING:
    BoardPart = BoardEnv
else:
    #: Base of the parts of games, which a game names before `BoardEnv` in its list of bases.
    BoardPart = object
