"""A group: one prompt of a step, and all that becomes of it.

G samples of a prompt, of which as many completions as were not given up; B completions of P prompts, F reward
functions.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from grpo_runtime.algorithm.advantages import Advantages, compute_advantages
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.types import RewardFailure
from grpo_runtime.rollouts.interface import GenerateRequest, GivenUp, Rollout


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
    rollouts: list[Rollout | GivenUp | None] = field(default_factory=list)
    """[G], None for a sample that is neither finished nor given up."""
    columns: tuple[Column, ...] | None = None
    """[F], what each reward function gave; None until the group is scored."""

    def __post_init__(self) -> None:
        self.rollouts = self.rollouts or [None] * len(self.requests)

    def forget_samples(self) -> None:
        """It is as when it was begun."""
        self.requests = [replace(request, so_far=None) for request in self.requests]
        self.rollouts = [None] * len(self.requests)
        self.columns = None

    def go_on_from(self, sample: int, so_far: Rollout) -> None:
        """What is left to make of a sample is what follows these tokens."""
        requests = list(self.requests)
        requests[sample] = replace(requests[sample], so_far=so_far)
        self.requests, self.rollouts[sample] = requests, None

    def found_so_far(self) -> tuple[list[Rollout], bool]:
        """The completions that are finished and what there is of others, where engines have handed that over;
        and whether no sample is missing. Both are of one moment, while another thread finishes samples."""
        rollouts = tuple(self.rollouts)
        found = [
            request.so_far if rollout is None else rollout
            for request, rollout in zip(self.requests, rollouts, strict=True)
        ]
        return [one for one in found if isinstance(one, Rollout)], None not in rollouts

    @property
    def has_samples(self) -> bool:
        """Whether there is anything of any sample."""
        return any(self.rollouts) or any(request.so_far for request in self.requests)

    @property
    def is_evaluation(self) -> bool:
        """Whether it measures the policy, and is not trained on."""
        return self.requests[0].is_evaluation

    @property
    def missing(self) -> list[int]:
        """The samples that are left to make, by their indices in the group."""
        return [sample for sample, rollout in enumerate(self.rollouts) if rollout is None]

    @property
    def is_sampled(self) -> bool:
        """Whether every sample is finished, or given up."""
        return None not in self.rollouts

    @property
    def given_up(self) -> list[GivenUp]:
        """Those of its samples that there will not be."""
        return [found for found in self.rollouts if isinstance(found, GivenUp)]

    @property
    def is_left_out(self) -> bool:
        """Whether so many samples were given up that it is neither scored nor trained on. A group of an
        evaluation is not compared within itself, so that one completion is enough."""
        size = len(self.requests)
        least = 1 if self.is_evaluation else max(2, math.ceil(size / 2))
        return size - len(self.given_up) < min(least, size)

    @property
    def is_scored(self) -> bool:
        """Whether nothing is left to do with it but to train."""
        return self.columns is not None

    @property
    def completions(self) -> list[Rollout]:
        """Those of a group that is sampled: [G] where none was given up, else fewer."""
        assert self.is_sampled, "the group is not sampled"
        return self.finished

    @property
    def finished(self) -> list[Rollout]:
        """The completions that are finished so far."""
        return [found for found in tuple(self.rollouts) if isinstance(found, Rollout)]

    @property
    def scored_columns(self) -> tuple[Column, ...]:
        """`columns` of a group that is scored."""
        assert self.columns is not None, "the group is not scored"
        return self.columns

    @property
    def rewards(self) -> list[tuple[float | None, ...]]:
        """[completions][F] of a group that is scored, None where a function gave none."""
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
    return _tensor_of(row for group in groups for row in group.rewards)


def whole_rewards_of(groups: Iterable[Group]) -> torch.Tensor:
    """[P x G, F] float32, NaN where a function gave none, and for each sample that was given up: advantages
    compare groups of one size, and a completion without a reward is in no statistics."""
    return _tensor_of(row for group in groups for row in _whole_rewards(group))


def advantages_of(groups: Sequence[Group], *, options: AdvantageOptions) -> Advantages:
    """The advantages of B completions, group by group. Raises what `compute_advantages` does."""
    whole = compute_advantages(whole_rewards_of(groups), options=options)
    is_there = [not isinstance(found, GivenUp) for group in groups for found in group.rollouts]
    return whole.part(torch.tensor(is_there))


def _whole_rewards(group: Group) -> Iterable[tuple[float | None, ...]]:
    rewards, nothing = iter(group.rewards), (None,) * len(group.scored_columns)
    return (nothing if isinstance(found, GivenUp) else next(rewards) for found in group.rollouts)


def _tensor_of(rewards: Iterable[tuple[float | None, ...]]) -> torch.Tensor:
    rows = [[math.nan if value is None else value for value in row] for row in rewards]
    return torch.tensor(rows, dtype=torch.float32)
