"""From a GRPOJob to the RunConfig of its pods. It is pure, and local mode uses it without an operator."""

from collections.abc import Iterable
from decimal import Decimal
from typing import TypeVar

from grpo_api.contract.concurrency_choice import samples_in_run
from grpo_api.contract.micro_batch_choice import tokens_in_run
from grpo_api.contract.run_config import JobRef, RunConfig, Topology
from grpo_api.contract.weight_sync_choice import backend_of, name_in_run, with_backend
from grpo_api.quantity import parse_quantity
from grpo_api.source import Volume, VolumeKind, parse_source
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import (
    MOST_THREADS,
    MOST_WORKERS,
    AlgorithmSpec,
    GRPOJobSpec,
    KLSpec,
    LoraSpec,
    Mode,
    RatioLevel,
    RewardSpec,
    RolloutSpec,
    TrainerSpec,
    TrainerStrategy,
)

Config = TypeVar("Config", bound=RunConfig)


def resolve(
    job: GRPOJob, *, is_one_machine: bool = False, threads_per_process: int | None = None
) -> RunConfig:
    """The RunConfig of a valid job, with every default and every derived number written out. `is_one_machine`
    says that all its processes will be on this machine, where the output stays, and `threads_per_process` how
    many threads it has for each training process of a job that does not say."""
    return resolve_into(
        RunConfig, job, is_one_machine=is_one_machine, threads_per_process=threads_per_process
    )


def resolve_into(
    config: type[Config],
    job: GRPOJob,
    *,
    is_one_machine: bool = False,
    threads_per_process: int | None = None,
) -> Config:
    """What `resolve` returns, as another model: every field that both it and the spec have is taken over, so
    a section that both declare needs nothing here.

    A field that is newer than 0.1.0 is written only where it is named or where it changes what 0.1.0 did, so
    that an image of 0.1.0 runs all other jobs.
    """
    backend = backend_of(job.spec, is_one_machine=is_one_machine).backend
    spec = with_backend(job.spec, name_in_run(backend, mode=job.spec.chosen_mode))
    rollout = spec.rollout or RolloutSpec()
    shared = {name: getattr(spec, name) for name in config.model_fields if name in type(spec).model_fields}
    derived = {
        "job": JobRef(namespace=job.metadata.namespace, name=job.metadata.name, uid=job.metadata.uid),
        "mode": spec.chosen_mode,
        "topology": Topology(
            num_nodes=spec.trainer.num_nodes,
            processes_per_node=spec.trainer.num_processes,
            rollout_replicas=rollout.replicas if spec.rollout else 0,
        ),
        "rollout_lost_timeout_seconds": rollout.lost_timeout_seconds,
        "micro_batch_tokens": tokens_in_run(spec),
        "max_samples_per_engine": samples_in_run(spec),
        "algorithm": _algorithm(spec.algorithm),
        "model": spec.model.model_copy(update={"dtype": spec.chosen_dtype, "lora": _lora(spec)}),
        "engine": spec.engine.model_copy(update={"sleep_level": _sleep_level(spec)}),
        "gradient_checkpointing": _gradient_checkpointing(spec.trainer),
        "threads_per_process": spec.trainer.threads_per_process
        or threads_per_process
        or _threads_by_cores(spec.trainer),
        "strategy": _strategy(spec),
        "deepspeed": spec.trainer.deepspeed,
        "is_output_kept": True if is_one_machine else None,
        "rewards": _rewards(spec, threads_per_process=threads_per_process),
    }
    return config(**shared | derived)


def threads_of(num_cores: Decimal, trainer: TrainerSpec) -> int:
    """How many threads each training process of a pod with so many cores has."""
    return max(1, int(num_cores / trainer.num_processes))


def _num_cores(trainer: TrainerSpec, threads_per_process: int | None) -> int:
    """CPUs of a trainer pod, or of the machine that is told: by the limit, or else by what is asked for."""
    resources = trainer.resources
    cpu = resources.limits.get("cpu") or resources.requests.get("cpu")
    if cpu is not None:
        return int(parse_quantity(cpu))
    return threads_per_process * trainer.num_processes if threads_per_process else 1


def _rewards(spec: GRPOJobSpec, *, threads_per_process: int | None) -> tuple[RewardSpec, ...]:
    trainer = spec.trainer
    num_cores = _num_cores(trainer, threads_per_process)
    # the training processes wait for rewards
    num_threads = trainer.threads_per_process or threads_per_process or 1
    of_models = max(num_cores, num_threads * trainer.num_processes)
    return tuple(
        _model_reward(reward, num_cores=of_models)
        if reward.model is not None
        else _with_workers(reward, num_cores=num_cores)
        for reward in spec.rewards
    )


def _with_workers(reward: RewardSpec, *, num_cores: int) -> RewardSpec:
    """One worker, as 0.1.0 had, is not written."""
    if reward.workers is None and reward.is_worth_cores and num_cores > 1:
        return reward.model_copy(update={"workers": min(num_cores, MOST_WORKERS)})
    return reward


def _model_reward(reward: RewardSpec, *, num_cores: int) -> RewardSpec:
    assert reward.model is not None
    shared = min(max(1, num_cores // reward.chosen_workers), MOST_THREADS)
    model = reward.model.model_copy(update={"threads": reward.model.threads or shared})
    return reward.model_copy(update={"model": model})


def _algorithm(algorithm: AlgorithmSpec) -> AlgorithmSpec:
    """What depends on the loss is written out. A ratio of each token goes without saying."""
    level = algorithm.chosen_ratio_level
    is_newer = algorithm.ratio_level is not None or level is not RatioLevel.TOKEN
    return algorithm.model_copy(
        update={
            "clip_high": algorithm.chosen_clip_high,
            "ratio_level": level if is_newer else None,
            "kl": _kl(algorithm.kl),
            "entropy": algorithm.entropy and algorithm.entropy.written_out,
        }
    )


def _kl(kl: KLSpec | None) -> KLSpec | None:
    if kl is None:
        return None
    sync = kl.ref_sync
    chosen = {
        "estimator": kl.chosen_estimator,
        "bias_correction": kl.is_bias_corrected,
        "ref_sync": sync and sync.model_copy(update={"mix": sync.chosen_mix}),
    }
    return kl.model_copy(update=chosen)


def _lora(spec: GRPOJobSpec) -> LoraSpec | None:
    """Adapters are commonly counted twice; peft's own default is for rank 8 alone."""
    lora = spec.model.lora
    if lora is None:
        return None
    resolved = {"alpha": lora.chosen_alpha, "targets": lora.chosen_targets}
    return lora.model_copy(update=resolved)


def _sleep_level(spec: GRPOJobSpec) -> int:
    """2 throws the engine's weights away, which is right because only a sync wakes the engine up, and loads
    all of them. A sync of an adapter alone would need 1. It is written also where it means nothing, as 0.1.0
    did."""
    if spec.engine.sleep_level is not None:
        return spec.engine.sleep_level
    is_on_gpus = spec.chosen_mode is Mode.COLOCATED and spec.trainer.has_gpus
    return 2 if is_on_gpus else 1


def _gradient_checkpointing(trainer: TrainerSpec) -> bool | None:
    named = trainer.gradient_checkpointing
    return named if named is not None else (True if trainer.has_gpus else None)


def _threads_by_cores(trainer: TrainerSpec) -> int | None:
    """By the cpu limit, and with GPUs else by the cpu request. On CPU a request alone means one thread, as in
    0.1.0."""
    cpu = trainer.resources.limits.get("cpu")
    if cpu is None and trainer.has_gpus:
        cpu = trainer.resources.requests.get("cpu")
    num_threads = 1 if cpu is None else threads_of(parse_quantity(cpu), trainer)
    return num_threads if num_threads > 1 else None


def _strategy(spec: GRPOJobSpec) -> TrainerStrategy | None:
    """What is written down for a run: None for DDP, which goes without saying.

    Where the spec names none, several GPUs share the policy: it then need not fit into one, which nobody
    knows here. An engine in a process of its own needs all weights beside it.
    """
    trainer = spec.trainer
    named = trainer.strategy
    if named is None and trainer.has_gpus and not spec.has_own_process:
        named = TrainerStrategy.FSDP2 if trainer.num_nodes * trainer.num_processes > 1 else None
    return None if named is TrainerStrategy.DDP else named


def volumes_of(run: RunConfig) -> tuple[Volume, ...]:
    """The volumes that every pod mounts for its model, its data and its code, in a fixed order."""
    urls = [run.model.source, run.dataset.source]
    if run.dataset.of_evaluation is not None:
        urls.append(run.dataset.of_evaluation.source)
    urls += [reward.model.source for reward in run.rewards if reward.model is not None]
    sources = [parse_source(url) for url in urls]
    found = {source.volume for source in sources if source.volume}
    codes = [reward.config_map for reward in run.rewards]
    if run.sampling.rollout_function is not None:
        codes.append(run.sampling.rollout_function.config_map)
    found |= {Volume(VolumeKind.CONFIG_MAP, code.name) for code in codes if code}
    return tuple(sorted(found))


def resumed_volumes_of(run: RunConfig) -> tuple[Volume, ...]:
    """What the first trainer pod mounts beside `volumes_of` for the checkpoint that the run begins with."""
    if run.resume_from is None or run.resume_from.source is None:
        return ()
    volume = parse_source(run.resume_from.source).volume
    return () if volume is None or volume in volumes_of(run) else (volume,)


def weights_volumes_of(run: RunConfig) -> tuple[Volume, ...]:
    """The claim that the first trainer pod writes weights to and all rollout pods read them from."""
    disk = run.weight_sync.disk
    return () if disk is None or disk.claim_volume is None else (disk.claim_volume,)


def weights_secrets_of(run: RunConfig) -> tuple[Volume, ...]:
    """The Secret of the bucket that weights are written to and read from, which the same pods mount. A run on
    the user's own machine does without."""
    disk = run.weight_sync.disk
    return _in_order(() if disk is None else (disk.secret_volume,))


def secrets_of(run: RunConfig) -> tuple[Volume, ...]:
    """The Secrets that the first trainer pod mounts for its rewards, in a fixed order."""
    return _in_order(reward.service.secret_volume for reward in run.rewards if reward.service is not None)


def credentials_of(run: RunConfig) -> tuple[Volume, ...]:
    """The Secrets that the first trainer pod mounts for uploads and trackers, in a fixed order. A run on the
    user's own machine does without: libraries find what the user has logged in with."""
    uploads = [upload.secret_volume for upload in run.export or ()]
    return _in_order([*uploads, *(tracker.secret_volume for tracker in run.trackers or ())])


def _in_order(volumes: Iterable[Volume | None]) -> tuple[Volume, ...]:
    return tuple(sorted({volume for volume in volumes if volume is not None}))
