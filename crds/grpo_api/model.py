"""The base of every model that is written to or read from Kubernetes: camelCase outside, strict, frozen."""

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from grpo_api.rules import broken_rules


class ApiModel(BaseModel):
    """Strict and closed: an unknown field or a wrong type is an error, never a silent default.

    Field names are snake_case in Python and camelCase in YAML and JSON. The docstring under a field is
    its description in `kubectl explain`. The rows of `grpo_api.rules` about a model are checked last.
    """

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="after")
    def _hold_the_rules(self) -> Self:
        broken = [(rule.field, rule.sentence_for(self)) for rule in broken_rules(self)]
        if broken:
            sentences = "; ".join(sentence for _, sentence in broken)
            raise PydanticCustomError("rule", "{sentences}", {"sentences": sentences, "broken": broken})
        return self

    @classmethod
    def from_object(cls, data: Any) -> Self:
        """Parse plain JSON-like data, such as a Kubernetes object; raises pydantic's ValidationError.

        Goes through JSON so that strict mode means JSON's types: a list becomes a tuple and a string an
        enum, but a string never becomes a number. A field that is null counts as absent, as it does for the
        API server.
        """
        return cls.model_validate_json(json.dumps(_without_nulls(data)))

    def to_object(self) -> dict[str, Any]:
        """Plain JSON-like data with camelCase keys; unset optional fields are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _without_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    if isinstance(data, list):
        return [_without_nulls(item) for item in data]
    return data
