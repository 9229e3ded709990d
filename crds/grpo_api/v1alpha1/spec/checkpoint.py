"""`checkpoint`: when to save and where."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.fields import ClaimName


class CheckpointSpec(ApiModel):
    """When to save and where."""

    every_steps: Annotated[int, Field(ge=1, le=10_000_000)] = 50
    """Save after this many steps, and at the end."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Newest checkpoints to keep."""
    claim_name: ClaimName | None = None
    """PersistentVolumeClaim for checkpoints and metrics. Without it they are lost with the pod, and a new
    attempt starts from step 0."""
