"""Makes the RunConfig of a GRPOJob's pods. It is pure, and local mode uses it without an operator."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, TypeVar

from grpo_api.contract.run_config import (
    JobRef,
    ResolvedAlgorithm,
    ResolvedEngine,
    ResolvedLora,
    ResolvedModel,
    ResolvedReward,
    ResolvedRewardModel,
    ResolvedWeightSync,
    RunConfig,
    Topology,
)
from grpo_api.contract.weight_sync_choice import backend_of
from grpo_api.model import ApiModel
from grpo_api.quantity import parse_quantity
from grpo_api.source import Volume, VolumeKind, parse_source
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import (
    MOST_THREADS,
    MOST_WORKERS,
    AlgorithmSpec,
    EntropySpec,
    GRPOJobSpec,
    LoraSpec,
    LossType,
    Mode,
    RatioLevel,
    RewardSpec,
    RolloutSpec,
    TrainerSpec,
    TrainerStrategy,
)
from grpo_api.v1alpha1.spec.loss import CISPO_CAP, CLIP_HIGH, ENTROPY_DELTA, LEAST_ENTROPY, MOST_ENTROPY
from grpo_api.v1alpha1.spec.rewards import REQUESTS_AT_A_TIME

TOKENS_ON_GPU = 16_384
TOKENS_ON_CPU = 1024
"""Most tokens of a micro-batch. A core is busy with few tokens, and what is cut smaller is padded less: of
512, 1024 and 2048, 1024 was never more than 15 % slower than the fastest, with policies of 0.1 M and of 27 M
parameters."""
SAMPLES_ON_GPU = 1024
"""The largest of vLLM's own limits (max_num_seqs), which it has on GPUs of 70 GB and more; on smaller ones it
has 256, and queues the others itself."""
SAMPLES_ON_CPU = 64
"""Fewer than vLLM's own 128 for each worker."""

Section = TypeVar("Section", bound=ApiModel)
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
    """The result of `resolve` as another model: every field that both it and the spec have is taken over, so
    a section that both declare needs nothing here."""
    spec = job.spec
    rollout = spec.rollout or RolloutSpec()
    shared = {name: getattr(spec, name) for name in config.model_fields if name in type(spec).model_fields}
    derived = {
        "job": JobRef(namespace=job.metadata.namespace, name=job.metadata.name, uid=job.metadata.uid),
        "mode": spec.resolved_mode,
        "topology": Topology(
            num_nodes=spec.trainer.num_nodes,
            processes_per_node=spec.trainer.num_processes,
            rollout_replicas=rollout.replicas if spec.rollout else 0,
        ),
        "rollout_lost_timeout_seconds": rollout.lost_timeout_seconds,
        "micro_batch_tokens": _micro_batch_tokens(spec),
        "max_samples_per_engine": _samples_per_engine(spec),
        "algorithm": resolve_algorithm(spec.algorithm),
        "model": _model(spec),
        "dataset": spec.resolved_dataset,
        "engine": _with(ResolvedEngine, spec.engine, sleep_level=_sleep_level(spec)),
        "weight_sync": _with(
            ResolvedWeightSync,
            spec.weight_sync,
            backend=backend_of(spec, is_one_machine=is_one_machine).backend,
        ),
        "gradient_checkpointing": _gradient_checkpointing(spec.trainer),
        "threads_per_process": spec.trainer.threads_per_process
        or threads_per_process
        or _threads_by_cores(spec.trainer),
        "strategy": _strategy(spec),
        "deepspeed": spec.trainer.deepspeed,
        "is_output_local": is_one_machine,
        "rewards": _rewards(spec, threads_per_process=threads_per_process),
    }
    return config(**shared | derived)


def _with(section: type[Section], spec: ApiModel, **values: Any) -> Section:
    """A section of a spec as the one that the run has, with these values in it."""
    return section(**dict(spec) | values)


def threads_of(num_cores: Decimal, trainer: TrainerSpec) -> int:
    """How many threads each training process of a pod with so many cores has."""
    return max(1, int(num_cores / trainer.num_processes))


def _num_cores(trainer: TrainerSpec, threads_per_process: int | None) -> int:
    """CPUs of a trainer pod: by its limit, else by its request, else as many as its threads."""
    resources = trainer.resources
    cpu = resources.limits.get("cpu") or resources.requests.get("cpu")
    if cpu is not None:
        return int(parse_quantity(cpu))
    return threads_per_process * trainer.num_processes if threads_per_process else 1


def _rewards(spec: GRPOJobSpec, *, threads_per_process: int | None) -> tuple[ResolvedReward, ...]:
    trainer = spec.trainer
    num_cores = _num_cores(trainer, threads_per_process)
    # the training processes wait for rewards
    num_threads = trainer.threads_per_process or threads_per_process or 1
    of_models = max(num_cores, num_threads * trainer.num_processes)
    return tuple(
        _reward(reward, num_cores=num_cores, num_cores_of_models=of_models)
        for reward in spec.resolved_rewards
    )


def _reward(reward: RewardSpec, *, num_cores: int, num_cores_of_models: int) -> ResolvedReward:
    workers = reward.workers or _num_workers(reward, num_cores=num_cores)
    model = reward.model
    if model is None:
        return _with(ResolvedReward, reward, workers=workers)
    shared = min(max(1, num_cores_of_models // workers), MOST_THREADS)
    resolved = _with(ResolvedRewardModel, model, threads=model.threads or shared)
    return _with(ResolvedReward, reward, workers=workers, model=resolved)


def _num_workers(reward: RewardSpec, *, num_cores: int) -> int:
    """Processes that call a function; requests at the same time where the calls go to a network."""
    if reward.is_remote:
        return REQUESTS_AT_A_TIME
    return max(1, min(num_cores, MOST_WORKERS)) if reward.is_worth_cores else 1


def resolve_algorithm(algorithm: AlgorithmSpec) -> ResolvedAlgorithm:
    """Resolves what depends on the loss."""
    loss = algorithm.loss_type
    by_loss = RatioLevel.SEQUENCE if loss is LossType.LUSPO else RatioLevel.TOKEN
    return _with(
        ResolvedAlgorithm,
        algorithm,
        ratio_level=algorithm.ratio_level or by_loss,
        clip_high=_clip_high(loss) if algorithm.clip_high is None else algorithm.clip_high,
        entropy=_entropy(algorithm.entropy),
    )


def _clip_high(loss: LossType) -> float | None:
    """None for a loss that has no upper clip."""
    if not loss.has_upper_clip:
        return None
    return CISPO_CAP if loss is LossType.CISPO else CLIP_HIGH


def _entropy(entropy: EntropySpec | None) -> EntropySpec | None:
    """Resolves what depends on an entropy target."""
    if entropy is None or entropy.target is None:
        return entropy
    chosen = {
        "delta": ENTROPY_DELTA if entropy.delta is None else entropy.delta,
        "min_coefficient": LEAST_ENTROPY if entropy.min_coefficient is None else entropy.min_coefficient,
        "max_coefficient": MOST_ENTROPY if entropy.max_coefficient is None else entropy.max_coefficient,
    }
    return entropy.model_copy(update=chosen)


def _model(spec: GRPOJobSpec) -> ResolvedModel:
    lora = spec.model.lora
    resolved = None if lora is None else resolve_lora(lora)
    return _with(ResolvedModel, spec.model, dtype=spec.resolved_dtype, lora=resolved)


def resolve_lora(lora: LoraSpec) -> ResolvedLora:
    """Resolves the scale: alpha defaults to 2 x rank; peft's own default is for rank 8 alone."""
    return _with(ResolvedLora, lora, alpha=lora.alpha or 2 * lora.rank)


def _sleep_level(spec: GRPOJobSpec) -> int:
    """Level 2 discards the engine's weights, which is right because only a sync wakes the engine up, and
    loads all of them. A sync of an adapter alone would need level 1; it is set on CPU too, where it has no
    effect."""
    if spec.engine.sleep_level is not None:
        return spec.engine.sleep_level
    is_on_gpus = spec.resolved_mode is Mode.COLOCATED and spec.trainer.has_gpus
    return 2 if is_on_gpus else 1


def _gradient_checkpointing(trainer: TrainerSpec) -> bool:
    named = trainer.gradient_checkpointing
    return trainer.has_gpus if named is None else named


def _micro_batch_tokens(spec: GRPOJobSpec) -> int:
    """The job's own number, or else one that suits the hardware."""
    by_default = TOKENS_ON_GPU if spec.trainer.has_gpus else TOKENS_ON_CPU
    return spec.trainer.micro_batch_tokens or by_default


def _samples_per_engine(spec: GRPOJobSpec) -> int:
    """Completions at a time of one engine in a rollout pod, of all its cores."""
    has_gpus = spec.rollout is not None and spec.rollout.has_gpus
    if spec.engine.max_num_seqs is None and not has_gpus:
        return SAMPLES_ON_CPU
    return (spec.engine.max_num_seqs or SAMPLES_ON_GPU) * spec.engine.num_cores


def _threads_by_cores(trainer: TrainerSpec) -> int:
    """By the cpu limit, and with GPUs else by the cpu request. On CPU a request alone means one thread."""
    cpu = trainer.resources.limits.get("cpu")
    if cpu is None and trainer.has_gpus:
        cpu = trainer.resources.requests.get("cpu")
    return 1 if cpu is None else threads_of(parse_quantity(cpu), trainer)


def _strategy(spec: GRPOJobSpec) -> TrainerStrategy:
    """Where the spec names none, several GPUs share the policy: it then need not fit into one, which nobody
    knows here. An engine in a process of its own needs all weights beside it."""
    trainer = spec.trainer
    if trainer.strategy is not None:
        return trainer.strategy
    has_several = trainer.num_nodes * trainer.num_processes > 1
    is_spread = trainer.has_gpus and has_several and not spec.engine_has_own_process
    return TrainerStrategy.FSDP2 if is_spread else TrainerStrategy.DDP


def volumes_of(run: RunConfig) -> tuple[Volume, ...]:
    """The volumes that every pod mounts for its model, its data and its code, in a fixed order."""
    urls = [run.model.source, run.dataset.source]
    if run.dataset.of_evaluation is not None:
        urls.append(run.dataset.of_evaluation.source)
    urls += [reward.model.source for reward in run.rewards if reward.model is not None]
    sources = [parse_source(url) for url in urls]
    found = {source.volume for source in sources if source.volume}
    codes = [reward.config_map for reward in run.rewards]
    codes += [environment.code for environment in run.environments or ()]
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
    return _in_order(reward.secret_volume for reward in run.rewards)


def credentials_of(run: RunConfig) -> tuple[Volume, ...]:
    """The Secrets that the first trainer pod mounts for uploads and trackers, in a fixed order. A run on the
    user's own machine does without: libraries find what the user has logged in with."""
    uploads = [upload.secret_volume for upload in run.export or ()]
    return _in_order([*uploads, *(tracker.secret_volume for tracker in run.trackers or ())])


def _in_order(volumes: Iterable[Volume | None]) -> tuple[Volume, ...]:
    return tuple(sorted({volume for volume in volumes if volume is not None}))
