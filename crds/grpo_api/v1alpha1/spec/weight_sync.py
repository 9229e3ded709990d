"""`weightSync`: how engines get new weights, with the rules about where its backends reach."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api import cel
from grpo_api.model import ApiModel
from grpo_api.rule import Follows, TextRule, rule
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
    VLLM_NATIVE = "VllmNative"
    SHARED_MEMORY = "SharedMemory"
    IPC = "IPC"
    DISK = "Disk"


VLLM_TRANSFER_ENGINES = ("nccl", "ipc", "sparse_nccl", "sharded_rdt", "nccl_m2n", "modelexpress")
"""vLLM's own engines for weight transfer, by their names in its `--weight-transfer-config`."""

DEFAULT_VLLM_TRANSFER_ENGINE = "nccl"
"""What `VllmNative` means without `vllmEngine`."""
_NOT_OFFERED = [engine for engine in VLLM_TRANSFER_ENGINES if engine != DEFAULT_VLLM_TRANSFER_ENGINE]

_OFFERED = [backend.value for backend in WeightSyncBackend]


@rule(
    cel=f"!has(self.backend) || self.backend in {cel.list_of((*_OFFERED, *VLLM_TRANSFER_ENGINES))}",
    sentence=f"weightSync.backend must be one of {', '.join(_OFFERED)}: set one of them, or remove it, which "
    "means Auto",
    field=".backend",
)
def backend_is_known(backend: str | None) -> bool:
    """The backend is a known one, or the name of an engine of vLLM, which the rules below refuse."""
    return backend is None or backend in (*_OFFERED, *VLLM_TRANSFER_ENGINES)


@rule(
    cel=f"!has(self.backend) || !(self.backend in {cel.list_of(VLLM_TRANSFER_ENGINES)})",
    sentence="weightSync.backend names a transfer engine of vLLM: set weightSync.backend VllmNative and name "
    "the engine in weightSync.vllmEngine, or set NCCL between pods, or IPC within a pod, whose engines keep "
    "their old weights when a transfer breaks",
    field=".backend",
)
def backend_is_no_vllm_engine(backend: str | None) -> bool:
    """NCCL and IPC each name a backend of ours and an engine of vLLM's; they differ in what a broken transfer
    costs."""
    return backend not in VLLM_TRANSFER_ENGINES


@rule(
    cel=f"!has(self.vllmEngine) || (has(self.backend) && self.backend == '{WeightSyncBackend.VLLM_NATIVE}')",
    sentence="weightSync.vllmEngine is for weightSync.backend VllmNative: set that, or remove "
    "weightSync.vllmEngine",
    field=".vllmEngine",
)
def vllm_engine_needs_vllm_native(backend: str | None, vllm_engine: str | None) -> bool:
    """Only VllmNative uses one."""
    return vllm_engine is None or backend == WeightSyncBackend.VLLM_NATIVE


@rule(
    cel=f"!has(self.vllmEngine) || !(self.vllmEngine in {cel.list_of(_NOT_OFFERED)})",
    sentence="weightSync.vllmEngine names an engine of vLLM that cannot be used: ipc sends pickles over "
    "HTTP, sharded_rdt needs actors of Ray and modelexpress a service, and sparse_nccl and nccl_m2n do not "
    "send all weights from one process: set nccl, or an engine that your image brings",
    field=".vllmEngine",
)
def vllm_engine_is_supported(vllm_engine: str | None) -> bool:
    """Only nccl is supported of vLLM's own engines."""
    return vllm_engine not in _NOT_OFFERED


@rule(
    cel=f"!has(self.backend) || self.backend != '{WeightSyncBackend.VLLM_NATIVE}' || !has(self.verify) || "
    "self.verify",
    sentence="weightSync.verify must stay true with weightSync.backend VllmNative, whose bytes carry no tag, "
    "so that nothing else shows whether they are the trainer's: remove weightSync.verify, or use NCCL",
    field=".verify",
)
def bytes_without_tag_are_verified(backend: str | None, verify: bool) -> bool:
    """An engine must not serve weights that nobody has checked."""
    return verify or backend != WeightSyncBackend.VLLM_NATIVE


_SPARSE_BACKENDS = (WeightSyncBackend.AUTO, WeightSyncBackend.GLOO, WeightSyncBackend.NCCL)
"""Backends that can send only what changed; Auto takes one of them where there is `sparse`."""


class SparseSpec(ApiModel):
    """How engines are given only the weights that changed since the sync before."""

    full_every_steps: Annotated[int, Field(ge=2, le=100_000)]
    """All weights are sent once in this many syncs. They are also sent to an engine that lacks the weights of
    the last sync, and where what changed, with its index, is more than half of the bytes, as in float32."""


@rule(
    cel=f"!has(self.sparse) || !has(self.backend) || self.backend in {cel.list_of(_SPARSE_BACKENDS)}",
    sentence="weightSync.sparse saves bytes between pods, and only the backends Gloo and NCCL can do "
    "that: set one of them, or remove weightSync.backend, which means Auto, or remove "
    "weightSync.sparse",
    field=".sparse",
)
def sparse_is_between_pods(backend: str | None, sparse: SparseSpec | None) -> bool:
    """Shared memory sends nothing that sparse could save, and transfer engines of vLLM send whole tensors."""
    return sparse is None or backend is None or backend in _SPARSE_BACKENDS


@rule(
    cel="!has(self.sparse) || !has(self.disk) || "
    f"(has(self.backend) && self.backend != '{WeightSyncBackend.AUTO}')",
    sentence="weightSync.sparse sends only what changed, and versions on weightSync.disk are read as a "
    "whole: remove one of the two",
    field=".sparse",
)
def versions_are_whole(backend: str | None, sparse: SparseSpec | None, disk: DiskSpec | None) -> bool:
    """A folder that loads as a model has all weights. A backend that is named refuses one of the two."""
    return sparse is None or disk is None or backend not in (None, WeightSyncBackend.AUTO)


@rule(
    cel=f"!has(self.backend) || self.backend != '{WeightSyncBackend.DISK}' || has(self.disk)",
    sentence="weightSync.backend Disk needs a destination for the weights: name a claim or a bucket in "
    "weightSync.disk.to",
    field=".backend",
)
def disk_needs_destination(backend: str | None, disk: DiskSpec | None) -> bool:
    """There is no default destination."""
    return backend != WeightSyncBackend.DISK or disk is not None


@rule(
    cel="!has(self.disk) || !has(self.backend) || "
    f"self.backend in {cel.list_of((WeightSyncBackend.AUTO, WeightSyncBackend.DISK))}",
    sentence="weightSync.disk is for weightSync.backend Disk: remove weightSync.disk, or set "
    "weightSync.backend to Disk, which is also what Auto means where there is weightSync.disk",
    field=".disk",
)
def destination_needs_disk(backend: str | None, disk: DiskSpec | None) -> bool:
    """Other backends write nothing."""
    return disk is None or backend in (None, WeightSyncBackend.AUTO, WeightSyncBackend.DISK)


class WeightSyncSpec(ApiModel):
    """How engines get new weights."""

    rules = (
        backend_is_known,
        backend_is_no_vllm_engine,
        vllm_engine_needs_vllm_native,
        vllm_engine_is_supported,
        bytes_without_tag_are_verified,
        sparse_is_between_pods,
        versions_are_whole,
        disk_needs_destination,
        destination_needs_disk,
    )

    backend: Annotated[str, Field(max_length=64)] | None = None
    """How weights travel. Between pods: `NCCL` goes from GPU to GPU; `Gloo` goes over TCP from CPU memory;
    `VllmNative` is a transfer engine of vLLM, named in `vllmEngine`, with which an engine is restarted when a
    transfer breaks; `Disk` goes through files on a volume or in a bucket. In mode Colocated: `InProcess`;
    `IPC`, which is memory of the same GPU; or `SharedMemory`, the same on CPU. `Auto` (the default) takes
    Disk where `disk` is set and otherwise the fastest for the job, but never VllmNative; status.weightSync
    has its choice and the reason."""
    vllm_engine: (
        Annotated[
            str,
            Field(max_length=64),
            Follows(
                TextRule(
                    "^[A-Za-z0-9][A-Za-z0-9._-]*$",
                    "must be the name of a transfer engine of vLLM: use letters, digits, ., _ and -, and "
                    "begin with a letter or a digit",
                )
            ),
        ]
        | None
    ) = None
    """For backend VllmNative: the transfer engine of vLLM by its name in vLLM's factories, `nccl` when it is
    left out. The image of trainer and rollout may bring another one, as a plugin of vLLM that registers both
    of its halves."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Longest that one phase of an engine's sync may take. An engine that takes longer is given no more work
    until a later sync succeeds. Phases that are quick, or whose usual duration is known, time out
    sooner."""
    verify: bool = True
    """After each sync, compare every engine's logprobs of a probe prompt with the trainer's, before the
    engine may serve. With `VllmNative` it must stay true."""
    sparse: SparseSpec | None = None
    """Send engines only the weights that changed since the last sync; they end up with the same bits. It pays
    for weights in bfloat16, of which a step with a small learning rate changes a few percent. The
    trainer keeps a second copy of them in CPU memory. For backends Gloo and NCCL."""
    disk: DiskSpec | None = None
    """Write every version of the weights once, to a volume or a bucket, where engines read it, including
    those that join mid-step and those of another cluster. For backend Disk, which is the default with this
    section."""

    @property
    def named_backend(self) -> WeightSyncBackend | None:
        """The backend that is asked for by name; None where it is left to be chosen."""
        return None if self.backend in (None, WeightSyncBackend.AUTO) else WeightSyncBackend(self.backend)

    @property
    def vllm_engine_name(self) -> str:
        """The transfer engine that `VllmNative` means."""
        return self.vllm_engine or DEFAULT_VLLM_TRANSFER_ENGINE


# About the whole spec. The engines have pods of their own exactly where there is `rollout`.


_BETWEEN_PODS = (WeightSyncBackend.GLOO, WeightSyncBackend.NCCL, WeightSyncBackend.VLLM_NATIVE)


def _is_one_of(*backends: WeightSyncBackend) -> str:
    """CEL for whether the backend is asked for by one of these names."""
    return f"(has(self.weightSync.backend) && self.weightSync.backend in {cel.list_of(backends)})"


_IS_NCCL_OF_VLLM = (
    f"({_is_one_of(WeightSyncBackend.VLLM_NATIVE)} && "
    f"(!has(self.weightSync.vllmEngine) || self.weightSync.vllmEngine == '{DEFAULT_VLLM_TRANSFER_ENGINE}'))"
)
_HAS_TRAINER_GPUS = cel.has_gpus("self.trainer")
_HAS_ROLLOUT_GPUS = f"{cel.HAS_ROLLOUT_RESOURCES} && {cel.has_gpus('self.rollout')}"


@rule(
    cel=f"has(self.rollout) || !{_is_one_of(*_BETWEEN_PODS)}",
    sentence="weightSync.backend Gloo, NCCL and VllmNative go between pods, and without rollout the "
    "engines have no pods of their own: add rollout, or remove weightSync.backend, which means "
    "Auto",
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
    cel=f"!has(self.rollout) || !({_is_one_of(WeightSyncBackend.NCCL)} || {_IS_NCCL_OF_VLLM}) || "
    f"({_HAS_TRAINER_GPUS} && {_HAS_ROLLOUT_GPUS})",
    sentence="weightSync.backend NCCL, and VllmNative with vLLM's nccl engine, need GPUs in trainer and "
    "rollout pods: set nvidia.com/gpu in resources.limits of both, or use Gloo",
    field=".weightSync.backend",
)
def nccl_has_gpus(weight_sync: WeightSyncSpec, trainer: TrainerSpec, rollout: RolloutSpec | None) -> bool:
    """NCCL moves memory of GPUs."""
    is_nccl_of_vllm = (
        weight_sync.backend == WeightSyncBackend.VLLM_NATIVE
        and weight_sync.vllm_engine_name == DEFAULT_VLLM_TRANSFER_ENGINE
    )
    if rollout is None or not (weight_sync.backend == WeightSyncBackend.NCCL or is_nccl_of_vllm):
        return True
    return trainer.has_gpus and rollout.has_gpus


@rule(
    cel=f"!has(self.rollout) || !{_is_one_of(WeightSyncBackend.IN_PROCESS)}",
    sentence="weightSync.backend InProcess reaches engines in the trainer's processes, and those of rollout "
    "are in pods of their own: remove rollout, or use Gloo or NCCL",
    field=".weightSync.backend",
)
def in_process_has_no_pods(weight_sync: WeightSyncSpec, rollout: RolloutSpec | None) -> bool:
    """Weights cannot be passed by reference to another process."""
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
    sentence="weightSync.backend InProcess reaches engines in the training processes, and "
    "engine.process Own and colocated.executor Ray give them processes of their own: remove "
    "weightSync.backend, or the other field",
    field=".weightSync.backend",
)
def in_process_has_no_own_process(
    weight_sync: WeightSyncSpec,
    engine: EngineSpec,
    colocated: ColocatedSpec | None,
    rollout: RolloutSpec | None,
) -> bool:
    """Weights cannot be passed by reference to another process, even in the same container."""
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
    sentence="weightSync.sparse saves bytes between pods, and without rollout the engines have no pods "
    "of their own: add rollout, or remove weightSync.sparse",
    field=".weightSync.sparse",
)
def sparse_has_pods(weight_sync: WeightSyncSpec, rollout: RolloutSpec | None) -> bool:
    """Within a container no bytes travel. Backends that send none are refused by a rule of their own."""
    is_checked_here = weight_sync.backend is None or weight_sync.backend in _SPARSE_BACKENDS
    return rollout is not None or weight_sync.sparse is None or not is_checked_here
