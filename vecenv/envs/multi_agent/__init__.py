"""Envs of PettingZoo behind the calls of Gymnasium.

parallel    parts that these adapters have in common
rows        `AgentRowsEnv`, a vector env with one row per agent; used by `integrations.pettingzoo`
joint       `JointEnv`, one env whose action contains the actions of all agents
turns       `TurnEnv`, one env whose step is the move of one agent
"""
