"""Rules about a value in two languages: CEL for the API server, Python for everything else. Both refuse with
the same sentence.

A bound on one field is declared with the field. A rule about several fields is a predicate that the decorator
`rule` turns into a Rule; the model lists it in `rules`, and the CRD gets its CEL. What a text has to look
like is a TextRule in the `Follows` of the field: the API server would answer a `pattern` of the schema with
the regular expression itself. `KeyedBy` is for lists in which one field distinguishes the items.
"""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_snake
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

VALIDATIONS = "x-kubernetes-validations"
"""The key of CEL rules in a CRD's schema."""
_SELF = "{self}"
"""Stands for the text in the sentence of a TextRule."""


@dataclass(frozen=True)
class Rule:
    """`cel` and `predicate` say the same about a value of a model. The predicate's parameters are named after
    the fields it looks at.

    `sentence` names the field and the fix; `{path}` in it stands for the integer at that path below the
    value. `field` is the path, below the value, that the refusal is about; empty for the value itself.
    """

    cel: str
    predicate: Callable[..., bool]
    sentence: str
    field: str = ""
    parameters: tuple[str, ...] = ()
    """The predicate's parameters where its signature does not name them."""

    def holds(self, value: BaseModel) -> bool:
        """Whether a value satisfies the rule."""
        return self.predicate(**{name: getattr(value, name) for name in self._fields})

    @cached_property
    def _fields(self) -> tuple[str, ...]:
        return self.parameters or tuple(inspect.signature(self.predicate).parameters)

    @property
    def message(self) -> str:
        """The sentence without numbers."""
        return re.sub(r" \(\{[^}]+\}\)", "", self.sentence)

    @property
    def message_expression(self) -> str | None:
        """CEL that evaluates to the sentence with its numbers; None when it has none."""
        parts = re.split(r"\{([^}]+)\}", self.sentence)
        if len(parts) == 1:
            return None
        text = "%d".join(parts[::2])
        return f"{json.dumps(text)}.format([{', '.join(f'self.{path}' for path in parts[1::2])}])"

    def sentence_for(self, value: BaseModel) -> str:
        """The sentence with the numbers of `value`."""
        return re.sub(
            r"\{([^}]+)\}",
            lambda match: str(attrgetter(".".join(map(to_snake, match[1].split("."))))(value)),
            self.sentence,
        )

    def validation(self) -> dict[str, str]:
        """The rule as an item of `x-kubernetes-validations`."""
        validation = {"rule": self.cel, "message": self.message}
        if self.message_expression is not None:
            validation["messageExpression"] = self.message_expression
        if self.field:
            validation["fieldPath"] = self.field
        return validation


def rule(*, cel: str, sentence: str, field: str = "") -> Callable[[Callable[..., bool]], Rule]:
    """Turn a predicate over fields of a model into a Rule; see Rule for the parameters."""

    def decorate(predicate: Callable[..., bool]) -> Rule:
        return Rule(cel=cel, predicate=predicate, sentence=sentence, field=field)

    return decorate


def refused(field: str, sentence: str) -> Rule:
    """Refuses a field that is declared only to be refused: the API server drops what the schema does not have
    and says nothing."""
    return Rule(
        cel=f"!has(self.{field})",
        predicate=lambda **given: all(value is None for value in given.values()),
        parameters=(to_snake(field),),
        sentence=sentence,
        field=f".{field}",
    )


@dataclass(frozen=True)
class TextRule:
    """A text has to match `pattern`, which RE2 and Python read alike, or must not if `is_refused`.

    `sentence` says what is wrong and the fix; `{self}` in it stands for the text, once, and for `example`
    where the text has several lines.
    """

    pattern: str
    sentence: str
    example: str = ""
    is_refused: bool = False

    def holds(self, text: str) -> bool:
        """Whether a text satisfies the rule."""
        return (self._compiled.search(text) is None) == self.is_refused

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        # a $ of RE2 is the end of the text, and one of Python also stands before a last line break
        return re.compile(self.pattern.replace("$", r"\Z"), re.ASCII)

    @property
    def message(self) -> str:
        """The sentence without a text."""
        return self.sentence.replace(_SELF, self.example)

    def sentence_for(self, text: str) -> str:
        """The sentence about `text`. The API server takes no message of several lines."""
        said = self.sentence.replace(_SELF, text).strip()
        return self.message if {"\n", "\r"} & set(said) else said

    def validation(self) -> dict[str, str]:
        """The rule as an item of `x-kubernetes-validations`."""
        matches = f"self.matches(r'''{self.pattern}''')"
        validation = {"rule": f"!{matches}" if self.is_refused else matches, "message": self.message}
        if _SELF in self.sentence:
            before, after = map(json.dumps, self.sentence.split(_SELF))
            validation["messageExpression"] = f"{before} + self + {after}"
        return validation


class Follows:
    """Annotates a text with its rules, which are checked after its length."""

    def __init__(self, *rules: TextRule) -> None:
        self.rules = rules

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(core) | {VALIDATIONS: [rule.validation() for rule in self.rules]}

    def _check(self, text: str) -> str:
        broken = [("", rule.sentence_for(text)) for rule in self.rules if not rule.holds(text)]
        if broken:
            sentences = "; ".join(sentence for _, sentence in broken)
            raise PydanticCustomError(
                "rule", "{sentences}", {"sentences": sentences, "broken": broken, "type": "string"}
            )
        return text


@dataclass(frozen=True)
class KeyedBy:
    """Marks a list in an `Annotated`: no two items may have the same value of the field `key`, which is its
    name in YAML. For the API server it is `x-kubernetes-list-type: map`, with which server-side apply merges
    the list item by item."""

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
