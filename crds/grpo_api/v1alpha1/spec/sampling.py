"""`sampling`: how completions are sampled."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel


class SamplingSpec(ApiModel):
    """How completions are sampled."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Softmax temperature."""
    max_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 256
    """Longest completion, in tokens."""
