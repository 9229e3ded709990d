"""One rule about a GRPOJob in two languages: CEL for the API server, Python for everything else."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pydantic.alias_generators import to_snake

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True)
class Rule:
    """One row: `cel` and `holds` say the same about a value of the model named `model`.

    `sentence` names the field and the fix; `{path}` in it stands for the integer at that path below the
    value. `field` is the path, below the value, that the refusal is about; empty for the value itself.
    """

    model: str
    cel: str
    holds: Callable[[Any], bool]
    sentence: str
    field: str = ""

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


@dataclass(frozen=True)
class Transition:
    """What must hold between the old and the new spec; only the API server sees both. `field` as in Rule."""

    cel: str
    sentence: str
    field: str
