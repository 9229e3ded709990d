"""Lists in which one field identifies an item: the API server's `x-kubernetes-list-type: map`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_snake
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


@dataclass(frozen=True)
class KeyedBy:
    """Marks a list in an `Annotated`: no two items may have the same value of the field `key`, which is its
    name in YAML. Server-side apply then merges the list item by item.
    """

    key: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._refuse_duplicates, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            **handler(schema),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": [self.key],
        }

    def _refuse_duplicates(self, items: Sequence[BaseModel]) -> Sequence[BaseModel]:
        seen = set()
        for index, item in enumerate(items):
            value = getattr(item, to_snake(self.key))
            if value in seen:
                raise PydanticCustomError(
                    "duplicate",
                    "item {index} repeats {key}",
                    {"index": index, "key": json.dumps({self.key: value}, separators=(",", ":"))},
                )
            seen.add(value)
        return items
