r"""Whether a completion's final expression equals the reference answer, by the library math-verify.

Both are read in one way, as a whole: `6 - 5i` is one number, `1, 4` a list and `(1, 2)` a pair or an
interval. `math_notation` takes them apart, and the library compares the values. It stops a comparison that
takes too long with an alarm signal, which works only in the main thread of a process. The worker calls reward
functions there.
"""

import logging
import re
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from latex2sympy2_extended.math_normalization import extract_boxed_content
from math_verify import parse, verify
from math_verify.errors import TimeoutException
from math_verify.utils import timeout

from grpo_runtime.rewards.math_notation import (
    Measure,
    as_text,
    both_signs,
    brackets,
    cleaned,
    equation_sides,
    has_words,
    is_name,
    is_text,
    items,
    measure,
)
from grpo_runtime.rewards.text import final_answer
from grpo_runtime.rewards.types import Unscorable

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 3
"""Limit of one parse and of one comparison."""
_MAX_CHARACTERS = 2000
"""What is longer is prose and no expression."""
_BOXED = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])")
_SAID = re.compile(r"(?i:answer)(?:\s+is)?\s*[:=]?\s*(?:\*\*)?\s*([^\n]*[^\s*])")
_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
# R and r are two radii
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_I = sympy.Symbol("i", real=True)
_ROUNDED = 1e-6
_EXACT = 1e-12
_DIGITS = 30

# a policy often writes what is no mathematics, and the library logs a traceback each time
logging.getLogger("math_verify").setLevel(logging.CRITICAL)


def math_verify(completion: str, answer: str) -> float | Unscorable:
    r"""1 when the completion's final expression equals the answer's, else 0.

    The completion's expression is the last `\boxed{}` of its final answer (`<answer>`, or what follows
    `</think>`), or else all of it; in prose, what follows "answer is", or else what math-verify finds. The
    answer is read as a whole, unless it is a solution that ends with `\boxed{}` or, as GSM8K's, `#### 42`. An
    answer that is not mathematics has to be written in the same words. An empty one is a fault of the data:
    Unscorable.
    """
    gold = cleaned(_marked(answer)[0])
    if not gold:
        return Unscorable(f"the answer ({answer[-100:]}) holds no expression that math-verify can read")
    marked, is_boxed = _marked(completion)
    found = cleaned(marked) if len(marked) <= _MAX_CHARACTERS else ""
    if not is_boxed and not _is_same_text(gold, found) and (not found or has_words(measure(found).value)):
        found = cleaned(_expression_in(marked))
    return float(_equal(gold, found))


def is_paid_for_itself(answer: str) -> bool:
    r"""Whether `math_verify` gives 1 to the answer itself, in `\boxed{}` and in `<answer>`.

    Both are read as the answer is, and the same text is equal before anything is computed. So this is quick,
    and does not depend on a time limit.
    """
    expression = _marked(answer)[0]
    gold = cleaned(expression)
    forms = (rf"\boxed{{{expression}}}", f"<answer>{expression}</answer>")
    return bool(gold) and all(_is_same_text(gold, cleaned(_marked(form)[0])) for form in forms)


def _marked(text: str) -> tuple[str, bool]:
    r"""The part of a completion or an answer that is marked as its end, and whether it is in `\boxed{}`."""
    text = final_answer(text)
    if _BOXED.search(text):
        # boxes side by side are one list: several guesses are not several chances
        return extract_boxed_content(text, mode="last").strip(), True
    return text.rpartition("####")[2].strip(), False


def _expression_in(prose: str) -> str:
    """The final expression of a sentence, or all of it where it has none."""
    for said in reversed(_SAID.findall(prose)):
        if len(said) <= _MAX_CHARACTERS and not has_words(measure(cleaned(said)).value):
            return str(said)
    found = parse(prose, extraction_mode="first_match", parsing_timeout=TIMEOUT_SECONDS)
    if found:
        return str(found[-1])
    said = _SAID.findall(prose)
    return str(said[-1])[:_MAX_CHARACTERS] if said else ""


def _is_same_text(gold: str, found: str) -> bool:
    return gold == found or (is_text(gold) and is_text(found) and as_text(gold) == as_text(found))


def _equal(gold: str, found: str) -> bool:
    """Whether two cleaned answers are equal."""
    if _is_same_text(gold, found):
        return True
    golds, founds = ([value for item in items(text) for value in both_signs(item)] for text in (gold, found))
    if len(golds) != len(founds):
        return False
    if len(golds) > 1:
        return _are_equal_in_any_order(golds, founds)
    gold_measure, found_measure = measure(gold), measure(found)
    if gold_measure.unit or found_measure.unit:
        return _are_equal_measures(gold_measure, found_measure)
    gold, found = _without_parentheses(gold), _without_parentheses(found)
    if is_text(gold) or is_text(found):
        return _is_same_text(gold, found)
    return _are_equal_in_brackets(gold, found)


def _are_equal_in_any_order(golds: list[str], founds: list[str]) -> bool:
    gold_names, found_names = ({_named(item)[0] for item in one} - {""} for one in (golds, founds))
    # x = 1, y = 2 is not 2, 1
    if gold_names != found_names and max(len(gold_names), len(found_names)) > 1:
        return False
    left = list(founds)
    for gold in golds:
        equal = next((found for found in left if _equal(gold, found)), None)
        if equal is None:
            return False
        left.remove(equal)
    return True


def _are_equal_measures(gold: Measure, found: Measure) -> bool:
    """A unit may be left out, but not be another one."""
    if gold.unit and found.unit:
        return gold.unit == found.unit and _equal(gold.value, found.value)
    if _equal(gold.value, found.value):
        return True
    # 50% is 0.5 too
    values = [rf"\frac{{{one.value}}}{{100}}" if one.unit == "%" else one.value for one in (gold, found)]
    return "%" in (gold.unit, found.unit) and _equal(*values)


def _are_equal_in_brackets(gold: str, found: str) -> bool:
    """Whether two answers without a unit are equal; brackets have to be of the same kind."""
    (gold_opens, gold_inside, gold_closes), (found_opens, found_inside, found_closes) = (
        brackets(text) for text in (gold, found)
    )
    if not gold_opens or not found_opens:
        is_set_on_one_side = r"\{" in (gold_opens, found_opens)
        has_name = bool(_named(gold)[0] or _named(found)[0])
        return (has_name or not is_set_on_one_side) and _are_equal_equations(gold, found)
    golds, founds = items(gold_inside), items(found_inside)
    if (gold_opens, gold_closes) != (found_opens, found_closes) or len(golds) != len(founds):
        return False
    if gold_opens == r"\{":
        return _are_equal_in_any_order(golds, founds)
    return all(_equal(one, other) for one, other in zip(golds, founds, strict=True))


def _without_parentheses(text: str) -> str:
    """`x + 1` of `(x + 1)`; a pair keeps its parentheses."""
    while (found := brackets(text))[::2] == ("(", ")") and len(items(found[1])) == 1:
        text = found[1]
    return text


def _named(text: str) -> tuple[str, str]:
    """The name and the value of `x = 5`; no name, and all of `text`, where it is no definition."""
    first, *others = equation_sides(text)
    return (first, others[-1]) if others and is_name(first) else ("", text)


def _are_equal_equations(gold: str, found: str) -> bool:
    (gold_name, gold_value), (found_name, found_value) = _named(gold), _named(found)
    if gold_name == found_name and gold_name:
        return _equal(gold_value, found_value) or _are_equal_values(gold, found)
    if gold_name and len(equation_sides(found)) == 1:
        return _equal(gold_value, found)
    if found_name and len(equation_sides(gold)) == 1:
        return _equal(gold, found_value)
    *before, last = equation_sides(found)
    if before and len(equation_sides(gold)) == 1:
        # 2 + 3 = 5 is 5, and x^2 = 5 is not
        return _equal(gold, last) and all(_equal(last, side) for side in before)
    return _are_equal_values(gold, found)


@lru_cache(maxsize=4096)
def _are_equal_values(gold: str, found: str) -> bool:
    """Whether the library reads both, in time, and finds them equal."""
    try:
        one, other = timeout(TIMEOUT_SECONDS)(lambda: (_value(gold), _value(found)))()
        # the library compares real solutions, of which x^2 = -1 and x^2 = -4 have none
        if isinstance(one, sympy.Eq) and isinstance(other, sympy.Eq):
            return bool(timeout(TIMEOUT_SECONDS)(_are_multiples)(one.lhs - one.rhs, other.lhs - other.rhs))
        if not timeout(TIMEOUT_SECONDS)(_may_be_equal)(one, other):
            return False
        # simplify, which the library calls, takes seconds where the process is new and the machine busy
        are_formulas = isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)
        if are_formulas and timeout(TIMEOUT_SECONDS)(sympy.expand)(one - other) == 0:
            return True
        return bool(verify(one, other, timeout_seconds=TIMEOUT_SECONDS, allow_set_relation_comp=True))
    # the library raises Exception itself for what is no LaTeX of its grammar, and sympy what it likes for
    # values that have no difference
    except (Exception, TimeoutException):
        logger.debug("no comparison of %s and %s", gold, found, exc_info=True)
        return False


@lru_cache(maxsize=4096)
def _value(text: str) -> Any:
    value = latex2sympy(
        normalize_latex(text, _NORMALIZATION),
        is_real=True,
        normalization_config=None,
        conversion_config=_CONVERSION,
    )
    return value.xreplace({_I: sympy.I}) if _I in value.free_symbols else value


def _are_multiples(one: Any, other: Any) -> bool:
    ratio = sympy.simplify(one / other)
    return bool(ratio.is_number and ratio.is_finite and ratio != 0)


def _may_be_equal(one: Any, other: Any) -> bool:
    """False for two expressions that have other values where every variable is a small prime. It spares most
    comparisons, and holds numbers apart that the library rounds: decimals to six digits after the point, and
    small values to 0."""
    if not (isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)):
        return True
    variables = sorted(one.free_symbols | other.free_symbols, key=str)
    point = {variable: sympy.prime(index) for index, variable in enumerate(variables, start=2)}
    tolerance = _ROUNDED if one.has(sympy.Float) or other.has(sympy.Float) else _EXACT
    left, right = (value.evalf(_DIGITS, subs=point) for value in (one, other))
    distance = abs(left - right)
    if not (left.is_number and right.is_number and distance.is_finite):
        return True
    return bool(distance <= tolerance * max(abs(left), abs(right)))
