"""vecenv: steps many reinforcement-learning environments in parallel on one machine.

    VectorEnv, make_vec             step Gymnasium envs: a drop-in for AsyncVectorEnv, with `send` and `recv`
    BatchedVectorEnv                step envs that are vectorised themselves, such as CartPoleVectorEnv
    ding                            DI-engine and LightZero: for `ding.envs`; env managers, wrappers, board games
    alf                             ALF: batched environments of time steps, and wrappers
    integrations.sb3.SB3VecEnv      Stable-Baselines3: in place of SubprocVecEnv; integrations.torch: tensors
    Collector, collect, evaluate    make batches of transitions; play episodes with given seeds
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

__version__ = "0.2.0"

# Module -> its public names. A new module is one line below, too.
_NAMES = {
    "collection": "Collector Transitions collect",
    "env_snapshot": "EnvSnapshot",
    "envs.check.check": "CheckError check_all",
    "envs.check.recovery": "RecoveryReport check_recovery",
    "envs.spaces": "NoneSpace ObjectSpace",
    "envs.state.state": "register_pickled_state register_state_adapter",
    "errors": (
        "ClosedError ConfigError DependencyError DifferentSpacesError EnvError ErrorRows InternalError "
        "NotASequenceError PerformanceWarning ShortageError SpaceError StateError UnknownNameError VecenvError "
        "WorkerDiedError WorkerError WorkerTimeoutError WrongTypeError"
    ),
    "evaluation": "Comparison EpisodeResult Evaluation compare evaluate",
    "gymnasium_api.replaying": "is_replaying",
    "options": "EngineOptions FailurePolicy Timeouts",
    "ray_options": "RayOptions",
    "report": "Report Verdict",
    "serving.leases": "lease",
    "statistics": "CallerTimes Durations EnvTimes ShardInfo Shards Statistics WorkerTimes",
    "tuning.result": "TuneCandidate TuneResult",
    "tuning.search": "tune",
    "vector": "BatchedVectorEnv VectorEnv make_vec register_vec",
}

# Names that have moved: part of the package -> names. The old ones work in this release.
_MOVED = {
    "alf": (
        "AlfEnvironment AlfEnvironmentBaseWrapper AlfGymWrapper BoundedTensorSpec ParallelAlfEnvironment StepType "
        "TensorSpec ThreadEnvironment TimeLimit TimeStep create_environment time_step_spec"
    ),
    "ding": (
        "ActionDiscretizationEnvWrapper ActionRepeatWrapper AllinObsWrapper AlphaBetaBot AsyncSubprocessEnvManager "
        "BaseEnv BaseEnvManager BaseEnvManagerV2 BaseEnvTimestep BoardEnv ClipRewardEnv ClipRewardWrapper "
        "CloudPickleWrapper Config Connect4Env Connect4RuleBot DelayRewardWrapper DingEnvWrapper ENV_MANAGER_REGISTRY "
        "ENV_REGISTRY ENV_WRAPPER_REGISTRY EnvState EnvWrapper EpisodicLifeEnv EpisodicLifeWrapper "
        "EvalEpisodeReturnWrapper FireResetEnv FireResetWrapper FlatObsWrapper FrameStack FrameStackWrapper GomokuEnv "
        "GomokuRuleBotV0 GomokuRuleBotV1 GymHybridDictActionWrapper GymToGymnasiumWrapper GymVectorEnvManager "
        "HybridEnv LightZeroEnvWrapper MCTSBot MaxAndSkipEnv MaxAndSkipWrapper NoopResetEnv NoopResetWrapper "
        "ObsNormEnv ObsNormWrapper ObsPlusPrevActRewWrapper ObsTransposeWrapper RamWrapper RayEnvManager RecordVideo "
        "Registry RewardNormEnv RewardNormWrapper RunningMeanStd ScaledFloatFrame ScaledFloatFrameWrapper ShmBuffer "
        "ShmBufferContainer StaticObsNormWrapper SubprocessEnvManagerV2 SyncSubprocessEnvManager TicTacToeEnv "
        "TicTacToeRuleBot TimeLimitWrapper TransposeWrapper TreeArray TwoAgentEnv WarpFrame WarpFrameWrapper "
        "affine_transform check_array_space check_different_memory check_obs_deepcopy check_reset check_space_dtype "
        "check_step create_env_manager create_env_wrapper deep_merge_dicts demonstrate_correct_procedure "
        "get_default_wrappers get_env_cls get_env_manager_cls get_vec_env_setting get_wrappered_env to_ndarray "
        "update_shape"
    ),
    "envs.spaces": "LooseSpace",
    "integrations.envpool": "make",
}
_MODULE_OF, _HOME_OF = (
    {name: module for module, names in table.items() for name in names.split()} for table in (_NAMES, _MOVED)
)

if TYPE_CHECKING:  # the `__all__` of each module lists its names in this namespace
    from vecenv.collection import *
    from vecenv.env_snapshot import *
    from vecenv.envs.check.check import CheckError as CheckError
    from vecenv.envs.check.check import check_all as check_all
    from vecenv.envs.check.recovery import *
    from vecenv.envs.spaces import NoneSpace as NoneSpace
    from vecenv.envs.spaces import ObjectSpace as ObjectSpace
    from vecenv.envs.state.state import *
    from vecenv.errors import *
    from vecenv.evaluation import *
    from vecenv.gymnasium_api.replaying import *
    from vecenv.options import *
    from vecenv.ray_options import *
    from vecenv.report import *
    from vecenv.serving.leases import *
    from vecenv.statistics import *
    from vecenv.tuning.result import *
    from vecenv.tuning.search import *
    from vecenv.vector import *

# Parts of the package can be read without an import of their own. Otherwise that would work only after one of their
# names had been read.
_PARTS = {module.partition(".")[0] for module in (*_MODULE_OF.values(), *_MOVED, "managers", "wrappers")}

__all__ = sorted([*_MODULE_OF, "__version__"])


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    if name in _HOME_OF:
        import warnings

        home = f"{__name__}.{_HOME_OF[name]}"
        text = f"vecenv.{name} has moved to {home}.{name}. The old name works until the next release"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(import_module(home), name)
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value  # the next read does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF, *_PARTS})
