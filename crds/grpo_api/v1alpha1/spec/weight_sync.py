"""`weightSync`: how engines get new weights."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel


class WeightSyncSpec(ApiModel):
    """How engines get new weights."""

    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Longest that a phase of an engine's sync may take; an engine that misses it leaves the fleet. Phases
    that are quick, or whose usual duration is known, are given up sooner."""
    verify: bool = True
    """After each sync, compare every engine's logprobs of a probe prompt with the trainer's before it may
    serve."""
