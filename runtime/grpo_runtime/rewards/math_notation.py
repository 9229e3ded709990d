r"""How an answer is written: its notation is cleaned, and taken apart into lists, brackets, names and units.

This is text only, and decides nothing about values. An answer is LaTeX or plain, such as `\frac{1}{2}`,
`3R^2`, `1,234`, `x \le 3`, `(1, 2]`, `5 \text{ cm}` or `east`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex

_BASIC = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=False, nits=False, boxed="none", equations=False
)
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_CURRENCY = re.compile(r"(-?)\s*(?:\\\$|\\(?:text|mbox)\{\s*\\?\$\s*\}|[$€£¥₹])\s*(?=[\d.])")
_LATEX_DELIMITER = re.compile(r"(?<!\\)\\[()\[\]]")
_DOLLAR = re.compile(r"(?<!\\)\$")
_SPACING = re.compile(r"\\[,;:!> ]|\\(?:quad|qquad|thinspace|displaystyle)(?![A-Za-z])|~|\u00a0")
_SIZE = re.compile(r"\\(?:[bB]igg?[lrm]?)(?![A-Za-z])")
_ONE_LETTER = re.compile(r"\\math(?:rm|it|bf|sf|cal)\s*\{\s*([A-Za-z])\s*\}")
_OTHER_TEXT = re.compile(r"\\(?:mbox|hbox|textsf|textsc|mathsf|operatorname\*?)\s*(?=\{)")
_DEGREE = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)\s*(?:\\text\{\s*([CFK])\s*\}|([CFK])(?![A-Za-z]))?")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_SEPARATED_THOUSANDS = re.compile(r"(?<=\d)(?:\\[,!]\s*|\{,\}|,\\!\s*)(?=\d{3}(?!\d))")
_THOUSANDS = re.compile(r"(?:(?<=^)|(?<=[=\s<>-]))\d{1,3}(?:,\d{3})+(?:\.\d+)?(?=\s|$|\\text|\\%|%)")
_MIXED_NUMBER = re.compile(r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?!\d)")
_EXPONENT = re.compile(r"(?<![\w.}])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d+)(?!\w)")
_PLAIN_FUNCTION = re.compile(r"(?<![A-Za-z\\{])(pi|ln|log|sin|cos|tan)(?![A-Za-z])")
_PRIME = re.compile(r"\^\s*\{?\s*\\prime\s*\}?")
# normalize_latex removes quotes
_PRIMES = re.compile(r"(?<![A-Za-z])([A-Za-z])('+)")
_SCALE = re.compile(r"(?<=\d)\s*(?:\\text\s*\{\s*)?\b(thousand|million|billion|trillion)\b\s*(\})?")
_POWERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_FREE_SPACE = re.compile(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])")

_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[a-z]+\*?\}|\\math[a-z]+\s*\{[^{}]*\}|\\[A-Za-z]+")
_FUNCTION = re.compile(
    r"(?:arc)?(?:sin|cos|tan)|(?:sin|cos|tan)h|cot|sec|csc|log|ln|exp|max|min|gcd|lcm|mod|sqrt|pi|inf|infty|det"
)
_LONG_WORD = re.compile(r"[^\W\d_]{3,}")
_ANY_WORD = re.compile(r"[^\W\d_]{2,}")
_ONLY_WORDS = re.compile(r"[^\W\d_]+(?:[\s,.'&()-]+[^\W\d_]+)*[\s.,)]*")
# colons of ratios and times, digits of another base, dates, numbers side by side and figures named by their
# points: no arithmetic, though LaTeX reads them as divisions and products
_NO_ARITHMETIC = re.compile(
    r"\\(?:angle|triangle|overline|overrightarrow|widehat|parallel|perp|equiv|sim|cong|gcd|lcm)(?![A-Za-z])|"
    r":|\\colon|\d\s+\d|(?:^|[^\w}])\d[0-9A-F]*_|^[0-9A-F]{2,}_|\d+/\d+/\d|\.\.|\\[lc]?dots|\\dot\{"
)

_UNIT_WORD = r"(?:[A-Za-z]{3,}|(?:cm|mm|km|kg|mg|ml|mL|ft|in|lb|oz|hr|am|pm|yd|mi|AM|PM)(?![A-Za-z])|[ap]\.m)"
_UNIT = re.compile(
    r"(?P<value>.*[\d})\]!])"
    rf"(?P<unit>(?:\s*\\text\s*\{{[^{{}}]*\}}|\s+{_UNIT_WORD}(?:\s*/\s*{_UNIT_WORD})*)+\.?(?:\^\{{?\d\}}?)?)",
    re.DOTALL,
)
_PERCENT = re.compile(r"(?P<value>.*?)\s*\\?%", re.DOTALL)
_NO_UNIT = re.compile(
    r"\b(?:or|and|to|more|less|than|least|most|not|no|mod|if|for|is|are|hundred|dozen|base|remainder"
    r"|infinity|pi|sqrt|undefined)\b"
)

_OPENS = ("(", "[", r"\{", "{", r"\begin")
_CLOSES = (")", "]", r"\}", "}", r"\end")
_TOKEN = re.compile(r"\\\\|\\[{}]|\\[A-Za-z]+|.", re.DOTALL)
_NAME = re.compile(
    r"(?:\\?[A-Za-z]+|\\(?:angle|overline|vec|overrightarrow)\s*\{?[A-Za-z]+\}?)"
    r"(?:'|_\w|_\{[^{}]*\})*\s*(?:\([A-Za-z](?:\s*,\s*[A-Za-z])*\))?|\([A-Za-z](?:\s*,\s*[A-Za-z])*\)"
)


@lru_cache(maxsize=4096)
def cleaned(text: str) -> str:
    r"""The same answer in one notation: without `$` and `\left`, with `\frac` for `\dfrac`, `\text` for
    `\mathrm`, `,` for "and", `1234` for `1,234`, and without spaces that mean nothing."""
    text = _LATEX_DELIMITER.sub(" ", text)
    # a $ that has no other is the currency
    if len(_DOLLAR.findall(text)) % 2 == 0:
        text = _DOLLAR.sub(" ", text)
    text = _CURRENCY.sub(lambda match: f"{match[1]}{_currency(match[0])}", text.strip())
    # one full stop ends a sentence, and several go on with digits
    text = _SEPARATED_THOUSANDS.sub("", re.sub(r"(?<!\.)\s*[.;,]\s*$", "", text))
    text = _SIZE.sub("", _SPACING.sub(" ", text))
    text = _OTHER_TEXT.sub(r"\\text", _ONE_LETTER.sub(r" \1", text))
    text = _DEGREE.sub(lambda match: rf"\text{{degree{match[1] or match[2] or ''}}}", text)
    text = _PLAIN_FUNCTION.sub(r"\\\1 ", text)
    text = _PRIMES.sub(lambda match: f"{match[1]}_{{p{len(match[2])}}}", _PRIME.sub("'", text))
    text = normalize_latex(text.replace("\u2212", "-").replace(r"\lt", "<").replace(r"\gt", ">"), _BASIC)
    text = _TEXT.sub(_without_text_command, text).strip()
    text = _MIXED_NUMBER.sub(r"\1\\frac{\2}{\3}", text)
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = _SCALE.sub(lambda match: rf" \cdot 10^{{{_POWERS[match[1]]}}} ", text)
    text = _EXPONENT.sub(r"\1 \\cdot 10^{\2}", text)
    return _FREE_SPACE.sub("", text).strip()


def _without_text_command(match: re.Match[str]) -> str:
    r"""What `\text` holds where it is no word and no unit after a value."""
    before = match.string[: match.start()].rstrip()
    is_unit = before[-1:].isdigit() or before.endswith("}")
    return match[0] if _ANY_WORD.search(match[1]) or (is_unit and match[1].strip()) else f" {match[1]}"


def _currency(sign: str) -> str:
    return next(f"{_MARK}{name}{_MARK}" for symbol, name in _CURRENCIES.items() if symbol in sign)


_MARK = "\u241f"
"""Stands around the name of a currency in a cleaned answer."""
_CURRENCY_MARK = re.compile(f"{_MARK}([a-z]+){_MARK}")


def as_text(text: str) -> str:
    r"""A cleaned answer as words: lower case, without `\text`, quotes and full stops of abbreviations."""
    words = _TEXT.sub(r" \1 ", text)
    words = re.sub(r"(?<!\d)\.|\.(?!\d)|[\"']", "", words)
    return _FREE_SPACE.sub("", re.sub(r"\s+", " ", words.replace("{", "").replace("}", ""))).lower().strip()


def is_text(text: str) -> bool:
    """Whether a cleaned answer is words, or a notation in which nothing is computed, such as 10:30."""
    if _NO_ARITHMETIC.search(text):
        return True
    bare = _without_commands(_TEXT.sub("", text))
    num_words = sum(not _FUNCTION.fullmatch(match[0].lower()) for match in _LONG_WORD.finditer(bare))
    return (
        any(_ANY_WORD.search(match[1]) for match in _TEXT.finditer(text))
        or num_words > 1
        or (num_words == 1 and _ONLY_WORDS.fullmatch(bare.strip()) is not None and "\\" not in text)
    )


def has_words(text: str) -> bool:
    """Whether a cleaned answer has a word of two letters or more that is no function."""
    bare = _without_commands(_TEXT.sub(r" \1 ", text))
    return any(not _FUNCTION.fullmatch(match[0].lower()) for match in _ANY_WORD.finditer(bare))


def _without_commands(text: str) -> str:
    return _COMMAND.sub(" ", text)


@dataclass(frozen=True)
class Measure:
    """A value and its unit."""

    value: str
    unit: str
    """Lower case and singular; % for percent, and empty where there is none."""


def measure(text: str) -> Measure:
    """The value and the unit of a cleaned answer."""
    if (currency := _CURRENCY_MARK.search(text)) is not None:
        return Measure(measure(_CURRENCY_MARK.sub("", text)).value, currency[1])
    if (match := _PERCENT.fullmatch(text)) is not None and not is_text(match["value"]):
        return Measure(match["value"], "%")
    match = _UNIT.fullmatch(text)
    if match is None or has_words(match["value"]) or _NO_UNIT.search(match["unit"]):
        return Measure(text, "")
    unit = re.sub(r"[^0-9a-z/]", "", as_text(match["unit"]))
    return Measure(match["value"].strip(), unit.removesuffix("s") if len(unit) > 2 else unit)


def items(text: str) -> list[str]:
    """The parts of a list, which commas or semicolons separate."""
    return [item for item in _split(text, {",", ";"}) if item]


def both_signs(text: str) -> list[str]:
    r"""The two values of a cleaned answer with one `\pm`; the answer itself where there is another number."""
    if len(re.findall(r"\\pm(?![A-Za-z])", text)) != 1 or items(text) != [text]:
        return [text]
    return [re.sub(r"(^|[=(])\s*\+", r"\1", re.sub(r"\\pm(?![A-Za-z])\s*", sign, text)) for sign in "+-"]


def equation_sides(text: str) -> list[str]:
    r"""What `=` and `\in` separate."""
    return _split(text, {"=", r"\in"})


def is_name(text: str) -> bool:
    """Whether it only names what follows after `=`, as x, f(x) and (x, y) do."""
    return _NAME.fullmatch(text) is not None


def brackets(text: str) -> tuple[str, str, str]:
    """The opening bracket that encloses all of `text`, what is inside, and the closing one, which may be of
    another kind; empty brackets where none encloses it."""
    tokens = _TOKEN.findall(text)
    if not tokens or tokens[0] not in _OPENS or tokens[-1] not in _CLOSES:
        return "", text, ""
    depths = list(_depths(tokens))
    if any(depth <= 0 for depth in depths[:-1]) or depths[-1] != 0:
        return "", text, ""
    return tokens[0], "".join(tokens[1:-1]).strip(), tokens[-1]


def _split(text: str, separators: set[str]) -> list[str]:
    tokens = _TOKEN.findall(text)
    parts, part = [], ""
    for token, depth in zip(tokens, _depths(tokens), strict=True):
        if token in separators and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += token
    return [*parts, part.strip()]


def _depths(tokens: list[str]) -> Iterator[int]:
    """How many brackets are open after each token."""
    depth = 0
    for token in tokens:
        depth += (token in _OPENS) - (token in _CLOSES)
        yield depth
