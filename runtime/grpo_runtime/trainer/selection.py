"""Which groups a step is trained on: all that were sampled, or with algorithm.dynamicSampling those that
teach something."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_runtime.algorithm.advantages import compute_advantages
from grpo_runtime.algorithm.dynamic_sampling import differing_groups
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.rollout.interface import Rollout
from grpo_runtime.trainer.scoring import Scores, merge_scores

ROUNDS = "dynamic_sampling/rounds"
GENERATED = "dynamic_sampling/generated_groups"
DROPPED = "dynamic_sampling/dropped_groups"
REWARD = "dynamic_sampling/generated_reward"


@dataclass(frozen=True, kw_only=True)
class Selected:
    """What a step is trained on, and what was sampled for it."""

    rollouts: Sequence[Rollout]
    scores: Scores
    num_sampled_tokens: int
    """Also of groups that were dropped."""
    metrics: Mapping[str, float]


class Selection:
    """Takes the groups of a step round by round, until it has as many as the step needs."""

    def __init__(self, *, num_groups: int, max_rounds: int | None, options: AdvantageOptions) -> None:
        """`max_rounds` is None in a run that takes what the first round gives."""
        self._num_groups = num_groups
        self._max_rounds = max_rounds
        self._options = options
        self._rounds: list[tuple[Sequence[Rollout], Scores]] = []
        self._differs: list[bool] = []

    @property
    def num_generated(self) -> int:
        """Groups that were sampled up to now."""
        return sum(len(rollouts) for rollouts, _ in self._rounds) // self._options.group_size

    @property
    def num_missing(self) -> int:
        """Groups to sample in the next round; 0 where the step is trained on what there is."""
        if self._rounds and len(self._rounds) >= (self._max_rounds or 1):
            return 0
        return self._num_groups - sum(self._differs)

    def take(self, rollouts: Sequence[Rollout], scores: Scores) -> None:
        """The groups of a round."""
        self._rounds.append((rollouts, scores))
        if self._max_rounds is None:
            self._differs += [True] * (len(rollouts) // self._options.group_size)
        else:
            self._differs += differing_groups(scores.rewards, options=self._options).tolist()

    def selected(self) -> Selected:
        """The groups that differ, in the order in which they were sampled: fewer than the step has prompts,
        where rounds did not suffice. Where none differs it is the first round, which teaches nothing."""
        rollouts = [rollout for round_rollouts, _ in self._rounds for rollout in round_rollouts]
        scores = merge_scores([scores for _, scores in self._rounds])
        size = self._options.group_size
        kept = [number for number, differs in enumerate(self._differs) if differs]
        places = kept or range(self._num_groups)
        indices = [group * size + sample for group in places for sample in range(size)]
        return Selected(
            rollouts=[rollouts[index] for index in indices],
            scores=Scores([scores.values[index] for index in indices], scores.metrics),
            num_sampled_tokens=sum(rollout.num_sampled for rollout in rollouts),
            metrics={} if self._max_rounds is None else self._metrics(scores, num_kept=len(kept)),
        )

    def _metrics(self, scores: Scores, *, num_kept: int) -> dict[str, float]:
        rewards = compute_advantages(scores.rewards, options=self._options).rewards
        return {
            ROUNDS: float(len(self._rounds)),
            GENERATED: float(self.num_generated),
            DROPPED: float(self.num_generated - num_kept),
            REWARD: rewards.nanmean().item(),
        }
