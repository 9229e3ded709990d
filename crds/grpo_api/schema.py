"""The structural OpenAPI v3 schema of a Kubernetes CRD, made from a pydantic model."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from grpo_api.rule import Rule
from grpo_api.rules import rules_of

Schema = dict[str, Any]

_COPIED = frozenset(
    {"type", "enum", "format", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems",
     "maxItems", "maxProperties", "x-kubernetes-int-or-string", "x-kubernetes-list-type",
     "x-kubernetes-list-map-keys"}
)  # fmt: skip
_DROPPED = frozenset({"title", "$defs", "default"})


class SchemaError(Exception):
    """A model uses something that a structural schema cannot say; the message names it."""


def structural_schema(model: type[BaseModel], *, has_defaults: bool = True) -> Schema:
    """The schema of a model and everything below it, with the rules of every model on the way.

    Without defaults nothing is filled in: right for a status, which holds what was written and no more.
    Raises SchemaError for a construct that structural schemas lack.
    """
    document = model.model_json_schema(by_alias=True)
    return _Converter(document.get("$defs", {}), has_defaults=has_defaults).convert(
        document, where=model.__name__
    )


def validations(rules: list[Rule]) -> list[dict[str, str]]:
    """Rows of the rule table as `x-kubernetes-validations`."""
    return [_validation(rule) for rule in rules]


def _validation(rule: Rule) -> dict[str, str]:
    validation = {"rule": rule.cel, "message": rule.message}
    if rule.message_expression is not None:
        validation["messageExpression"] = rule.message_expression
    if rule.field:
        validation["fieldPath"] = rule.field
    return validation


class _Converter:
    def __init__(self, definitions: Mapping[str, Schema], *, has_defaults: bool) -> None:
        self._definitions = definitions
        self._has_defaults = has_defaults

    def convert(self, source: Schema, *, where: str) -> Schema:
        source = self._resolved(source, where)
        schema: Schema = {}
        for key, value in source.items():
            if key in _COPIED:
                schema[key] = value
            elif key not in _DROPPED:
                schema |= self._converted(key, value, where)
        if "default" in source:
            schema |= self._default(source["default"])
        if source.get("type") == "object" and (rules := rules_of(source.get("title", ""))):
            schema["x-kubernetes-validations"] = validations(rules)
        return schema

    def _resolved(self, source: Schema, where: str) -> Schema:
        """References and `null` alternatives taken out; what stands beside a reference wins over it."""
        if "anyOf" in source:
            options = [option for option in source["anyOf"] if option.get("type") != "null"]
            if len(options) != 1:
                raise SchemaError(f"{where} is a union: structural schemas have none, use one type")
            source = options[0] | {key: value for key, value in source.items() if key != "anyOf"}
        if "$ref" in source:
            target = self._definitions[source["$ref"].removeprefix("#/$defs/")]
            beside = {key: value for key, value in source.items() if key not in ("$ref", "title")}
            source = target | beside
        return source

    def _converted(self, key: str, value: Any, where: str) -> Schema:
        converted: Schema
        match key:
            case "description":
                converted = {key: " ".join(value.split())}
            case "required":
                converted = {key: sorted(value)}
            case "exclusiveMinimum":
                converted = {"minimum": value, key: True}
            case "exclusiveMaximum":
                converted = {"maximum": value, key: True}
            case "items":
                converted = {key: self.convert(value, where=f"{where}[]")}
            case "properties":
                fields = {name: self.convert(field, where=f"{where}.{name}") for name, field in value.items()}
                converted = {key: fields}
            case "additionalProperties":
                # `false` is what every structural schema means: unknown fields are refused or pruned
                converted = {key: self.convert(value, where=f"{where}.*")} if value else {}
            case _:
                raise SchemaError(f"{where} has {key!r}, which no structural schema can say")
        return converted

    def _default(self, default: Any) -> Schema:
        """Objects with all their fields: the API server checks a default against the rules as it stands."""
        if default is None or not self._has_defaults:
            return {}
        return {"default": _without_nulls(default)}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def property_at(schema: Schema, path: str) -> Schema:
    """The schema of the field at a dotted path below an object."""
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema
