r"""Whether two cleaned answers are equal: part by part, and what is computed by its value.

A list of rules decides. The first rule that applies decides.
"""

import re
from collections.abc import Callable
from itertools import pairwise

from grpo_runtime.rewards.answer_parts import (
    Listed,
    approximate_sides,
    enclosing_brackets,
    equal_sides,
    is_notation,
    is_words,
    listed,
    matrix_rows,
    measure,
    named,
    nesting,
    ordered,
    ratio,
    values_of_plus_minus,
    words_without_case,
)
from grpo_runtime.rewards.answer_values import are_equal_values, is_rounded_to

_MAX_NESTING = 30
_THOUSANDS_OR_PAIR = "{,}"
"""The comma of `(1,234)`, which is one number or a pair."""


def is_same_text(gold: str, found: str) -> bool:
    r"""Whether nothing has to be computed to see that they are equal; in words, case is ignored,
    and so is `\text`."""
    if gold == found:
        return True
    are_words = any(is_words(text) or r"\text" in text for text in (gold, found))
    return are_words and words_without_case(gold) == words_without_case(found)


def are_equal(gold: str, found: str) -> bool:
    """Whether two cleaned answers, or two parts of such, are equal."""
    if is_same_text(gold, found):
        return True
    if not gold or not found or max(nesting(gold), nesting(found)) > _MAX_NESTING:
        return False
    decisions = (rule(gold, found) for rule in _RULES)
    return next((decision for decision in decisions if decision is not None), False)


def _lists(gold: str, found: str) -> bool | None:
    """Values are equal in any order. Non-values need the same connective; comma-separated words and lists
    with dots also the same order."""
    gold_list, found_list = _with_both_signs(listed(gold)), _with_both_signs(listed(found))
    parts = [*gold_list.parts, *found_list.parts]
    if len(parts) <= 2:
        return None
    if len(gold_list.parts) != len(found_list.parts):
        return False
    gold_names, found_names = (
        {named(part)[0] for part in one.parts} - {""} for one in (gold_list, found_list)
    )
    # x = 1, y = 2 is not 2, 1
    if gold_names != found_names and max(len(gold_names), len(found_names)) > 1:
        return False
    are_values = len(gold_names | found_names) <= 1 and all(_is_value(named(part)[1]) for part in parts)
    connectives = {one.connective.replace("and", ",") for one in (gold_list, found_list)}
    if not are_values and len(connectives) > 1:
        return False
    are_words = not are_values and all(is_words(part) or _is_letter(part) for part in parts)
    only_commas = gold_list.connective == found_list.connective == ","
    is_mixed = not are_values and " " in gold_list.connective
    if is_mixed or (are_words and only_commas) or any(_DOTS.fullmatch(part) for part in parts):
        return _are_all_equal(gold_list.parts, found_list.parts)
    return _are_equal_in_any_order(gold_list.parts, found_list.parts)


_DOTS = re.compile(r"\.{2,}|\\[lc]?dots")


def _with_both_signs(one: Listed) -> Listed:
    return Listed([value for part in one.parts for value in values_of_plus_minus(part)], one.connective)


def _is_value(text: str) -> bool:
    return not (_is_letter(text) or is_words(measure(text).value) or ordered(text)[1])


def _is_letter(text: str) -> bool:
    return len(text) == 1 and text.isalpha()


def _are_all_equal(golds: list[str], founds: list[str]) -> bool:
    return len(golds) == len(founds) and all(map(are_equal, golds, founds))


def _are_equal_in_any_order(golds: list[str], founds: list[str]) -> bool:
    unmatched = list(founds)
    for gold in golds:
        equal = next((found for found in unmatched if are_equal(gold, found)), None)
        if equal is None:
            return False
        unmatched.remove(equal)
    return not unmatched


def _definitions(gold: str, found: str) -> bool | None:
    """A name may be left out, but not differ: `x = 5` equals `5`, not `y = 5`."""
    (gold_name, gold_value), (found_name, found_value) = named(gold), named(found)
    if not gold_name and not found_name:
        return None
    # a = b = c defines nothing
    if named(gold_value)[0] or named(found_value)[0]:
        return _are_all_equal(equal_sides(gold), equal_sides(found))
    has_two_names = bool(gold_name and found_name) and gold_name != found_name
    if has_two_names or _is_nameless_equation(gold) or _is_nameless_equation(found):
        # x = y and y = x are equations
        return not (is_notation(gold) or is_notation(found)) and are_equal_values(gold, found)
    return are_equal(gold_value, found_value)


def _is_nameless_equation(text: str) -> bool:
    return not named(text)[0] and len(equal_sides(text)) > 1


def _measures(gold: str, found: str) -> bool | None:
    """A unit may be left out, but not differ. A percentage is its number where the answer is above 1 and has
    no % sign, and else its hundredth."""
    gold_measure, found_measure = measure(gold), measure(found)
    units = gold_measure.unit, found_measure.unit
    if units == ("", ""):
        return None
    if all(units):
        return units[0] == units[1] and are_equal(gold_measure.value, found_measure.value)
    if found_measure.unit == "%" and not _is_above_one(gold):
        return are_equal(gold, _hundredth(found_measure.value))
    if gold_measure.unit == "%" and are_equal(_hundredth(gold_measure.value), found):
        return True
    return are_equal(gold_measure.value, found_measure.value)


def _hundredth(value: str) -> str:
    return rf"\frac{{{value}}}{{100}}"


def _is_above_one(value: str) -> bool:
    is_number = re.fullmatch(r"-?\d+(?:\.\d+)?(?:\\frac\{\d+\}\{\d+\})?", value) is not None
    return is_number and re.match(r"-?(?:0|1(?:\.0+)?$)", value) is None


def _matrices(gold: str, found: str) -> bool | None:
    gold_rows, found_rows = matrix_rows(gold), matrix_rows(found)
    if gold_rows is None or found_rows is None:
        return None
    return len(gold_rows) == len(found_rows) and all(map(_are_all_equal, gold_rows, found_rows))


def _in_brackets(gold: str, found: str) -> bool | None:
    """The brackets have to be of the same kind; a set has no order."""
    gold_opens, gold_inside, gold_closes = enclosing_brackets(gold)
    found_opens, found_inside, found_closes = enclosing_brackets(found)
    if not gold_opens or not found_opens:
        return None
    if (gold_opens, gold_closes) != (found_opens, found_closes):
        return False
    golds, founds = (
        listed(text.replace(_THOUSANDS_OR_PAIR, ",")).parts for text in (gold_inside, found_inside)
    )
    return _are_equal_in_any_order(golds, founds) if gold_opens == r"\{" else _are_all_equal(golds, founds)


def _parenthesized(gold: str, found: str) -> bool | None:
    """`(x + 1)` is `x + 1`, and `(1,234)` is 1234 where the other is no pair."""
    bare = _without_parentheses(gold), _without_parentheses(found)
    return are_equal(*bare) if bare != (gold, found) else None


def _without_parentheses(text: str) -> str:
    opens, inside, closes = enclosing_brackets(text)
    is_one = (opens, closes) == ("(", ")") and len(listed(inside).parts) == 1
    return inside.replace(_THOUSANDS_OR_PAIR, "") if is_one else text


def _words(gold: str, found: str) -> bool | None:
    # different words
    return False if is_words(gold) or is_words(found) else None


def _notations(gold: str, found: str) -> bool | None:
    """Ratios are equal part by part, and other notations only as they are written."""
    if not is_notation(gold) and not is_notation(found):
        return None
    return len(ratio(gold)) > 1 and _are_all_equal(ratio(gold), ratio(found))


def _sets(gold: str, found: str) -> bool | None:
    """A set is no interval and no number, and `[5]` is not 5, though the library compares them."""
    for opens, inside, _ in map(enclosing_brackets, (gold, found)):
        if opens == r"\{" or (opens == "[" and len(listed(inside).parts) == 1):
            return False
    return None


def _inequalities(gold: str, found: str) -> bool | None:
    """Equal side by side, the smallest side first; otherwise the library decides."""
    (gold_sides, gold_signs), (found_sides, found_signs) = ordered(gold), ordered(found)
    is_equal = bool(gold_signs) and gold_signs == found_signs and _are_all_equal(gold_sides, found_sides)
    return True if is_equal else None


def _chains(gold: str, found: str) -> bool | None:
    r"""`18 - 8 = 10` is worth 10, `\sqrt{2} \approx 1.41` both of its sides, and `x = 6 = 5` nothing."""
    if not _is_chain(gold) and not _is_chain(found):
        return None
    if _is_chain(gold) and _is_chain(found):
        return are_equal_values(gold, found) or _are_all_equal(equal_sides(gold), equal_sides(found))
    chain, value = (gold, found) if _is_chain(gold) else (found, gold)
    groups = [equal_sides(group) for group in approximate_sides(chain)]
    return (
        (are_equal(value, groups[0][-1]) or are_equal(value, groups[-1][-1]))
        and all(are_equal(sides[-1], side) for sides in groups for side in sides[:-1])
        and all(is_rounded_to(exact[-1], rounded[0]) for exact, rounded in pairwise(groups))
    )


def _is_chain(text: str) -> bool:
    return len(equal_sides(text)) > 1 or len(approximate_sides(text)) > 1


_RULES: tuple[Callable[[str, str], bool | None], ...] = (
    # first what separates whole answers, then what is around one, and last what is in it
    _lists,
    _definitions,
    _measures,
    _matrices,
    _in_brackets,
    _parenthesized,
    # before anything is computed, for the library reads letters and colons as products and quotients
    _words,
    _notations,
    _sets,
    _inequalities,
    _chains,
    are_equal_values,
)
