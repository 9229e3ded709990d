"""A step as one rank computes it: which sequences, in which micro-batches, and what to divide by."""

from dataclasses import dataclass

from grpo_runtime.algorithm.types import Denominators, LossOptions
from grpo_runtime.algorithm.zero_advantages import changes_gradient
from grpo_runtime.trainer.batch import Batch
from grpo_runtime.trainer.micro_batches import partition


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """One rank's part of a step."""

    micro_batches: tuple[Batch, ...]
    """As many as on every other rank; where an empty one is among them, it has no token that counts."""
    denominators: Denominators
    """Counts of the whole step, also of the sequences that are not computed: the losses of all micro-batches
    of all ranks then add up to the loss of one process."""
    metrics: dict[str, float]
    """How the step was cut, the same on every rank."""


def divide_step(
    batch: Batch, *, options: LossOptions, rank: int, num_ranks: int, budget: int, is_packed: bool = False
) -> StepParts:
    """What `rank` computes of `batch`, in micro-batches of at most `budget` tokens, of which none is padding
    where it `is_packed`.

    Sequences that change nothing in the gradient are left out.
    """
    is_computed = changes_gradient(batch.advantages, options=options)
    cut = partition(
        batch.lengths,
        is_counted=is_computed.tolist(),
        num_ranks=num_ranks,
        budget=budget,
        is_packed=is_packed,
    )
    denominators = Denominators.of_mask(batch.loss_mask, num_micro_batches=max(1, cut.num_with_sequences))
    num_computed_tokens = float(batch.loss_mask[is_computed].sum())
    return StepParts(
        micro_batches=tuple(batch.part(rows) for rows in cut.by_rank[rank]),
        denominators=denominators,
        metrics={
            "batch/micro_batches": float(cut.num_micro_batches),
            "batch/padding_share": cut.padding_share,
            "batch/computed_share": num_computed_tokens / max(1.0, denominators.num_tokens),
        },
    )
