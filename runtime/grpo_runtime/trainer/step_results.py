"""What the phases of a step leave, and the metrics that are made of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grpo_api.contract.learning_signal import Lack
from grpo_runtime.algorithm.advantages import Advantages
from grpo_runtime.algorithm.reward_metrics import reward_metrics
from grpo_runtime.report.completions import completion_metrics
from grpo_runtime.report.sync import sync_metrics
from grpo_runtime.rollout.interface import Rollout, SyncReport
from grpo_runtime.trainer.journal.step import REPLAYED, Step
from grpo_runtime.trainer.scoring import Scores
from grpo_runtime.trainer.selection import Selected


@dataclass(frozen=True, kw_only=True)
class SampledStep:
    """The completions of a step, with their rewards."""

    recorded: Step
    sync: SyncReport | None
    """None where the journal had all of them, so that no engine was needed."""
    selected: Selected

    @property
    def rollouts(self) -> Sequence[Rollout]:
        """Those that are trained on."""
        return self.selected.rollouts

    @property
    def scores(self) -> Scores:
        """Their rewards."""
        return self.selected.scores


@dataclass(frozen=True)
class Learned:
    """What an update made of them."""

    advantages: Advantages
    metrics: Mapping[str, float]

    @property
    def lack(self) -> Lack | None:
        """What the step lacked that taught nothing; None where it had something to learn. A gradient that is
        not finite is no gradient of 0: `skipped_updates` tells of it."""
        if self.advantages.rewards.isnan().all():
            return Lack.REWARD
        if not self.advantages.advantages.any():
            return Lack.DIFFERENCE
        return Lack.GRADIENT if self.metrics.get("grad_norm") == 0 else None


@dataclass(frozen=True)
class Evaluated:
    """What came of an evaluation. One that is cut off by a stop request says nothing about the policy."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    is_best: bool = False
    is_stopped: bool = False


def step_metrics(
    sampled: SampledStep, learned: Learned, *, reward_names: Sequence[str], measured: Mapping[str, float]
) -> dict[str, float]:
    """The metrics of a step by TRL's names; `measured` are its seconds, and what an evaluation found."""
    scores = sampled.scores
    values = {
        **scores.metrics,
        **learned.metrics,
        **reward_metrics(scores.rewards, names=list(reward_names), advantages=learned.advantages),
        **sampled.selected.metrics,
        **measured,
    }
    # a user's own metric may be NaN, which no report can hold
    values = {name: value for name, value in values.items() if math.isfinite(value)}
    values |= completion_metrics(sampled.rollouts)
    values |= sync_metrics(sampled.sync) if sampled.sync else {}
    if not values.get(REPLAYED):
        # where samples were replayed it would say how fast a disk is
        values["tokens_per_second"] = sampled.selected.num_sampled_tokens / values["step_time"]
    return values
