"""Board games with LightZero's calls; importing this package registers `connect4`, `tictactoe` and `gomoku`."""

from vecenv.envs.board.bots import AlphaBetaBot, MCTSBot
from vecenv.envs.board.env import BoardEnv
from vecenv.envs.board.games import Connect4Env, GomokuEnv, TicTacToeEnv
from vecenv.envs.board.rule_bots import Connect4RuleBot, GomokuRuleBotV0, GomokuRuleBotV1, TicTacToeRuleBot

__all__ = [
    "AlphaBetaBot",
    "BoardEnv",
    "Connect4Env",
    "Connect4RuleBot",
    "GomokuEnv",
    "GomokuRuleBotV0",
    "GomokuRuleBotV1",
    "MCTSBot",
    "TicTacToeEnv",
    "TicTacToeRuleBot",
]
