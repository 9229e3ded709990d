"""How an answer is taken apart, before anything is computed."""

import pytest

from grpo_runtime.rewards.math_notation import (
    Measure,
    both_signs,
    brackets,
    cleaned,
    equation_sides,
    is_name,
    is_text,
    items,
    measure,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$5$.", "5"),
        (r"\left( 1, \dfrac{1}{2} \right]", r"(1,\frac{1}{2}]"),
        ("1,234", "1234"),
        ("1, 234", "1,234"),
        (r"10{,}000", "10000"),
        ("3 1/2", r"3\frac{1}{2}"),
        ("1e5", r"1\cdot 10^{5}"),
        ("1 and 2", "1,2"),
        (r"\mathrm{cm}", r"\text{cm}"),
        (r"2\mathbf{v}", "2 v"),
        ("0.333...", "0.333..."),
    ],
)
def test_one_notation_stands_for_all_that_mean_the_same(text: str, expected: str) -> None:
    assert cleaned(text) == expected


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("12 apples", "12", "apple"),
        (r"5 \text{ cm}^2", "5", "cm2"),
        (r"30^\circ", "30", "degree"),
        (r"12.5\%", "12.5", "%"),
        (r"\$5", "5", "dollar"),
        ("5 dollars", "5", "dollar"),
        ("2c", "2c", ""),
        ("12 dozen", "12 dozen", ""),
        ("2 hours 30 minutes", "2 hours 30 minutes", ""),
    ],
)
def test_a_unit_is_told_from_a_variable_and_from_other_words(text: str, value: str, unit: str) -> None:
    assert measure(cleaned(text)) == Measure(value, unit)


@pytest.mark.parametrize(
    "text", ["east", r"\text{east}", "10:30", "2:3", "1010_2", "4/7/2020", "2 3", "no one"]
)
def test_words_and_notations_that_compute_nothing_are_text(text: str) -> None:
    assert is_text(cleaned(text))


@pytest.mark.parametrize("text", ["2x", "ab", "3R^2", r"\sin x", r"\frac{1}{2}", "2abc", "log(x)", "x_1"])
def test_formulas_are_no_text(text: str) -> None:
    assert not is_text(cleaned(text))


def test_commas_in_brackets_separate_no_items() -> None:
    assert items("(1,2),f(x,y);3") == ["(1,2)", "f(x,y)", "3"]


def test_a_bracket_encloses_only_what_it_is_closed_after() -> None:
    assert brackets("(1,2]") == ("(", "1,2", "]")
    assert brackets("(x+1)(x+2)") == ("", "(x+1)(x+2)", "")
    assert brackets(r"\{1,2\}") == (r"\{", "1,2", r"\}")


def test_a_plus_minus_is_two_values_and_two_of_them_are_left() -> None:
    assert both_signs(r"x=\pm 3") == ["x=3", "x=-3"]
    assert both_signs(r"\pm 1\pm 2") == [r"\pm 1\pm 2"]


def test_only_a_name_before_an_equals_sign_defines() -> None:
    assert equation_sides(r"x\in[1,2)") == ["x", "[1,2)"]
    assert all(is_name(name) for name in ("x", "f(x)", "(x,y)", "a_{n}", r"\theta"))
    assert not any(is_name(name) for name in ("2x", "x^2", "x+y", "5"))
