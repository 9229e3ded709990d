"""Versions two sides must agree on: the schema of the contract, and the version of a policy."""

import re
from dataclasses import dataclass
from typing import Self

SCHEMA_VERSION = 1
"""Raised whenever RunConfig, Progress, environment names or ports change incompatibly."""


class SchemaSkewError(Exception):
    """The other side speaks another contract; the message names both versions and the fix."""


def require_schema_version(found: int, *, what: str) -> None:
    """Refuse a document of another contract version.

    `what` names the document ("RunConfig"). Raises SchemaSkewError; a runtime then ends with exit code 40.
    """
    if found != SCHEMA_VERSION:
        raise SchemaSkewError(
            f"{what} has schemaVersion {found} but this side speaks {SCHEMA_VERSION}: "
            "use an operator and a runtime image of the same release"
        )


@dataclass(frozen=True, order=True)
class PolicyVersion:
    """Which weights: those after `step` optimizer steps, seen by attempt `attempt`.

    Ordered: a later attempt is newer than every step of an earlier one, so a zombie of an old attempt can
    be told from the present. Written as "attempt.step", which is what vLLM reports per token.
    """

    attempt: int
    step: int

    def __str__(self) -> str:
        return f"{self.attempt}.{self.step}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`; raises ValueError naming the text."""
        match = re.fullmatch(r"(\d+)\.(\d+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not a policy version: expected ATTEMPT.STEP, such as 1.17")
        return cls(attempt=int(match[1]), step=int(match[2]))
