"""`trainer`: the trainer pods."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api import cel
from grpo_api.model import ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.resources import ResourcesSpec


@rule(
    cel=f"!has(self.processesPerNode) || {cel.num_gpus('self.resources')} % self.processesPerNode == 0",
    sentence="trainer.processesPerNode ({processesPerNode}) must divide the nvidia.com/gpu limit of the "
    "trainer: remove processesPerNode to have one process for each GPU",
    field=".processesPerNode",
)
def processes_share_gpus_evenly(processes_per_node: int | None, resources: ResourcesSpec) -> bool:
    """Each process has as many GPUs as the others."""
    return processes_per_node is None or resources.num_gpus % processes_per_node == 0


class TrainerStrategy(StrEnum):
    """How the policy is spread over the training processes."""

    DDP = "DDP"
    FSDP2 = "FSDP2"


class TrainerSpec(ApiModel):
    """The trainer pods."""

    rules = (processes_share_gpus_evenly,)

    num_nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Trainer pods; they start and restart together."""
    processes_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    """Data-parallel training processes in each pod; defaults to its GPUs, or 1 without any."""
    strategy: TrainerStrategy | None = None
    """How the policy is spread over the training processes: with `DDP`, which is meant without it, each holds
    the whole policy, its gradients and its optimizer; with `FSDP2` each holds its part of all three, and they
    put one layer at a time together."""
    resources: ResourcesSpec = ResourcesSpec()
    """Resources of each trainer pod."""

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
