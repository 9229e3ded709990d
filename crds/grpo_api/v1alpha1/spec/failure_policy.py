"""`failurePolicy`: what happens when the trainer fails."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel


class FailurePolicySpec(ApiModel):
    """What happens when the trainer fails."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """Failed attempts that are retried without progress between them. Progress is a committed checkpoint
    beyond any before, and gives all of them back; a job without checkpoint.claimName keeps no checkpoints, so
    it never gets them back. Evictions and node losses are retried without being counted, except when a pod is
    evicted because it used more storage than its own limit."""
