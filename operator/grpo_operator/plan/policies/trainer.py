"""Policy: the trainer pods of the current attempt exist."""

from dataclasses import replace
from datetime import datetime

from grpo_operator.children.trainer import trainer_pod
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.early_ends import early_end


def keep_trainers(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Create the missing ones, unless something else must happen first."""
    frozen = draft.frozen
    if draft.stage is not Stage.ACTIVE or frozen is None or draft.waits_for:
        return draft
    status = draft.status
    names = (frozen.names.trainer(attempt=status.attempt, index=index) for index in draft.facts.missing)
    for name in names:
        if (ended := early_end(observed, name, now)) is not None:
            why, seconds = ended
            return replace(draft, early_end=why).waking_after(seconds)
    return draft.creating(
        *(
            trainer_pod(
                frozen,
                attempt=status.attempt,
                index=index,
                given_back=status.given_back,
                micro_batch_tokens=status.micro_batch_tokens,
                checkpoint_step=status.highest_checkpoint_step,
                checkpoint_seconds=status.checkpoint_seconds,
                has_saved=status.checkpoint_step is not None,
            )
            for index in draft.facts.missing
        )
    )
