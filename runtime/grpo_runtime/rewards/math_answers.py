"""Whether a completion's final expression equals the reference answer, by the library math-verify.

The library stops a parse or a comparison that takes too long with an alarm signal, which works only in the
main thread of a process. The worker calls reward functions there.
"""

import logging
import re
from typing import Any

from math_verify import parse, verify

from grpo_runtime.rewards.text import final_answer
from grpo_runtime.rewards.types import Unscorable

TIMEOUT_SECONDS = 3
"""Limit of one parse and of one comparison."""
_FORMULA = re.compile(r"[\\^_=+*/(){}<>\[\]]|^[A-Za-z]$")
_MARKED_LATEX = re.compile(r"\$|\\\(|\\\[|\\boxed")

# a policy often writes what is no mathematics, and the library logs a traceback each time
logging.getLogger("math_verify").setLevel(logging.CRITICAL)


def math_verify(completion: str, answer: str) -> float | Unscorable:
    """1 when the completion's final expression equals the answer's, else 0.

    The completion's expression is taken from its final answer (`<answer>`, or what follows `</think>`). In an
    answer of GSM8K's form, a derivation that ends with `#### 42`, only what follows the last `####` counts. A
    completion without an expression gets 0. An answer without one is a fault of the data: Unscorable.
    """
    gold = _parsed_answer(answer)
    if not gold:
        return Unscorable(f"the answer ({answer[-100:]}) holds no expression that math-verify can read")
    found = parse(final_answer(completion), parsing_timeout=TIMEOUT_SECONDS)
    return float(verify(gold, found, timeout_seconds=TIMEOUT_SECONDS))


def _parsed_answer(answer: str) -> list[Any]:
    text = answer.rpartition("####")[2].strip()
    # in a formula without $ around it the library would find the number 2 of \frac{1}{2}
    if _FORMULA.search(text) and not _MARKED_LATEX.search(text):
        text = f"${text}$"
    return list(parse(text, parsing_timeout=TIMEOUT_SECONDS))
