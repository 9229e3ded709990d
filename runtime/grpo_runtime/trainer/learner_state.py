"""What the learner remembers from one step to the next, beside weights and optimizer."""

from dataclasses import asdict, dataclass

import torch

from grpo_runtime.trainer.distributed import Ranks


@dataclass(frozen=True, kw_only=True)
class LearnerState:
    """Where the learner stands at a step boundary: the same on every rank, and a part of a checkpoint."""

    skipped_steps: int = 0
    """Steps in a row, up to the last one, in which no gradient was finite."""


def shared_state(state: LearnerState, *, ranks: Ranks) -> LearnerState:
    """Rank 0's `state` on every rank, which all call this at the same time."""
    values = torch.tensor([float(value) for value in asdict(state).values()], dtype=torch.float64)
    found = ranks.broadcast(values).tolist()
    kinds = (type(value) for value in asdict(state).values())
    return LearnerState(
        **{name: kind(value) for name, kind, value in zip(asdict(state), kinds, found, strict=True)}
    )
