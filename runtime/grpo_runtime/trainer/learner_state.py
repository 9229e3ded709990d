"""What the learner remembers from one step to the next, beside weights and optimizer."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from grpo_api.contract.resolved_sections import ResolvedAlgorithm
from grpo_runtime.trainer.distributed import Ranks


@dataclass(frozen=True, kw_only=True)
class LearnerState:
    """Where the learner stands at a step boundary: the same on every rank, and a part of a checkpoint."""

    skipped_steps: int = 0
    """Steps in a row, up to the last one, in which no gradient was finite."""
    entropy_coefficient: float = 0.0
    """Of the entropy bonus, where it follows a target."""
    is_entropy_low: bool = False
    """Whether the entropy was at or below the target in the last step. Before the first it is not known."""


def first_state(algorithm: ResolvedAlgorithm) -> LearnerState:
    """Where a run begins."""
    entropy = algorithm.entropy
    return LearnerState(entropy_coefficient=0.0 if entropy is None else entropy.coefficient)


def state_after(
    algorithm: ResolvedAlgorithm, saved: Mapping[str, Any], *, is_of_other_run: bool
) -> LearnerState:
    """Where a run goes on from what its checkpoint has of the learner. From the checkpoint of another run,
    which may have had another `algorithm`, only an entropy coefficient is taken that follows a target."""
    first = first_state(algorithm)
    if not is_of_other_run:
        return replace(first, **saved)
    follows_target = algorithm.entropy is not None and algorithm.entropy.target is not None
    coefficient = saved.get("entropy_coefficient", 0.0)
    return replace(first, entropy_coefficient=coefficient) if follows_target and coefficient else first


def shared_state(state: LearnerState, *, ranks: Ranks) -> LearnerState:
    """Rank 0's `state` on every rank, which all call this at the same time."""
    values = torch.tensor([float(value) for value in asdict(state).values()], dtype=torch.float64)
    found = ranks.broadcast(values).tolist()
    kinds = (type(value) for value in asdict(state).values())
    return LearnerState(
        **{name: kind(value) for name, kind, value in zip(asdict(state), kinds, found, strict=True)}
    )
