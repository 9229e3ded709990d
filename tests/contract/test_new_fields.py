"""A field that is new in the spec has no default in the API server, so that its presence means that somebody
asked for it: an operator of an older release waits for such a job, and leads all others as before."""

from collections.abc import Iterator
from typing import Any

import pytest

from .spec_fields import CRD, fields, spec_schema
from .write_fixtures import FIXTURES

RELEASED_FIELDS = set((FIXTURES / "spec_fields.txt").read_text().split())
"""Only these may have defaults."""
RULE = "mark it NOT_STORED, or make it `X | None = None`"


def given_by_default(value: Any, path: str) -> Iterator[str]:
    """Every field that a default value sets."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield f"{path}.{name}"
            yield from given_by_default(part, f"{path}.{name}")
    if isinstance(value, list):
        for part in value:
            yield from given_by_default(part, f"{path}[]")


def filled_in(schema: dict[str, Any], released: set[str]) -> list[str]:
    """New fields that are in a job, or must be, although nobody asked for them."""
    found: set[str] = set()
    for path, field in [("", schema), *fields(schema)]:
        if path and path not in released and "default" in field:
            found.add(path)
        if not path or path in released:
            item, suffix = (field["items"], "[]") if "items" in field else (field, "")
            found |= {f"{path}{suffix}.{name}".removeprefix(".") for name in item.get("required", ())}
        found |= set(given_by_default(field.get("default"), path))
    maps = {path for path, field in fields(schema) if "additionalProperties" in field}
    return sorted(path for path in found - released if not any(path.startswith(f"{part}.") for part in maps))


def test_a_field_that_is_newer_than_the_release_is_only_in_jobs_that_ask_for_it():
    assert filled_in(spec_schema(CRD), RELEASED_FIELDS) == [], RULE


def test_every_field_of_the_release_is_still_there():
    assert RELEASED_FIELDS - {path for path, _ in fields(spec_schema(CRD))} == set()


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (object_of(new={"type": "integer", "default": 1}), ["new"]),
        (object_of(new={"type": "integer"}), []),
        (object_of(old=object_of(new={"default": 1})), ["old.new"]),
        (object_of(old={"items": object_of(new={"default": 1})}), ["old[].new"]),
        (object_of(section=object_of(inner={"default": 1})), ["section.inner"]),
        (object_of(old=object_of(new={"type": "integer"}) | {"default": {"new": 1}}), ["old.new"]),
        (object_of(old={"items": object_of(), "default": [{"new": 1}]}), ["old[].new"]),
        (object_of(new={"type": "integer"}) | {"required": ["new"]}, ["new"]),
        (object_of(old={"items": object_of(new={}) | {"required": ["new"]}}), ["old[].new"]),
        (object_of(section=object_of(inner={}) | {"required": ["inner"]}), []),
    ],
)
def test_this_test_sees_a_default_wherever_it_is(schema: dict[str, Any], found: list[str]):
    assert filled_in(schema, {"old"}) == found
