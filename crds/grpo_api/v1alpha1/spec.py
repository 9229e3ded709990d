"""The spec of a GRPOJob. Names follow TRL, vLLM and batch/v1; units are in the names."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.keyed_list import KeyedBy
from grpo_api.model import ApiModel
from grpo_api.quantity import Quantity, parse_quantity
from grpo_api.rules import GPU
from grpo_api.source import DATASET_PATTERN, MODEL_PATTERN

QuantityMap = Annotated[dict[str, Quantity], Field(max_length=16)]


ModelSource = Annotated[str, Field(pattern=MODEL_PATTERN, max_length=1024)]
DatasetSource = Annotated[str, Field(pattern=DATASET_PATTERN, max_length=1024)]
Revision = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=253)]
ConfigMapKey = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
FunctionPath = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$", max_length=253
    ),
]
Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
ClaimName = Annotated[
    str,
    Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253),
]


EngineArgument = Annotated[str, Field(pattern=r"^--[a-z][a-z0-9-]*(=.*)?$", max_length=1024)]


class Mode(StrEnum):
    """Where the rollout engines run."""

    AUTO = "Auto"
    DISAGGREGATED = "Disaggregated"
    COLOCATED = "Colocated"


class Dtype(StrEnum):
    """Precision of the weights in the engines and of the trainer's forward pass."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class ModelSpec(ApiModel):
    """The policy to start from."""

    source: ModelSource
    """`hf://ORG/NAME` is a model of the Hugging Face Hub; `pvc://CLAIM/PATH` and `file:///PATH` are Hugging
    Face model directories on a PersistentVolumeClaim and in the image; `builtin://tiny` is a small random
    Qwen2 with a character tokenizer that needs no download."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model; a commit never moves."""
    dtype: Dtype = Dtype.FLOAT32
    """Precision of the weights in the engines and of the trainer's forward pass; the trainer itself keeps its
    weights, and what it saves, in float32."""


class DatasetSpec(ApiModel):
    """Where prompts come from."""

    source: DatasetSource
    """`hf://ORG/NAME` is a dataset of the Hugging Face Hub. `pvc://CLAIM/PATH`, `configmap://NAME/KEY` and
    `file:///PATH` are .jsonl or .parquet files on a PersistentVolumeClaim, in a ConfigMap and in the image.
    `reasoning-gym://TASK?SETTING=VALUE&...` makes its own prompts and has its own scorer. `builtin://copy`,
    `builtin://reverse` and `builtin://add` are tiny tasks that a tiny model learns in minutes."""
    split: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Split of an `hf://` dataset; `train` where it is left out."""
    subset: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Subset (configuration) of an `hf://` dataset that has several."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` dataset."""
    prompt: Annotated[str, Field(min_length=1, max_length=253)] = "prompt"
    """Column with the prompt: a string, or a list of chat messages."""
    answer: Annotated[str, Field(min_length=1, max_length=253)] = "answer"
    """Column with the reference answer that built-in rewards compare with."""
    shuffle: bool = True
    """Shuffle once per epoch, by algorithm.seed."""


class BuiltinReward(StrEnum):
    """Reward functions that need no code."""

    EXACT_MATCH = "exact_match"
    CHAR_ACCURACY = "char_accuracy"
    REGEX = "regex"
    FORMAT = "format"
    LENGTH = "length"
    MATH_VERIFY = "math_verify"
    REASONING_GYM = "reasoning_gym"


class CodeRef(ApiModel):
    """A Python function in a ConfigMap of the job's namespace."""

    name: ClaimName
    """The ConfigMap."""
    key: ConfigMapKey
    """Its key that holds the Python module."""
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)]
    """Function in that module."""


class RewardSpec(ApiModel):
    """One reward function. Set exactly one of `builtin`, `function` and `configMap`."""

    name: Name
    """Name in metrics: rewards/NAME/mean."""
    weight: Annotated[float, Field(ge=-1000, le=1000)] = 1.0
    """Factor in the weighted sum of all rewards."""
    builtin: BuiltinReward | None = None
    """A function that comes with the runtime. `exact_match` is 1 when the completion is the answer, else 0;
    `char_accuracy` is the share of the answer's characters that are right; `regex` is 1 when `pattern` is
    found in the completion; `format` is 1 for `<think>...</think>` followed by `<answer>...</answer>`;
    `length` is 0 and falls to -1 over the last `overlongTokens` before sampling.maxTokens (DAPO's soft
    overlong punishment); `math_verify` is 1 when the completion's final expression equals the answer's;
    `reasoning_gym` is the scorer of a `reasoning-gym://` dataset."""
    pattern: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Python regular expression of the builtin `regex`, searched in the completion."""
    overlong_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Length of the interval in which the builtin `length` falls from 0 to -1, in tokens."""
    function: FunctionPath | None = None
    """`module:attribute` in the image, called the way TRL calls reward functions."""
    config_map: CodeRef | None = None
    """A function whose code is in a ConfigMap, called the way TRL calls reward functions."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """How long one call for a whole step may take before its samples count as failed."""
    max_failure_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A failed sample (the function raised, hung or returned rubbish) counts as not applicable. When more
    than this share of a step's samples fail, the job ends with the function's own error."""


class LossType(StrEnum):
    """How token losses are averaged."""

    DAPO = "dapo"
    GRPO = "grpo"


class ScaleRewards(StrEnum):
    """What the advantages are divided by."""

    GROUP = "group"
    BATCH = "batch"
    NONE = "none"


class ImportanceCorrectionMode(StrEnum):
    """What happens to a token whose ratio of trainer to sampler probability leaves the bounds."""

    TRUNCATE = "truncate"
    MASK = "mask"
    NONE = "none"


class ImportanceCorrectionSpec(ApiModel):
    """Correction for the difference between the trainer's and the engine's probabilities, per token."""

    mode: ImportanceCorrectionMode = ImportanceCorrectionMode.TRUNCATE
    """`truncate` clamps the ratio to the bounds, `mask` drops tokens outside them, `none` ignores it."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lower bound of the ratio."""
    cap: Annotated[float, Field(ge=1, le=1000)] = 2.0
    """Upper bound of the ratio."""


class Schedule(StrEnum):
    """How the learning rate moves after warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class OptimizerSpec(ApiModel):
    """AdamW and its schedule."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """Peak learning rate."""
    schedule: Schedule = Schedule.CONSTANT
    """`constant`, or `linear` or `cosine` down to zero at the last step."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Steps of linear warm-up from zero."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """AdamW's decoupled weight decay."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the second moment."""
    max_grad_norm: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Gradients are clipped to this global norm."""


class AlgorithmSpec(ApiModel):
    """GRPO and its numbers."""

    steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """Optimizer phases: each generates, scores and trains once."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65_536)] = 16
    """Different prompts in a step."""
    group_size: Annotated[int, Field(ge=2, le=4096)] = 8
    """Completions for each prompt; advantages are relative to this group."""
    loss_type: LossType = LossType.DAPO
    """`dapo` divides by all tokens of the step, `grpo` averages each sequence first."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The policy ratio is clipped below at 1 - clipLow."""
    clip_high: Annotated[float, Field(gt=0, le=100)] = 0.2
    """The policy ratio is clipped above at 1 + clipHigh."""
    scale_rewards: ScaleRewards = ScaleRewards.GROUP
    """Divide advantages by the standard deviation of the group, of the batch, or not at all."""
    num_iterations: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimizer updates on each batch of rollouts."""
    importance_correction: ImportanceCorrectionSpec = ImportanceCorrectionSpec()
    """Correction for the engine's probabilities differing from the trainer's."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """AdamW and its schedule."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Everything random in the run derives from this."""


class SamplingSpec(ApiModel):
    """How completions are sampled."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Softmax temperature."""
    max_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 256
    """Longest completion, in tokens."""


class ResourcesSpec(ApiModel):
    """Compute resources of one pod, as in a container."""

    limits: QuantityMap = Field(default={})
    """Upper bounds, such as cpu, memory, nvidia.com/gpu."""
    requests: QuantityMap = Field(default={})
    """What the scheduler reserves; defaults to the limits."""

    @property
    def num_gpus(self) -> int:
        """NVIDIA GPUs of one pod."""
        return int(parse_quantity(self.limits.get(GPU, 0)))


class TrainerSpec(ApiModel):
    """The trainer pods."""

    num_nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Trainer pods; they start and restart together."""
    processes_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    """Data-parallel training processes in each pod; defaults to its GPUs, or 1 without any."""
    resources: ResourcesSpec = ResourcesSpec()
    """Resources of each trainer pod."""

    @property
    def num_processes(self) -> int:
        """Training processes in each pod, also when processesPerNode was left out."""
        return self.processes_per_node or max(1, self.resources.num_gpus)


class EngineSpec(ApiModel):
    """vLLM's settings, in both modes."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    """Training processes that share one engine in mode Colocated; each computes a part of every layer."""
    sleep_level: Annotated[int, Field(ge=0, le=2)] = 1
    """What a colocated engine gives back while the trainer computes: 0 nothing, 1 the KV cache and its
    weights to memory of the CPU, 2 the KV cache and its weights, which the next sync brings again."""

    max_model_len: Annotated[int, Field(ge=8, le=10_000_000)] = 4096
    """Longest prompt plus completion, in tokens."""
    kv_cache_memory: Quantity | None = None
    """Memory for the KV cache of one engine, such as 64Mi; without it vLLM decides."""
    args: Annotated[tuple[EngineArgument, ...], Field(max_length=64)] = ()
    """More arguments of `vllm serve`, each as `--name` or `--name=value`. Arguments that follow from other
    fields are refused."""


class RolloutSpec(ApiModel):
    """The rollout pods, one vLLM engine each."""

    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Engines; may be changed while the job runs, also through kubectl scale."""
    resources: ResourcesSpec = ResourcesSpec()
    """Resources of each rollout pod."""
    lost_timeout_seconds: Annotated[int, Field(ge=1, le=604_800)] = 900
    """How long training waits while there is no engine at all, before the attempt fails."""


class WeightSyncSpec(ApiModel):
    """How engines get new weights."""

    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Deadline of each phase of one engine's sync; an engine that misses it leaves the fleet."""
    verify: bool = True
    """After each sync, compare every engine's logprobs of a probe prompt with the trainer's before it may
    serve."""


class CheckpointSpec(ApiModel):
    """When to save and where."""

    every_steps: Annotated[int, Field(ge=1, le=10_000_000)] = 50
    """Save after this many steps, and at the end."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Newest checkpoints to keep."""
    claim_name: ClaimName | None = None
    """PersistentVolumeClaim for checkpoints and metrics. Without it they are lost with the pod, and a new
    attempt starts from step 0."""


class HubSpec(ApiModel):
    """How `hf://` models and datasets are had from the Hugging Face Hub."""

    token_secret: ClaimName | None = None
    """Secret whose key `token` is an access token, for what is private or gated."""
    cache_claim: ClaimName | None = None
    """PersistentVolumeClaim with the cache of the Hub, mounted by all pods: downloaded once, kept for the
    next job. Without it every pod downloads for itself."""
    offline: bool = False
    """Use what the cache holds and ask nobody."""


class FailurePolicySpec(ApiModel):
    """What happens when the trainer fails."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """Failed attempts that are retried; evictions and node losses are retried without being counted."""


class GRPOJobSpec(ApiModel):
    """What to train, on what, with which reward, and on how much hardware."""

    mode: Mode = Mode.AUTO
    """`Disaggregated` runs the rollout engines in pods of their own, `Colocated` in the trainer's processes.
    `Auto` is Disaggregated when `rollout` is there and Colocated when it is not."""
    image: Annotated[str, Field(pattern=r"^[^\s]+$", max_length=512)] | None = None
    """Runtime image of all pods; defaults to the operator's."""
    image_pull_secrets: Annotated[tuple[ClaimName, ...], Field(max_length=16)] = ()
    """Secrets with credentials for the registry of the image."""
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
    trainer: TrainerSpec = TrainerSpec()
    """The trainer pods."""
    engine: EngineSpec = EngineSpec()
    """vLLM's settings."""
    rollout: RolloutSpec | None = None
    """The rollout pods; only in mode Disaggregated."""
    weight_sync: WeightSyncSpec = WeightSyncSpec()
    """How engines get new weights."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When to save and where."""
    hub: HubSpec = HubSpec()
    """How `hf://` models and datasets are had from the Hugging Face Hub."""
    failure_policy: FailurePolicySpec = FailurePolicySpec()
    """What happens when the trainer fails."""
    startup_deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] = 1800
    """How long an attempt may take until all its trainer pods run and the first step began; then the job
    fails with what held it up."""
    stall_timeout_seconds: Annotated[int, Field(ge=10, le=604_800)] = 1800
    """How long a running trainer may show no sign of life before it counts as failed."""

    @property
    def chosen_mode(self) -> Mode:
        """The mode with `Auto` resolved."""
        if self.mode is not Mode.AUTO:
            return self.mode
        return Mode.COLOCATED if self.rollout is None else Mode.DISAGGREGATED

    @property
    def mode_reason(self) -> str:
        """Why it is that mode, in a sentence."""
        if self.mode is not Mode.AUTO:
            return f"spec.mode is {self.mode.value}"
        return "spec.mode is Auto and spec.rollout is " + ("not set" if self.rollout is None else "set")
