r"""How an answer is written: many notations of one answer become one text.

An answer is LaTeX or plain, such as `\frac{1}{2}`, `3R^2`, `1,234`, `x \le 3`, `(1, 2]`, `5 \text{ cm}` or
`east`. This is a list of substitutions, and decides nothing about values. It is ours and not the library's
`normalize_latex`, which removes quotes, dots and the difference between "and" and "or".
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple


class Substitution(NamedTuple):
    """The replacement of one notation."""

    name: str
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]


@lru_cache(maxsize=4096)
def cleaned(text: str) -> str:
    r"""The same answer in one notation: `\frac{1}{2}` for `\dfrac12`, `\text` for `\mathrm`, `1234` for
    `1,234`, `(` for `\left(`, and no spaces that mean nothing. A `$` that is left is the currency."""
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match[0].translate(_DIGIT_OF_SUPERSCRIPT)}}}", text)
    text = text.translate(_PLAIN_CHARACTERS).strip()
    # a $ that has no other is the currency
    if len(_DOLLAR.findall(text)) > 1 and text.startswith("$") and text.endswith("$"):
        text = text[1:-1]
    if len(_DOLLAR.findall(text)) % 2 == 0:
        text = _DOLLAR.sub(" ", text)
    if r"\begin" not in text:
        text = _DOUBLE_BACKSLASH.sub(r"\\", text)
    for substitution in _SUBSTITUTIONS:
        text = substitution.pattern.sub(substitution.replacement, text)
    return text.strip()


_DOLLAR = re.compile(r"(?<!\\)\$")
_DOUBLE_BACKSLASH = re.compile(r"\\\\(?=[A-Za-z])")
"""In a matrix, it begins a row; elsewhere, it is a command of a text that was escaped twice."""

_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_DIGIT_OF_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_PLAIN_CHARACTERS = str.maketrans(
    {
        **dict(zip("０１２３４５６７８９", "0123456789", strict=True)),
        **{half: rf"\frac{{{top}}}{{{bottom}}}" for half, top, bottom in ("½12", "⅓13", "⅔23", "¼14", "¾34")},
        **dict.fromkeys("\u2212\u2013", "-"),
        **dict.fromkeys("\u2018\u2019", "'"),
        **dict.fromkeys("\u201c\u201d", '"'),
        **dict.fromkeys("\u00a0\u2009\u202f\n\t", " "),
        "√": r"\sqrt ",
        "·": r"\cdot ",
        "×": r"\times ",
        "÷": r"\div ",
        "±": r"\pm ",
        "∞": r"\infty ",
        "π": r"\pi ",
        "θ": r"\theta ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "∈": r"\in ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∅": r"\emptyset ",
        "°": r"^{\circ}",
        "∠": r"\angle ",
        "…": "...",
    }
)
_POWERS_OF_TEN = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = "|".join(_POWERS_OF_TEN)
_NUMBER_OF_THOUSANDS = r"[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)(?:\.\d+)?"
_SHORT_UNIT = r"(?:cm|mm|km|dm|nm|kg|mg|ml|mL|nL|ft|lb|oz|hr|yd|mph|kph|am|pm|AM|PM)"
_UNIT_OF_LETTERS = re.compile(r"[mgshlLCFKNJWVA](?:/[mgshlL])*(?:\^?\d)?")
_ANY_WORD = re.compile(r"[^\W\d_]{2,}")
_RELATIONS = {
    r"\leq": r"\le",
    r"\leqslant": r"\le",
    "<=": r"\le",
    r"\geq": r"\ge",
    r"\geqslant": r"\ge",
    ">=": r"\ge",
    r"\neq": r"\ne",
    "!=": r"\ne",
    r"\lt": "<",
    r"\gt": ">",
}


def _words_of_text_command(match: re.Match[str]) -> str:
    r"""`\text` around words and units, and only its content where that is neither, such as `(B)` or `12`."""
    content = match[1].strip()
    if content.strip(", ") in ("and", "or"):
        return f" {content.strip(', ')} "
    before = match.string[: match.start()].rstrip()
    is_unit = (before[-1:].isdigit() or before.endswith("}")) and _UNIT_OF_LETTERS.fullmatch(content)
    return rf"\text{{{content}}}" if _ANY_WORD.search(content) or is_unit else f" {content} "


def _power_of_ten(match: re.Match[str]) -> str:
    rest = match["rest"] if "rest" in match.re.groupindex else ""
    text = rf"\text{{{rest}}}" if rest.strip() else ""
    return rf"\cdot 10^{{{_POWERS_OF_TEN[match['scale']]}}} {text}"


def _thousands_or_pair(match: re.Match[str]) -> str:
    r"""`(1,234)`, in which `{,}` separates digits of one number or two numbers."""
    return f"({match[1].replace(',', '{,}')})"


def _repeating_decimal(match: re.Match[str]) -> str:
    r"""The fraction that `0.1\overline{6}` is: 16 - 1 of 90."""
    whole, once, again = match["whole"] or "0", match["once"], match["again"]
    numerator = int(whole + once + again) - int(whole + once)
    return rf"\frac{{{numerator}}}{{{'9' * len(again)}{'0' * len(once)}}}"


_SUBSTITUTIONS = tuple(
    Substitution(name, re.compile(pattern), replacement)
    for name, pattern, replacement in (
        ("delimiters of mathematics", r"(?<!\\)\\[()\[\]]", " "),
        # before the spaces of LaTeX, which separate thousands too
        ("thousands set apart", r"(?<=\d)(?:\\[,!]\s*|\{,\}|,\\!\s*)(?=\d{3}(?!\d))", ""),
        # the row separator \\ is matched first, so that none of its backslashes begins a space
        (
            "spaces of LaTeX",
            r"(\\\\)|\\[,;:!> ]|~|\\(?:quad|qquad|thinspace|displaystyle|textstyle)(?![A-Za-z])",
            lambda match: match[1] or " ",
        ),
        ("a backslash at the end", r"(?<!\\)\\\s*$", ""),
        # one full stop ends a sentence, and several continue with digits
        ("a full stop at the end", r"(?<![.\s])\s*[.;,]\s*$", ""),
        ("sizes of brackets", r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])", ""),
        ("colors", r"\\(?:text)?color\s*\{[a-z]+\}", ""),
        ("styles", r"\\(?:bf|rm|it|sf|boldsymbol|bm)(?![A-Za-z])", " "),
        ("an underline", r"\\(?:underline|mathstrut)\s*\{([^{}]*)\}", r"\1"),
        ("numbers in a style", r"\\(?:math|text)(?:rm|it|bf|sf|normal)\s*\{\s*([^{}A-Za-z]+)\}", r"\1"),
        ("a product of vectors", r"\\mathbf\s*\{\s*([A-Za-z])\s*\}(?=\s*\\times)", r"\\vec{\1}"),
        ("letters in a style", r"\\math(?:rm|it|bf|sf|cal)\s*\{\s*([A-Za-z])\s*\}", r" \1"),
        ("names of functions", r"\\operatorname\*?\s*\{\s*([A-Za-z]+)\s*\}", r"\\\1 "),
        (
            "kinds of text",
            r"\\(?:mbox|hbox|text(?:sf|sc|bf|it|rm|normal)|math(?:rm|it|bf|sf))\s*(?=\{)",
            r"\\text",
        ),
        ("braces of sets", r"\\([lr])brace(?![A-Za-z])", lambda match: r"\{" if match[1] == "l" else r"\}"),
        ("colons", r"\\colon(?![A-Za-z])", ":"),
        # a currency stands before a number, or behind it
        ("the dollar in text", r"\\text\s*\{\s*\\?\$\s*\}", "$"),
        ("the dollar", r"\\\$\s*", "$"),
        ("the percent in text", r"\\text\s*\{\s*(?:\\?%|percent|pct)\s*\}|\s*\b(?:percent|pct)\b|\\%", "%"),
        ("a sentence before its value", r"^\\text\s*\{[^{}]*\b[Aa]nswer(?:\s+is)?\s*:?(?=[\s}])", r"\\text{"),
        ("a number in text", r"\\text\s*\{\s*(\$?\d[\d.,/:]*)(?=[\s}])", r"\1\\text{"),
        (
            "degrees",
            r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z]))\s*(?:\\text\{\s*([CFK])\s*\}|([CFK])(?![A-Za-z]))?",
            lambda match: rf"\text{{degree{match[1] or match[2] or ''}}}",
        ),
        ("other fractions", r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        ("other binomials", r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        ("two short arguments", r"\\(frac|binom)\s*([0-9A-Za-z])\s*([0-9A-Za-z])", r"\\\1{\2}{\3}"),
        ("a short first argument", r"\\(frac|binom)\s*([0-9A-Za-z])\s*(?=\{)", r"\\\1{\2}"),
        ("a short last argument", r"(\\(?:frac|binom)\{[^{}]*\})\s*([0-9A-Za-z])", r"\1{\2}"),
        ("a short argument", r"\\(sqrt|pmod|overline|vec|mathbb)(?:\s*([0-9])|\s+([A-Za-z]))", r"\\\1{\2\3}"),
        ("a root in words", r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        ("plain functions", r"(?<![A-Za-z\\{])(pi|ln|log|sin|cos|tan)(?![A-Za-z])", r"\\\1 "),
        ("plain infinity", r"(?<![A-Za-z\\])infinity(?![A-Za-z])", r"\\infty"),
        (
            "relations",
            r"\\(?:leq|leqslant|geq|geqslant|neq|lt|gt)(?![A-Za-z])|<=|>=|!=",
            lambda match: _RELATIONS[match[0]] + " ",
        ),
        ("the empty set", r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        ("primes", r"\^\s*\{?\s*\\prime\s*\}?", "'"),
        # the library takes no quotes
        (
            "derivatives and images",
            r"(?<![A-Za-z])([A-Za-z])('+)",
            lambda match: f"{match[1]}_{{p{len(match[2])}}}",
        ),
        ("a short index or power", r"([_^])\s*([0-9A-Za-z])(?![0-9])", r"\1{\2}"),
        (
            "repeating decimals",
            r"(?<![.!\w}])(?P<whole>\d*)\.(?P<once>\d*)\\overline\{(?P<again>\d+)\}(?![\d.\\])",
            _repeating_decimal,
        ),
        # the library reads 2(1/2) as two and a half
        ("a product with a fraction", r"(?<=\d)\s*\((?=\s*\\frac)", r"\\cdot ("),
        (
            "a scale in text",
            rf"(?<=\d)\s*\\text\{{\s*(?P<scale>{_SCALE})\b(?P<rest>[^{{}}]*)\}}",
            _power_of_ten,
        ),
        ("a scale", rf"(?<=\d)\s*\b(?P<scale>{_SCALE})\b", _power_of_ten),
        # after the units of degrees and scales, which are put into \text
        ("text", r"\\text\s*\{([^{}]*)\}", _words_of_text_command),
        ("a unit at its number", rf"(?<=\d)(?={_SHORT_UNIT}(?![A-Za-z]))", " "),
        ("a sign of equality without left side", r"^\s*(?:=|\\approx(?![A-Za-z]))\s*", ""),
        ("a plus sign of no sum", r"(^|[(\[,=])\s*\+", r"\1"),
        ("a mixed number", r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?!\d)", r"\1\\frac{\2}{\3}"),
        ("thousands or a pair", rf"^\s*\(\s*({_NUMBER_OF_THOUSANDS})\s*\)\s*$", _thousands_or_pair),
        # after brackets have lost their space, so that ( 5,100 ] stays an interval
        ("space in brackets", r"(?<=[(\[{])\s+", ""),
        (
            "thousands",
            rf"(?:^|(?<=[=\s<>+\-$€£¥₹])|(?<=[^\\]\{{)){_NUMBER_OF_THOUSANDS}",
            lambda match: match[0].replace(",", ""),
        ),
        ("an exponent of ten", r"(?<![\w.}])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d+)(?!\w)", r"\1\\cdot 10^{\2}"),
        ("several spaces", r"\s+", " "),
        # a unit behind a fraction keeps it
        ("space beside signs", r"(?<![0-9A-Za-z}])\s|\s(?![0-9A-Za-z])|(?<=\})\s(?![A-Za-z]{2})", ""),
        ("space behind a command", r"(\\[A-Za-z]+)\s(?![A-Za-z])", r"\1"),
    )
)
