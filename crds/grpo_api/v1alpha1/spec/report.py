"""`report`: what people read of a run, beside its metrics."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel

SAMPLES_EVERY_STEPS = 10
"""Of a job that does not say."""


class ReportSpec(ApiModel):
    """What people read of a run, beside its metrics."""

    samples_every_steps: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Keep the completions of every so many steps, and of the last one, with their rewards as tables in
    `completions/` of the output directory; 0 keeps none. Without it that is every tenth step."""
