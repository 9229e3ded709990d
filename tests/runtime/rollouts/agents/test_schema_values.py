"""Arguments are made that the schema of a tool takes."""

from typing import Any

import jsonschema
import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from grpo_runtime.rollouts.agents.schema_values import NoValueError, arguments_of, value_of


def arguments(**properties: Any) -> dict[str, Any]:
    definitions = {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "$defs": definitions,
        "additionalProperties": False,
    }
    found = arguments_of({"type": "function", "function": {"name": "f", "parameters": schema}})
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(found)
    return found


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "1"),
        ({"type": "string", "minLength": 3}, "111"),
        ({"type": "string", "format": "date"}, "2026-01-31"),
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "integer", "exclusiveMinimum": 5, "multipleOf": 4}, 8),
        ({"type": "integer", "maximum": -2}, -2),
        ({"type": "number", "exclusiveMaximum": 0.5, "multipleOf": 0.25}, 0.25),
        ({"type": "boolean"}, True),
        ({"type": ["null", "integer"]}, 1),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"type": "array", "items": {"$ref": "#/$defs/Point"}}, [{"x": 1}]),
        ({"anyOf": [{"type": "string", "pattern": "^x"}, {"type": "null"}]}, None),
        ({"allOf": [{"type": "integer"}, {"minimum": 9}]}, 9),
        ({"enum": ["slow", "fast"]}, "slow"),
        ({"const": 7}, 7),
        ({"type": "integer", "default": 3}, 3),
        (True, "1"),
    ],
    ids=str,
)
def test_a_value_of_each_schema(schema: Any, value: Any) -> None:
    assert arguments(it=schema) == {"it": value}


@pytest.mark.parametrize(
    ("draft", "schema", "value"),
    [
        (Draft202012Validator, {"prefixItems": [{"type": "integer"}, {"type": "boolean"}]}, [1, True]),
        (
            Draft202012Validator,
            {"prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}, "minItems": 3},
            [1, True, True],
        ),
        (Draft7Validator, {"items": [{"type": "integer"}, {"$ref": "#/definitions/Name"}]}, [1, "1"]),
        (
            Draft7Validator,
            {"items": [{"type": "integer"}], "additionalItems": {"type": "boolean"}, "minItems": 2},
            [1, True],
        ),
        (Draft7Validator, {"items": [{"type": "integer"}], "additionalItems": False}, [1]),
    ],
    ids=str,
)
def test_an_array_may_have_a_schema_for_each_of_its_first_items(
    draft: Any, schema: dict[str, Any], value: list[Any]
) -> None:
    whole = {"type": "array", **schema, "definitions": {"Name": {"type": "string"}}}
    found = value_of(whole, whole=whole)
    draft(whole).validate(found)
    assert found == value


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "string", "pattern": "^[a-z]{3}$"}, "the pattern"),
        ({"$ref": "#/$defs/None"}, "has no #/"),
        (False, "the type nothing"),
        ({"$ref": "#"}, "too deep"),
    ],
    ids=str,
)
def test_where_none_is_found_that_is_said(schema: Any, why: str) -> None:
    with pytest.raises(NoValueError, match=why):
        arguments(it=schema)


def test_only_what_a_tool_requires_is_given_and_all_where_it_does_not_say() -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    for required, wanted in (({"required": ["a"]}, {"a": 1}), ({}, {"a": 1, "b": 1})):
        function = {"name": "f", "parameters": {"type": "object", "properties": properties, **required}}
        assert arguments_of({"function": function}) == wanted
    assert arguments_of({"function": {"name": "f"}}) == {}
