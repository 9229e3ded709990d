"""A rule about several fields of a model in two languages: CEL for the API server, Python for everything
else.

A bound on one field is declared with the field. A rule about more than one value is a predicate that the
decorator `rule` turns into a Rule; the model lists it in `rules`. The CEL expression goes into the CRD, the
predicate into the model's validator, and both refuse with the same sentence.
"""

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from pydantic.alias_generators import to_snake

if TYPE_CHECKING:
    from pydantic import BaseModel

VALIDATIONS = "x-kubernetes-validations"
"""The key of CEL rules in a CRD's schema."""


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

    def holds(self, value: "BaseModel") -> bool:
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

    def sentence_for(self, value: "BaseModel") -> str:
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
    """Turn a predicate over fields of a model into a Rule, whose docstring describes the parameters."""

    def decorate(predicate: Callable[..., bool]) -> Rule:
        return Rule(cel=cel, predicate=predicate, sentence=sentence, field=field)

    return decorate


def refused(field: str, sentence: str) -> Rule:
    """The rule that a field, which is declared only for this sentence, is left out: the API server drops what
    the schema does not have and says nothing."""
    return Rule(
        cel=f"!has(self.{field})",
        predicate=lambda **given: all(value is None for value in given.values()),
        parameters=(to_snake(field),),
        sentence=sentence,
        field=f".{field}",
    )
