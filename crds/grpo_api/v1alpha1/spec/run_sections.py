"""The sections of a spec that every pod gets, `hub` among them, and rules about several of them."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import KeyedBy, rule
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.asynchronous import AsyncSpec
from grpo_api.v1alpha1.spec.checkpoint import CheckpointSpec, ResumeFromSpec
from grpo_api.v1alpha1.spec.colocated import ColocatedSpec, has_own_process, is_on_ray
from grpo_api.v1alpha1.spec.dataset import DatasetSpec
from grpo_api.v1alpha1.spec.engine import EngineSpec
from grpo_api.v1alpha1.spec.environments import MOST_ENVIRONMENTS, EnvironmentSpec
from grpo_api.v1alpha1.spec.export import ExportSpec
from grpo_api.v1alpha1.spec.fields import ClaimName
from grpo_api.v1alpha1.spec.model import ModelSpec
from grpo_api.v1alpha1.spec.report import ReportSpec, TrackerName, TrackerSpec
from grpo_api.v1alpha1.spec.rewards import RewardSpec
from grpo_api.v1alpha1.spec.sampling import SamplingSpec
from grpo_api.v1alpha1.spec.weight_sync import WeightSyncSpec


class HubSpec(ApiModel):
    """How `hf://` models and datasets are downloaded from the Hugging Face Hub."""

    token_secret: ClaimName | None = None
    """Secret whose key `token` is an access token, for private or gated repositories. Pods mount it as a
    file."""
    cache_claim: ClaimName | None = None
    """PersistentVolumeClaim with the Hub's cache. All pods mount it, so that files are downloaded once and
    kept for the next job. Without it every pod downloads them itself."""
    offline: bool = False
    """Use only files that are in the cache, and never ask the Hub."""


class RunSections(ApiModel):
    """A section that is declared here is a part of a GRPOJob's spec and of the RunConfig that its pods read.
    Nothing else has to name it."""

    model: ModelSpec
    """The policy to start from."""
    dataset: DatasetSpec | None = None
    """Where prompts come from. A job with environments may do without: their agents then get a number from 0
    to 9999 as the prompt, the same for all completions of a group, to make a task of."""
    rewards: Annotated[tuple[RewardSpec, ...], Field(min_length=1, max_length=16), KeyedBy("name")] | None = (
        None
    )
    """Reward functions. The reward of a completion is their weighted sum. A job with environments may do
    without: what an agent returns is the reward then."""
    algorithm: AlgorithmSpec
    """GRPO: how long to train, on how many prompts and completions, with which loss and optimizer."""
    sampling: SamplingSpec = SamplingSpec()
    """How completions are sampled."""
    environments: (
        Annotated[
            tuple[EnvironmentSpec, ...], Field(min_length=1, max_length=MOST_ENVIRONMENTS), KeyedBy("name")
        ]
        | None
    ) = None
    """Agents that make the completions, each by as many calls of OpenAI's API as it likes. Without any, a
    completion is one reply to its prompt."""
    engine: EngineSpec = EngineSpec()
    """vLLM's settings."""
    colocated: ColocatedSpec | None = None
    """How the engines of mode Colocated are started. Only in that mode."""
    weight_sync: WeightSyncSpec = WeightSyncSpec()
    """How engines get new weights."""
    asynchronous: Annotated[AsyncSpec | None, Field(alias="async")] = None
    """Sample and train at the same time: engines sample ahead while the trainer trains on what they sampled
    before, with weights that are a few steps older. Only in mode Disaggregated. Without it every step samples
    with the newest weights, and then trains."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When to save and where."""
    resume_from: ResumeFromSpec | None = None
    """Begin with a checkpoint of another job. The rest of the spec may differ from that job's, such as
    resources, placement and image. Once this job has a checkpoint of its own, it continues from that."""
    hub: HubSpec = HubSpec()
    """How `hf://` models and datasets are downloaded from the Hugging Face Hub."""
    export: Annotated[tuple[ExportSpec, ...], Field(max_length=8), KeyedBy("to")] | None = None
    """Destinations that the trained model is uploaded to after the last step. The job is complete once all of
    them have it. The copy in `model/` of the output directory stays. Set `checkpoint.claimName` too: without
    a claim, a model whose upload fails is lost with the pod."""
    report: Annotated[ReportSpec, NOT_STORED] = ReportSpec()
    """What is written for people to read, in addition to the metrics."""
    trackers: (
        Annotated[tuple[TrackerSpec, ...], Field(max_length=len(TrackerName)), KeyedBy("name")] | None
    ) = None
    """Services that get the metrics of every step, in addition to `metrics.jsonl` and the files for
    TensorBoard."""

    @property
    def engine_has_own_process(self) -> bool:
        """Whether a colocated engine lives in another process than its rank."""
        return has_own_process(self.engine, self.colocated)

    @property
    def is_on_ray(self) -> bool:
        """Whether colocated engines are actors of a Ray cluster of the job."""
        return is_on_ray(self.colocated)


# Rules across sections


@rule(
    cel="!has(self.export) || !self.hub.offline || self.export.all(e, !e.to.startsWith('hf://'))",
    sentence="hub.offline keeps every pod from the Hub, and export.to names a repository there: remove one",
    field=".export",
)
def export_reaches_the_hub(export: tuple[ExportSpec, ...] | None, hub: HubSpec) -> bool:
    """An upload needs the network."""
    return not (hub.offline and any(destination.is_hub for destination in export or ()))


@rule(
    cel="!has(self.engine.compiledCacheClaim) || !([has(self.checkpoint.claimName) ? "
    "self.checkpoint.claimName : '', has(self.hub.cacheClaim) ? self.hub.cacheClaim : '']"
    ".exists(claim, claim == self.engine.compiledCacheClaim) || has(self.weightSync.disk) && "
    "self.weightSync.disk.to.startsWith('pvc://' + self.engine.compiledCacheClaim + '/'))",
    sentence="engine.compiledCacheClaim is also the claim of the checkpoints, of the Hub's cache or of "
    "weightSync.disk, to which others write, and the code in a compiled cache is run without a "
    "check: name a claim that nothing else uses",
    field=".engine.compiledCacheClaim",
)
def compiled_cache_has_its_own_claim(
    engine: EngineSpec, checkpoint: CheckpointSpec, hub: HubSpec, weight_sync: WeightSyncSpec
) -> bool:
    """Reward functions run where the checkpoints and the weights are written, and other jobs write to the
    cache of the Hub."""
    claim, disk = engine.compiled_cache_claim, weight_sync.disk
    is_weight_claim = disk is not None and disk.to.startswith(f"pvc://{claim}/")
    return claim is None or not (claim in (checkpoint.claim_name, hub.cache_claim) or is_weight_claim)
