"""The ALF front end: environments whose steps are `TimeStep`s; single, batched, in threads and in worker processes.

    base        TimeStep and its builders, specs, and the interface AlfEnvironment
    gym         a Gymnasium env as an AlfEnvironment; gym wrappers below it
    wrappers    wrappers above it, which change time steps
    batched     parallel: many envs in worker processes, over the pool; thread: one env in a thread
    suite       load: one registered env with its wrappers
    create      create_environment: a batched environment by name

It stands above the pool. `vecenv` exports only the names that are clear on their own. The gym wrappers, `load` and the
builders of time steps are exported here only.
"""

from __future__ import annotations

from vecenv.alf.base.environment import AlfEnvironment
from vecenv.alf.base.spec import BoundedTensorSpec, TensorSpec, tensor_spec_from_gym_space
from vecenv.alf.base.steps import restart, termination, transition, truncation
from vecenv.alf.base.timestep import StepType, TimeStep, time_step_spec
from vecenv.alf.batched.parallel import ParallelAlfEnvironment
from vecenv.alf.batched.thread import ThreadEnvironment
from vecenv.alf.create import create_environment, no_thread_env_for_conf
from vecenv.alf.gym.actions import (
    ContinuousActionClip,
    ContinuousActionMapping,
    FrameSkip,
    NonEpisodicEnv,
    NormalizedAction,
    SparseReward,
)
from vecenv.alf.gym.atari import DMAtariPreprocessing
from vecenv.alf.gym.frames import (
    BaseObservationWrapper,
    EpisodicRandomFrameCrop,
    FrameCrop,
    FrameFlip,
    FrameGrayScale,
    FrameResize,
    FrameStack,
    ImageChannelFirst,
    ObservationClipWrapper,
)
from vecenv.alf.gym.wrapper import AlfGymWrapper
from vecenv.alf.suite import load
from vecenv.alf.wrappers.action import (
    DiscreteActionWrapper,
    NormalizedActionWrapper,
    TemporallyCorrelatedNoiseWrapper,
)
from vecenv.alf.wrappers.base import AlfEnvironmentBaseWrapper, TimeLimit
from vecenv.alf.wrappers.batch import BatchedTensorWrapper, BatchEnvironmentWrapper, TensorWrapper
from vecenv.alf.wrappers.episode import (
    ActionObservationWrapper,
    AtariTerminalOnLifeLossWrapper,
    NonEpisodicAgent,
    RandomFirstEpisodeLength,
    ScalarRewardWrapper,
)
from vecenv.alf.wrappers.task import CurriculumWrapper, MultitaskWrapper

__all__ = [
    "ActionObservationWrapper",
    "AlfEnvironment",
    "AlfEnvironmentBaseWrapper",
    "AlfGymWrapper",
    "AtariTerminalOnLifeLossWrapper",
    "BaseObservationWrapper",
    "BatchEnvironmentWrapper",
    "BatchedTensorWrapper",
    "BoundedTensorSpec",
    "ContinuousActionClip",
    "ContinuousActionMapping",
    "CurriculumWrapper",
    "DMAtariPreprocessing",
    "DiscreteActionWrapper",
    "EpisodicRandomFrameCrop",
    "FrameCrop",
    "FrameFlip",
    "FrameGrayScale",
    "FrameResize",
    "FrameSkip",
    "FrameStack",
    "ImageChannelFirst",
    "MultitaskWrapper",
    "NonEpisodicAgent",
    "NonEpisodicEnv",
    "NormalizedAction",
    "NormalizedActionWrapper",
    "ObservationClipWrapper",
    "ParallelAlfEnvironment",
    "RandomFirstEpisodeLength",
    "ScalarRewardWrapper",
    "SparseReward",
    "StepType",
    "TemporallyCorrelatedNoiseWrapper",
    "TensorSpec",
    "TensorWrapper",
    "ThreadEnvironment",
    "TimeLimit",
    "TimeStep",
    "create_environment",
    "load",
    "no_thread_env_for_conf",
    "restart",
    "tensor_spec_from_gym_space",
    "termination",
    "time_step_spec",
    "transition",
    "truncation",
]
