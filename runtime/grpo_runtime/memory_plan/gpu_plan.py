"""The memory that a job needs on each GPU, and what to change where it does not fit. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from grpo_api.contract.run_config import RunConfig
from grpo_api.quantity import parse_quantity
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import DeepSpeedSpec, Mode, TrainerStrategy
from grpo_runtime.algorithm.logprobs import CHUNK_LOGITS
from grpo_runtime.engines.registry import engine_kind
from grpo_runtime.memory_plan.formulas import (
    DDP,
    MASTER_BYTES,
    EngineSizes,
    ModelSizes,
    Spread,
    StepSizes,
    TrainingBytes,
    engine_bytes,
    fsdp2,
    training_bytes,
    zero,
)
from grpo_runtime.memory_plan.parts import GIB, Part, compute_bytes, in_gib, sum_of
from grpo_runtime.weight_sync.stream.manifest import BUFFERS_IN_FLIGHT, LARGEST_BUFFER_BYTES

CUDA_BYTES = 3 * GIB // 2
"""Bytes of CUDA's context, libraries and NCCL in one process, and for gaps between tensors: an estimate."""
SYNC_BYTES = BUFFERS_IN_FLIGHT * LARGEST_BUFFER_BYTES
"""Buffers in which weights travel. An engine stages all of them beside the model only where there is room."""


@dataclass(frozen=True)
class GpuPlan:
    """What a GPU of one role holds when it holds most."""

    role: str
    parts: tuple[Part, ...]
    fixes: tuple[str, ...] = ()
    """What of the spec to change, each with what the GPU then needs; empty where it fits."""

    @property
    def num_bytes(self) -> int:
        """In all."""
        return sum_of(self.parts)


def plan_memory(job: GRPOJob, model: ModelSizes, *, gpu_bytes: int | None) -> tuple[GpuPlan, ...]:
    """One plan for each role that has GPUs. Without `gpu_bytes`, the memory of each, none is too large."""
    engine = _engine_parts(job, model)
    plans = []
    if job.spec.trainer.has_gpus:
        is_colocated = job.spec.resolved_mode is Mode.COLOCATED
        planner = _TrainerPlanner(job, model, engine if is_colocated else ())
        plans.append(planner.plan(gpu_bytes))
    if job.spec.rollout is not None and job.spec.rollout.has_gpus:
        share = job.spec.engine.gpu_memory_utilization or engine_kind().gpu_fractions.alone
        parts = (*engine, _left_by(engine, share), Part("weight sync", SYNC_BYTES), Part("CUDA", CUDA_BYTES))
        plan = GpuPlan("rollout", parts)
        is_large = gpu_bytes is not None and plan.num_bytes > gpu_bytes
        plans.append(replace(plan, fixes=tuple(_engine_fixes(job)) if is_large else ()))
    return tuple(plans)


def _left_by(engine: tuple[Part, ...], share: float) -> Part:
    """What must be there beside an engine that takes only a share of what it finds."""
    return Part("what the engine's share leaves", int(sum_of(engine) * (1 / share - 1)))


def _engine_parts(job: GRPOJob, model: ModelSizes) -> tuple[Part, ...]:
    """Memory of one worker of an engine that is awake."""
    engine = job.spec.engine
    sizes = EngineSizes(
        compute_bytes=compute_bytes(job),
        tensor_parallel=engine.tensor_parallel_size,
        pipeline_parallel=engine.pipeline_parallel_size,
        max_model_len=engine.max_model_len,
    )
    least = engine_bytes(model, sizes)
    if engine.kv_cache_memory is None:
        cache = Part("KV cache of one sequence, at least", least.one_sequence)
    else:
        cache = Part("KV cache", int(parse_quantity(engine.kv_cache_memory)) // engine.num_workers)
    return (Part("engine's weights", least.weights), cache)


def _engine_fixes(job: GRPOJob) -> Iterator[str]:
    yield "raise engine.tensorParallelSize, with the nvidia.com/gpu limit of rollout.resources"
    if job.spec.engine.kv_cache_memory is not None:
        yield "lower engine.kvCacheMemory"
    yield "lower engine.maxModelLen"


def _spread(run: RunConfig) -> Spread:
    """How the strategy of a run spreads the policy."""
    strategy, num_ranks = run.strategy, run.topology.world_size
    if strategy is TrainerStrategy.DDP:
        return DDP
    if strategy is TrainerStrategy.FSDP2:
        return fsdp2(num_ranks)
    if not strategy.is_zero:
        raise ValueError(f"nothing is known of the memory of {strategy}")
    options = run.deepspeed or DeepSpeedSpec()
    return zero(
        int(strategy.value.removeprefix("ZeRO")),
        num_ranks,
        optimizer_on_cpu=bool(options.offload_optimizer),
        weights_on_cpu=bool(options.offload_parameters),
    )


@dataclass(frozen=True)
class _TrainerPlanner:
    """Plans the memory of a GPU of the trainer; `engine` is the colocated one's, empty without one."""

    job: GRPOJob
    model: ModelSizes
    engine: tuple[Part, ...]

    def plan(self, gpu_bytes: int | None) -> GpuPlan:
        step = self._step()
        plan = self._plan(step)
        if gpu_bytes is None or plan.num_bytes <= gpu_bytes:
            return plan
        return replace(plan, fixes=tuple(self._fixes(step, gpu_bytes)))

    def _step(self) -> StepSizes:
        run, algorithm = resolve(self.job), self.job.spec.algorithm
        # a sequence is never longer than the engine takes, and one that exceeds the budget goes alone
        longest = run.engine.max_model_len
        all_tokens = algorithm.prompts_per_step * algorithm.group_size * longest
        return StepSizes(
            num_tokens=max(longest, min(run.micro_batch_tokens, all_tokens)),
            longest=longest,
            compute_bytes=compute_bytes(self.job),
            is_recomputed=run.gradient_checkpointing,
            spread=_spread(run),
            chunk_logits=CHUNK_LOGITS,
        )

    def _plan(self, step: StepSizes) -> GpuPlan:
        found = training_bytes(self.model, step)
        sleeps = resolve(self.job).engine.sleep_level > 0
        asleep = () if sleeps else self.engine
        training = (*_training_parts(found), *asleep)
        generating: tuple[Part, ...] = (Part("trainer at rest", found.resting), *self.engine)
        if self.engine:
            fractions = engine_kind().gpu_fractions
            share = fractions.asleep if sleeps else fractions.awake
            generating = (*generating, _left_by(self.engine, share))
        always = (*self._reference(step), Part("weight sync", SYNC_BYTES), Part("CUDA", CUDA_BYTES))
        plans = (GpuPlan("trainer", (*parts, *always)) for parts in (training, generating))
        return max(plans, key=lambda plan: plan.num_bytes)

    def _reference(self, step: StepSizes) -> tuple[Part, ...]:
        """The second copy of the weights that a KL penalty needs, spread as the policy is."""
        if not self.job.spec.algorithm.has_reference or self.model.has_adapter:
            return ()
        each = step.compute_bytes if self.job.spec.algorithm.ref_sync is None else MASTER_BYTES
        num_bytes = self.model.num_parameters * each // step.spread.weights
        return (Part("reference policy", num_bytes),)

    def _fixes(self, step: StepSizes, gpu_bytes: int) -> Iterator[str]:
        """Each change that suffices alone; if none does, all of them together, and what is left."""
        changes = list(self._changes(step))
        alone = [(words, self._plan(changed).num_bytes) for words, changed in changes]
        enough = [(words, needed) for words, needed in alone if needed <= gpu_bytes]
        if enough:
            yield from (f"{words} ({in_gib(needed)})" for words, needed in enough)
            return
        together = step
        for _, changed in changes:
            together = replace(
                together,
                is_recomputed=together.is_recomputed or changed.is_recomputed,
                spread=together.spread if changed.spread == step.spread else changed.spread,
                num_tokens=min(together.num_tokens, changed.num_tokens),
            )
        needed = self._plan(together).num_bytes
        if changes:
            yield f"{', and '.join(words for words, _ in changes)} ({in_gib(needed)} with all of that)"
        if needed > gpu_bytes:
            can_spread = not self.job.spec.engine_has_own_process
            yield (
                "use GPUs with more memory, a smaller model.source, a lower engine.maxModelLen, or more GPUs "
                "(trainer.resources or trainer.numNodes)"
                + (" with trainer.strategy FSDP2" if can_spread else "")
            )
            if self.engine:
                yield "set rollout, so that engines have GPUs of their own"

    def _changes(self, step: StepSizes) -> Iterator[tuple[str, StepSizes]]:
        run = resolve(self.job)
        world_size = run.topology.world_size
        if not step.is_recomputed:
            yield "set trainer.gradientCheckpointing to true", replace(step, is_recomputed=True)
        if not step.spread.is_fsdp2 and world_size > 1 and not run.engine_has_own_process:
            without = " and remove trainer.deepspeed" if run.deepspeed else ""
            yield f"set trainer.strategy to FSDP2{without}", replace(step, spread=fsdp2(world_size))
        if step.num_tokens > step.longest:
            words = f"set trainer.microBatchTokens to engine.maxModelLen ({step.longest})"
            yield words, replace(step, num_tokens=step.longest)


def _training_parts(found: TrainingBytes) -> tuple[Part, ...]:
    parts = [
        Part("weights", found.weights),
        Part("gradients", found.gradients),
        Part("optimizer", found.optimizer),
        Part("buckets of gradients", found.buckets),
        Part("weights put together", found.units),
    ]
    passes = found.casts + found.activations + found.work
    if passes >= found.optimizer_work:
        parts += [
            Part("weights in bfloat16", found.casts),
            Part("activations", found.activations),
            Part("logits and backward pass", found.work),
        ]
    else:
        parts.append(Part("DeepSpeed's step", found.optimizer_work))
    return tuple(part for part in parts if part.num_bytes)
