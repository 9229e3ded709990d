"""`report`: what people read of a run, beside its metrics."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel


class ReportSpec(ApiModel):
    """What people read of a run, beside its metrics."""

    samples_every_steps: Annotated[int, Field(ge=0, le=10_000_000), NOT_STORED] = 10
    """Keep the completions of every so many steps, and of the last one, with their rewards as tables in
    `completions/` of the output directory; 0 keeps none. Without it that is every tenth step."""
