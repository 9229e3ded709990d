"""`algorithm.entropy`: a bonus for uncertainty."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import rule

ENTROPY_DELTA, LEAST_ENTROPY, MOST_ENTROPY = 0.005, 0.0, 1.0
"""TRL's."""


@rule(
    cel="has(self.target) || (!has(self.delta) && !has(self.minCoefficient) && !has(self.maxCoefficient))",
    sentence="algorithm.entropy.target must be there with delta, minCoefficient or maxCoefficient, which say "
    "how the coefficient follows it: set it, or remove them",
    field=".target",
)
def only_a_target_moves_the_coefficient(
    target: float | None,
    delta: float | None,
    min_coefficient: float | None,
    max_coefficient: float | None,
) -> bool:
    """Without a target the coefficient stays what it is."""
    return target is not None or all(value is None for value in (delta, min_coefficient, max_coefficient))


@rule(
    cel="!has(self.target) || ("
    f"(has(self.minCoefficient) ? self.minCoefficient : {LEAST_ENTROPY}) <= self.coefficient && "
    f"self.coefficient <= (has(self.maxCoefficient) ? self.maxCoefficient : {MOST_ENTROPY}))",
    sentence="algorithm.entropy.coefficient, with which a run begins, must be from minCoefficient (without "
    "it 0) to maxCoefficient (without it 1): change one of them",
    field=".coefficient",
)
def coefficient_begins_within_its_bounds(
    target: float | None,
    coefficient: float,
    min_coefficient: float | None,
    max_coefficient: float | None,
) -> bool:
    """It could not be moved in both directions otherwise."""
    least = LEAST_ENTROPY if min_coefficient is None else min_coefficient
    most = MOST_ENTROPY if max_coefficient is None else max_coefficient
    return target is None or least <= coefficient <= most


class EntropySpec(ApiModel):
    """A bonus for the entropy of the policy, against its collapse to a few answers."""

    rules = (only_a_target_moves_the_coefficient, coefficient_begins_within_its_bounds)

    coefficient: Annotated[float, Field(ge=0, le=1000)]
    """How much of the mean entropy of the tokens (nats, at `sampling.temperature`) is subtracted from the
    loss; TRL's `entropy_coef`. It is the mean over all tokens whatever `lossType` divides by. With 0 and
    without a target there is no bonus."""
    target: Annotated[float, Field(gt=0, le=100)] | None = None
    """TRL's `entropy_target` with `use_adaptive_entropy` (Skywork-OR1): after each step the coefficient is
    raised by `delta` where the metric `entropy` of the step is at most this, and lowered by it elsewhere;
    and the bonus counts only in a step that follows one at or below the target. Set it close to the
    entropy that a run begins with. Without it the coefficient stays."""
    delta: Annotated[float, Field(gt=0, le=1000)] | None = None
    """TRL's `entropy_coef_delta`; without it 0.005."""
    min_coefficient: Annotated[float, Field(ge=0, le=1000)] | None = None
    """TRL's `entropy_coef_min`; without it 0."""
    max_coefficient: Annotated[float, Field(gt=0, le=1000)] | None = None
    """TRL's `entropy_coef_max`; without it 1."""

    @property
    def has_bonus(self) -> bool:
        """Whether the loss of some step may have a bonus."""
        return self.coefficient > 0 or self.target is not None
