"""`weightSync`: how engines get new weights."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel


class WeightSyncSpec(ApiModel):
    """How engines get new weights."""

    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Deadline of each phase of one engine's sync; an engine that misses it leaves the fleet."""
    verify: bool = True
    """After each sync, compare every engine's logprobs of a probe prompt with the trainer's before it may
    serve."""
