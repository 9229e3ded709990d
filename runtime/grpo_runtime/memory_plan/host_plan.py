"""The host memory that the pods of a job with GPUs need, and what to change where the limit is lower. Pure.

P parameters, N those that are trained, c bytes of a number as engines hold it, as in `formulas`.
"""

from dataclasses import dataclass, replace

from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.weight_sync_choice import backend_of
from grpo_api.quantity import parse_quantity
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import DeepSpeedSpec, Mode
from grpo_api.v1alpha1.spec.resources import ResourcesSpec
from grpo_api.v1alpha1.spec.weight_sync import WeightSyncBackend
from grpo_runtime.memory_plan.formulas import MASTER_BYTES, ModelSizes
from grpo_runtime.memory_plan.parts import GIB, Part, compute_bytes, in_gib, sum_of

PROCESS_BYTES = 4 * GIB
"""Bytes of one process with torch and CUDA, or with vLLM, beside weights: an estimate."""
RAY_BYTES = GIB // 2
"""Bytes of Ray's own processes and its store of objects, in each pod."""
OFFLOAD_BYTES = 20
"""Bytes of one parameter over all ranks, when DeepSpeed keeps the optimizer on the host: master weights,
moments, gradients, and a buffer of what goes back to the GPU."""
_MOMENTS = 2


@dataclass(frozen=True)
class HostPlan:
    """What one pod of a role holds in its memory when it holds most; of the trainer the first, which reads
    the model and serves the engines."""

    role: str
    parts: tuple[Part, ...]
    limit_bytes: int | None
    """Memory limit of the role's containers; None where the job sets none."""
    fixes: tuple[str, ...] = ()
    """What of the spec to change; empty where the limit suffices or there is none."""
    staging_bytes: int = 0
    """What the workers of a rollout pod use beyond that to keep new weights aside until they are checked."""

    @property
    def num_bytes(self) -> int:
        """In all."""
        return sum_of(self.parts)

    @property
    def is_within_limit(self) -> bool:
        """Whether the limit suffices, or there is none."""
        return self.limit_bytes is None or self.num_bytes <= self.limit_bytes

    @property
    def lacks_staging(self) -> bool:
        """Whether the limit leaves no room for `staging_bytes`."""
        if not self.staging_bytes or self.limit_bytes is None:
            return False
        return self.num_bytes + self.staging_bytes > self.limit_bytes


def plan_hosts(job: GRPOJob, model: ModelSizes) -> tuple[HostPlan, ...]:
    """One plan for each role that has GPUs: without them the weights are in this memory too."""
    plans = []
    if job.spec.trainer.has_gpus:
        plans.append(_trainer_plan(job, model))
    if job.spec.rollout is not None and job.spec.rollout.has_gpus:
        plans.append(_rollout_plan(job, model))
    return tuple(plans)


def _rollout_plan(job: GRPOJob, model: ModelSizes) -> HostPlan:
    """Files of a model are read by way of the page cache, which the kernel takes back."""
    assert job.spec.rollout is not None
    num_workers = job.spec.num_rollout_gpus
    # vLLM's server and its engine's own process
    parts = (Part(f"{num_workers} workers of vLLM and its server", (num_workers + 2) * PROCESS_BYTES),)
    limit = _limit(job.spec.rollout.resources)
    plan = HostPlan(
        "rollout", parts, limit, staging_bytes=num_workers * compute_bytes(job) * model.num_parameters
    )
    return plan if plan.is_within_limit else replace(plan, fixes=(_raise_limit(plan),))


def _trainer_plan(job: GRPOJob, model: ModelSizes) -> HostPlan:
    plan = _Trainer(job, model).plan()
    if plan.is_within_limit:
        return plan
    fixes = [_raise_limit(plan)]
    run = resolve(job)
    if run.topology.world_size > run.topology.processes_per_node and not run.saves_shards:
        shared = _Trainer(_with_shared_checkpoint(job), model).plan()
        if shared.num_bytes < plan.num_bytes:
            fixes.append(
                f"set checkpoint.shared to true, with a ReadWriteMany claim ({in_gib(shared.num_bytes)})"
            )
    return replace(plan, fixes=tuple(fixes))


@dataclass(frozen=True)
class _Trainer:
    """The memory of the first trainer pod."""

    job: GRPOJob
    model: ModelSizes

    def plan(self) -> HostPlan:
        run = resolve(self.job)
        processes = run.topology.processes_per_node
        always = (
            Part(f"{processes} training processes", processes * PROCESS_BYTES),
            *self._beside(run),
            *self._offloaded(run),
        )
        moments = (self._loading(run), self._running(run))
        parts = max(((*always, *of_moment) for of_moment in moments), key=sum_of)
        return HostPlan("trainer", tuple(parts), _limit(self.job.spec.trainer.resources))

    def _beside(self, run: RunConfig) -> tuple[Part, ...]:
        """What runs in the pod besides: of each training process that of its engine, and Ray."""
        processes, parts = run.topology.processes_per_node, []
        if run.mode is Mode.COLOCATED and run.engine_has_own_process:
            parts.append(Part(f"{processes} processes of their engines", processes * PROCESS_BYTES))
        if run.is_on_ray:
            parts.append(Part("Ray's node", RAY_BYTES))
        return tuple(parts)

    def _loading(self, run: RunConfig) -> tuple[Part, ...]:
        """Rank 0 reads all weights before it spreads them, 4 P, or c P under an adapter, and copies them for
        a reference policy."""
        is_rounded = self.model.has_adapter and not run.strategy.is_zero
        loaded = (compute_bytes(self.job) if is_rounded else MASTER_BYTES) * self.model.num_parameters
        parts = [Part("model, while rank 0 loads it", loaded)]
        if run.algorithm.has_reference and not self.model.has_adapter:
            parts.append(Part("reference policy, while it is copied", loaded))
        return tuple(parts)

    def _running(self, run: RunConfig) -> tuple[Part, ...]:
        """What stays once it was needed: copies for engines, those of a checkpoint, and at the end the
        exported model, 4 N, or with an adapter that is merged c P."""
        exported = MASTER_BYTES * self.model.num_trained_parameters
        if run.exports_merged:
            exported = max(exported, compute_bytes(self.job) * self.model.num_parameters)
        parts = [*self._copies(run), self._checkpoint(run), Part("exported model, at the end", exported)]
        return tuple(parts)

    def _copies(self, run: RunConfig) -> list[Part]:
        """c P of rank 0 for engines in other pods, twice when only changes are sent; of each process that
        has an engine beside it, twice where that engine keeps weights aside on the host when its GPU has no
        room; and of a sleeping engine its weights, unless it drops them."""
        of_engine = compute_bytes(self.job) * self.model.num_parameters
        processes = run.topology.processes_per_node
        if run.mode is Mode.DISAGGREGATED:
            parts = [Part("copy of the weights for engines", of_engine)]
            if self.job.spec.weight_sync.sparse is not None:
                parts.append(Part("the copy before it, to send only what changed", of_engine))
            return parts
        parts = []
        backend = backend_of(self.job.spec).backend
        if backend is not WeightSyncBackend.IN_PROCESS:
            parts.append(Part("copies of the weights for engines", processes * of_engine))
        if backend is WeightSyncBackend.IPC:
            parts.append(Part("weights that engines keep aside", processes * of_engine))
        if run.engine.sleep_level == 1:
            num_sharing = run.engine.num_workers
            parts.append(Part("weights of engines that sleep", -(-processes * of_engine // num_sharing)))
        return parts

    def _checkpoint(self, run: RunConfig) -> Part:
        """Float32 weights and two moments, 12 N, and 4 P of a reference that follows: all of it, or what the
        processes of one pod write."""
        each = (1 + _MOMENTS) * MASTER_BYTES
        num_bytes = each * self.model.num_trained_parameters
        if run.algorithm.has_reference and run.algorithm.ref_sync is not None:
            num_bytes += MASTER_BYTES * self.model.num_parameters
        if run.saves_shards:
            num_bytes = -(-num_bytes * run.topology.processes_per_node // run.topology.world_size)
        return Part("checkpoint, while it is written", num_bytes)

    def _offloaded(self, run: RunConfig) -> tuple[Part, ...]:
        options = run.deepspeed or DeepSpeedSpec()
        each = OFFLOAD_BYTES if options.offload_optimizer else 0
        each += MASTER_BYTES if options.offload_parameters else 0
        if not each:
            return ()
        num_bytes = each * self.model.num_trained_parameters * run.topology.processes_per_node
        return (Part("what DeepSpeed keeps on the host", -(-num_bytes // run.topology.world_size)),)


def _with_shared_checkpoint(job: GRPOJob) -> GRPOJob:
    checkpoint = job.spec.checkpoint
    update = {"shared": True, "claim_name": checkpoint.claim_name or "checkpoints"}
    spec = job.spec.model_copy(update={"checkpoint": checkpoint.model_copy(update=update)})
    return job.model_copy(update={"spec": spec})


def _raise_limit(plan: HostPlan) -> str:
    return f"raise memory in {plan.role}.resources.limits to {-(-plan.num_bytes // GIB)}Gi"


def _limit(resources: ResourcesSpec) -> int | None:
    limit = resources.limits.get("memory")
    return None if limit is None else int(parse_quantity(limit))
