"""One completion of a step as people read it."""

from collections.abc import Mapping
from dataclasses import dataclass

TRACKED = ("group", "prompt", "completion", "reward", "advantage", "num_tokens")
"""What trackers show of one, in the order of their columns."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One completion, and what became of it."""

    group: int
    """Place of its prompt in the step, from 0: the completions of a group compete."""
    prompt: str
    """As the policy got it, special tokens included."""
    completion: str
    """As the reward functions got it."""
    rewards: Mapping[str, float | None]
    """By reward function; None where it gave none."""
    reward: float | None
    """The weighted sum."""
    advantage: float
    num_tokens: int
    is_terminated: bool
    """Whether it ended by itself, and not at sampling.maxTokens."""
    policy_versions: str
    """Of the weights that sampled it, in order, such as `1.40` or `1.40 1.41`."""
    engine: str
