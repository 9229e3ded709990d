"""Which groups a step is trained on: all that were sampled, or with algorithm.dynamicSampling those that
teach something."""

from collections.abc import Sequence

from grpo_runtime.algorithm.advantages import compute_advantages
from grpo_runtime.algorithm.dynamic_sampling import differing_groups
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.rollouts.group import Group, rewards_of

ROUNDS = "dynamic_sampling/rounds"
GENERATED = "dynamic_sampling/generated_groups"
DROPPED = "dynamic_sampling/dropped_groups"
REWARD = "dynamic_sampling/generated_reward"


class Selection:
    """Takes the groups of a step round by round, until it has as many as the step needs."""

    def __init__(self, *, num_groups: int, max_rounds: int | None, options: AdvantageOptions) -> None:
        """`max_rounds` is None in a run that takes what the first round gives."""
        self.sampled: list[Group] = []
        """All groups that it was given, in their order."""
        self._num_groups = num_groups
        self._max_rounds = max_rounds
        self._options = options
        self._num_rounds = 0
        self._selected: list[Group] = []

    @property
    def num_missing(self) -> int:
        """Groups to sample in the next round; 0 where the step is trained on what there is."""
        if self._num_rounds >= (self._max_rounds or 1):
            return 0
        return self._num_groups - len(self._selected)

    def take(self, groups: Sequence[Group]) -> None:
        """The groups of a round, scored."""
        self._num_rounds += 1
        self.sampled += groups
        if self._max_rounds is None:
            self._selected += groups
        else:
            differ = differing_groups(rewards_of(groups), options=self._options).tolist()
            self._selected += [group for group, differs in zip(groups, differ, strict=True) if differs]

    def selected(self) -> list[Group]:
        """The groups that differ, in the order in which they were sampled: fewer than the step has prompts,
        where rounds did not suffice. Where none differs it is the first round, which teaches nothing."""
        return self._selected or self.sampled[: self._num_groups]

    def metrics(self) -> dict[str, float]:
        """Of dynamic sampling, in a run that has it."""
        if self._max_rounds is None:
            return {}
        rewards = compute_advantages(rewards_of(self.sampled), options=self._options).rewards
        return {
            ROUNDS: float(self._num_rounds),
            GENERATED: float(len(self.sampled)),
            DROPPED: float(len(self.sampled) - len(self._selected)),
            REWARD: rewards.nanmean().item(),
        }
