"""The sections of a spec that every pod gets."""

from typing import Annotated

from pydantic import Field

from grpo_api.keyed_list import KeyedBy
from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.checkpoint import CheckpointSpec
from grpo_api.v1alpha1.spec.colocated import ColocatedSpec, has_own_process, is_on_ray
from grpo_api.v1alpha1.spec.dataset import DatasetSpec
from grpo_api.v1alpha1.spec.engine import EngineSpec
from grpo_api.v1alpha1.spec.export import ExportSpec
from grpo_api.v1alpha1.spec.hub import HubSpec
from grpo_api.v1alpha1.spec.model import ModelSpec
from grpo_api.v1alpha1.spec.report import ReportSpec
from grpo_api.v1alpha1.spec.resume import ResumeFromSpec
from grpo_api.v1alpha1.spec.rewards import RewardSpec
from grpo_api.v1alpha1.spec.sampling import SamplingSpec
from grpo_api.v1alpha1.spec.trackers import TrackerSpec
from grpo_api.v1alpha1.spec.weight_sync import WeightSyncSpec


class RunSections(ApiModel):
    """A section that is declared here is a part of a GRPOJob's spec and of the RunConfig that its pods read.
    Nothing else has to name it."""

    model: ModelSpec
    """The policy to start from."""
    dataset: DatasetSpec
    """Where prompts come from."""
    rewards: Annotated[tuple[RewardSpec, ...], Field(min_length=1, max_length=16), KeyedBy("name")]
    """Reward functions; their weighted sum is the reward."""
    algorithm: AlgorithmSpec
    """GRPO and its numbers."""
    sampling: SamplingSpec = SamplingSpec()
    """How completions are sampled."""
    engine: EngineSpec = EngineSpec()
    """vLLM's settings."""
    colocated: ColocatedSpec | None = None
    """What starts the engines of mode Colocated; only in that mode."""
    weight_sync: WeightSyncSpec = WeightSyncSpec()
    """How engines get new weights."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When to save and where."""
    resume_from: ResumeFromSpec | None = None
    """Begin with a checkpoint of another job. Everything else may be different in this one, such as
    resources, placement and image. As soon as this job has a checkpoint of its own it goes on from that."""
    hub: HubSpec = HubSpec()
    """How `hf://` models and datasets are downloaded from the Hugging Face Hub."""
    export: Annotated[tuple[ExportSpec, ...], Field(max_length=8), KeyedBy("to")] | None = None
    """Where the trained model is uploaded to when every step is done; `model/` in the output directory stays.
    The job is complete when all have it. Name `checkpoint.claimName` too: without it a model whose upload
    fails is lost with the pod."""
    report: Annotated[ReportSpec, NOT_STORED] = ReportSpec()
    """What people read of the run, beside its metrics."""
    trackers: Annotated[tuple[TrackerSpec, ...], Field(max_length=2), KeyedBy("name")] | None = None
    """Services that get the metrics of every step, beside `metrics.jsonl` and TensorBoard's files."""

    @property
    def has_own_process(self) -> bool:
        """Whether a colocated engine lives in another process than its rank."""
        return has_own_process(self.engine, self.colocated)

    @property
    def is_on_ray(self) -> bool:
        """Whether colocated engines are actors of a Ray cluster of the job."""
        return is_on_ray(self.colocated)
