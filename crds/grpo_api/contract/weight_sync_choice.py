"""Which backend a job's weights travel by, and why. Pure."""

from dataclasses import dataclass, replace

from grpo_api.v1alpha1.spec.job_spec import GRPOJobSpec, Mode
from grpo_api.v1alpha1.spec.model import Dtype
from grpo_api.v1alpha1.spec.weight_sync import WeightSyncBackend

REGISTRY_NAMES = {
    WeightSyncBackend.IN_PROCESS: "in_process",
    WeightSyncBackend.GLOO: "gloo",
    WeightSyncBackend.NCCL: "nccl",
    WeightSyncBackend.VLLM_NATIVE: "vllm_native",
    WeightSyncBackend.SHARED_MEMORY: "shared_memory",
    WeightSyncBackend.IPC: "ipc",
    WeightSyncBackend.DISK: "disk",
}
"""What the runtime's registry calls each backend."""


@dataclass(frozen=True)
class BackendChoice:
    """A backend, never `Auto`, and the reason for it as a part of a sentence."""

    backend: WeightSyncBackend
    reason: str


def choose_backend(
    *,
    mode: Mode,
    has_trainer_gpus: bool,
    has_rollout_gpus: bool,
    has_own_process: bool = False,
    is_one_machine: bool = False,
) -> BackendChoice:
    """What `Auto` means. `mode` is the chosen one. `has_own_process` says that a colocated engine is a
    process beside its rank and no part of it; `is_one_machine` that all processes of the job are on one
    machine and in one network namespace, as in a local run."""
    if mode is Mode.COLOCATED:
        return _in_the_container(has_gpus=has_trainer_gpus, has_own_process=has_own_process)
    if has_trainer_gpus and has_rollout_gpus:
        return BackendChoice(WeightSyncBackend.NCCL, "trainer and engines have GPUs")
    if is_one_machine:
        return BackendChoice(
            WeightSyncBackend.SHARED_MEMORY, "trainer and engines are processes of one machine"
        )
    subject = "trainer and engines run"
    if has_trainer_gpus or has_rollout_gpus:
        subject = "the engines run" if has_trainer_gpus else "the trainer runs"
    return BackendChoice(WeightSyncBackend.GLOO, f"{subject} on CPU")


def _in_the_container(*, has_gpus: bool, has_own_process: bool) -> BackendChoice:
    if not has_own_process:
        return BackendChoice(WeightSyncBackend.IN_PROCESS, "the engines are in the trainer's own processes")
    if has_gpus:
        return BackendChoice(WeightSyncBackend.IPC, "engine and trainer are two processes on one GPU")
    return BackendChoice(WeightSyncBackend.SHARED_MEMORY, "engine and trainer are two processes on CPU")


def backend_of(spec: GRPOJobSpec, *, is_one_machine: bool = False) -> BackendChoice:
    """The backend that a spec names, or else what `Auto` means for it. The reason also says when only
    changes are sent."""
    choice = _named_or_chosen(spec, is_one_machine=is_one_machine)
    if spec.weight_sync.sparse is None:
        return choice
    sent = "spec.weightSync.sparse sends only what changed"
    if spec.resolved_dtype is Dtype.FLOAT32:
        sent += ", which in float32 is nearly all at each step: set model.dtype to bfloat16 to send less"
    return replace(choice, reason=f"{choice.reason}; {sent}")


def _named_or_chosen(spec: GRPOJobSpec, *, is_one_machine: bool) -> BackendChoice:
    named = spec.weight_sync.named_backend
    if named is not None:
        return BackendChoice(named, f"spec.weightSync.backend is {named}")
    if spec.weight_sync.disk is not None:
        return BackendChoice(WeightSyncBackend.DISK, "spec.weightSync.disk says where weights are kept")
    return choose_backend(
        mode=spec.resolved_mode,
        has_trainer_gpus=spec.trainer.has_gpus,
        has_rollout_gpus=spec.rollout is not None and spec.rollout.has_gpus,
        has_own_process=spec.engine_has_own_process,
        # shared memory sends nothing that sparse could save
        is_one_machine=is_one_machine and spec.weight_sync.sparse is None,
    )


def with_backend(spec: GRPOJobSpec, backend: str | None) -> GRPOJobSpec:
    """The spec with another name of a backend in it, or with none."""
    weight_sync = spec.weight_sync.model_copy(update={"backend": backend})
    return spec.model_copy(update={"weight_sync": weight_sync})
