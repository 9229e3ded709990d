"""`async`: training on completions of older weights while engines sample, with the rules about it."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.checkpoint import CheckpointSpec
from grpo_api.v1alpha1.spec.environments import EnvironmentSpec
from grpo_api.v1alpha1.spec.loss import ImportanceCorrectionMode
from grpo_api.v1alpha1.spec.rollout import RolloutSpec
from grpo_api.v1alpha1.spec.sampling import SamplingSpec


class StalePolicy(StrEnum):
    """What happens to completions that would become too old while they are sampled."""

    WAIT = "Wait"
    DROP = "Drop"


class PauseMode(StrEnum):
    """What happens to completions that are being sampled when an engine gets new weights."""

    KEEP = "Keep"
    WAIT = "Wait"
    ABORT = "Abort"


class KvCache(StrEnum):
    """What becomes of the keys and values of completions that go on with new weights."""

    RECOMPUTE = "Recompute"
    KEEP = "Keep"


class TrainedOrder(StrEnum):
    """Which of the groups that are sampled ahead a step is trained on."""

    FINISHED = "Finished"
    PLANNED = "Planned"


@rule(
    cel="self.maxStaleness >= 1",
    sentence="async.maxStaleness must be at least 1, because with 0 the trainer would wait for every "
    "completion: raise it, or remove async for synchronous training",
    field=".maxStaleness",
)
def staleness_is_allowed(max_staleness: int) -> bool:
    """Completions of the current weights alone are synchronous training."""
    return max_staleness >= 1


@rule(
    cel="self.maxStaleness < 1 || !has(self.syncEverySteps) || self.syncEverySteps <= self.maxStaleness",
    sentence="async.syncEverySteps ({syncEverySteps}) must not exceed async.maxStaleness ({maxStaleness}), "
    "because completions that begin just before a sync would be too old for the next step: lower "
    "syncEverySteps or raise maxStaleness",
    field=".syncEverySteps",
)
def sync_is_within_the_bound(max_staleness: int, sync_every_steps: int) -> bool:
    """Weights are replaced before what they sample is too old."""
    return max_staleness < 1 or sync_every_steps <= max_staleness


@rule(
    cel="!has(self.kvCache) || self.kvCache != 'Keep' || !has(self.pauseMode) || self.pauseMode == 'Keep'",
    sentence="async.kvCache Keep needs pauseMode Keep: what Abort hands over is computed anew, and with Wait "
    "nothing is left: remove one of them",
    field=".kvCache",
)
def cache_is_kept_in_its_engine(kv_cache: KvCache, pause_mode: PauseMode) -> bool:
    """Only what an engine has not let go has keys and values."""
    return kv_cache is not KvCache.KEEP or pause_mode is PauseMode.KEEP


@rule(
    cel="!has(self.journalSegments) || !self.journalSegments "
    "|| (has(self.pauseMode) && self.pauseMode == 'Abort')",
    sentence="async.journalSegments needs pauseMode Abort, with which engines hand over completions: set it, "
    "or remove journalSegments",
    field=".journalSegments",
)
def segments_are_handed_over(journal_segments: bool, pause_mode: PauseMode) -> bool:
    """In the other modes a completion is in its engine until it is finished."""
    return not journal_segments or pause_mode is PauseMode.ABORT


@rule(
    cel="!has(self.order) || self.order != 'Planned' || !has(self.stale) || self.stale != 'Drop'",
    sentence="async.order Planned trains every group, and stale Drop leaves out those that take long: remove "
    "one of them",
    field=".order",
)
def planned_groups_are_not_dropped(order: TrainedOrder, stale: StalePolicy) -> bool:
    """A group that is dropped has no turn."""
    return order is not TrainedOrder.PLANNED or stale is not StalePolicy.DROP


class AsyncSpec(ApiModel):
    """How far sampling may run ahead of training."""

    rules = (
        staleness_is_allowed,
        sync_is_within_the_bound,
        cache_is_kept_in_its_engine,
        segments_are_handed_over,
        planned_groups_are_not_dropped,
    )

    max_staleness: Annotated[int, Field(ge=0, le=1000)]
    """How many steps old a completion may be when it is trained, at least 1. Its age is the number of steps
    that were trained since the weights which sampled its first token. Up to maxStaleness + 1 times
    `algorithm.promptsPerStep` prompts are in work at a time."""
    sync_every_steps: Annotated[int, Field(ge=1, le=1000), NOT_STORED] = 1
    """After every so many steps engines get the new weights, at most maxStaleness. They sample on while the
    weights travel, and pause only while these are put in place. Defaults to 1."""
    stale: Annotated[StalePolicy, NOT_STORED] = StalePolicy.WAIT
    """What happens to completions that would become too old while they are sampled. With `Wait` (the default)
    the trainer waits for them. With `Drop` they are cancelled, and other prompts are sampled instead, so that
    long completions are trained less often than short ones."""
    pause_mode: Annotated[PauseMode, NOT_STORED] = PauseMode.KEEP
    """What happens to completions that are being sampled when their engine gets new weights. With `Keep` (the
    default) they go on in it. With `Wait` it finishes them before, and begins no others. With `Abort` it
    hands them over, and any engine goes on from their tokens."""
    kv_cache: Annotated[KvCache, NOT_STORED] = KvCache.RECOMPUTE
    """With pauseMode Keep: whether the new weights compute keys and values of the tokens so far anew,
    `Recompute` (the default), or take those of the old ones, `Keep`: faster, and exact for neither."""
    order: Annotated[TrainedOrder, NOT_STORED] = TrainedOrder.FINISHED
    """Which groups a step is trained on: those that finished first, `Finished` (the default), so that short
    completions come sooner than long ones, or the next in the order of their prompts, `Planned`."""
    journal_segments: Annotated[bool, NOT_STORED] = False
    """With pauseMode Abort: whether the journal has what is handed over, too, so that a restart goes on from
    there. Defaults to false."""


# Rules across sections


@rule(
    cel="!has(self.async) || has(self.rollout)",
    sentence="async needs engines in pods of their own, which sample while the trainer trains: add rollout, "
    "or remove async",
    field=".async",
)
def async_has_rollout(asynchronous: AsyncSpec | None, rollout: RolloutSpec | None) -> bool:
    """Colocated engines and their trainer take turns on the same hardware."""
    return asynchronous is None or rollout is not None


@rule(
    cel="!has(self.async) || !has(self.async.journalSegments) || !self.async.journalSegments "
    "|| !(has(self.environments) || has(self.sampling.rolloutFunction))",
    sentence="async.journalSegments is for completions of one turn: remove it, or environments and "
    "sampling.rolloutFunction, of which the journal has whole completions",
    field=".async.journalSegments",
)
def segments_are_of_one_turn(
    asynchronous: AsyncSpec | None,
    environments: tuple[EnvironmentSpec, ...] | None,
    sampling: SamplingSpec,
) -> bool:
    """What an agent or a function holds of a completion ends with its process."""
    if asynchronous is None or not asynchronous.journal_segments:
        return True
    return environments is None and sampling.rollout_function is None


@rule(
    cel="!has(self.async) || !has(self.async.journalSegments) || !self.async.journalSegments "
    "|| (has(self.checkpoint.claimName) && (!has(self.checkpoint.journal) || self.checkpoint.journal))",
    sentence="async.journalSegments needs a journal: name a checkpoint.claimName, without checkpoint.journal "
    "false, or remove journalSegments",
    field=".async.journalSegments",
)
def segments_have_a_journal(asynchronous: AsyncSpec | None, checkpoint: CheckpointSpec) -> bool:
    """A restart reads them from the claim."""
    if asynchronous is None or not asynchronous.journal_segments:
        return True
    return checkpoint.claim_name is not None and checkpoint.journal is not False


@rule(
    cel="!has(self.async) || self.algorithm.importanceCorrection.mode != 'none'",
    sentence="async trains on tokens of older weights, and with algorithm.importanceCorrection.mode none "
    "nothing corrects for that: set mode to truncate or mask, without sampling.regex and "
    "repetitionPenalty, which need none, or remove async",
    field=".algorithm.importanceCorrection.mode",
)
def older_tokens_are_corrected(asynchronous: AsyncSpec | None, algorithm: AlgorithmSpec) -> bool:
    """The policy ratio begins at the newest weights, and so knows nothing of the older ones."""
    mode = algorithm.importance_correction.mode
    return asynchronous is None or mode is not ImportanceCorrectionMode.NONE


@rule(
    cel="!has(self.async) || self.algorithm.numIterations == 1",
    sentence="algorithm.numIterations ({algorithm.numIterations}) must be 1 with async: training a batch "
    "again makes it older than async.maxStaleness, which counts steps: set it to 1, or remove async",
    field=".algorithm.numIterations",
)
def batch_is_trained_once(asynchronous: AsyncSpec | None, algorithm: AlgorithmSpec) -> bool:
    """Every pass over a batch is training on still older completions."""
    return asynchronous is None or algorithm.num_iterations == 1
