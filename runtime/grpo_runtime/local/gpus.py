"""The GPUs of this machine, and which of them each process of a local job has. No torch here."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from grpo_api import cel
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import ResourcesSpec
from grpo_runtime.engines.colocated.engine_process import VISIBLE_DEVICES
from grpo_runtime.engines.registry import engine_kind
from grpo_runtime.errors import UserError
from grpo_runtime.local.describe import count, gpu_fields, gpus_asked

NUMBERED_AS_LISTED = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""How CUDA numbers GPUs where the shell does not say: as nvidia-smi does, and not the fastest first."""
_TIMEOUT_SECONDS = 60.0


def usable_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that the engine's build here can use."""
    return find_gpus(environment, has_cpu_build=engine_kind().is_cpu_build())


def find_gpus(environment: Mapping[str, str], *, has_cpu_build: bool) -> tuple[str, ...]:
    """The GPUs that a job may use, as CUDA_VISIBLE_DEVICES names them: those that it names here already, or
    all of the machine. None when the engine has its CPU build, for the trainer is where its engines are."""
    program = shutil.which("nvidia-smi")
    if has_cpu_build or program is None:
        return ()
    command = [program, "-L"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    # without a driver it fails, and says so on its own output
    lines = listed.stdout.splitlines() if listed.returncode == 0 else []
    num_gpus = sum(line.startswith("GPU ") for line in lines)
    return usable(num_gpus, environment=environment)


def usable(num_gpus: int, *, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves of so many, up to the first that there cannot be."""
    named = environment.get(VISIBLE_DEVICES)
    if named is None or num_gpus == 0:
        return tuple(map(str, range(num_gpus)))
    found: list[str] = []
    for name in map(str.strip, named.split(",")):
        if not name or name.startswith("-") or (name.isdecimal() and int(name) >= num_gpus):
            break
        found.append(name)
    return tuple(found)


def placed_on(job: GRPOJob, gpus: tuple[str, ...], *, was_on_gpus: bool | None) -> GRPOJob:
    """The job as it runs on this machine: one that asks for no GPUs gets the limits it would have on them,
    where there are some, so that all that follows from the hardware does so as in a pod.

    `was_on_gpus` is what the run began with, and stays; None when it begins now. Raises UserError when there
    are fewer GPUs than its processes need, each its own.
    """
    does_ask = bool(gpu_fields(job))
    if not does_ask and not (bool(gpus) if was_on_gpus is None else was_on_gpus):
        return job
    placed = job if does_ask else _with_gpus(job)
    needed = sum(gpus_asked(placed))
    if needed > len(gpus):
        why = f"{' and '.join(gpu_fields(job))} ask for" if does_ask else "the processes of this job need"
        raise UserError(
            f"{why} {count(needed, 'GPU')}, one for each training process and one for each worker of an "
            f"engine in a process of its own, and a local run has {len(gpus) or 'none'} here: lower "
            "trainer.numNodes, trainer.processesPerNode, rollout.replicas or engine.tensorParallelSize, "
            "remove rollout, so that training and engines share GPUs, or run the job on a cluster"
        )
    return placed


def _with_gpus(job: GRPOJob) -> GRPOJob:
    spec, rollout = job.spec, job.spec.rollout
    trainer = spec.trainer.model_copy(
        update={"resources": _limited(spec.trainer.resources, spec.trainer.num_processes)}
    )
    if rollout is not None:
        per_pod = spec.engine.num_workers // rollout.nodes_per_replica
        rollout = rollout.model_copy(update={"resources": _limited(rollout.resources, per_pod)})
    return job.model_copy(update={"spec": spec.model_copy(update={"trainer": trainer, "rollout": rollout})})


def _limited(resources: ResourcesSpec, num_gpus: int) -> ResourcesSpec:
    return resources.model_copy(update={"limits": {**resources.limits, cel.GPU: num_gpus}})


@dataclass(frozen=True)
class GpuShares:
    """Which GPUs each process sees, and no others: none where it runs on CPU."""

    trainers: tuple[tuple[str, ...], ...]
    """GPUs by trainer; its training processes have one each, in their order."""
    engines: tuple[tuple[str, ...], ...]
    """GPUs by engine of mode Disaggregated; its workers have one each."""

    @classmethod
    def of(cls, job: GRPOJob, gpus: tuple[str, ...]) -> "GpuShares":
        """First the trainers take theirs, then the engines; no GPU is given twice."""
        trainer, rollout, left = job.spec.trainer, job.spec.rollout, iter(gpus)

        def take(number: int) -> tuple[str, ...]:
            return tuple(next(left) for _ in range(number))

        of_engine = job.spec.num_rollout_gpus * rollout.nodes_per_replica if rollout else 0
        return cls(
            trainers=tuple(take(trainer.num_gpus) for _ in range(trainer.num_nodes)),
            engines=tuple(take(of_engine) for _ in range(rollout.replicas if rollout else 0)),
        )


def seeing(gpus: tuple[str, ...]) -> dict[str, str]:
    """The environment of a process that sees these GPUs only."""
    return {VISIBLE_DEVICES: ",".join(gpus)}
