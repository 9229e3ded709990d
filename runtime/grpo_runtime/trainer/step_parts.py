"""A step as one rank computes it: which sequences, in which micro-batches, and what to divide by."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_runtime.algorithm.types import Denominators, LossOptions
from grpo_runtime.algorithm.zero_advantages import changes_gradient
from grpo_runtime.trainer.batch import Batch
from grpo_runtime.trainer.micro_batches import Partition, padding_share, partition


@dataclass(frozen=True, kw_only=True)
class UpdateParts:
    """One rank's part of one update of the optimizer."""

    micro_batches: tuple[Batch, ...]
    """As many as on every other rank; where an empty one is among them, it has no token that counts."""
    denominators: Denominators
    """Counts of the whole minibatch, also of the sequences that are not computed: the losses of all
    micro-batches of all ranks then add up to the loss of one process."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """One rank's part of a step."""

    updates: tuple[UpdateParts, ...]
    """One for each minibatch, in the order in which they are made."""
    metrics: dict[str, float]
    """How the step was cut, the same on every rank."""


def divide_step(
    batch: Batch,
    *,
    options: LossOptions,
    rank: int,
    num_ranks: int,
    budget: int,
    is_packed: bool = False,
    minibatches: Sequence[Sequence[int]] = (),
) -> StepParts:
    """What `rank` computes of `batch`, in micro-batches of at most `budget` tokens, of which none is padding
    where it `is_packed`. `minibatches` are the sequences of each, and without them all are one.

    Sequences that change nothing in the gradient are left out.
    """
    parts = [batch] if len(minibatches) <= 1 else [batch.part(rows) for rows in minibatches]
    cuts = [
        partition(
            part.lengths,
            is_counted=changes_gradient(part.advantages, options=options).tolist(),
            num_ranks=num_ranks,
            budget=budget,
            is_packed=is_packed,
        )
        for part in parts
    ]
    updates = tuple(
        UpdateParts(
            micro_batches=tuple(part.part(rows) for rows in cut.by_rank[rank]),
            denominators=Denominators.of_mask(
                part.loss_mask, num_micro_batches=max(1, cut.num_with_sequences)
            ),
        )
        for part, cut in zip(parts, cuts, strict=True)
    )
    return StepParts(updates=updates, metrics=_metrics(batch, cuts, options=options))


def _metrics(batch: Batch, cuts: Sequence[Partition], *, options: LossOptions) -> dict[str, float]:
    is_computed = changes_gradient(batch.advantages, options=options)
    num_computed_tokens = float(batch.loss_mask[is_computed].sum())
    return {
        "batch/micro_batches": float(sum(cut.num_micro_batches for cut in cuts)),
        "batch/padding_share": padding_share(cuts),
        "batch/computed_share": num_computed_tokens / max(1.0, float(batch.loss_mask.sum())),
    }
