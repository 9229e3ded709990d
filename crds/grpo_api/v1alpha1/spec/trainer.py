"""`trainer`: the trainer pods."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api import cel
from grpo_api.model import ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.deepspeed import DeepSpeedSpec
from grpo_api.v1alpha1.spec.pod_template import PodTemplateSpec
from grpo_api.v1alpha1.spec.resources import ResourcesSpec

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
    "trainer.processesPerNode to them",
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
    sentence="trainer.deepspeed is about DeepSpeed, which trainer.strategy does not name: set "
    "trainer.strategy to ZeRO1, ZeRO2 or ZeRO3, or remove trainer.deepspeed",
    field=".deepspeed",
)
def deepspeed_is_of_zero(deepspeed: DeepSpeedSpec | None, strategy: TrainerStrategy | None) -> bool:
    """No section that says nothing."""
    return deepspeed is None or (strategy is not None and strategy.is_zero)


@rule(
    cel="!has(self.deepspeed) || !has(self.deepspeed.offloadParameters) || !self.deepspeed.offloadParameters "
    f"|| !has(self.strategy) || self.strategy in ['{TrainerStrategy.ZERO3}']",
    sentence="trainer.deepspeed.offloadParameters needs weights in parts, which only ZeRO3 has: set "
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
    """Trainer pods; they start and restart together."""
    processes_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    """Data-parallel training processes in each pod; defaults to its GPUs, or 1 without any."""
    micro_batch_tokens: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    """Most tokens, padding included, that a process computes in one forward and backward pass; a sequence
    that is longer goes alone. Less needs less memory, more uses a GPU better. Without it 16384 on GPUs and
    1024 on CPU."""
    strategy: TrainerStrategy | None = None
    """How the policy is spread over the training processes: with `DDP` each holds the whole policy, its
    gradients and its optimizer; with `FSDP2` each holds its part of all three, and they put one layer at a
    time together. With DeepSpeed's `ZeRO1` each holds its part of the optimizer, with `ZeRO2` of the
    gradients too, and with `ZeRO3` of all three. Without it FSDP2 where several processes have GPUs and
    engine.process is not Own and colocated.executor not Ray, else DDP."""
    deepspeed: DeepSpeedSpec | None = None
    """Options of DeepSpeed, with a `strategy` of its own."""
    resources: ResourcesSpec = ResourcesSpec()
    """Resources of each trainer pod."""
    gradient_checkpointing: bool | None = None
    """Whether the backward pass recomputes the activations of each layer instead of keeping them, which takes
    a third more computing. Without it they are recomputed where the trainer has GPUs, whose memory is what
    long completions run out of, and kept on CPU, where time is scarcer. The gradients are the same."""
    threads_per_process: Annotated[int, Field(ge=1, le=512)] | None = None
    """CPU threads of each training process. Without it the cpu limit of the trainer divided by its processes;
    without such a limit its cpu request where it has GPUs, else 1. `grpo-runtime run` divides the cores of
    the machine, unless OMP_NUM_THREADS is set. The number is fixed for the run, because a sum in another
    order has other last bits. A colocated engine on CPU has as many, one in a rollout pod has one."""

    pod_template: PodTemplateSpec | None = None
    """What is added to the trainer pods: where they run, variables, volumes."""

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
