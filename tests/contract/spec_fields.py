"""The fields of a spec, read from the CRD as it is installed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CRD = Path(__file__).parents[2] / "crds" / "grpojobs.yaml"


def spec_schema(path: Path) -> dict[str, Any]:
    """The spec in a CRD as it is installed."""
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below a schema, also in the items of lists and the values of maps."""
    for name, field in schema.get("properties", {}).items():
        at = f"{path}.{name}".removeprefix(".")
        yield at, field
        yield from fields(field, at)
    for key, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from fields(schema[key], f"{path}{suffix}")
