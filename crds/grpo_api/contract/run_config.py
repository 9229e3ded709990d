"""The RunConfig: what all pods of a job read, except secrets."""

import json

from grpo_api.contract.concurrency_choice import SAMPLES_ON_CPU
from grpo_api.contract.micro_batch_choice import TOKENS_ON_CPU
from grpo_api.contract.versions import SCHEMA_VERSION, require_schema_version
from grpo_api.contract.weight_sync_choice import REGISTRY_NAMES, backend_by_mode
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.deepspeed import DeepSpeedSpec
from grpo_api.v1alpha1.spec.job_spec import Mode
from grpo_api.v1alpha1.spec.model import Attention, Dtype
from grpo_api.v1alpha1.spec.report import SAMPLES_EVERY_STEPS
from grpo_api.v1alpha1.spec.run_sections import RunSections
from grpo_api.v1alpha1.spec.sampling import SamplingSpec
from grpo_api.v1alpha1.spec.trainer import TrainerStrategy
from grpo_api.v1alpha1.spec.weight_sync import WeightSyncBackend


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
    does not put in its own defaults. The runtime fills in only fields that an
    older operator does not know.
    """

    schema_version: int = SCHEMA_VERSION
    job: JobRef
    mode: Mode
    """Disaggregated or Colocated, never Auto."""
    topology: Topology
    rollout_lost_timeout_seconds: int
    """How long the trainer waits while there is no rollout engine at all."""
    micro_batch_tokens: int | None = None
    """Most tokens of a micro-batch, padding included; None in a run without GPUs that leaves them out, and
    in one of 0.1.0."""
    gradient_checkpointing: bool | None = None
    """Whether the backward pass recomputes activations. A run that does not say so keeps them."""
    threads_per_process: int | None = None
    """CPU threads of each training process. A run that names none has as many as OMP_NUM_THREADS says in its
    environment, or else one."""
    max_samples_per_engine: int | None = None
    """Completions that an engine in a rollout pod is given at a time; None in a run on CPU that leaves them
    out, in one of mode Colocated, and in one that an older operator started."""
    strategy: TrainerStrategy | None = None
    """How the policy is spread over the training ranks. Not there for DDP, so that an older image reads every
    run that needs nothing newer."""
    deepspeed: DeepSpeedSpec | None = None
    """Options of DeepSpeed, where the strategy is one of its own."""
    is_output_kept: bool | None = None
    """Whether the output directory is there for a later attempt although no claim is named, as on the machine
    of a local run. A run that does not say so keeps it only on a claim."""

    @property
    def needs_tokens(self) -> bool:
        """Whether something of the job has a network address that its tokens guard: engines in pods of their
        own, or Ray."""
        return self.mode is not Mode.COLOCATED or self.is_on_ray

    @property
    def chosen_dtype(self) -> Dtype:
        """Precision of the engines' weights and of the trainer's forward pass."""
        return self.model.dtype or Dtype.FLOAT32

    @property
    def chosen_attention(self) -> Attention:
        """How the trainer computes attention."""
        return self.model.attention or Attention.SDPA

    @property
    def evaluation_sampling(self) -> SamplingSpec:
        """How completions are sampled that nothing is trained on: at temperature 0, which means greedily,
        or at the one of `dataset.eval`."""
        temperature = (self.dataset.eval and self.dataset.eval.temperature) or 0.0
        return self.sampling.model_copy(update={"temperature": temperature})

    @property
    def keeps_output(self) -> bool:
        """Whether a later attempt finds what this one has written."""
        return self.checkpoint.claim_name is not None or bool(self.is_output_kept)

    @property
    def keeps_journal(self) -> bool:
        """Whether samples and rewards are written down as they finish, for a later attempt."""
        return self.keeps_output and self.checkpoint.journal is not False

    @property
    def shares_saves(self) -> bool:
        """Whether every rank writes a share of a checkpoint. An adapter is one small file of rank 0."""
        return bool(self.checkpoint.shared) and self.model.lora is None

    @property
    def exports_merged(self) -> bool:
        """Whether the whole model is written at the end, beside the adapter that was trained."""
        return self.model.lora is not None and bool(self.model.lora.export_merged)

    @property
    def chosen_backend(self) -> WeightSyncBackend:
        """How weights travel, never Auto. A run whose section names no backend has the one of its mode."""
        return WeightSyncBackend(self.weight_sync.backend or backend_by_mode(self.mode))

    @property
    def weight_sync_backend(self) -> str:
        """Name in the registry of the backend that transfers weights. The trainer and its engines both read
        it here."""
        return REGISTRY_NAMES[self.chosen_backend]

    @property
    def chosen_micro_batch_tokens(self) -> int:
        """Most tokens of a micro-batch, padding included, also where none are written."""
        return self.micro_batch_tokens or TOKENS_ON_CPU

    @property
    def chosen_sleep_level(self) -> int:
        """What a colocated engine frees while the trainer computes."""
        return 1 if self.engine.sleep_level is None else self.engine.sleep_level

    @property
    def chosen_max_samples_per_engine(self) -> int:
        """Completions that an engine is given at a time, also where none are written."""
        return self.max_samples_per_engine or SAMPLES_ON_CPU

    @property
    def total_steps(self) -> int:
        """Steps of the whole run; 0 while nobody has counted the prompts of `algorithm.epochs`. A training
        rank knows them."""
        return self.algorithm.steps or 0

    def keeps_samples_of(self, step: int) -> bool:
        """Whether the completions of this step, which counts from 1, are kept as a table for people."""
        named = self.report.samples_every_steps if self.report else None
        every = SAMPLES_EVERY_STEPS if named is None else named
        return every > 0 and (step % every == 0 or step == self.total_steps)

    @property
    def chosen_strategy(self) -> TrainerStrategy:
        """How the policy is spread over the training ranks; its name in the runtime's registry."""
        return self.strategy or TrainerStrategy.DDP


def parse_run_config(text: str) -> RunConfig:
    """Read a RunConfig file.

    Raises SchemaSkewError when its schema version is another one. That is checked first, so that the message
    is about the release and not about a field. Raises pydantic's ValidationError when the file is invalid.
    """
    require_schema_version(json.loads(text).get("schemaVersion", 0), what="RunConfig")
    return RunConfig.model_validate_json(text)
