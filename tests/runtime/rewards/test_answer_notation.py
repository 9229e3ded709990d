"""Many notations of an answer become one text."""

import pytest

from grpo_runtime.rewards.answer_notation import cleaned


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$5$.", "5"),
        (r"\left( 1, \dfrac{1}{2} \right]", r"(1,\frac{1}{2}]"),
        (r"\frac12", r"\frac{1}{2}"),
        ("1,234", "1234"),
        ("1, 234", "1,234"),
        (r"\$1,234.50", "$1234.50"),
        ("$1,234$", "1234"),
        (r"\{1,234\}", r"\{1,234\}"),
        ("10{,}000", "10000"),
        ("3 1/2", r"3\frac{1}{2}"),
        ("1e5", r"1\cdot10^{5}"),
        ("1 and 2", "1 and 2"),
        (r"1 \text{ or } 2", "1 or 2"),
        (r"\mathrm{cm}", r"\text{cm}"),
        (r"2\mathbf{v}", "2 v"),
        ("0.333...", "0.333..."),
        (r"0.1\overline{6}", r"\frac{15}{90}"),
        (r"1 \\ 12", r"1\\12"),
        (r"42\,", "42"),
        ("3 million dollars", r"3\cdot10^{6} dollars"),
        (r"\text{12 minutes}", r"12\text{minutes}"),
        ("√3", r"\sqrt{3}"),
        ("10²³", "10^{23}"),
        (r"45\degree", r"45\text{degree}"),
        (r"\mathbb R", r"\mathbb{R}"),
        (r"\sqrt2x", r"\sqrt{2}x"),
        (r"3 \colon 4", "3:4"),
        (r"\lbrace 1, 2 \rbrace", r"\{1,2\}"),
        (r"[3, +\infty)", r"[3,\infty)"),
        (r"\text{The answer is 12}", "12"),
        (r"\text{n is odd}", r"\text{n is odd}"),
        ("x <= 3", r"x\le3"),
        ("f'(x)", "f_{p1}(x)"),
        (r"50\text{ percent}", "50%"),
    ],
)
def test_one_notation_stands_for_all_that_mean_the_same(text: str, expected: str) -> None:
    assert cleaned(text) == expected


@pytest.mark.parametrize("text", ["2^{1}0", r"\sqrt{1}2", r"0.\overline{1}2", "21_{3}4", "5'", "1.5:2"])
def test_braces_points_and_quotes_stay_where_they_mean_something(text: str) -> None:
    assert cleaned(text) == text
