"""`async`: training on completions of older weights while engines sample, with the rules about it."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.loss import ImportanceCorrectionMode
from grpo_api.v1alpha1.spec.rollout import RolloutSpec


class StalePolicy(StrEnum):
    """What happens to completions that would become too old while they are sampled."""

    WAIT = "Wait"
    DROP = "Drop"


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


class AsyncSpec(ApiModel):
    """How far sampling may run ahead of training."""

    rules = (staleness_is_allowed, sync_is_within_the_bound)

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
