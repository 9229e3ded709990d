"""`weightSync`: how engines get new weights, with the rules about where its backends reach."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api import cel
from grpo_api.model import ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.colocated import HAS_OWN_PROCESS, ColocatedSpec, has_own_process
from grpo_api.v1alpha1.spec.disk import DiskSpec
from grpo_api.v1alpha1.spec.engine import EngineSpec
from grpo_api.v1alpha1.spec.rollout import RolloutSpec
from grpo_api.v1alpha1.spec.trainer import TrainerSpec


class WeightSyncBackend(StrEnum):
    """The ways that weights can travel, and `Auto`."""

    AUTO = "Auto"
    IN_PROCESS = "InProcess"
    GLOO = "Gloo"
    NCCL = "NCCL"
    VLLM_NCCL = "VllmNCCL"
    SHARED_MEMORY = "SharedMemory"
    IPC = "IPC"
    DISK = "Disk"


ENGINES_OF_VLLM = ("nccl", "ipc", "sparse_nccl", "sharded_rdt", "nccl_m2n", "modelexpress")
"""vLLM's own engines for weight transfer, by their names in its `--weight-transfer-config`."""

_OFFERED = [backend.value for backend in WeightSyncBackend]


@rule(
    cel=f"!has(self.backend) || self.backend in {cel.list_of((*_OFFERED, *ENGINES_OF_VLLM))}",
    sentence=f"weightSync.backend must be one of {', '.join(_OFFERED)}: set one of them, or remove it, which "
    "means Auto",
    field=".backend",
)
def backend_is_known(backend: str | None) -> bool:
    """The backend is a known one, or a name of vLLM's, which the rules below refuse."""
    return backend is None or backend in (*_OFFERED, *ENGINES_OF_VLLM)


@rule(
    cel="!has(self.backend) || self.backend != 'nccl'",
    sentence="weightSync.backend nccl is what vLLM calls its own engine, which is VllmNCCL here: set "
    "VllmNCCL, whose engines are restarted when a transfer breaks, or NCCL, whose engines keep their old "
    "weights then",
    field=".backend",
)
def nccl_is_vllms_or_ours(backend: str | None) -> bool:
    """Two backends are meant by NCCL, and what a broken transfer costs is the difference."""
    return backend != "nccl"


@rule(
    cel=f"!has(self.backend) || !(self.backend in {cel.list_of(ENGINES_OF_VLLM)}) || self.backend == 'nccl'",
    sentence="weightSync.backend names an engine of vLLM that is not offered: ipc sends pickles over HTTP, "
    "sharded_rdt needs named Ray actors, and the trainer speaks none of the others: set NCCL between pods, "
    "VllmNCCL for vLLM's own nccl engine, IPC within a pod, or remove it, which means Auto",
    field=".backend",
)
def engine_of_vllm_is_offered(backend: str | None) -> bool:
    """Of vLLM's own engines only nccl is."""
    return backend not in ENGINES_OF_VLLM or backend == "nccl"


@rule(
    cel=f"!has(self.backend) || self.backend != '{WeightSyncBackend.VLLM_NCCL}' || !has(self.verify) || "
    "self.verify",
    sentence="weightSync.verify must stay true with weightSync.backend VllmNCCL, whose bytes carry no tag, "
    "so that nothing else shows whether they are the trainer's: remove weightSync.verify, or use NCCL",
    field=".verify",
)
def bytes_without_tag_are_verified(backend: str | None, verify: bool) -> bool:
    """An engine must not serve weights that nobody has checked."""
    return verify or backend != WeightSyncBackend.VLLM_NCCL


_SPARSE_BACKENDS = (WeightSyncBackend.AUTO, WeightSyncBackend.GLOO, WeightSyncBackend.NCCL)
"""Those that can send only what changed; Auto takes one of them where there is `sparse`."""


class SparseSpec(ApiModel):
    """How engines are given only the weights that changed since the sync before."""

    full_every_steps: Annotated[int, Field(ge=2, le=100_000)]
    """All weights are sent in one sync of so many; also to engines without the weights of the sync before,
    and where what changed, with its index, is more than half of the bytes, as in float32."""


@rule(
    cel=f"!has(self.sparse) || !has(self.backend) || self.backend in {cel.list_of(_SPARSE_BACKENDS)}",
    sentence="weightSync.sparse spares bytes between pods, and weightSync.backend is not one that sends them "
    "so: set Gloo or NCCL, or remove weightSync.backend, which means Auto, or weightSync.sparse",
    field=".sparse",
)
def sparse_is_between_pods(backend: str | None, sparse: SparseSpec | None) -> bool:
    """Memory that is shared has no bytes to spare, and vLLM's own engine keeps none."""
    return sparse is None or backend is None or backend in _SPARSE_BACKENDS


@rule(
    cel="!has(self.sparse) || !has(self.disk) || "
    f"(has(self.backend) && self.backend != '{WeightSyncBackend.AUTO}')",
    sentence="weightSync.sparse sends engines what changed, and weightSync.disk has versions that are read "
    "as a whole: remove one of the two",
    field=".sparse",
)
def versions_are_whole(backend: str | None, sparse: SparseSpec | None, disk: DiskSpec | None) -> bool:
    """A folder that loads as a model has all weights. A backend that is named refuses one of the two."""
    return sparse is None or disk is None or backend not in (None, WeightSyncBackend.AUTO)


@rule(
    cel=f"!has(self.backend) || self.backend != '{WeightSyncBackend.DISK}' || has(self.disk)",
    sentence="weightSync.backend Disk needs a place for the weights: name a claim or a bucket in "
    "weightSync.disk.to",
    field=".backend",
)
def disk_has_a_place(backend: str | None, disk: DiskSpec | None) -> bool:
    """There is no place by default."""
    return backend != WeightSyncBackend.DISK or disk is not None


@rule(
    cel="!has(self.disk) || !has(self.backend) || "
    f"self.backend in {cel.list_of((WeightSyncBackend.AUTO, WeightSyncBackend.DISK))}",
    sentence="weightSync.disk is for weightSync.backend Disk: remove weightSync.disk, or set "
    "weightSync.backend to Disk, which is also what Auto means where there is weightSync.disk",
    field=".disk",
)
def place_is_for_disk(backend: str | None, disk: DiskSpec | None) -> bool:
    """Other backends write nothing."""
    return disk is None or backend in (None, WeightSyncBackend.AUTO, WeightSyncBackend.DISK)


class WeightSyncSpec(ApiModel):
    """How engines get new weights."""

    rules = (
        backend_is_known,
        nccl_is_vllms_or_ours,
        engine_of_vllm_is_offered,
        bytes_without_tag_are_verified,
        sparse_is_between_pods,
        versions_are_whole,
        disk_has_a_place,
        place_is_for_disk,
    )

    backend: Annotated[str, Field(max_length=64)] | None = None
    """How weights travel. Between pods: `NCCL`, from GPU to GPU, or `Gloo`, over TCP from CPU memory; or
    `VllmNCCL`, vLLM's own nccl engine, which is restarted when a transfer breaks; or `Disk`, by files on a
    volume or in a bucket. In mode Colocated: `InProcess`, `IPC` (memory of the same GPU) or `SharedMemory`
    (the same on CPU). `Auto`, also when it is left out, takes Disk where there is `disk`, or else the fastest
    for the job, and never VllmNCCL; status.weightSync has its choice and the reason."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Longest that a phase of an engine's sync may take; an engine that misses it leaves the fleet. Phases
    that are quick, or whose usual duration is known, are given up sooner."""
    verify: bool = True
    """After each sync, compare every engine's logprobs of a probe prompt with the trainer's before it may
    serve. With `VllmNCCL` it must stay true."""
    sparse: SparseSpec | None = None
    """Send engines only what changed since the sync before, to the same bits. For weights in bfloat16, of
    which a step with a small learning rate changes a few in a hundred; the trainer keeps a second copy of
    them in CPU memory. For backends Gloo and NCCL."""
    disk: DiskSpec | None = None
    """Write every version of the weights to a volume or a bucket, once, where engines read it: also those
    that join in mid-step, and those of another cluster. For backend Disk, which it means without
    `backend`."""

    @property
    def named_backend(self) -> WeightSyncBackend | None:
        """The backend that is asked for by name; None where it is left to be chosen."""
        return None if self.backend in (None, WeightSyncBackend.AUTO) else WeightSyncBackend(self.backend)


# About the whole spec. The engines have pods of their own exactly where there is `rollout`.


_BETWEEN_GPUS = (WeightSyncBackend.NCCL, WeightSyncBackend.VLLM_NCCL)
_BETWEEN_PODS = (WeightSyncBackend.GLOO, *_BETWEEN_GPUS)


def _is_one_of(*backends: WeightSyncBackend) -> str:
    """CEL for whether the backend is asked for by one of these names."""
    return f"(has(self.weightSync.backend) && self.weightSync.backend in {cel.list_of(backends)})"


_HAS_TRAINER_GPUS = cel.has_gpus("self.trainer")
_HAS_ROLLOUT_GPUS = f"{cel.HAS_ROLLOUT_RESOURCES} && {cel.has_gpus('self.rollout')}"


@rule(
    cel=f"has(self.rollout) || !{_is_one_of(*_BETWEEN_PODS)}",
    sentence="weightSync.backend Gloo, NCCL and VllmNCCL go between pods, and without rollout the engines "
    "have none: add rollout, or remove weightSync.backend, which means Auto",
    field=".weightSync.backend",
)
def network_backend_has_pods(weight_sync: WeightSyncSpec, rollout: RolloutSpec | None) -> bool:
    """Groups over a network are for engines in pods of their own."""
    return rollout is not None or weight_sync.backend not in _BETWEEN_PODS


@rule(
    cel="has(self.rollout) || !has(self.weightSync.disk)",
    sentence="weightSync.disk is read by engines in pods of their own, and without rollout there are none: "
    "add rollout, or remove weightSync.disk",
    field=".weightSync.disk",
)
def disk_has_pods(weight_sync: WeightSyncSpec, rollout: RolloutSpec | None) -> bool:
    """Engines in the trainer's pods have the weights beside them."""
    return rollout is not None or weight_sync.disk is None


@rule(
    cel=f"!has(self.rollout) || !{_is_one_of(*_BETWEEN_GPUS)} || "
    f"({_HAS_TRAINER_GPUS} && {_HAS_ROLLOUT_GPUS})",
    sentence="weightSync.backend NCCL and VllmNCCL need GPUs in trainer and rollout pods: set nvidia.com/gpu "
    "in resources.limits of both, or use Gloo",
    field=".weightSync.backend",
)
def nccl_has_gpus(weight_sync: WeightSyncSpec, trainer: TrainerSpec, rollout: RolloutSpec | None) -> bool:
    """NCCL moves memory of GPUs."""
    if rollout is None or weight_sync.backend not in _BETWEEN_GPUS:
        return True
    return trainer.has_gpus and rollout.has_gpus


@rule(
    cel=f"!has(self.rollout) || !{_is_one_of(WeightSyncBackend.IN_PROCESS)}",
    sentence="weightSync.backend InProcess reaches engines in the trainer's processes, and those of rollout "
    "are in pods of their own: remove rollout, or use Gloo or NCCL",
    field=".weightSync.backend",
)
def in_process_has_no_pods(weight_sync: WeightSyncSpec, rollout: RolloutSpec | None) -> bool:
    """What is in another process cannot be lent."""
    return rollout is None or weight_sync.backend != WeightSyncBackend.IN_PROCESS


@rule(
    cel=f"!has(self.rollout) || !{_is_one_of(WeightSyncBackend.SHARED_MEMORY, WeightSyncBackend.IPC)}",
    sentence="weightSync.backend SharedMemory and IPC reach engines in the trainer's own container; between "
    "pods they would need hostIPC, which Pod Security restricted forbids: remove rollout, or use Gloo or "
    "NCCL",
    field=".weightSync.backend",
)
def memory_is_shared_within_a_pod(weight_sync: WeightSyncSpec, rollout: RolloutSpec | None) -> bool:
    """Pods share no memory."""
    is_shared = weight_sync.backend in (WeightSyncBackend.SHARED_MEMORY, WeightSyncBackend.IPC)
    return rollout is None or not is_shared


@rule(
    cel=f"has(self.rollout) || !{_is_one_of(WeightSyncBackend.IN_PROCESS)} || !{HAS_OWN_PROCESS}",
    sentence="weightSync.backend InProcess reaches engines in the trainer's processes, and engine.process "
    "Own and colocated.executor Ray put them beside these: remove weightSync.backend, or the other field",
    field=".weightSync.backend",
)
def in_process_has_no_own_process(
    weight_sync: WeightSyncSpec,
    engine: EngineSpec,
    colocated: ColocatedSpec | None,
    rollout: RolloutSpec | None,
) -> bool:
    """What is in another process cannot be lent, also in the same container."""
    is_in_process = weight_sync.backend == WeightSyncBackend.IN_PROCESS
    return rollout is not None or not is_in_process or not has_own_process(engine, colocated)


@rule(
    cel=f"has(self.rollout) || !{_is_one_of(WeightSyncBackend.SHARED_MEMORY, WeightSyncBackend.IPC)} || "
    f"{HAS_OWN_PROCESS}",
    sentence="weightSync.backend SharedMemory and IPC go from one process to another, and the engines are in "
    "the trainer's: set engine.process to Own or colocated.executor to Ray, or remove "
    "weightSync.backend, which means Auto",
    field=".weightSync.backend",
)
def memory_is_shared_between_processes(
    weight_sync: WeightSyncSpec,
    engine: EngineSpec,
    colocated: ColocatedSpec | None,
    rollout: RolloutSpec | None,
) -> bool:
    """A process needs no shared memory for itself."""
    is_shared = weight_sync.backend in (WeightSyncBackend.SHARED_MEMORY, WeightSyncBackend.IPC)
    return rollout is not None or not is_shared or has_own_process(engine, colocated)


@rule(
    cel=f"has(self.rollout) || !{_is_one_of(WeightSyncBackend.IPC)} || {_HAS_TRAINER_GPUS}",
    sentence="weightSync.backend IPC shares the memory of a GPU: set nvidia.com/gpu in "
    "trainer.resources.limits, or use SharedMemory",
    field=".weightSync.backend",
)
def ipc_has_gpus(weight_sync: WeightSyncSpec, trainer: TrainerSpec, rollout: RolloutSpec | None) -> bool:
    """CUDA IPC is between processes on one GPU."""
    is_ipc = weight_sync.backend == WeightSyncBackend.IPC
    return rollout is not None or not is_ipc or trainer.has_gpus


@rule(
    cel="has(self.rollout) || !has(self.weightSync.sparse) || "
    f"(has(self.weightSync.backend) && !(self.weightSync.backend in {cel.list_of(_SPARSE_BACKENDS)}))",
    sentence="weightSync.sparse spares bytes between pods, and without rollout the engines have none: add "
    "rollout, or remove weightSync.sparse",
    field=".weightSync.sparse",
)
def sparse_has_pods(weight_sync: WeightSyncSpec, rollout: RolloutSpec | None) -> bool:
    """Within a container no bytes travel. Backends that send none are refused by a rule of their own."""
    is_judged = weight_sync.backend is None or weight_sync.backend in _SPARSE_BACKENDS
    return rollout is not None or weight_sync.sparse is None or not is_judged
