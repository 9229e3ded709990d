"""When steps of a run teach nothing, what they lack, and when that is reported. Pure."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from grpo_api.contract.reasons import Reason
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.status import ShortText

STEPS_REPORTED = 10
"""So many steps in a row without anything to learn are reported."""
PREFIX = "steps_without_signal/"
"""Prefix of the metrics that count such steps; the rest of a name is the Lack."""
_NUM_NAMED = 3

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]


class Lack(StrEnum):
    """Why a step taught nothing: what it lacked. A KL penalty or an entropy bonus may still change the
    weights, but not towards more reward."""

    REWARD = "no_reward"
    """No completion had a reward."""
    DIFFERENCE = "equal_rewards"
    """Rewards differed within no group, so all advantages were 0."""
    GRADIENT = "zero_gradient"
    """Advantages were not 0, but the gradient was."""


_REASONS = {
    Lack.REWARD: Reason.NO_REWARD,
    Lack.DIFFERENCE: Reason.EQUAL_REWARDS,
    Lack.GRADIENT: Reason.ZERO_GRADIENT,
}
_SENTENCES = {
    Lack.REWARD: "no completion had a reward, because every function returned None for it or failed: return "
    "a number where the reward applies, and look at the metrics rewards/NAME/failures",
    Lack.DIFFERENCE: "no two completions of a prompt had different rewards: take prompts that the "
    "policy solves sometimes, give partial rewards, or raise sampling.temperature or algorithm.groupSize",
    Lack.GRADIENT: "rewards differed but the gradient was 0: raise sampling.maxTokens where "
    "algorithm.maskTruncated leaves every completion out, loosen algorithm.offPolicyThreshold and "
    "algorithm.importanceCorrection, or raise rewards[].weight where rewards hardly differ",
}


class StepsWithoutSignal(ApiModel):
    """Steps in a row, up to the newest one, that taught nothing."""

    step: Annotated[int, Field(ge=1, le=2**53 - 1)]
    """The newest of them, counted from 1."""
    no_reward: Count = 0
    """How many of them lacked a reward."""
    equal_rewards: Count = 0
    """How many of them lacked a difference of rewards."""
    zero_gradient: Count = 0
    """How many of them lacked only a gradient."""
    rewards: ShortText
    """The rewards of the job, as a part of a sentence."""

    @classmethod
    def of(cls, counts: Mapping[str, int], *, step: int, rewards: Sequence[str]) -> Self | None:
        """`counts` are steps by their Lack, and `rewards` the names of all; None where the newest step had
        something to learn."""
        if not counts:
            return None
        return cls(step=step, rewards=_listed(rewards), **counts)

    @classmethod
    def of_metrics(cls, values: Mapping[str, float], *, step: int, rewards: Sequence[str]) -> Self | None:
        """The steps without signal as the metrics of `step` count them."""
        counts = {lack.value: int(values[PREFIX + lack]) for lack in Lack if PREFIX + lack in values}
        return cls.of(counts, step=step, rewards=rewards)

    @property
    def num_steps(self) -> int:
        """How many steps there are."""
        return self.no_reward + self.equal_rewards + self.zero_gradient

    def is_reported(self, *, total_steps: int) -> bool:
        """Whether they are enough to be reported. Fewer are, where the run has ended and had no others."""
        return self.num_steps >= STEPS_REPORTED or self.num_steps == self.step == total_steps

    @property
    def reason(self) -> Reason:
        """The reason for what most of the steps lacked."""
        return _REASONS[self._lacks[0]]

    @property
    def message(self) -> str:
        """What the steps lacked and what to do, as a sentence."""
        num, lacks = self.num_steps, self._lacks
        which = f"step {self.step}" if num == 1 else f"steps {self.step - num + 1} to {self.step}"
        said = [
            (f"in {self._num(lack)} of them " if len(lacks) > 1 else "") + _SENTENCES[lack] for lack in lacks
        ]
        return f"nothing was learned from {self.rewards} in {which}: {'; '.join(said)}"

    def _num(self, lack: Lack) -> int:
        return int(getattr(self, lack.value))

    @property
    def _lacks(self) -> list[Lack]:
        return sorted(filter(self._num, Lack), key=self._num, reverse=True)


def count_step(counts: Mapping[str, int], lack: Lack | None) -> dict[str, int]:
    """Steps in a row that taught nothing, by their Lack, after one more step; none where that had something
    to learn."""
    return {} if lack is None else {**counts, lack.value: counts.get(lack.value, 0) + 1}


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NUM_NAMED
    return ", ".join(names[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
