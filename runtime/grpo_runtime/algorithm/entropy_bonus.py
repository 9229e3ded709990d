"""A bonus for the entropy of the policy, with a coefficient that stays or follows a target."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EntropyBonus:
    """`coefficient` times the mean entropy of an update's tokens is subtracted from the loss.

    It is that mean whatever the loss itself divides by, as in TRL, so that the coefficient means the same for
    each. Where only the most uncertain tokens carry the policy term, the others count as 0 in it.
    """

    coefficient: float


@dataclass(frozen=True, kw_only=True)
class EntropyControl:
    """How the coefficient follows a target: Skywork-OR1 (arXiv:2505.22312), with TRL's bounds.

    c' = c + delta where the entropy is at most the target, else c - delta, and the bonus counts only after an
    entropy of at most the target. TRL does so after each update, here it is after each step of rollouts.
    """

    target: float
    """Nats a token."""
    delta: float
    least: float
    most: float

    def is_low(self, entropy: float) -> bool:
        """Whether the next step has a bonus."""
        return entropy <= self.target

    def coefficient_after(self, coefficient: float, *, entropy: float) -> float:
        """The coefficient of the step after one with this mean entropy."""
        moved = coefficient + (self.delta if self.is_low(entropy) else -self.delta)
        return min(max(moved, self.least), self.most)
