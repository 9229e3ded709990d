"""The structural OpenAPI v3 schema of a Kubernetes CRD, generated from a pydantic model."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from grpo_api.model import NOT_STORED_MARK
from grpo_api.rule import VALIDATIONS

Schema = dict[str, Any]

_COPIED = frozenset(
    {"type", "enum", "format", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems",
     "maxItems", "maxProperties", "x-kubernetes-int-or-string", "x-kubernetes-list-type",
     "x-kubernetes-list-map-keys", "x-kubernetes-preserve-unknown-fields"}
)  # fmt: skip
_DROPPED = frozenset({"title", "$defs", "default", VALIDATIONS, NOT_STORED_MARK})


class SchemaError(Exception):
    """A model has something that a structural schema cannot express; the message names it."""


def structural_schema(model: type[BaseModel], *, has_defaults: bool = True) -> Schema:
    """The schema of a model and of the models in its fields, with the rules of each.

    Without defaults the API server fills in nothing, which is right for a status. Raises SchemaError for what
    structural schemas lack.
    """
    document = model.model_json_schema(by_alias=True)
    return _Converter(document.get("$defs", {}), has_defaults=has_defaults).convert(
        document, where=model.__name__
    )


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
            schema |= self._default(source, where)
        if VALIDATIONS in source:
            schema[VALIDATIONS] = source[VALIDATIONS]
        return schema

    def _resolved(self, source: Schema, where: str) -> Schema:
        """`source` with its reference replaced by the target and without the alternative `null`. Keys beside
        a reference win over those of its target."""
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
                # structural schemas need no `false`: unknown fields are refused or pruned anyway
                converted = {key: self.convert(value, where=f"{where}.*")} if value else {}
            case _:
                raise SchemaError(f"{where} has {key!r}, which no structural schema can say")
        return converted

    def _default(self, source: Schema, where: str) -> Schema:
        """The default with all its own fields that are stored, because the API server checks the rules on the
        default alone."""
        if source["default"] is None or not self._has_defaults or NOT_STORED_MARK in source:
            return {}
        return {"default": self._stored(source["default"], source, where)}

    def _stored(self, value: Any, source: Schema, where: str) -> Any:
        if not isinstance(value, dict):
            return value
        fields = self._resolved(source, where).get("properties", {})
        return {
            name: self._stored(item, fields.get(name, {}), f"{where}.{name}")
            for name, item in value.items()
            if item is not None and NOT_STORED_MARK not in fields.get(name, {})
        }


def property_at(schema: Schema, path: str) -> Schema:
    """The schema of the field at a dotted path below an object."""
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema
