"""Rules about one text: what it has to look like, in CEL for the API server and in Python, both with the same
sentence. A `pattern` in the schema would be answered with the regular expression itself."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from grpo_api.rule import VALIDATIONS

_SELF = "{self}"


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
