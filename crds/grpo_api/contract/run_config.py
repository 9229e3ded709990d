"""The RunConfig: what all pods of a job read, except secrets.

Its sections are those of the spec. In a Resolved one, what depends on other fields is written out:
`grpo_api.resolve` does that, and the code that reads it has no defaults of its own.
"""

import hashlib
import json
from typing import Any

from grpo_api.contract.versions import SCHEMA_VERSION, require_schema_version
from grpo_api.contract.weight_sync_choice import REGISTRY_NAMES
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.dataset import DatasetSpec
from grpo_api.v1alpha1.spec.engine import EngineSpec
from grpo_api.v1alpha1.spec.job_spec import Mode
from grpo_api.v1alpha1.spec.loss import RatioLevel
from grpo_api.v1alpha1.spec.model import Dtype, LoraSpec, ModelSpec
from grpo_api.v1alpha1.spec.rewards import RewardModelSpec, RewardSpec
from grpo_api.v1alpha1.spec.run_sections import RunSections
from grpo_api.v1alpha1.spec.sampling import SamplingSpec
from grpo_api.v1alpha1.spec.trainer import DeepSpeedSpec, TrainerStrategy
from grpo_api.v1alpha1.spec.weight_sync import WeightSyncBackend, WeightSyncSpec


class ResolvedLora(LoraSpec):
    """An adapter with its scale resolved."""

    alpha: int


class ResolvedModel(ModelSpec):
    """The policy, with its precision resolved."""

    dtype: Dtype
    lora: ResolvedLora | None = None


class ResolvedAlgorithm(AlgorithmSpec):
    """The algorithm, with what depends on its loss. `clip_high` is None for a loss without an upper clip."""

    ratio_level: RatioLevel


class ResolvedEngine(EngineSpec):
    """vLLM's settings, with `sleep_level` resolved."""

    sleep_level: int


class ResolvedWeightSync(WeightSyncSpec):
    """How engines get new weights, with the backend resolved."""

    backend: WeightSyncBackend
    """Never Auto."""


class ResolvedRewardModel(RewardModelSpec):
    """A reward model, with its number of threads resolved."""

    threads: int


class ResolvedReward(RewardSpec):
    """A reward function, with its number of processes resolved."""

    workers: int
    model: ResolvedRewardModel | None = None


class JobRef(ApiModel):
    """The job. Two jobs of the same name differ in `uid`."""

    namespace: str
    name: str
    uid: str


class Topology(ApiModel):
    """How many processes there are, and in how many pods."""

    num_nodes: int
    """Trainer pods."""
    processes_per_node: int
    """Training ranks in each of them."""
    rollout_replicas: int
    """Rollout pods at the start, 0 in mode Colocated. `GRPO_ROLLOUT_REPLICAS` gives each attempt
    how many there should be when it begins."""

    @property
    def world_size(self) -> int:
        """Training ranks in total."""
        return self.num_nodes * self.processes_per_node


class RunConfig(RunSections):
    """Made once, when the job starts, and the same for every pod and attempt.

    The sections are those of the GRPOJob with every default written out, so that a runtime of another release
    does not put in its own. A runtime refuses a field that it does not know.
    """

    model: ResolvedModel
    dataset: DatasetSpec
    algorithm: ResolvedAlgorithm
    rewards: tuple[ResolvedReward, ...]
    engine: ResolvedEngine
    weight_sync: ResolvedWeightSync

    schema_version: int = SCHEMA_VERSION
    job: JobRef
    mode: Mode
    """Disaggregated or Colocated, never Auto."""
    topology: Topology
    rollout_lost_timeout_seconds: int
    """How long the trainer waits while there is no rollout engine at all."""
    micro_batch_tokens: int
    """Most tokens of a micro-batch, padding included."""
    gradient_checkpointing: bool
    """Whether the backward pass recomputes activations."""
    threads_per_process: int
    """CPU threads of each training process."""
    max_samples_per_engine: int
    """Completions that an engine in a rollout pod is given at a time."""
    strategy: TrainerStrategy
    """How the policy is sharded or replicated over the training ranks; its name in the runtime's registry."""
    deepspeed: DeepSpeedSpec | None = None
    """Options of DeepSpeed, where the strategy is one of its own."""
    is_output_local: bool
    """Whether the output directory is on the machine of a local run, so that a later attempt finds it
    although no claim is named."""

    def to_object(self) -> dict[str, Any]:
        """Plain JSON-like data with camelCase keys and every default, without fields that are None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def needs_tokens(self) -> bool:
        """Whether something of the job has a network address that its tokens guard: engines in pods of their
        own, or Ray."""
        return self.mode is not Mode.COLOCATED or self.is_on_ray

    @property
    def evaluation_sampling(self) -> SamplingSpec:
        """Sampling for evaluation: at temperature 0, which means greedily, or at that of `dataset.eval`."""
        temperature = (self.dataset.eval and self.dataset.eval.temperature) or 0.0
        return self.sampling.model_copy(update={"temperature": temperature})

    @property
    def keeps_output(self) -> bool:
        """Whether a later attempt finds what this one has written."""
        return self.checkpoint.claim_name is not None or self.is_output_local

    @property
    def keeps_journal(self) -> bool:
        """Whether samples and rewards are written down as they finish, for a later attempt."""
        return self.keeps_output and self.checkpoint.journal is not False

    @property
    def completions_may_fail(self) -> bool:
        """Whether code of the user makes the completions, so that there may be fewer than were asked for."""
        return self.environments is not None or self.sampling.rollout_function is not None

    @property
    def saves_shards(self) -> bool:
        """Whether every rank writes its shard of a checkpoint. An adapter is one small file of rank 0."""
        return self.checkpoint.shared and self.model.lora is None

    @property
    def exports_merged(self) -> bool:
        """Whether the whole model is written at the end, beside the adapter that was trained."""
        return self.model.lora is not None and self.model.lora.export_merged

    @property
    def weight_sync_backend(self) -> str:
        """Name in the registry of the backend that transfers weights. The trainer and its engines both read
        it here."""
        name = REGISTRY_NAMES[self.weight_sync.backend]
        return name if self.weight_sync.sparse is None else f"sparse_{name}"

    @property
    def total_steps(self) -> int:
        """Steps of the whole run; 0 while nobody has counted the prompts of `algorithm.epochs`. A training
        rank knows them."""
        return self.algorithm.steps or 0

    def keeps_samples_of(self, step: int) -> bool:
        """Whether the completions of this step, which counts from 1, are kept as a table for people."""
        every = self.report.samples_every_steps
        return every > 0 and (step % every == 0 or step == self.total_steps)


def run_config_digest(content: bytes) -> str:
    """SHA-256 of the file with a RunConfig, in hex."""
    return hashlib.sha256(content).hexdigest()


def parse_run_config(text: str) -> RunConfig:
    """Read a RunConfig file.

    Raises SchemaSkewError when its schema version is another one. That is checked first, so that the message
    is about the release and not about a field. Raises pydantic's ValidationError when the file is invalid.
    """
    require_schema_version(json.loads(text).get("schemaVersion", 0), what="RunConfig")
    return RunConfig.model_validate_json(text)
