"""Arguments that the schema of a tool takes."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

_TEXTS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "one@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "hostname": "example.com",
}
"""By the format of a text."""
_DEEPEST = 20
_ONE = "1"


class NoValueError(Exception):
    """No value of the schema is found."""


def arguments_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call of a tool, as a request offers it: those that it requires, or all where it does not
    say. Raises NoValueError."""
    schema = tool.get("function", {}).get("parameters") or {}
    found = value_of({"type": "object", **schema}, whole=schema)
    if not isinstance(found, dict):
        raise NoValueError("its arguments are no object")
    return found


def value_of(schema: Schema | bool, *, whole: Schema, depth: int = 0) -> Any:
    """A value of a JSON schema, which is a part of `whole`. Raises NoValueError for what has none that is
    found by looking: `pattern`, and what else two parts of a schema say about each other."""
    if isinstance(schema, bool):
        schema = {} if schema else {"type": "nothing"}
    if depth > _DEEPEST:
        raise NoValueError("its schema is too deep")
    if "$ref" in schema:
        return value_of(_referred(schema["$ref"], whole), whole=whole, depth=depth + 1)
    given = [schema[name] for name in ("default", "const") if schema.get(name) is not None]
    given += [schema[name][0] for name in ("examples", "enum") if schema.get(name)]
    if given:
        return given[0]
    for name in ("anyOf", "oneOf"):
        if schema.get(name):
            return _first(schema[name], whole=whole, depth=depth)
    for part in schema.get("allOf", ()):
        schema = {**schema, **part}
    return _of_type(schema, whole=whole, depth=depth)


def _first(choices: Any, *, whole: Schema, depth: int) -> Any:
    for choice in choices:
        try:
            return value_of(choice, whole=whole, depth=depth + 1)
        except NoValueError as error:
            last = error
    raise last


def _of_type(schema: Schema, *, whole: Schema, depth: int) -> Any:
    kind = schema.get("type") or ("object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    if kind == "object":
        properties = schema.get("properties", {})
        # who writes one by hand may leave it out
        required = schema.get("required", properties)
        return {name: value_of(properties.get(name, True), whole=whole, depth=depth + 1) for name in required}
    if kind == "array":
        items = _items(schema, minimum=max(1, schema.get("minItems", 1)))
        return [value_of(item, whole=whole, depth=depth + 1) for item in items]
    if kind in ("integer", "number"):
        return _number(schema)
    if kind == "string":
        return _text(schema)
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    raise NoValueError(f"its schema has the type {kind}")


def _items(schema: Schema, *, minimum: int) -> list[Schema | bool]:
    """The schemas of the items of an array: those that it gives to the first ones, as `prefixItems`, or as a
    list of `items` in older drafts, and as many others as it needs."""
    of_all = schema.get("items", True)
    first, others = schema.get("prefixItems", []), of_all
    if isinstance(of_all, list):
        first, others = of_all, schema.get("additionalItems", True)
    return [*first, *[others] * (minimum - len(first))]


def _number(schema: Schema) -> float:
    step = schema.get("multipleOf", 1)
    lowest = schema.get("minimum", schema.get("exclusiveMinimum"))
    highest = schema.get("maximum", schema.get("exclusiveMaximum"))
    number = step
    if lowest is not None and number <= lowest:
        number = lowest if "minimum" in schema and lowest % step == 0 else (lowest // step + 1) * step
    elif highest is not None and number >= highest:
        number = highest if "maximum" in schema and highest % step == 0 else (-(-highest // step) - 1) * step
    return int(number) if schema.get("type") == "integer" else number


def _text(schema: Schema) -> str:
    if "pattern" in schema:
        raise NoValueError(f"its schema has the pattern {schema['pattern']}")
    text = _TEXTS.get(schema.get("format", ""), _ONE)
    return text.ljust(schema.get("minLength", 0), _ONE)[: schema.get("maxLength")]


def _referred(reference: str, whole: Schema) -> Schema:
    found: Any = whole
    for part in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(found, Mapping) or part not in found:
            raise NoValueError(f"its schema has no {reference}")
        found = found[part]
    referred: Schema = found
    return referred
