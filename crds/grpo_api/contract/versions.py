"""Two versions that both sides use: that of the contract's schema, and that of a policy."""

import re
from dataclasses import dataclass
from typing import Self

SCHEMA_VERSION = 1
"""Incremented when RunConfig, Progress, environment names or ports change incompatibly."""


class SchemaSkewError(Exception):
    """The other side has another schema version; the message names both and the fix."""


def require_schema_version(found: int, *, what: str) -> None:
    """Raise SchemaSkewError for a document of another schema version.

    `what` is the document's name, such as RunConfig. A runtime then ends with exit code 40.
    """
    if found != SCHEMA_VERSION:
        raise SchemaSkewError(
            f"{what} has schemaVersion {found} but this side speaks {SCHEMA_VERSION}: "
            "use an operator and a runtime image of the same release"
        )


@dataclass(frozen=True, order=True)
class PolicyVersion:
    """The weights after `step` optimizer steps of attempt `attempt`.

    Versions are ordered: every step of a later attempt is newer than every step of an earlier one, so a
    process that is left over from an old attempt is recognised. As text it is "attempt.step", which vLLM
    reports for every token.
    """

    attempt: int
    step: int

    def __str__(self) -> str:
        return f"{self.attempt}.{self.step}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes; raises ValueError that names the text."""
        match = re.fullmatch(r"(\d+)\.(\d+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not a policy version: expected ATTEMPT.STEP, such as 1.17")
        return cls(attempt=int(match[1]), step=int(match[2]))
