"""The answer of a row, as built-in rewards compare with it."""

import datetime
import decimal
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_runtime.errors import UserError

if TYPE_CHECKING:  # it imports transformers, which no worker that compares with an answer needs
    from grpo_runtime.data.prompt import Prompt

_log = logging.getLogger(__name__)


def accepted_answers(value: Any) -> tuple[str, ...]:
    """The texts of which any is the right answer; none for a row without one (None).

    An answer is text or a number, or a list of them, which accepts each. A whole float is written as the
    integer: Parquet and pandas make 3.0 of 3 where a column has gaps. Raises ValueError, with the end of a
    sentence about the value, for anything else.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        return (_text_of(value),)
    if not value:
        raise ValueError("is an empty list: name at least one accepted answer, or null for none")
    return tuple(_text_of(item) for item in value)


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        raise ValueError(f'is the boolean {str(value).lower()}: write the text that is right, such as "yes"')
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"is {value}: write a number, or null where there is no answer")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, dict):
        fields = ", ".join(sorted(map(str, value))) or "none"
        raise ValueError(f"is an object (fields: {fields}): make a column of the field that is the answer")
    if value is None:
        raise ValueError("has null in a list of accepted answers: remove it")
    raise ValueError("has a list in a list of accepted answers: make it one list")


def require_answer_type(value: Any, *, column: str, row: int) -> None:
    """Look at an answer as its file has it. Raises UserError for a time and for a decimal that is no number:
    columns have them as text, in a form that no prompt asks for."""
    for item in value if isinstance(value, list) else [value]:
        is_time = isinstance(item, datetime.date | datetime.time | datetime.timedelta)
        if is_time or (isinstance(item, decimal.Decimal) and not item.is_finite()):
            raise UserError(
                f"dataset.answer: column {column} of row {row} is a {type(item).__name__} ({item}): write "
                "the text that completions should have, or null where there is no answer"
            )


def check_answers(prompts: "Sequence[Prompt]", *, column: str) -> None:
    """Look at the answer of every row before anything is trained; a warning says how many have none.

    Raises UserError, naming the column and the row, for an answer that nothing can be compared with, and when
    no row has one.
    """
    missing = []
    for prompt in prompts:
        try:
            if not accepted_answers(prompt.columns[column]):
                missing.append(prompt.index + 1)
        except ValueError as error:
            raise UserError(
                f"dataset.answer: column {column} of row {prompt.index + 1} {error}; an answer is text, a "
                "number or a list of those"
            ) from error
    if len(missing) == len(prompts):
        raise UserError(
            f"dataset.answer: column {column} is null in every row, so that no reward that compares with it "
            "applies: name the column that has the answers"
        )
    if missing:
        _log.warning(
            "dataset.answer: column %s is null in %d of %d rows, the first is row %d: rewards that compare "
            "with it do not apply there",
            *(column, len(missing), len(prompts), missing[0]),
        )
