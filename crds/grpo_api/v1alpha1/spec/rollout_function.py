"""`sampling.rolloutFunction`: how a completion of several turns is made."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.user_code import CodeRef, FunctionPath


@rule(
    cel="has(self.function) != has(self.configMap)",
    sentence="sampling.rolloutFunction needs exactly one of function and configMap: set one and remove the "
    "other",
)
def has_one_place(function: str | None, config_map: CodeRef | None) -> bool:
    """The function is in the image or in a ConfigMap."""
    return (function is None) != (config_map is None)


class RolloutFunctionSpec(ApiModel):
    """A coroutine of yours that makes each completion: it samples turns from the job's engines, and adds what
    tools say between them. Set one of `function` and `configMap`."""

    rules = (has_one_place,)

    function: FunctionPath | None = None
    """`module:attribute` in the image."""
    config_map: CodeRef | None = None
    """A function whose code is in a ConfigMap."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600), NOT_STORED] = 60
    """How long your code may take between two turns, all completions of a step together; 60 if it is left
    out. Where it takes longer, raises or dies, what is not finished is made again, and after the third time
    in a row the job fails."""
    max_turns: Annotated[int, Field(ge=1, le=1024)] | None = None
    """A completion that asks for one more turn is cut, as at sampling.maxTokens. Without it only that bounds
    it."""
