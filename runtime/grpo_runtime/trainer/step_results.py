"""What the phases of a step leave, and the metrics that are made of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from grpo_api.contract.learning_signal import Lack
from grpo_runtime.algorithm.advantages import Advantages
from grpo_runtime.algorithm.reward_metrics import reward_metrics
from grpo_runtime.report.completions import completion_metrics
from grpo_runtime.report.sync import sync_metrics
from grpo_runtime.rollouts.group import completions_of, rewards_of
from grpo_runtime.rollouts.journal.journal import REPLAYED
from grpo_runtime.rollouts.scoring import Scorer
from grpo_runtime.rollouts.stream import StepGroups


@dataclass(frozen=True)
class Learned:
    """What an update made of the groups of a step."""

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
    groups: StepGroups, learned: Learned, *, scorer: Scorer, measured: Mapping[str, float]
) -> dict[str, float]:
    """The metrics of a step by TRL's names; `measured` are its seconds, and what an evaluation found."""
    rewards, completions = rewards_of(groups.trained), completions_of(groups.trained)
    values = {
        **scorer.metrics(groups.sampled),
        **learned.metrics,
        **reward_metrics(rewards, names=scorer.names, advantages=learned.advantages),
        **groups.metrics,
        **measured,
    }
    # a user's own metric may be NaN, which no report can hold
    values = {name: value for name, value in values.items() if math.isfinite(value)}
    values |= completion_metrics(completions)
    values |= sync_metrics(groups.sync) if groups.sync else {}
    if not values.get(REPLAYED):
        # where samples were replayed it would say how fast a disk is
        num_tokens = sum(rollout.num_sampled for rollout in completions_of(groups.sampled))
        values["tokens_per_second"] = num_tokens / values["step_time"]
    return values
