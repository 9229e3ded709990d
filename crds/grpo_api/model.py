"""The base of every model that is written to Kubernetes or read from it."""

import json
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from grpo_api.rule import VALIDATIONS, Rule

NOT_STORED_MARK = "x-default-not-stored"
"""The mark of NOT_STORED in a JSON schema."""
NOT_STORED = Field(json_schema_extra={NOT_STORED_MARK: True})
"""Marks a field whose default the API server does not fill in: the reader fills it in. The field is then
in a stored object only where somebody has set it, and an older operator meets it nowhere else."""


class ApiModel(BaseModel):
    """A strict and frozen model, for which an unknown field or a wrong type is an error.

    Field names are snake_case in Python and camelCase in YAML and JSON. The docstring under a field is
    its description in `kubectl explain`. The model's own `rules` are checked last.
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

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules about several fields of a value."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = [(rule.field, rule.sentence_for(self)) for rule in self.rules if not rule.holds(self)]
        if broken:
            sentences = "; ".join(sentence for _, sentence in broken)
            raise PydanticCustomError(
                "rule", "{sentences}", {"sentences": sentences, "broken": broken, "type": "object"}
            )
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        if cls.rules:
            handler.resolve_ref_schema(schema)[VALIDATIONS] = [rule.validation() for rule in cls.rules]
        return schema

    @classmethod
    def from_object(cls, data: Any) -> Self:
        """Parse plain JSON-like data, such as a Kubernetes object; raises pydantic's ValidationError.

        The data goes through JSON, so that strict mode applies JSON's types: a list becomes a tuple and a
        string an enum, but a string never becomes a number. A field that is null counts as absent, as for the
        API server.
        """
        return cls.model_validate_json(json.dumps(_without_nulls(data)))

    def to_object(self) -> dict[str, Any]:
        """Plain JSON-like data with camelCase keys, as the API server has it: without fields that are None,
        and without those marked NOT_STORED that nobody has set."""
        data = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        _drop_not_stored(data, self, keeps_explicit_defaults=True)
        return data

    def without_own_defaults(self) -> dict[str, Any]:
        """The same as `to_object`, also without fields marked NOT_STORED that somebody has set to their
        default, which means the same."""
        data = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        _drop_not_stored(data, self, keeps_explicit_defaults=False)
        return data


def is_stored(field: FieldInfo) -> bool:
    """Whether the API server fills in the default of a field; False for one marked NOT_STORED."""
    extra = field.json_schema_extra
    return not (isinstance(extra, dict) and NOT_STORED_MARK in extra)


def _drop_not_stored(data: Any, value: Any, *, keeps_explicit_defaults: bool) -> None:
    """Take out of `data`, which was made from `value`, what is marked NOT_STORED and was not set, or not to
    something else than its default."""
    if isinstance(value, tuple | list):
        for part, item in zip(data, value, strict=True):
            _drop_not_stored(part, item, keeps_explicit_defaults=keeps_explicit_defaults)
    if not isinstance(value, ApiModel):
        return
    for name, field in type(value).model_fields.items():
        if field.alias not in data:
            continue
        is_set = name in value.model_fields_set
        if is_set and not keeps_explicit_defaults:
            is_set = getattr(value, name) != field.default
        if is_stored(field) or is_set:
            _drop_not_stored(
                data[field.alias], getattr(value, name), keeps_explicit_defaults=keeps_explicit_defaults
            )
        else:
            del data[field.alias]


def _without_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    if isinstance(data, list):
        return [_without_nulls(item) for item in data]
    return data
