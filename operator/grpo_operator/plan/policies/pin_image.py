"""Policy: every later pod runs what the first trainer pod ran, wherever the image's tag points then."""

from dataclasses import replace
from datetime import datetime

from grpo_operator.observe.image_build import pinned_image
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Stage


def pin_image(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Write down what the node calls the image of the first trainer pod that runs, and use that for new pods
    where every node can get it. The revision stays: the job's ConfigMap is the same."""
    frozen = draft.frozen
    if draft.stage is not Stage.ACTIVE or frozen is None:
        return draft
    if not draft.status.image_id:
        running = (draft.facts.gang[index].image_id for index in sorted(draft.facts.gang))
        draft = draft.with_status(image_id=next((found for found in running if found), ""))
    pinned = pinned_image(draft.status.image, draft.status.image_id)
    return draft if pinned is None else replace(draft, frozen=replace(frozen, image=pinned))
