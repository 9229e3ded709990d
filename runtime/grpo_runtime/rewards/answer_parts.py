r"""What a cleaned answer consists of: lists, measures, names and values, brackets, relations, words.

`answer_notation.cleaned` makes the text that is read here. This is ours and not the library's, which takes
`6 - 5i` for two answers, drops units, and reads words as products of their letters.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[a-z]+\*?\}|\\math[a-z]+\s*\{[^{}]*\}|\\[A-Za-z]+")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_FUNCTION = re.compile(
    r"(?:arc)?(?:sin|cos|tan)|(?:sin|cos|tan)h|cot|sec|csc|log|ln|exp|max|min|gcd|lcm|mod|sqrt|pi|inf|infty|det"
)
_LONG_WORD = re.compile(r"[^\W\d_]{3,}")
_ANY_WORD = re.compile(r"[^\W\d_]{2,}")
_WORD_OF_EQUATION = re.compile(r"[^\W\d_]{3,}|\b(?:so|we|it|he|is|of|to|in|by|as|if|or|my|at|on|be)\b", re.I)
# abc in 2abc is a product, and in "abc" or "abc, def" it is none
_ONLY_WORDS = re.compile(r"[^\W\d_]{2,}|(?=.*[^\W\d_]{3})[^\W\d_]+(?:[\s,.'&()-]+[^\W\d_]+)*[\s.,)]*")
_WITHOUT_LATEX = re.compile(r"[^\\^_{}=<>]*")
_SHORT_WORD = re.compile(
    r"(?<![A-Za-z\\])(?:to|in|of|by|on|at|no|is|or|and|not|out|per|vs)(?![A-Za-z])|\d(?:st|nd|rd|th)\b"
)
# What LaTeX reads as a product or a quotient, and is none
_NO_ARITHMETIC = re.compile(
    # figures named by their points, remainders, vectors, lists that continue
    r"\\(?:angle|triangle|overline|overrightarrow|widehat|vec|hat|bar|parallel|perp|equiv|sim|cong|gcd|lcm"
    r"|partial|nabla|to|pmod|ldots|cdots|dots)(?![A-Za-z])|\.\.|\\dot\{|\\frac\{d(?:\^\{\d\})?\}\{d[a-z]"
    # ratios and times, dates, numbers side by side and of another base, feet and inches, stray signs
    r"|:|\d+/\d+/\d|\d\s+\d|(?:^|[^\w}])\d[0-9A-F]*_|^[0-9A-F]{2,}_|\)_|^0x[0-9A-F]|['\"%$€£¥₹]"
    # sympy opens a bracket at infinity
    r"|\\infty\]|\[-\\infty"
)

_OPENS = ("(", "[", r"\{", "{", r"\begin", r"\langle")
_CLOSES = (")", "]", r"\}", "}", r"\end", r"\rangle")
_TOKEN = re.compile(r"\\\\|\\[{}]|\\[A-Za-z]+|(?<![A-Za-z])(?:and|or)(?![A-Za-z])|.", re.DOTALL)


def is_words(text: str) -> bool:
    """Whether a cleaned answer is words, perhaps with numbers: `east`, `3 to 1`, `10:30 PM`, `AB`."""
    if any(_ANY_WORD.search(match[1]) for match in _TEXT.finditer(text)):
        return True
    words = [word for word in _LONG_WORD.findall(_COMMAND.sub(" ", text)) if not _is_function(word)]
    if len(words) > 1:
        return True
    if _ONLY_WORDS.fullmatch(text) is not None:
        return not _is_function(text)
    if words and " " in text and words[0] in text.split():
        # July 4
        return True
    return _WITHOUT_LATEX.fullmatch(text) is not None and _SHORT_WORD.search(text) is not None


def is_notation(text: str) -> bool:
    r"""Whether nothing is computed in a cleaned answer: `2:3`, `1010_{2}`, `\angle ABC`, `5'10"`."""
    return _NO_ARITHMETIC.search(text) is not None


def has_words(text: str) -> bool:
    """Whether a cleaned answer has a word that is no function; `ab` in an equation is a product."""
    pattern = _WORD_OF_EQUATION if "=" in text else _ANY_WORD
    bare = _COMMAND.sub(" ", _TEXT.sub(r" \1 ", text))
    return any(not _is_function(word) for word in pattern.findall(bare))


def _is_function(word: str) -> bool:
    return _FUNCTION.fullmatch(word.lower()) is not None


def words_without_case(text: str) -> str:
    r"""Words as they are compared: without `\text`, quotes and the full stops of abbreviations, and in lower
    case. Letters that name something keep their case: `n`, `AB` and `ABC`."""
    words = re.sub(r"(?<=[^\W\d_])\.|(?<!\d)[\"']", "", _TEXT.sub(r" \1 ", text))
    words = re.sub(r"[^\W\d_]+", lambda match: match[0] if _is_symbol(match[0]) else match[0].lower(), words)
    words = re.sub(r"\s+", " ", words)
    return re.sub(r"(?<![0-9A-Za-z])\s|\s(?![0-9A-Za-z])|(?<=\d)\s(?=[A-Za-z])", "", words)


def _is_symbol(word: str) -> bool:
    return len(word) == 1 or (len(word) <= _MAX_POINTS and word.isupper() and word not in _SHORT_WORDS)


_MAX_POINTS = 3
"""Letters of a figure that is named by its points."""
_SHORT_WORDS = ("AM", "PM", "NO", "YES", "ONE", "TWO")
# two letters may be two variables
_UNIT_WORD = (
    r"(?:[A-Za-z]{3,}|[ap]\.m"
    r"|(?:cm|mm|km|dm|nm|kg|mg|ml|mL|nL|ft|in|lb|oz|hr|wk|am|pm|yd|mi|AM|PM)(?![A-Za-z]))"
)
_UNIT = re.compile(
    r"(?P<value>.*(?:[\d})\]!]|\\pi))"
    rf"(?P<unit>(?:\s*\\text\{{[^{{}}]*\}}|\s+{_UNIT_WORD}(?:\s*/\s*(?:{_UNIT_WORD}|[a-z](?![A-Za-z])))*)+"
    r"\.?(?:\^\{?\d\}?)?)",
    re.DOTALL,
)
_NO_UNIT = re.compile(
    r"\b(?:or|and|to|more|less|than|least|most|not|no|mod|if|for|is|are|hundred|dozen|base|remainder"
    r"|infinity|pi|sqrt|undefined|out|of|by|plus|minus|but|negative|factorial|half|halves|thirds?|fourths?|fifths?"
    r"|sixths?|eighths?|tenths?|hundredths?|thousandths?|wrong|rejected|approximately)\b|^\s*(?:squared|cubed)\b"
)
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_CURRENCY_BEFORE = re.compile(r"(?P<sign>[-+]?)(?P<currency>[$€£¥₹])(?P<value>[^$€£¥₹]+)", re.DOTALL)
_CURRENCY_BEHIND = re.compile(r"(?P<value>[^$€£¥₹]*[\d}])(?P<currency>[$€£¥₹])", re.DOTALL)
_PERCENT = re.compile(r"(?P<value>[^%$€£¥₹]+?)\s*%", re.DOTALL)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_MAX_UNIT_WORDS = 4


@dataclass(frozen=True)
class Measure:
    """A value and its unit."""

    value: str
    unit: str
    """Singular, lower case from three letters on; % for percent, and empty where there is none."""


def measure(text: str) -> Measure:
    """The value and the unit of a cleaned answer."""
    if (match := _CURRENCY_BEFORE.fullmatch(text) or _CURRENCY_BEHIND.fullmatch(text)) is not None:
        currency, amount = _CURRENCIES[match["currency"]], measure(match["value"])
        sign = match["sign"] if "sign" in match.re.groupindex else ""
        return Measure(sign + amount.value, currency) if amount.unit in ("", currency) else Measure(text, "")
    if (match := _PERCENT.fullmatch(text)) is not None and not is_words(match["value"]):
        return Measure(match["value"], "%")
    match = _UNIT.fullmatch(text)
    if match is None or has_words(match["value"]) or _TRIGONOMETRY.search(match["value"]):
        return Measure(text, "")
    words = _TEXT.sub(r" \1 ", match["unit"])
    if _NO_UNIT.search(words) or len(words.split()) > _MAX_UNIT_WORDS:
        return Measure(text, "")
    return Measure(match["value"].strip(), _unit(words))


def _unit(words: str) -> str:
    unit = re.sub(r"[^0-9A-Za-z/]", "", words)
    if len(unit) > 2 or unit in ("AM", "PM"):
        return unit.lower().removesuffix("s")
    return unit


@dataclass(frozen=True)
class Listed:
    """Parts that commas, semicolons, "and" and "or" separate."""

    parts: list[str]
    connective: str
    """`or` or `and` where it is written, both in their order where both are, else a comma."""


def listed(text: str) -> Listed:
    """The parts of a list; one part where it is none."""
    separators = {",", ";", "and", "or"}
    tokens, depths = _tokens_and_depths(text)
    written = [
        token for token, depth in zip(tokens, depths, strict=True) if depth == 0 and token in separators
    ]
    words = [word for word in written if word in ("and", "or")]
    connective = " ".join(words) if len(set(words)) > 1 else next(iter(words), ",")
    return Listed([part for part in _split(text, separators) if part], connective)


_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])\s*")


def values_of_plus_minus(text: str) -> list[str]:
    r"""The two values of a cleaned answer with one `\pm`; the answer itself where there is another number."""
    if len(_PLUS_MINUS.findall(text)) != 1 or listed(text).parts != [text]:
        return [text]
    return [re.sub(r"(^|[=(])\s*\+", r"\1", _PLUS_MINUS.sub(sign, text)) for sign in "+-"]


_INDEX = r"(?:'|_\w|_\{[^{}]*\})*"
_ARGUMENT = r"(?:-?\d+|[A-Za-z])"
_NAME = re.compile(
    # x_1, \theta, AB, Area
    rf"(?:[A-Za-z]|\\[A-Za-z]+|[A-Z]{{2,4}}|[A-Z][a-z]{{2,}}){_INDEX}|\\text\{{[^{{}}]*\}}{_INDEX}"
    rf"|m?\\(?:angle|triangle|overline|vec|overrightarrow)\s*\{{?[A-Za-z]+\}}?|\|[A-Z]{{2}}\|"
    # f(x), P(A \cap B), (x, y); n(n + 1) is a product
    rf"|(?:[fghpqrFGHPQRSTVAE]|\\[A-Za-z]+){_INDEX}\({_ARGUMENT}(?:,{_ARGUMENT})*\)|P\([^()=]*\)"
    rf"|\([A-Za-z](?:,[A-Za-z])*\)"
)
_NO_NAME = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|infty|pi|emptyset)(?![A-Za-z])")


def named(text: str) -> tuple[str, str]:
    r"""The name and the value of `x = 5` and of `P(3) = 42`; no name, and all of `text`, where it is no
    definition, as `x + y = 1` and `|x| = 5`."""
    separators = {"=", r"\in", r"\approx"}
    name = _split(text, separators)[0]
    value = re.sub(r"^\s*(?:=|\\in|\\approx)\s*", "", text.removeprefix(name))
    is_name = name != text and _NAME.fullmatch(name) is not None and not _NO_NAME.search(name)
    return (name, value) if is_name else ("", text)


def equal_sides(text: str) -> list[str]:
    r"""What `=` separates."""
    return _split(text, {"="})


def approximate_sides(text: str) -> list[str]:
    r"""What `\approx` separates."""
    return _split(text, {r"\approx"})


_MIRRORED = {">": "<", r"\ge": r"\le"}


def ordered(text: str) -> tuple[list[str], list[str]]:
    r"""The sides and signs of `1 < x \le 3`, the smallest side first; no signs where it is no inequality."""
    signs = ["<", r"\le", ">", r"\ge", r"\ne"]
    tokens, depths = _tokens_and_depths(text)
    written = [token for token, depth in zip(tokens, depths, strict=True) if token in signs and depth == 0]
    sides = _split(text, set(signs))
    if written and all(sign in _MIRRORED for sign in written):
        return sides[::-1], [_MIRRORED[sign] for sign in written[::-1]]
    return sides, written


def ratio(text: str) -> list[str]:
    """Parts that colons separate."""
    return _split(text, {":"})


def enclosing_brackets(text: str) -> tuple[str, str, str]:
    """The opening bracket that encloses all of `text`, what is inside, and the closing one, which may be of
    another kind; empty brackets where none encloses it."""
    tokens, depths = _tokens_and_depths(text)
    if not tokens or tokens[0] not in _OPENS or tokens[-1] not in _CLOSES or tokens[0] == r"\begin":
        return "", text, ""
    if any(depth <= 0 for depth in depths[:-1]) or depths[-1] != 0:
        return "", text, ""
    return tokens[0], "".join(tokens[1:-1]).strip(), tokens[-1]


_MATRIX = re.compile(r"\\begin\{([bp]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)


def matrix_rows(text: str) -> list[list[str]] | None:
    """The cells of a matrix, in round or square brackets or none, or None where it is no matrix."""
    match = _MATRIX.fullmatch(text)
    if match is None or r"\begin" in match[2]:
        return None
    rows = _split(match[2].strip(), {r"\\"})
    # the last row may end like the others
    return [_split(row, {"&"}) for row in (rows if rows[-1] else rows[:-1])]


def nesting(text: str) -> int:
    """How many brackets are open at most."""
    return max(_tokens_and_depths(text)[1], default=0)


def _split(text: str, separators: set[str]) -> list[str]:
    tokens, depths = _tokens_and_depths(text)
    parts, part = [], ""
    for token, depth in zip(tokens, depths, strict=True):
        if token in separators and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += token
    return [*parts, part.strip()]


def _tokens_and_depths(text: str) -> tuple[list[str], list[int]]:
    """The tokens of a text, and how many brackets are open after each."""
    tokens = _TOKEN.findall(text)
    return tokens, list(_depths(tokens))


def _depths(tokens: list[str]) -> Iterator[int]:
    depth = 0
    for token in tokens:
        depth += (token in _OPENS) - (token in _CLOSES)
        yield depth
