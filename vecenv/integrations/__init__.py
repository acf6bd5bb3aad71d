"""Front ends for other libraries; each module imports its library itself and is imported by name.

    envpool              `make`, EnvPool's interface for any Gymnasium env
    pettingzoo           `PettingZooVectorEnv`, a row per agent; `JointEnv` and `TurnEnv`, adapters for one env
    prometheus           `exporter`, which serves the counters of pools to Prometheus
    pufferlib            `VecenvBackend`, a backend of PufferLib's `vector.make`
    rl_games             `VecenvVecEnv`, a vector env of rl_games
    rllib                creators of vector envs for the env runners of RLlib
    rllib_multi_agent    an env runner of RLlib whose multi-agent envs live in worker processes
    sb3                  `SB3VecEnv`, a VecEnv of Stable-Baselines3
    sb3_agents           `SB3AgentVecEnv`, a VecEnv of Stable-Baselines3 with a row per agent
    tianshou             `VecenvVectorEnv`, a vector env of Tianshou
    torch                batches as tensors, without copies on the CPU and with one asynchronous copy to a GPU
    torchrl              `VecenvEnv`, an env of TorchRL
    xuance               `VecenvVecEnv`, a vector env of XuanCe

Without its library a module says which package to install.
"""
