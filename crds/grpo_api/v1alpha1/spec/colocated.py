"""`colocated`: what starts the engines of mode Colocated, with the rules about it and the pods."""

from enum import StrEnum

from grpo_api import cel
from grpo_api.model import ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.engine import EngineProcess, EngineSpec
from grpo_api.v1alpha1.spec.rollout import RolloutSpec
from grpo_api.v1alpha1.spec.trainer import TrainerSpec, TrainerStrategy


class ColocatedExecutor(StrEnum):
    """What starts colocated engines and ends them."""

    PROCESSES = "Processes"
    RAY = "Ray"


class ColocatedSpec(ApiModel):
    """What starts the engines of mode Colocated."""

    executor: ColocatedExecutor | None = None
    """What starts the engines. `Processes` (the default) leaves it to each training process, as
    `engine.process` says. `Ray` makes each engine an actor of a Ray cluster of the job's own pods, in the
    bundle of its training process in one placement group; every engine is then a process of its own."""

    @property
    def is_on_ray(self) -> bool:
        """Whether engines are Ray's actors."""
        return self.executor is ColocatedExecutor.RAY


IS_ON_RAY = (
    "(has(self.colocated) && has(self.colocated.executor) && "
    f"self.colocated.executor == '{ColocatedExecutor.RAY}')"
)
"""CEL, in rules of the whole spec."""
HAS_OWN_PROCESS = (
    f"((has(self.engine.process) && self.engine.process == '{EngineProcess.OWN}') || {IS_ON_RAY})"
)
"""CEL for whether a colocated engine lives in another process than its rank."""


def is_on_ray(colocated: ColocatedSpec | None) -> bool:
    """Whether engines are Ray's actors."""
    return colocated is not None and colocated.is_on_ray


def has_own_process(engine: EngineSpec, colocated: ColocatedSpec | None) -> bool:
    """Whether a colocated engine lives in another process than its rank."""
    return engine.process is EngineProcess.OWN or is_on_ray(colocated)


@rule(
    cel="!has(self.colocated) || !has(self.rollout)",
    sentence="colocated is about engines in the trainer's pods, and rollout puts them into pods of their "
    "own: remove colocated, or remove rollout",
    field=".colocated",
)
def colocated_has_no_rollout(colocated: ColocatedSpec | None, rollout: RolloutSpec | None) -> bool:
    """No section that says nothing."""
    return colocated is None or rollout is None


@rule(
    cel=f"!{IS_ON_RAY} || !has(self.engine.process) || self.engine.process != '{EngineProcess.SHARED}'",
    sentence="colocated.executor Ray makes each engine a process of its own, and engine.process Shared puts "
    "it into its training process: remove engine.process, or set colocated.executor to Processes",
    field=".engine.process",
)
def actor_is_not_shared(engine: EngineSpec, colocated: ColocatedSpec | None) -> bool:
    """An actor is a process that Ray has started."""
    return not is_on_ray(colocated) or engine.process is not EngineProcess.SHARED


@rule(
    cel=f"!{IS_ON_RAY} || self.engine.tensorParallelSize == 1",
    sentence="engine.tensorParallelSize ({engine.tensorParallelSize}) must be 1 with colocated.executor Ray: "
    "set it to 1, or set colocated.executor to Processes",
    field=".engine.tensorParallelSize",
)
def actor_is_one_worker(engine: EngineSpec, colocated: ColocatedSpec | None) -> bool:
    """An engine over several ranks would be several actors that have to be started again together."""
    return not is_on_ray(colocated) or engine.tensor_parallel_size == 1


@rule(
    cel=f"!{IS_ON_RAY} || !has(self.trainer.strategy) || "
    f"!(self.trainer.strategy in ['{TrainerStrategy.FSDP2}', '{TrainerStrategy.ZERO3}']) || "
    f"self.trainer.numNodes * {cel.PROCESSES_PER_NODE} == 1",
    sentence="colocated.executor Ray starts an engine again with all weights from its training process, "
    "which with trainer.strategy FSDP2 or ZeRO3 has only a shard of them: set trainer.strategy "
    "to DDP, or set colocated.executor to Processes",
    field=".colocated.executor",
)
def actor_finds_all_weights(colocated: ColocatedSpec | None, trainer: TrainerSpec) -> bool:
    """Sharded weights are whole only while all training processes read them, at the start of a step."""
    is_sharded = trainer.strategy is not None and trainer.strategy.shards_weights
    return not is_on_ray(colocated) or not is_sharded or trainer.num_nodes * trainer.num_processes == 1


@rule(
    cel=f"!{IS_ON_RAY} || !{cel.has_host_network('self.trainer')}",
    sentence="colocated.executor Ray needs the job's NetworkPolicy, which does not hold for pods with "
    "trainer.podTemplate.spec.hostNetwork: remove hostNetwork, or set colocated.executor to Processes",
    field=".colocated.executor",
)
def ray_is_behind_its_policy(colocated: ColocatedSpec | None, trainer: TrainerSpec) -> bool:
    """Who reaches Ray and knows its token may run code, and the token travels in the clear."""
    template = trainer.pod_template
    return not is_on_ray(colocated) or template is None or not template.has_host_network
