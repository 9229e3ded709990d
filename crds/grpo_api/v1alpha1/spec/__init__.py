"""The spec of a GRPOJob: a file for each section, with the rules about it.

Names follow TRL, vLLM and batch/v1; units are in the names. A rule about two sections is in the file of the
one that its message asks to change. `job_spec` puts the sections together; `resolve` makes a RunConfig of
them.
"""

from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec, DynamicSamplingSpec, OptimizerSpec, Schedule
from grpo_api.v1alpha1.spec.checkpoint import CheckpointSpec
from grpo_api.v1alpha1.spec.colocated import ColocatedExecutor, ColocatedSpec
from grpo_api.v1alpha1.spec.dataset import DatasetSpec
from grpo_api.v1alpha1.spec.deepspeed import DeepSpeedSpec
from grpo_api.v1alpha1.spec.engine import EngineProcess, EngineSpec
from grpo_api.v1alpha1.spec.entropy import EntropySpec
from grpo_api.v1alpha1.spec.evaluation import EvalSpec
from grpo_api.v1alpha1.spec.export import ExportSpec
from grpo_api.v1alpha1.spec.failure_policy import FailurePolicySpec
from grpo_api.v1alpha1.spec.hub import HubSpec
from grpo_api.v1alpha1.spec.job_spec import GRPOJobSpec, Mode
from grpo_api.v1alpha1.spec.lora import ALL_LINEAR, LoraSpec
from grpo_api.v1alpha1.spec.loss import (
    Aggregation,
    Baseline,
    ImportanceCorrectionMode,
    ImportanceCorrectionSpec,
    KLEstimator,
    KLSpec,
    LossType,
    RatioLevel,
    RefSyncSpec,
    ScaleRewards,
)
from grpo_api.v1alpha1.spec.model import Attention, Dtype, ModelSpec
from grpo_api.v1alpha1.spec.report import ReportSpec
from grpo_api.v1alpha1.spec.resources import ResourcesSpec
from grpo_api.v1alpha1.spec.resume import ResumeFromSpec, ResumeLoad
from grpo_api.v1alpha1.spec.rewards import (
    MOST_THREADS,
    MOST_WORKERS,
    BuiltinReward,
    RewardModelSpec,
    RewardServiceSpec,
    RewardSpec,
)
from grpo_api.v1alpha1.spec.rollout import RolloutSpec
from grpo_api.v1alpha1.spec.rollout_function import RolloutFunctionSpec
from grpo_api.v1alpha1.spec.run_sections import RunSections
from grpo_api.v1alpha1.spec.sampling import SamplingSpec
from grpo_api.v1alpha1.spec.trackers import TrackerName, TrackerSpec
from grpo_api.v1alpha1.spec.trainer import TrainerSpec, TrainerStrategy
from grpo_api.v1alpha1.spec.user_code import CodeRef
from grpo_api.v1alpha1.spec.weight_sync import WeightSyncBackend, WeightSyncSpec

__all__ = [
    "ALL_LINEAR",
    "MOST_THREADS",
    "MOST_WORKERS",
    "Aggregation",
    "AlgorithmSpec",
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
    "EvalSpec",
    "ExportSpec",
    "FailurePolicySpec",
    "GRPOJobSpec",
    "HubSpec",
    "ImportanceCorrectionMode",
    "ImportanceCorrectionSpec",
    "KLEstimator",
    "KLSpec",
    "LoraSpec",
    "LossType",
    "Mode",
    "ModelSpec",
    "OptimizerSpec",
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
    "TrackerName",
    "TrackerSpec",
    "TrainerSpec",
    "TrainerStrategy",
    "WeightSyncBackend",
    "WeightSyncSpec",
]
