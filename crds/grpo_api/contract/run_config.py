"""The RunConfig: what all pods of a job read, except secrets."""

import hashlib
import json
from typing import Any

from grpo_api.contract.resolved_sections import (
    ResolvedAlgorithm,
    ResolvedEngine,
    ResolvedModel,
    ResolvedReward,
    ResolvedWeightSync,
)
from grpo_api.contract.versions import SCHEMA_VERSION, require_schema_version
from grpo_api.contract.weight_sync_choice import REGISTRY_NAMES
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.deepspeed import DeepSpeedSpec
from grpo_api.v1alpha1.spec.job_spec import Mode
from grpo_api.v1alpha1.spec.run_sections import RunSections
from grpo_api.v1alpha1.spec.sampling import SamplingSpec
from grpo_api.v1alpha1.spec.trainer import TrainerStrategy


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
    """Rollout pods at the start, 0 in mode Colocated. Each attempt is told by `GRPO_ROLLOUT_REPLICAS` how
    many there should be when it begins."""

    @property
    def world_size(self) -> int:
        """Training ranks in all."""
        return self.num_nodes * self.processes_per_node


class RunConfig(RunSections):
    """Made once, when the job starts, and the same for every pod and attempt.

    The sections are those of the GRPOJob with every default written out, so that a runtime of another release
    does not put in its own. A runtime refuses a field that it does not know.
    """

    model: ResolvedModel
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
    """How the policy is spread over the training ranks; its name in the runtime's registry."""
    deepspeed: DeepSpeedSpec | None = None
    """Options of DeepSpeed, where the strategy is one of its own."""
    is_output_kept: bool
    """Whether the output directory is there for a later attempt although no claim is named, as on the machine
    of a local run."""

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
        """How completions are sampled that nothing is trained on: at temperature 0, which means greedily,
        or at the one of `dataset.eval`."""
        temperature = (self.dataset.eval and self.dataset.eval.temperature) or 0.0
        return self.sampling.model_copy(update={"temperature": temperature})

    @property
    def keeps_output(self) -> bool:
        """Whether a later attempt finds what this one has written."""
        return self.checkpoint.claim_name is not None or self.is_output_kept

    @property
    def keeps_journal(self) -> bool:
        """Whether samples and rewards are written down as they finish, for a later attempt."""
        return self.keeps_output and self.checkpoint.journal is not False

    @property
    def shares_saves(self) -> bool:
        """Whether every rank writes a share of a checkpoint. An adapter is one small file of rank 0."""
        return self.checkpoint.shared and self.model.lora is None

    @property
    def exports_merged(self) -> bool:
        """Whether the whole model is written at the end, beside the adapter that was trained."""
        return self.model.lora is not None and self.model.lora.export_merged

    @property
    def weight_sync_backend(self) -> str:
        """Name in the registry of the backend that transfers weights. The trainer and its engines both read
        it here."""
        return REGISTRY_NAMES[self.weight_sync.backend]

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
