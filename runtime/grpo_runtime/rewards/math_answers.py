r"""Whether a completion's final expression equals the reference answer.

The library math-verify compares values, and finds the expression in a sentence. Beside it are ours:

- here, which part of a completion is its answer: the library reads 5 in `not 5`.
- `answer_notation`, many notations of one answer: the library drops quotes, dots, and "and" or "or".
- `answer_parts`, what an answer consists of: the library takes `6 - 5i` for two answers, and drops units.
- `answer_equality`, part by part: the library pays the right side of an equation for the equation.
- `answer_values`, numbers and equations: the library rounds numbers, and compares only real solutions.
"""

import re
from typing import NamedTuple

from latex2sympy2_extended.math_normalization import extract_boxed_content
from math_verify import parse

from grpo_runtime.rewards.answer_equality import are_equal, is_same_text
from grpo_runtime.rewards.answer_notation import cleaned
from grpo_runtime.rewards.answer_parts import has_words, measure
from grpo_runtime.rewards.answer_values import TIMEOUT_SECONDS
from grpo_runtime.rewards.builtin import final_answer
from grpo_runtime.rewards.types import Unscorable

_MAX_CHARACTERS = 2000
"""What is longer is prose and no expression."""
_BOXED = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])")


def math_verify(completion: str, answer: str) -> float | Unscorable:
    r"""1 when the completion's final expression equals the answer's, else 0.

    The completion's expression is the last `\boxed{}` of its final answer (`<answer>`, or what follows
    `</think>`), or else all of it; in prose, what follows "answer is", or else what the last sentence states.
    The answer is read as a whole, unless it is a solution that ends with `\boxed{}` or, as GSM8K's, with
    `#### 42`. An answer that is not mathematics has to be written in the same words. An empty one is a fault
    of the data: Unscorable.
    """
    gold = cleaned(_marked(answer).text)
    if not gold:
        return Unscorable(f"the answer ({answer[-100:]}) holds no expression that math-verify can read")
    marked = _marked(completion)
    found = cleaned(marked.text) if len(marked.text) <= _MAX_CHARACTERS else ""
    if marked.is_boxed or is_same_text(gold, found):
        return float(are_equal(gold, found))
    text = _without_emphasis(marked.text)
    return float(are_equal(gold, cleaned(_stated_in(text) if _is_prose(text, marked) else text)))


def is_paid_for_itself(answer: str) -> bool:
    r"""Whether `math_verify` gives 1 to the answer itself, in `\boxed{}` and in `<answer>`.

    Both are read as the answer is, and the same text is equal before anything is computed. So this is quick,
    and does not depend on a time limit.
    """
    expression = _marked(answer).text
    gold = cleaned(expression)
    forms = (rf"\boxed{{{expression}}}", f"<answer>{expression}</answer>")
    return bool(gold) and all(is_same_text(gold, cleaned(_marked(form).text)) for form in forms)


class _Marked(NamedTuple):
    text: str
    is_boxed: bool
    is_tagged: bool


def _marked(text: str) -> _Marked:
    """The part of a completion or an answer that is marked as its end."""
    is_tagged = "<answer>" in text
    text = final_answer(text)
    if _BOXED.search(text):
        # boxes side by side are one list: several guesses are not several chances
        return _Marked(extract_boxed_content(text, mode="last").strip(), True, is_tagged)
    return _Marked(text.rpartition("####")[2].strip(), False, is_tagged)


# What a sentence states

_ONE_FORMULA = re.compile(r"\s*(?:\$[^$]+\$|\$\$[^$]+\$\$|\\\([^$]+\\\)|\\\[[^$]+\\\])\s*")
_FOUR_WORDS = re.compile(r"[^\W\d_]+(?:\s+\S+){3}")
_EMPHASIS = re.compile(r"(?<![\w*])\*\*(?=\S)(.+?)(?<=\S)\*\*(?![\w*])|`([^`\n]+)`")
_ANSWER_IS = re.compile(
    # the answer is 42, the answer to it is 42, Answer: 42
    r"(?i:\banswer)(?:\s+(?:to|of|in|for)\s[^\n.:=]{0,60}?)?(?:\s+is\b|\s*[:=])\s*:?\s*"
    # a heading, and the short form of a dialogue
    r"|^\W*(?i:(?:final\s+)?answer)\W*\n|^A:\s",
    re.MULTILINE,
)
_END_OF_SENTENCE = re.compile(r"(?<=[^\s.])[.!](?=\s|$)\s*|\n+|,?\s+(?:because|since|as)\s")
_VERB = re.compile(
    r".*(?:\b(?:is|are|was|were|be|has|have|had|equals?|gets?|makes?)\b:?|(?<=[A-Za-z]):)\s*", re.DOTALL
)
_FIRST_WORDS = re.compile(r"(?:(?:[^\W\d_]{2,}|[AI])[,:]?\s+(?!=)|[^\W\d_]{3,}\s+(?==))+")
_DENIED_OR_BOUNDED = re.compile(
    r"\b(?:not|cannot|never|no|none|neither|wrong|incorrect|minus|negative|more|less|fewer|or|than|least|most"
    r"|over|under|above|below|almost|nearly|between|to"
    r"|squared|cubed|factorial|halves|thirds|fourths|fifths|tenths|hundredths)\b|n't\b",
    re.IGNORECASE,
)
_DENIED_VERB = re.compile(r"(?:\b(?:not|cannot|never)|n't)\s+\w+\W*$", re.IGNORECASE)
_MAX_SENTENCES = 3


def _is_prose(text: str, marked: _Marked) -> bool:
    """Whether sentences are read; in `<answer>` only what is one, for `not 5` and `5 or more` are none."""
    if _ONE_FORMULA.fullmatch(text):
        return False
    if _ANSWER_IS.search(text):
        return True
    if marked.is_tagged:
        return _FOUR_WORDS.match(text) is not None and _VERB.match(text) is not None
    return not _is_readable(text)


def _is_readable(text: str) -> bool:
    expression = cleaned(text) if len(text) <= _MAX_CHARACTERS else ""
    return bool(expression) and not has_words(measure(expression).value)


def _without_emphasis(text: str) -> str:
    return _EMPHASIS.sub(lambda match: match[1] or match[2], text)


def _stated_in(prose: str) -> str:
    """What prose states at its end: what follows "the answer is", or what one of its last sentences says."""
    *_, last = [None, *_ANSWER_IS.finditer(prose)]
    if last is not None:
        statement = _END_OF_SENTENCE.split(prose[last.end() :].lstrip(), maxsplit=1)[0][:_MAX_CHARACTERS]
        return statement if _is_readable(statement) else _expression_in(statement) or statement
    sentences = [sentence for sentence in _END_OF_SENTENCE.split(prose) if sentence.strip()]
    for sentence in sentences[: -_MAX_SENTENCES - 1 : -1]:
        expression = _expression_in(sentence)
        # a sentence with a number is the last word, though it may state nothing
        if expression or re.search(r"\d", sentence):
            return expression
    return ""


def _expression_in(sentence: str) -> str:
    """The expression of one sentence; none where the sentence denies it or only bounds it."""
    if len(sentence) > _MAX_CHARACTERS:
        return ""
    after_verb = _VERB.sub("", sentence, count=1)
    if _DENIED_OR_BOUNDED.search(after_verb) or _DENIED_VERB.search(sentence.removesuffix(after_verb)):
        return ""
    # 42 of "She has 42", x = 42 of "So x = 42"
    stated = _FIRST_WORDS.sub("", after_verb, count=1)
    if _is_readable(stated):
        return stated
    if _DENIED_OR_BOUNDED.search(sentence):
        return ""
    found = parse(sentence, extraction_mode="first_match", parsing_timeout=TIMEOUT_SECONDS)
    return str(found[-1]) if found else ""
