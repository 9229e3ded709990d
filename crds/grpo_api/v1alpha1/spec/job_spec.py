"""The whole spec: the sections, the pods, and the life of the job: suspension, deadlines, its end."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.changes import MAY_CHANGE, Transition
from grpo_api.rule import Follows, TextRule, rule
from grpo_api.source import NUMBERS
from grpo_api.v1alpha1.spec.asynchronous import (
    async_has_rollout,
    batch_is_trained_once,
    older_tokens_are_corrected,
    segments_are_of_one_turn,
    segments_have_a_journal,
)
from grpo_api.v1alpha1.spec.colocated import (
    actor_finds_all_weights,
    actor_is_not_shared,
    actor_is_one_worker,
    colocated_has_no_rollout,
    ray_is_behind_its_policy,
)
from grpo_api.v1alpha1.spec.dataset import DatasetSpec
from grpo_api.v1alpha1.spec.engine import (
    colocated_engine_has_one_stage,
    colocated_engine_has_whole_experts,
    cores_are_in_one_pod,
    cpu_workers_reach_each_other,
    engine_uses_every_gpu,
    engines_share_processes_evenly,
    kv_cache_fits,
    nodes_share_workers_evenly,
    own_process_finds_all_weights,
    process_is_of_colocated_engines,
    prompt_fits,
    shared_gpu_is_there,
)
from grpo_api.v1alpha1.spec.environments import (
    chats_have_environments,
    completions_have_one_maker,
    episodes_are_no_stall,
    returned_reward_has_its_environment,
    rows_name_environments,
    tasks_and_rewards_come_from_somewhere,
    tools_have_a_parser,
)
from grpo_api.v1alpha1.spec.failure_policy import FailurePolicySpec
from grpo_api.v1alpha1.spec.fields import ClaimName, Image
from grpo_api.v1alpha1.spec.model import (
    Dtype,
    flash_attention_has_gpus,
    reference_can_be_spread,
    reference_has_own_weights,
)
from grpo_api.v1alpha1.spec.rewards import (
    BuiltinReward,
    RewardSpec,
    overlong_fits,
    scorer_has_its_dataset,
    some_reward_counts,
)
from grpo_api.v1alpha1.spec.rollout import RolloutSpec
from grpo_api.v1alpha1.spec.run_sections import (
    RunSections,
    compiled_cache_has_its_own_claim,
    export_reaches_the_hub,
)
from grpo_api.v1alpha1.spec.sampling import (
    grammar_is_not_corrected,
    masks_compare_policies,
    off_policy_threshold_compares_policies,
    penalty_is_not_corrected,
    temperature_is_sampled,
    truncation_is_corrected_by_tokens,
    truncation_is_not_corrected_with_vespo,
)
from grpo_api.v1alpha1.spec.scheduling import SchedulingSpec, engine_topology_has_pods
from grpo_api.v1alpha1.spec.trainer import TrainerSpec, every_rank_has_samples
from grpo_api.v1alpha1.spec.weight_sync import (
    disk_has_pods,
    in_process_has_no_own_process,
    in_process_has_no_pods,
    ipc_has_gpus,
    memory_is_shared_between_processes,
    memory_is_shared_within_a_pod,
    nccl_has_gpus,
    network_backend_has_pods,
    sparse_has_pods,
)

MANAGED_BY_US = "grpo.dev/grpo-operator"
"""The value of `managedBy` that means this operator, as does none."""
ManagedBy = Annotated[
    str,
    Field(max_length=63),
    Follows(
        TextRule(
            r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9][-A-Za-z0-9._/]*$",
            "must name a controller: write DOMAIN/NAME",
        )
    ),
]


class Mode(StrEnum):
    """Where the rollout engines run."""

    AUTO = "Auto"
    DISAGGREGATED = "Disaggregated"
    COLOCATED = "Colocated"


@rule(
    cel="self.mode != 'Colocated' || !has(self.rollout)",
    sentence="rollout describes pods that mode Colocated does not have: remove rollout, or set mode to "
    "Disaggregated",
    field=".rollout",
)
def rollout_is_not_colocated(mode: Mode, rollout: RolloutSpec | None) -> bool:
    """Colocated engines have no pods."""
    return mode is not Mode.COLOCATED or rollout is None


@rule(
    cel="self.mode != 'Disaggregated' || has(self.rollout)",
    sentence="mode Disaggregated needs rollout, the pods with the engines: add rollout with replicas, or set "
    "mode to Colocated",
    field=".mode",
)
def disaggregated_has_rollout(mode: Mode, rollout: RolloutSpec | None) -> bool:
    """Engines in pods of their own need those pods."""
    return mode is not Mode.DISAGGREGATED or rollout is not None


class GRPOJobSpec(RunSections):
    """What to train, on what, with which reward, and on how much hardware."""

    rules = (
        overlong_fits,
        scorer_has_its_dataset,
        some_reward_counts,
        returned_reward_has_its_environment,
        tasks_and_rewards_come_from_somewhere,
        completions_have_one_maker,
        rows_name_environments,
        episodes_are_no_stall,
        chats_have_environments,
        tools_have_a_parser,
        prompt_fits,
        every_rank_has_samples,
        reference_can_be_spread,
        reference_has_own_weights,
        flash_attention_has_gpus,
        rollout_is_not_colocated,
        disaggregated_has_rollout,
        process_is_of_colocated_engines,
        compiled_cache_has_its_own_claim,
        colocated_has_no_rollout,
        actor_is_not_shared,
        actor_is_one_worker,
        actor_finds_all_weights,
        ray_is_behind_its_policy,
        engines_share_processes_evenly,
        own_process_finds_all_weights,
        colocated_engine_has_one_stage,
        colocated_engine_has_whole_experts,
        cores_are_in_one_pod,
        nodes_share_workers_evenly,
        engine_uses_every_gpu,
        cpu_workers_reach_each_other,
        kv_cache_fits,
        shared_gpu_is_there,
        network_backend_has_pods,
        nccl_has_gpus,
        in_process_has_no_own_process,
        in_process_has_no_pods,
        memory_is_shared_between_processes,
        memory_is_shared_within_a_pod,
        ipc_has_gpus,
        sparse_has_pods,
        disk_has_pods,
        export_reaches_the_hub,
        temperature_is_sampled,
        penalty_is_not_corrected,
        grammar_is_not_corrected,
        truncation_is_corrected_by_tokens,
        truncation_is_not_corrected_with_vespo,
        off_policy_threshold_compares_policies,
        masks_compare_policies,
        async_has_rollout,
        older_tokens_are_corrected,
        batch_is_trained_once,
        segments_are_of_one_turn,
        segments_have_a_journal,
        engine_topology_has_pods,
    )

    mode: Mode = Mode.AUTO
    """Where the engines run: `Disaggregated` gives them pods of their own, `Colocated` puts them into the
    trainer pods. `Auto` is Disaggregated when `rollout` is set and Colocated when it is not."""
    image: Image | None = None
    """Runtime image of all pods. Defaults to the one that the operator is configured with."""
    image_pull_secrets: Annotated[tuple[ClaimName, ...], Field(max_length=16)] = ()
    """Secrets with credentials for the registry of the image."""
    trainer: TrainerSpec = TrainerSpec()
    """The trainer pods."""
    rollout: RolloutSpec | None = None
    """The rollout pods, in which the engines run. Only in mode Disaggregated."""
    suspend: Annotated[bool | None, MAY_CHANGE] = None
    """True saves a checkpoint, where the job has a claim, and deletes all pods; no deadline runs meanwhile.
    False continues, or begins, as the next attempt, not counted. `grpo-runtime run` ignores it."""
    queue_name: Annotated[ClaimName | None, MAY_CHANGE] = None
    """LocalQueue of Kueue that gives the job its quota; the label `kueue.x-k8s.io/queue-name` of the job says
    the same. Nothing of the job is created before it is admitted. May be changed while `suspend` is true. The
    operator must look at Kueue, with `kueue` of its chart. `grpo-runtime run` ignores it."""
    managed_by: ManagedBy | None = None
    """Controller that is responsible for the job. Defaults to this one, `grpo.dev/grpo-operator`, which does
    not touch other controllers' jobs."""
    failure_policy: Annotated[FailurePolicySpec, MAY_CHANGE] = FailurePolicySpec()
    """What happens when the trainer fails."""
    active_deadline_seconds: Annotated[Annotated[int, Field(ge=1, le=315_360_000)] | None, MAY_CHANGE] = None
    """How long the job may take, without the time in which it is suspended. Then it saves a checkpoint and
    fails. `grpo-runtime run` ignores it."""
    ttl_seconds_after_finished: Annotated[Annotated[int, Field(ge=0, le=315_360_000)] | None, MAY_CHANGE] = (
        None
    )
    """How long after its end the job is deleted with its pods; what is on its claim stays. A job that Argo CD
    or Flux tracks stays too."""
    ttl_seconds_after_failed: Annotated[Annotated[int, Field(ge=0, le=315_360_000)] | None, MAY_CHANGE] = None
    """The same of a job that has failed. Defaults to ttlSecondsAfterFinished."""
    startup_deadline_seconds: Annotated[int, Field(ge=1, le=604_800), MAY_CHANGE] = 1800
    """How long an attempt may take to begin its first step, once all its trainer pods and, in mode
    Disaggregated, one rollout pod have nodes. The time in which it reads its checkpoint does not count. When
    it takes longer the job fails, and the message says what it waited for."""
    scheduling_deadline_seconds: Annotated[Annotated[int, Field(ge=1, le=31_536_000)] | None, MAY_CHANGE] = (
        None
    )
    """How long an attempt may wait until all its trainer pods and, in mode Disaggregated, one rollout pod
    have nodes. This includes waiting for quota, for a full cluster, and for an earlier attempt's pods on lost
    nodes. When it takes longer the job fails, and the message says what it waited for. Without it a job waits
    without limit. `grpo-runtime run` starts its processes at once and ignores it."""
    scheduling: SchedulingSpec | None = None
    """How the pods come to their nodes: together, and near each other."""
    stall_timeout_seconds: Annotated[int, Field(ge=10, le=604_800), MAY_CHANGE] = 1800
    """How long a running trainer may make no progress before it counts as failed. While completions are
    sampled, each one that is finished is progress, so this must be longer than the longest completion
    takes."""

    @property
    def resolved_mode(self) -> Mode:
        """The mode with `Auto` resolved."""
        if self.mode is not Mode.AUTO:
            return self.mode
        return Mode.COLOCATED if self.rollout is None else Mode.DISAGGREGATED

    @property
    def resolved_dataset(self) -> DatasetSpec:
        """`dataset`, or the numbers that agents make tasks of."""
        return self.dataset or DatasetSpec(source=NUMBERS)

    @property
    def resolved_rewards(self) -> tuple[RewardSpec, ...]:
        """`rewards`, or what agents return."""
        own = BuiltinReward.ENVIRONMENT
        return self.rewards or (RewardSpec(name=own.value, builtin=own),)

    @property
    def resolved_dtype(self) -> Dtype:
        """`model.dtype`, or what follows from the hardware: GPUs compute bfloat16 many times as fast, and
        most CPUs emulate it."""
        return self.model.dtype or (Dtype.BFLOAT16 if self.trainer.has_gpus else Dtype.FLOAT32)

    @property
    def num_rollout_gpus(self) -> int:
        """GPUs of each rollout pod, by its limits or, with claims, one for each worker."""
        if self.rollout is None or not self.rollout.has_gpus:
            return 0
        return self.rollout.resources.num_gpus or self.engine.num_workers // self.rollout.nodes_per_replica

    def ttl_seconds(self, *, has_failed: bool) -> int | None:
        """How long after its end the job is deleted; None where it stays."""
        own = self.ttl_seconds_after_failed if has_failed else None
        return self.ttl_seconds_after_finished if own is None else own

    @property
    def mode_reason(self) -> str:
        """Why the job has that mode, as a sentence."""
        if self.mode is not Mode.AUTO:
            return f"spec.mode is {self.mode.value}"
        return "spec.mode is Auto and spec.rollout is " + ("not set" if self.rollout is None else "set")


QUEUE_STAYS = Transition(
    "(has(self.suspend) && self.suspend) || (has(self.queueName) == has(oldSelf.queueName) && "
    "(!has(self.queueName) || self.queueName == oldSelf.queueName))",
    "spec.queueName can only be changed while the job is suspended, because its quota is another queue's: "
    "set spec.suspend to true first",
    field=".queueName",
)
"""A job has its quota from one queue as long as it has pods."""
