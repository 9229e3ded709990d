"""A group: one prompt of a step, and all that becomes of it.

G completions of a prompt, B of several prompts, F reward functions.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.types import RewardFailure
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout


@dataclass(kw_only=True, eq=False)
class Group:
    """The completions of one prompt, which compete. It is asked for, then sampled, then scored."""

    step: int
    """Optimizer steps that are done when it is begun."""
    number: int
    """Its index among the groups of the step, from 0; in asynchronous training among those of the run."""
    prompt: Prompt
    requests: Sequence[GenerateRequest]
    """[G]."""
    rollouts: list[Rollout | None] = field(default_factory=list)
    """[G], None for a sample that is not finished."""
    columns: tuple[Column, ...] | None = None
    """[F], what each reward function gave; None until the group is scored."""

    def __post_init__(self) -> None:
        self.rollouts = self.rollouts or [None] * len(self.requests)

    def forget_samples(self) -> None:
        """It is as when it was begun."""
        self.rollouts = [None] * len(self.requests)
        self.columns = None

    @property
    def is_evaluation(self) -> bool:
        """Whether it measures the policy, and is not trained on."""
        return self.requests[0].is_evaluation

    @property
    def missing(self) -> list[int]:
        """The samples that are not finished, by their indices in the group."""
        return [sample for sample, rollout in enumerate(self.rollouts) if rollout is None]

    @property
    def is_sampled(self) -> bool:
        """Whether every sample is finished."""
        return None not in self.rollouts

    @property
    def is_scored(self) -> bool:
        """Whether nothing is left to do with it but to train."""
        return self.columns is not None

    @property
    def completions(self) -> list[Rollout]:
        """[G], of a group that is sampled."""
        completions = [rollout for rollout in self.rollouts if rollout is not None]
        assert len(completions) == len(self.requests), "the group is not sampled"
        return completions

    @property
    def scored_columns(self) -> tuple[Column, ...]:
        """`columns` of a group that is scored."""
        assert self.columns is not None, "the group is not scored"
        return self.columns

    @property
    def rewards(self) -> list[tuple[float | None, ...]]:
        """[G][F] of a group that is scored, None where a function gave none."""
        return list(zip(*(column.values for column in self.scored_columns), strict=True))

    @property
    def failures(self) -> list[RewardFailure]:
        """Failures of all functions, of a group that is scored."""
        return [failure for column in self.scored_columns for failure in column.failures]


def completions_of(groups: Iterable[Group]) -> list[Rollout]:
    """[B], group by group."""
    return [rollout for group in groups for rollout in group.completions]


def rewards_of(groups: Iterable[Group]) -> torch.Tensor:
    """[B, F] float32, NaN where a function gave none."""
    rows = [
        [math.nan if value is None else value for value in row] for group in groups for row in group.rewards
    ]
    return torch.tensor(rows, dtype=torch.float32)
