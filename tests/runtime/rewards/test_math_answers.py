"""math_verify reads answer and completion in one way: it pays an answer for itself, and no near miss."""

import time
from pathlib import Path

import pytest

from grpo_runtime.rewards.math_answers import is_paid_for_itself, math_verify


def written_forms() -> list[list[str]]:
    """Answers as GSM8K, MATH and DeepScaleR write them, each with three near misses."""
    lines = (Path(__file__).parent / "answer_forms.txt").read_text().splitlines()
    return [line.replace(r"\n#", "\n#").split(" ;; ") for line in lines if not line.startswith("# ")]


def expression_of(answer: str) -> str:
    return answer.rpartition("####")[2].strip()


def completions_of(expression: str) -> list[str]:
    return [
        rf"At first I had 7. So it is \boxed{{{expression}}}.",
        f"<think>first 7</think><answer>{expression}</answer>",
        f"${expression}$",
    ]


def test_there_are_two_hundred_forms_with_three_near_misses_each() -> None:
    assert [len(form) for form in written_forms()] == [4] * 200


def test_every_form_is_paid_for_itself_and_stays_in_the_dataset() -> None:
    refused = [
        answer
        for answer, *_ in written_forms()
        if {math_verify(text, answer) for text in completions_of(expression_of(answer))} != {1.0}
        or not is_paid_for_itself(answer)
    ]
    assert refused == []


def test_no_near_miss_of_a_form_is_paid() -> None:
    paid = [
        (answer, miss)
        for answer, *misses in written_forms()
        for miss in misses
        if {math_verify(text, answer) for text in completions_of(miss)} != {0.0}
    ]
    assert paid == []


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("The answer is 6 - 5i.", "6 - 5i"),
        ("Final answer: east", r"\text{east}"),
        ("After 2 tries I have found it.\nThe answer is $x \\le 3$.", r"x \le 3"),
        ("I count 4, then 5.\n#### 5", "5"),
        (r"\boxed{1} or \boxed{2}", "1, 2"),
        (r"\boxed{1}\text{ and }\boxed{2}", "2, 1"),
        (r"\boxed{x = 5}", "5"),
        (r"\boxed{5}", "x = 5"),
        (r"\boxed{18 - 8 = 10}", "10"),
        (r"\boxed{(x, y) = (1, 2)}", "(1, 2)"),
        (r"\boxed{y = 2, x = 1}", "x = 1, y = 2"),
        (r"\boxed{x = \pm 2}", "2, -2"),
        (r"\boxed{2i}", "(1 + i)^2"),
        (r"\boxed{3 > x}", "x < 3"),
        (r"\boxed{1 < x < 2}", "(1, 2)"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{50}", r"50\%"),
        (r"\boxed{\frac{1}{2}}", r"50\%"),
        (r"\boxed{5}", r"\$5"),
        (r"\boxed{30}", r"30^\circ"),
        (r"\boxed{3 \text{ million}}", "3000000"),
        (r"\boxed{0.3333333}", r"\frac{1}{3}"),
        (r"\boxed{x + 2 = 0}", "2x + 4 = 0"),
        (r"\boxed{100000}", "1e5"),
        (r"\boxed{pi/2}", r"\frac{\pi}{2}"),
        (r"\boxed{\frac{10}{3}}", r"\frac{10}{3} \text{m}"),
        (r"\boxed{\text{10:30 p.m.}}", "10:30 PM"),
    ],
)
def test_another_way_to_write_the_same_is_paid(completion: str, answer: str) -> None:
    assert math_verify(completion, answer) == 1.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"\boxed{1}, \boxed{2}, \boxed{3}", "2"),
        ("<answer>1</answer><answer>2</answer>", "1"),
        ("<answer>1 or 2</answer>", "2"),
        (r"it was \boxed{5}. No, after long thought it is really something else entirely: \boxed{6}", "5"),
        (r"\boxed{5", "5"),
        (r"\boxed{}", "5"),
        (r"\boxed{x^2 = 5}", "5"),
        (r"\boxed{1, 1}", "1"),
        (r"\boxed{2, 1}", "x = 1, y = 2"),
        (r"\boxed{1 < x < 2}", r"\{1, 2\}"),
        (r"\boxed{1, 2}", "(1, 2)"),
        (r"\boxed{2 3}", "6"),
        (r"\boxed{1 1/2}", "11/2"),
        (r"\boxed{1 1/2}", "1/2"),
        (r"\boxed{0.0000001}", "0.0000002"),
        (r"\boxed{10^{-20}}", "10^{-21}"),
        (r"\boxed{3 \text{ million}}", "3"),
        (r"\boxed{seat}", "east"),
        (r"\boxed{\gcd(a, b)}", r"\gcd(a, c)"),
        (r"\boxed{9^{9^{9}}}", "5"),
        (rf"\boxed{{{'(' * 900}5{')' * 900}}}", "(" * 900 + "6" + ")" * 900),
        (r"\boxed{f'(x) = 3x^2}", "f(x) = 3x^2"),
        ("x" * 100_000, "5"),
    ],
)
def test_what_a_lenient_reading_would_take_for_the_answer_gets_nothing(completion: str, answer: str) -> None:
    assert math_verify(completion, answer) == 0.0


@pytest.mark.parametrize(
    "completion",
    [
        "**Answer**: 42",
        "**Final Answer**: $42$",
        "**Final Answer:** 42",
        "The answer is **42**.",
        "The final answer is: 42",
        "The answer to the question is $42$.",
        "## Final Answer\n\n42",
        "`42`",
        "<answer>**42**</answer>",
        "A: 42",
        "She answers 5.\nTotal: 42",
        "To answer, add 1 and 41.\nTotal = 42",
        "The answer is 42 because 6 times 7 is 42.",
        "The answer is $42.",
        "The answer is \\(42\\).",
        "She has 42 apples.",
        "<answer>She has 42 apples</answer>",
        "<answer>The answer is 42</answer>",
        "<answer>42 apples</answer>",
        "The total of 40 and 2 is 42.",
        "I take 6, and then 7.\nSo x = 42. I am sure of it.",
        "**42**",
        r"so \[ x = 42 \]",
    ],
)
def test_a_sentence_states_its_answer_at_its_end(completion: str) -> None:
    assert math_verify(completion, "42") == 1.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("The answer is no.", "no"),
        ("The answer is No", r"\text{no}"),
        ("The answer is $1,234.", "1234"),
        ("The answer is $1,234.50.", "1234.5"),
        ("<answer>$1,234</answer>", "1234"),
        ("The answer is 6 - 5i.", "6 - 5i"),
        ("The answer is 2:3.", "2:3"),
        ("The answer is 12 km/h.", "12 km/h"),
        (r"$x > 3 \text{ or } x < -1$", r"x < -1 \text{ or } x > 3"),
        (r"$\angle ABC = 42^\circ$", "42"),
        ("Answer: Alice and Bob", "Bob and Alice"),
    ],
)
def test_a_sentence_states_words_money_and_lists_as_a_whole(completion: str, answer: str) -> None:
    assert math_verify(completion, answer) == 1.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer>not 5</answer>", "5"),
        ("<answer>more than 5</answer>", "5"),
        ("<answer>5 or more</answer>", "5"),
        ("<answer>it is more than 5</answer>", "5"),
        ("<answer>The answer is not 5</answer>", "5"),
        ("<answer>3 hours 20 minutes</answer>", "20"),
        ("<answer>it takes from 3 to 5 hours</answer>", "5"),
        ("The answer is not 5.", "5"),
        ("The answer is 5 or more.", "5"),
        ("The answer is at least 5.", "5"),
        ("The answer is 5 or 6.", "5"),
        ("The total is less than 5", "5"),
        ("<answer>12 km/h</answer>", r"12\text{ m/s}"),
        ("<answer>5 dm</answer>", "5 cm"),
        ("<answer>400 nL</answer>", "400 mL"),
        ("<answer>3 wk</answer>", "3 days"),
        ("<answer>98.6^\\circ G</answer>", r"98.6^\circ F"),
        ("So x^2 = 5", "5"),
        ("It cannot be 5.", "5"),
        ("The answer is 5 squared.", "5"),
        ("I never got 5.", "5"),
        ("The total is over 5.", "5"),
        ("The answer is negative 5.", "5"),
        ("Answer: none of 5", "5"),
        ("So 5 is wrong.", "5"),
        ("The answer is 5? No.\nIt is 7.", "5"),
        ("ab = 5", "5"),
        ("$ab = 5$", "5"),
        ("Therefore x+y = 5", "5"),
        ("The ratio is 2:5", "5"),
        ("The total is 5.\nThat is more than 4.", "5"),
        ("The answer is 5.\nNo, wait. The answer is 6.", "5"),
    ],
)
def test_a_sentence_that_denies_or_bounds_its_number_states_nothing(completion: str, answer: str) -> None:
    assert math_verify(completion, answer) == 0.0


@pytest.mark.parametrize(
    "completion",
    [
        r"\boxed{9^{9^{9^9}}}",
        r"\boxed{10^{10^{10}}}",
        r"\boxed{((9^{99999})^{99999})^{99999}}",
        r"\boxed{\prod_{k=1}^{100000000} k}",
        r"\boxed{1000000!}",
        r"\boxed{((9!)!)!}",
        rf"\boxed{{{'(' * 500}5{')' * 500}}}",
        rf"\boxed{{{'{' * 500}5{'}' * 500}}}",
    ],
)
def test_what_takes_too_long_to_compute_is_refused_at_once(completion: str) -> None:
    start = time.process_time()
    assert math_verify(completion, "6") == 0.0
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "answer", ["", "  ", "72 clips\n#### ", r"\frac{1}{2}}", r"\boxed{5", "5</answer>6", "$$"]
)
def test_an_answer_that_no_completion_can_give_is_not_paid_for_itself(answer: str) -> None:
    assert not is_paid_for_itself(answer)
