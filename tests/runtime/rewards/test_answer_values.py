"""Values that are computed: which are equal, which are only near, and which are not computed at all."""

import pytest

from grpo_runtime.rewards.answer_values import are_equal_values, is_rounded_to, is_too_large


@pytest.mark.parametrize(
    ("gold", "found"),
    [
        ("0.5", r"\frac{1}{2}"),
        (r"\log_{2}8", "3"),
        ("(x+1)^{2}", "x^{2}+2x+1"),
        (r"\frac{1}{3}", "0.3333333"),
        (r"\sqrt{2}", "1.4142135624"),
        ("2x+4=0", "x+2=0"),
        ("(1+i)^{2}", "2i"),
    ],
)
def test_what_has_the_same_value_is_equal(gold: str, found: str) -> None:
    assert are_equal_values(gold, found)


@pytest.mark.parametrize(
    ("gold", "found"),
    [
        ("0.1", "0.10000001"),
        ("5", "5.0000001"),
        (r"\frac{1}{2}", "0.5000001"),
        (r"\frac{1}{3}", "0.3333"),
        ("2^{2019}+1", "2^{2019}"),
        ("10^{-20}", "10^{-21}"),
        ("x^{2}+1=0", "x^{2}+4=0"),
        ("x+y=1", "1"),
        ("1", "x+y=1"),
        ("|x|", "x"),
        (r"\sqrt{x^{2}}", "x"),
    ],
)
def test_what_is_only_near_or_a_part_is_not(gold: str, found: str) -> None:
    assert not are_equal_values(gold, found)


def test_a_rounded_decimal_is_right_to_its_last_digit() -> None:
    assert is_rounded_to(r"\sqrt{2}", "1.41")
    assert is_rounded_to("5", "5.0")
    assert not is_rounded_to(r"\sqrt{2}", "1.42")
    assert not is_rounded_to("5", "4.9")
    assert not is_rounded_to("5", "x")


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9}}",
        r"10^{10^{10}}",
        "2^{99999999}",
        "(2^{9999})^{9999}",
        f"{'1' * 900}^{{99999}}",
        "99999!",
        "((9!)!)!",
    ],
)
def test_towers_of_powers_and_factorials_are_too_large(text: str) -> None:
    assert is_too_large(text)


@pytest.mark.parametrize(
    "text", ["2^{2019}-1", "e^{x^{2}}", r"\frac{10!}{3!}", r"\sum_{k=1}^{n}k^{2}", "10^{23}"]
)
def test_what_answers_are_is_not_too_large(text: str) -> None:
    assert not is_too_large(text)
