"""Whether a completion's final expression equals the reference answer, by the library math-verify.

The library ends a parse or a comparison that takes too long by an alarm signal, which only the main thread of
a process can have: reward functions run there, in the worker.
"""

import logging
import re
from typing import Any

from math_verify import parse, verify

from grpo_runtime.rewards.text import final_answer
from grpo_runtime.rewards.types import Unscorable

TIMEOUT_SECONDS = 3
"""For one parse and for one comparison."""
_FORMULA = re.compile(r"[\\^_=+*/(){}<>\[\]]|^[A-Za-z]$")
_MARKED_LATEX = re.compile(r"\$|\\\(|\\\[|\\boxed")

# what a policy writes is often no mathematics; the library logs a traceback for each
logging.getLogger("math_verify").setLevel(logging.CRITICAL)


def math_verify(completion: str, answer: str) -> float | Unscorable:
    """1 when the completion's final expression is the answer's equal, else 0.

    The completion's expression is looked for in its final answer (`<answer>`, what follows `</think>`). Of an
    answer as GSM8K has them, a derivation that ends with `#### 42`, only what follows the last `####` counts.
    A completion without any expression is wrong; an answer without any is the data's fault: Unscorable.
    """
    gold = _parsed_answer(answer)
    if not gold:
        return Unscorable(f"the answer ({answer[-100:]}) holds no expression that math-verify can read")
    found = parse(final_answer(completion), parsing_timeout=TIMEOUT_SECONDS)
    return float(verify(gold, found, timeout_seconds=TIMEOUT_SECONDS))


def _parsed_answer(answer: str) -> list[Any]:
    text = answer.rpartition("####")[2].strip()
    # a formula without $ around it: as plain text the library would find the number 2 in \frac{1}{2}
    if _FORMULA.search(text) and not _MARKED_LATEX.search(text):
        text = f"${text}$"
    return list(parse(text, parsing_timeout=TIMEOUT_SECONDS))
