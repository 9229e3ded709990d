"""`trainer`: the trainer pods, and how the policy is spread over their processes, with `deepspeed`."""

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api import cel
from grpo_api.model import ApiModel
from grpo_api.rule import Rule, rule
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.pod_template import PodTemplateSpec
from grpo_api.v1alpha1.spec.resources import ResourcesSpec


def _leaves_alone(*keys: str, instead: str) -> Rule:
    """The rule that `config` has none of these keys, which other fields set. A key in an escaped spelling is
    left to the runtime, which reads the JSON."""
    pattern = rf'"({"|".join(keys)})"[ \t\r\n]*:'

    @rule(
        cel=f"!has(self.config) || !self.config.matches(r'''{pattern}''')",
        sentence=f"trainer.deepspeed.config must not set {' or '.join(keys)}: use {instead}",
        field=".config",
    )
    def is_set_elsewhere(config: str | None) -> bool:
        """The spec alone says what a run does."""
        return config is None or re.search(pattern, config) is None

    return is_set_elsewhere


class DeepSpeedSpec(ApiModel):
    """Options of DeepSpeed."""

    rules = (
        _leaves_alone(
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            instead="algorithm.promptsPerStep, algorithm.groupSize and trainer.microBatchTokens",
        ),
        _leaves_alone("fp16", "bf16", "amp", "torch_autocast", "data_types", instead="model.dtype"),
        _leaves_alone("optimizer", "scheduler", "gradient_clipping", instead="algorithm.optimizer"),
        _leaves_alone("stage", instead="trainer.strategy"),
        _leaves_alone(
            "offload_optimizer",
            "offload_param",
            "overlap_comm",
            "contiguous_gradients",
            instead="the fields of trainer.deepspeed",
        ),
    )

    offload_optimizer: bool | None = None
    """Keep the master weights and AdamW's moments in the CPU memory of the pod, where the optimizer then
    makes its steps. That needs about 20 bytes per parameter, over all processes."""
    offload_parameters: bool | None = None
    """Keep the shards of the weights in the CPU memory of the pod too. Only with ZeRO3."""
    overlap_comm: bool | None = None
    """Send gradients while the backward pass continues."""
    contiguous_gradients: bool | None = None
    """Copy gradients into one buffer as they come, which keeps memory from being fragmented."""
    config: Annotated[str, Field(min_length=2, max_length=4096)] | None = None
    """More of DeepSpeed's configuration, as JSON, such as bucket sizes and thresholds in its section
    `zero_optimization`. Keys that other fields set are refused, and so are keys that this trainer does not
    know."""


_NUM_GPUS = cel.num_gpus("self.resources")


@rule(
    cel=f"!has(self.processesPerNode) || {_NUM_GPUS} == 0 || {_NUM_GPUS} == self.processesPerNode",
    sentence="trainer.processesPerNode ({processesPerNode}) must be the nvidia.com/gpu limit of the trainer, "
    "because each training process uses one GPU and the engines of mode Colocated use the same: remove "
    "processesPerNode, or change the limit",
    field=".processesPerNode",
)
def every_process_has_its_gpu(processes_per_node: int | None, resources: ResourcesSpec) -> bool:
    """No process shares a GPU, and no GPU is reserved that nothing uses."""
    return processes_per_node is None or resources.num_gpus in (0, processes_per_node)


@rule(
    cel=f"!{cel.has_claims('self')} || has(self.processesPerNode)",
    sentence="trainer.podTemplate.spec.resourceClaims does not say how many GPUs a claim has: set "
    "trainer.processesPerNode to their number",
    field=".podTemplate.spec.resourceClaims",
)
def claimed_gpus_are_counted(processes_per_node: int | None, pod_template: PodTemplateSpec | None) -> bool:
    """Each process uses one GPU."""
    return processes_per_node is not None or pod_template is None or not pod_template.has_claims


class TrainerStrategy(StrEnum):
    """How the policy is spread over the training processes."""

    DDP = "DDP"
    FSDP2 = "FSDP2"
    ZERO1 = "ZeRO1"
    ZERO2 = "ZeRO2"
    ZERO3 = "ZeRO3"

    @property
    def is_zero(self) -> bool:
        """Whether DeepSpeed does it."""
        return self in (TrainerStrategy.ZERO1, TrainerStrategy.ZERO2, TrainerStrategy.ZERO3)

    @property
    def shards_weights(self) -> bool:
        """Whether no process holds the whole policy."""
        return self in (TrainerStrategy.FSDP2, TrainerStrategy.ZERO3)


@rule(
    cel="!has(self.deepspeed) || has(self.strategy) && self.strategy.startsWith('ZeRO')",
    sentence="trainer.deepspeed needs a strategy of DeepSpeed: set trainer.strategy to ZeRO1, ZeRO2 or "
    "ZeRO3, or remove trainer.deepspeed",
    field=".deepspeed",
)
def deepspeed_is_of_zero(deepspeed: DeepSpeedSpec | None, strategy: TrainerStrategy | None) -> bool:
    """No section that says nothing."""
    return deepspeed is None or (strategy is not None and strategy.is_zero)


@rule(
    cel="!has(self.deepspeed) || !has(self.deepspeed.offloadParameters) || !self.deepspeed.offloadParameters "
    f"|| !has(self.strategy) || self.strategy in ['{TrainerStrategy.ZERO3}']",
    sentence="trainer.deepspeed.offloadParameters needs sharded weights, which only ZeRO3 has: set "
    "trainer.strategy to ZeRO3, or remove trainer.deepspeed.offloadParameters",
    field=".deepspeed.offloadParameters",
)
def only_parts_of_weights_are_offloaded(
    deepspeed: DeepSpeedSpec | None, strategy: TrainerStrategy | None
) -> bool:
    """ZeRO1 and ZeRO2 keep all weights where they compute."""
    offloads = deepspeed is not None and deepspeed.offload_parameters
    return not offloads or strategy in (None, TrainerStrategy.ZERO3)


class TrainerSpec(ApiModel):
    """The trainer pods."""

    rules = (
        every_process_has_its_gpu,
        claimed_gpus_are_counted,
        deepspeed_is_of_zero,
        only_parts_of_weights_are_offloaded,
    )

    num_nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many trainer pods there are. They start and restart together."""
    processes_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    """Data-parallel training processes in each pod. Defaults to the number of its GPUs, or to 1 without
    any."""
    micro_batch_tokens: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    """Most tokens, padding included, that a process computes in one forward and backward pass. A sequence
    that is longer is computed alone. A smaller number needs less memory, a larger one makes better use of a
    GPU. Defaults to 16384 on GPUs and 1024 on CPU."""
    strategy: TrainerStrategy | None = None
    """How the policy is spread over the training processes. With `DDP` each process holds the whole policy,
    its gradients and its optimizer. With `FSDP2` each holds a shard of all three, and they gather one layer
    at a time. With DeepSpeed's `ZeRO1` each holds a shard of the optimizer, with `ZeRO2` of the gradients
    too, and with `ZeRO3` of all three. Defaults to FSDP2 where several processes have GPUs, unless
    engine.process is Own or colocated.executor is Ray, and to DDP otherwise."""
    deepspeed: DeepSpeedSpec | None = None
    """Options of DeepSpeed. Only with strategy ZeRO1, ZeRO2 or ZeRO3. Those that are left out have
    DeepSpeed's defaults."""
    resources: ResourcesSpec = ResourcesSpec()
    """Resources of each trainer pod."""
    gradient_checkpointing: bool | None = None
    """Compute the activations of each layer again in the backward pass instead of keeping them. That needs
    less memory and a third more computing; the gradients are the same. Defaults to true where the trainer has
    GPUs, because long completions run out of their memory, and to false on CPU, where time is scarcer."""
    threads_per_process: Annotated[int, Field(ge=1, le=512)] | None = None
    """CPU threads of each training process. Defaults to the cpu limit of the trainer divided by its
    processes; without a limit to its cpu request, divided likewise, where it has GPUs, and to 1 otherwise.
    `grpo-runtime run` divides the cores of the machine, unless OMP_NUM_THREADS is set. The number is fixed
    for the run, because adding up in another order changes the last bits. A colocated engine on CPU has as
    many threads, one in a rollout pod has one."""

    pod_template: PodTemplateSpec | None = None
    """What is added to the trainer pods: placement, variables, volumes. `grpo-runtime run` has no pods and
    ignores it."""

    @property
    def num_gpus(self) -> int:
        """GPUs of each pod, by its limits or by claims."""
        has_claims = self.pod_template is not None and self.pod_template.has_claims
        return self.resources.num_gpus or (self.num_processes if has_claims else 0)

    @property
    def has_gpus(self) -> bool:
        """Whether the processes have GPUs."""
        return self.num_gpus > 0

    @property
    def num_processes(self) -> int:
        """Training processes in each pod, also when processesPerNode is left out."""
        return self.processes_per_node or max(1, self.resources.num_gpus)


# About the whole spec


@rule(
    cel="self.algorithm.promptsPerStep * self.algorithm.groupSize >= "
    f"self.trainer.numNodes * {cel.PROCESSES_PER_NODE}",
    sentence="algorithm.promptsPerStep ({algorithm.promptsPerStep}) times groupSize ({algorithm.groupSize}) "
    "must give every training process a sample: raise promptsPerStep or use fewer trainer processes",
    field=".algorithm.promptsPerStep",
)
def every_rank_has_samples(algorithm: AlgorithmSpec, trainer: TrainerSpec) -> bool:
    """Every training process has work."""
    num_ranks = trainer.num_nodes * trainer.num_processes
    return algorithm.prompts_per_step * algorithm.group_size >= num_ranks
