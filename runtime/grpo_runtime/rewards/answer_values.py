r"""Whether two cleaned answers have the same value, by the library math-verify.

The library stops a comparison that takes too long with an alarm signal, which works only in the main thread
of a process. The worker calls reward functions there. Numbers and equations are compared here: the library
rounds decimals to six digits and small values to 0, and compares the real solutions of equations, of which
x^2 = -1 and x^2 = -4 have none.
"""

import logging
import math
import re
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify
from math_verify.errors import TimeoutException
from math_verify.utils import timeout

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 3
"""Limit of one parse and of one comparison."""
_NORMALIZATION = NormalizationConfig(
    basic_latex=False, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
# R and r are two radii
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_I = sympy.Symbol("i", real=True)
_ROUNDED_TOLERANCE = sympy.Float("1e-6")
_EXACT_TOLERANCE = sympy.Float("1e-40", 60)
_FORMULA_TOLERANCE = sympy.Float("1e-12")
_DIGITS = 60
_MAX_DIGITS = 2000

# a policy often writes what is no mathematics, and the library logs a traceback each time
logging.getLogger("math_verify").setLevel(logging.CRITICAL)


@lru_cache(maxsize=4096)
def are_equal_values(gold: str, found: str) -> bool:
    """Whether the library reads both, in time, and finds them equal."""
    if is_too_large(gold) or is_too_large(found):
        return False
    try:
        return bool(timeout(TIMEOUT_SECONDS)(_are_equal)(gold, found))
    # the library raises Exception itself for what is no LaTeX of its grammar, and sympy what it likes for
    # values that have no difference
    except (Exception, TimeoutException):
        logger.debug("no comparison of %s and %s", gold, found, exc_info=True)
        return False


@lru_cache(maxsize=4096)
def is_rounded_to(exact: str, rounded: str) -> bool:
    """Whether a decimal is as near to a value as its last digit says, such as 1.41 to the root of 2."""
    decimal = re.fullmatch(r"-?\d*\.?(?P<digits>\d*)", rounded)
    if decimal is None or is_too_large(exact):
        return False
    try:
        distance = timeout(TIMEOUT_SECONDS)(lambda: (_value(exact) - _value(rounded)).evalf(_DIGITS))()
        return bool(abs(distance) <= sympy.Rational(1, 2) * sympy.Rational(10) ** -len(decimal["digits"]))
    except (Exception, TimeoutException):
        logger.debug("no distance of %s and %s", exact, rounded, exc_info=True)
        return False


_MAX_DIGITS_OF_POWERS = 1_000_000
_EXPONENT = re.compile(r"\^\{?-?(\d+)")
_POWER_OF_A_POWER = re.compile(r"\^\{[^{}]*\d\s*\^\{?\d|\d\^\d+\^\{?\d")
_LONG_FACTORIAL = re.compile(r"\d{5,}!|!\)!")
_LONG_SUM = re.compile(r"\\(?:sum|prod)(?![A-Za-z])[^ ]*?\^\{?\d{4,}")


def is_too_large(text: str) -> bool:
    """Whether a cleaned answer would take too long to compute: towers of powers and long sums. The text tells
    it, for no alarm stops the computation of one very large number."""
    exponents = math.prod(max(1, int(digits[:9])) for digits in _EXPONENT.findall(text))
    longest_number = max(map(len, re.findall(r"\d+", text)), default=0)
    return exponents * longest_number > _MAX_DIGITS_OF_POWERS or any(
        pattern.search(text) for pattern in (_POWER_OF_A_POWER, _LONG_FACTORIAL, _LONG_SUM)
    )


@lru_cache(maxsize=4096)
def _value(text: str) -> Any:
    value = latex2sympy(
        normalize_latex(text, _NORMALIZATION),
        is_real=True,
        normalization_config=None,
        conversion_config=_CONVERSION,
    )
    return value.xreplace({_I: sympy.I}) if _I in value.free_symbols else value


def _are_equal(gold_text: str, found_text: str) -> bool:
    gold, found = _value(gold_text), _value(found_text)
    if isinstance(gold, sympy.Eq) and isinstance(found, sympy.Eq):
        return _are_multiples(gold.lhs - gold.rhs, found.lhs - found.rhs)
    # the library would take the right side alone
    if isinstance(gold, sympy.Eq) or isinstance(found, sympy.Eq):
        return False
    if isinstance(gold, sympy.Expr) and isinstance(found, sympy.Expr):
        if not gold.free_symbols and not found.free_symbols:
            return _are_equal_numbers(gold, found)
        if not _are_equal_at_a_point(gold, found):
            return False
        # simplify, which the library calls, takes seconds where the process is new and the machine busy
        if sympy.expand(gold - found) == 0:
            return True
    return bool(verify(gold, found, timeout_seconds=TIMEOUT_SECONDS, allow_set_relation_comp=True))


def _are_multiples(gold: Any, found: Any) -> bool:
    quotient = sympy.simplify(gold / found)
    return bool(quotient.is_number and quotient.is_finite and quotient != 0)


def _are_equal_numbers(gold: Any, found: Any) -> bool:
    """A decimal may be rounded where the other number has no end as a decimal: 0.3333333 for a third."""
    gold_number, found_number = _with_exact_decimals(gold), _with_exact_decimals(found)
    has_decimal = gold.has(sympy.Float), found.has(sympy.Float)
    may_be_rounded = (has_decimal[0] and not _ends_as_decimal(found_number)) or (
        has_decimal[1] and not _ends_as_decimal(gold_number)
    )
    return _are_near(gold_number, found_number, _ROUNDED_TOLERANCE if may_be_rounded else _EXACT_TOLERANCE)


def _are_equal_at_a_point(gold: Any, found: Any) -> bool:
    """False for two expressions that have other values where every variable is a small prime."""
    variables = sorted(gold.free_symbols | found.free_symbols, key=str)
    point = {variable: sympy.prime(index) for index, variable in enumerate(variables, start=2)}
    tolerance = _ROUNDED_TOLERANCE if gold.has(sympy.Float) or found.has(sympy.Float) else _FORMULA_TOLERANCE
    gold_there, found_there = gold.evalf(_DIGITS, subs=point), found.evalf(_DIGITS, subs=point)
    if not (gold_there.is_number and found_there.is_number and abs(gold_there - found_there).is_finite):
        return True
    return _are_near(gold_there, found_there, tolerance)


def _are_near(gold: Any, found: Any, tolerance: Any) -> bool:
    """Whether the distance of two numbers is at most `tolerance`, and of small numbers that share of them."""
    # sympy computes the difference of 2^2019 + 1 and 2^2019 to digits of its own
    distance = abs((gold - found).evalf(_DIGITS, maxn=_MAX_DIGITS))
    size = max(abs(gold.evalf(_DIGITS)), abs(found.evalf(_DIGITS)))
    return bool(distance.is_finite and distance <= tolerance * min(1, size))


def _with_exact_decimals(number: Any) -> Any:
    return number.xreplace({decimal: sympy.Rational(str(decimal)) for decimal in number.atoms(sympy.Float)})


def _ends_as_decimal(number: Any) -> bool:
    """Whether it is a fraction whose denominator has no prime factor but 2 and 5."""
    number = sympy.nsimplify(number) if number.is_rational else number
    if not number.is_Rational:
        return False
    denominator = int(number.q)
    for factor in (2, 5):
        while denominator % factor == 0:
            denominator //= factor
    return denominator == 1
