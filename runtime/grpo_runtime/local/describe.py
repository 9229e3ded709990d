"""What a cluster and this machine would do with a job, in a few lines. Pure."""

from grpo_api.contract.weight_sync_choice import backend_of
from grpo_api.resolve import resolve, resumed_volumes_of, secrets_of, volumes_of
from grpo_api.source import VolumeKind
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import Mode, ResumeLoad, RolloutSpec, TrainerSpec
from grpo_api.v1alpha1.spec.engine import MAX_CPU_WORKERS

_LABEL_WIDTH = 12


def describe(job: GRPOJob) -> str:
    """Describe a valid job: mode and weight sync and why, processes, GPUs, steps, what it reads, what it
    resumes from, where checkpoints go."""
    rows = {
        "mode": f"{job.spec.resolved_mode.value}, because {job.spec.mode_reason}",
        "pods": _pods(job),
        "GPUs": _gpus(job),
        "weights": _weights(job),
        "steps": _steps(job),
        **_ahead(job),
        "reads": _reads(job),
        **_resumes(job),
        "rewards": ", ".join(f"{reward.name} x {reward.weight:g}" for reward in job.spec.resolved_rewards),
        "checkpoints": _checkpoints(job),
        "locally": _locally(job),
    }
    return "\n".join(f"  {label:{_LABEL_WIDTH}} {text}" for label, text in rows.items())


_CLAIMS = "podTemplate.spec.resourceClaims"


def gpu_fields(job: GRPOJob) -> list[str]:
    """The fields in which a job asks for GPUs."""
    spec = job.spec
    pods: list[tuple[str, TrainerSpec | RolloutSpec, int]] = [
        ("trainer", spec.trainer, spec.trainer.num_gpus)
    ]
    if spec.rollout is not None:
        pods.append(("rollout", spec.rollout, spec.num_rollout_gpus))
    return [
        f"spec.{role}.resources" if section.resources.num_gpus else f"spec.{role}.{_CLAIMS}"
        for role, section, number in pods
        if number
    ]


def gpus_asked(job: GRPOJob) -> tuple[int, int]:
    """How many GPUs it asks for in all: for training, and for rollouts."""
    trainer, rollout = job.spec.trainer, job.spec.rollout
    of_rollouts = rollout.replicas * rollout.nodes_per_replica * job.spec.num_rollout_gpus if rollout else 0
    return trainer.num_nodes * trainer.num_gpus, of_rollouts


def local_problem(job: GRPOJob) -> str:
    """Why a job cannot run on one machine, whatever GPUs that has, and what to change; empty when it can."""
    rollout, num_workers = job.spec.rollout, job.spec.engine.num_workers
    is_on_cpu = rollout is not None and not rollout.has_gpus
    if rollout is not None and is_on_cpu and num_workers > MAX_CPU_WORKERS:
        return (
            f"an engine would have {num_workers} workers, and on one machine vLLM joins at most "
            f"{MAX_CPU_WORKERS} on CPU: lower {_factors(job, num_engines=1)}, or "
            f"run the job on a cluster, where rollout.nodesPerReplica ({rollout.nodes_per_replica}) "
            "spreads them over pods"
        )
    return ""


def crowded(job: GRPOJob, *, num_cores: int) -> str:
    """A warning that the engines of a local run have more workers than the machine has cores, and what to
    change; empty when they have not."""
    num_engines = resolve(job).topology.rollout_replicas
    num_workers = num_engines * job.spec.engine.num_workers
    if num_workers <= num_cores:
        return ""
    return (
        f"{count(num_engines, 'engine')} with {count(num_workers, 'worker')} in all share "
        f"{count(num_cores, 'CPU core')}, which is slow: lower {_factors(job, num_engines=num_engines)}"
    )


def _factors(job: GRPOJob, *, num_engines: int) -> str:
    """The fields that give the engines more than one worker in all: each is a factor of their number."""
    engine = job.spec.engine
    sizes = {
        "rollout.replicas": num_engines,
        "engine.tensorParallelSize": engine.tensor_parallel_size,
        "engine.pipelineParallelSize": engine.pipeline_parallel_size,
        "engine.dataParallelSize": engine.num_cores,
    }
    return " or ".join(field for field, size in sizes.items() if size > 1)


def count(number: int, noun: str) -> str:
    """`1 pod`, `2 pods`, `2 processes`."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def _pods(job: GRPOJob) -> str:
    topology = resolve(job).topology
    processes = count(topology.processes_per_node, "training process")
    each = f"{processes}{' each' if topology.num_nodes > 1 else ''}"
    trainers = f"{count(topology.num_nodes, 'trainer pod')} with {each}"
    size = job.spec.engine.num_workers
    if job.spec.resolved_mode is Mode.COLOCATED:
        shared = "in each of them" if size == 1 else f"for every {size} of them"
        if topology.world_size == size:
            shared = "in it" if size == 1 else "for all of them"
        return f"{trainers} and one vLLM engine {shared}"
    num_nodes = job.spec.rollout.nodes_per_replica if job.spec.rollout else 1
    rollouts = count(topology.rollout_replicas * num_nodes, "rollout pod")
    engine = "one vLLM engine" if size == 1 else f"one vLLM engine of {size} workers"
    if topology.rollout_replicas == 1:
        return f"{trainers}, {rollouts} with {engine}"
    each = "each" if num_nodes == 1 else f"for every {num_nodes}"
    return f"{trainers}, {rollouts} with {engine} {each}"


def _gpus(job: GRPOJob) -> str:
    trainers, rollouts = gpus_asked(job)
    if not trainers + rollouts:
        return "none, all on CPU"
    return f"{trainers + rollouts}: {trainers} for training, {rollouts} for rollouts"


def _weights(job: GRPOJob) -> str:
    choice, disk = backend_of(job.spec), job.spec.weight_sync.disk
    place = "" if disk is None else f" through {disk.to}"
    return f"to the engines by {choice.backend}{place}, because {choice.reason}"


def _steps(job: GRPOJob) -> str:
    algorithm = job.spec.algorithm
    samples = algorithm.prompts_per_step * algorithm.group_size
    return (
        f"{algorithm.steps or f'as many as {algorithm.epochs:g} epochs are,'} of {count(samples, 'sample')} "
        f"({count(algorithm.prompts_per_step, 'prompt')} x {algorithm.group_size} completions)"
    )


def _ahead(job: GRPOJob) -> dict[str, str]:
    ahead = job.spec.asynchronous
    if ahead is None:
        return {}
    when = "every step" if ahead.sync_every_steps == 1 else f"every {ahead.sync_every_steps} steps"
    return {
        "async": f"on completions that are at most {count(ahead.max_staleness, 'step')} old; engines get "
        f"weights after {when}"
    }


def _reads(job: GRPOJob) -> str:
    spec = job.spec
    words = {VolumeKind.CLAIM: "claim", VolumeKind.CONFIG_MAP: "ConfigMap", VolumeKind.SECRET: "Secret"}
    run = resolve(job)
    needed = (*volumes_of(run), *resumed_volumes_of(run), *secrets_of(run))
    volumes = [f"{words[volume.kind]} {volume.name}" for volume in needed]
    return ", ".join([f"model {spec.model.source}", f"dataset {spec.resolved_dataset.source}", *volumes])


def _resumes(job: GRPOJob) -> dict[str, str]:
    resume = job.spec.resume_from
    if resume is None:
        return {}
    of_step = "the newest checkpoint" if resume.step is None else f"the checkpoint of step {resume.step}"
    what = of_step if resume.load is ResumeLoad.CHECKPOINT else f"the weights of {of_step}"
    place = f"of job {resume.job}" if resume.job else f"at {resume.source}"
    return {"resumes": f"from {what} {place}, unless it has one of its own"}


def _checkpoints(job: GRPOJob) -> str:
    spec = job.spec.checkpoint
    when = f"every {spec.every_steps} steps and at the end, the newest {spec.keep} are kept"
    if spec.claim_name is None:
        return f"{when}; lost with the trainer pod, because spec.checkpoint.claimName is not set"
    return f"{when}; on claim {spec.claim_name}"


def _locally(job: GRPOJob) -> str:
    problem = local_problem(job)
    if problem:
        return f"not with `grpo-runtime run`: {problem}"
    topology = resolve(job).topology
    trainers = count(topology.num_nodes * topology.processes_per_node, "training process")
    engines = f" and {count(topology.rollout_replicas, 'engine')}" if topology.rollout_replicas else ""
    num_gpus = sum(gpus_asked(job))
    where = f" on a machine with {count(num_gpus, 'GPU')}" if num_gpus else ""
    return f"{trainers}{engines} with `grpo-runtime run`{where}; everything stays in the output directory"
