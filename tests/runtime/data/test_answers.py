"""The answers that built-in rewards compare with, and those that are refused when the data are read."""

import logging
import math
from decimal import Decimal
from typing import Any

import pytest

from grpo_runtime.data.answers import accepted_answers, check_answers, require_answer_type
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.errors import UserError


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        ("42", ("42",)),
        (42, ("42",)),
        (42.0, ("42",)),
        (-0.5, ("-0.5",)),
        (["bb", "b b"], ("bb", "b b")),
        ([1, 2.0, "three"], ("1", "2", "three")),
        (None, ()),
        ("", ("",)),
    ],
)
def test_an_answer_is_text_or_a_number_or_a_list_of_accepted_ones(
    value: Any, accepted: tuple[str, ...]
) -> None:
    assert accepted_answers(value) == accepted


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (True, r'is the boolean true: write the text that is right, such as "yes"'),
        ({"text": "a", "start": 1}, r"is an object \(fields: start, text\): make a column of the field"),
        ([], "is an empty list"),
        ([["a"]], "has a list in a list"),
        (["a", None], "has null in a list"),
        ([False], "is the boolean false"),
        (math.nan, "is nan"),
        (math.inf, "is inf"),
    ],
)
def test_an_answer_that_nothing_can_be_compared_with_is_refused_with_column_and_row(
    value: Any, sentence: str
) -> None:
    prompts = rows("fine", value)
    with pytest.raises(UserError, match=rf"^dataset\.answer: column gold of row 2 {sentence}"):
        check_answers(prompts, column="gold")


def test_a_decimal_that_is_no_number_is_no_answer() -> None:
    with pytest.raises(
        UserError, match=r"^dataset\.answer: column gold of row 3 is a Decimal \(NaN\): write"
    ):
        require_answer_type(Decimal("NaN"), column="gold", row=3)
    require_answer_type(Decimal("1.50"), column="gold", row=3)


def rows(*answers: Any) -> list[Prompt]:
    return [
        Prompt(index=index, content="a", columns={"gold": answer}) for index, answer in enumerate(answers)
    ]


def test_a_column_without_any_answer_is_refused() -> None:
    with pytest.raises(UserError, match=r"column gold is null in every row.* name the column"):
        check_answers(rows(None, None), column="gold")


def test_rows_without_an_answer_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_answers(rows("a", None, "b", None), column="gold")
        check_answers(rows("a"), column="gold")
    [record] = caplog.records
    assert "column gold is null in 2 of 4 rows, the first is row 2" in record.getMessage()
