"""vecenv: steps many reinforcement-learning environments in parallel on one machine.

    VectorEnv, make_vec             step Gymnasium envs: a drop-in for AsyncVectorEnv, with `send` and `recv`
    BatchedVectorEnv                step envs that are vectorised themselves, such as CartPoleVectorEnv
    create_env_manager              DI-engine and LightZero: an env manager from a config, {env_id: action}
    create_environment              ALF: a batched environment of time steps; `vecenv.alf` has its wrappers
    integrations.sb3.SB3VecEnv      Stable-Baselines3: in place of SubprocVecEnv; integrations.torch: tensors
    DingEnvWrapper, wrappers        turn a Gymnasium env into a DI-engine env, and wrap envs inside the workers
    Timeouts, FailurePolicy         limit the time of each operation, and choose what happens after a crash
    check_all, check_recovery, tune test an env of your own, also for recovery after a crash; find the fastest options
    register_state_adapter          save and restore the state of an env class for recovery; register_pickled_state
    VecenvError, errors             the base of all errors, and the module that has them and explains each

A public name imports its module when it is first read, and so does a part of the package, such as `vecenv.alf`;
`import vecenv` itself loads no other module. Workers need that to limit the threads of NumPy's BLAS before NumPy is
loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Module of each public name. A new name is one line here; a new module is one line below, too.
_MODULE_OF = {
    "ActionDiscretizationEnvWrapper": "wrappers",
    "ActionRepeatWrapper": "wrappers",
    "AlfEnvironment": "alf.base.environment",
    "AlfEnvironmentBaseWrapper": "alf.wrappers.base",
    "AlfGymWrapper": "alf.gym.wrapper",
    "AllinObsWrapper": "wrappers",
    "AlphaBetaBot": "envs.board",
    "AsyncSubprocessEnvManager": "managers",
    "BaseEnv": "envs.base",
    "BaseEnvManager": "managers",
    "BaseEnvManagerV2": "managers",
    "BaseEnvTimestep": "envs.base",
    "BatchedVectorEnv": "vector",
    "BoundedTensorSpec": "alf.base.spec",
    "BoardEnv": "envs.board",
    "CallerTimes": "statistics",
    "CheckError": "envs.check.check",
    "ClipRewardEnv": "wrappers",
    "ClipRewardWrapper": "wrappers",
    "ClosedError": "errors",
    "CloudPickleWrapper": "envs.buffers",
    "Collector": "collection",
    "Comparison": "evaluation",
    "Config": "config",
    "ConfigError": "errors",
    "Connect4Env": "envs.board",
    "Connect4RuleBot": "envs.board",
    "DelayRewardWrapper": "wrappers",
    "DependencyError": "errors",
    "DifferentSpacesError": "errors",
    "DingEnvWrapper": "wrappers.ding",
    "ENV_MANAGER_REGISTRY": "registry",
    "ENV_REGISTRY": "registry",
    "ENV_WRAPPER_REGISTRY": "registry",
    "Durations": "statistics",
    "EnvError": "errors",
    "ErrorRows": "errors",
    "EnvState": "managers",
    "EnvTimes": "statistics",
    "EnvWrapper": "wrappers",
    "EpisodeResult": "evaluation",
    "EpisodicLifeEnv": "wrappers",
    "EpisodicLifeWrapper": "wrappers",
    "EvalEpisodeReturnWrapper": "wrappers",
    "Evaluation": "evaluation",
    "FailurePolicy": "options",
    "FireResetEnv": "wrappers",
    "FireResetWrapper": "wrappers",
    "FlatObsWrapper": "wrappers",
    "FrameStack": "wrappers",
    "FrameStackWrapper": "wrappers",
    "GomokuEnv": "envs.board",
    "GomokuRuleBotV0": "envs.board",
    "GomokuRuleBotV1": "envs.board",
    "GymHybridDictActionWrapper": "wrappers",
    "GymToGymnasiumWrapper": "wrappers",
    "GymVectorEnvManager": "managers",
    "HybridEnv": "envs.agents",
    "InternalError": "errors",
    "PerformanceWarning": "errors",
    "LightZeroEnvWrapper": "wrappers",
    "LooseSpace": "envs.spaces",
    "MCTSBot": "envs.board",
    "MaxAndSkipEnv": "wrappers",
    "MaxAndSkipWrapper": "wrappers",
    "NoneSpace": "envs.spaces",
    "NoopResetEnv": "wrappers",
    "NoopResetWrapper": "wrappers",
    "ObjectSpace": "envs.spaces",
    "NotASequenceError": "errors",
    "ObsNormEnv": "wrappers",
    "ObsNormWrapper": "wrappers",
    "ObsPlusPrevActRewWrapper": "wrappers",
    "ObsTransposeWrapper": "wrappers",
    "ParallelAlfEnvironment": "alf.batched.parallel",
    "RamWrapper": "wrappers",
    "RayEnvManager": "managers",
    "RayOptions": "ray_options",
    "RecordVideo": "wrappers",
    "RecoveryReport": "envs.check.recovery",
    "Registry": "registry",
    "Report": "report",
    "RewardNormEnv": "wrappers",
    "RewardNormWrapper": "wrappers",
    "RunningMeanStd": "wrappers",
    "ScaledFloatFrame": "wrappers",
    "ScaledFloatFrameWrapper": "wrappers",
    "ShardInfo": "statistics",
    "ShmBuffer": "envs.buffers",
    "ShmBufferContainer": "envs.buffers",
    "ShortageError": "errors",
    "SpaceError": "errors",
    "StateError": "errors",
    "Statistics": "statistics",
    "StaticObsNormWrapper": "wrappers",
    "StepType": "alf.base.timestep",
    "SubprocessEnvManagerV2": "managers",
    "SyncSubprocessEnvManager": "managers",
    "TensorSpec": "alf.base.spec",
    "ThreadEnvironment": "alf.batched.thread",
    "TimeLimit": "alf.wrappers.base",
    "TicTacToeEnv": "envs.board",
    "TicTacToeRuleBot": "envs.board",
    "TimeLimitWrapper": "wrappers",
    "TimeStep": "alf.base.timestep",
    "Timeouts": "options",
    "Transitions": "collection",
    "TransposeWrapper": "wrappers",
    "TreeArray": "tree",
    "TuneCandidate": "tuning.result",
    "TuneResult": "tuning.result",
    "TwoAgentEnv": "envs.agents",
    "UnknownNameError": "errors",
    "VecenvError": "errors",
    "VectorEnv": "vector",
    "Verdict": "report",
    "WarpFrame": "wrappers",
    "WarpFrameWrapper": "wrappers",
    "WorkerDiedError": "errors",
    "WorkerError": "errors",
    "WorkerTimeoutError": "errors",
    "WorkerTimes": "statistics",
    "WrongTypeError": "errors",
    "affine_transform": "envs.arrays",
    "check_all": "envs.check.check",
    "check_array_space": "envs.check.check",
    "check_different_memory": "envs.check.check",
    "check_obs_deepcopy": "envs.check.check",
    "check_recovery": "envs.check.recovery",
    "check_reset": "envs.check.check",
    "check_space_dtype": "envs.check.check",
    "check_step": "envs.check.check",
    "collect": "collection",
    "compare": "evaluation",
    "create_env_manager": "managers",
    "create_env_wrapper": "wrappers",
    "create_environment": "alf.create",
    "deep_merge_dicts": "config",
    "demonstrate_correct_procedure": "envs.check.check",
    "evaluate": "evaluation",
    "get_default_wrappers": "wrappers.ding",
    "get_env_cls": "envs.base",
    "get_env_manager_cls": "managers",
    "get_vec_env_setting": "envs.base",
    "get_wrappered_env": "wrappers",
    "is_replaying": "replaying",
    "make": "integrations.envpool.tasks",
    "make_vec": "vector",
    "register_pickled_state": "envs.state.state",
    "register_state_adapter": "envs.state.state",
    "register_vec": "vector",
    "time_step_spec": "alf.base.timestep",
    "to_ndarray": "envs.arrays",
    "tune": "tuning.search",
    "update_shape": "wrappers",
}

if TYPE_CHECKING:  # the `__all__` of each module lists its names in this namespace
    from vecenv.alf.base.environment import *
    from vecenv.alf.base.spec import *
    from vecenv.alf.base.timestep import *
    from vecenv.alf.batched.parallel import *
    from vecenv.alf.batched.thread import *
    from vecenv.alf.create import *
    from vecenv.alf.gym.wrapper import *
    from vecenv.alf.wrappers.base import *
    from vecenv.collection import *
    from vecenv.config import *
    from vecenv.envs.agents import *
    from vecenv.envs.arrays import *
    from vecenv.envs.base import *
    from vecenv.envs.board import *
    from vecenv.envs.buffers import *
    from vecenv.envs.check.check import *
    from vecenv.envs.check.recovery import *
    from vecenv.envs.spaces import *
    from vecenv.envs.state.state import *
    from vecenv.errors import *
    from vecenv.evaluation import *
    from vecenv.integrations.envpool.tasks import *
    from vecenv.managers import *
    from vecenv.options import *
    from vecenv.ray_options import *
    from vecenv.registry import *
    from vecenv.replaying import *
    from vecenv.report import *
    from vecenv.statistics import *
    from vecenv.tree import *
    from vecenv.tuning.result import *
    from vecenv.tuning.search import *
    from vecenv.vector import *
    from vecenv.wrappers import *
    from vecenv.wrappers.ding import *

# Parts of the package that have public names can be read without an import of their own. Otherwise that would work
# only after one of their names had been read.
_PARTS = {module.partition(".")[0] for module in _MODULE_OF.values()}

__all__ = sorted([*_MODULE_OF, "__version__"])


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value  # the next read does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF, *_PARTS})
