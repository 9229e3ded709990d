"""Quantities mean what Kubernetes means by them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_api.model import ApiModel
from grpo_api.quantity import Quantity, is_device_count, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64Mi", 64 * 2**20),
        ("1500m", Decimal("1.5")),
        (2, 2),
        ("2.", 2),
        (".5", Decimal("0.5")),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1E", 10**18),
        ("1e3", 1000),
        ("12E-1", Decimal("1.2")),
        ("3u", Decimal("0.000003")),
        ("0", 0),
    ],
)
def test_a_quantity_is_a_number(text: str | int, value: Decimal | int):
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "8GB", "-1", "1 Gi", "Mi", "1e", "1e100", "64Mi\n", "٣"])
def test_text_that_is_no_quantity_is_refused_with_an_example(text: str):
    with pytest.raises(ValueError, match="is not a quantity: write a number with an optional suffix"):
        parse_quantity(text)


@given(st.integers(min_value=0, max_value=2**63 - 1), st.sampled_from(["", "Ki", "k"]))
def test_units_scale(number: int, unit: str):
    assert parse_quantity(f"{number}{unit}") == number * {"": 1, "Ki": 1024, "k": 1000}[unit]


@pytest.mark.parametrize(
    ("text", "answer"),
    [("1", True), (3, True), (0, True), ("1k", False), ("1000m", False), ("0.5", False), (10_000, False)],
)
def test_a_device_count_is_a_whole_number_without_a_unit(text: str | int, answer: bool):
    assert is_device_count(text) is answer


class Asked(ApiModel):
    amount: Quantity


def test_a_number_may_be_0_and_none_may_be_negative():
    assert Asked(amount=0).amount == 0
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Asked(amount=-1)
