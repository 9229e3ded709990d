"""How an answer is taken apart, before anything is computed."""

import pytest

from grpo_runtime.rewards.answer_notation import cleaned
from grpo_runtime.rewards.answer_parts import (
    Listed,
    Measure,
    enclosing_brackets,
    is_notation,
    is_words,
    listed,
    matrix_rows,
    measure,
    named,
    nesting,
    ordered,
    values_of_plus_minus,
    words_without_case,
)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("12 apples", "12", "apple"),
        (r"5 \text{ cm}^2", "5", "cm2"),
        (r"30^\circ", "30", "degree"),
        (r"12.5\%", "12.5", "%"),
        (r"\$5", "5", "dollar"),
        (r"-\$5", "-5", "dollar"),
        ("5 dollars", "5", "dollar"),
        (r"\frac{1}{2} cup", r"\frac{1}{2}", "cup"),
        ("2c", "2c", ""),
        ("12 dozen", "12 dozen", ""),
        ("2 hours 30 minutes", "2 hours 30 minutes", ""),
        ("5 or more", "5 or more", ""),
        (r"5\%\%", "5%%", ""),
        (r"\$100\%", "$100%", ""),
    ],
)
def test_a_unit_is_told_from_a_variable_and_from_other_words(text: str, value: str, unit: str) -> None:
    assert measure(cleaned(text)) == Measure(value, unit)


@pytest.mark.parametrize(
    "text", ["east", r"\text{east}", "no", "NE", "no one", "3 to 1", "1st", r"n \text{ is odd}"]
)
def test_words_are_no_products_of_their_letters(text: str) -> None:
    assert is_words(cleaned(text))


@pytest.mark.parametrize("text", ["10:30", "2:3", "1010_2", "4/7/2020", "2 3", r"\angle ABC", "5'10\""])
def test_notations_that_compute_nothing_are_told(text: str) -> None:
    assert is_notation(cleaned(text))


@pytest.mark.parametrize("text", ["2x", "6ab", "3R^2", r"\sin x", r"\frac{1}{2}", "2abc", "log(x)", "x_1"])
def test_formulas_are_neither_words_nor_such_a_notation(text: str) -> None:
    assert not is_words(cleaned(text))
    assert not is_notation(cleaned(text))


def test_words_have_no_case_and_names_of_points_and_numbers_have_one() -> None:
    assert words_without_case(r"\text{East} of AB") == "east of AB"
    assert words_without_case("10:30 p.m.") == words_without_case("10:30 PM")


def test_commas_in_brackets_separate_no_parts() -> None:
    assert listed("(1,2),f(x,y);3") == Listed(["(1,2)", "f(x,y)", "3"], ",")


def test_a_list_has_the_connective_that_is_written() -> None:
    assert listed("1, 2 or 3") == Listed(["1", "2", "3"], "or")
    assert listed("1 and 2 or 3") == Listed(["1", "2", "3"], "and or")
    assert listed("oranges and candor") == Listed(["oranges", "candor"], "and")


def test_a_bracket_encloses_only_what_it_is_closed_after() -> None:
    assert enclosing_brackets("(1,2]") == ("(", "1,2", "]")
    assert enclosing_brackets("(x+1)(x+2)") == ("", "(x+1)(x+2)", "")
    assert enclosing_brackets(r"\{1,2\}") == (r"\{", "1,2", r"\}")


def test_brackets_are_counted_from_the_outside() -> None:
    assert [nesting(text) for text in ("5", "(5)(6)", r"\sqrt{(5)}")] == [0, 1, 2]


def test_the_rows_of_a_matrix_are_apart() -> None:
    assert matrix_rows(r"\begin{pmatrix}1&2\\3&4\\\end{pmatrix}") == [["1", "2"], ["3", "4"]]
    assert matrix_rows(r"\begin{vmatrix}1&2\\3&4\end{vmatrix}") is None


def test_a_plus_minus_is_two_values_and_two_of_them_are_left() -> None:
    assert values_of_plus_minus(r"x=\pm 3") == ["x=3", "x=-3"]
    assert values_of_plus_minus(r"\pm 1\pm 2") == [r"\pm 1\pm 2"]


def test_an_inequality_is_read_from_its_smallest_side() -> None:
    assert ordered(r"3>x\ge1") == (["1", "x", "3"], [r"\le", "<"])
    assert ordered("x+1") == (["x+1"], [])


@pytest.mark.parametrize(
    "name", ["x", "f(x)", "(x,y)", "a_{n}", r"\theta", "AB", "|AB|", "P(3)", r"\text{Area}"]
)
def test_a_name_before_an_equals_sign_defines(name: str) -> None:
    assert named(f"{name}=5") == (name, "5")
    assert named(rf"{name}\in[1,2)") == (name, "[1,2)")


@pytest.mark.parametrize("side", ["2x", "x^2", "x+y", "5", "ab", "|x|", "n(n+1)", r"\sin x", r"\pi"])
def test_a_formula_before_an_equals_sign_defines_nothing(side: str) -> None:
    assert named(f"{side}=5") == ("", f"{side}=5")
