"""The spec of a GRPOJob: a file for each section, with the rules about it; small sections are with the one
that they belong to.

Names follow TRL, vLLM and batch/v1; units are in the names. A rule about two sections is in the file of the
one that its message asks to change. `run_sections` and `job_spec` put the sections together; `resolve` makes
a RunConfig of them.
"""

from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec, DynamicSamplingSpec, OptimizerSpec, Schedule
from grpo_api.v1alpha1.spec.asynchronous import AsyncSpec, KvCache, PauseMode, StalePolicy, TrainedOrder
from grpo_api.v1alpha1.spec.checkpoint import CheckpointSpec, ResumeFromSpec, ResumeLoad
from grpo_api.v1alpha1.spec.colocated import ColocatedExecutor, ColocatedSpec
from grpo_api.v1alpha1.spec.dataset import DatasetSpec, EvalSpec
from grpo_api.v1alpha1.spec.engine import EngineProcess, EngineSpec
from grpo_api.v1alpha1.spec.environments import (
    EnvironmentSpec,
    EpisodeLimitsSpec,
    McpServerSpec,
    ToolsSpec,
)
from grpo_api.v1alpha1.spec.export import ExportSpec
from grpo_api.v1alpha1.spec.failure_policy import (
    FailedRole,
    FailureAction,
    FailurePolicySpec,
    FailureRule,
)
from grpo_api.v1alpha1.spec.fields import CodeRef
from grpo_api.v1alpha1.spec.job_spec import MANAGED_BY_US, GRPOJobSpec, Mode
from grpo_api.v1alpha1.spec.loss import (
    Aggregation,
    Baseline,
    EntropySpec,
    GeometricMaskSpec,
    ImportanceCorrectionMode,
    ImportanceCorrectionSpec,
    KLEstimator,
    KLSpec,
    LossType,
    RatioLevel,
    RefSyncSpec,
    ScaleRewards,
    TrustRegionMaskSpec,
)
from grpo_api.v1alpha1.spec.model import ALL_LINEAR, Attention, Dtype, LoraSpec, ModelSpec
from grpo_api.v1alpha1.spec.report import ReportSpec, TrackerName, TrackerSpec
from grpo_api.v1alpha1.spec.resources import ResourcesSpec
from grpo_api.v1alpha1.spec.rewards import (
    MOST_THREADS,
    MOST_WORKERS,
    BuiltinReward,
    RewardModelSpec,
    RewardServiceSpec,
    RewardSpec,
)
from grpo_api.v1alpha1.spec.rollout import RolloutSpec
from grpo_api.v1alpha1.spec.run_sections import HubSpec, RunSections
from grpo_api.v1alpha1.spec.sampling import History, RolloutFunctionSpec, SamplingSpec
from grpo_api.v1alpha1.spec.scheduling import Gang, PodTopologySpec, SchedulingSpec, TopologySpec
from grpo_api.v1alpha1.spec.trainer import DeepSpeedSpec, TrainerSpec, TrainerStrategy
from grpo_api.v1alpha1.spec.weight_sync import WeightSyncBackend, WeightSyncSpec

__all__ = [
    "ALL_LINEAR",
    "MANAGED_BY_US",
    "MOST_THREADS",
    "MOST_WORKERS",
    "Aggregation",
    "AlgorithmSpec",
    "AsyncSpec",
    "Attention",
    "Baseline",
    "BuiltinReward",
    "CheckpointSpec",
    "CodeRef",
    "ColocatedExecutor",
    "ColocatedSpec",
    "DatasetSpec",
    "DeepSpeedSpec",
    "Dtype",
    "DynamicSamplingSpec",
    "EngineProcess",
    "EngineSpec",
    "EntropySpec",
    "EnvironmentSpec",
    "EpisodeLimitsSpec",
    "EvalSpec",
    "ExportSpec",
    "FailedRole",
    "FailureAction",
    "FailurePolicySpec",
    "FailureRule",
    "GRPOJobSpec",
    "Gang",
    "GeometricMaskSpec",
    "History",
    "HubSpec",
    "ImportanceCorrectionMode",
    "ImportanceCorrectionSpec",
    "KLEstimator",
    "KLSpec",
    "KvCache",
    "LoraSpec",
    "LossType",
    "McpServerSpec",
    "Mode",
    "ModelSpec",
    "OptimizerSpec",
    "PauseMode",
    "PodTopologySpec",
    "RatioLevel",
    "RefSyncSpec",
    "ReportSpec",
    "ResourcesSpec",
    "ResumeFromSpec",
    "ResumeLoad",
    "RewardModelSpec",
    "RewardServiceSpec",
    "RewardSpec",
    "RolloutFunctionSpec",
    "RolloutSpec",
    "RunSections",
    "SamplingSpec",
    "ScaleRewards",
    "Schedule",
    "SchedulingSpec",
    "StalePolicy",
    "ToolsSpec",
    "TopologySpec",
    "TrackerName",
    "TrackerSpec",
    "TrainedOrder",
    "TrainerSpec",
    "TrainerStrategy",
    "TrustRegionMaskSpec",
    "WeightSyncBackend",
    "WeightSyncSpec",
]
